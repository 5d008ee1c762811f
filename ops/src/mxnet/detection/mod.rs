//! Anchors and boxes.

mod bipartite;
mod boxes;
mod nms;
mod prior;
mod target;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    let others = vec![prior::multibox_prior(), target::multibox_target()];
    [vec![bipartite::bipartite_matching()], boxes::ops(), nms::ops(), others].into_iter().flatten().collect()
}
