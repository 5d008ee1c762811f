//! The text form: any text is parsed or refused, and printing what was parsed is a fixed point.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tensorc_ir::op::Registry;
use tensorc_ir::text::{PrintOptions, parse_module, print_module};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| tensorc_ops::registry().expect("the registry is sound"));

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(module) = parse_module(text, &REGISTRY) else { return };
    let printed = print_module(&module, &PrintOptions::exact());
    let again = parse_module(&printed, &REGISTRY).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(print_module(&again, &PrintOptions::exact()), printed);
});
