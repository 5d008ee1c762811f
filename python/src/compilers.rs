//! Compilers that sessions share, so that they share threads and compiled kernels.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tensorc::{Compiler, Error, Options};

use crate::signals;

/// By number of threads; 0 is the default.
static COMPILERS: Mutex<BTreeMap<usize, Compiler>> = Mutex::new(BTreeMap::new());

/// The compiler for so many threads; 0 leaves the number to tensorc.
///
/// # Errors
/// Threads cannot be started.
pub fn compiler(threads: usize) -> Result<Compiler, Error> {
    let mut made = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiler) = made.get(&threads) {
        return Ok(compiler.clone());
    }
    let threads_option = (threads > 0).then_some(threads);
    let options = Options { threads: threads_option, interrupter: Some(signals::interrupter()), ..Options::default() };
    let compiler = Compiler::new(options)?;
    made.insert(threads, compiler.clone());
    Ok(compiler)
}
