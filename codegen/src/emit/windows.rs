//! Windows that reach over the border of an image. A task copies the part of the image that its windows cover into memory of
//! its own, the border filled in: the folds then read whole vectors without a test, and what feeds them is computed once
//! for each pixel, rather than once for each window that has it.

use tensorc_ir::Extents;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, MemorySpace as Memory, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::access::space::{Analysis, IterationSpace};

use super::cluster::Cluster;
use super::fold::Fold;
use super::inline::{Bound, Inliner};

/// Most elements of a copy: half of a first-level cache of 48 KiB.
const MAX_COPY_ELEMENTS: u64 = 6144;

/// An axis of the image along which windows move.
struct WindowAxis {
    /// The axis of the iteration space that counts windows, how many there are, and the distance between them.
    windows: usize,
    count: u64,
    step: u64,
    /// The axis of the image, and its extent.
    axis: usize,
    size: u64,
    /// The first coordinate that a window reads, which may lie before the image.
    first: i64,
    /// Coordinates from the first to the last that a window reads.
    reach: u64,
}

/// The one operand of a cluster's folds that is read through windows, and how it is copied.
pub struct Windows {
    /// The windows, at the coordinates of the iteration space.
    view: Value,
    /// What they are windows of, and where an element of the space reads it.
    image: Value,
    at: Vec<Index>,
    fill: Scalar,
    /// Outermost first, as the kept axes.
    sides: Vec<WindowAxis>,
    /// Positions along the first side for which a task computes.
    band: u64,
}

impl Windows {
    /// The windows of a cluster's folds, if they reach over a border and the copy for a task is small.
    pub fn of(
        cluster: &Cluster<'_>,
        space: &IterationSpace,
        plan: &Analysis,
        folds: &[Fold],
    ) -> Result<Option<Windows>> {
        let Some((view, fill)) = only_guarded_view(cluster, plan, folds) else { return Ok(None) };
        let NodeKind::Prim(Prim::View(map)) = &cluster.body.node(view.node).kind else { return Ok(None) };
        if cluster.ty(view)?.dims != space.dims {
            return Ok(None);
        }
        let coords = space.coords();
        let at: Vec<Index> =
            map.map.iter().map(|m| m.substitute(&|d| coords[d as usize].clone(), &space.dims)).collect();
        let image = cluster.body.args(view.node)[0];
        // A copy lies in memory whose size is known.
        let size = cluster.ty(image)?.dims;
        if space.dims.is_open() || size.is_open() {
            return Ok(None);
        }
        let Some(sides) = sides(space, &at, &size) else { return Ok(None) };
        // A group that has other axes, too, as where rows of windows lie side by side through all images, counts more.
        let walked: Vec<(usize, u64)> = sides.iter().map(|s| (s.windows, s.count)).collect();
        let inner = &plan.kept[plan.kept.len().saturating_sub(sides.len())..];
        let innermost: Vec<(usize, u64)> = inner.iter().map(|g| (g.axis, g.extent.fixed() as u64)).collect();
        let Some(band) = band(&sides).filter(|_| walked == innermost) else { return Ok(None) };
        Ok(Some(Windows { view, image, at, fill, sides, band }))
    }

    /// The groups of kept axes that are not walked by windows.
    pub fn outer<'g>(&self, kept: &'g [MergedAxes]) -> &'g [MergedAxes] {
        &kept[..kept.len() - self.sides.len()]
    }

    /// Tasks for each position of the outer axes.
    pub fn bands(&self) -> u64 {
        self.sides[0].count.div_ceil(self.band)
    }

    /// Copies what the windows of a band read, and binds them; then `body` for every row of positions along the
    /// last side.
    pub fn walk(
        &self,
        e: &mut Inliner<'_>,
        band: &Index,
        body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
    ) -> Result<()> {
        let start = band.scale(self.band as i64);
        let begin = e.add_axis(start.clone(), self.sides[0].count);
        let extents = self.extents();
        let dtype = e.cluster.ty(self.image)?.dtype;
        let copy = e.alloc("image", dtype, extents.iter().product::<u64>(), Memory::Stack);
        let origin: Vec<Index> = self.sides.iter().enumerate().map(|(i, side)| self.origin(i, side, begin)).collect();
        self.copy(e, copy, &extents, &origin)?;
        let coords = self.sides.iter().zip(&origin).map(|(side, origin)| self.at[side.axis].sub(origin));
        let base = tensorc_ir::index::linearize(&coords.collect::<Vec<_>>(), &extents);
        e.bind(self.view, Bound::Row { buf: copy, base, axes: vec![], dims: Extents::default() });
        self.rows(e, 0, &start, body)
    }

    /// Extents of the copy.
    fn extents(&self) -> Vec<u64> {
        let first = &self.sides[0];
        let band = first.reach - (first.count - self.band) * first.step;
        std::iter::once(band).chain(self.sides[1..].iter().map(|s| s.reach)).collect()
    }

    /// The coordinate of the image where the copy begins.
    fn origin(&self, i: usize, side: &WindowAxis, begin: usize) -> Index {
        match i {
            0 => Index::var(begin as u32).scale(side.step as i64).offset(side.first),
            _ => Index::constant(side.first),
        }
    }

    fn copy(&self, e: &mut Inliner<'_>, copy: Buf, extents: &[u64], origin: &[Index]) -> Result<()> {
        let axes: Vec<usize> = extents.iter().map(|n| e.add_axis(Index::default(), *n)).collect();
        let mut at = self.at.clone();
        for ((side, origin), axis) in self.sides.iter().zip(origin).zip(&axes) {
            at[side.axis] = origin.add(&Index::var(*axis as u32));
        }
        let to: Vec<Index> = axes.iter().map(|a| Index::var(*a as u32)).collect();
        let to = tensorc_ir::index::linearize(&to, extents);
        self.copy_side(e, &axes, extents, &mut |e, inside| {
            let value = match inside {
                true => self.pixel(e, &at)?,
                false => Operand::Const(self.fill),
            };
            let to = e.kernel_index(&to);
            e.b.store(copy, to, value);
            Ok(())
        })
    }

    /// A pixel, or the fill value outside of the image.
    fn pixel(&self, e: &mut Inliner<'_>, at: &[Index]) -> Result<Operand> {
        let dims = e.cluster.ty(self.image)?.dims;
        let guard = e.guard(at, &dims, None);
        let value = e.value(self.image, at, guard)?;
        Ok(match guard {
            Some(cond) => e.b.op(ScalarOp::Select, &[cond, value, Operand::Const(self.fill)]),
            None => value,
        })
    }

    /// Loops over the copy; along the last side, what lies outside of the image is known.
    fn copy_side(
        &self,
        e: &mut Inliner<'_>,
        axes: &[usize],
        extents: &[u64],
        body: &mut dyn FnMut(&mut Inliner<'_>, bool) -> Result<()>,
    ) -> Result<()> {
        let (axis, n) = (axes[0], extents[0] as i64);
        if axes.len() > 1 {
            return e.looped("y", (Index::default(), Index::constant(n), 1), LoopKind::Serial, |e, y| {
                e.set_axis(axis, y);
                self.copy_side(e, &axes[1..], &extents[1..], body)
            });
        }
        let side = &self.sides[self.sides.len() - 1];
        // Bands are parts of the first of several sides, so this one is copied as a whole.
        let (lo, hi) = ((-side.first).clamp(0, n), (side.size as i64 - side.first).clamp(0, n));
        for (from, to, inside) in [(0, lo, false), (lo, hi, true), (hi.max(lo), n, false)] {
            if from < to {
                let full = e.set_range(axis, (from.into(), (to - 1).into()));
                let lanes = e.cluster.lanes((to - from).into());
                e.covered(axis, (from.into(), to.into()), lanes, true, &mut |e, _| body(e, inside))?;
                e.set_range(axis, full);
            }
        }
        Ok(())
    }

    /// Loops over all sides but the last.
    fn rows(
        &self,
        e: &mut Inliner<'_>,
        i: usize,
        start: &Index,
        body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
    ) -> Result<()> {
        let side = &self.sides[i];
        if i + 1 == self.sides.len() {
            return body(e);
        }
        let n = Index::constant(side.count as i64);
        let (from, end) = match i {
            0 if self.band < side.count => {
                let left = n.sub(start);
                let whole = |_: u32| (0, side.count as i64);
                (start.clone(), Index::constant(self.band as i64).minimum(&left, &whole))
            }
            _ => (Index::default(), n),
        };
        e.looped("y", (Index::default(), end, 1), LoopKind::Serial, |e, y| {
            e.set_axis(side.windows, from.add(&y));
            self.rows(e, i + 1, start, body)
        })
    }
}

/// The only view of a cluster that may leave its operand, with its fill value, if folds alone use it.
fn only_guarded_view(cluster: &Cluster<'_>, plan: &Analysis, folds: &[Fold]) -> Option<(Value, Scalar)> {
    let is_fold = |n: NodeId| folds.iter().any(|f| f.node() == n);
    let mut filled = cluster.order.iter().filter_map(|&n| match cluster.prim(n)? {
        Prim::View(view) => Some((Value { node: n, port: 0 }, view.fill?)),
        _ => None,
    });
    let (view, fill) = filled.next()?;
    let users = cluster.body.uses(view.node);
    let folded = users.iter().all(|(user, ..)| is_fold(*user)) && !cluster.outputs().contains(&view);
    (filled.next().is_none() && folded && !plan.uses.guards.is_empty()).then_some((view, fill))
}

/// The axes along which windows move, outermost first; none if coordinates are anything else than a window's
/// position and the place in it.
fn sides(space: &IterationSpace, at: &[Index], dims: &[u64]) -> Option<Vec<WindowAxis>> {
    let mut sides: Vec<WindowAxis> = vec![];
    for (axis, (index, &size)) in at.iter().zip(dims).enumerate() {
        let (lo, hi) = index.interval(&space.dims[..]);
        let (lo, hi) = (lo.fixed(), hi.fixed());
        let mut vars = vec![];
        index.visit_vars(&mut |v| vars.push(v as usize));
        if !vars.iter().any(|v| space.is_reduced(*v)) {
            // Anything else must stay inside.
            if lo < 0 || hi >= size as i64 {
                return None;
            }
            continue;
        }
        let mut kept = vars.iter().copied().filter(|v| !space.is_reduced(*v));
        let (windows, None) = (kept.next()?, kept.next()) else { return None };
        let mut rest = index.clone();
        for &v in &vars {
            let c = index.step(v as u32).filter(|c| *c > 0)?;
            rest = rest.sub(&Index::var(v as u32).scale(c));
        }
        rest.as_constant()?;
        sides.push(WindowAxis {
            windows,
            count: space.dims[windows],
            step: index.step(windows as u32)?.unsigned_abs(),
            axis,
            size,
            first: lo,
            reach: (hi - lo + 1) as u64,
        });
    }
    let elsewhere = |s: &WindowAxis| at.iter().enumerate().all(|(a, i)| a == s.axis || !i.mentions(s.windows as u32));
    sides.sort_by_key(|s| s.windows);
    (!sides.is_empty() && sides.iter().all(elsewhere)).then_some(sides)
}

/// Positions along the first side whose windows fit a copy; none if little more than one window would.
fn band(sides: &[WindowAxis]) -> Option<u64> {
    let first = &sides[0];
    let row: u64 = sides[1..].iter().map(|s| s.reach).product();
    let window = first.reach - (first.count - 1) * first.step;
    let fit = (MAX_COPY_ELEMENTS / row.max(1)).checked_sub(window)? / first.step + 1;
    let band = fit.min(first.count);
    (band == first.count || sides.len() > 1 && band >= 2 * window).then_some(band)
}
