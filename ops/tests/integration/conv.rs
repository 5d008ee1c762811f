//! Convolutions and transposed convolutions against their definitions, over one to three axes.

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{Rng, TensorData};

/// A convolution of a `[batch, channels · groups, …]` operand with filters for each group.
struct Case {
    batch: u64,
    groups: u64,
    /// Channels of the wide and of the narrow side of the filters, in a group.
    channels: [u64; 2],
    input: Vec<u64>,
    kernel: Vec<u64>,
    strides: Vec<u64>,
    dilations: Vec<u64>,
    before: Vec<u64>,
    after: Vec<u64>,
    /// Of a transposed convolution.
    extra: Vec<u64>,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let rank = 1 + rng.below(3) as usize;
        let mut list = |of: &[u64]| (0..rank).map(|_| *rng.pick(of)).collect::<Vec<u64>>();
        let (kernel, strides, dilations) = (list(&[1, 2, 3, 3, 4, 0]), list(&[1, 1, 2, 3]), list(&[1, 1, 1, 2, 3]));
        let (input, before, after) = (list(&[1, 2, 3, 5, 6]), list(&[0, 1, 2]), list(&[0, 1, 2]));
        let extra = strides.iter().map(|s| rng.below(*s)).collect();
        let channels = [*rng.pick(&[1, 2, 3]), *rng.pick(&[1, 2, 4])];
        let (batch, groups) = (*rng.pick(&[1, 2]), *rng.pick(&[1, 1, 2, 3]));
        Case { batch, groups, channels, input, kernel, strides, dilations, before, after, extra }
    }

    fn params(&self) -> Params {
        let ints = |list: &[u64]| ParamValue::Ints(list.iter().map(|n| *n as i64).collect());
        Params::new()
            .with("group", self.groups as i64)
            .with("strides", ints(&self.strides))
            .with("dilations", ints(&self.dilations))
            .with("pads", ints(&[&self.before[..], &self.after].concat()))
    }

    fn span(&self, axis: usize) -> i64 {
        (self.kernel[axis] as i64 - 1) * self.dilations[axis] as i64 + 1
    }

    /// For each position of the longer side and each tap, the position of the shorter side, if the tap meets one there.
    fn meets(&self, long: &[u64], short: &[u64], tap: &[u64]) -> Option<Vec<u64>> {
        let at = |axis: usize| {
            let reach = long[axis] as i64 - (tap[axis] * self.dilations[axis]) as i64 + self.before[axis] as i64;
            let stride = self.strides[axis] as i64;
            (reach % stride == 0).then(|| u64::try_from(reach / stride).ok()).flatten().filter(|n| *n < short[axis])
        };
        (0..self.kernel.len()).map(at).collect()
    }
}

fn positions(extents: &[u64]) -> Vec<Vec<u64>> {
    extents.iter().fold(vec![vec![]], |all, n| {
        all.iter().flat_map(|p: &Vec<u64>| (0..*n).map(|i| [&p[..], &[i]].concat())).collect()
    })
}

fn at(dims: &[u64], index: &[u64]) -> usize {
    dims.iter().zip(index).fold(0, |sum, (n, i)| sum * n + i) as usize
}

fn values(dims: &[u64], rng: &mut Rng) -> TensorData {
    let elements: Vec<f32> = (0..dims.iter().product::<u64>()).map(|_| rng.below(9) as f32 - 4.0).collect();
    TensorData::f32s(dims, &elements).unwrap()
}

fn run(op: &str, operands: [&TensorData; 2], params: Params) -> Result<TensorData, String> {
    let registry = tensorc_ops::registry().unwrap();
    let mut graph = Graph::new("test");
    let args: Vec<Option<Value>> = operands.iter().map(|data| Some(graph.add_const("c", (*data).clone()))).collect();
    let node = graph.add_op("n", registry.get(op).unwrap(), &args, params, 1).map_err(|d| d.to_string())?;
    graph.add_output("y", Value { node, port: 0 });
    Ok(eval_graph(&graph, &registry, &[]).map_err(|d| d.to_string())?.remove(0))
}

/// The elements of both sides that a filter element joins: `long` and `short` are `[batch, channels, …]` with the channels of the filters'
/// second and first axis. Whole numbers add up exactly.
fn joined(case: &Case, [long, short]: [&[u64]; 2], filters: &[u64], mut join: impl FnMut(usize, usize, usize)) {
    let [narrow, wide] = [long[1] / case.groups, short[1] / case.groups];
    for position in positions(&long[2..]) {
        for tap in positions(&case.kernel) {
            let Some(meeting) = case.meets(&position, &short[2..], &tap) else { continue };
            for n in 0..case.batch {
                for (channel, inner) in (0..short[1]).flat_map(|c| (0..narrow).map(move |i| (c, i))) {
                    let outer = channel / wide * narrow + inner;
                    join(
                        at(long, &[&[n, outer], &position[..]].concat()),
                        at(short, &[&[n, channel], &meeting[..]].concat()),
                        at(filters, &[&[channel, inner], &tap[..]].concat()),
                    );
                }
            }
        }
    }
}

#[test]
fn convolutions_are_sums_over_windows() {
    let (mut rng, mut ran) = (Rng::new(3), 0);
    for _ in 0..400 {
        let case = Case::random(&mut rng);
        let [per_group, filters] = case.channels;
        let long = [&[case.batch, per_group * case.groups], &case.input[..]].concat();
        let weights = [&[filters * case.groups, per_group], &case.kernel[..]].concat();
        let (x, w) = (values(&long, &mut rng), values(&weights, &mut rng));
        let Ok(y) = run("conv", [&x, &w], case.params()) else { continue };
        let mut expected = vec![0.0; y.len() as usize];
        let (xs, ws) = (x.to_f32s(), w.to_f32s());
        joined(&case, [&long, y.dims()], &weights, |x, y, w| expected[y] += xs[x] * ws[w]);
        assert_eq!(y.to_f32s(), expected, "{:?} {:?} {:?}", long, weights, case.params());
        ran += 1;
    }
    assert!(ran > 200, "{ran} ran");
}

#[test]
fn transposed_convolutions_spread_every_element() {
    let (mut rng, mut ran) = (Rng::new(4), 0);
    for _ in 0..400 {
        let case = Case::random(&mut rng);
        let [per_group, filters] = case.channels;
        let short = [&[case.batch, per_group * case.groups], &case.input[..]].concat();
        let weights = [&[per_group * case.groups, filters], &case.kernel[..]].concat();
        let (x, w) = (values(&short, &mut rng), values(&weights, &mut rng));
        let extra = ParamValue::Ints(case.extra.iter().map(|n| *n as i64).collect());
        let Ok(y) = run("conv_transpose", [&x, &w], case.params().with("output_padding", extra)) else { continue };
        for (axis, found) in y.dims()[2..].iter().enumerate() {
            let whole = (case.input[axis] as i64 - 1) * case.strides[axis] as i64 + case.span(axis);
            let pads = (case.before[axis] + case.after[axis]) as i64;
            assert_eq!(*found as i64, whole + case.extra[axis] as i64 - pads);
        }
        let mut expected = vec![0.0; y.len() as usize];
        let (xs, ws) = (x.to_f32s(), w.to_f32s());
        joined(&case, [y.dims(), &short], &weights, |y, x, w| expected[y] += xs[x] * ws[w]);
        assert_eq!(y.to_f32s(), expected, "{:?} {:?} {:?}", short, weights, case.params());
        ran += 1;
    }
    assert!(ran > 200, "{ran} ran");
}
