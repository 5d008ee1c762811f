
pub mod cranelift;
