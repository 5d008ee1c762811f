//! Parts of buffers and slices of the batch change no bit: concatenations in place against copies, and clusters
//! run sample by sample against those run at once.

use std::sync::{Arc, LazyLock};

use tensorc::{Compiler, Options};
use tensorc_abi::Plan;
use tensorc_ir::build::Builder;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_random::Rng;

use super::growth::inputs_for;
use super::{bits, run, shown};
use crate::support::backend::options;

const NETWORKS: u64 = 600;

fn compiler(copies: bool, slice_bytes: u64) -> Compiler {
    let mut options = Options { threads: Some(2), poison: true, copies, ..options() };
    options.passes.slice_bytes = slice_bytes;
    Compiler::new(options).unwrap()
}

/// Copies, in place, and in place with small slices.
static COMPILERS: LazyLock<[Compiler; 3]> =
    LazyLock::new(|| [compiler(true, 1 << 40), compiler(false, 1 << 40), compiler(false, 64)]);

/// Networks of convolutions, products, pools, element-wise layers, slices and joins, of joins too, over images.
struct Network<'a> {
    b: Builder<'a>,
    rng: Rng,
    values: Vec<(Value, [u64; 4])>,
}

impl Network<'_> {
    fn pick(&mut self) -> (Value, [u64; 4]) {
        let n = self.values.len() as u64;
        let back = if self.rng.one_in(3) { self.rng.below(n) } else { self.rng.below(n.min(3)) };
        self.values[(n - 1 - back) as usize]
    }

    fn op(&mut self, op: &str, args: &[Value], params: Params) -> Value {
        self.b.op(op, args, params).unwrap()
    }

    fn weight(&mut self, dims: &[u64]) -> Value {
        let mut elements = Rng::new(self.rng.next_u64());
        let data = TensorData::from_fn(DenseType::new(DType::F32, dims), |_| elements.element(DType::F32));
        self.b.constant(data)
    }

    fn step(&mut self) {
        let (v, [n, c, h, w]) = self.pick();
        let (value, dims) = match self.rng.below(7) {
            0 | 1 => {
                let filters = 1 + self.rng.below(5);
                let kernel = 1 + 2 * self.rng.below(2);
                let weight = self.weight(&[filters, c, kernel, kernel]);
                let pads = Params::new().with("pads", ParamValue::Ints(vec![(kernel / 2) as i64; 4]));
                (self.op("conv", &[v, weight], pads), [n, filters, h, w])
            }
            2 => (self.op("relu", &[v], Params::new()), [n, c, h, w]),
            3 => {
                let weight = self.weight(&[w, w]);
                (self.op("matmul", &[v, weight], Params::new()), [n, c, h, w])
            }
            4 if c > 1 => {
                let from = self.rng.below(c - 1);
                let range = [from as i64, c as i64, 1, 1].map(|i| self.b.i64s(&[i]));
                (self.b.call("slice", &[&[v], &range[..]].concat()).unwrap(), [n, c - from, h, w])
            }
            _ => {
                let like: Vec<(Value, [u64; 4])> =
                    self.values.iter().rev().copied().filter(|(_, d)| d[1] < 12).take(6).collect();
                let count = 2 + self.rng.below(3);
                let parts: Vec<(Value, [u64; 4])> =
                    (0..count).map(|_| like[self.rng.below(like.len() as u64) as usize]).collect();
                let args: Vec<Value> = parts.iter().map(|(v, _)| *v).collect();
                let channels = parts.iter().map(|(_, d)| d[1]).sum();
                (self.op("concat", &args, Params::new().with("axis", ParamValue::Int(1))), [n, channels, h, w])
            }
        };
        self.values.push((value, dims));
    }
}

fn network(seed: u64, registry: &Registry) -> Graph {
    let mut rng = Rng::new(seed);
    let dims = [1 + rng.below(3), 1 + rng.below(3), 2 + rng.below(4), 3 + rng.below(8)];
    let mut graph = Graph::new("main");
    let x = graph.add_input("x", DenseType::new(DType::F32, dims).into());
    let steps = 4 + rng.below(14);
    let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
    let b = Builder::new(&mut graph, registry, Arc::from("layer"), &value_of);
    let mut network = Network { b, rng, values: vec![(x, dims)] };
    (0..steps).for_each(|_| network.step());
    let last = network.values[network.values.len() - 1].0;
    let (other, _) = network.pick();
    graph.add_output("y", last);
    if other != last {
        graph.add_output("z", other);
    }
    graph
}

#[test]
fn parts_and_slices_change_no_bit() {
    let registry = tensorc_ops::registry().unwrap();
    let (mut placed, mut nested, mut sliced) = (0, 0, 0);
    for seed in 0..NETWORKS {
        let graph = network(seed, &registry);
        let inputs = inputs_for(&graph, seed);
        let want = run(&COMPILERS[0], &graph, &inputs).unwrap();
        for compiler in &COMPILERS[1..] {
            let got = run(compiler, &graph, &inputs).unwrap_or_else(|e| panic!("{seed}: {e}\n{}", shown(&graph)));
            let same = got.iter().zip(&want).all(|(a, b)| bits(a) == bits(b));
            assert!(same, "{seed}: {}", shown(&graph));
        }
        let plans = COMPILERS.each_ref().map(|c| {
            let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
            c.model(graph.clone()).compile(&types).unwrap().plan().clone()
        });
        let copies = |plan: &Plan| plan.steps.iter().filter(|s| s.flops == 0).count();
        placed += u32::from(copies(&plans[1]) < copies(&plans[0]));
        nested += u32::from(plans[1].buffers.iter().any(|b| b.part.is_some() && !b.is_dense()));
        sliced += u32::from(plans[2].steps.len() > plans[1].steps.len());
    }
    println!("{NETWORKS} networks: {placed} with joins in place, {nested} with strided parts, {sliced} sliced");
    assert!(placed > 100 && nested > 50 && sliced > 20, "{placed} {nested} {sliced}");
}
