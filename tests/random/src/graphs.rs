//! Random graphs of primitives and clusters.

use tensorc_abi::DType;
use tensorc_ir::DenseType;
use tensorc_ir::Rng;
use tensorc_ir::TensorData;
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Gather, Prim, Reduction, View};
use tensorc_ir::scalar::{CmpOp, Ex, MathFn, Scalar, ScalarBuilder, ScalarFn, ScalarOp};

const DTYPES: [DType; 6] = [DType::F32, DType::F32, DType::F64, DType::I32, DType::I64, DType::U8];

/// A well-typed function of the given operands that uses each of them and returns `dtype`.
/// `rank` coordinates may be read. Divisions and functions with poles are left out, so results stay
/// finite or wrap.
pub fn random_scalar_fn(rng: &mut Rng, inputs: &[DType], rank: usize, dtype: DType) -> ScalarFn {
    let built = ScalarFn::build(inputs, |b, args| {
        let mut acc = leaf(rng, b, rank, dtype);
        for arg in args {
            let arg = convert(arg, dtype);
            let other = leaf(rng, b, rank, dtype);
            let step = step(rng, &arg, &other, dtype);
            acc = combine(rng, &acc, &step, dtype);
        }
        for _ in 0..rng.below(4) {
            let other = leaf(rng, b, rank, dtype);
            acc = step(rng, &acc, &other, dtype);
        }
        vec![acc]
    });
    built.unwrap_or_else(|_| ScalarFn::identity(dtype))
}

fn convert(x: &Ex, to: DType) -> Ex {
    x.cast(to)
}

fn leaf(rng: &mut Rng, b: &ScalarBuilder, rank: usize, dtype: DType) -> Ex {
    match rng.below(4) {
        0 if rank > 0 => convert(&b.coord(rng.below(rank as u64) as usize), dtype),
        _ => b.constant(rng.element(dtype)),
    }
}

fn combine(rng: &mut Rng, a: &Ex, b: &Ex, dtype: DType) -> Ex {
    if dtype == DType::Bool {
        return a.builder().op(*rng.pick(&[ScalarOp::And, ScalarOp::Or, ScalarOp::Xor]), &[a, b]);
    }
    a.builder().op(*rng.pick(&[ScalarOp::Add, ScalarOp::Sub, ScalarOp::Mul, ScalarOp::Min, ScalarOp::Max]), &[a, b])
}

fn step(rng: &mut Rng, a: &Ex, b: &Ex, dtype: DType) -> Ex {
    let op = |op, args: &[&Ex]| a.builder().op(op, args);
    match rng.below(6) {
        0 if dtype != DType::Bool => op(ScalarOp::Neg, &[a]),
        1 if dtype != DType::Bool => a.cmp(*rng.pick(&[CmpOp::Lt, CmpOp::Ge, CmpOp::Ne]), b).select(a, b),
        2 if dtype == DType::F32 || dtype == DType::F64 => op(ScalarOp::Fma, &[a, b, a]),
        3 if dtype == DType::F32 => op(ScalarOp::Math(*rng.pick(&[MathFn::Tanh, MathFn::Erf, MathFn::Sin])), &[a]),
        4 if dtype.is_int() => op(*rng.pick(&[ScalarOp::Xor, ScalarOp::And, ScalarOp::Shl, ScalarOp::Shr]), &[a, b]),
        _ => combine(rng, a, b, dtype),
    }
}

/// A graph of `size` nodes after its inputs: every kind of primitive, constants and clusters, on
/// small dense tensors of several types. Every type is right and every access in bounds.
pub fn random_graph(rng: &mut Rng, size: usize) -> Graph {
    let mut b = GraphGenerator { g: Graph::new(format!("g{}", rng.below(100))), values: vec![], rng };
    for i in 0..1 + b.rng.below(3) {
        let ty = b.dense();
        let v = b.g.add_input(format!("x{i}"), ty.clone().into());
        b.values.push((v, ty));
    }
    for i in 0..size {
        b.node(i, true);
    }
    let count = 1 + b.rng.below(3).min(b.values.len() as u64 - 1);
    for i in 0..count {
        let (v, _) = b.pick();
        let name = if b.rng.one_in(2) { b.g.node(v.node).name.clone() } else { format!("y {i}").into() };
        b.g.add_output(name, v);
    }
    b.g
}

struct GraphGenerator<'r> {
    g: Graph,
    values: Vec<(Value, DenseType)>,
    rng: &'r mut Rng,
}

impl GraphGenerator<'_> {
    fn dense(&mut self) -> DenseType {
        let rank = self.rng.below(4);
        let dims: Vec<u64> = (0..rank).map(|_| 1 + self.rng.below(4)).collect();
        DenseType::new(*self.rng.pick(&DTYPES), &dims)
    }

    fn pick(&mut self) -> (Value, DenseType) {
        self.rng.pick(&self.values).clone()
    }

    fn name(&mut self, i: usize) -> String {
        match self.rng.below(6) {
            0 => "same".into(),
            1 => format!("layer/{i}:0"),
            2 => i.to_string(),
            3 => format!("\"odd\" \\ name\t{i} é#1"),
            _ => format!("block.{i}"),
        }
    }

    fn add(&mut self, i: usize, prim: Prim, inputs: &[Value], types: &[DenseType]) {
        let name = self.name(i);
        let node = self.g.add_prim(name, prim, inputs, types);
        for (port, ty) in types.iter().enumerate() {
            self.values.push((Value { node, port: port as u16 }, ty.clone()));
        }
    }

    fn node(&mut self, i: usize, clusters: bool) {
        let (v, ty) = self.pick();
        match self.rng.below(if clusters { 8 } else { 6 }) {
            0 => {
                let (dense, dtype) = (self.dense(), *self.rng.pick(&DTYPES));
                let seed = self.rng.next_u64();
                let mut elements = Rng::new(seed);
                let ty = DenseType::new(dtype, &dense.dims);
                let data = TensorData::from_fn(ty.clone(), |_| elements.element(dtype));
                let name = self.name(i);
                let v = self.g.add_const(name, data);
                self.values.push((v, ty));
            }
            1 => self.map(i, v, &ty),
            2 => self.reduce(i, v, &ty),
            3 => self.view(i, v, &ty),
            4 => self.contract(i, v, &ty),
            5 => self.gather_or_concat(i, v, &ty),
            _ => self.cluster(i, v, &ty),
        }
    }

    /// A map of one value with itself, a broadcast constant row, or any value of equal shape.
    fn map(&mut self, i: usize, v: Value, ty: &DenseType) {
        let same: Vec<(Value, DenseType)> = self.values.iter().filter(|(_, t)| t.dims == ty.dims).cloned().collect();
        let other = self.rng.pick(&same).clone();
        let dtype = *self.rng.pick(&DTYPES);
        let f = random_scalar_fn(self.rng, &[ty.dtype, other.1.dtype], ty.rank(), dtype);
        self.add(i, Prim::Map(f.into()), &[v, other.0], &[DenseType::new(dtype, &ty.dims)]);
    }

    fn reduce(&mut self, i: usize, v: Value, ty: &DenseType) {
        let axes: Vec<usize> = (0..ty.rank()).filter(|_| self.rng.one_in(2)).collect();
        let dtype = ty.dtype;
        let op = *self.rng.pick(&[ScalarOp::Add, ScalarOp::Max]);
        let combine = ScalarFn::build(&[dtype; 2], |b, a| vec![b.op(op, &[&a[0], &a[1]])]);
        let Ok(combine) = combine else { return };
        let identity = ScalarFn::identity(dtype);
        let map = if self.rng.one_in(2) { identity.clone() } else { random_scalar_fn(self.rng, &[dtype], 0, dtype) };
        let (keep_dims, init) = (self.rng.one_in(2), vec![Scalar::zero(dtype)]);
        let r = Reduction { axes, keep_dims, init, map, combine, finish: identity };
        let out = DenseType::new(dtype, r.output_dims(&ty.dims));
        self.add(i, Prim::Reduce(r.into()), &[v], &[out]);
    }

    fn view(&mut self, i: usize, v: Value, ty: &DenseType) {
        let n = ty.rank();
        match self.rng.below(3) {
            // Transposition that reverses the axes.
            0 => {
                let map = (0..n).map(|a| Index::var((n - 1 - a) as u32)).collect();
                let dims: Vec<u64> = ty.dims.iter().rev().copied().collect();
                let view = View { map, fill: None };
                self.add(i, Prim::View(view.into()), &[v], &[DenseType::new(ty.dtype, &dims)]);
            }
            // Reshape to two axes.
            1 => {
                let len = ty.len();
                let rows = if len.is_multiple_of(2) { 2 } else { 1 };
                let dims = [rows, len / rows];
                let offset = linearize(&[Index::var(0), Index::var(1)], &dims);
                let view = View { map: delinearize(&offset, &ty.dims, &dims[..]), fill: None };
                self.add(i, Prim::View(view.into()), &[v], &[DenseType::new(ty.dtype, dims)]);
            }
            // Padding by one on both sides.
            _ => {
                let map = (0..n).map(|a| Index::var(a as u32).offset(-1)).collect();
                let dims: Vec<u64> = ty.dims.iter().map(|d| (d + 2).min(8)).collect();
                let fill = Some(self.rng.element(ty.dtype));
                let view = View { map, fill };
                self.add(i, Prim::View(view.into()), &[v], &[DenseType::new(ty.dtype, &dims)]);
            }
        }
    }

    /// The product of a value's rows with a constant matrix.
    fn contract(&mut self, i: usize, v: Value, ty: &DenseType) {
        let Some((&k, outer)) = ty.dims.split_last() else { return };
        let cols = 1 + self.rng.below(4);
        let mut elements = Rng::new(self.rng.next_u64());
        let weight = DenseType::new(ty.dtype, [k, cols]);
        let data = TensorData::from_fn(weight, |_| elements.element(ty.dtype));
        let w = self.g.add_const(format!("w{i}"), data);
        let n = outer.len() as u32;
        let extents = [outer, &[cols, k]].concat();
        let lhs = (0..n).chain([n + 1]).map(Index::var).collect();
        let (rhs, algorithm) = (vec![Index::var(n + 1), Index::var(n)], *self.rng.pick(&ConvAlgorithm::ALL));
        let c = Contraction { out_rank: outer.len() + 1, lhs, rhs, extents: extents.into(), algorithm };
        let out = DenseType::new(ty.dtype, &c.extents[..c.out_rank]);
        self.add(i, Prim::Contract(c.into()), &[v, w], &[out]);
    }

    fn gather_or_concat(&mut self, i: usize, v: Value, ty: &DenseType) {
        if ty.rank() == 0 {
            return;
        }
        let axis = self.rng.below(ty.rank() as u64) as usize;
        if self.rng.one_in(2) {
            let mut dims = ty.dims.clone();
            dims.set(axis, (2 * dims[axis]).min(64));
            if dims[axis] == 2 * ty.dims[axis] {
                self.add(i, Prim::Concat { axis }, &[v, v], &[DenseType::new(ty.dtype, &dims)]);
            }
            return;
        }
        let mut elements = Rng::new(self.rng.next_u64());
        let count = 1 + self.rng.below(3);
        let data = TensorData::from_fn(DenseType::new(DType::I64, [count]), |_| elements.element(DType::I64));
        let gather = Gather { axis };
        let out = DenseType::new(ty.dtype, gather.output_dims(ty, &data.ty));
        let indices = self.g.add_const(format!("i{i}"), data);
        self.add(i, Prim::Gather(gather), &[v, indices], &[out]);
    }

    /// A map, a reduction with a map before, or a product with a map after.
    fn cluster(&mut self, i: usize, v: Value, ty: &DenseType) {
        let mut body = Graph::new("");
        let x = body.add_input("x", ty.clone().into());
        let mut b = GraphGenerator { g: body, values: vec![(x, ty.clone())], rng: &mut *self.rng };
        let class = match b.rng.below(3) {
            0 => {
                b.map(0, x, ty);
                FusionClass::Map
            }
            1 => {
                b.map(0, x, ty);
                let (v, ty) = b.values[b.values.len() - 1].clone();
                b.reduce(1, v, &ty);
                FusionClass::Reduce
            }
            _ if ty.rank() > 0 => {
                b.contract(0, x, ty);
                let (v, ty) = b.values[b.values.len() - 1].clone();
                b.values = vec![(v, ty.clone())];
                b.map(1, v, &ty);
                FusionClass::Contract
            }
            _ => return,
        };
        let (result, out) = b.values[b.values.len() - 1].clone();
        let mut body = b.g;
        body.add_output("y", result);
        let name = self.name(i);
        let fused = FusedCluster::new(class, body);
        let node = self.g.add_fused(name, fused, &[v], std::slice::from_ref(&out));
        self.values.push((Value { node, port: 0 }, out));
    }
}
