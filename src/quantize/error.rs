//! Why a model cannot be quantised.

use std::path::PathBuf;

/// Why a model cannot be quantised as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum QuantizeError {
    /// The model is of another format.
    #[error("{path}: only ONNX models are quantised")]
    NotOnnx { path: PathBuf },
    /// A node to keep that the model does not have.
    #[error("the model has no node `{name}` that could be kept")]
    UnknownNode { name: String },
    /// Nothing in the model can be quantised.
    #[error("there is nothing to quantise: {why}")]
    Nothing { why: String },
    /// No data to calibrate with.
    #[error("scales of activations need calibration data")]
    NoData,
    /// An input that is not a number somewhere.
    #[error("input `{input}` of sample {sample} holds NaN or an infinity")]
    InputNotFinite { input: String, sample: usize },
    /// A value that is not a number somewhere.
    #[error(
        "value `{value}` is NaN or infinite in run {run} of the calibration; keep the node that computes it in f32"
    )]
    ValueNotFinite { value: String, run: usize },
    /// Inputs that cannot be divided into batches.
    #[error("input `{input}` of sample {sample} has {found} rows; the model takes {wanted} at a time")]
    Batch { input: String, sample: usize, found: u64, wanted: u64 },
    /// A node that has no form in the operator set that is needed.
    #[error("{node} of operator set {from} has no form in operator set {to}, which quantised models need: {why}")]
    Opset { node: String, from: i64, to: i64, why: String },
    /// Parameters of the method that make no sense.
    #[error("{0}")]
    Options(String),
    /// The result would replace the model it is made from.
    #[error("{path}: the quantised model would replace the model that it is made from")]
    SameFile { path: PathBuf },
}
