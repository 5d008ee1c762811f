//! Operators as symbols see them: found by name, with named operands and parsed parameters.

use std::sync::{Arc, OnceLock};

use tensorc_ir::op::{OpDef, OpRef, Registry};
use tensorc_ir::params::Params;

use super::alias::canonical;
use super::error::SymbolError;
use super::keys::Attrs;
use super::text::{ParamProblem, parse};
use crate::symbol::keys::is_hidden;

/// The attribute with the number of operands of an operator that takes any number.
pub(super) const NUM_ARGS: &str = "num_args";

/// The operators that symbols are built from unless a registry is given.
///
/// # Errors
/// The entries contradict each other.
pub fn operators() -> Result<&'static Registry, SymbolError> {
    static OPERATORS: OnceLock<Result<Registry, String>> = OnceLock::new();
    OPERATORS.get_or_init(tensorc_ops::registry).as_ref().map_err(|why| SymbolError::Operators(why.clone()))
}

/// An entry of the registry, under the name that files know it by.
#[derive(Clone)]
pub struct Operator {
    def: OpRef,
    name: Arc<str>,
}

/// An operand of one application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandSlot {
    /// Its formal position.
    pub slot: usize,
    /// Its name, by which it can be given.
    pub name: String,
    /// Whether a variable is made for it if it is not given.
    pub required: bool,
}

impl Operator {
    /// Finds an operator by any of its names in MXNet, or by its name in the registry.
    pub fn find(registry: &Registry, name: &str) -> Option<Operator> {
        let first = canonical(name);
        let exact = registry.mxnet(first).or_else(|| registry.mxnet(name));
        // An entry may be registered under other names than the first one only.
        let alias = || registry.iter().find(|op| op.names.mxnet.iter().any(|n| canonical(n) == first));
        let def = exact.or_else(|| registry.get(name)).or_else(alias)?;
        Some(Operator { def: def.clone(), name: first.into() })
    }

    /// An entry that belongs to one node.
    pub fn own(def: OpDef) -> Operator {
        let name = def.name.into();
        Operator { def: Arc::new(def), name }
    }

    /// The entry.
    pub fn def(&self) -> &OpDef {
        &self.def
    }

    /// The entry of the same name in another registry, or this one.
    pub fn def_in(&self, registry: &Registry) -> OpRef {
        registry.get(self.def.name).unwrap_or(&self.def).clone()
    }

    /// The name in files.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What users give as operands: those that the parameters call for, in formal order, and those
    /// that may be left out. Of an operator with any number of operands, `count` repeat the last.
    pub fn operands(&self, params: &Params, count: usize) -> Vec<OperandSlot> {
        let mut operands = vec![];
        for (slot, spec) in self.def.inputs.iter().enumerate() {
            if self.def.key_input == Some(slot) {
                continue;
            }
            if self.def.variadic && slot + 1 == self.def.inputs.len() {
                let first = operands.len();
                let more = (first..count.max(first)).map(|i| OperandSlot {
                    slot: slot + i - first,
                    name: if first == 0 { format!("arg{i}") } else { format!("{}{}", spec.name, i - first) },
                    required: true,
                });
                operands.extend(more);
                continue;
            }
            let present = self.def.present.as_ref().map(|rule| rule(params, slot));
            match (spec.optional, present) {
                (true, Some(false)) => {}
                (optional, present) => {
                    let required = !optional || present == Some(true);
                    operands.push(OperandSlot { slot, name: spec.name.to_owned(), required });
                }
            }
        }
        operands
    }

    /// Whether the operand at a position among those given is auxiliary state.
    pub fn writes(&self, params: &Params, count: usize, position: usize) -> bool {
        let states = self.def.states(params);
        !states.is_empty()
            && self.operands(params, count).get(position).is_some_and(|o| states.iter().any(|(s, _)| *s == o.slot))
    }

    /// Reads the parameters from attributes. Keys of the form `__x__` are not meant for the operator.
    /// With `lenient`, an operator without parameters takes no notice of any attribute, as MXNet's.
    ///
    /// # Errors
    /// A parameter is unknown, missing, or no value of its kind.
    pub fn params(&self, attrs: &Attrs, lenient: bool) -> Result<Params, ParamProblem> {
        let specs = || self.def.params.iter().filter(|s| s.name != OpDef::TRAINING);
        let mut params = Params::new();
        for (key, text) in attrs.iter().filter(|(key, _)| !is_hidden(key)) {
            match specs().find(|s| s.name == key) {
                Some(spec) => {
                    if let Some(value) = parse(spec, text)? {
                        params.set(spec.name, value);
                    }
                }
                None if key == NUM_ARGS && self.def.variadic => {}
                None if lenient && specs().next().is_none() => {}
                None => {
                    let candidates: Vec<&str> = specs().map(|s| s.name).collect();
                    let candidates = if candidates.is_empty() { "none".to_owned() } else { candidates.join(", ") };
                    return Err(ParamProblem::Unknown { name: key.clone(), candidates });
                }
            }
        }
        if let Some(spec) = specs().find(|s| s.required && params.get(s.name).is_none()) {
            return Err(ParamProblem::Missing { name: spec.name, kind: spec.kind.name() });
        }
        for spec in specs() {
            if let (Some(default), None) = (&spec.default, params.get(spec.name)) {
                params.set(spec.name, default.clone());
            }
        }
        Ok(params)
    }
}
