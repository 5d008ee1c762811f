//! Binding a module: which arguments batches give, and which gradients are wanted.

use std::sync::Arc;

use tensorc_frontend::symbol::Symbol;
use tensorc_runtime::Device;

use super::Module;
use crate::data::{DataDesc, DataIter};
use crate::executor::{Executor, GradReq};
use crate::ndarray::Runtime;
use crate::{DType, Error};

/// Types of data and labels and what is to be learned; [`ModuleBuilder::bind`] makes the module.
#[must_use = "nothing is bound until `bind`"]
pub struct ModuleBuilder {
    rt: Runtime,
    symbol: Symbol,
    device: Device,
    data: Vec<DataDesc>,
    labels: Vec<DataDesc>,
    fixed: Vec<String>,
    grad_req: GradReq,
    inputs_need_grad: bool,
}

impl ModuleBuilder {
    pub(super) fn new(rt: &Runtime, symbol: &Symbol) -> ModuleBuilder {
        ModuleBuilder {
            rt: rt.clone(),
            symbol: symbol.clone(),
            device: rt.options().device,
            data: vec![],
            labels: vec![],
            fixed: vec![],
            grad_req: GradReq::Write,
            inputs_need_grad: false,
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
    pub fn grad_req(mut self, request: GradReq) -> Self {
        self.grad_req = request;
        self
    }

    /// Computes the gradients of the data as well.
    pub fn inputs_need_grad(mut self) -> Self {
        self.inputs_need_grad = true;
        self
    }

    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Allocates all arrays in the shapes that follow from those of data and labels.
    ///
    /// # Errors
    /// Shapes contradict each other or do not follow, or a gradient is wanted that an operator does not have.
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
        let labels = self.labels.into_iter().enumerate();
        let labels: Vec<(usize, DataDesc)> = labels.filter(|(_, desc)| arguments.contains(&desc.name)).collect();
        let mut binder = Executor::simple_bind(&self.rt, &self.symbol).device(self.device);
        for desc in self.data.iter().chain(labels.iter().map(|(_, desc)| desc)) {
            binder = binder.shape(&desc.name, &desc.dims).dtype(&desc.name, desc.dtype);
        }
        binder = binder.grad_req(self.grad_req);
        for (_, desc) in &labels {
            binder = binder.grad_req_of(&desc.name, GradReq::Null);
        }
        for desc in &self.data {
            binder = binder.grad_req_of(&desc.name, if self.inputs_need_grad { GradReq::Write } else { GradReq::Null });
        }
        for name in &self.fixed {
            binder = binder.grad_req_of(name, GradReq::Null);
        }
        if let Some(other) = other {
            let names = self.symbol.list_inputs();
            let known = |name: &&str| names.iter().any(|n| n == name);
            for (name, array) in other.parameters().chain(other.auxiliaries()).filter(|(name, _)| known(name)) {
                binder = binder.array(name, array);
            }
            for (name, gradient) in other.executor.gradients().filter(|(name, _)| known(name)) {
                if !other.is_input(name) {
                    binder = binder.gradient(name, gradient);
                }
            }
            binder = binder.share(&other.executor);
        }
        let executor = binder.build()?;
        Ok(Module {
            rt: self.rt,
            symbol: self.symbol,
            device: self.device,
            data: self.data,
            labels,
            fixed: self.fixed,
            grad_req: self.grad_req,
            inputs_need_grad: self.inputs_need_grad,
            executor,
            updater: other.map_or_else(Arc::default, |other| other.updater.clone()),
            fused: None,
        })
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
            device: self.device,
            data: data.to_vec(),
            labels: labels.to_vec(),
            fixed: self.fixed.iter().filter(|name| symbol.list_arguments().contains(name)).cloned().collect(),
            grad_req: self.grad_req,
            inputs_need_grad: self.inputs_need_grad,
        };
        builder.bind_sharing(Some(self))
    }
}
