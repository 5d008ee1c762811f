//! Every rule of graph algebra is proved by interpreting both sides: on random shapes and accesses, on each element
//! type the rule is for, and, if it is exact, on special values.

use crate::common::registry;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::prim::{Contraction, ConvAlgorithm, Prim, Reduction, View};
use tensorc_ir::scalar::{Ex, Scalar, ScalarFn};
use tensorc_ir::{DType, DenseType, TensorData};
use tensorc_passes::Label;
use tensorc_passes::PassCx;
use tensorc_passes::algebra::{Domain, RULES, TensorRule, apply_everywhere};
use tensorc_random::Rng;

/// A graph under construction, all of one element type.
struct Net {
    graph: Graph,
    rng: Rng,
    dtype: DType,
}

impl Net {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// An extent, rarely 1.
    fn extent(&mut self) -> u64 {
        if self.rng.one_in(6) { 1 } else { 2 + self.below(4) }
    }

    fn input(&mut self, dims: &[u64]) -> Value {
        let name = format!("x{}", self.graph.inputs().len());
        self.graph.add_input(name, DenseType::new(self.dtype, dims).into())
    }

    fn constant(&mut self, dims: &[u64]) -> Value {
        let data = tensor(&mut self.rng, &DenseType::new(self.dtype, dims), false);
        self.graph.add_const("c", data)
    }

    /// Positive constants, as variances are.
    fn positive(&mut self, dims: &[u64]) -> Value {
        let (dtype, rng) = (self.dtype, &mut self.rng);
        let data = TensorData::from_fn(DenseType::new(dtype, dims), |_| {
            Scalar::from_f64(dtype, 0.5 + rng.below(100) as f64 / 32.0)
        });
        self.graph.add_const("v", data)
    }

    fn dims(&self, v: Value) -> Vec<u64> {
        self.graph.dense(v).unwrap().dims.to_vec()
    }

    fn prim(&mut self, prim: Prim, args: &[Value], dims: &[u64]) -> Value {
        let name = format!("n{}", self.graph.node_count());
        Value { node: self.graph.add_prim(name, prim, args, &[DenseType::new(self.dtype, dims)]), port: 0 }
    }

    fn map(&mut self, args: &[Value], body: impl FnOnce(&[Ex]) -> Ex) -> Value {
        let f = ScalarFn::build(&vec![self.dtype; args.len()], |_, a| vec![body(a)]).unwrap();
        let shapes: Vec<Vec<u64>> = args.iter().map(|v| self.dims(*v)).collect();
        let rank = shapes.iter().map(Vec::len).max().unwrap();
        let at = |s: &Vec<u64>, i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
        let dims: Vec<u64> =
            (0..rank).map(|i| shapes.iter().map(|s| at(s, i)).find(|n| *n != 1).unwrap_or(1)).collect();
        self.prim(Prim::Map(f.into()), args, &dims)
    }

    fn view(&mut self, v: Value, map: Vec<Index>, dims: &[u64]) -> Value {
        self.prim(Prim::View(View { map, fill: None }.into()), &[v], dims)
    }

    fn transpose(&mut self, v: Value, perm: &[usize]) -> Value {
        let from = self.dims(v);
        let mut map = vec![Index::default(); perm.len()];
        perm.iter().enumerate().for_each(|(out, axis)| map[*axis] = Index::var(out as u32));
        let out: Vec<u64> = perm.iter().map(|p| from[*p]).collect();
        self.view(v, map, &out)
    }

    fn slice(&mut self, v: Value, axis: usize, start: u64, n: u64) -> Value {
        let mut dims = self.dims(v);
        dims[axis] = n;
        let at = |i: usize| Index::var(i as u32).offset(if i == axis { start as i64 } else { 0 });
        let map = (0..dims.len()).map(at).collect();
        self.view(v, map, &dims)
    }

    fn concat(&mut self, args: &[Value], axis: usize) -> Value {
        let mut dims = self.dims(args[0]);
        dims[axis] = args.iter().map(|v| self.dims(*v)[axis]).sum();
        self.prim(Prim::Concat { axis }, args, &dims)
    }

    fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut perm: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            perm.swap(i, self.below(i as u64 + 1) as usize);
        }
        perm
    }

    /// A product by letters for axes, as in `ij,jk->ik`, with the axes of the operands in random order.
    fn operand(&mut self, letters: &str, extents: &[(char, u64)], constant: bool) -> (Value, String) {
        let perm = self.permutation(letters.len());
        let letters: String = perm.iter().map(|i| letters.as_bytes()[*i] as char).collect();
        let extent = |c| extents.iter().find(|(l, _)| *l == c).unwrap().1;
        let dims: Vec<u64> = letters.chars().map(extent).collect();
        (if constant { self.constant(&dims) } else { self.input(&dims) }, letters)
    }

    fn product(&mut self, (a, la): (Value, &str), (b, lb): (Value, &str), out: &str) -> Value {
        let mut order: Vec<char> = out.chars().collect();
        for c in la.chars().chain(lb.chars()) {
            if !order.contains(&c) {
                order.push(c);
            }
        }
        let (da, db) = (self.dims(a), self.dims(b));
        let extent = |c: &char| la.find(*c).map_or_else(|| db[lb.find(*c).unwrap()], |i| da[i]);
        let at = |c: char| Index::var(order.iter().position(|o| *o == c).unwrap() as u32);
        let extents: Vec<u64> = order.iter().map(extent).collect();
        let dims = extents[..out.len()].to_vec();
        let (lhs, rhs) = (la.chars().map(at).collect(), lb.chars().map(at).collect());
        self.prim(
            Prim::Contract(
                Contraction {
                    extents: extents.into(),
                    out_rank: out.len(),
                    lhs,
                    rhs,
                    algorithm: ConvAlgorithm::Direct,
                }
                .into(),
            ),
            &[a, b],
            &dims,
        )
    }

    /// Products of a matrix, a batch or an image with constant weights: the operand, and the axis of channels of the
    /// result.
    fn weighted(&mut self, x: Option<Value>, pad: i64) -> (Value, usize) {
        let (m, k, n) = (self.extent(), 1 + self.below(4), 1 + self.below(5));
        let kind = match x {
            Some(x) => self.dims(x).len() as u64 - 2,
            None => self.below(3),
        };
        match kind {
            0 => {
                let x = x.unwrap_or_else(|| self.input(&[m, k]));
                let k = self.dims(x)[1];
                let w = self.constant(&[n, k]);
                (self.product((x, "mk"), (w, "nk"), "mn"), 1)
            }
            1 => {
                let x = x.unwrap_or_else(|| self.input(&[2, m, k]));
                let k = self.dims(x)[2];
                let w = self.constant(&[k, n]);
                (self.product((x, "bmk"), (w, "kn"), "bmn"), 2)
            }
            _ => {
                let x = x.unwrap_or_else(|| self.input(&[1, k, 4, 4]));
                let d = self.dims(x);
                let kernel = 1 + self.below(3);
                let w = self.constant(&[n, d[1], kernel, kernel]);
                let out = 4 + 2 * pad as u64 + 1 - kernel;
                let at = |o: u32, k: u32| Index::var(o).add(&Index::var(k)).offset(-pad);
                let c = Contraction {
                    extents: [d[0], n, out, out, d[1], kernel, kernel].into(),
                    out_rank: 4,
                    lhs: vec![Index::var(0), Index::var(4), at(2, 5), at(3, 6)],
                    rhs: [1, 4, 5, 6].map(Index::var).to_vec(),
                    algorithm: ConvAlgorithm::Direct,
                };
                (self.prim(Prim::Contract(c.into()), &[x, w], &[d[0], n, out, out]), 1)
            }
        }
    }

    /// A shape that broadcasts along all axes but one.
    fn along(&mut self, v: Value, axis: usize) -> Vec<u64> {
        let dims = self.dims(v);
        let shape: Vec<u64> = dims.iter().enumerate().map(|(i, n)| if i == axis { *n } else { 1 }).collect();
        if self.rng.one_in(2) { shape[axis..].to_vec() } else { shape }
    }

    /// An affine function of a tensor with constants along an axis.
    fn affine(&mut self, v: Value, axis: usize) -> Value {
        let shape = self.along(v, axis);
        let [a, b] = [self.constant(&shape), self.constant(&shape)];
        match self.below(5) {
            0 => self.map(&[v, a], |x| &x[0] * &x[1]),
            1 => self.map(&[a, v, b], |x| &x[2] - &(&x[0] * &x[1])),
            2 => {
                let scale = self.positive(&shape);
                self.map(&[v, a, scale, b], |x| (&x[0] - &x[1]) / (&x[2] + 1e-3).sqrt() * &x[3] + &x[1])
            }
            3 => self.map(&[v], |x| &(&x[0] * 3.0) + 0.5),
            _ => self.map(&[v, a, b], |x| x[0].fma(&x[1], &x[2])),
        }
    }

    fn sum(&mut self, v: Value, axes: &[usize]) -> Value {
        let dtype = self.dtype;
        let keep_dims = self.rng.one_in(2);
        let combine = ScalarFn::build(&[dtype; 2], |_, x| vec![&x[0] + &x[1]]).unwrap();
        let finish = match self.rng.one_in(3) {
            true => ScalarFn::build(&[dtype], |_, x| vec![&x[0] * 2.0]).unwrap(),
            false => ScalarFn::identity(dtype),
        };
        let map = ScalarFn::identity(dtype);
        let r = Reduction { axes: axes.to_vec(), keep_dims, init: vec![Scalar::zero(dtype)], map, combine, finish };
        let dims = r.output_dims(&self.dims(v));
        self.prim(Prim::Reduce(r.into()), &[v], &dims)
    }

    fn sum_or_difference(&mut self, a: Value, b: Value) -> Value {
        match self.rng.one_in(2) {
            true => self.map(&[a, b], |x| &x[0] + &x[1]),
            false => self.map(&[a, b], |x| &x[0] - &x[1]),
        }
    }

    fn reshape(&mut self, v: Value, to: &[u64]) -> Value {
        let from = self.dims(v);
        let vars: Vec<Index> = (0..to.len() as u32).map(Index::var).collect();
        let map = delinearize(&linearize(&vars, to), &from, to);
        self.view(v, map, to)
    }

    fn output(&mut self, v: Value) {
        let name = format!("y{}", self.graph.outputs().len());
        self.graph.add_output(name, v);
    }
}

/// Adds to a graph what a rule is about.
fn pattern(net: &mut Net, rule: &str) {
    match rule.strip_suffix("-int").unwrap_or(rule) {
        "scale-after-product" => {
            let pad = net.below(2) as i64;
            let (y, axis) = net.weighted(None, pad);
            let y = net.affine(y, axis);
            net.output(y);
        }
        "scale-before-product" => before_product(net),
        "affine-maps-meet" => {
            let (m, n) = (net.extent(), net.extent());
            let x = net.input(&[m, n, 3]);
            let axis = net.below(3) as usize;
            let y = net.affine(x, axis);
            let axis = net.below(3) as usize;
            let y = net.affine(y, axis);
            net.output(y);
        }
        "reassociate-product" => chain(net),
        "factor-product" => factor(net),
        "distribute-product" => distribute(net),
        "transpose-product" => {
            let extents = ['b', 'i', 'j', 'k'].map(|c| (c, net.extent()));
            let (a, la) = net.operand("bik", &extents, false);
            let right = if net.rng.one_in(2) { "kj" } else { "bkj" };
            let (b, lb) = net.operand(right, &extents, false);
            let y = net.product((a, &la), (b, &lb), "bij");
            let perm = net.permutation(3);
            let y = net.transpose(y, &perm);
            net.output(y);
        }
        "sum-of-product" => {
            let extents = ['b', 'i', 'j', 'k'].map(|c| (c, net.extent()));
            let (a, la) = net.operand("bik", &extents, false);
            let (b, lb) = net.operand("kj", &extents, false);
            let y = net.product((a, &la), (b, &lb), "bij");
            let axes: &[usize] = [&[2][..], &[0], &[1], &[0, 1]][net.below(4) as usize];
            let y = net.sum(y, axes);
            net.output(y);
        }
        "sum-to-product" => {
            let [m, n, k] = [0; 3].map(|_| 2 + net.below(3));
            let right = if net.rng.one_in(2) { vec![n, k] } else { vec![1, n, k] };
            let (a, b) = (net.input(&[m, 1, k]), net.input(&right));
            let y = net.map(&[a, b], |x| &x[0] * &x[1]);
            let axes: &[usize] = [&[2][..], &[0], &[1], &[1, 2]][net.below(4) as usize];
            let y = net.sum(y, axes);
            net.output(y);
        }
        "merge-products" => {
            let (first, _) = net.weighted(None, 0);
            net.output(first);
            let x = net.graph.args(first.node)[0];
            for _ in 0..1 + net.below(2) {
                let (y, _) = net.weighted(Some(x), 0);
                net.output(y);
            }
        }
        "merge-maps" => merge_maps(net),
        "view-of-concat" => view_of_concat(net),
        "concat-of-slices" => {
            let (m, n) = (net.extent(), 6);
            let x = net.input(&[m, n]);
            let (start, cut, end) = (net.below(2), 2 + net.below(2), 5 + net.below(2));
            let parts = [net.slice(x, 1, start, cut - start), net.slice(x, 1, cut, end - cut)];
            let y = net.concat(&parts, 1);
            net.output(y);
        }
        "views-through-map" | "map-through-view" => views(net, rule.starts_with("views")),
        other => panic!("no pattern for {other}"),
    }
}

fn view_of_concat(net: &mut Net) {
    let (m, n, axis) = (net.extent(), net.extent(), net.below(2) as usize);
    let parts: Vec<Value> = (0..2 + net.below(2)).map(|_| net.input(&[m, n])).collect();
    let y = net.concat(&parts, axis);
    let extent = [m, n][axis];
    let part = net.below(parts.len() as u64);
    let take = 1 + net.below(extent);
    let start = part * extent + net.below(extent - take + 1);
    let y = net.slice(y, axis, start, take);
    let y = if net.rng.one_in(2) { net.transpose(y, &[1, 0]) } else { y };
    net.output(y);
}

fn before_product(net: &mut Net) {
    let pad = net.below(2) as i64;
    let x = match net.below(3) {
        0 => net.input(&[3, 4]),
        1 => net.input(&[2, 3, 4]),
        _ => net.input(&[1, 3, 4, 4]),
    };
    let channels = if net.dims(x).len() == 4 { 1 } else { net.dims(x).len() - 1 };
    // A scale along another axis than the one summed over must not be taken.
    let axis = if net.rng.one_in(5) { 0 } else { channels };
    let y = net.affine(x, axis);
    let (y, _) = net.weighted(Some(y), pad);
    net.output(y);
}

fn chain(net: &mut Net) {
    let extents = ['b', 'i', 'j', 'k', 'l'].map(|c| (c, net.extent()));
    let batch = net.rng.one_in(3);
    let with = |s: &str| if batch { format!("b{s}") } else { s.to_string() };
    let constants = net.below(4);
    let (a, la) = net.operand(&with("ij"), &extents, false);
    let (b, lb) = net.operand("jk", &extents, constants > 1);
    let (c, lc) = net.operand("kl", &extents, constants > 0);
    let y = if net.rng.one_in(2) {
        let inner = with("ik");
        let ab = net.product((a, &la), (b, &lb), &inner);
        net.product((ab, &inner), (c, &lc), &with("il"))
    } else {
        let bc = net.product((b, &lb), (c, &lc), "lj");
        if net.rng.one_in(2) {
            net.product((a, &la), (bc, "lj"), &with("il"))
        } else {
            net.product((bc, "lj"), (a, &la), &with("li"))
        }
    };
    net.output(y);
}

fn factor(net: &mut Net) {
    let extents = ['i', 'j', 'k'].map(|c| (c, net.extent()));
    let (a, la) = net.operand("ik", &extents, false);
    let (b, lb) = net.operand("kj", &extents, false);
    let other = net.dims(b);
    let d = if net.rng.one_in(2) { net.constant(&other) } else { net.input(&other) };
    let (p, q) = match net.rng.one_in(2) {
        true => (net.product((a, &la), (b, &lb), "ij"), net.product((a, &la), (d, &lb), "ij")),
        false => (net.product((b, &lb), (a, &la), "ji"), net.product((d, &lb), (a, &la), "ji")),
    };
    let y = net.sum_or_difference(p, q);
    net.output(y);
}

fn distribute(net: &mut Net) {
    let extents = ['i', 'j', 'k'].map(|c| (c, net.extent()));
    let (a, la) = net.operand("ik", &extents, false);
    let (b, lb) = net.operand("kj", &extents, false);
    let other = net.dims(b);
    let d = net.input(&other);
    let sum = net.sum_or_difference(b, d);
    let left = net.rng.one_in(2);
    let mut of =
        |v: Value| if left { net.product((a, &la), (v, &lb), "ij") } else { net.product((v, &lb), (a, &la), "ij") };
    let (known, y) = (of(b), of(sum));
    net.output(known);
    net.output(y);
}

fn merge_maps(net: &mut Net) {
    let (m, axis) = (net.extent(), net.below(2) as usize);
    let parts: Vec<u64> = (0..2 + net.below(2)).map(|_| 1 + net.below(4)).collect();
    let total: u64 = parts.iter().sum();
    let dims = if axis == 0 { [total, m] } else { [m, total] };
    let x = net.input(&dims);
    let (kind, shared) = (net.below(3), net.constant(&[]));
    let mut start = 0;
    for n in parts {
        let y = net.slice(x, axis, start, n);
        start += n;
        let shape = if axis == 0 { vec![n, 1] } else { vec![n] };
        let c = net.constant(&shape);
        let y = match kind {
            0 => net.map(&[y, c], |x| &x[0] + &x[1]),
            1 => net.map(&[c, y, shared], |x| &(&x[0] * &x[1]) - &x[2]),
            _ => net.map(&[y], |x| x[0].max(&x[0].lit(1.0))),
        };
        net.output(y);
    }
}

/// A function of views, or a view of a function, all of one shape or broadcast.
fn views(net: &mut Net, views_first: bool) {
    let dims: Vec<u64> = (0..3).map(|_| net.extent()).collect();
    let perm = net.permutation(3);
    let (kind, len) = (net.below(3), dims.iter().product::<u64>());
    let moved = |net: &mut Net, v: Value| match kind {
        0 => net.transpose(v, &perm),
        1 => net.reshape(v, &[len]),
        _ => net.slice(v, 1, dims[1] - 1, 1),
    };
    let (x, y) = (net.input(&dims), net.input(&dims));
    let body = |x: &[Ex]| &(&x[0] * &x[1]) - &x[2];
    let (constant, scalar) = (net.rng.one_in(2), net.constant(&[]));
    // A constant that follows only some views: the rule must see which.
    let out = if views_first {
        let (a, b) = (moved(net, x), moved(net, y));
        let shape = net.dims(a);
        let c = if constant { net.constant(&shape[shape.len() - 1..]) } else { scalar };
        net.map(&[a, b, c], body)
    } else {
        let c = if constant { net.constant(&[dims[1], 1]) } else { scalar };
        let z = net.map(&[x, y, c], body);
        moved(net, z)
    };
    net.output(out);
}

/// Random elements; `special`: some of them are NaN, infinite, zero of either sign, or extremes of their type.
fn tensor(rng: &mut Rng, ty: &DenseType, special: bool) -> TensorData {
    let dtype = ty.dtype;
    TensorData::from_fn(ty.clone(), |_| {
        let float = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e30];
        match (special && rng.one_in(4), dtype.is_float()) {
            (true, true) => Scalar::from_f64(dtype, *rng.pick(&float)),
            (true, false) => {
                let mask = if dtype.size() == 8 { u64::MAX } else { (1 << (8 * dtype.size())) - 1 };
                Scalar { dtype, bits: rng.next_u64() & mask }
            }
            _ => Scalar::from_f64(dtype, (rng.below(257) as f64 - 128.0) / if dtype.is_float() { 16.0 } else { 4.0 }),
        }
    })
}

/// Compares all results: bits if the rule is exact, else up to rounding in relation to the largest element.
fn compare(rule: &TensorRule, before: &Graph, after: &Graph, inputs: &[TensorData]) {
    let registry = registry();
    let a = eval_graph(before, &registry, inputs).unwrap();
    let b = eval_graph(after, &registry, inputs).unwrap();
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a.ty, b.ty, "{}", rule.name);
        let largest = a.iter().fold(1.0f64, |m, x| m.max(x.as_f64().abs()));
        let tolerance = if a.dtype() == DType::F32 { 1e-4 } else { 1e-11 } * largest;
        for (x, y) in a.iter().zip(b.iter()) {
            let same = x == y || x.is_nan() && y.is_nan();
            let close = rule.label != Label::Exact && (x.as_f64() - y.as_f64()).abs() <= tolerance;
            assert!(same || close, "{}: {x:?} became {y:?} in\n{before:?}\nand\n{after:?}", rule.name);
        }
    }
}

#[test]
fn every_rule_keeps_values_on_random_graphs() {
    let registry = registry();
    let mut total = 0;
    for rule in RULES {
        let types: &[DType] = match rule.domain {
            Domain::Float => &[DType::F32, DType::F64],
            Domain::Integer => &[DType::I8, DType::U8, DType::I32, DType::I64],
            Domain::Any => &[DType::F32, DType::F64, DType::I8, DType::I32, DType::U64],
        };
        let (mut graphs, mut cases) = (0, 0);
        for seed in 0..600 {
            let dtype = types[seed as usize % types.len()];
            let mut net = Net { graph: Graph::new("g"), rng: Rng::new(seed * 977 + 5), dtype };
            pattern(&mut net, rule.name);
            let graph = net.graph;
            let Some((after, places)) = apply_everywhere(&graph, rule, &PassCx::new(&registry)).unwrap() else {
                continue;
            };
            graphs += 1;
            tensorc_ir::verify::verify_graph(&after, tensorc_ir::verify::Stage::Primitive).unwrap();
            for case in 0..3 {
                let mut rng = Rng::new(seed * 31 + case);
                let special = rule.label == Label::Exact && case > 0;
                let of = |n: &tensorc_ir::graph::NodeId| graph.dense(Value { node: *n, port: 0 }).unwrap();
                let inputs: Vec<TensorData> =
                    graph.inputs().iter().map(|n| tensor(&mut rng, &of(n), special)).collect();
                compare(rule, &graph, &after, &inputs);
                cases += places;
            }
        }
        println!("{:8} {:24} {cases:6} cases in {graphs} graphs", rule.label.name(), rule.name);
        assert!(graphs >= 100, "{} applies to {graphs} graphs of 600", rule.name);
        total += cases;
    }
    println!("{} rules, {total} cases", RULES.len());
}
