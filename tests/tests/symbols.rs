//! Symbols of MXNet: their inference, and saved ones as models.

mod inference;
mod load;
mod nets;
