//! Compiles the digit classifier for batches of one to eight images.

pub fn main() -> Result<(), tensorc::build::BuildError> {
    tensorc::build::BuildModel::new("../digits/digits.onnx").range("batch", 1..=8).compile()
}
