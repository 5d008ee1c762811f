//! Compilers that sessions share, so that they share threads and compiled kernels.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tensorc::passes::Precision;
use tensorc::{Compiler, Error, Options};

use crate::signals;

/// What sessions with the same compiler agree in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Threads; 0 leaves the number to tensorc.
    pub threads: usize,
    /// Whether products round their operands to bf16.
    pub bf16: bool,
}

static COMPILERS: Mutex<BTreeMap<Setting, Compiler>> = Mutex::new(BTreeMap::new());

/// The compiler of a setting.
///
/// # Errors
/// Threads cannot be started.
pub fn compiler(setting: Setting) -> Result<Compiler, Error> {
    let mut made = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiler) = made.get(&setting) {
        return Ok(compiler.clone());
    }
    let threads = (setting.threads > 0).then_some(setting.threads);
    let mut options = Options { threads, interrupter: Some(signals::interrupter()), ..Options::default() };
    if setting.bf16 {
        options.passes.precision = Precision::Bf16 { keep: Default::default() };
    }
    let compiler = Compiler::new(options)?;
    made.insert(setting, compiler.clone());
    Ok(compiler)
}
