//! Writing the computation of cluster values as KIR statements, one element at a time.

use std::collections::BTreeMap;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::{Axes, found};
use tensorc_ir::graph::{NodeId, NodeKind, Value};
use tensorc_ir::index::{Index, linearize, unbounded};
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, LoopRange, MemorySpace, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};
use tensorc_ir::{DType, Extent, Extents};
use tensorc_schedule::access::{ClusterAccesses, broadcast_coords};
use tensorc_schedule::layout::span;

use super::cluster::Cluster;
use super::math::internal;

/// A value that need not be computed at its use.
#[derive(Clone)]
pub enum Bound {
    /// The same for every element of the enclosing iteration.
    Operand(Operand),
    /// Element `base + linearize(coords[axes])` of a buffer.
    Row { buf: Buf, base: Index, axes: Vec<usize>, dims: Extents },
}

type ValueKey = (Value, Vec<Index>, Option<Operand>);

/// What has been written in a scope.
#[derive(Default)]
struct Scope {
    values: BTreeMap<ValueKey, Operand>,
    /// Valid positions of axes with so many elements, by the operands that they come from.
    positions: BTreeMap<(Operand, Extent), Index>,
}

/// Emits values of a cluster by substituting coordinates from consumer to producer.
///
/// Coordinates are indices in *axis variables* that count the iteration space; `actual` says what
/// each stands for in the kernel. Keeping the two apart lets index simplification use the axes'
/// extents, and lets an axis stand for a merged group (see [`super::cluster::group_axes`]).
pub struct Inliner<'a> {
    pub cluster: &'a Cluster<'a>,
    pub b: KernelBuilder,
    inputs: BTreeMap<NodeId, Buf>,
    outputs: Vec<Buf>,
    ranges: Vec<(Extent, Extent)>,
    actual: Vec<Index>,
    bound: BTreeMap<Value, Bound>,
    cache: Vec<Scope>,
}

impl<'a> Inliner<'a> {
    /// A kernel whose parameters are the cluster's inputs, then its outputs.
    pub fn new(cluster: &'a Cluster<'a>, name: &str, space: &Extents) -> Result<Inliner<'a>> {
        let result = |(i, v)| {
            let ty = cluster.ty(v)?;
            Ok((ty.dtype, span(ty.dims.count(), cluster.output_runs(i))))
        };
        let results = cluster.outputs().into_iter().enumerate().map(result).collect::<Result<Vec<_>>>()?;
        Inliner::with_results(cluster, name, space, &results)
    }

    /// A kernel of a cluster's inputs with other results than the cluster's, of the given types and lengths.
    pub fn with_results(
        cluster: &'a Cluster<'a>,
        name: &str,
        space: &Extents,
        results: &[(DType, Extent)],
    ) -> Result<Inliner<'a>> {
        let mut e = Inliner { b: KernelBuilder::new(name), ..Inliner::empty(cluster, space) };
        for &node in cluster.body.inputs() {
            let ty = cluster.ty(Value { node, port: 0 })?;
            let len = span(ty.dims.count(), cluster.input_runs(node));
            e.inputs.insert(node, e.b.param(format!("in{}", e.inputs.len()), ty.dtype, len, false));
        }
        for (dtype, len) in results {
            e.outputs.push(e.b.param(format!("out{}", e.outputs.len()), *dtype, *len, true));
        }
        Ok(e)
    }

    /// A kernel of blocks: parameters are a block that is only read, if there is one, memory that is read and written, each of
    /// so many elements of a type, then the given inputs.
    pub fn on_blocks(
        cluster: &'a Cluster<'a>,
        (name, space): (&str, &Extents),
        block: Option<(DType, Extent)>,
        (dtype, len): (DType, Extent),
        inputs: &[usize],
    ) -> Result<Inliner<'a>> {
        let mut e = Inliner { b: KernelBuilder::new(name), ..Inliner::empty(cluster, space) };
        if let Some((dtype, len)) = block {
            e.outputs.push(e.b.param("sums", dtype, len, false));
        }
        e.outputs.push(e.b.param("out", dtype, len, true));
        for &i in inputs {
            let node = cluster.body.inputs()[i];
            let ty = cluster.ty(Value { node, port: 0 })?;
            let len = span(ty.dims.count(), cluster.input_runs(node));
            e.inputs.insert(node, e.b.param(format!("in{i}"), ty.dtype, len, false));
        }
        Ok(e)
    }

    fn empty(cluster: &'a Cluster<'a>, space: &Extents) -> Inliner<'a> {
        Inliner {
            cluster,
            b: KernelBuilder::new(""),
            inputs: BTreeMap::new(),
            outputs: vec![],
            ranges: space.all().map(counted).collect(),
            actual: vec![Index::default(); space.len()],
            bound: BTreeMap::new(),
            cache: vec![Scope::default()],
        }
    }

    pub fn finish(self) -> Kernel {
        self.b.finish()
    }

    /// The buffer of an input.
    pub fn input(&self, node: NodeId) -> Result<Buf> {
        self.inputs.get(&node).copied().ok_or_else(|| internal("an input has no buffer"))
    }

    pub fn output(&self, i: usize) -> Buf {
        self.outputs[i]
    }

    /// Says what an axis stands for in the kernel.
    pub fn set_axis(&mut self, axis: usize, actual: Index) {
        self.actual[axis] = actual;
    }

    /// What an axis stands for in the kernel.
    pub fn axis(&self, axis: usize) -> Index {
        self.actual[axis].clone()
    }

    /// A further axis, which stands for `actual`; its variable.
    pub fn add_axis(&mut self, actual: Index, extent: impl Into<Extent>) -> usize {
        self.actual.push(actual);
        self.ranges.push(counted(extent.into()));
        self.actual.len() - 1
    }

    /// Narrows the interval of an axis; returns the former one.
    pub fn set_range(&mut self, axis: usize, range: (Extent, Extent)) -> (Extent, Extent) {
        std::mem::replace(&mut self.ranges[axis], range)
    }

    pub fn bind(&mut self, v: Value, bound: Bound) {
        self.bound.insert(v, bound);
    }

    pub fn is_bound(&self, v: Value) -> bool {
        self.bound.contains_key(&v)
    }

    /// An index in axis variables as an index in kernel variables.
    pub fn kernel_index(&self, index: &Index) -> Index {
        index.substitute(&|v| self.actual[v as usize].clone(), &unbounded).recombine(&unbounded)
    }

    /// Opens a scope in which emitted values may be reused, inside a loop.
    pub fn looped(
        &mut self,
        name: &str,
        range: LoopRange,
        kind: LoopKind,
        body: impl FnOnce(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        let i = self.b.open_for(name, range, kind);
        self.scoped(|e| body(e, i))?;
        self.b.close_for();
        Ok(())
    }

    /// The body where `cond` holds, with a scope of its own.
    pub fn when(&mut self, cond: Operand, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.b.open_block();
        self.scoped(body)?;
        self.b.close_if(cond);
        Ok(())
    }

    /// The body where an axis stands for one number.
    pub fn fixed(&mut self, axis: usize, at: i64, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.at(axis, Index::constant(at), body)
    }

    /// The body where an axis stands for an index.
    pub fn at(&mut self, axis: usize, at: Index, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.set_axis(axis, at);
        self.scoped(body)
    }

    /// The body, whose values are not used behind it.
    fn scoped(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.cache.push(Scope::default());
        let bound = self.bound.clone();
        body(self)?;
        self.bound = bound;
        self.cache.pop();
        Ok(())
    }

    /// Walks `axis` over `lo..hi` in vectors of `lanes` up to `whole_end`, then element by element.
    pub fn vectorized(
        &mut self,
        axis: usize,
        range: (Index, Index),
        whole_end: Index,
        lanes: u64,
        body: &mut dyn FnMut(&mut Self, LaneOf) -> Result<()>,
    ) -> Result<()> {
        self.lanes(range, whole_end, lanes, &mut |e, i, lane| {
            e.set_axis(axis, i);
            body(e, lane)
        })
    }

    /// Walks `axis` over `lo..hi` in vectors of `lanes`. What is left over is done with the last whole vector, whose
    /// other elements are then computed twice, if they may be done `again`; else element by element.
    pub fn covered(
        &mut self,
        axis: usize,
        (lo, hi): (Extent, Extent),
        lanes: u64,
        again: bool,
        body: &mut dyn FnMut(&mut Self, LaneOf) -> Result<()>,
    ) -> Result<()> {
        let whole = lo + (hi - lo) / lanes * lanes;
        let (at, vectors) = (|n: Extent| Index::constant(n), lanes > 1 && lo.is_surely_below(whole));
        if !(again && vectors && whole.is_surely_below(hi)) {
            return self.vectorized(axis, (at(lo), at(hi)), at(whole), lanes, body);
        }
        self.vectorized(axis, (at(lo), at(whole)), at(whole), lanes, body)?;
        self.looped("l", (Index::default(), Index::constant(lanes), 1), LoopKind::Vector, |e, l| {
            e.set_axis(axis, l.offset(hi - lanes));
            body(e, LaneOf::Vector(l))
        })
    }

    /// The body for the part of a range that lies in each piece of an axis, or for all of it if there are none.
    pub fn each_piece(
        &mut self,
        axis: usize,
        (lo, hi): (&Index, &Index),
        pieces: &[(i64, i64)],
        body: &mut dyn FnMut(&mut Self, Index, Index) -> Result<()>,
    ) -> Result<()> {
        if pieces.is_empty() {
            return body(self, lo.clone(), hi.clone());
        }
        for &(from, to) in pieces {
            let full = self.set_range(axis, (from.into(), (to - 1).into()));
            let inside = |end: i64, limit: &Index, low: bool| match limit.as_constant() {
                Some(limit) => Index::constant(if low { end.max(limit) } else { end.min(limit) }),
                None if low => limit.maximum(&Index::constant(end), &unbounded),
                None => limit.minimum(&Index::constant(end), &unbounded),
            };
            body(self, inside(from, lo, true), inside(to, hi, false))?;
            self.set_range(axis, full);
        }
        Ok(())
    }

    /// As [`Inliner::vectorized`] for a counter that is not one axis.
    pub fn columns(
        &mut self,
        range: (Index, Index),
        whole_end: Index,
        lanes: u64,
        body: &mut dyn FnMut(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        self.lanes(range, whole_end, lanes, &mut |e, i, _| body(e, i))
    }

    fn lanes(
        &mut self,
        (lo, hi): (Index, Index),
        whole_end: Index,
        lanes: u64,
        body: &mut dyn FnMut(&mut Self, Index, LaneOf) -> Result<()>,
    ) -> Result<()> {
        let empty = |lo: &Index, hi: &Index| hi.sub(lo).as_constant().is_some_and(|n| n <= 0);
        let mut tail = lo.clone();
        if lanes > 1 && !empty(&lo, &whole_end) {
            tail = lo.maximum(&whole_end, &unbounded);
            let step = lanes as i64;
            if whole_end.sub(&lo).as_constant() == Some(step) && self.cluster.on_blocks {
                self.looped("l", (Index::default(), Index::constant(step), 1), LoopKind::Vector, |e, l| {
                    body(e, lo.add(&l), LaneOf::Vector(l))
                })?;
            } else {
                self.looped("i", (lo, whole_end, step), LoopKind::Serial, |e, i| {
                    e.looped("l", (Index::default(), Index::constant(step), 1), LoopKind::Vector, |e, l| {
                        body(e, i.add(&l), LaneOf::Vector(l))
                    })
                })?;
            }
        }
        if !empty(&tail, &hi) {
            self.looped("i", (tail, hi, 1), LoopKind::Serial, |e, i| body(e, i, LaneOf::Scalar))?;
        }
        Ok(())
    }

    /// Computes ahead, in the current scope, what the listed sites need and the given axes do not
    /// influence.
    pub fn hoist(&mut self, uses: &ClusterAccesses, inner: &[usize]) -> Result<()> {
        self.hoist_if(uses, inner, &|_| true)
    }

    /// As [`Inliner::hoist`], of the values that qualify.
    pub fn hoist_if(
        &mut self,
        uses: &ClusterAccesses,
        inner: &[usize],
        qualifies: &dyn Fn(Value) -> bool,
    ) -> Result<()> {
        for (v, coords) in &uses.sites {
            let invariant = !coords.iter().any(|c| inner.iter().any(|a| c.mentions(*a as u32)));
            if invariant && qualifies(*v) {
                let value = self.value(*v, coords, None)?;
                self.positions_of(*v, value)?;
            }
        }
        Ok(())
    }

    /// Computes the positions that gathers make of a value.
    fn positions_of(&mut self, v: Value, value: Operand) -> Result<()> {
        let cluster = self.cluster;
        for (user, ..) in cluster.body.uses(v.node) {
            let args = cluster.body.args(user);
            if let Some(Prim::Gather(g)) = cluster.prim(user)
                && args[1] == v
            {
                let n = cluster.ty(args[0])?.dims.at(g.axis);
                self.clamped(value, n);
            }
        }
        Ok(())
    }

    pub fn store(&mut self, output: usize, dims: &Extents, coords: &[Index], value: Operand) {
        let index = self.kernel_index(&self.cluster.output_address(output, dims, coords));
        self.b.store(self.outputs[output], index, value);
    }

    /// Stores several outputs at their coordinates. Every value is computed before the first is
    /// stored, since an output may lie where an input does.
    pub fn store_values(&mut self, outputs: &[(usize, Value, Extents, Vec<Index>)]) -> Result<()> {
        let values = outputs.iter().map(|(_, v, _, coords)| self.value(*v, coords, None));
        let values = values.collect::<Result<Vec<Operand>>>()?;
        for ((output, _, dims, coords), value) in outputs.iter().zip(values) {
            self.store(*output, dims, coords, value);
        }
        Ok(())
    }

    /// The value of `v` at `coords`; where `guard` does not hold, memory is not read and the result
    /// is meaningless.
    pub fn value(&mut self, v: Value, coords: &[Index], guard: Option<Operand>) -> Result<Operand> {
        match self.bound.get(&v) {
            Some(Bound::Operand(o)) => return Ok(*o),
            Some(Bound::Row { buf, base, axes, dims }) => {
                let at: Vec<Index> = axes.iter().map(|a| coords[*a].clone()).collect();
                let (buf, index) = (*buf, self.kernel_index(&base.add(&linearize(&at, dims))));
                return self.cached((v, coords.to_vec(), None), |e| Ok(e.b.load(buf, index)));
            }
            None => {}
        }
        if let NodeKind::Const(data) = &self.cluster.body.node(v.node).kind {
            let several = || internal("a cluster holds a constant of several elements");
            if data.is_open() {
                let [only] = data.extents()[..] else { return Err(several()) };
                let value = self.b.index_value(Index::constant(only));
                return Ok(match data.dtype() {
                    DType::I64 => value,
                    dtype => self.b.op(ScalarOp::Cast(dtype), &[value]),
                });
            }
            return Ok(Operand::Const(data.item().ok_or_else(several)?));
        }
        self.cached((v, coords.to_vec(), guard), |e| e.compute(v, coords, guard))
    }

    fn cached(&mut self, key: ValueKey, compute: impl FnOnce(&mut Self) -> Result<Operand>) -> Result<Operand> {
        if let Some(found) = self.cache.iter().rev().find_map(|scope| scope.values.get(&key)) {
            return Ok(*found);
        }
        let value = compute(self)?;
        if let Some(scope) = self.cache.last_mut() {
            scope.values.insert(key, value);
        }
        Ok(value)
    }

    fn compute(&mut self, v: Value, coords: &[Index], guard: Option<Operand>) -> Result<Operand> {
        let cluster = self.cluster;
        let args = cluster.body.args(v.node);
        match &cluster.body.node(v.node).kind {
            NodeKind::Input => {
                let ty = cluster.ty(v)?;
                let buf = self.input(v.node)?;
                let index = self.kernel_index(&cluster.input_address(v, coords)?);
                Ok(self.b.load_guarded(buf, index, guard.map(|g| (g, Scalar::zero(ty.dtype)))))
            }
            NodeKind::Prim(Prim::Map(_)) => {
                let f = cluster.function(v.node)?;
                let mut operands = Vec::with_capacity(args.len());
                for arg in args {
                    let at = broadcast_coords(&cluster.ty(arg)?.dims, &cluster.ty(v)?.dims, coords);
                    operands.push(self.value(arg, &at, guard)?);
                }
                let actual: Vec<Index> = match f.uses_coord() {
                    true => coords.iter().map(|c| self.kernel_index(c)).collect(),
                    false => vec![],
                };
                let results = self.b.apply(&f, &operands, &actual);
                Ok(results[v.port as usize])
            }
            NodeKind::Prim(Prim::View(view)) => {
                let ranges = self.ranges.clone();
                let range = move |a: u32| ranges[a as usize];
                let at: Vec<Index> =
                    view.map.iter().map(|m| m.substitute(&|d| coords[d as usize].clone(), &range)).collect();
                let dims = cluster.ty(args[0])?.dims;
                let Some(fill) = view.fill else { return self.value(args[0], &at, guard) };
                let ranges = self.ranges.clone();
                let leaves = |(index, n): (&Index, Extent)| {
                    let (lo, hi) = index.interval(&|a: u32| ranges[a as usize]);
                    hi.known().is_some_and(|hi| hi < 0) || lo.known().zip(n.known()).is_some_and(|(lo, n)| lo >= n)
                };
                if at.iter().zip(cluster.ty(args[0])?.dims.all()).any(leaves) {
                    return Ok(Operand::Const(fill));
                }
                let inner = self.guard(&at, &dims, guard);
                let value = self.value(args[0], &at, inner)?;
                match inner {
                    Some(cond) if inner != guard => {
                        Ok(self.b.op(ScalarOp::Select, &[cond, value, Operand::Const(fill)]))
                    }
                    _ => Ok(value),
                }
            }
            NodeKind::Prim(Prim::Gather(g)) => {
                let data = cluster.ty(args[0])?;
                let rank = cluster.ty(args[1])?.rank();
                let position = self.value(args[1], &coords[g.axis..g.axis + rank], guard)?;
                let row = self.clamped(position, data.dims.at(g.axis));
                let axis = self.add_axis(row, data.dims.at(g.axis));
                let mut at = coords[..g.axis].to_vec();
                at.push(Index::var(axis as u32));
                at.extend_from_slice(&coords[g.axis + rank..]);
                self.value(args[0], &at, guard)
            }
            _ => Err(internal("a cluster holds a node its emitter does not know").at(&cluster.body.node(v.node).name)),
        }
    }

    /// The condition under which coordinates lie in their operand, on top of `outer`; only what the
    /// axes' intervals do not prove is tested.
    pub fn guard(&mut self, at: &[Index], dims: &Extents, outer: Option<Operand>) -> Option<Operand> {
        let ranges = self.ranges.clone();
        let mut guard = outer;
        for (index, n) in at.iter().zip(dims.all()) {
            let (lo, hi) = index.interval(&|a: u32| ranges[a as usize]);
            if !found(|| lo >= 0 && hi < n) {
                let actual = self.kernel_index(index);
                let inside = self.b.in_range(&actual, 0, n);
                guard = Some(match guard {
                    Some(g) => self.b.op(ScalarOp::And, &[g, inside]),
                    None => inside,
                });
            }
        }
        guard
    }

    /// An index value as a valid position of an axis: negative counts from the end, then clamped.
    fn clamped(&mut self, position: Operand, extent: Extent) -> Index {
        let key = (position, extent);
        if let Some(known) = self.cache.iter().rev().find_map(|scope| scope.positions.get(&key)) {
            return known.clone();
        }
        if let Some(byte) = self.byte_position(position, extent) {
            return byte;
        }
        let [n, last] = [extent, (extent - 1).greatest(0)].map(|n| self.b.index_value(Index::constant(n)));
        let zero = Operand::Const(Scalar::i64(0));
        let p = match self.b.dtype(position) {
            DType::I64 => position,
            _ => self.b.op(ScalarOp::Cast(DType::I64), &[position]),
        };
        let negative = self.b.op(ScalarOp::Cmp(CmpOp::Lt), &[p, zero]);
        let wrapped = self.b.op(ScalarOp::Add, &[p, n]);
        let p = self.b.op(ScalarOp::Select, &[negative, wrapped, p]);
        let p = self.b.op(ScalarOp::Max, &[p, zero]);
        let p = self.b.op(ScalarOp::Min, &[p, last]);
        let index = self.b.as_index(p);
        if let Some(scope) = self.cache.last_mut() {
            scope.positions.insert(key, index.clone());
        }
        index
    }

    /// The position that a byte means of as many elements as there are bytes: its bits.
    fn byte_position(&mut self, position: Operand, extent: Extent) -> Option<Index> {
        let bytes = matches!(self.b.dtype(position), DType::U8 | DType::I8);
        if !bytes || extent.known() != Some(1 << u8::BITS) {
            return None;
        }
        let unsigned = self.b.op(ScalarOp::Bitcast(DType::U8), &[position]);
        let wide = self.b.op(ScalarOp::Cast(DType::I64), &[unsigned]);
        Some(self.b.as_index(wide))
    }

    /// A thread-private buffer in the current scope.
    pub fn alloc(&mut self, name: &str, dtype: DType, len: impl Into<Extent>, space: MemorySpace) -> Buf {
        self.b.alloc(name, dtype, len, space)
    }
}

/// The interval of a variable that counts so many.
fn counted(extent: Extent) -> (Extent, Extent) {
    (Extent::ZERO, extent.last_position())
}

/// Which lane an element of a vectorised loop is.
#[derive(Clone)]
pub enum LaneOf {
    /// The variable of the enclosing vector loop.
    Vector(Index),
    Scalar,
}
