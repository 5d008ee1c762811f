//! Memory traffic of kernels on random data, as text.

use std::fmt::Write;

use tensorc_ir::Rng;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::{BufInfo, Kernel};

use crate::simt::run_launch;

/// What each kernel asks of the memory, interpreted on random data.
///
/// # Errors
/// As of [`run_launch`].
pub fn traffic(kernels: &[Kernel]) -> Result<String> {
    let mut text = String::new();
    for kernel in kernels {
        let mut rng = Rng::new(0);
        let bytes = |b: &BufInfo, rng: &mut Rng| {
            let mut data = vec![0; b.elements() as usize * b.dtype.size()];
            data.chunks_exact_mut(b.dtype.size()).for_each(|element| rng.element(b.dtype).write(element));
            data
        };
        let mut buffers: Vec<Vec<u8>> = kernel.buffers[..kernel.params].iter().map(|b| bytes(b, &mut rng)).collect();
        let counts = run_launch(kernel, &mut buffers)?;
        // Writing to a string does not fail.
        let _ = writeln!(text, "kernel {}\n{}", kernel.name, counts.describe(kernel));
    }
    Ok(text)
}
