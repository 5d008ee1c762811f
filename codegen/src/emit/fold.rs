//! What the row and column emitters share: the iteration space of a folding cluster and the
//! accumulators of its folds.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Operand, Space as Memory};
use tensorc_ir::prim::{Contraction, Prim, Reduction};
use tensorc_ir::scalar::{Scalar, ScalarFn, ScalarOp};

use super::cluster::{Cluster, Group, Uses, group_axes, internal};
use super::inline::{Bound, Inliner};

/// The iteration space of a cluster: every element value has these axes, every folded value the
/// kept ones.
pub struct Space {
    pub dims: Vec<u64>,
    /// Axes that are folded, ascending.
    pub reduced: Vec<usize>,
}

/// What one iteration over the space of a folding cluster touches, and the axes that are walked as one.
pub struct Analysis {
    pub uses: Uses,
    pub kept: Vec<Group>,
    pub reduced: Vec<Group>,
}

impl Analysis {
    pub fn of(cluster: &Cluster<'_>, space: &Space) -> Result<Analysis> {
        let folds = Fold::all(cluster)?;
        let mut uses = Uses::default();
        let nodes: Vec<_> = folds.iter().map(Fold::node).collect();
        let stop = |v: Value| nodes.contains(&v.node);
        for f in &folds {
            f.collect(cluster, space, &mut uses, &stop)?;
        }
        for (i, v) in cluster.outputs().into_iter().enumerate() {
            let dims = cluster.ty(v)?.dims;
            let coords = space.coords_of(&dims)?;
            uses.collect(cluster, v, &coords, &space.dims, &stop)?;
            uses.store(v, cluster.output_address(i, &dims, &coords));
        }
        let groups = group_axes(&space.dims, &uses, &|a, b| space.is_reduced(a) == space.is_reduced(b));
        let (reduced, kept) = groups.into_iter().partition(|g| space.is_reduced(g.axis));
        Ok(Analysis { uses, kept, reduced })
    }
}

/// Results of a cluster: position, value, extents and coordinates in the space of its folds.
pub type Results = Vec<(usize, Value, Vec<u64>, Vec<Index>)>;

/// The results with an element for each element of the space, then those with one for each kept position.
pub fn results(cluster: &Cluster<'_>, space: &Space) -> Result<(Results, Results)> {
    let (mut full, mut single) = (vec![], vec![]);
    for (i, v) in cluster.outputs().into_iter().enumerate() {
        let dims = cluster.ty(v)?.dims;
        let coords = space.coords_of(&dims)?;
        let list = if space.is_full(&dims) { &mut full } else { &mut single };
        list.push((i, v, dims, coords));
    }
    Ok((full, single))
}

/// The folds of a cluster and what is computed from them.
pub fn fed_by_folds(cluster: &Cluster<'_>, folds: &[Fold]) -> BTreeSet<NodeId> {
    let mut fed = BTreeSet::new();
    for &n in &cluster.order {
        let is_fold = folds.iter().any(|f| f.node() == n);
        if is_fold || cluster.body.args(n).iter().any(|a| fed.contains(&a.node)) {
            fed.insert(n);
        }
    }
    fed
}

/// One node that folds elements into a value per kept position.
#[derive(Clone)]
pub enum Fold {
    Reduce(NodeId, Arc<Reduction>),
    Contract(NodeId, Arc<Contraction>, DType),
}

impl Space {
    pub fn of_reductions(cluster: &Cluster<'_>) -> Result<Space> {
        let first = cluster.order.iter().find_map(|n| cluster.reduction(*n).map(|r| (*n, r)));
        let (node, r) = first.ok_or_else(|| internal("a reduce cluster holds no reduction"))?;
        let dims = cluster.ty(cluster.body.args(node)[0])?.dims;
        Ok(Space { dims, reduced: r.axes.clone() })
    }

    pub fn of_contraction(cluster: &Cluster<'_>) -> Result<Space> {
        let found = cluster.order.iter().find_map(|n| match cluster.prim(*n) {
            Some(Prim::Contract(c)) => Some(c.clone()),
            _ => None,
        });
        let c = found.ok_or_else(|| internal("a contract cluster holds no contraction"))?;
        Ok(Space { dims: c.extents.clone(), reduced: (c.out_rank..c.extents.len()).collect() })
    }

    /// Elements that are folded into one.
    pub fn length(&self) -> u64 {
        self.reduced.iter().map(|a| self.dims[*a]).product()
    }

    pub fn is_reduced(&self, axis: usize) -> bool {
        self.reduced.contains(&axis)
    }

    /// The coordinates of an element.
    pub fn coords(&self) -> Vec<Index> {
        // As everywhere, an axis of extent 1 has no part in a position.
        let var = |a: usize| if self.dims[a] == 1 { Index::default() } else { Index::var(a as u32) };
        (0..self.dims.len()).map(var).collect()
    }

    /// Whether a value has one element per element of the space.
    pub fn is_full(&self, dims: &[u64]) -> bool {
        dims == self.dims && !self.reduced.iter().all(|a| self.dims[*a] == 1)
    }

    /// The coordinates of a value of this cluster with shape `dims` at the current position.
    pub fn coords_of(&self, dims: &[u64]) -> Result<Vec<Index>> {
        let var = |a: usize| Index::var(a as u32);
        if dims.len() == self.dims.len() {
            let fits = (0..dims.len()).all(|a| dims[a] == self.dims[a] || dims[a] == 1);
            if fits {
                return Ok((0..dims.len()).map(|a| if dims[a] == 1 { Index::default() } else { var(a) }).collect());
            }
        }
        // Drop reduced axes, and add or drop axes of extent 1, as the shape demands.
        let mut kept = (0..self.dims.len()).filter(|a| !self.is_reduced(*a) && self.dims[*a] != 1);
        let mut coords = vec![];
        for &n in dims {
            coords.push(match n {
                1 => Index::default(),
                _ => kept
                    .next()
                    .filter(|a| self.dims[*a] == n)
                    .map(var)
                    .ok_or_else(|| internal("a value of a fold cluster has a foreign shape"))?,
            });
        }
        Ok(coords)
    }
}

impl Fold {
    pub fn all(cluster: &Cluster<'_>) -> Result<Vec<Fold>> {
        let mut folds = vec![];
        for &n in &cluster.order {
            match cluster.prim(n) {
                Some(Prim::Contract(c)) => {
                    folds.push(Fold::Contract(n, c.clone(), cluster.ty(Value { node: n, port: 0 })?.dtype));
                }
                _ => folds.extend(cluster.reduction(n).map(|r| Fold::Reduce(n, r.clone()))),
            }
        }
        Ok(folds)
    }

    pub fn node(&self) -> NodeId {
        match self {
            Fold::Reduce(n, _) | Fold::Contract(n, ..) => *n,
        }
    }

    /// Initial accumulators.
    fn init(&self) -> Vec<Scalar> {
        match self {
            Fold::Reduce(_, r) => r.init.clone(),
            Fold::Contract(_, _, dtype) => vec![Scalar::zero(accumulator(*dtype))],
        }
    }

    /// Types of the accumulators.
    pub fn accumulators(&self) -> Vec<DType> {
        self.init().iter().map(|s| s.dtype).collect()
    }

    /// Adds what one element reads to `uses`.
    pub fn collect(
        &self,
        cluster: &Cluster<'_>,
        space: &Space,
        uses: &mut Uses,
        stop: &dyn Fn(Value) -> bool,
    ) -> Result<()> {
        let args = cluster.body.args(self.node());
        match self {
            Fold::Reduce(_, r) => {
                for node in &r.map.nodes {
                    if let tensorc_ir::scalar::ScalarNode::Coord(a) = node {
                        uses.exact.insert(*a);
                    }
                }
                args.iter().try_for_each(|a| uses.collect(cluster, *a, &space.coords(), &space.dims, stop))
            }
            Fold::Contract(_, c, _) => {
                for (index, n) in c.lhs.iter().zip(&cluster.ty(args[0])?.dims) {
                    let (lo, hi) = index.interval(&space.dims[..]);
                    if lo < 0 || hi >= *n as i64 {
                        uses.guards.push((index.clone(), *n));
                    }
                }
                uses.collect(cluster, args[0], &c.lhs, &space.dims, stop)?;
                uses.collect(cluster, args[1], &c.rhs, &space.dims, stop)
            }
        }
    }

    /// Allocates one register array of `len` elements per accumulator.
    pub fn alloc(&self, e: &mut Inliner<'_>, len: u64) -> Vec<Buf> {
        let init = self.init();
        init.into_iter().map(|s| e.alloc("acc", s.dtype, len, Memory::Register)).collect()
    }

    pub fn store_init(&self, e: &mut Inliner<'_>, acc: &[Buf], at: &Index) {
        for (buf, value) in acc.iter().zip(self.init()) {
            e.b.store(*buf, at.clone(), Operand::Const(value));
        }
    }

    /// Folds the current element into the accumulators at `at`.
    pub fn accumulate(&self, e: &mut Inliner<'_>, space: &Space, acc: &[Buf], at: &Index) -> Result<()> {
        let args = e.cluster.body.args(self.node());
        let old: Vec<Operand> = acc.iter().map(|b| e.b.load(*b, at.clone())).collect();
        let new = match self {
            Fold::Reduce(_, r) => {
                let coords = space.coords();
                let operands = args.iter().map(|a| e.value(*a, &coords, None)).collect::<Result<Vec<_>>>()?;
                let actual: Vec<Index> = coords.iter().map(|c| e.kernel_index(c)).collect();
                let terms = e.b.apply(&r.map, &operands, &actual);
                e.b.apply(&r.combine, &[old, terms].concat(), &[])
            }
            Fold::Contract(_, c, dtype) => {
                let guard = e.guard(&c.lhs, &e.cluster.ty(args[0])?.dims, None);
                let a = e.value(args[0], &c.lhs, guard)?;
                let b = e.value(args[1], &c.rhs, None)?;
                let wide = accumulator(*dtype);
                let mut cast = |x: Operand| if e.b.dtype(x) == wide { x } else { e.b.op(ScalarOp::Cast(wide), &[x]) };
                let (a, b) = (cast(a), cast(b));
                vec![match wide.is_float() {
                    true => e.b.op(ScalarOp::Fma, &[a, b, old[0]]),
                    false => {
                        let product = e.b.op(ScalarOp::Mul, &[a, b]);
                        e.b.op(ScalarOp::Add, &[product, old[0]])
                    }
                }]
            }
        };
        for (buf, value) in acc.iter().zip(new) {
            e.b.store(*buf, at.clone(), value);
        }
        Ok(())
    }

    /// Combines accumulators at `from` into those at `into`.
    pub fn combine(&self, e: &mut Inliner<'_>, acc: &[Buf], into: &Index, from_acc: &[Buf], from: &Index) {
        let others = from_acc.iter().map(|b| e.b.load(*b, from.clone())).collect::<Vec<_>>();
        self.combine_values(e, acc, into, &others);
    }

    /// Combines values of accumulators into those at `into`.
    pub fn combine_values(&self, e: &mut Inliner<'_>, acc: &[Buf], into: &Index, b: &[Operand]) {
        let Fold::Reduce(_, r) = self else { return };
        let a = acc.iter().map(|b| e.b.load(*b, into.clone())).collect::<Vec<_>>();
        let result = e.b.apply(&r.combine, &[&a[..], b].concat(), &[]);
        for (buf, value) in acc.iter().zip(result) {
            e.b.store(*buf, into.clone(), value);
        }
    }

    /// Binds the node's results, computed from the accumulators at `at`.
    pub fn finish(&self, e: &mut Inliner<'_>, acc: &[Buf], at: &Index) {
        let old: Vec<Operand> = acc.iter().map(|b| e.b.load(*b, at.clone())).collect();
        let results = match self {
            Fold::Reduce(_, r) => e.b.apply(&r.finish, &old, &[]),
            Fold::Contract(_, _, dtype) if accumulator(*dtype) != *dtype => {
                vec![e.b.op(ScalarOp::Cast(*dtype), &old)]
            }
            Fold::Contract(..) => old,
        };
        for (port, value) in results.into_iter().enumerate() {
            e.bind(Value { node: self.node(), port: port as u16 }, Bound::Operand(value));
        }
    }
}

/// The type sums of products are kept in.
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        d => d,
    }
}

/// Level of every fold: how many folds in a row it depends on. Folds of one level share a pass.
pub fn levels(cluster: &Cluster<'_>, folds: &[Fold]) -> Vec<Vec<Fold>> {
    let mut level = std::collections::BTreeMap::new();
    let mut out: Vec<Vec<Fold>> = vec![];
    for &n in &cluster.order {
        let below = cluster.body.args(n).iter().map(|v| *level.get(&v.node).unwrap_or(&0)).max().unwrap_or(0);
        let fold = folds.iter().find(|f| f.node() == n);
        level.insert(n, below + usize::from(fold.is_some()));
        if let Some(f) = fold {
            out.resize_with(out.len().max(below + 1), Vec::new);
            out[below].push(f.clone());
        }
    }
    out
}

/// Binds every per-position value that has become computable, so that element loops do not repeat
/// it.
pub fn bind_folded(e: &mut Inliner<'_>, space: &Space, folds: &[Fold]) -> Result<()> {
    let cluster = e.cluster;
    let mut from_fold: BTreeSet<NodeId> = BTreeSet::new();
    for &n in &cluster.order {
        let args = cluster.body.args(n);
        if folds.iter().any(|f| f.node() == n) {
            from_fold.insert(n);
            continue;
        }
        let (Some(_), true) = (cluster.prim(n), args.iter().any(|a| from_fold.contains(&a.node))) else { continue };
        from_fold.insert(n);
        for port in 0..cluster.body.node(n).types.len() as u16 {
            let v = Value { node: n, port };
            let dims = cluster.ty(v)?.dims;
            let ready = args.iter().all(|a| e.is_bound(*a) || !from_fold.contains(&a.node));
            if !space.is_full(&dims) && ready && !e.is_bound(v) {
                let value = e.value(v, &space.coords_of(&dims)?, None)?;
                e.bind(v, Bound::Operand(value));
            }
        }
    }
    Ok(())
}

/// A function's cost in scalar operations.
pub fn cost(f: &ScalarFn) -> usize {
    f.nodes.iter().filter(|n| matches!(n, tensorc_ir::scalar::ScalarNode::Op(..))).count()
}

/// Inputs with the layout of a full-shape output that are read nowhere else than at the element
/// written: the two may share memory.
pub fn in_place(cluster: &Cluster<'_>, space: &Space, uses: &Uses) -> Result<Vec<(usize, usize)>> {
    let flat = tensorc_ir::index::linearize(&space.coords(), &space.dims);
    let mut pairs = vec![];
    for (o, out) in cluster.outputs().into_iter().enumerate() {
        let ty = cluster.ty(out)?;
        if cluster.output_runs(o).is_some() {
            continue;
        }
        for (i, &node) in cluster.body.inputs().iter().enumerate() {
            let input = Value { node, port: 0 };
            let same = uses.flats.iter().filter(|(v, _)| *v == input).all(|(_, f)| *f == flat);
            if same && space.is_full(&ty.dims) && cluster.ty(input)?.bytes() == ty.bytes() {
                pairs.push((i, o));
            }
        }
    }
    Ok(pairs)
}
