//! Emitter for clusters of maps, views and gathers: one loop nest over the output's elements.

use std::collections::BTreeMap;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::NodeId;
use tensorc_ir::index::{Index, linearize, unbounded};
use tensorc_ir::kir::{Kernel, LoopKind};
use tensorc_ir::scalar::MathFn;
use tensorc_ir::{Extent, Extents};
use tensorc_schedule::access::axes::IterationAxes;
use tensorc_schedule::access::{ClusterAccesses, MergedAxes, group_axes};

use super::cluster::Cluster;
use super::inline::Inliner;
use super::nest::parallel;
use super::pieces;
use super::vector_math::{self, VectorLoop};

/// How the loops over one cluster are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapTiling {
    /// Iterations of the innermost group per parallel iteration.
    block: Extent,
    lanes: u64,
    /// A group iterated over around the innermost one in the same parallel iteration, and its block: one whose
    /// loads are contiguous while the innermost one's are not, so that every cache line loaded is used up, or
    /// else the one around rows too short for an iteration of their own.
    tile: Option<(MergedAxes, Extent)>,
    /// Whether that group is one whose loads are contiguous.
    transposed: bool,
    /// Pieces of the innermost group, and of the one around it; none: the whole of it.
    pieces: [Vec<(i64, i64)>; 2],
}

const BLOCK: u64 = 4096;
const TILE: u64 = 128;
/// Columns of a tile: one cache line of f32, so that power-of-two strides do not fill a cache set.
const TILE_COLUMNS: u64 = 16;
/// Rows of a tile taken at a time: of what neighbouring lanes read, 128 bits of f32 each, blocks are made in registers.
const TILE_ROWS: i64 = 4;
/// Bytes between rows of a result that fall into the same sets of the first-level cache: these are finished one by one.
const SAME_SETS: i64 = 4096;

pub fn emit(cluster: &Cluster<'_>, name: &str) -> Result<Kernel> {
    let outputs = cluster.outputs();
    let dims = cluster.ty(outputs[0])?.dims;
    let IterationAxes { extents, coords, uses } = IterationAxes::of(cluster, &outputs, &dims)?;
    let mut groups = group_axes(&extents, &uses, &|_| false, &|_, _| true);
    let inner = groups.pop();
    let schedule = schedule(cluster, (&extents, &uses), &groups, inner.as_ref());
    let mut e = Inliner::new(cluster, name, &extents)?;
    let stored: Vec<_> = outputs.iter().enumerate().map(|(i, v)| (i, *v, dims.clone(), coords.clone())).collect();
    let store = |e: &mut Inliner<'_>| e.store_values(&stored);
    match inner {
        None => parallel(&mut e, &groups, 1, |e, _| store(e))?,
        Some(inner) => nest(&mut e, &groups, &inner, &schedule, &uses, &coords, &store)?,
    }
    Ok(e.finish())
}

fn schedule(
    cluster: &Cluster<'_>,
    (extents, uses): (&Extents, &ClusterAccesses),
    outer: &[MergedAxes],
    inner: Option<&MergedAxes>,
) -> MapTiling {
    let extent = inner.map_or(Extent::ONE, |g| g.extent);
    let coefficient = |f: &Index, g: &MergedAxes| f.coefficient(g.axis as u32).unwrap_or_default();
    let strided = |g: &MergedAxes| {
        uses.flats
            .iter()
            .any(|(_, f)| coefficient(f, g) == 1 && inner.is_some_and(|i| coefficient(f, i).magnitude() > 1))
    };
    let transposed = advice(|| outer.iter().find(|g| g.extent.is_surely_from(4) && strided(g)));
    let transposed = transposed.map(|g| (g.clone(), short(g.extent, TILE)));
    let is_transposed = transposed.is_some();
    let block = if is_transposed { TILE_COLUMNS } else { BLOCK };
    // Gathered rows and tails are short; a block never splits them needlessly.
    let block = if extent.is_surely_below(block * 2) { extent } else { block.into() };
    // How many rows and elements are taken at a time does not change results.
    advice(|| {
        let rows = |g: &MergedAxes| (g.clone(), short(g.extent, BLOCK / extent.example().max(1) as u64));
        let apart = !is_transposed && cluster.ops() <= pieces::MAX_OPS;
        let tile = transposed.or_else(|| outer.last().map(rows).filter(|(_, rows)| *rows > 1));
        let pieces = match inner.filter(|_| apart).map(|g| pieces::pieces(g, extents, uses)) {
            Some(columns) if !columns.is_empty() => {
                let rows = tile.as_ref().map_or(vec![], |(g, _)| pieces::pieces(g, extents, uses));
                [columns, rows]
            }
            _ => [vec![], vec![]],
        };
        MapTiling { block, lanes: cluster.lanes(extent), tile, transposed: is_transposed, pieces }
    })
}

/// So many elements of an axis at a time, or all if it has fewer.
pub fn short(extent: Extent, most: u64) -> Extent {
    if extent.is_surely_below(most) { extent } else { most.into() }
}

/// The vector-math calls of the innermost loop.
pub fn vector_calls(cluster: &Cluster<'_>) -> Result<BTreeMap<NodeId, MathFn>> {
    vector_math::choose(cluster, &cluster.ty(cluster.outputs()[0])?.dims, |calls| calls <= vector_math::MAX_CALLS)
}

fn nest(
    e: &mut Inliner<'_>,
    groups: &[MergedAxes],
    inner: &MergedAxes,
    s: &MapTiling,
    uses: &ClusterAccesses,
    coords: &[Index],
    store: &dyn Fn(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let outputs = e.cluster.outputs();
    let blocks = inner.extent.div_ceil(s.block);
    let (n, single) = (inner.extent, blocks.is_surely(1));
    let whole_vectors = Index::constant(n / s.lanes * s.lanes);
    let tiled = s.tile.as_ref().map(|(g, _)| g.axis);
    let outer: Vec<MergedAxes> = groups.iter().filter(|g| Some(g.axis) != tiled).cloned().collect();
    let ty = e.cluster.ty(outputs[0])?;
    let apart = |axis: usize| linearize(coords, &ty.dims).coefficient(axis as u32)?.known();
    let in_other_sets = |rows: i64| rows.saturating_mul(ty.dtype.size() as i64) % SAME_SETS != 0;
    let several = s.transposed && s.lanes > 1 && advice(|| tiled.and_then(apart).is_some_and(in_other_sets));
    let tiles = s.tile.as_ref().map_or(Extent::ONE, |(g, t)| g.extent.div_ceil(*t));
    parallel(e, &outer, blocks * tiles, |e, q| {
        let limits = move |_: u32| (0, blocks * tiles - 1);
        let lo = e.b.let_index("lo", q.modulo(blocks, &limits).scale(s.block));
        let wide = move |_: u32| (0, n);
        let hi = match single {
            true => Index::constant(n),
            false => e.b.let_index("hi", lo.offset(s.block).minimum(&Index::constant(n), &wide)),
        };
        // Only the last block has a part that does not fill a vector.
        let whole = match single {
            true => whole_vectors,
            false => e.b.let_index("whole", lo.offset(s.block).minimum(&whole_vectors, &wide)),
        };
        let columns = VectorLoop { roots: &outputs, coords, block: s.block, lanes: s.lanes };
        let row = |e: &mut Inliner<'_>, range: (Index, Index, Index)| {
            e.hoist(uses, &[inner.axis])?;
            vector_math::columns(e, &columns, range, &|e, i| e.set_axis(inner.axis, i), &|e, _| store(e))
        };
        let ends = match &s.tile {
            None => None,
            Some((g, t)) => {
                let start = q.floor_div(blocks, &limits).scale(*t);
                let start = e.b.let_index("tile", start);
                let wide = |_: u32| (0, g.extent);
                let end = start.offset(*t).minimum(&Index::constant(g.extent), &wide);
                Some((g, start, end))
            }
        };
        let rows = |e: &mut Inliner<'_>, range: &(Index, Index, Index)| match &ends {
            None => row(e, range.clone()),
            Some((g, start, end)) if several => {
                across(e, ((*g).clone(), start, end), range, s.lanes, &|e, i| e.set_axis(inner.axis, i), store)
            }
            Some((g, start, end)) => e.each_piece(g.axis, (start, end), &s.pieces[1], &mut |e, from, to| {
                e.looped("t", (from, to, 1), LoopKind::Serial, |e, t| {
                    e.set_axis(g.axis, t);
                    row(e, range.clone())
                })
            }),
        };
        if s.pieces[0].is_empty() {
            return rows(e, &(lo, hi, whole));
        }
        e.each_piece(inner.axis, (&lo, &hi), &s.pieces[0], &mut |e, from, to| {
            let lanes = s.lanes as i64;
            let whole = from.add(&to.sub(&from).floor_div(lanes, &unbounded).scale(lanes));
            rows(e, &(from, to, whole))
        })
    })
}

/// A tile whose loads are contiguous along its rows: lanes go along the columns, and several rows are taken at a time.
fn across(
    e: &mut Inliner<'_>,
    (rows, start, end): (MergedAxes, &Index, &Index),
    (lo, hi, whole): &(Index, Index, Index),
    lanes: u64,
    place: &dyn Fn(&mut Inliner<'_>, Index),
    store: &dyn Fn(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let several = start.add(&end.sub(start).floor_div(TILE_ROWS, &unbounded).scale(TILE_ROWS));
    let several = e.b.let_index("several", several);
    let row = |e: &mut Inliner<'_>, t: Index, i: &Index| {
        e.at(rows.axis, t, |e| {
            place(e, i.clone());
            store(e)
        })
    };
    let vector = (Index::default(), Index::constant(lanes as i64), 1);
    e.looped("i", (lo.clone(), whole.clone(), lanes as i64), LoopKind::Serial, |e, i| {
        e.looped("t", (start.clone(), several.clone(), TILE_ROWS), LoopKind::Serial, |e, t| {
            e.looped("l", vector.clone(), LoopKind::Vector, |e, l| {
                (0..TILE_ROWS).try_for_each(|ahead| row(e, t.offset(ahead), &i.add(&l)))
            })
        })?;
        e.looped("t", (several.clone(), end.clone(), 1), LoopKind::Serial, |e, t| {
            e.looped("l", vector.clone(), LoopKind::Vector, |e, l| row(e, t, &i.add(&l)))
        })
    })?;
    let rest = lo.maximum(whole, &unbounded);
    e.looped("t", (start.clone(), end.clone(), 1), LoopKind::Serial, |e, t| {
        e.looped("i", (rest.clone(), hi.clone(), 1), LoopKind::Serial, |e, i| row(e, t.clone(), &i))
    })
}
