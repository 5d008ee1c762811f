//! Shared by the integration tests: a math library, random graphs of primitives, comparison.

use std::sync::Arc;

use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::{OpDef, Registry};
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Gather, Prim, Reduction, View};
use tensorc_ir::scalar::{Ex, MathFn, MathLibrary, Scalar, ScalarBuilder, ScalarFn};
use tensorc_ir::{DType, DenseType, TensorData};

/// Stands in for the real library: cheap, total functions.
pub struct TestMath {
    unary: ScalarFn,
    binary: ScalarFn,
}

impl MathLibrary for TestMath {
    fn body(&self, f: MathFn) -> &ScalarFn {
        if f.arity() == 2 { &self.binary } else { &self.unary }
    }
}

pub fn registry_of(ops: Vec<OpDef>) -> Registry {
    let unary = ScalarFn::build(&[DType::F32], |_, a| vec![&(&a[0] * 0.5) + &a[0].abs()]).unwrap();
    let binary = ScalarFn::build(&[DType::F32; 2], |_, a| vec![&a[0] * &a[1]]).unwrap();
    Registry::new(ops, Box::new(TestMath { unary, binary })).unwrap()
}

pub fn registry() -> Registry {
    registry_of(vec![])
}

pub fn ty(dims: &[u64]) -> DenseType {
    DenseType::new(DType::F32, dims)
}

pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below.max(1)
    }

    /// Mostly small numbers, sometimes zeros of both signs, NaN and infinities.
    pub fn f32(&mut self, special: bool) -> f32 {
        match self.next(if special { 24 } else { 1 << 40 }) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            3 => -0.0,
            4 => 0.0,
            _ => (self.next(4001) as f32 - 2000.0) / 256.0,
        }
    }

    pub fn tensor(&mut self, ty: &DenseType, special: bool) -> TensorData {
        TensorData::from_fn(ty.clone(), |_| match ty.dtype {
            DType::F32 => Scalar::f32(self.f32(special)),
            d => Scalar::from_i64(d, self.next(9) as i64 - 4),
        })
    }
}

/// Builds graphs of primitives with inferred types.
pub struct Prims {
    pub graph: Graph,
}

impl Prims {
    pub fn new() -> Prims {
        Prims { graph: Graph::new("test") }
    }

    pub fn input(&mut self, dims: &[u64]) -> Value {
        let name = format!("x{}", self.graph.inputs().len());
        self.graph.add_input(name, ty(dims).into())
    }

    pub fn constant(&mut self, data: TensorData) -> Value {
        self.graph.add_const("const", data)
    }

    pub fn dims(&self, v: Value) -> Vec<u64> {
        self.graph.dense(v).unwrap().dims.to_vec()
    }

    pub fn output(&mut self, v: Value) {
        let name = format!("y{}", self.graph.outputs().len());
        self.graph.add_output(name, v);
    }

    fn prim(&mut self, prim: Prim, args: &[Value], types: &[DenseType]) -> Value {
        let name = format!("n{}", self.graph.node_count());
        Value { node: self.graph.add_prim(name, prim, args, types), port: 0 }
    }

    pub fn broadcast(&self, args: &[Value]) -> Option<Vec<u64>> {
        let shapes: Vec<Vec<u64>> = args.iter().map(|v| self.dims(*v)).collect();
        let rank = shapes.iter().map(Vec::len).max()?;
        let mut out = vec![1; rank];
        for s in &shapes {
            for (i, &d) in s.iter().enumerate() {
                let o = &mut out[rank - s.len() + i];
                if *o != d && *o != 1 && d != 1 {
                    return None;
                }
                *o = if d == 1 { *o } else { d };
            }
        }
        Some(out)
    }

    pub fn map(&mut self, args: &[Value], body: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex) -> Value {
        let dtypes: Vec<DType> = args.iter().map(|v| self.graph.dense(*v).unwrap().dtype).collect();
        let f = ScalarFn::build(&dtypes, |b, a| vec![body(b, a)]).unwrap();
        let dims = self.broadcast(args).unwrap();
        let out = DenseType::new(f.output_dtypes()[0], &dims);
        self.prim(Prim::Map(Arc::new(f)), args, &[out])
    }

    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.map(&[a, b], |_, x| &x[0] + &x[1])
    }

    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.map(&[a, b], |_, x| &x[0] * &x[1])
    }

    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.map(&[a, b], |_, x| &x[0] - &x[1])
    }

    pub fn div(&mut self, a: Value, b: Value) -> Value {
        self.map(&[a, b], |_, x| &x[0] / &x[1])
    }

    pub fn exp(&mut self, a: Value) -> Value {
        self.map(&[a], |_, x| x[0].exp())
    }

    pub fn relu(&mut self, a: Value) -> Value {
        self.map(&[a], |_, x| x[0].max(&x[0].lit(0.0)))
    }

    pub fn view(&mut self, a: Value, map: Vec<Index>, fill: Option<f32>, out: &[u64]) -> Value {
        let dtype = self.graph.dense(a).unwrap().dtype;
        let fill = fill.map(|x| Scalar::from_f64(dtype, f64::from(x)));
        self.prim(Prim::View(Arc::new(View { map, fill })), &[a], &[DenseType::new(dtype, out)])
    }

    pub fn reshape(&mut self, a: Value, to: &[u64]) -> Value {
        let from = self.dims(a);
        let vars: Vec<Index> = (0..to.len() as u32).map(Index::var).collect();
        let map = delinearize(&linearize(&vars, to), &from, to);
        self.view(a, map, None, to)
    }

    pub fn transpose(&mut self, a: Value, perm: &[usize]) -> Value {
        let from = self.dims(a);
        let mut map = vec![Index::default(); perm.len()];
        perm.iter().enumerate().for_each(|(out, axis)| map[*axis] = Index::var(out as u32));
        let out: Vec<u64> = perm.iter().map(|p| from[*p]).collect();
        self.view(a, map, None, &out)
    }

    pub fn shift(&mut self, a: Value, by: &[i64], fill: Option<f32>, out: &[u64]) -> Value {
        let map = by.iter().enumerate().map(|(i, s)| Index::var(i as u32).offset(*s)).collect();
        self.view(a, map, fill, out)
    }

    pub fn broadcast_to(&mut self, a: Value, out: &[u64]) -> Value {
        let from = self.dims(a);
        let lead = out.len() - from.len();
        let axis = |i: usize| if from[i] == 1 { Index::constant(0) } else { Index::var((lead + i) as u32) };
        let map = (0..from.len()).map(axis).collect();
        self.view(a, map, None, out)
    }

    pub fn reduce(&mut self, a: Value, axes: &[usize], keep: bool, max: bool) -> Value {
        let dims = self.dims(a);
        let init = if max { f32::NEG_INFINITY } else { 0.0 };
        let combine = ScalarFn::build(&[DType::F32; 2], |_, x| vec![if max { x[0].max(&x[1]) } else { &x[0] + &x[1] }]);
        let r = Reduction {
            axes: axes.to_vec(),
            keep_dims: keep,
            init: vec![Scalar::f32(init)],
            map: ScalarFn::identity(DType::F32),
            combine: combine.unwrap(),
            finish: ScalarFn::identity(DType::F32),
        };
        let out = ty(&r.output_dims(&dims));
        self.prim(Prim::Reduce(Arc::new(r)), &[a], &[out])
    }

    pub fn contract(
        &mut self,
        a: Value,
        b: Value,
        extents: &[u64],
        out_rank: usize,
        l: Vec<Index>,
        r: Vec<Index>,
    ) -> Value {
        let c = Contraction { extents: extents.into(), out_rank, lhs: l, rhs: r, algorithm: ConvAlgorithm::Direct };
        self.prim(Prim::Contract(Arc::new(c)), &[a, b], &[ty(&extents[..out_rank])])
    }

    /// `[…, m, k] × [k, n]`, or batched over equal leading axes.
    pub fn matmul(&mut self, a: Value, b: Value) -> Value {
        let (da, db) = (self.dims(a), self.dims(b));
        let r = da.len();
        let mut extents = da.clone();
        extents[r - 1] = db[db.len() - 1];
        extents.push(da[r - 1]);
        let k = r as u32;
        let mut lhs: Vec<Index> = (0..k - 1).map(Index::var).collect();
        lhs.push(Index::var(k));
        let mut rhs: Vec<Index> = (0..db.len() as u32 - 2).map(Index::var).collect();
        rhs.extend([Index::var(k), Index::var(k - 1)]);
        self.contract(a, b, &extents, r, lhs, rhs)
    }

    /// Convolution of `[n, c, h, w]` with `[o, c, kh, kw]`, unit stride.
    pub fn conv(&mut self, x: Value, w: Value, pad: i64) -> Value {
        let (dx, dw) = (self.dims(x), self.dims(w));
        let out = |i: usize| dx[i] + 2 * pad as u64 - dw[i] + 1;
        let extents = [dx[0], dw[0], out(2), out(3), dw[1], dw[2], dw[3]];
        let at = |o: u32, k: u32| Index::var(o).add(&Index::var(k)).offset(-pad);
        let lhs = vec![Index::var(0), Index::var(4), at(2, 5), at(3, 6)];
        let rhs = [1, 4, 5, 6].map(Index::var).to_vec();
        self.contract(x, w, &extents, 4, lhs, rhs)
    }

    pub fn gather(&mut self, data: Value, indices: Value, axis: usize) -> Value {
        let (d, i) = (self.graph.dense(data).unwrap(), self.graph.dense(indices).unwrap());
        let out = DenseType { dtype: d.dtype, dims: Gather { axis }.output_dims(&d, &i) };
        self.prim(Prim::Gather(Gather { axis }), &[data, indices], &[out])
    }

    pub fn concat(&mut self, args: &[Value], axis: usize) -> Value {
        let mut dims = self.dims(args[0]);
        dims[axis] = args.iter().map(|v| self.dims(*v)[axis]).sum();
        self.prim(Prim::Concat { axis }, args, &[ty(&dims)])
    }

    pub fn softmax(&mut self, x: Value) -> Value {
        let axis = self.dims(x).len() - 1;
        let m = self.reduce(x, &[axis], true, true);
        let d = self.sub(x, m);
        let e = self.exp(d);
        let s = self.reduce(e, &[axis], true, false);
        self.div(e, s)
    }
}

/// A random graph drawn from a list of choices; every prefix is a graph, so lists shrink well.
pub fn random_graph(choices: &[u32], seed: u64) -> Graph {
    let mut p = Prims::new();
    let mut rng = Rng(seed);
    let mut pool = vec![p.input(&[2, 3, 4]), p.input(&[3, 4]), p.input(&[4, 4])];
    let c = rng.tensor(&ty(&[4]), false);
    pool.push(p.constant(c));
    let s = p.constant(TensorData::scalar(Scalar::f32(1.5)));
    pool.push(s);
    let w = rng.tensor(&ty(&[4, 4]), false);
    pool.push(p.constant(w));
    for &choice in choices {
        let mut rng = Rng(u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55);
        let pick = |rng: &mut Rng| {
            let recent = rng.next(3) > 0;
            let n = pool.len() as u64;
            pool[if recent { n - 1 - rng.next(n.min(4)) } else { rng.next(n) } as usize]
        };
        let (a, b) = (pick(&mut rng), pick(&mut rng));
        if let Some(v) = random_prim(&mut p, &mut rng, choice, a, b)
            && p.dims(v).iter().product::<u64>() <= 4096
        {
            pool.push(v);
        }
    }
    let count = 1 + rng.next(2);
    for _ in 0..count {
        let n = pool.len() as u64;
        let v = pool[(n - 1 - rng.next(n.min(3))) as usize];
        p.output(v);
    }
    let last = pool[pool.len() - 1];
    p.output(last);
    p.graph
}

fn random_prim(p: &mut Prims, rng: &mut Rng, choice: u32, a: Value, b: Value) -> Option<Value> {
    let (da, db) = (p.dims(a), p.dims(b));
    let rank = da.len();
    let axis = rng.next(rank as u64) as usize;
    Some(match choice % 16 {
        0 => p.relu(a),
        1 => p.exp(a),
        2 | 3 => p.broadcast(&[a, b]).map(|_| p.add(a, b))?,
        4 | 5 => p.broadcast(&[a, b]).map(|_| p.mul(a, b))?,
        6 if rank >= 2 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(axis, rng.next(rank as u64) as usize);
            p.transpose(a, &perm)
        }
        7 => {
            let len: u64 = da.iter().product();
            let first =
                [1, 2, 3, 4, 6].into_iter().filter(|d| len.is_multiple_of(*d)).nth(rng.next(3) as usize).unwrap_or(1);
            p.reshape(a, &[first, len / first])
        }
        8 if rank >= 1 => {
            let mut out = da.clone();
            let mut by = vec![0; rank];
            by[axis] = -(rng.next(2) as i64);
            out[axis] += rng.next(3);
            let fill = [0.0, 1.0, f32::NEG_INFINITY][rng.next(3) as usize];
            p.shift(a, &by, Some(fill), &out)
        }
        9 if rank >= 1 && da[axis] > 1 => {
            let mut out = da.clone();
            let mut by = vec![0; rank];
            by[axis] = rng.next(2) as i64;
            out[axis] -= 1;
            p.shift(a, &by, None, &out)
        }
        10 if rank >= 1 => p.reduce(a, &[axis], rng.next(2) == 0, rng.next(2) == 0),
        11 if rank >= 2 && db.len() == 2 && da[rank - 1] == db[0] => p.matmul(a, b),
        12 => p.broadcast_to(a, &[vec![2], da.clone()].concat()),
        13 if rank >= 1 && da == db => p.concat(&[a, b], axis),
        14 if rank >= 1 && da[axis] > 0 => {
            let n = da[axis] as i64;
            let indices = TensorData::i64s(&[2], &[rng.next(n as u64) as i64, -1]).unwrap();
            let indices = p.constant(indices);
            p.gather(a, indices, axis)
        }
        15 if rank >= 2 => p.softmax(a),
        _ => p.map(&[a], |_, x| &(&x[0] * 1.0) + 0.25),
    })
}

pub fn inputs_for(graph: &Graph, seed: u64, special: bool) -> Vec<TensorData> {
    let mut rng = Rng(seed);
    let types: Vec<DenseType> =
        graph.inputs().iter().map(|n| graph.dense(Value { node: *n, port: 0 }).unwrap()).collect();
    types.iter().map(|t| rng.tensor(t, special)).collect()
}

/// Asserts that two graphs compute the same on the same inputs: bit for bit (any NaN equals any
/// other), or, with a tolerance, up to rounding.
pub fn assert_same(before: &Graph, after: &Graph, inputs: &[TensorData], tolerance: f64) {
    let registry = registry();
    let a = eval_graph(before, &registry, inputs).unwrap();
    let b = eval_graph(after, &registry, inputs).unwrap();
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert_eq!(a.ty, b.ty, "output {i}");
        for (at, (x, y)) in a.iter().zip(b.iter()).enumerate() {
            let (fx, fy) = (x.as_f64(), y.as_f64());
            let close = (fx - fy).abs() <= tolerance * fx.abs().max(fy.abs()).max(1.0);
            assert!(x == y || fx.is_nan() && fy.is_nan() || close, "output {i}, element {at}: {fx} became {fy}");
        }
    }
}

pub fn is_prim(graph: &Graph, node: NodeId) -> bool {
    matches!(graph.node(node).kind, NodeKind::Prim(_))
}

/// Checks what emitters rely on.
pub fn assert_fused_form(graph: &Graph) {
    for n in graph.order() {
        match &graph.node(n).kind {
            NodeKind::Input | NodeKind::Const(_) => {}
            NodeKind::Prim(Prim::Concat { .. } | Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_)) => {}
            NodeKind::Prim(Prim::View(v)) => {
                let arg = graph.dense(graph.args(n)[0]).unwrap();
                let out = graph.dense(Value { node: n, port: 0 }).unwrap();
                assert!(tensorc_ir::views::keeps_linear_order(v, &arg, &out.dims));
            }
            NodeKind::Fused(f) => assert_body(graph, n, f.class, &f.body),
            other => panic!("unfused {other:?}"),
        }
    }
}

fn assert_body(graph: &Graph, node: NodeId, class: FusionClass, body: &Graph) {
    assert_eq!(graph.args(node).len(), body.inputs().len());
    assert_eq!(graph.node(node).types.len(), body.outputs().len());
    for (v, i) in graph.args(node).iter().zip(body.inputs()) {
        assert_eq!(graph.dense(*v).unwrap(), body.dense(Value { node: *i, port: 0 }).unwrap());
    }
    let prims: Vec<&Prim> = body
        .order()
        .into_iter()
        .filter_map(|n| match &body.node(n).kind {
            NodeKind::Prim(p) => Some((n, p)),
            _ => None,
        })
        .map(|(n, p)| {
            if let Prim::Gather(_) = p {
                let data = body.args(n)[0].node;
                assert!(!is_prim(body, data), "the data of a gather must be an operand");
            }
            p
        })
        .collect();
    let contracts = prims.iter().filter(|p| matches!(p, Prim::Contract(_))).count();
    let reduces = prims.iter().filter(|p| matches!(p, Prim::Reduce(_))).count();
    match class {
        FusionClass::Map => {
            assert_eq!((contracts, reduces), (0, 0));
            let shapes: Vec<_> = body.outputs().iter().map(|(_, v)| body.dense(*v).unwrap().dims).collect();
            assert!(shapes.windows(2).all(|w| w[0] == w[1]), "{shapes:?}");
        }
        FusionClass::Reduce => {
            assert!(contracts == 0 && reduces > 0);
            let axes = |p: &&Prim| match p {
                Prim::Reduce(r) => Some(r.axes.clone()),
                _ => None,
            };
            let axes: Vec<_> = prims.iter().filter_map(axes).collect();
            assert!(axes.windows(2).all(|w| w[0] == w[1]));
        }
        FusionClass::Contract => {
            assert_eq!((contracts, reduces, body.outputs().len()), (1, 0, 1));
        }
        FusionClass::Attention => {
            assert!(contracts == 2 && reduces > 0 && body.outputs().len() == 1);
        }
    }
}
