//! The outer loops every emitter shares: one parallel loop over the product of the outer groups.

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::index::{Index, Ranges};
use tensorc_ir::kir::LoopKind;
use tensorc_schedule::access::MergedAxes;

use super::inline::Inliner;

/// Runs `body` for every combination of the groups, in one parallel loop; each group's axis is set
/// to its coordinate. `extra` adds an innermost counter, passed to the body.
pub fn parallel(
    e: &mut Inliner<'_>,
    groups: &[MergedAxes],
    extra: impl Into<Extent>,
    body: impl FnOnce(&mut Inliner<'_>, Index) -> Result<()>,
) -> Result<()> {
    let extra = extra.into();
    let extent = groups.iter().map(|g| g.extent).product::<Extent>() * extra;
    let range = (Index::default(), Index::constant(extent), 1);
    e.looped("p", range, LoopKind::Parallel, |e, p| {
        let limits = move |_: u32| (0, extent - 1);
        let counter = digit(e, &p, Extent::ONE, extra, &limits, "q");
        let mut stride = extra;
        for g in groups.iter().rev() {
            let at = digit(e, &p, stride, g.extent, &limits, "g");
            e.set_axis(g.axis, at);
            stride = stride * g.extent;
        }
        body(e, counter)
    })
}

/// Digit of `p` with the given weight and base, bound to a variable.
fn digit(e: &mut Inliner<'_>, p: &Index, weight: Extent, base: Extent, limits: &impl Ranges, name: &str) -> Index {
    let index = p.floor_div(weight.as_divisor(), limits).modulo(base.as_divisor(), limits);
    e.b.let_index(name, index)
}
