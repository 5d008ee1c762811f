//! What a push does to a value: an optimizer, a function of the user's, or nothing but replacing it.

use tensorc_kvstore::{Key, KvError};

use crate::error::Error;
use crate::optimizer::{Optimizer, Updater};
use tensorc_nd::NDArray;

type UpdateFn = Box<dyn FnMut(&Key, &NDArray, &NDArray) -> Result<(), Error> + Send>;

/// What moves values.
#[derive(Default)]
pub enum Updates {
    /// The value becomes what was pushed.
    #[default]
    None,
    Optimizer(Box<Updater>),
    Function(UpdateFn),
}

impl Updates {
    pub fn optimizer(optimizer: Optimizer) -> Updates {
        Updates::Optimizer(Box::new(Updater::new(optimizer)))
    }

    pub fn function(update: impl FnMut(&Key, &NDArray, &NDArray) -> Result<(), Error> + Send + 'static) -> Updates {
        Updates::Function(Box::new(update))
    }

    pub fn are_none(&self) -> bool {
        matches!(self, Updates::None)
    }

    /// Moves a value by what was pushed; returns before that is done.
    pub fn apply(&mut self, key: &Key, pushed: &NDArray, value: &NDArray) -> Result<(), Error> {
        match self {
            Updates::None => Ok(pushed.copy_into(value)?),
            Updates::Optimizer(updater) => updater.update(&key.to_string(), value, pushed),
            Updates::Function(update) => update(key, pushed, value),
        }
    }

    /// The optimizer.
    ///
    /// # Errors
    /// There is none.
    pub fn updater(&mut self) -> Result<&mut Updater, Error> {
        match self {
            Updates::Optimizer(updater) => Ok(updater),
            _ => Err(KvError::NoOptimizer.into()),
        }
    }
}
