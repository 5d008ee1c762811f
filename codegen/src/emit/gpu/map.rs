//! Element-wise clusters: neighbouring threads compute neighbouring elements, 16 bytes at a time.

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, LoopKind};
use tensorc_schedule::access::axes::IterationAxes;
use tensorc_schedule::access::product::total;
use tensorc_schedule::access::{MergedAxes, group_axes};

use super::loops::{below, launch, set_groups};
use super::vector_width;
use crate::emit::cluster::Cluster;
use crate::emit::inline::Inliner;

/// Threads of a block.
const THREADS: u64 = 256;

/// How the elements are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GpuMapTiling {
    /// Neighbouring elements that a thread computes at once.
    vector: u64,
    /// How often it does.
    repeat: u64,
}

impl GpuMapTiling {
    /// Large kernels have several loads of a thread in flight; small ones have as many threads as can be.
    fn of(vector: u64, units: Extent) -> GpuMapTiling {
        let repeat = match advice(|| [1 << 20, 1 << 18].map(|n| units >= n)) {
            [true, _] => 4,
            [_, true] => 2,
            _ => 1,
        };
        GpuMapTiling { vector, repeat }
    }
}

pub fn emit(cluster: &Cluster<'_>, name: &str) -> Result<Kernel> {
    let outputs = cluster.outputs();
    let dims = cluster.ty(outputs[0])?.dims;
    let IterationAxes { extents, coords, uses } = IterationAxes::of(cluster, &outputs, &dims)?;
    let mut groups = group_axes(&extents, &uses, &|_| false, &|_, _| true);
    let mut e = Inliner::new(cluster, name, &extents)?;
    let elements = total(&groups);
    let inner = groups.pop().unwrap_or(MergedAxes { axis: 0, extent: Extent::ONE });
    let stored: Vec<_> = outputs.iter().enumerate().map(|(i, v)| (i, *v, dims.clone(), coords.clone())).collect();
    let single = elements.is_surely(1);
    let vector = if single { 1 } else { vector_width(&e, |n| inner.extent.sure_quotient(n).is_some())? };
    let units = elements / vector;
    let schedule = GpuMapTiling::of(vector, units);
    let per_block = THREADS * schedule.repeat;
    let blocks = units.div_ceil(per_block);
    // The innermost group counts vectors.
    let mut counted = groups.clone();
    counted.push(MergedAxes { axis: inner.axis, extent: inner.extent / vector });
    launch(&mut e, blocks, THREADS, &[], |e, b, t, _| {
        let range = (Index::default(), Index::constant(schedule.repeat as i64), 1);
        e.looped("u", range, LoopKind::Unroll, |e, u| {
            let p = b.scale(per_block as i64).add(&u.scale(THREADS as i64)).add(&t);
            let p = e.b.let_index("p", p);
            below(e, &p, units, blocks * per_block, |e| {
                if single {
                    return e.store_values(&stored);
                }
                set_groups(e, &counted, &p, units);
                let first = e.axis(inner.axis).scale(vector as i64);
                let first = e.b.let_index("i", first);
                e.hoist(&uses, &[inner.axis])?;
                if vector == 1 {
                    e.set_axis(inner.axis, first);
                    return e.store_values(&stored);
                }
                let range = (Index::default(), Index::constant(vector as i64), 1);
                e.looped("l", range, LoopKind::Vector, |e, l| {
                    e.set_axis(inner.axis, first.add(&l));
                    e.store_values(&stored)
                })
            })
        })
    })?;
    Ok(e.finish())
}
