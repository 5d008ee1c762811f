//! Readers of ONNX and MXNet files, and symbols.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cve;
mod mxnet_params;
mod onnx_check;
mod onnx_damage;
mod onnx_edit;
mod onnx_external;
mod onnx_functions;
mod onnx_import;
mod onnx_load;
mod onnx_quantised;
mod onnx_stored;
mod onnx_upgrade;
mod support;
mod symbol_compose;
mod symbol_json;
mod symbol_names;
