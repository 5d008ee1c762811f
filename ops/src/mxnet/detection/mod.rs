//! Anchors and boxes.

mod bipartite;
mod boxes;
mod nms;
mod prior;
mod target;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    [vec![bipartite::bipartite_matching()], boxes::ops(), nms::ops(), prior::ops(), target::ops()]
        .into_iter()
        .flatten()
        .collect()
}
