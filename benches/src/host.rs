//! The runtime that commands measure on.

use tensorc::Options;
use tensorc::runtime::Profiler;
use tensorc::runtime::engine::EngineConfig;
use tensorc_nd::{Runtime, RuntimeOptions};

pub fn runtime(threads: usize, profiler: Option<Profiler>) -> Result<Runtime, tensorc_nd::Error> {
    let options = Options { threads: Some(threads), profiler, ..Options::default() };
    let runtime = RuntimeOptions { engine: EngineConfig::default(), ..RuntimeOptions::default() };
    Runtime::with_compiler(tensorc::Compiler::new(options)?, runtime)
}
