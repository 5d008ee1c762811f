//! What can be wrong with the settings and the data of a training run.

/// A setting or data that training cannot work with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    #[error("variable `{variable}`: {why}")]
    Initial { variable: String, why: String },
    #[error("`{text}` names no initialiser: {why}")]
    Initializer { text: String, why: String },
    #[error("learning rate schedule: {why}")]
    Schedule { why: String },
    #[error("parameter `{parameter}`: {why}")]
    Update { parameter: String, why: String },
    #[error("optimizer: {why}")]
    Optimizer { why: String },
    #[error("metric `{metric}`: {why}")]
    Metric { metric: String, why: String },
    #[error("there is no metric `{name}`; there are: {known}")]
    UnknownMetric { name: String, known: String },
    /// Batches do not have the arrays that a module takes.
    #[error("the batches have {found}, the module takes {expected}")]
    Inputs { expected: String, found: String },
}
