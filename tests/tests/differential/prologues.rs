//! Operands that libraries compute where they read them change no bit: networks in which element-wise chains come
//! before products and convolutions, fused with them and not, on one and two threads.

use std::sync::{Arc, LazyLock};

use tensorc::{Compiler, Options};
use tensorc_abi::StepOp;
use tensorc_ir::build::Builder;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::Registry;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_passes::FusionStrategy;
use tensorc_random::Rng;
use tensorc_tests::compare::compare;

use super::growth::inputs_for;
use super::{bits, run, shown, tolerance};
use crate::support::backend::options;

const NETWORKS: u64 = 160;

fn compiler(threads: usize, by: FusionStrategy) -> Compiler {
    let mut options = Options { threads: Some(threads), poison: true, ..options() };
    options.passes.fuse = by;
    Compiler::new(options).unwrap()
}

/// The first never computes operands in libraries.
static COMPILERS: LazyLock<[Compiler; 3]> = LazyLock::new(|| {
    [
        compiler(2, FusionStrategy::Greedy),
        compiler(1, FusionStrategy::Alternatives),
        compiler(2, FusionStrategy::Alternatives),
    ]
});

struct Network<'a> {
    b: Builder<'a>,
    rng: Rng,
}

impl Network<'_> {
    fn op(&mut self, op: &str, args: &[Value], params: Params) -> Value {
        self.b.op(op, args, params).unwrap()
    }

    fn weight(&mut self, dims: &[u64]) -> Value {
        let mut elements = Rng::new(self.rng.next_u64());
        let data = TensorData::from_fn(DenseType::new(DType::F32, dims), |_| elements.element(DType::F32));
        self.b.constant(data)
    }

    /// An element-wise chain, with vectors along the axis of extent `dims[axis]`.
    fn chain(&mut self, v: Value, rank: usize, axis: usize, extent: u64) -> Value {
        let mut dims = vec![1; rank];
        dims[axis] = extent;
        let mut value = v;
        for _ in 0..1 + self.rng.below(3) {
            let op = ["mul", "add", "relu", "tanh", "neg"][self.rng.below(5) as usize];
            value = match op {
                "mul" | "add" => {
                    let vector = self.weight(&dims);
                    self.op(op, &[value, vector], Params::new())
                }
                _ => self.op(op, &[value], Params::new()),
            };
        }
        value
    }

    /// A convolution of an image of `c` channels; returns its result and channels.
    fn conv(&mut self, v: Value, c: u64) -> (Value, u64) {
        let kernel = [1, 1, 3, 3, 5][self.rng.below(5) as usize];
        let depthwise = c.is_multiple_of(16) && self.rng.one_in(4);
        let filters = if depthwise { c } else { 16 * (1 + self.rng.below(4)) };
        let groups = if depthwise { c } else { 1 };
        let weight = self.weight(&[filters, c / groups, kernel, kernel]);
        let params = Params::new()
            .with("pads", ParamValue::Ints(vec![(kernel / 2) as i64; 4]))
            .with("strides", ParamValue::Ints(vec![1 + i64::from(self.rng.one_in(4)); 2]))
            .with("group", ParamValue::Int(groups as i64));
        (self.op("conv", &[v, weight], params), filters)
    }
}

/// Convolutions with a chain before each, whose first operand others may read, too.
fn images(network: &mut Network<'_>, x: Value, channels: u64) -> Vec<Value> {
    let (mut v, mut c, mut all) = (x, channels, vec![]);
    for _ in 0..1 + network.rng.below(3) {
        let before = network.chain(v, 4, 1, c);
        all.push(if network.rng.one_in(4) { before } else { v });
        (v, c) = network.conv(before, c);
    }
    all.push(v);
    all
}

/// Products with a chain before each, some of them of another shape.
fn products(network: &mut Network<'_>, x: Value, [rows, cols]: [u64; 2]) -> Vec<Value> {
    let (mut v, mut k, mut all) = (x, cols, vec![]);
    for _ in 0..1 + network.rng.below(3) {
        let mut before = network.chain(v, 2, 1, k);
        if network.rng.one_in(3) {
            let dims = network.b.i64s(&[1, rows as i64, k as i64]);
            before = network.op("reshape", &[before, dims], Params::new());
            let dims = network.b.i64s(&[rows as i64, k as i64]);
            before = network.op("reshape", &[before, dims], Params::new());
        }
        let n = 1 + network.rng.below(70);
        let weight = network.weight(&[k, n]);
        all.push(if network.rng.one_in(4) { before } else { v });
        v = network.op("matmul", &[before, weight], Params::new());
        k = n;
    }
    all.push(v);
    all
}

fn network(seed: u64, registry: &Registry) -> Graph {
    let mut rng = Rng::new(seed);
    let is_image = rng.below(3) > 0;
    let dims = match is_image {
        true => vec![1 + rng.below(2), [3, 16, 32, 48][rng.below(4) as usize], 1 + rng.below(20), 1 + rng.below(20)],
        false => {
            let rows = if rng.one_in(4) { 300 } else { 30 };
            vec![1 + rng.below(rows), 1 + rng.below(100)]
        }
    };
    let mut graph = Graph::new("main");
    let x = graph.add_input("x", DenseType::new(DType::F32, &dims).into());
    let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
    let b = Builder::new(&mut graph, registry, Arc::from("layer"), &value_of);
    let mut network = Network { b, rng };
    let mut values = match is_image {
        true => images(&mut network, x, dims[1]),
        false => products(&mut network, x, [dims[0], dims[1]]),
    };
    let last = values.pop().unwrap_or(x);
    let other = values[network.rng.below(values.len() as u64) as usize];
    let shared = network.rng.one_in(3);
    graph.add_output("y", last);
    if shared && other != x {
        graph.add_output("z", other);
    }
    graph
}

#[test]
fn computed_operands_change_no_bit() {
    let registry = tensorc_ops::registry().unwrap();
    let (mut convolutions, mut products) = (0, 0);
    for seed in 0..NETWORKS {
        let graph = network(seed, &registry);
        let inputs = inputs_for(&graph, seed);
        let want = run(&COMPILERS[0], &graph, &inputs).unwrap_or_else(|e| panic!("{seed}: {e}\n{}", shown(&graph)));
        let reference = eval_graph(&graph, COMPILERS[0].registry(), &inputs).unwrap();
        for (got, want) in want.iter().zip(&reference) {
            compare(got, want, tolerance(want)).unwrap_or_else(|e| panic!("{seed}: {e}\n{}", shown(&graph)));
        }
        for compiler in &COMPILERS[1..] {
            let got = run(compiler, &graph, &inputs).unwrap_or_else(|e| panic!("{seed}: {e}\n{}", shown(&graph)));
            let same = got.iter().zip(&want).all(|(a, b)| bits(a) == bits(b));
            assert!(same, "{seed}: {}", shown(&graph));
        }
        let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
        let session = COMPILERS[2].model(graph.clone()).compile(&types).unwrap();
        let computing = |is: fn(&StepOp) -> bool| {
            let steps = session.plan().steps.iter();
            steps.filter(|s| is(&s.op) && s.op.prologue().is_some()).count()
        };
        convolutions += computing(|op| matches!(op, StepOp::Conv { .. }));
        products += computing(|op| matches!(op, StepOp::Gemm { .. }));
    }
    println!("{NETWORKS} networks: operands computed in {convolutions} convolutions and {products} products");
    assert!(convolutions > 20 && products > 30, "{convolutions} {products}");
}
