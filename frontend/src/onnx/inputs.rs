//! The inputs of a graph, as the options of an import want them: of fixed extents, or constants.

use tensorc_abi::DType;
use tensorc_ir::dim::Origin;
use tensorc_ir::graph::Value;
use tensorc_ir::{Dim, Dims, Extents, Shape, TensorData, TensorType};

use super::error::OnnxError;
use super::import::Importer;
use super::meaning::Meaning;
use super::proto::{DataType, DimensionValue, TensorTypeProto, TypeValue, ValueInfoProto};
use super::tensor::{MAX_RANK, element_type};

impl Importer<'_> {
    /// Adds the graph's inputs; returns those that stay constants.
    pub(super) fn inputs(&mut self, inputs: &[ValueInfoProto]) -> Result<Vec<(String, TensorData)>, OnnxError> {
        self.taken.extend(inputs.iter().map(|i| i.name().to_owned()));
        self.taken.extend(self.stored.keys().cloned());
        let mut defaults = vec![];
        for info in inputs {
            let name = info.name();
            if self.stored.contains_key(name) {
                if let Some(data) = self.stored_constant(name)? {
                    defaults.push((name.to_owned(), data));
                }
                continue;
            }
            let meaning = match self.input_meaning(info)? {
                Ok(meaning) => meaning,
                Err(why) => {
                    self.unsupported.input(name, why);
                    Meaning::Reported
                }
            };
            self.define_input(name, meaning)?;
        }
        Ok(defaults)
    }

    /// An input as the options want it: a constant, or of fixed extents.
    fn input(&mut self, name: &str, ty: TensorType) -> Result<Value, OnnxError> {
        let wrong = |problem: String| OnnxError::Input { name: name.to_owned(), problem };
        let value = self.options.values.iter().find(|(n, _)| *n == name).map(|(_, data)| data);
        let shape = self.options.shapes.iter().find(|(n, _)| *n == name).map(|(_, dims)| *dims);
        for given in value.map(|data| &data.ty.dims).into_iter().chain(shape) {
            self.bind(name, &ty.shape, given).map_err(wrong)?;
        }
        match value {
            Some(data) if ty.dtype.is_some_and(|d| d != data.dtype()) => {
                Err(wrong(format!("its element type is {}, not {}", ty.dtype.map_or("", DType::name), data.dtype())))
            }
            Some(data) => Ok(self.graph.add_const(name, data.clone())),
            None => {
                let shape = match (&ty.shape, shape) {
                    (Shape::Unranked, Some(dims)) => Shape::Ranked(dims.all().map(Dim::of).collect()),
                    _ => ty.shape,
                };
                Ok(self.graph.add_input(name, TensorType { shape, ..ty }))
            }
        }
    }

    /// Makes the dimensions of an input what they are to be.
    fn bind(&mut self, name: &str, declared: &Shape, given: &Extents) -> Result<(), String> {
        let Some(dims) = declared.dims() else { return Ok(()) };
        if dims.len() != given.len() {
            return Err(format!("its rank is {}, the shape {:?} was given", dims.len(), given.example()));
        }
        for (axis, (dim, extent)) in dims.iter().zip(given.all()).enumerate() {
            let unified = self.graph.dims.unify(*dim, Dim::of(extent), &Origin(name.into()));
            unified.map_err(|c| format!("axis {axis} has extent {}, {} was given", c.expected, c.found))?;
        }
        Ok(())
    }

    /// What an input stands for; the inner error says why it is not supported.
    fn input_meaning(&mut self, info: &ValueInfoProto) -> Result<Result<Meaning, String>, OnnxError> {
        match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Tensor(tensor)) => self.tensor_input(info.name(), tensor),
            Some(TypeValue::Map(map)) => self.map_input(info.name(), map),
            Some(other) => self.list_input(info.name(), other),
            None => Ok(Err("it has no type".to_owned())),
        }
    }

    /// Adds an input of the graph.
    pub(super) fn tensor_input(
        &mut self,
        name: &str,
        declared: &TensorTypeProto,
    ) -> Result<Result<Meaning, String>, OnnxError> {
        match self.input_type(name, declared) {
            Ok(ty) => Ok(Ok(Meaning::Tensor(self.input(name, ty)?))),
            Err(why) => Ok(Err(why)),
        }
    }

    pub(super) fn define_input(&mut self, name: &str, meaning: Meaning) -> Result<(), OnnxError> {
        match self.values.insert(name.to_owned(), meaning) {
            Some(_) => Err(OnnxError::DefinedTwice { value: name.to_owned(), by: "a graph input".to_owned() }),
            None => Ok(()),
        }
    }

    /// Whether the options speak of inputs that there are.
    pub(super) fn check_options(&self, inputs: &[ValueInfoProto]) -> Result<(), OnnxError> {
        let options = self.options;
        let tensors = options.shapes.iter().map(|s| s.0).chain(options.values.iter().map(|v| v.0));
        for name in tensors {
            if !matches!(self.values.get(name), Some(Meaning::Tensor(_) | Meaning::Reported)) {
                let known = inputs.iter().map(|i| i.name().to_owned()).collect();
                return Err(OnnxError::NoSuchInput { name: name.to_owned(), known });
            }
        }
        Ok(())
    }

    /// The type of an input, with a named variable for every dynamic dimension.
    fn input_type(&mut self, name: &str, tensor: &TensorTypeProto) -> Result<TensorType, String> {
        let dtype = match tensor.elem_type() {
            code if code == DataType::String as i32 => {
                self.texts.add_value(name);
                DType::I64
            }
            code => element_type(code).map_err(|p| p.to_string())?,
        };
        let Some(shape) = &tensor.shape else { return Ok(TensorType::new(dtype, Shape::Unranked)) };
        if shape.dim.len() > MAX_RANK {
            return Err(format!("it has {} dimensions; at most {MAX_RANK} are supported", shape.dim.len()));
        }
        let mut dims = Dims::new();
        for (axis, dim) in shape.dim.iter().enumerate() {
            dims.push(match &dim.value {
                Some(DimensionValue::Value(n)) if *n >= 0 => Dim::Const(*n as u64),
                // Exporters write "?" for every unknown extent; it relates nothing.
                Some(DimensionValue::Param(dim)) if !matches!(dim.as_str(), "" | "?") => self.graph.dims.named(dim),
                _ => self.graph.dims.fresh(Some(&format!("{name}.{axis}"))),
            });
        }
        let ty = TensorType::new(dtype, Shape::Ranked(dims));
        match ty.dense().filter(|dense| !dense.is_addressable()) {
            Some(dense) => Err(format!("{dense} has more bytes than a machine can address")),
            None => Ok(ty),
        }
    }
}
