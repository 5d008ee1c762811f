//! A call with everything decided: what is computed, on which operands and where.

use smallvec::SmallVec;
use tensorc_ir::TensorData;
use tensorc_ir::op::OpRef;
use tensorc_ir::params::Params;
use tensorc_runtime::Device;
use tensorc_runtime::array::{ArrayOperand, Extents, Inline};

use super::array::NDArray;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::DType;

/// An operand with everything decided.
#[derive(Clone, Debug)]
pub(super) enum Formal<'a> {
    Absent,
    /// An array.
    Array(&'a NDArray),
    Inline(Inline),
    Host(TensorData),
    /// Its value decides shapes, so it is part of the program.
    Static(TensorData),
}

impl<'a> Formal<'a> {
    pub fn as_array(&self) -> Option<&'a NDArray> {
        match self {
            Formal::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The type of an operand that is data of the call.
    pub fn ty(&self) -> (DType, &[u64]) {
        match self {
            Formal::Array(array) => (array.dtype(), array.dims()),
            Formal::Inline(value) => (value.dtype(), value.dims()),
            Formal::Host(data) | Formal::Static(data) => (data.dtype(), data.dims()),
            Formal::Absent => (DType::F32, &[]),
        }
    }

    /// The operand as the engine's operation reads it; nothing if the program holds it.
    pub fn source(&self) -> Option<ArrayOperand> {
        match self {
            Formal::Absent | Formal::Static(_) => None,
            Formal::Array(array) => Some(ArrayOperand::View(array.view().clone())),
            Formal::Inline(value) => Some(ArrayOperand::Inline(*value)),
            Formal::Host(data) => {
                let dims = Extents::from_slice(data.dims());
                Some(ArrayOperand::Host { dtype: data.dtype(), dims, data: data.bytes().clone() })
            }
        }
    }
}

/// A call with everything decided.
pub(super) struct ResolvedCall<'a> {
    pub def: OpRef,
    pub operands: SmallVec<[Formal<'a>; 4]>,
    pub params: Params,
    /// Results, those included that only states are written with.
    pub outputs: usize,
    /// Results that the caller gets.
    pub wanted: usize,
    /// Operands that are auxiliary states, with the result that is written to them.
    pub states: SmallVec<[(usize, usize); 2]>,
    pub device: Device,
    /// The operand whose value is the next key of the device's stream.
    pub key: Option<usize>,
}

impl<'a> ResolvedCall<'a> {
    /// The auxiliary states that are written, with the result that is.
    pub fn written(&self) -> impl Iterator<Item = (&'a NDArray, usize)> + '_ {
        self.states.iter().filter_map(|(operand, result)| Some((self.operands[*operand].as_array()?, *result)))
    }

    /// Copies of the states, in place of which they can be recorded: gradients see the values the call read.
    pub fn copies(&self) -> Result<SmallVec<[(usize, NDArray); 2]>, Error> {
        let states = self.states.iter().filter_map(|(at, _)| Some((*at, self.operands[*at].as_array()?)));
        states.map(|(at, array)| Ok((at, array.detach().copy()?))).collect()
    }

    /// Draws the random key, if the call takes one and was given none.
    pub fn draw_key(&mut self, rt: &Runtime) {
        if let Some(at) = self.key
            && let Some(key) = Inline::vector(&rt.inner().streams.next_key(self.device))
        {
            self.operands[at] = Formal::Inline(key);
        }
    }
}
