//! Collecting what a symbol is bound to, and checking it.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_frontend::symbol::Symbol;
use tensorc_ir::{DenseType, TensorType};
use tensorc_runtime::Device;

use super::Executor;
use super::memory::SharedMemory;
use super::request::Requests;
use super::types::{VariableTypes, infer};
use crate::error::Error;
use crate::grad_req::GradReq;
use crate::ndarray::{NDArray, Runtime};
use tensorc::DType;

/// Arrays, shapes and gradient requests of a symbol's variables; [`Binder::build`] makes the executor.
#[must_use = "nothing is bound until it is built"]
pub struct Binder<'a> {
    rt: &'a Runtime,
    symbol: Symbol,
    /// Arrays that are not given are allocated.
    simple: bool,
    known: VariableTypes,
    arrays: BTreeMap<String, NDArray>,
    /// Arguments in the symbol's order.
    list: Option<Vec<NDArray>>,
    gradients: BTreeMap<String, NDArray>,
    requests: Requests,
    groups: BTreeMap<String, Device>,
    device: Device,
    memory: Option<SharedMemory>,
}

/// A bound symbol before anything is compiled.
pub(super) struct Bound {
    pub arguments: Vec<(String, NDArray)>,
    pub auxiliaries: Vec<(String, NDArray)>,
    /// By argument; an array exactly where the request is not null.
    pub gradients: Vec<Option<NDArray>>,
    pub requests: Vec<GradReq>,
    /// Extents that depend on values are not known.
    pub outputs: Vec<(String, TensorType)>,
}

impl<'a> Binder<'a> {
    pub(super) fn new(rt: &'a Runtime, symbol: &Symbol, simple: bool) -> Binder<'a> {
        let default = if simple { GradReq::Write } else { GradReq::Null };
        Binder {
            rt,
            symbol: symbol.clone(),
            simple,
            known: VariableTypes::default(),
            arrays: BTreeMap::new(),
            list: None,
            gradients: BTreeMap::new(),
            requests: Requests { default, by_name: BTreeMap::new() },
            groups: BTreeMap::new(),
            device: rt.options().device,
            memory: None,
        }
    }

    /// The array of one variable: an argument or an auxiliary state.
    pub fn array(mut self, name: &str, array: &NDArray) -> Self {
        self.arrays.insert(name.to_owned(), array.clone());
        self
    }

    /// The arrays of all arguments, in the order of the symbol's list of arguments.
    pub fn arguments<'n>(self, arrays: impl IntoIterator<Item = &'n NDArray>) -> Self {
        Binder { list: Some(arrays.into_iter().cloned().collect()), ..self }
    }

    /// The shape of a variable; 0 is an unknown extent.
    pub fn shape(mut self, name: &str, dims: &[u64]) -> Self {
        self.known.shapes.insert(name.to_owned(), dims.to_vec());
        self
    }

    /// The element type of a variable; f32 where nothing says otherwise.
    pub fn dtype(mut self, name: &str, dtype: DType) -> Self {
        self.known.dtypes.insert(name.to_owned(), dtype);
        self
    }

    /// The gradient array of an argument; asks for the gradient to be written unless a request says otherwise.
    pub fn gradient(mut self, name: &str, array: &NDArray) -> Self {
        self.gradients.insert(name.to_owned(), array.clone());
        self
    }

    /// What happens to the gradients of arguments without a request of their own.
    pub fn grad_req(mut self, request: GradReq) -> Self {
        self.requests.default = request;
        self
    }

    /// What happens to the gradient of one argument.
    pub fn grad_req_of(mut self, name: &str, request: GradReq) -> Self {
        self.requests.by_name.insert(name.to_owned(), request);
        self
    }

    /// Where nodes without a group are placed, and arrays are allocated.
    pub fn device(self, device: Device) -> Self {
        Binder { device, ..self }
    }

    /// Where nodes with the attribute `ctx_group` of this name are placed.
    pub fn group(mut self, name: &str, device: Device) -> Self {
        self.groups.insert(name.to_owned(), device);
        self
    }

    /// Uses the memory for intermediate values of another executor, grown if this one needs more. The two must
    /// take turns: a forward pass of one ends what the other's backward pass could use.
    pub fn share(self, other: &Executor) -> Self {
        Binder { memory: Some(other.memory().clone()), ..self }
    }

    /// Checks everything, and allocates what is missing if shapes can be inferred.
    ///
    /// # Errors
    /// A name is unknown, an array is missing or has another type than the rest implies, shapes cannot be
    /// inferred, or a gradient is wanted that an operator does not have.
    pub fn build(mut self) -> Result<Executor, Error> {
        let names = self.symbol.list_arguments();
        self.take_list(&names)?;
        self.check_names(&names)?;
        let bound = self.bind(names)?;
        let memory = self.memory.take().unwrap_or_default();
        Executor::new(self.rt.clone(), self.symbol, bound, self.device, self.groups, memory)
    }

    fn take_list(&mut self, names: &[String]) -> Result<(), Error> {
        let Some(list) = self.list.take() else { return Ok(()) };
        if list.len() != names.len() {
            return Err(Error::Bind(format!("{} arguments are given, the symbol has {}", list.len(), names.len())));
        }
        self.arrays.extend(names.iter().cloned().zip(list));
        Ok(())
    }

    /// Every name given belongs to a variable.
    fn check_names(&self, arguments: &[String]) -> Result<(), Error> {
        let states = self.symbol.list_auxiliary_states();
        let all: BTreeSet<&String> = arguments.iter().chain(&states).collect();
        let given = self.arrays.keys().chain(self.known.shapes.keys()).chain(self.known.dtypes.keys());
        let unknown = |name: &&String| !all.contains(*name);
        if let Some(name) = given.into_iter().find(unknown) {
            let list: Vec<&str> = all.iter().map(|n| n.as_str()).collect();
            return Err(Error::Bind(format!("the symbol has no variable `{name}`; it has: {}", list.join(", "))));
        }
        let of_arguments = self.gradients.keys().chain(self.requests.by_name.keys());
        match of_arguments.into_iter().find(|name| !arguments.contains(name)) {
            Some(name) => {
                let list = arguments.join(", ");
                Err(Error::Bind(format!("the symbol has no argument `{name}` to differentiate by; it has: {list}")))
            }
            None => Ok(()),
        }
    }

    fn bind(&self, names: Vec<String>) -> Result<Bound, Error> {
        let mut known = self.known.clone();
        for (name, array) in &self.arrays {
            known.shapes.insert(name.clone(), array.dims().to_vec());
            known.dtypes.insert(name.clone(), array.dtype());
        }
        let types = infer(self.rt.compiler(), &self.symbol, &known)?;
        let device_of = |name: &str| self.device_of(name);
        let array = |name: &String, ty: &DenseType, initial: f64| match self.arrays.get(name) {
            Some(array) => Ok(array.clone()),
            None if self.simple => self.rt.full(device_of(name), ty.dtype, &ty.dims, initial),
            None => Err(Error::Bind(format!("no array is given for `{name}`: {ty}"))),
        };
        let mut arguments = vec![];
        for (name, ty) in names.iter().zip(&types.arguments) {
            arguments.push((name.clone(), array(name, ty, 0.0)?));
        }
        let mut auxiliaries = vec![];
        for (name, ty) in self.symbol.list_auxiliary_states().iter().zip(&types.auxiliaries) {
            auxiliaries.push((name.clone(), array(name, ty, 0.0)?));
        }
        let (mut gradients, mut requests) = (vec![], vec![]);
        for (name, array) in &arguments {
            let given = self.gradients.get(name);
            let request = match (given, self.requests.by_name.get(name)) {
                (_, Some(request)) => *request,
                (Some(_), None) if self.requests.default == GradReq::Null => GradReq::Write,
                (None, None) if !self.simple => GradReq::Null,
                _ => self.requests.of(name),
            };
            let gradient = match (request, given) {
                (GradReq::Null, _) => None,
                (_, Some(given)) if given.dims() == array.dims() && given.dtype() == array.dtype() => {
                    Some(given.clone())
                }
                (_, Some(given)) => {
                    return Err(Error::Bind(format!("`{name}` is {array:?}, its gradient array {given:?}")));
                }
                (_, None) => Some(self.rt.full(array.device(), array.dtype(), array.dims(), 0.0)?),
            };
            gradients.push(gradient);
            requests.push(request);
        }
        Ok(Bound { arguments, auxiliaries, gradients, requests, outputs: types.outputs })
    }

    /// Where a variable is allocated: with its group.
    fn device_of(&self, name: &str) -> Device {
        let devices = group_devices(&self.symbol, &self.groups);
        devices.get(name).copied().unwrap_or(self.device)
    }
}

/// The devices of the nodes that belong to a group with a device, by the nodes' names.
pub(super) fn group_devices(symbol: &Symbol, groups: &BTreeMap<String, Device>) -> BTreeMap<String, Device> {
    if groups.is_empty() {
        return BTreeMap::new();
    }
    let device = |attrs: &BTreeMap<String, String>| groups.get(attrs.get("ctx_group")?).copied();
    symbol.attr_dict().iter().filter_map(|(name, attrs)| Some((name.clone(), device(attrs)?))).collect()
}
