//! Functions of the host that a plan calls: what users write as closures.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The memory of one call: dense row-major tensors as bytes, in the order of operands and results.
pub struct ExternCall<'c, 'd> {
    /// The operands.
    pub inputs: &'c [&'d [u8]],
    /// Undefined until written.
    pub outputs: &'c mut [&'d mut [u8]],
    /// Working memory of [`ExternFn::scratch_bytes`], undefined.
    pub scratch: &'c mut [u8],
}

type ExternBody = dyn Fn(ExternCall<'_, '_>) -> Result<(), String> + Send + Sync;

/// A function of the host. Clones are the same function, and equal; two made apart are not.
#[derive(Clone)]
pub struct ExternFn(Arc<Inner>);

struct Inner {
    operator: String,
    input_bytes: Vec<u64>,
    output_bytes: Vec<u64>,
    scratch_bytes: u64,
    body: Box<ExternBody>,
}

/// A function of the host failed or panicked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operator `{operator}`: {message}")]
pub struct ExternError {
    /// The operator that the function computes.
    pub operator: String,
    /// What the function returned, or the text of its panic.
    pub message: String,
}

impl ExternFn {
    /// A function of operands and results with these sizes in bytes. It may be called by several threads at once.
    pub fn new(
        operator: impl Into<String>,
        input_bytes: Vec<u64>,
        output_bytes: Vec<u64>,
        scratch_bytes: u64,
        body: impl Fn(ExternCall<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> ExternFn {
        let operator = operator.into();
        ExternFn(Arc::new(Inner { operator, input_bytes, output_bytes, scratch_bytes, body: Box::new(body) }))
    }

    /// The operator it computes, for messages.
    pub fn operator(&self) -> &str {
        &self.0.operator
    }

    /// Bytes of each operand.
    pub fn input_bytes(&self) -> &[u64] {
        &self.0.input_bytes
    }

    /// Bytes of each result.
    pub fn output_bytes(&self) -> &[u64] {
        &self.0.output_bytes
    }

    /// Bytes of working memory that a call takes.
    pub fn scratch_bytes(&self) -> u64 {
        self.0.scratch_bytes
    }

    /// Calls it on memory of the sizes it was made for.
    ///
    /// # Errors
    /// What it returns, or says when it panics.
    pub fn call(&self, call: ExternCall<'_, '_>) -> Result<(), ExternError> {
        let result = catch_unwind(AssertUnwindSafe(|| (self.0.body)(call)));
        let text = |payload| panic_text(payload, "something that is not text");
        let result = result.unwrap_or_else(|payload| Err(format!("panicked: {}", text(payload))));
        result.map_err(|message| ExternError { operator: self.0.operator.clone(), message })
    }
}

/// What a panic said; `other` if that is no text.
pub fn panic_text(payload: Box<dyn Any + Send>, other: &str) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    match text.or_else(|| payload.downcast_ref::<String>().cloned()) {
        Some(text) => text,
        None => {
            // A destructor that panics must not unwind out of what caught the panic.
            if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
                std::mem::forget(again);
            }
            other.to_owned()
        }
    }
}

impl PartialEq for ExternFn {
    fn eq(&self, other: &ExternFn) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ExternFn {}

impl Hash for ExternFn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

impl std::fmt::Debug for ExternFn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExternFn({})", self.0.operator)
    }
}
