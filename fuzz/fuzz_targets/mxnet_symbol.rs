//! Symbol files: any text is refused, or what is written of the symbol reads back as the same text, and its
//! graph holds the rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorc_frontend::symbol::{Lowering, Symbol, operators};
use tensorc_ir::verify::{Stage, verify_graph};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(symbol) = Symbol::from_json(text) else { return };
    let written = symbol.to_json();
    assert_eq!(Symbol::from_json(&written).expect("what was written can be read").to_json(), written);
    let registry = operators().expect("a registry");
    if let Ok(lowered) = symbol.to_graph(registry, &Lowering { training: true, ..Lowering::default() }) {
        verify_graph(&lowered.graph, Stage::Imported).expect("a valid graph");
    }
});
