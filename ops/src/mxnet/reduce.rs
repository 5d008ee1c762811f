//! Reductions.

use tensorc_ir::Dim;
use tensorc_ir::op::OpDef;

pub fn ops() -> Vec<OpDef> {
    vec![]
}

/// The axes of a reduction's result: those reduced have extent 1 or are dropped. Where all are dropped one
/// of extent 1 remains, for there are no arrays of rank 0.
pub fn kept(x: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let axis = |(i, d): (usize, &Dim)| match (axes.contains(&i), keep) {
        (false, _) => Some(*d),
        (true, true) => Some(Dim::Const(1)),
        (true, false) => None,
    };
    let dims: Vec<Dim> = x.iter().enumerate().filter_map(axis).collect();
    if dims.is_empty() { vec![Dim::Const(1)] } else { dims }
}
