//! The text of every plan and kernel that the compiler makes of a corpus of graphs, as digests that are stored.
//!
//! The graphs are the programs for GPUs, the graphs of the text tests, and networks, also with their gradients; each for
//! narrow and wide vectors of a processor and for two generations of GPUs. A change that should make no other kernel shows so;
//! one that does says which: with `TENSORC_STORE=1` the test stores what it finds, and leaves the texts in
//! `target/kernels`, to be compared by `diff -r`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use tensorc::ir::diag::{Diagnostic, DiagnosticCode};
use tensorc::ir::graph::{Graph, Value};
use tensorc::ir::op::Registry;
use tensorc::ir::parallel::try_map;
use tensorc::ir::scalar::Scalar;
use tensorc::ir::text::{parse_module, print_kernel, print_plan};
use tensorc::ir::verify::{Stage, verify_graph};
use tensorc::ir::{DType, DenseType, TensorData};
use tensorc::passes::{CompilePhase, Pass, PassCx, Pipeline};
use tensorc::schedule::plan_memory;
use tensorc::schedule::target::{Capability, Cpu, Gpu, Target, VectorLevel, Vectors, VendorLibraries};
use tensorc::{Options, binding};
use tensorc_bench::nets::{self, Net};
use tensorc_codegen::lower::{Choices, lower_with};
use tensorc_frontend::symbol::{InputType, Lowering};
use tensorc_passes::differentiate::Differentiate;
use tensorc_passes::infer::InferTypes;
use tensorc_tests::cache::sha256;
use tensorc_tests::corpus;

/// What kernels are made for, by name.
fn targets() -> [(&'static str, Target); 6] {
    let libraries = VendorLibraries { products: true, convolutions: true };
    let with_libraries = Target::gpu(Gpu { libraries, ..Gpu::new(Capability::Sm90a) });
    [
        ("narrow", Target::cpu(Cpu { vectors: Vectors::Narrow, scale: false, loops: None, tiles: false })),
        (
            "loops",
            Target::cpu(Cpu { vectors: Vectors::Narrow, scale: false, loops: Some(VectorLevel::Avx512), tiles: false }),
        ),
        ("wide", Target::cpu(Cpu { vectors: Vectors::Wide, scale: true, loops: None, tiles: false })),
        ("sm_80", Target::gpu(Gpu::new(Capability::Sm80))),
        ("sm_90a", Target::gpu(Gpu::new(Capability::Sm90a))),
        ("sm_90a-libraries", Target { tf32: true, ..with_libraries }),
    ]
}

/// Networks, and whether with gradients.
const NETS: [(&str, bool); 9] = [
    ("mlp", true),
    ("lenet", true),
    ("resnet18-cifar", true),
    ("transformer", true),
    ("lstm", true),
    ("mobilenet1.0", false),
    ("squeezenet1.0", false),
    ("inception-bn", false),
    ("densenet121", false),
];

/// Extent of dimensions that a text leaves open.
const OPEN_EXTENT: u64 = 3;

/// A program, by a name that is its alone.
type Programs = BTreeMap<String, Graph>;

fn programs(registry: &Registry) -> Programs {
    let mut found = Programs::new();
    for (i, case) in corpus::all(registry).into_iter().enumerate() {
        found.insert(format!("corpus/{i:03} {}", case.name), case.graph);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../filecheck");
    for name in texts(&folder) {
        let text = std::fs::read_to_string(folder.join(&name)).unwrap();
        // Some texts are there to be refused.
        let Ok(module) = parse_module(&text, registry) else { continue };
        let right =
            |graph: &Graph| [Stage::Imported, Stage::Fused].iter().any(|stage| verify_graph(graph, *stage).is_ok());
        for (i, mut graph) in module.graphs.into_iter().filter(right).enumerate() {
            // A graph whose types are wrong stays one.
            let _ = binding::bind_open(&mut graph, OPEN_EXTENT);
            found.insert(format!("filecheck/{} {i}", name.display()), graph);
        }
    }
    for (name, gradients) in NETS {
        let graph = network(registry, &nets::net(name, 2).unwrap().unwrap());
        if gradients && let Ok(graph) = differentiated(registry, graph.clone()) {
            found.insert(format!("nets/{name} with gradients"), graph);
        }
        found.insert(format!("nets/{name}"), graph);
    }
    for (name, graph) in found.clone() {
        if name.starts_with("filecheck/")
            && let Ok(graph) = differentiated(registry, graph)
        {
            found.insert(format!("{name} with gradients"), graph);
        }
    }
    found
}

/// Text files below a folder of one level of folders, relative to it.
fn texts(folder: &Path) -> Vec<PathBuf> {
    let entries =
        |path: &Path| -> Vec<PathBuf> { std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect() };
    let folders = entries(folder).into_iter().filter(|path| path.is_dir());
    let files = folders.flat_map(|path| entries(&path)).filter(|path| path.extension().is_some_and(|e| e == "tc"));
    let mut names: Vec<PathBuf> = files.map(|path| path.strip_prefix(folder).unwrap().to_owned()).collect();
    names.sort();
    names
}

/// A network with parameters that are constants.
fn network(registry: &Registry, net: &Net) -> Graph {
    let known =
        |dims: &[u64]| InputType { dtype: Some(DType::F32), dims: Some(dims.iter().map(|n| Some(*n)).collect()) };
    let batch = net.inputs[0].1[0];
    let mut types = BTreeMap::from([("softmax_label".to_owned(), known(&[batch]))]);
    types.extend(net.inputs.iter().map(|(name, dims)| ((*name).to_owned(), known(dims))));
    let how = Lowering { types, without_labels: true, ..Lowering::default() };
    let mut graph = net.symbol.to_graph(registry, &how).unwrap().graph;
    InferTypes.run(&mut graph, &mut PassCx::new(registry)).unwrap();
    for node in graph.inputs().to_vec() {
        let (input, name) = (Value { node, port: 0 }, graph.node(node).name.clone());
        if net.inputs.iter().any(|(data, _)| **data == *name) || &*name == "softmax_label" {
            continue;
        }
        let ramp = |i: u64| Scalar::f32((i % 13) as f32 / 8.0 + 0.25);
        let Ok(ty) = graph.dense(input) else { continue };
        if ty.dtype == DType::F32 {
            let constant = graph.add_const(name, TensorData::from_fn(DenseType::new(DType::F32, &ty.dims), ramp));
            graph.replace_uses(input, constant);
        }
    }
    graph
}

fn differentiated(registry: &Registry, mut graph: Graph) -> Result<Graph, Diagnostic> {
    let mut cx = PassCx::new(registry);
    InferTypes.run(&mut graph, &mut cx)?;
    Differentiate::default().run(&mut graph, &mut cx)?;
    Ok(graph)
}

/// The plan and its kernels as text.
fn text(registry: &Registry, mut graph: Graph, target: Target) -> Result<String, Diagnostic> {
    let mut cx = PassCx::new(registry).with_options(tensorc::passes::Options { target, ..Default::default() });
    Pipeline::to(CompilePhase::Fuse).run(&mut graph, &mut cx)?;
    let mut lowered = lower_with(&graph, registry.math(), Choices { target, ..Choices::default() }, 1)?;
    plan_memory(&mut lowered)?;
    let mut text = print_plan(&lowered.plan);
    lowered.kernels.iter().for_each(|kernel| text += &print_kernel(kernel));
    Ok(text)
}

#[test]
fn kernels_are_those_that_are_stored() {
    let stores = std::env::var_os("TENSORC_STORE").is_some();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../kernels");
    let registry = tensorc::Compiler::new(Options::default()).unwrap();
    let registry = registry.registry();
    let (programs, targets) = (programs(registry), targets());
    let names: Vec<&String> = programs.keys().collect();
    let digests = |name: &String| {
        let (mut kernels, mut line) = (0, String::new());
        for (name_of, target) in &targets {
            let found = match text(registry, programs[name].clone(), *target) {
                Ok(text) => text,
                Err(error) => format!("{error}\n"),
            };
            kernels += found.lines().filter(|line| line.starts_with("kernel ")).count();
            write!(line, "{:.12} ", sha256(found.as_bytes())).unwrap();
            if stores {
                let path = folder.join(name_of).join(name.replace(['/', ' '], "_"));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, found).unwrap();
            }
        }
        Ok(format!("{line}{kernels:4} {name}\n"))
    };
    let lines =
        try_map(names, 2, digests, |_| Diagnostic::new(DiagnosticCode::Internal, "compiling panicked")).unwrap();
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/digests.txt");
    let found = lines.concat();
    if stores {
        return std::fs::write(stored, found).unwrap();
    }
    let expected = std::fs::read_to_string(stored).unwrap();
    let [old, new]: [Vec<&str>; 2] = [expected.lines().collect(), found.lines().collect()];
    let changed: Vec<&&str> = new.iter().filter(|line| !old.contains(line)).collect();
    assert!(changed.is_empty(), "{} of {} differ: {changed:#?}", changed.len(), new.len());
    assert_eq!(old.len(), new.len(), "programs are missing");
}
