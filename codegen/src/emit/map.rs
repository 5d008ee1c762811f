//! Emitter for clusters of maps, views and gathers: one loop nest over the output's elements.

use std::collections::BTreeMap;

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{NodeId, Value};
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::kir::{Buf, LoopKind, Space};
use tensorc_ir::scalar::MathFn;

use super::Emitted;
use super::cluster::{Cluster, Group, Uses, group_axes};
use super::inline::{Bound, Inliner};
use super::nest::parallel;
use super::strips;

/// How the loops over one cluster are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Schedule {
    /// Iterations of the innermost group per parallel iteration.
    block: u64,
    lanes: u64,
    /// A group whose loads are contiguous while the innermost one's are not, and its block: the two
    /// form a tile, so that every cache line loaded is used up.
    tile: Option<(Group, u64)>,
}

const BLOCK: u64 = 4096;
const TILE: u64 = 32;
/// Most elements a library function is applied to at once: results stay in the nearest cache.
const STRIP: u64 = 1024;
/// Columns of a tile: one cache line of f32, so that power-of-two strides do not fill a cache set.
const TILE_COLUMNS: u64 = 16;

pub fn emit(cluster: &Cluster<'_>, name: &str) -> Result<Emitted> {
    let outputs = cluster.outputs();
    let dims = cluster.ty(outputs[0])?.dims;
    let coords: Vec<Index> = (0..dims.len() as u32).map(Index::var).collect();
    let mut uses = Uses::default();
    for v in &outputs {
        uses.collect(cluster, *v, &coords, &dims, &|_| false)?;
        uses.store(*v, &dims, &coords);
    }
    let mut groups = group_axes(&dims, &uses, &|_, _| true);
    let inner = groups.pop();
    let schedule = schedule(cluster, &uses, &groups, inner.as_ref());
    let mut e = Inliner::new(cluster, name, &dims)?;
    let store = |e: &mut Inliner<'_>| {
        outputs.iter().enumerate().try_for_each(|(i, v)| {
            let value = e.value(*v, &coords, None)?;
            e.store(i, &dims, &coords, value);
            Ok(())
        })
    };
    match inner {
        None => parallel(&mut e, &groups, 1, |e, _| store(e))?,
        Some(inner) => nest(&mut e, &groups, &inner, &schedule, &uses, &store)?,
    }
    Ok(Emitted { kernel: e.finish(), in_place: in_place(cluster, &uses, &coords)? })
}

fn schedule(cluster: &Cluster<'_>, uses: &Uses, outer: &[Group], inner: Option<&Group>) -> Schedule {
    let extent = inner.map_or(1, |g| g.extent);
    let coefficient = |f: &Index, g: &Group| f.coefficient(g.axis as u32).unwrap_or(0);
    let strided = |g: &Group| {
        uses.flats.iter().any(|(_, f)| coefficient(f, g) == 1 && inner.is_some_and(|i| coefficient(f, i).abs() > 1))
    };
    let tile = outer.iter().find(|g| g.extent >= 4 && strided(g)).map(|g| (g.clone(), TILE.min(g.extent)));
    let block = if tile.is_some() { TILE_COLUMNS } else { BLOCK };
    // Gathered rows and tails are short; a block never splits them needlessly.
    let block = if extent < block * 2 { extent } else { block };
    Schedule { block, lanes: cluster.lanes(extent), tile }
}

/// The calls of library functions applied to strips of the innermost loop.
pub fn strips(cluster: &Cluster<'_>) -> Result<BTreeMap<NodeId, MathFn>> {
    strips::choose(cluster, &cluster.ty(cluster.outputs()[0])?.dims, strips::MEMORY / (4 * STRIP))
}

/// The innermost loop from `lo` to `hi`, vectors up to `whole`: library functions are applied to a
/// strip of elements before the outputs are stored.
fn innermost(
    e: &mut Inliner<'_>,
    axis: usize,
    (lo, hi, whole): (&Index, &Index, &Index),
    s: &Schedule,
    store: &dyn Fn(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let cluster = e.cluster;
    let stages = match s.tile.is_none() && s.block >= strips::SHORTEST {
        true => strips::stages(cluster, &cluster.outputs(), &|v| e.is_bound(v)),
        false => vec![],
    };
    if stages.is_empty() {
        return e.vectorized(axis, (lo.clone(), hi.clone()), whole.clone(), s.lanes, &mut |e, _| store(e));
    }
    let length = s.block.min(STRIP);
    let values: Vec<Value> = stages.iter().flatten().copied().collect();
    let buffers: BTreeMap<Value, Buf> =
        values.iter().map(|v| (*v, e.alloc("strip", DType::F32, length, Space::Stack))).collect();
    let coords: Vec<Index> = (0..cluster.ty(values[0])?.rank() as u32).map(Index::var).collect();
    let strip = |e: &mut Inliner<'_>, from: &Index, to: &Index, whole: &Index| {
        for stage in &stages {
            e.vectorized(axis, (from.clone(), to.clone()), whole.clone(), s.lanes, &mut |e, _| {
                stage.iter().try_for_each(|v| {
                    let value = e.value(cluster.body.args(v.node)[0], &coords, None)?;
                    let at = e.kernel_index(&coords[axis]).sub(from);
                    e.b.store(buffers[v], at, value);
                    Ok(())
                })
            })?;
            for v in stage {
                e.b.apply_strip(cluster.apart[&v.node], buffers[v], Index::default(), to.sub(from));
                e.bind(*v, Bound::Strip { buf: buffers[v], axis, from: from.clone() });
            }
        }
        e.vectorized(axis, (from.clone(), to.clone()), whole.clone(), s.lanes, &mut |e, _| store(e))
    };
    if length == s.block {
        return strip(e, lo, hi, whole);
    }
    e.looped("s", (lo.clone(), hi.clone(), length as i64), LoopKind::Serial, |e, from| {
        let wide = |_: u32| (0, i64::MAX / 8);
        let end = from.offset(length as i64);
        let to = e.b.let_index("to", end.minimum(hi, &wide));
        let whole = e.b.let_index("whole", end.minimum(whole, &wide));
        strip(e, &from, &to, &whole)
    })
}

fn nest(
    e: &mut Inliner<'_>,
    groups: &[Group],
    inner: &Group,
    s: &Schedule,
    uses: &Uses,
    store: &dyn Fn(&mut Inliner<'_>) -> Result<()>,
) -> Result<()> {
    let blocks = inner.extent.div_ceil(s.block);
    let (n, lanes) = (inner.extent as i64, s.lanes as i64);
    let tiled = s.tile.as_ref().map(|(g, _)| g.axis);
    let outer: Vec<Group> = groups.iter().filter(|g| Some(g.axis) != tiled).cloned().collect();
    let tiles = s.tile.as_ref().map_or(1, |(g, t)| g.extent.div_ceil(*t));
    parallel(e, &outer, blocks * tiles, |e, q| {
        let limits = move |_: u32| (0, (blocks * tiles) as i64 - 1);
        let lo = e.b.let_index("lo", q.modulo(blocks as i64, &limits).scale(s.block as i64));
        let wide = move |_: u32| (0, n);
        let hi = match blocks {
            1 => Index::constant(n),
            _ => e.b.let_index("hi", lo.offset(s.block as i64).minimum(&Index::constant(n), &wide)),
        };
        // Only the last block has a part that does not fill a vector.
        let whole = match blocks {
            1 => Index::constant(n / lanes * lanes),
            _ => e.b.let_index("whole", lo.offset(s.block as i64).minimum(&Index::constant(n / lanes * lanes), &wide)),
        };
        let rows = |e: &mut Inliner<'_>| {
            e.hoist(uses, &[inner.axis])?;
            innermost(e, inner.axis, (&lo, &hi, &whole), s, store)
        };
        match &s.tile {
            None => rows(e),
            Some((g, t)) => {
                let start = q.floor_div(blocks as i64, &limits).scale(*t as i64);
                let start = e.b.let_index("tile", start);
                let wide = |_: u32| (0, g.extent as i64);
                let end = start.offset(*t as i64).minimum(&Index::constant(g.extent as i64), &wide);
                e.looped("t", (start, end, 1), LoopKind::Serial, |e, t| {
                    e.set_axis(g.axis, t);
                    rows(e)
                })
            }
        }
    })
}

/// Inputs of which every element is read only by the iteration that writes the same position.
fn in_place(cluster: &Cluster<'_>, uses: &Uses, coords: &[Index]) -> Result<Vec<(usize, usize)>> {
    let mut pairs = vec![];
    for (o, out) in cluster.outputs().into_iter().enumerate() {
        let ty = cluster.ty(out)?;
        let flat = linearize(coords, &ty.dims);
        for (i, &node) in cluster.body.inputs().iter().enumerate() {
            let input = tensorc_ir::graph::Value { node, port: 0 };
            let same = uses.flats.iter().filter(|(v, _)| *v == input).all(|(_, f)| *f == flat);
            if same && out != input && cluster.ty(input)?.bytes() == ty.bytes() {
                pairs.push((i, o));
            }
        }
    }
    Ok(pairs)
}
