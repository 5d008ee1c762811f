//! Checkpoints in MXNet's files: `PREFIX-symbol.json`, `PREFIX-0007.params`, and the optimizer's states in
//! `PREFIX-0007.states`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tensorc_frontend::mxnet::params::{self, Checkpoint, SavedArray, checkpoint_path};
use tensorc_frontend::symbol::Symbol;

use super::{Module, no_optimizer};
use crate::error::Error;
use tensorc::Tensor;

/// Values of parameters and auxiliary states, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params {
    /// Parameters: arguments of the symbol that are not given by batches.
    pub arguments: BTreeMap<String, Tensor>,
    /// Auxiliary states, for example moving averages.
    pub auxiliary: BTreeMap<String, Tensor>,
}

impl Params {
    /// Reads a file of parameters that MXNet or [`Params::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or its names lack `arg:` and `aux:`.
    pub fn load(path: impl AsRef<Path>) -> Result<Params, Error> {
        let checkpoint = Checkpoint::from_list(params::load(path.as_ref())?)?;
        let dense = |(index, (name, array)): (usize, (String, SavedArray))| {
            let data = array.to_dense_of(index, Some(&name))?;
            Ok((name, Tensor::from(data)))
        };
        Ok(Params {
            arguments: checkpoint.arguments.into_iter().enumerate().map(dense).collect::<Result<_, Error>>()?,
            auxiliary: checkpoint.auxiliary.into_iter().enumerate().map(dense).collect::<Result<_, Error>>()?,
        })
    }

    /// Writes a file that MXNet reads.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let saved = |(name, tensor): (&String, &Tensor)| (name.clone(), SavedArray::dense(tensor.data().clone()));
        let list = Checkpoint {
            arguments: self.arguments.iter().map(saved).collect(),
            auxiliary: self.auxiliary.iter().map(saved).collect(),
        }
        .to_list();
        Ok(params::save(path.as_ref(), &list, list.version())?)
    }
}

fn symbol_path(prefix: &Path) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push("-symbol.json");
    name.into()
}

fn states_path(prefix: &Path, epoch: u32) -> PathBuf {
    checkpoint_path(prefix, epoch).with_extension("states")
}

/// Reads the network and the parameters that a module, or MXNet, saved after an epoch.
///
/// # Errors
/// A file cannot be read, or is damaged.
pub fn load_checkpoint(prefix: impl AsRef<Path>, epoch: u32) -> Result<(Symbol, Params), Error> {
    let prefix = prefix.as_ref();
    Ok((Symbol::load(symbol_path(prefix))?, Params::load(checkpoint_path(prefix, epoch))?))
}

impl Module {
    /// Saves the network and the parameters in MXNet's files.
    ///
    /// # Errors
    /// A file cannot be written, or what computed the parameters failed.
    pub fn save_checkpoint(&self, prefix: impl AsRef<Path>, epoch: u32) -> Result<(), Error> {
        let prefix = prefix.as_ref();
        self.symbol().save(symbol_path(prefix))?;
        self.params()?.save(checkpoint_path(prefix, epoch))
    }

    /// Saves the optimizer's states and counts of updates beside a checkpoint.
    ///
    /// # Errors
    /// There is no optimizer, or the file cannot be written.
    pub fn save_optimizer_states(&self, prefix: impl AsRef<Path>, epoch: u32) -> Result<(), Error> {
        let path = states_path(prefix.as_ref(), epoch);
        self.lock_updater().as_ref().ok_or_else(no_optimizer)?.save(&self.rt, path)
    }

    /// Takes up the optimizer's states and counts of updates that were saved beside a checkpoint.
    ///
    /// # Errors
    /// There is no optimizer, or the file does not fit it.
    pub fn load_optimizer_states(&mut self, prefix: impl AsRef<Path>, epoch: u32) -> Result<(), Error> {
        let path = states_path(prefix.as_ref(), epoch);
        let mut updater = self.lock_updater();
        let updater = updater.as_mut().ok_or_else(no_optimizer)?;
        updater.load(&self.rt, self.device, path, self.learned())
    }
}
