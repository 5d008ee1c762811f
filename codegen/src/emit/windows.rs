//! Windows that reach over the border of an image. A task copies the part of the image that its windows cover into memory of
//! its own, the border filled in: the folds then read whole vectors without a test, and what feeds them is computed once
//! for each pixel, rather than once for each window that has it. Where the order of a fold allows it, rows of windows are
//! folded first, once for all windows that have them.

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeId, NodeKind, Value};
use tensorc_ir::index::{Index, linearize, unbounded};
use tensorc_ir::kir::{Buf, LoopKind, MemorySpace as Memory, Operand};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{Extent, Extents};
use tensorc_schedule::access::MergedAxes;
use tensorc_schedule::access::space::{Analysis, IterationSpace};

use super::cluster::Cluster;
use super::fold::{Fold, is_written_out};
use super::inline::{Bound, Inliner, LaneOf};

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
    rows: Option<WindowRows>,
}

/// The rows of windows, folded before the windows are.
struct WindowRows {
    fold: Fold,
    /// The axis along a row.
    along: MergedAxes,
    /// The fold of rows.
    of_rows: Fold,
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
        let rows = window_rows(cluster, (space, plan), folds, &at, &sides)?;
        Ok(Some(Windows { view, image, at, fill, sides, band, rows }))
    }

    /// The fold of windows whose rows are folded when it begins.
    pub fn of_rows(&self) -> Option<Fold> {
        self.rows.as_ref().map(|rows| rows.of_rows.clone())
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
        let len =
            extents.iter().product::<u64>() + self.pitch(e).map_or(0, |(pitch, last)| (pitch - last.count) * last.step);
        let copy = e.alloc("image", dtype, len, Memory::Stack);
        let origin: Vec<Index> = self.sides.iter().enumerate().map(|(i, side)| self.origin(i, side, begin)).collect();
        self.copy(e, (copy, len), &extents, &origin)?;
        let mut coords: Vec<Index> =
            self.sides.iter().zip(&origin).map(|(side, origin)| self.at[side.axis].sub(origin)).collect();
        match (&self.rows, self.pitch(e), &extents[..]) {
            (Some(rows), Some((pitch, last)), [outer @ .., _]) => {
                let folded = self.fold_rows(e, rows, copy, &extents)?;
                coords[self.sides.len() - 1] = Index::var(last.windows as u32);
                self.bind(e, folded, &coords, &[outer, &[pitch]].concat());
            }
            _ => self.bind(e, copy, &coords, &extents),
        }
        self.rows(e, 0, &start, body)
    }

    /// Lets windows be read from memory with such extents.
    fn bind(&self, e: &mut Inliner<'_>, buf: Buf, at: &[Index], extents: &[u64]) {
        let base = linearize(at, extents);
        e.bind(self.view, Bound::Row { buf, base, axes: vec![], dims: Extents::default() });
    }

    /// Where rows are folded first: how far their results lie apart, a number of whole vectors, and the side along them.
    /// What is computed behind the last window is never used.
    fn pitch(&self, e: &Inliner<'_>) -> Option<(u64, &WindowAxis)> {
        let last = self.sides.last().filter(|_| self.rows.is_some())?;
        Some((last.count.next_multiple_of(e.cluster.lanes(last.count.into())), last))
    }

    /// Folds the rows of all windows of a copy; the memory that holds the results.
    fn fold_rows(&self, e: &mut Inliner<'_>, rows: &WindowRows, copy: Buf, extents: &[u64]) -> Result<Buf> {
        let ([outer @ .., reach], Some((pitch, last))) = (extents, self.pitch(e)) else { return Ok(copy) };
        let [dtype] = rows.fold.accumulators()[..] else { return Ok(copy) };
        let height = outer.iter().product::<u64>();
        let folded = e.alloc("rows", dtype, height * pitch, Memory::Stack);
        let lanes = e.cluster.lanes(last.count.into());
        let groups = std::slice::from_ref(&rows.along);
        let acc = if is_written_out(groups) { vec![] } else { rows.fold.alloc(e, lanes) };
        let space = IterationSpace { dims: Extents::default(), reduced: vec![] };
        e.looped("y", (Index::default(), Index::constant(height as i64), 1), LoopKind::Serial, |e, y| {
            let row = Index::var(e.add_axis(y, height) as u32);
            let column = self.at[last.axis].offset(-last.first);
            self.bind(e, copy, &[row.clone(), column], &[height, *reach]);
            e.covered(last.windows, (Extent::ZERO, pitch.into()), lanes, false, &mut |e, lane| {
                let at = match lane {
                    LaneOf::Vector(l) => l,
                    LaneOf::Scalar => Index::default(),
                };
                let values = rows.fold.over(e, &space, groups, (&acc, &at))?;
                let to = row.scale(pitch as i64).add(&Index::var(last.windows as u32));
                let to = e.kernel_index(&to);
                values.into_iter().for_each(|value| e.b.store(folded, to.clone(), value));
                Ok(())
            })
        })?;
        Ok(folded)
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
            0 if self.bands() > 1 => Index::var(begin as u32).scale(side.step as i64).offset(side.first),
            _ => Index::constant(side.first),
        }
    }

    /// Fills so many elements, then writes those that lie in the image.
    fn copy(&self, e: &mut Inliner<'_>, (copy, len): (Buf, u64), extents: &[u64], origin: &[Index]) -> Result<()> {
        let axis = e.add_axis(Index::default(), len);
        e.covered(axis, (Extent::ZERO, len.into()), e.cluster.lanes(len.into()), true, &mut |e, _| {
            let to = e.axis(axis);
            e.b.store(copy, to, Operand::Const(self.fill));
            Ok(())
        })?;
        let axes: Vec<usize> = extents.iter().map(|n| e.add_axis(Index::default(), *n)).collect();
        let mut at = self.at.clone();
        for ((side, origin), axis) in self.sides.iter().zip(origin).zip(&axes) {
            at[side.axis] = origin.add(&Index::var(*axis as u32));
        }
        let coords: Vec<Index> = axes.iter().map(|a| Index::var(*a as u32)).collect();
        let sides = self.sides.iter().zip(origin).zip(axes.iter().zip(extents));
        let sides: Vec<CopiedSide<'_>> = sides
            .map(|((side, origin), (axis, extent))| CopiedSide { side, origin, axis: *axis, extent: *extent })
            .collect();
        let to = linearize(&coords, extents);
        within(e, &sides, &mut |e| {
            let value = e.value(self.image, &at, None)?;
            let to = e.kernel_index(&to);
            e.b.store(copy, to, value);
            Ok(())
        })
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

/// A side of a copy.
struct CopiedSide<'w> {
    side: &'w WindowAxis,
    /// The coordinate of the image where it begins.
    origin: &'w Index,
    axis: usize,
    extent: u64,
}

impl CopiedSide<'_> {
    /// The part of the side that lies in the image, in kernel variables.
    fn inside(&self, e: &Inliner<'_>) -> (Index, Index) {
        let (origin, n) = (e.kernel_index(self.origin), Index::constant(self.extent as i64));
        let reach = |from: i64| Index::constant(from).sub(&origin).maximum(&Index::default(), &unbounded);
        (reach(0).minimum(&n, &unbounded), reach(self.side.size as i64).minimum(&n, &unbounded))
    }
}

/// Loops over the part of some sides that lies in the image.
fn within(
    e: &mut Inliner<'_>,
    sides: &[CopiedSide<'_>],
    body: &mut dyn FnMut(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = sides.split_first() else { return body(e) };
    let (lo, hi) = first.inside(e);
    if let (true, Some(from), Some(to)) = (rest.is_empty(), lo.as_constant(), hi.as_constant()) {
        if from >= to {
            return Ok(());
        }
        let full = e.set_range(first.axis, (from.into(), (to - 1).into()));
        let lanes = e.cluster.lanes((to - from).into());
        e.covered(first.axis, (from.into(), to.into()), lanes, !e.cluster.is_wide(), &mut |e, _| body(e))?;
        e.set_range(first.axis, full);
        return Ok(());
    }
    e.looped("y", (lo, hi, 1), LoopKind::Serial, |e, y| {
        e.set_axis(first.axis, y);
        within(e, rest, body)
    })
}

/// How rows of windows are folded first: where the one fold allows it, along the last axis that it folds, which must be
/// one of the image's last side alone.
fn window_rows(
    cluster: &Cluster<'_>,
    (space, plan): (&IterationSpace, &Analysis),
    folds: &[Fold],
    at: &[Index],
    sides: &[WindowAxis],
) -> Result<Option<WindowRows>> {
    let ([fold], [_, .., along], [_, .., last]) = (folds, &plan.reduced[..], sides) else { return Ok(None) };
    let Some(of_rows) = fold.of_runs() else { return Ok(None) };
    let mut vars = vec![];
    at[last.axis].visit_vars(&mut |v| vars.push(v as usize));
    vars.sort_unstable();
    vars.dedup();
    let mut expected = vec![last.windows, along.axis];
    expected.sort_unstable();
    let elsewhere = at.iter().enumerate().all(|(a, i)| a == last.axis || !i.mentions(along.axis as u32));
    // Elements of the window's whole space would need what is folded already.
    let full = cluster.outputs().into_iter().map(|v| Ok(space.is_full(&cluster.ty(v)?.dims)));
    let single = !full.collect::<Result<Vec<bool>>>()?.contains(&true);
    let fits = vars == expected && elsewhere && single;
    Ok(fits.then(|| WindowRows { fold: fold.clone(), along: along.clone(), of_rows }))
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
