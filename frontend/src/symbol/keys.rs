//! Attributes of nodes: the keys that have a meaning, and how they are stored.

use std::collections::BTreeMap;

/// Attributes by key.
pub type Attrs = BTreeMap<String, String>;

/// Attributes that are stored as `__key__` and read under both spellings.
pub(super) const HIDDEN: [&str; 5] = ["ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage"];

/// How an attribute is stored: `lr_mult` as `__lr_mult__`, any other under its own key.
pub(super) fn stored_key(key: &str) -> String {
    if HIDDEN.contains(&key) { format!("__{key}__") } else { key.to_owned() }
}

/// Keys of the form `__x__` belong to users and tools, not to operators.
pub(super) fn is_hidden(key: &str) -> bool {
    key.len() > 4 && key.starts_with("__") && key.ends_with("__")
}

pub(super) const SHAPE: &str = "__shape__";

pub(super) const DTYPE: &str = "__dtype__";

pub(super) const INIT: &str = "__init__";

pub(super) const STORAGE: &str = "__storage_type__";
