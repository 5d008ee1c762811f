//! Steps of optimizers, one element-wise map each.
//!
//! A [`Rule`] gives up to four entries: `update_NAME`, whose learning rate, weight decay and other numbers that
//! change from step to step are operands, so that a schedule compiles nothing again; `update_mp_NAME`, the same
//! on 16-bit weights with a master copy and states in f32; and MXNet's own operators, where the numbers are
//! parameters, over these two.

mod arrays;
mod entry;
mod group;
mod lamb;
mod many;
mod rules;

use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    let simple = rules::all().into_iter().flat_map(entry::entries);
    simple.chain(lamb::ops()).chain(arrays::ops()).chain(many::ops()).chain([group::group_adagrad()]).collect()
}
