//! What a backward pass does with a gradient.

/// What a backward pass does with the gradient of one argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradReq {
    /// It is not computed, and there is no array for it.
    Null,
    /// It overwrites the gradient array.
    #[default]
    Write,
    /// It is added to what the gradient array holds, over any number of backward passes.
    Add,
}
