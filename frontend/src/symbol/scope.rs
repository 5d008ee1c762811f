//! What the surrounding code says about symbols made in it: automatic names and attributes.
//!
//! Both are stacks of the calling thread. A scope holds until its guard is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use super::keys::Attrs;
use crate::symbol::keys::stored_key;

#[derive(Default)]
struct NameScope {
    prefix: String,
    counters: BTreeMap<String, usize>,
}

thread_local! {
    static NAMES: RefCell<Vec<NameScope>> = RefCell::new(vec![NameScope::default()]);
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

/// Ends a scope of names or attributes when it is dropped.
#[must_use = "the scope ends when this is dropped"]
pub struct ScopeGuard {
    end: fn(),
    /// Scopes belong to the thread that opened them.
    _thread: PhantomData<*const ()>,
}

impl ScopeGuard {
    fn new(end: fn()) -> ScopeGuard {
        ScopeGuard { end, _thread: PhantomData }
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        (self.end)();
    }
}

/// Numbers automatic names from 0 again while the result lives.
pub fn name_scope() -> ScopeGuard {
    prefix_scope("")
}

/// Numbers automatic names from 0 again, and puts `prefix` before the name of every operator's node,
/// also an explicit one, while the result lives.
pub fn prefix_scope(prefix: &str) -> ScopeGuard {
    NAMES.with_borrow_mut(|stack| stack.push(NameScope { prefix: prefix.to_owned(), counters: BTreeMap::new() }));
    ScopeGuard::new(|| {
        NAMES.with_borrow_mut(|stack| {
            if stack.len() > 1 {
                stack.pop();
            }
        });
    })
}

/// Adds attributes to every symbol made while the result lives. Inner scopes win over outer ones, and
/// attributes of the symbol itself over both.
pub fn attr_scope<'a>(attrs: impl IntoIterator<Item = (&'a str, &'a str)>) -> ScopeGuard {
    let own: Attrs = attrs.into_iter().map(|(key, value)| (stored_key(key), value.to_owned())).collect();
    let merged = scoped_attrs(own);
    ATTRS.with_borrow_mut(|stack| stack.push(merged));
    ScopeGuard::new(|| {
        ATTRS.with_borrow_mut(|stack| {
            stack.pop();
        });
    })
}
