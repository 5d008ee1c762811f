//! Checkpoints: lists whose names say which arrays are arguments and which auxiliary states.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{ArrayList, SavedArray};
use crate::mxnet::error::ParamsError;

/// What an array of a checkpoint is to its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CheckpointRole {
    /// A parameter.
    Argument,
    /// State that is not learned by gradients, such as moving averages.
    Auxiliary,
}

impl CheckpointRole {
    /// How names of this role begin.
    pub const fn prefix(self) -> &'static str {
        match self {
            CheckpointRole::Argument => "arg:",
            CheckpointRole::Auxiliary => "aux:",
        }
    }

    /// Splits the name of an array in a checkpoint: `arg:fc1_weight` is the argument `fc1_weight`.
    pub fn split(name: &str) -> Option<(CheckpointRole, &str)> {
        [CheckpointRole::Argument, CheckpointRole::Auxiliary]
            .into_iter()
            .find_map(|role| Some((role, name.strip_prefix(role.prefix())?)))
    }

    /// The inverse of [`CheckpointRole::split`].
    pub fn join(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }
}

/// The arrays of a model, by name without prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Arguments by name, without the prefix `arg:`.
    pub arguments: BTreeMap<String, SavedArray>,
    /// Auxiliary states by name, without the prefix `aux:`.
    pub auxiliary: BTreeMap<String, SavedArray>,
}

impl Checkpoint {
    /// Sorts the arrays of a list by role.
    ///
    /// # Errors
    /// An array has no name, a name without prefix, or the name of another.
    pub fn from_list(list: ArrayList) -> Result<Checkpoint, ParamsError> {
        if let Some(index) =
            list.arrays.iter().position(|(name, _)| name.as_deref().and_then(CheckpointRole::split).is_none())
        {
            return Err(ParamsError::NotCheckpoint { site: list.site(index) });
        }
        let mut checkpoint = Checkpoint::default();
        for (name, array) in list.arrays {
            let Some((role, short)) = name.as_deref().and_then(CheckpointRole::split) else { continue };
            let arrays = match role {
                CheckpointRole::Argument => &mut checkpoint.arguments,
                CheckpointRole::Auxiliary => &mut checkpoint.auxiliary,
            };
            if arrays.insert(short.to_owned(), array).is_some() {
                return Err(ParamsError::Duplicate { name: role.join(short) });
            }
        }
        Ok(checkpoint)
    }

    /// The arguments and then the auxiliary states, each in the order of their names.
    pub fn to_list(&self) -> ArrayList {
        let named =
            |role: CheckpointRole| move |(name, array): (&String, &SavedArray)| (role.join(name), array.clone());
        let arguments = self.arguments.iter().map(named(CheckpointRole::Argument));
        ArrayList::named(arguments.chain(self.auxiliary.iter().map(named(CheckpointRole::Auxiliary))))
    }
}

/// Where a model saves its arrays after an epoch: `prefix-0007.params`.
pub fn checkpoint_path(prefix: &Path, epoch: u32) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(format!("-{epoch:04}.params"));
    name.into()
}
