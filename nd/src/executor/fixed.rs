//! Arguments that an operator takes as one value whatever they hold: their arrays are made to hold it.

use tensorc_frontend::symbol::Symbol;

use super::binder::Bound;
use crate::error::Error;

/// One argument, and what it holds.
struct FixedArgument {
    at: usize,
    value: f64,
    /// The version of the array when it was last written here.
    version: Option<u64>,
}

/// The fixed arguments of an executor.
pub(super) struct Fixed(Vec<FixedArgument>);

impl Fixed {
    pub fn new(symbol: &Symbol, bound: &Bound) -> Fixed {
        let place = |name: &str| bound.arguments.iter().position(|(n, _)| n == name);
        let listed = symbol.list_fixed().into_iter();
        Fixed(
            listed
                .filter_map(|(name, value)| Some(FixedArgument { at: place(&name)?, value, version: None }))
                .collect(),
        )
    }

    /// Writes the values to arrays that changed since the last time.
    pub fn write(&mut self, bound: &Bound) -> Result<(), Error> {
        for argument in &mut self.0 {
            let array = &bound.arguments[argument.at].1;
            if argument.version != Some(array.view().chunk().version()) {
                array.fill(argument.value)?;
                argument.version = Some(array.view().chunk().version());
            }
        }
        Ok(())
    }
}
