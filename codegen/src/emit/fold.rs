//! What the row and column emitters share: the iteration space of a folding cluster and the
//! accumulators of its folds.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, MemorySpace as Memory, Operand};
use tensorc_ir::prim::{Contraction, Prim, Reduction};
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::{DType, Extent, Extents};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::access::space::IterationSpace;

use super::cluster::Cluster;
use super::inline::{Bound, Inliner};

/// Results of a cluster: position, value, extents and coordinates in the space of its folds.
pub type Results = Vec<(usize, Value, Extents, Vec<Index>)>;

/// The results with an element for each element of the space, then those with one for each kept position.
pub fn results(cluster: &Cluster<'_>, space: &IterationSpace) -> Result<(Results, Results)> {
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

    /// Whether results have the same bits in whatever order elements are folded.
    pub fn is_order_free(&self) -> bool {
        let Fold::Reduce(_, r) = self else { return false };
        let ([ScalarNode::Input(_), ScalarNode::Input(_), ScalarNode::Op(op, _)], [dtype, ..]) =
            (&r.combine.nodes[..], &r.combine.dtypes[..])
        else {
            return false;
        };
        match op {
            ScalarOp::Min | ScalarOp::Max | ScalarOp::And | ScalarOp::Or | ScalarOp::Xor => true,
            ScalarOp::Add | ScalarOp::Mul => !dtype.is_float(),
            _ => false,
        }
    }

    /// Whether an element may be folded more than once.
    pub fn is_idempotent(&self) -> bool {
        let Fold::Reduce(_, r) = self else { return false };
        let [.., ScalarNode::Op(op, _)] = &r.combine.nodes[..] else { return false };
        self.is_order_free() && matches!(op, ScalarOp::Min | ScalarOp::Max | ScalarOp::And | ScalarOp::Or)
    }

    /// Whether results have the same bits if neighbours are folded first, each run of them from initial accumulators on.
    pub fn is_regroupable(&self) -> bool {
        let Fold::Reduce(_, r) = self else { return false };
        let nodes = &r.combine.nodes;
        let node = |id: &ScalarId| &nodes[id.0 as usize];
        let (old, new) = (ScalarNode::Input(0), ScalarNode::Input(1));
        // The first of the greatest that are no NaN: one of these would only stay if it were the first of a run.
        let is_first_extreme = || {
            let [result] = &r.combine.outputs[..] else { return false };
            let ScalarNode::Op(ScalarOp::Select, args) = node(result) else { return false };
            let ScalarNode::Op(ScalarOp::Cmp(CmpOp::Gt | CmpOp::Lt), compared) = node(&args[0]) else { return false };
            let is_number = r.init.iter().all(|s| !s.as_f64().is_nan());
            is_number && compared[..] == args[1..] && *node(&args[1]) == new && *node(&args[2]) == old
        };
        self.is_idempotent() || is_first_extreme()
    }

    /// The fold of what [`Fold::accumulate`] has made of runs of elements; none if that is not one accumulator alone.
    pub fn of_runs(&self) -> Option<Fold> {
        let Fold::Reduce(node, r) = self else { return None };
        let [dtype] = self.accumulators()[..] else { return None };
        let map = ScalarFn::build(&[dtype], |_, a| a.to_vec()).ok()?;
        let fits = self.is_regroupable() && !r.map.uses_coord();
        fits.then(|| Fold::Reduce(*node, Arc::new(Reduction { map, ..(**r).clone() })))
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

    /// Allocates one register array of `len` elements per accumulator.
    pub fn alloc(&self, e: &mut Inliner<'_>, len: u64) -> Vec<Buf> {
        self.alloc_in(e, len, Memory::Register)
    }

    /// As [`Fold::alloc`], in some memory.
    pub fn alloc_in(&self, e: &mut Inliner<'_>, len: u64, space: Memory) -> Vec<Buf> {
        self.accumulators().into_iter().map(|dtype| e.alloc("acc", dtype, len, space)).collect()
    }

    pub fn store_init(&self, e: &mut Inliner<'_>, acc: &[Buf], at: &Index) {
        for (buf, value) in acc.iter().zip(self.init()) {
            e.b.store(*buf, at.clone(), Operand::Const(value));
        }
    }

    /// Folds the current element into the accumulators at `at`.
    pub fn accumulate(&self, e: &mut Inliner<'_>, space: &IterationSpace, acc: &[Buf], at: &Index) -> Result<()> {
        let old = Fold::load(e, acc, at);
        let new = self.joined(e, space, old)?;
        Fold::store(e, acc, at, new);
        Ok(())
    }

    /// The accumulators at `at`.
    pub fn load(e: &mut Inliner<'_>, acc: &[Buf], at: &Index) -> Vec<Operand> {
        acc.iter().map(|b| e.b.load(*b, at.clone())).collect()
    }

    /// Writes the accumulators at `at`.
    pub fn store(e: &mut Inliner<'_>, acc: &[Buf], at: &Index, values: Vec<Operand>) {
        acc.iter().zip(values).for_each(|(buf, value)| e.b.store(*buf, at.clone(), value));
    }

    /// What accumulators become with the current element.
    pub fn joined(&self, e: &mut Inliner<'_>, space: &IterationSpace, old: Vec<Operand>) -> Result<Vec<Operand>> {
        let args = e.cluster.body.args(self.node());
        Ok(match self {
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
        })
    }

    /// The accumulators of all elements of some groups of axes, of which `acc` holds them at `at` where these are loops.
    pub fn over(
        &self,
        e: &mut Inliner<'_>,
        space: &IterationSpace,
        groups: &[MergedAxes],
        (acc, at): (&[Buf], &Index),
    ) -> Result<Vec<Operand>> {
        if is_written_out(groups) {
            let mut values: Vec<Operand> = self.init().into_iter().map(Operand::Const).collect();
            each_written_out(e, groups, &mut |e| {
                values = self.joined(e, space, std::mem::take(&mut values))?;
                Ok(())
            })?;
            return Ok(values);
        }
        self.store_init(e, acc, at);
        looped_over(e, groups, &mut |e| self.accumulate(e, space, acc, at))?;
        Ok(Fold::load(e, acc, at))
    }

    /// Combines accumulators at `from` into those at `into`.
    pub fn combine(&self, e: &mut Inliner<'_>, acc: &[Buf], into: &Index, from_acc: &[Buf], from: &Index) {
        let others = Fold::load(e, from_acc, from);
        self.combine_values(e, acc, into, &others);
    }

    /// Copies the first accumulators.
    pub fn copy(&self, e: &mut Inliner<'_>, from: &[Buf], into: &[Buf]) {
        for (from, into) in from.iter().zip(into) {
            let value = e.b.load(*from, Index::default());
            e.b.store(*into, Index::default(), value);
        }
    }

    /// Combines values of accumulators into those at `into`.
    pub fn combine_values(&self, e: &mut Inliner<'_>, acc: &[Buf], into: &Index, b: &[Operand]) {
        let Fold::Reduce(_, r) = self else { return };
        let a = Fold::load(e, acc, into);
        let result = e.b.apply(&r.combine, &[&a[..], b].concat(), &[]);
        for (buf, value) in acc.iter().zip(result) {
            e.b.store(*buf, into.clone(), value);
        }
    }

    /// Binds the node's results, computed from the accumulators at `at`.
    pub fn finish(&self, e: &mut Inliner<'_>, acc: &[Buf], at: &Index) {
        let old = Fold::load(e, acc, at);
        self.finish_with(e, old);
    }

    /// As [`Fold::finish`], from the accumulators' values.
    pub fn finish_with(&self, e: &mut Inliner<'_>, old: Vec<Operand>) {
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

/// Elements that are folded one behind the other, without loops and accumulators: so many more are as fast in loops.
const MAX_WRITTEN_OUT: i64 = 16;

/// Whether the elements of some groups of axes are folded without loops.
pub fn is_written_out(groups: &[MergedAxes]) -> bool {
    advice(|| groups.iter().map(|g| g.extent).product::<Extent>().known().is_some_and(|n| n <= MAX_WRITTEN_OUT))
}

/// The body for each element of some groups of axes, whose extents are known.
fn each_written_out(
    e: &mut Inliner<'_>,
    groups: &[MergedAxes],
    body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let Some((g, rest)) = groups.split_first() else { return body(e) };
    (0..g.extent.fixed()).try_for_each(|i| e.fixed(g.axis, i, |e| each_written_out(e, rest, body)))
}

/// Loops over some groups of axes.
pub fn looped_over(
    e: &mut Inliner<'_>,
    groups: &[MergedAxes],
    body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let Some((g, rest)) = groups.split_first() else { return body(e) };
    let range = (Index::default(), Index::constant(g.extent), 1);
    e.looped("r", range, LoopKind::Serial, |e, i| {
        e.set_axis(g.axis, i);
        looped_over(e, rest, body)
    })
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
pub fn bind_folded(e: &mut Inliner<'_>, space: &IterationSpace, folds: &[Fold]) -> Result<()> {
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
