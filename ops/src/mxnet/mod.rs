//! Operators as MXNet defines them, where its parameters, defaults or semantics differ from those of the
//! other entries. Each is a composite of these, by family.
//!
//! Entries are called `mx_` and the name in MXNet in snake case. Parameters that only steer MXNet's own
//! implementation are accepted and have no effect.

mod detection;
mod elementwise;
mod index;
mod layers;
mod linalg;
mod loss;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod sequence;
mod shape;
mod sort;
mod spatial;
mod update;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    let families = [
        detection::ops(),
        elementwise::ops(),
        index::ops(),
        layers::ops(),
        linalg::ops(),
        loss::ops(),
        norm::ops(),
        pool::ops(),
        vec![recurrent::rnn()],
        reduce::ops(),
        sequence::ops(),
        shape::ops(),
        sort::ops(),
        spatial::ops(),
        update::ops(),
    ];
    families.into_iter().flatten().collect()
}
