//! Layouts: random image networks compute the same in each, every convolution is recognised afterwards, and no more
//! bytes are moved than before.

use proptest::prelude::*;
use tensorc_abi::ImageLayout;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::views::run_offset;
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::layout::ChooseLayout;
use tensorc_passes::simplify::Simplify;
use tensorc_passes::{Pass, PassCx};
use tensorc_schedule::recognise::contract::is_library;

use crate::common::*;

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
