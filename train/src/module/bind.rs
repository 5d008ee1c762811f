//! Binding a module: which arguments batches give, and which gradients are wanted.

use std::sync::Arc;

use tensorc_frontend::symbol::Symbol;
use tensorc_runtime::Device;

use super::Module;
use super::parallel::{Parallel, Sums};
use crate::error::Error;
use crate::kvstore::KVStore;
use tensorc::DType;
use tensorc_data::{DataDesc, DataIter};
use tensorc_nd::Runtime;
use tensorc_nd::executor::{Binder, Executor, GradReq};

/// Types of data and labels and what is to be learned; [`ModuleBuilder::bind`] makes the module.
#[must_use = "nothing is bound until `bind`"]
pub struct ModuleBuilder {
    rt: Runtime,
    symbol: Symbol,
    devices: Vec<Device>,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
    fixed: Vec<String>,
    grad_req: GradReq,
    inputs_need_grad: bool,
    micro_batches: Option<usize>,
    store: Option<KVStore>,
    sums: Sums,
}

impl ModuleBuilder {
    pub(super) fn new(rt: &Runtime, symbol: &Symbol) -> ModuleBuilder {
        ModuleBuilder {
            rt: rt.clone(),
            symbol: symbol.clone(),
            devices: vec![rt.options().device],
            data: vec![],
            labels: vec![],
            fixed: vec![],
            grad_req: GradReq::Write,
            inputs_need_grad: false,
            micro_batches: None,
            store: None,
            sums: Sums::default(),
        }
    }

    /// An argument of f32 that is data; its first extent is the batch size.
    pub fn data(mut self, name: &str, dims: &[u64]) -> Self {
        self.data.push(DataDesc::new(name, DType::F32, dims));
        self
    }

    /// An argument of f32 that is a label.
    pub fn label(mut self, name: &str, dims: &[u64]) -> Self {
        self.labels.push(DataDesc::new(name, DType::F32, dims));
        self
    }

    /// The data and labels of these batches.
    pub fn batches(mut self, batches: &dyn DataIter) -> Self {
        self.data = batches.provide_data().to_vec();
        self.labels = batches.provide_label().to_vec();
        self
    }

    /// Data and labels by name, element type and shape.
    pub fn inputs(mut self, data: Vec<DataDesc>, labels: Vec<DataDesc>) -> Self {
        (self.data, self.labels) = (data, labels);
        self
    }

    /// Parameters that stay as they are.
    pub fn fixed<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Self {
        self.fixed.extend(names.into_iter().map(str::to_owned));
        self
    }

    /// What happens to the gradients of parameters. With [`GradReq::Null`] the module only computes outputs.
    pub fn grad_req(self, request: GradReq) -> Self {
        ModuleBuilder { grad_req: request, ..self }
    }

    /// Computes the gradients of the data as well.
    pub fn inputs_need_grad(self) -> Self {
        ModuleBuilder { inputs_need_grad: true, ..self }
    }

    /// The device of all arrays; that of the runtime's options by default.
    pub fn device(self, device: Device) -> Self {
        ModuleBuilder { devices: vec![device], ..self }
    }

    /// Several devices, each of which takes an equal share of every batch. The first one sums the gradients and updates the
    /// parameters.
    pub fn devices(self, devices: &[Device]) -> Self {
        ModuleBuilder { devices: devices.to_vec(), ..self }
    }

    /// Shares the parameters with the processes of a store: gradients are summed over all of them. A batch is then this
    /// process's part of one that is as many times as large.
    pub fn kvstore(self, store: &KVStore) -> Self {
        ModuleBuilder { store: Some(store.clone()), ..self }
    }

    /// In how many parts of equal size a batch of all processes is computed, one for each device of each process if not
    /// given. Where this number is fixed, a step has the same bits for any number of devices and processes that divide it.
    pub fn micro_batches(self, count: usize) -> Self {
        ModuleBuilder { micro_batches: Some(count), ..self }
    }

    /// How the gradients of several devices are summed.
    pub fn sums(self, sums: Sums) -> Self {
        ModuleBuilder { sums, ..self }
    }

    /// Allocates all arrays in the shapes that follow from those of data and labels.
    ///
    /// # Errors
    /// Shapes contradict each other or do not follow, or a gradient is wanted that an operator does not have; or the devices
    /// cannot be joined as [`Sums::Nccl`] asks.
    pub fn bind(self) -> Result<Module, Error> {
        self.bind_sharing(None)
    }

    /// [`ModuleBuilder::bind`] with the parameters, optimizer and memory of another module, where names agree.
    ///
    /// # Errors
    /// As [`ModuleBuilder::bind`], or a shared parameter would have another shape.
    pub(super) fn bind_sharing(self, other: Option<&Module>) -> Result<Module, Error> {
        // Labels that the symbol does not use, as in prediction, are left out.
        let arguments = self.symbol.list_arguments();
        let labels = self.labels.iter().cloned().enumerate();
        let labels: Vec<(usize, DataDesc)> = labels.filter(|(_, desc)| arguments.contains(&desc.name)).collect();
        let (leaves, micro) = self.leaves()?;
        let single = leaves == 1 && self.store.as_ref().is_none_or(|store| store.group().is_none());
        if !single && self.grad_req == GradReq::Add {
            let why = "gradients that are added to cannot be summed over micro-batches or processes";
            return Err(tensorc_nd::Error::Bind(format!("{why}: use `GradReq::Write`")).into());
        }
        let joined = match (self.sums, other.and_then(Module::joined)) {
            (Sums::Tree, _) => None,
            (Sums::Nccl, Some(joined)) => Some(joined.clone()),
            (Sums::Nccl, None) => Some(self.rt.join(&self.devices)?),
        };
        let mut executors = vec![];
        for (at, device) in self.devices.iter().enumerate() {
            let of = other.map(|other| match (at, &other.parallel) {
                (0, _) | (_, None) => &other.executor,
                (_, Some(parallel)) => &parallel.others[at - 1],
            });
            let mut executor = self.binder(*device, leaves, &labels, other.zip(of))?.build()?;
            executor.draw_from(self.devices[0]);
            executors.push(executor);
        }
        let others = executors.split_off(1);
        let Some(executor) = executors.pop() else { return Err(Error::Internal("no executor".into())) };
        let parallel = || Parallel::new(self.store, others, micro, joined, other.and_then(|o| o.parallel.as_deref()));
        Ok(Module {
            rt: self.rt,
            symbol: self.symbol,
            device: self.devices[0],
            data: self.data,
            labels,
            fixed: self.fixed,
            grad_req: self.grad_req,
            inputs_need_grad: self.inputs_need_grad,
            executor,
            parallel: (!single).then(|| Box::new(parallel())),
            updater: other.map_or_else(Arc::default, |other| other.updater.clone()),
            fused: None,
        })
    }

    /// Micro-batches of this process in a step, and of each device.
    fn leaves(&self) -> Result<(usize, usize), Error> {
        let (ranks, devices) = (self.store.as_ref().map_or(1, KVStore::num_workers), self.devices.len());
        let places = ranks * devices;
        let count = self.micro_batches.unwrap_or(places);
        if places == 0 || count == 0 || !count.is_multiple_of(places) {
            let why = format!("{count} micro-batches on {ranks} processes with {devices} devices each");
            return Err(tensorc_nd::Error::Bind(format!("{why}: not the same number for each")).into());
        }
        let leaves = count / ranks;
        let uneven = |desc: &&DataDesc| desc.dims.first().is_some_and(|rows| !rows.is_multiple_of(leaves as u64));
        match self.data.iter().chain(&self.labels).find(uneven) {
            Some(desc) if leaves > 1 => {
                let DataDesc { name, dims, .. } = desc;
                let why = format!("`{name}` has {} examples, which {leaves} micro-batches do not divide", dims[0]);
                Err(tensorc_nd::Error::Bind(why).into())
            }
            _ => Ok((leaves, count / places)),
        }
    }

    /// What an executor of one device is bound to.
    fn binder<'b>(
        &'b self,
        device: Device,
        leaves: usize,
        labels: &[(usize, DataDesc)],
        other: Option<(&Module, &Executor)>,
    ) -> Result<Binder<'b>, Error> {
        let mut binder = Executor::simple_bind(&self.rt, &self.symbol).device(device);
        for desc in self.data.iter().chain(labels.iter().map(|(_, desc)| desc)) {
            let mut dims = desc.dims.clone();
            if let Some(rows) = dims.first_mut() {
                *rows /= leaves as u64;
            }
            binder = binder.shape(&desc.name, &dims).dtype(&desc.name, desc.dtype);
        }
        binder = binder.grad_req(self.grad_req);
        for (_, desc) in labels {
            binder = binder.grad_req_of(&desc.name, GradReq::Null);
        }
        for desc in &self.data {
            binder = binder.grad_req_of(&desc.name, if self.inputs_need_grad { GradReq::Write } else { GradReq::Null });
        }
        for name in &self.fixed {
            binder = binder.grad_req_of(name, GradReq::Null);
        }
        let Some((module, executor)) = other else { return Ok(binder) };
        let names = self.symbol.list_inputs();
        let own = |name: &str| names.iter().any(|n| n == name) && !module.is_input(name);
        let arrays = executor.arguments().iter().chain(executor.auxiliaries());
        for (name, array) in arrays.filter(|(name, _)| own(name)) {
            binder = binder.array(name, array);
        }
        for (name, gradient) in executor.gradients().filter(|(name, _)| own(name)) {
            binder = binder.gradient(name, gradient);
        }
        Ok(binder.share(executor))
    }
}

impl Module {
    /// Another network, or the same for other shapes, with the parameters, optimizer and memory of this one.
    /// Training either moves the parameters of both; they take turns.
    ///
    /// # Errors
    /// Shapes contradict each other, or a parameter of both would need two shapes.
    pub fn sibling(&self, symbol: &Symbol, data: &[DataDesc], labels: &[DataDesc]) -> Result<Module, Error> {
        let builder = ModuleBuilder {
            rt: self.rt.clone(),
            symbol: symbol.clone(),
            devices: self.devices(),
            data: data.to_vec(),
            labels: labels.to_vec(),
            fixed: self.fixed.iter().filter(|name| symbol.list_arguments().contains(name)).cloned().collect(),
            grad_req: self.grad_req,
            inputs_need_grad: self.inputs_need_grad,
            micro_batches: self.parallel.as_ref().map(|parallel| parallel.leaves() * parallel.ranks()),
            store: self.kvstore().cloned(),
            sums: if self.joined().is_some() { Sums::Nccl } else { Sums::Tree },
        };
        builder.bind_sharing(Some(self))
    }
}
