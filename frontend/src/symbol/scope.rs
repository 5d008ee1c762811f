//! What the surrounding code says about symbols made in it: automatic names and attributes.
//!
//! Both are stacks of the calling thread. A scope holds until its guard is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use super::node::Attrs;

/// Attributes that are stored as `__key__` and read under both spellings.
pub(super) const HIDDEN: [&str; 5] = ["ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage"];

#[derive(Default)]
struct Names {
    prefix: String,
    counters: BTreeMap<String, usize>,
}

thread_local! {
    static NAMES: RefCell<Vec<Names>> = RefCell::new(vec![Names::default()]);
    static ATTRS: RefCell<Vec<Attrs>> = const { RefCell::new(vec![]) };
}

/// The name of a new node: the given one, or the hint with the number of its earlier uses in this
/// scope; in front of it the prefix of the scope.
pub(super) fn node_name(given: Option<&str>, hint: &str) -> String {
    NAMES.with_borrow_mut(|stack| {
        let Some(names) = stack.last_mut() else { return given.unwrap_or(hint).to_owned() };
        let own = match given {
            Some(name) => name.to_owned(),
            None => {
                let count = names.counters.entry(hint.to_owned()).or_default();
                *count += 1;
                format!("{hint}{}", *count - 1)
            }
        };
        format!("{}{own}", names.prefix)
    })
}

/// The attributes of the scope, `explicit` ones over them.
pub(super) fn scoped_attrs(explicit: Attrs) -> Attrs {
    let mut attrs = ATTRS.with_borrow(|stack| stack.last().cloned().unwrap_or_default());
    attrs.extend(explicit);
    attrs
}

/// How an attribute is stored: `lr_mult` as `__lr_mult__`, any other under its own key.
pub(super) fn stored_key(key: &str) -> String {
    if HIDDEN.contains(&key) { format!("__{key}__") } else { key.to_owned() }
}

/// Ends a scope of names or attributes when it is dropped.
#[must_use = "the scope ends when this is dropped"]
pub struct Scope {
    end: fn(),
    /// Scopes belong to the thread that opened them.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    fn new(end: fn()) -> Scope {
        Scope { end, _thread: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        (self.end)();
    }
}

/// Numbers automatic names from 0 again while the result lives.
pub fn name_scope() -> Scope {
    prefix_scope("")
}

/// Numbers automatic names from 0 again, and puts `prefix` before the name of every operator's node,
/// also an explicit one, while the result lives.
pub fn prefix_scope(prefix: &str) -> Scope {
    NAMES.with_borrow_mut(|stack| stack.push(Names { prefix: prefix.to_owned(), counters: BTreeMap::new() }));
    Scope::new(|| {
        NAMES.with_borrow_mut(|stack| {
            if stack.len() > 1 {
                stack.pop();
            }
        });
    })
}

/// Adds attributes to every symbol made while the result lives. Inner scopes win over outer ones, and
/// attributes of the symbol itself over both.
pub fn attr_scope<'a>(attrs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Scope {
    let own: Attrs = attrs.into_iter().map(|(key, value)| (stored_key(key), value.to_owned())).collect();
    let merged = scoped_attrs(own);
    ATTRS.with_borrow_mut(|stack| stack.push(merged));
    Scope::new(|| {
        ATTRS.with_borrow_mut(|stack| {
            stack.pop();
        });
    })
}
