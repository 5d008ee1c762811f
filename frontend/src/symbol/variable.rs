//! Variables and what they say about themselves.

use tensorc_abi::DType;

use super::error::SymbolError;
use super::keys::{Attrs, DTYPE, HIDDEN, INIT, SHAPE, STORAGE, is_hidden, stored_key};
use super::node::{NodeOutput, Symbol, SymbolNode};
use super::scope::scoped_attrs;
use super::text::{AttrText, Expected, dtype_of_name, list};
use crate::mxnet::dtype::{code_of_dtype, dtype_of_code};

/// A variable with attributes: `variable("w").shape([10, 0]).lr_mult(2.0).build()?`.
pub fn variable(name: &str) -> VariableBuilder {
    VariableBuilder { name: name.to_owned(), attrs: Attrs::new(), unknown: None }
}

/// Collects the attributes of a variable.
#[derive(Clone, Debug)]
#[must_use = "nothing is made before `build`"]
pub struct VariableBuilder {
    name: String,
    attrs: Attrs,
    unknown: Option<String>,
}

impl VariableBuilder {
    fn set(mut self, key: &str, value: String) -> VariableBuilder {
        self.attrs.insert(key.to_owned(), value);
        self
    }

    /// The extents; 0 for one that is to be inferred.
    pub fn shape(self, dims: impl AsRef<[u64]>) -> VariableBuilder {
        self.set(SHAPE, dims.as_ref().attr_text())
    }

    /// The element type.
    pub fn dtype(self, dtype: DType) -> VariableBuilder {
        self.set(DTYPE, code_of_dtype(dtype).to_string())
    }

    /// Factor of the learning rate.
    pub fn lr_mult(self, factor: impl AttrText) -> VariableBuilder {
        self.set("__lr_mult__", factor.attr_text())
    }

    /// Factor of the weight decay.
    pub fn wd_mult(self, factor: impl AttrText) -> VariableBuilder {
        self.set("__wd_mult__", factor.attr_text())
    }

    /// How the variable gets its first value, as MXNet writes it: `["zero", {}]`.
    pub fn init(self, json: &str) -> VariableBuilder {
        self.set(INIT, json.to_owned())
    }

    /// How the variable is stored: `default`, `row_sparse` or `csr`. Kept for files; computation is dense.
    pub fn storage_type(self, name: &str) -> VariableBuilder {
        match ["default", "row_sparse", "csr"].iter().position(|n| *n == name) {
            Some(code) => self.set(STORAGE, code.to_string()),
            None => VariableBuilder { unknown: Some(format!("storage type `{name}`")), ..self },
        }
    }

    /// Any attribute: `ctx_group`, `lr_mult` and the like, or a key of the form `__x__`.
    pub fn attr(mut self, key: &str, value: impl AttrText) -> VariableBuilder {
        if !is_hidden(key) && !HIDDEN.contains(&key) {
            self.unknown.get_or_insert_with(|| key.to_owned());
        }
        self.set(&stored_key(key), value.attr_text())
    }

    /// # Errors
    /// An attribute is neither known nor of the form `__x__`.
    pub fn build(self) -> Result<Symbol, SymbolError> {
        if let Some(key) = self.unknown {
            return Err(SymbolError::VariableAttribute { variable: self.name, key });
        }
        let node = SymbolNode::variable(self.name, scoped_attrs(self.attrs));
        Ok(Symbol::of(vec![NodeOutput::first(node)]))
    }
}

/// The shape a variable states: `None` for an extent that is to be inferred. `Ok(None)`: it states none.
pub(super) fn declared_shape(name: &str, attrs: &Attrs) -> Result<Option<Vec<Option<u64>>>, SymbolError> {
    let Some(text) = attrs.get(SHAPE) else { return Ok(None) };
    if text == "None" {
        return Ok(None);
    }
    let bad = || SymbolError::BadVariableAttribute {
        variable: name.to_owned(),
        key: SHAPE,
        value: text.clone(),
        expected: Expected::Word("extents such as (2, 0), 0 for an unknown one"),
    };
    let dims = list(text.trim(), |item| item.strip_suffix('L').unwrap_or(item).parse::<i64>().ok()).ok_or_else(bad)?;
    if dims.iter().any(|d| *d < -1) {
        return Err(bad());
    }
    // No extent at all means that nothing is known, not that this is a scalar.
    Ok((!dims.is_empty()).then(|| dims.into_iter().map(|d| u64::try_from(d).ok().filter(|d| *d > 0)).collect()))
}

/// The element type a variable states.
pub(super) fn declared_dtype(name: &str, attrs: &Attrs) -> Result<Option<DType>, SymbolError> {
    let Some(text) = attrs.get(DTYPE) else { return Ok(None) };
    if text == "-1" || text == "None" {
        return Ok(None);
    }
    let found = text.parse().ok().and_then(dtype_of_code).or_else(|| dtype_of_name(text));
    found.map(Some).ok_or_else(|| SymbolError::BadVariableAttribute {
        variable: name.to_owned(),
        key: DTYPE,
        value: text.clone(),
        expected: Expected::Word("the number of an element type, such as 0 for float32"),
    })
}
