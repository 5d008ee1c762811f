//! Symbols of MXNet: their inference, and saved ones as models.

mod control;
mod inference;
mod load;
mod nets;
