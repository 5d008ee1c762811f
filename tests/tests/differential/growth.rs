//! Growing graphs of operators whose values stay near 1.

use std::sync::Arc;

use tensorc_ir::build::Builder;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_random::Rng;

/// Every operator that may occur.
pub const KINDS: [&str; 29] = [
    "relu",
    "tanh",
    "sigmoid",
    "neg",
    "abs",
    "gelu",
    "add",
    "sub",
    "mul",
    "max",
    "min",
    "where",
    "reduce_sum",
    "reduce_max",
    "reduce_mean",
    "argmax",
    "softmax",
    "layer_norm",
    "matmul",
    "conv",
    "max_pool",
    "average_pool",
    "transpose",
    "reshape",
    "concat",
    "slice",
    "pad",
    "gather",
    "cumsum",
];

/// Shapes of the inputs of every graph.
const INPUTS: [&[u64]; 3] = [&[2, 3, 8, 9], &[4, 33], &[6, 5, 16]];

/// Greatest number of elements of a value.
const LARGEST: u64 = 20_000;

fn ints(values: &[i64]) -> ParamValue {
    ParamValue::Ints(values.to_vec())
}

struct Growth<'a> {
    b: Builder<'a>,
    rng: Rng,
    pool: Vec<(Value, Vec<u64>)>,
}

impl Growth<'_> {
    /// Any value so far, more often a recent one.
    fn pick(&mut self) -> (Value, Vec<u64>) {
        let n = self.pool.len() as u64;
        let back = if self.rng.one_in(3) { self.rng.below(n) } else { self.rng.below(n.min(3)) };
        self.pool[(n - 1 - back) as usize].clone()
    }

    fn weight(&mut self, dims: &[u64]) -> Value {
        let mut elements = Rng::new(self.rng.next_u64());
        self.b.constant(TensorData::from_fn(DenseType::new(DType::F32, dims), |_| elements.element(DType::F32)))
    }

    /// A value that broadcasts with the given shape.
    fn partner(&mut self, dims: &[u64]) -> Value {
        let same: Vec<Value> = self.pool.iter().filter(|(_, d)| d == dims).map(|(v, _)| *v).collect();
        match self.rng.below(4) {
            0 => self.weight(&[]),
            1 => self.weight(&dims[dims.len().saturating_sub(1)..]),
            2 => {
                let narrow: Vec<u64> = dims.iter().map(|d| if self.rng.one_in(2) { 1 } else { *d }).collect();
                self.weight(&narrow)
            }
            _ => *self.rng.pick(&same),
        }
    }

    fn axis(&mut self, dims: &[u64]) -> i64 {
        self.rng.below(dims.len() as u64) as i64
    }

    /// One more node, or none where the picked value does not suit the choice.
    fn node(&mut self, kind: &str) -> Result<Option<Value>> {
        let (x, dims) = self.pick();
        let rank = dims.len();
        if rank == 0 && !matches!(kind, "relu" | "tanh" | "neg" | "abs" | "add" | "mul") {
            return Ok(None);
        }
        let value = match kind {
            "relu" | "tanh" | "sigmoid" | "neg" | "abs" | "gelu" => self.b.call(kind, &[x])?,
            "add" | "sub" | "mul" | "max" | "min" => {
                let y = self.partner(&dims);
                let swap = self.rng.one_in(2);
                self.b.call(kind, &if swap { [y, x] } else { [x, y] })?
            }
            "where" => {
                let (y, bound) = (self.partner(&dims), self.partner(&dims));
                let condition = self.b.call("less", &[x, bound])?;
                self.b.call(kind, &[condition, x, y])?
            }
            "reduce_sum" | "reduce_max" | "reduce_mean" => {
                let (axis, keep) = (self.axis(&dims), self.rng.one_in(2));
                let axes = self.b.i64s(&[axis]);
                let reduced = self.b.op(kind, &[x, axes], Params::new().with("keepdims", ParamValue::Bool(keep)))?;
                // Sums grow with the extent.
                if kind == "reduce_sum" { self.b.call("tanh", &[reduced])? } else { reduced }
            }
            "argmax" => {
                // Of an input: computed elements may tie up to rounding.
                let (x, dims) = self.pool[self.rng.below(INPUTS.len() as u64) as usize].clone();
                let axis = self.axis(&dims);
                let at = self.b.op(kind, &[x], Params::new().with("axis", ParamValue::Int(axis)))?;
                self.b.op("cast", &[at], Params::new().with("to", ParamValue::DType(DType::F32)))?
            }
            "softmax" => {
                let axis = self.axis(&dims);
                self.b.op(kind, &[x], Params::new().with("axis", ParamValue::Int(axis)))?
            }
            "cumsum" => {
                let axis = self.axis(&dims);
                let axis = self.b.i64s(&[axis]);
                let sums = self.b.call(kind, &[x, axis])?;
                self.b.call("tanh", &[sums])?
            }
            "layer_norm" => {
                let size = dims[rank - 1];
                let (scale, bias) = (self.weight(&[size]), self.weight(&[size]));
                // A small one would amplify the rounding of nearly equal elements.
                let epsilon = ParamValue::Float(0.1);
                self.b.op(kind, &[x, scale, bias], Params::new().with("epsilon", epsilon))?
            }
            "matmul" => {
                let cols = 1 + self.rng.below(40);
                let w = self.weight(&[dims[rank - 1], cols]);
                let product = self.b.call(kind, &[x, w])?;
                self.b.call("tanh", &[product])?
            }
            "conv" | "max_pool" | "average_pool" if rank == 4 => self.window(kind, x, &dims)?,
            _ => return self.movement(kind, x, &dims),
        };
        Ok(Some(value))
    }

    /// A node that rearranges elements.
    fn movement(&mut self, kind: &str, x: Value, dims: &[u64]) -> Result<Option<Value>> {
        let rank = dims.len();
        let value = match kind {
            "transpose" => {
                let mut perm: Vec<i64> = (0..rank as i64).collect();
                let (i, j) = (self.axis(dims) as usize, self.axis(dims) as usize);
                perm.swap(i, j);
                self.b.op(kind, &[x], Params::new().with("perm", ints(&perm)))?
            }
            "reshape" => {
                let first = [2, 3, 4].into_iter().find(|d| dims[0].is_multiple_of(*d) && dims[0] > *d);
                let shape = match first {
                    Some(d) => [&[d as i64, -1], &dims[1..].iter().map(|d| *d as i64).collect::<Vec<_>>()[..]].concat(),
                    None => vec![dims[0] as i64, -1],
                };
                let shape = self.b.i64s(&shape);
                self.b.call(kind, &[x, shape])?
            }
            "concat" => {
                let axis = self.axis(dims);
                let other = self.weight(dims);
                self.b.op(kind, &[x, other, x], Params::new().with("axis", ParamValue::Int(axis)))?
            }
            "slice" => {
                let axis = self.axis(dims);
                let size = dims[axis as usize] as i64;
                let (start, step) = (self.rng.below(size as u64) as i64, 1 + self.rng.below(2) as i64);
                let operands = [start, size, axis, step].map(|v| self.b.i64s(&[v]));
                self.b.call(kind, &[&[x], &operands[..]].concat())?
            }
            "pad" => {
                let pads: Vec<i64> = (0..2 * rank).map(|_| self.rng.below(3) as i64).collect();
                let pads = self.b.i64s(&pads);
                self.b.call(kind, &[x, pads])?
            }
            "gather" => {
                let axis = self.axis(dims);
                let size = dims[axis as usize];
                let at: Vec<i64> = (0..3).map(|_| self.rng.below(2 * size) as i64 - size as i64).collect();
                let at = self.b.i64s(&at);
                self.b.op(kind, &[x, at], Params::new().with("axis", ParamValue::Int(axis)))?
            }
            _ => return Ok(None),
        };
        Ok(Some(value))
    }

    /// A convolution or pooling of an image.
    fn window(&mut self, kind: &str, x: Value, dims: &[u64]) -> Result<Value> {
        let (h, w) = (1 + self.rng.below(dims[2].min(3)), 1 + self.rng.below(dims[3].min(3)));
        let (pad, stride) = (self.rng.below(h.min(w)) as i64, 1 + self.rng.below(2) as i64);
        let params = Params::new().with("pads", ints(&[pad; 4])).with("strides", ints(&[stride; 2]));
        if kind != "conv" {
            return self.b.op(kind, &[x], params.with("kernel_shape", ints(&[h as i64, w as i64])));
        }
        let depthwise = self.rng.one_in(3);
        let filters = if depthwise { dims[1] } else { 1 + self.rng.below(20) };
        let weight = self.weight(&[filters, if depthwise { 1 } else { dims[1] }, h, w]);
        let group = ParamValue::Int(if depthwise { dims[1] as i64 } else { 1 });
        let operands = if self.rng.one_in(2) { vec![x, weight, self.weight(&[filters])] } else { vec![x, weight] };
        let y = self.b.op(kind, &operands, params.with("group", group))?;
        self.b.call("tanh", &[y])
    }
}

/// The graph of a list of choices.
pub fn grow(choices: &[u32], registry: &Registry) -> Graph {
    let mut graph = Graph::new("random");
    let mut pool = vec![];
    for (i, dims) in INPUTS.into_iter().enumerate() {
        pool.push((graph.add_input(format!("x{i}"), DenseType::new(DType::F32, dims).into()), dims.to_vec()));
    }
    let value_of = |g: &Graph, v: Value| g.constant(v).cloned();
    let mut outputs = vec![];
    for (i, choice) in choices.iter().enumerate() {
        let b = Builder::new(&mut graph, registry, Arc::from(format!("n{i}")), &value_of);
        let mut growth = Growth { b, rng: Rng::new(u64::from(*choice)), pool: std::mem::take(&mut pool) };
        let kind = *growth.rng.pick(&KINDS);
        let value = growth.node(kind).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let added = value.map(|v| (v, growth.b.ty(v).unwrap().dims.to_vec()));
        pool = growth.pool;
        if let Some((v, dims)) = added.filter(|(_, dims)| (1..=LARGEST).contains(&dims.iter().product())) {
            pool.push((v, dims));
            outputs.push(v);
        }
    }
    // Values that nothing reads, and a few that something does.
    let unread: Vec<Value> = outputs.iter().copied().filter(|v| graph.uses(v.node).is_empty()).collect();
    let read = outputs.iter().copied().filter(|v| !graph.uses(v.node).is_empty() && v.node.0 % 5 == 0);
    let all: Vec<Value> = unread.into_iter().chain(read).collect();
    for (i, v) in all.iter().enumerate() {
        graph.add_output(format!("y{i}"), *v);
    }
    if all.is_empty() {
        graph.add_output("y", pool[0].0);
    }
    graph
}

/// Values for the inputs of a graph.
pub fn inputs_for(graph: &Graph, seed: u64) -> Vec<TensorData> {
    let mut rng = Rng::new(seed);
    let types = graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }).unwrap());
    types.map(|ty| TensorData::from_fn(ty.clone(), |_| rng.element(ty.dtype))).collect()
}
