//! Checks of values that are known in the run only: the words in which runs leave what they found.

use crate::operand::BufferId;

/// What an operator demands of an operand's values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The name of the node in the user's model.
    pub node: String,
    /// The name of the operand.
    pub operand: String,
    /// What a value is that breaks it, as the end of a sentence: `which is outside of 0 to 9`.
    pub broken: String,
}

impl Requirement {
    /// What a message says before the value.
    pub fn before(&self) -> String {
        format!("node `{}`: operand `{}` holds ", self.node, self.operand)
    }

    /// What a message says behind the value.
    pub fn behind(&self) -> String {
        format!(", {}", self.broken)
    }
}

/// A value that breaks a requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{value}{}", requirement.before(), requirement.behind())]
pub struct BrokenRequirement {
    /// What was demanded.
    pub requirement: Requirement,
    /// A value that breaks it: of several, one farthest from zero.
    pub value: i64,
}

/// A requirement and where a plan leaves what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueCheck {
    /// One i64 in the arena that nothing takes the place of: a word as [`crate::image::found`] reads it.
    pub buffer: BufferId,
    /// What is checked.
    pub requirement: Requirement,
}
