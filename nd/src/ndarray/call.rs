//! One call of an operator: operands, parameters, results.

use smallvec::SmallVec;
use tensorc_ir::TensorData;
use tensorc_ir::op::{OpDef, OpRef, TypeRule};
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_runtime::Device;
use tensorc_runtime::array::Inline;

use super::array::NDArray;
use super::front;
use super::mode::is_training;
use super::resolved_call::{Formal, ResolvedCall};
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::{DType, Tensor};

/// What an operator is applied to.
#[derive(Clone, Debug, derive_more::From)]
pub enum CallOperand<'a> {
    /// An array.
    #[from]
    Array(&'a NDArray),
    /// A number, converted to the type of the arrays it is combined with: integers truncate.
    #[from]
    Scalar(f64),
    /// The same for whole numbers, all of which have an exact value here.
    #[from]
    Integer(i64),
    /// A tensor of the host, for example the axes of a reduction.
    #[from]
    Tensor(Tensor),
    /// An optional operand that is left out.
    Absent,
}

/// Positions, axes and extents as operators take them.
impl From<&[i64]> for CallOperand<'_> {
    fn from(values: &[i64]) -> Self {
        let data = TensorData::from_fn(tensorc_ir::DenseType::new(DType::I64, [values.len() as u64]), |i| {
            Scalar::i64(values[i as usize])
        });
        CallOperand::Tensor(Tensor::from(data))
    }
}

impl<const N: usize> From<[i64; N]> for CallOperand<'_> {
    fn from(values: [i64; N]) -> Self {
        CallOperand::from(&values[..])
    }
}

/// A call being put together; [`Call::invoke`] makes it.
#[must_use = "nothing happens until the call is invoked"]
pub struct Call<'a> {
    rt: &'a Runtime,
    def: OpRef,
    operands: SmallVec<[CallOperand<'a>; 4]>,
    params: Params,
    outputs: usize,
    device: Option<Device>,
    error: Option<Error>,
}

impl Runtime {
    /// The call of an operator of the registry, by its name.
    ///
    /// # Errors
    /// No operator has the name.
    pub fn op(&self, name: &str) -> Result<Call<'_>, Error> {
        match self.compiler().registry().get(name) {
            Some(def) => Ok(Call::new(self, def.clone())),
            None => Err(Error::UnknownOperator { name: name.to_owned() }),
        }
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(rt: &'a Runtime, def: OpRef) -> Call<'a> {
        let outputs = def.outputs.0.max(1);
        Call { rt, def, operands: SmallVec::new(), params: Params::new(), outputs, device: None, error: None }
    }

    /// The next operand.
    pub fn arg(mut self, operand: impl Into<CallOperand<'a>>) -> Call<'a> {
        self.operands.push(operand.into());
        self
    }

    /// The next operands.
    pub fn args(mut self, operands: impl IntoIterator<Item = &'a NDArray>) -> Call<'a> {
        self.operands.extend(operands.into_iter().map(CallOperand::Array));
        self
    }

    /// A parameter; an unknown name is an error of the call.
    pub fn param(mut self, name: &str, value: impl Into<ParamValue>) -> Call<'a> {
        match self.def.params.iter().find(|spec| spec.name == name) {
            Some(spec) => self.params.set(spec.name, value.into()),
            None => {
                let known: Vec<&str> = self.def.params.iter().map(|spec| spec.name).collect();
                let (op, name, known) = (self.def.name.to_owned(), name.to_owned(), known.join(", "));
                self.error.get_or_insert(Error::UnknownParameter { op, name, known });
            }
        }
        self
    }

    /// Number of results, for operators that have a choice.
    pub fn outputs(self, count: usize) -> Call<'a> {
        Call { outputs: count, ..self }
    }

    /// Where to run it, for operators without array operands.
    pub fn on(self, device: Device) -> Call<'a> {
        Call { device: Some(device), ..self }
    }

    /// Calls the operator and returns its first result, before it is computed.
    ///
    /// Auxiliary states, such as the moving averages of a batch normalisation that trains, are written with their
    /// next values, unless these are among the results asked for.
    ///
    /// # Errors
    /// Operands or parameters do not fit the operator, or it is not supported.
    pub fn invoke(mut self) -> Result<NDArray, Error> {
        if !self.def.states(&self.params).is_empty() {
            self.outputs = 1;
        }
        let (rt, op) = (self.rt, self.def.name);
        let first = front::call(rt, self.resolve()?, None)?.into_iter().next();
        first.ok_or_else(|| Error::Internal(format!("`{op}` has no result")))
    }

    /// Calls the operator and returns all results, before they are computed.
    ///
    /// # Errors
    /// As [`Call::invoke`].
    pub fn invoke_all(self) -> Result<Vec<NDArray>, Error> {
        let rt = self.rt;
        Ok(front::call(rt, self.resolve()?, None)?.into_vec())
    }

    /// Records the call as what made an array that sees its operand's memory.
    pub(super) fn record_as(self, seen: &mut NDArray) -> Result<(), Error> {
        let rt = self.rt;
        front::record_view(rt, &self.resolve()?, seen)
    }

    /// Calls the operator and lets it write arrays that exist; operands may be among them.
    ///
    /// # Errors
    /// As [`Call::invoke`], or a target's type, shape or device is not the result's.
    pub fn into(mut self, targets: &[&NDArray]) -> Result<(), Error> {
        let rt = self.rt;
        self.outputs = targets.len();
        if let (None, Some(first)) = (self.device, targets.first()) {
            self.device = Some(first.device());
        }
        rt.check(self.def.name, targets.iter().copied())?;
        front::call(rt, self.resolve()?, Some(targets))?;
        Ok(())
    }

    /// A number beyond the operands is the scalar of an operator that has one, before or after the arrays.
    fn take_scalar(&mut self) -> Result<(), Error> {
        let Some(name) = self.def.scalar.filter(|_| self.operands.len() > self.def.inputs.len()) else { return Ok(()) };
        let number = |operand: &CallOperand<'_>| match operand {
            CallOperand::Scalar(x) => Some(*x),
            CallOperand::Integer(i) => Some(*i as f64),
            _ => None,
        };
        let found = self.operands.iter().enumerate().find_map(|(i, operand)| Some((i, number(operand)?)));
        let Some((at, value)) = found else { return Ok(()) };
        if self.params.get(name).is_some() {
            let (op, name) = (self.def.name.to_owned(), name.to_owned());
            return Err(Error::TwoScalars { op, name });
        }
        self.operands.remove(at);
        self.params.set(name, ParamValue::Float(value));
        Ok(())
    }

    fn resolve(mut self) -> Result<ResolvedCall<'a>, Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.take_scalar()?;
        if is_training()
            && let Some(spec) = self.def.params.iter().find(|spec| spec.name == OpDef::TRAINING)
            && self.params.get(spec.name).is_none()
        {
            self.params.set(spec.name, ParamValue::Bool(true));
        }
        let wanted = self.outputs;
        let states = self.states();
        self.outputs = states.iter().map(|(_, result)| result + 1).fold(wanted, usize::max);
        let (least, most) = self.def.outputs;
        let most = most.min(usize::from(u16::MAX));
        if !(least.max(1)..=most).contains(&self.outputs) {
            let (op, name) = (self.def.name.to_owned(), "number of results".to_owned());
            let (expected, found) = (format!("{least} to {most}"), self.outputs.to_string());
            return Err(Error::Operand { op, name, expected, found });
        }
        let arrays = || {
            self.operands.iter().filter_map(|operand| match operand {
                CallOperand::Array(array) => Some(*array),
                _ => None,
            })
        };
        self.rt.check(self.def.name, arrays())?;
        let device = match arrays().next() {
            Some(array) => array.device(),
            None => self.device.unwrap_or(self.rt.options().device),
        };
        if let Some(other) = arrays().find(|array| array.device() != device) {
            return Err(Error::Devices { op: self.def.name.to_owned(), first: device, second: other.device() });
        }
        let mut operands: SmallVec<[Formal<'a>; 4]> = SmallVec::new();
        for (i, operand) in self.operands.iter().enumerate() {
            operands.push(self.formal(i, operand)?);
        }
        let mut key = None;
        if let Some(at) = self.def.key_input {
            while operands.len() <= at {
                operands.push(Formal::Absent);
            }
            if let (Formal::Absent, Some(place)) = (&operands[at], Inline::vector(&[0u32; 2])) {
                operands[at] = Formal::Inline(place);
                key = Some(at);
            }
        }
        let (def, params, outputs) = (self.def, self.params, self.outputs);
        Ok(ResolvedCall { def, operands, params, outputs, wanted, states, device, key })
    }

    /// The states that the call writes: those given as arrays whose next values are not asked for, if the operator
    /// is called for training or knows no such mode.
    fn states(&self) -> SmallVec<[(usize, usize); 2]> {
        let has_mode = self.def.params.iter().any(|spec| spec.name == OpDef::TRAINING);
        if has_mode && self.params.bool(OpDef::TRAINING) != Some(true) {
            return SmallVec::new();
        }
        let hidden = |(operand, result): &(usize, usize)| {
            *result >= self.outputs && matches!(self.operands.get(*operand), Some(CallOperand::Array(_)))
        };
        self.def.states(&self.params).iter().copied().filter(hidden).collect()
    }

    fn formal(&self, at: usize, operand: &CallOperand<'a>) -> Result<Formal<'a>, Error> {
        let decides = self.def.static_inputs.contains(&at);
        Ok(match operand {
            CallOperand::Absent => Formal::Absent,
            CallOperand::Array(array) if decides => Formal::Static(array.to_tensor()?.into()),
            CallOperand::Array(array) => Formal::Array(array),
            CallOperand::Tensor(tensor) if decides => Formal::Static(tensor.data().clone()),
            CallOperand::Tensor(tensor) => Formal::Host(tensor.data().clone()),
            CallOperand::Scalar(value) => number(Scalar::from_f64(self.scalar_type(at), *value), decides),
            CallOperand::Integer(value) => number(Scalar::from_i64(self.scalar_type(at), *value), decides),
        })
    }

    /// The type a number takes as operand `at`: that of the arrays it must agree with, else the
    /// first type its operand may have, else that of the first array.
    fn scalar_type(&self, at: usize) -> DType {
        let rule = |i: usize| self.def.input_spec(i).map(|spec| &spec.ty);
        let typed = |i: usize| match &self.operands[i] {
            CallOperand::Array(array) => Some(array.dtype()),
            CallOperand::Tensor(tensor) => Some(tensor.dtype()),
            _ => None,
        };
        let positions = 0..self.operands.len();
        match rule(at) {
            Some(TypeRule::Group(group, allowed)) => positions
                .clone()
                .filter(|i| matches!(rule(*i), Some(TypeRule::Group(g, _)) if g == group))
                .find_map(typed)
                .or_else(|| allowed.first().copied()),
            Some(TypeRule::OneOf(allowed)) => {
                positions.clone().find_map(typed).filter(|d| allowed.contains(d)).or_else(|| allowed.first().copied())
            }
            _ => positions.clone().find_map(typed),
        }
        .unwrap_or(DType::F32)
    }
}

fn number<'a>(scalar: Scalar, decides: bool) -> Formal<'a> {
    let mut bytes = [0u8; 8];
    let size = scalar.dtype.size();
    scalar.write(&mut bytes[..size]);
    match Inline::scalar(scalar.dtype, &bytes[..size]) {
        Some(value) if !decides => Formal::Inline(value),
        _ => Formal::Static(TensorData::scalar(scalar)),
    }
}
