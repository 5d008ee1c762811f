//! The entry that applies an optimizer to a parameter of a type: its states, its numbers, and its nodes in a
//! graph.

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::graph::Value;
use tensorc_ir::index::Index;
use tensorc_ir::op::{OpRef, Registry};
use tensorc_ir::params::Params;
use tensorc_ir::prim::{Prim, View};
use tensorc_nd::executor::Emission;

use super::{Clock, Optimizer};
use crate::error::{Error, TrainError};
use tensorc::DType;

/// Operands before the states: weight and gradient.
const BEFORE: usize = 2;

/// An optimizer's update of a parameter, as an operator of the registry.
#[derive(Clone, Debug)]
pub struct Update {
    /// The operator; its operands are weight, gradient, states and numbers.
    pub def: OpRef,
    /// The operator's parameters.
    pub params: Params,
    /// What is kept from step to step besides the weight, in the order of operands and results.
    pub states: Vec<State>,
    /// Operands that change from step to step, in order: `lr`, `wd`, `t` (the number of the update), `eta`.
    pub numbers: Vec<&'static str>,
    /// The type of the numbers.
    pub number_type: DType,
}

/// An array that an update keeps, of the parameter's shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Name of the operand, for example `mom`.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// It begins as the weight itself, else at zero.
    pub is_weight: bool,
}

impl Optimizer {
    /// The update of a parameter of a type.
    ///
    /// # Errors
    /// The type is no float, the settings contradict each other, or the registry lacks the rule.
    pub fn update_of(&self, registry: &Registry, parameter: &str, dtype: DType) -> Result<Update, Error> {
        self.schedule.check()?;
        let wrong = |why: String| TrainError::Update { parameter: parameter.to_owned(), why };
        if !dtype.is_float() {
            return Err(wrong(format!("it holds {dtype}, which no gradient moves")).into());
        }
        let narrow = dtype.size() < 4;
        let (plain, with_copy) = self.rule.entries();
        let name = if self.multi_precision && narrow { with_copy } else { plain };
        let def = registry.get(name).ok_or_else(|| tensorc_nd::Error::UnknownOperator { name: name.to_owned() })?;
        let params = self.rule.params(self.rescale_grad.unwrap_or(1.0), self.clip_gradient);
        let kept = |i: &usize| *i >= BEFORE && def.is_state(&params, *i);
        let state = |i: usize| {
            let name = def.inputs[i].name;
            let copied = name == "weight32";
            let dtype = if self.multi_precision && narrow { DType::F32 } else { dtype };
            State { name, dtype, is_weight: copied }
        };
        let states: Vec<State> = (0..def.inputs.len()).filter(kept).map(state).collect();
        let numbers: Vec<&'static str> = def.inputs[BEFORE + states.len()..].iter().map(|spec| spec.name).collect();
        if let Some(unknown) = numbers.iter().find(|n| self.rule.number(n, 0.0, 0.0, 1).is_none()) {
            return Err(wrong(format!("`{name}` takes `{unknown}`, which the rule does not have")).into());
        }
        let number_type = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(Update { def: def.clone(), params, states, numbers, number_type })
    }

    /// Counts an update of a parameter and gives its numbers, in the order of [`Update::numbers`].
    pub fn numbers(&self, update: &Update, parameter: &str, clock: &mut Clock) -> Vec<f64> {
        let t = clock.tick(parameter, self.begin_update);
        let (rate, decay) = (self.rate_of(parameter, clock), self.decay_of(parameter));
        update.numbers.iter().filter_map(|name| self.rule.number(name, rate, decay, t)).collect()
    }

    /// Appends the update of a parameter to a graph under construction; the new states are in the order of
    /// [`Update::states`]. `numbers` are values of rank 0, as
    /// [`scalar_at`] takes them from one array.
    ///
    /// # Errors
    /// Operands do not fit each other.
    pub fn emit(
        &self,
        b: &mut Builder<'_>,
        update: &Update,
        weight: Value,
        grad: Value,
        states: &[Value],
        numbers: &[Value],
    ) -> Result<Emission, Diagnostic> {
        let operands: Vec<Option<Value>> =
            [weight, grad].iter().chain(states).chain(numbers).copied().map(Some).collect();
        let results = b.op_multi(update.def.name, &operands, update.params.clone(), 1 + states.len())?;
        Ok(Emission { weight: results[0], states: results[1..].to_vec() })
    }
}

/// One element of a vector, as a value of rank 0.
///
/// # Errors
/// The vector's type is not known.
pub fn scalar_at(b: &mut Builder<'_>, vector: Value, position: usize) -> Result<Value, Diagnostic> {
    let dtype = b.ty(vector)?.dtype;
    let view = View { map: vec![Index::constant(position as i64)], fill: None };
    Ok(b.prim(Prim::View(view.into()), &[vector], &[DenseType::new(dtype, [])])?[0])
}
