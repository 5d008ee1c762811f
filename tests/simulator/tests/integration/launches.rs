//! Kernels for a GPU from their text.

use tensorc_ir::DType;
use tensorc_ir::kir::Kernel;
use tensorc_ir::op::Registry;
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::text::{parse_module, print_kernel};
use tensorc_ir::verify::verify_kernel;

struct NoMath(ScalarFn);

impl MathLibrary for NoMath {
    fn body(&self, _: MathFn) -> &ScalarFn {
        &self.0
    }
}

/// A kernel in text form, which prints as it was read.
pub fn parse(text: &str) -> Kernel {
    let registry = Registry::new([], Box::new(NoMath(ScalarFn::identity(DType::F32)))).unwrap();
    let kernel = parse_module(text, &registry).unwrap_or_else(|e| panic!("{e}\n{text}")).kernels.swap_remove(0);
    let printed = print_kernel(&kernel);
    let again = parse_module(&printed, &registry).unwrap_or_else(|e| panic!("{e}\n{printed}")).kernels.swap_remove(0);
    assert_eq!(print_kernel(&again), printed);
    kernel
}

/// One that the verifier accepts.
pub fn kernel(text: &str) -> Kernel {
    let kernel = parse(text);
    verify_kernel(&kernel).unwrap_or_else(|e| panic!("{e}"));
    kernel
}
