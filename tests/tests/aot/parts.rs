//! Artifacts of models whose shapes depend on values: parts, and the host between them.

use tensorc::aot::{self, AotRequest, ExtentRange};
use tensorc::ir::text::parse_module;
use tensorc::ir::{Rng, TensorData};
use tensorc::runtime::Pool;
use tensorc::{Compiler, Model, Options};
use tensorc_tests::cache::visible;
use tensorc_tests::compare::{data, tensor};

use super::ranges::{Output, library, run};
use super::{exists, request};
use crate::parts::{CASES, SIZES};
use crate::support::backend::options;

/// The ranges of open dimensions, and of numbers that are given or computed.
fn ranges(case: &str) -> Vec<(&'static str, (u64, u64))> {
    match case {
        "rows of open tensors" => vec![("rows", (3, 103))],
        "inputs that decide shapes" => vec![("count.0", (0, 100)), ("to.0", (1, 101)), ("to.1", (0, 100))],
        "ends without a limit" => vec![("rows", (2, 102)), ("from.0", (0, 1)), ("to.0", (0, 1 << 31))],
        _ => vec![],
    }
}

fn model(text: &str, threads: usize) -> Model {
    let compiler = Compiler::new(Options { threads: Some(threads), ..options() }).unwrap();
    let graph = parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    compiler.model(graph)
}

fn with(ranges: &[(&str, (u64, u64))]) -> AotRequest {
    let ranges = ranges.iter().map(|(name, range)| (String::from(*name), ExtentRange::from(*range))).collect();
    AotRequest { ranges, ..request("m", "native") }
}

fn shapes(outputs: &[Output]) -> Vec<&[u64]> {
    outputs.iter().map(|(_, dims, _)| &dims[..]).collect()
}

/// What the model gives when it is compiled in this process.
fn expected(model: &Model, inputs: &[TensorData]) -> Vec<Output> {
    let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
    let named: Vec<_> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
    let results = model.run(&named).unwrap();
    let one = |(_, tensor)| {
        let data = data(&tensor);
        (data.dtype(), data.dims().to_vec(), data.bytes().to_vec())
    };
    results.into_iter().map(one).collect()
}

#[test]
fn parts_have_the_bits_of_every_size() {
    if !exists("cc") {
        return visible("skipped: there is no C compiler `cc`");
    }
    let pool = Pool::new(2).unwrap();
    let mut failures = vec![];
    for case in CASES {
        let model = model(case.text, 2);
        let made = aot::compile(&model, &with(&ranges(case.name)));
        if let Err(error) = made {
            failures.push(format!("{}: {error}", case.name));
            continue;
        }
        let (_dir, artifact, made) = library(&model, with(&ranges(case.name)));
        assert!(!made.manifest.found.is_empty(), "{}", case.name);
        let mut context = artifact.context(&pool).unwrap();
        let mut memory = vec![[0u8; 64]; artifact.memory_bytes(2) as usize / 64 + 2];
        let whole = memory.as_flattened_mut();
        let (skip, needed) = (whole.as_ptr().align_offset(64), artifact.memory_bytes(2) as usize);
        let mut own = artifact.context_in(&pool, &mut whole[skip..skip + needed]).unwrap();
        let mut rng = Rng::new(7);
        for size in SIZES {
            let mut inputs = (case.inputs)(size, &mut rng);
            if case.name == "ends without a limit" {
                inputs[2] = TensorData::i64s(&[1], &[1 << 31]).unwrap();
            }
            let expected = expected(&model, &inputs);
            for found in [run(&mut context, &inputs), run(&mut own, &inputs)] {
                match found {
                    Ok(found) if found == expected => {}
                    Ok(found) => {
                        let (found, expected) = (shapes(&found), shapes(&expected));
                        failures.push(format!("{} {size}: other bits, {found:?} {expected:?}", case.name));
                    }
                    Err(error) => failures.push(format!("{} {size}: {error}", case.name)),
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
