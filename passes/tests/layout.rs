//! Layouts: random image networks compute the same in each, every convolution is recognised afterwards, and no more
//! bytes are moved than before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use proptest::prelude::*;
use tensorc_abi::{ConvPass, ImageLayout};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Method, Prim};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::views::run_offset;
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::layout::ChooseLayout;
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::recognise::contract::{as_convolution, is_library};

use common::*;

/// Small whole numbers: sums of their products are exact in any order.
fn whole(dims: &[u64], seed: u64) -> TensorData {
    let mut rng = Rng(seed);
    TensorData::from_fn(ty(dims), |_| Scalar::f32(rng.next(5) as f32 - 2.0))
}

/// From channels last to planes, and back.
const TO_PLANES: [usize; 4] = [0, 3, 1, 2];
const TO_LAST: [usize; 4] = [0, 2, 3, 1];

/// A network over [2, c, h, w] images from a list of choices, of which some come and go with channels last.
fn network(choices: &[u32], seed: u64) -> Graph {
    let mut p = Prims::new();
    let mut images = vec![p.input(&[2, 16, 6, 5]), p.input(&[2, 3, 6, 5])];
    for channels in [16, 10] {
        let x = p.input(&[2, 6, 5, channels]);
        images.push(p.transpose(x, &TO_PLANES));
    }
    for &choice in choices {
        let x = images[(choice >> 8) as usize % images.len()];
        let dims = p.dims(x);
        let y = match choice % 9 {
            7 => {
                let w = p.constant(whole(&[dims[1], 1, 3, 3], seed));
                let at = |o: u32, k: u32| Index::var(o).add(&Index::var(k)).offset(-1);
                let lhs = vec![Index::var(0), Index::var(1), at(2, 5), at(3, 6)];
                let rhs = [1, 4, 5, 6].map(Index::var).to_vec();
                p.contract(x, w, &[dims[0], dims[1], 6, 5, 1, 3, 3], 4, lhs, rhs)
            }
            8 => {
                let last = p.transpose(x, &TO_LAST);
                p.output(last);
                let last = p.relu(last);
                p.transpose(last, &TO_PLANES)
            }
            0 | 1 => {
                let outputs = [16, 32, 24, 7][(choice >> 4) as usize % 4];
                let kernel = if choice & 8 == 0 { 1 } else { 3 };
                let w = p.constant(whole(&[outputs, dims[1], kernel, kernel], seed));
                p.conv(x, w, kernel as i64 / 2)
            }
            2 => p.relu(x),
            3 => {
                let bias = p.constant(whole(&[dims[1], 1, 1], seed));
                p.add(x, bias)
            }
            4 => {
                let other = images.iter().rev().copied().find(|v| p.dims(*v) == dims).unwrap_or(x);
                p.add(other, x)
            }
            5 => {
                let gate = p.reduce(x, &[2, 3], true, true);
                p.mul(x, gate)
            }
            _ => {
                let other = images[(choice >> 16) as usize % images.len()];
                p.concat(&[x, other], 1)
            }
        };
        images.push(p.map(&[y], |_, a| a[0].max(&a[0].lit(-3.0)).min(&a[0].lit(3.0))));
    }
    let last = *images.last().unwrap();
    let sum = p.reduce(last, &[2, 3], false, false);
    p.output(last);
    p.output(sum);
    p.graph
}

fn laid_out(graph: &Graph, everywhere: Option<ImageLayout>) -> Graph {
    let registry = registry();
    let mut out = simplified(graph);
    ChooseLayout { everywhere }.run(&mut out, &mut PassCx::new(&registry)).unwrap();
    simplified(&out)
}

fn simplified(graph: &Graph) -> Graph {
    let registry = registry();
    let mut out = graph.clone();
    Simplify::default().run(&mut out, &mut PassCx::new(&registry)).unwrap();
    out
}

/// Bytes of the results of views that move elements.
fn moved(graph: &Graph) -> u64 {
    let bytes = graph.order().into_iter().map(|node| match &graph.node(node).kind {
        NodeKind::Prim(Prim::View(view)) => {
            let from = graph.dense(graph.args(node)[0]).unwrap();
            let to = graph.dense(Value { node, port: 0 }).unwrap();
            if run_offset(view, &from, &to.dims).is_some() { 0 } else { to.bytes() }
        }
        _ => 0,
    });
    bytes.sum()
}

/// All contractions with the types of their operands.
fn contractions(graph: &Graph) -> impl Iterator<Item = (Contraction, [DenseType; 2])> {
    graph.order().into_iter().filter_map(|n| match &graph.node(n).kind {
        NodeKind::Prim(Prim::Contract(c)) => {
            let args = graph.args(n);
            Some(((**c).clone(), [0, 1].map(|i: usize| graph.dense(args[i]).unwrap())))
        }
        _ => None,
    })
}

fn layouts(graph: &Graph) -> Vec<[ImageLayout; 2]> {
    contractions(graph).filter_map(|(c, [x, w])| as_convolution(&c, &x, &w)).map(|conv| conv.layouts).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn random_networks_compute_the_same(choices in prop::collection::vec(any::<u32>(), 1..14), seed in 0u64..1000) {
        let graph = network(&choices, seed);
        let planes = [16, 3].map(|c| whole(&[2, c, 6, 5], seed + c));
        let last = [16, 10].map(|c| whole(&[2, 6, 5, c], seed + c));
        let inputs: Vec<_> = planes.into_iter().chain(last).collect();
        for everywhere in ImageLayout::ALL.map(Some).into_iter().chain([None]) {
            let out = laid_out(&graph, everywhere);
            assert_same(&graph, &out, &inputs, 0.0);
            prop_assert!(contractions(&out).all(|(c, types)| is_library(&c, &types[0], &types[1])));
            prop_assert!(everywhere.is_some() || moved(&out) <= moved(&simplified(&graph)));
        }
    }
}

/// Channels that fill blocks only together are not joined in blocks.
#[test]
fn joined_channels_are_whole_blocks() {
    for parts in [[13, 3], [36, 12], [16, 32], [47, 1]] {
        let (mut p, mut rng) = (Prims::new(), Rng(1));
        let x = p.input(&[2, 16, 6, 5]);
        let joined: Vec<Value> = parts
            .into_iter()
            .map(|channels| {
                let w = p.constant(whole(&[channels, 16, 3, 3], channels));
                p.conv(x, w, 1)
            })
            .collect();
        let joined = p.concat(&joined, 1);
        let w = p.constant(whole(&[32, parts.iter().sum(), 3, 3], rng.next(9)));
        let y = p.conv(joined, w, 1);
        p.output(y);
        let inputs = [whole(&[2, 16, 6, 5], 7)];
        for everywhere in ImageLayout::ALL.map(Some).into_iter().chain([None]) {
            assert_same(&p.graph, &laid_out(&p.graph, everywhere), &inputs, 0.0);
        }
    }
}

#[test]
fn methods_follow_the_cost() {
    let methods = |size: u64, channels: u64, change: fn(&mut PassCx<'_>)| {
        let (mut p, mut rng) = (Prims::new(), Rng(1));
        let x = p.input(&[1, 3, size, size]);
        let w = [[channels, 3, 1, 1], [channels, channels, 3, 3], [channels, channels, 1, 1]];
        let w = w.map(|dims| p.constant(rng.tensor(&ty(&dims), false)));
        let y = w.into_iter().fold(x, |x, w| p.conv(x, w, 1));
        p.output(y);
        let registry = registry();
        let mut cx = PassCx::new(&registry);
        change(&mut cx);
        ChooseLayout::default().run(&mut p.graph, &mut cx).unwrap();
        contractions(&p.graph).map(|(c, _)| c.method).collect::<Vec<_>>()
    };
    use Method::{Sum, Winograd2, Winograd4};
    assert_eq!(methods(56, 64, |_| {}), [Sum, Winograd4, Sum]);
    // The filters of larger tiles take longer to read than they save; few pixels do not make up for any.
    assert_eq!(methods(12, 256, |_| {}), [Sum, Winograd2, Sum]);
    assert_eq!(methods(5, 256, |_| {}), [Sum; 3]);
    assert_eq!(methods(56, 64, |cx| cx.options.rewrite = false), [Sum; 3]);
    assert_eq!(methods(56, 64, |cx| cx.options.reassociate = false), [Sum; 3]);
    assert_eq!(methods(56, 64, |cx| cx.options.target.machine.coefficient_bytes_per_us = 1), [Sum; 3]);
}

#[test]
fn one_convolution_between_planes_stays_there() {
    let layouts = |size: u64| {
        let (mut p, mut rng) = (Prims::new(), Rng(1));
        let x = p.input(&[1, 64, size, size]);
        let w = p.constant(rng.tensor(&ty(&[64, 64, 3, 3]), false));
        let y = p.conv(x, w, 1);
        p.output(y);
        contractions(&laid_out(&p.graph, None))
            .filter_map(|(c, [x, w])| as_convolution(&c, &x, &w))
            .map(|conv| (conv.layouts, conv.pass))
            .collect::<Vec<_>>()
    };
    let planes = [ImageLayout::Planes; 2];
    assert_eq!(layouts(56), [(planes, ConvPass::Winograd4)]);
    assert_eq!(layouts(4), [(planes, ConvPass::Forward)]);
}

#[test]
fn networks_stay_in_blocks() {
    let mut p = Prims::new();
    let mut rng = Rng(1);
    let mut x = p.input(&[1, 3, 40, 40]);
    for inputs in [3, 64, 64, 64] {
        let w = p.constant(rng.tensor(&ty(&[64, inputs, 3, 3]), false));
        let y = p.conv(x, w, 1);
        x = p.relu(y);
    }
    let pooled = p.reduce(x, &[2, 3], false, false);
    p.output(pooled);
    use ImageLayout::{Blocks, Planes};
    let out = laid_out(&p.graph, None);
    assert_eq!(layouts(&out), [[Planes, Blocks], [Blocks; 2], [Blocks; 2], [Blocks; 2]]);
    let views = out.order().into_iter().filter(|n| matches!(out.node(*n).kind, NodeKind::Prim(Prim::View(_))));
    let moved = views.filter(|n| out.dense(Value { node: *n, port: 0 }).unwrap().len() > 64);
    assert_eq!(moved.count(), 0, "no image is converted");
}

/// A network of a framework with channels last, as it is exported: transpositions around every convolution.
#[test]
fn transpositions_of_exported_networks_cancel() {
    for (channels, outputs) in [(3, 10), (24, 40), (32, 64)] {
        let (mut p, mut rng) = (Prims::new(), Rng(1));
        let mut x = p.input(&[2, 12, 12, channels]);
        let mut inputs = channels;
        for (outputs, kernel) in [(32, 3), (32, 3), (outputs, 1)] {
            let w = p.constant(rng.tensor(&ty(&[outputs, inputs, kernel, kernel]), false));
            let planes = p.transpose(x, &TO_PLANES);
            let y = p.conv(planes, w, kernel as i64 / 2);
            let last = p.transpose(y, &TO_LAST);
            let bias = p.constant(rng.tensor(&ty(&[outputs]), false));
            let last = p.add(last, bias);
            x = p.relu(last);
            inputs = outputs;
        }
        p.output(x);
        assert!(moved(&simplified(&p.graph)) > 0);
        let out = laid_out(&p.graph, None);
        assert_eq!(moved(&out), 0, "{channels} to {outputs} channels");
        assert!(contractions(&out).all(|(c, types)| is_library(&c, &types[0], &types[1])));
    }
}
