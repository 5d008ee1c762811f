//! The text form of graphs, kernels and plans.

use std::sync::LazyLock;

use tensorc_ir::TextModule;
use tensorc_ir::op::Registry;
use tensorc_ir::text::{PrintOptions, parse_module_within, print_module};
use tensorc_ir::verify::{Stage, verify_graph, verify_kernel};
use tensorc_random::{Rng, random_graph, random_kernel, random_plan};

use crate::FileReader;

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| tensorc_ops::registry().expect("the registry is sound"));

/// Bytes of generated constants, such as `splat`.
const GENERATED_BYTES: u64 = 1 << 20;

/// Files with graphs and kernels.
pub const MODULE: FileReader =
    FileReader { name: "text_ir", files: modules, seal: None, read: read_module, memory: 4096 };

/// Files with plans.
pub const PLAN: FileReader = FileReader { name: "plan", files: plans, seal: None, read: read_plan, memory: 4096 };

/// The module in a text; printing it is a fixed point.
fn parse(bytes: &[u8]) -> Option<TextModule> {
    let text = std::str::from_utf8(bytes).ok()?;
    let parse = |text: &str| parse_module_within(text, &REGISTRY, GENERATED_BYTES);
    let module = parse(text).ok()?;
    let print = |module: &TextModule| print_module(module, &PrintOptions::exact());
    let printed = print(&module);
    // Constants are printed in full, and read again as such.
    let again = parse(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(print(&again), printed);
    Some(module)
}

fn read_module(bytes: &[u8]) -> bool {
    let Some(module) = parse(bytes) else { return false };
    for graph in &module.graphs {
        for stage in [Stage::Imported, Stage::Primitive, Stage::Fused] {
            drop(verify_graph(graph, stage));
        }
    }
    module.kernels.iter().for_each(|kernel| drop(verify_kernel(kernel)));
    true
}

fn read_plan(bytes: &[u8]) -> bool {
    let Some(module) = parse(bytes) else { return false };
    for plan in &module.plans {
        if let Ok(report) = tensorc_runtime::plan::verify(plan) {
            assert!(report.lower_bound_bytes <= report.arena_bytes);
        }
        drop(tensorc_runtime::plan::verify_unplaced(plan));
    }
    true
}

fn print(module: TextModule) -> Vec<u8> {
    print_module(&module, &PrintOptions::exact()).into_bytes()
}

fn modules() -> Vec<Vec<u8>> {
    let written = [
        include_str!("../../../examples/softplus.tc"),
        include_str!("../../artifacts/blocks.tc"),
        include_str!("../../artifacts/planes.tc"),
        include_str!("../../../filecheck/lower/branch.tc"),
        include_str!("../../../filecheck/lower/loop.tc"),
        "graph @g(%x: f32[2, 3]) {\n  %a = const f32[3] splat(1.5)\n  %b = const i64[2, 2] iota\n  \
         %c = const f32[4] random(7)\n  %d = add(%x, %a)\n  return y = %d, %b, %c\n}\n",
    ];
    let random = (0..12).map(|seed| {
        let mut rng = Rng::new(seed);
        let size = rng.below(8) as usize;
        let graphs = vec![random_graph(&mut rng, size)];
        let kernels = vec![random_kernel(&mut rng, tensorc_abi::DType::F32, seed % 2 == 0)];
        print(TextModule { graphs, kernels, ..TextModule::default() })
    });
    written.iter().map(|text| text.as_bytes().to_vec()).chain(random).collect()
}

fn plans() -> Vec<Vec<u8>> {
    let random = |seed| {
        let plans = vec![random_plan(&mut Rng::new(seed))];
        print(TextModule { plans, ..TextModule::default() })
    };
    let nested = include_str!("../../../filecheck/text/nested-plan-round-trip.tc");
    (0..20).map(random).chain([nested.as_bytes().to_vec()]).collect()
}
