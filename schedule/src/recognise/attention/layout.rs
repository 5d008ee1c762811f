//! Where queries, keys, values and results of attention lie: the axes of two contractions matched with each
//! other, each with its strides.

use std::collections::BTreeSet;

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{Attention, MatrixLayout};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::index::{Atom, Index, linearize};
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::views::in_bounds;
use tensorc_ir::{Extent, Extents};

use super::super::contract::{row_major, sums_nothing};
use super::nodes::{factor, float_of, prim};

/// Axes of the scores' rows: extent and strides in queries, keys, values and result.
#[derive(Clone, Debug)]
struct RowAxes {
    /// Axes of the scores that are walked as one.
    ids: Vec<usize>,
    extent: Extent,
    strides: [Extent; 4],
}

/// An axis of one contraction: extent, strides in the scores and in two others.
type StridedAxis = (Extent, Extent, [Extent; 2]);

/// The accesses of both contractions.
pub struct AttentionLayouts {
    q: AttentionOperand,
    k: AttentionOperand,
    v: AttentionOperand,
    rows: Vec<RowAxes>,
    /// Axes of the first product with strides in queries and keys.
    first: Vec<StridedAxis>,
    /// The same of the second, with strides in values and the axis of the result.
    second: Vec<StridedAxis>,
    /// For each axis of the second, the axis of its result and the factor of its stride there.
    result: Vec<Option<(usize, Extent)>>,
    out_dims: Extents,
    out_strides: Vec<Extent>,
    keys: Extent,
}

/// Everything about a call but what the softmax says.
pub struct AttentionForm {
    pub call: Attention<Extent>,
    pub q: Value,
    pub k: Value,
    pub v: Value,
    pub scale: f64,
    pub members: BTreeSet<NodeId>,
    pub space: Extents,
    pub batch_axes: [Vec<usize>; GEMM_BATCH_RANK],
    pub row_axes: Vec<usize>,
}

/// What an operand of a contraction is read from, past views and scales that nobody else reads.
struct AttentionOperand {
    value: Value,
    flat: Index,
    scale: f64,
    members: BTreeSet<NodeId>,
}

/// A contraction's axes, split where that makes accesses linear.
struct AxisSpace {
    given: Extents,
    out_rank: usize,
    /// For each given axis, the extents it is split into, outermost first.
    parts: Vec<Vec<Extent>>,
}

impl AxisSpace {
    fn new(c: &Contraction) -> AxisSpace {
        let parts = c.extents.all().map(|n| vec![n]).collect();
        AxisSpace { given: c.extents.clone(), out_rank: c.out_rank, parts }
    }

    /// Splits axes of the result by the divisors of single variables in the index; returns whether it is
    /// linear afterwards.
    fn linearise(&mut self, flat: &Index) -> bool {
        for (atom, _) in &flat.terms {
            let (Atom::Div(x, by) | Atom::Mod(x, by)) = atom else { continue };
            let Some(axis) = x.as_var().map(|v| v as usize).filter(|v| *v < self.out_rank) else { continue };
            let n = self.given.at(axis);
            if self.parts[axis].len() == 1 && *by > 1 && *by < n && by.divides(n) {
                self.parts[axis] = vec![n / *by, *by];
            }
        }
        self.rewritten(flat).is_affine()
    }

    fn can_linearise(&self, flat: &Index) -> bool {
        AxisSpace { given: self.given.clone(), out_rank: self.out_rank, parts: self.parts.clone() }.linearise(flat)
    }

    fn extents(&self) -> Extents {
        self.parts.iter().flatten().copied().collect()
    }

    /// First part of a given axis.
    fn first(&self, axis: usize) -> usize {
        self.parts[..axis].iter().map(Vec::len).sum()
    }

    /// For each part, the given axis and the distance of a step along it.
    fn origins(&self) -> Vec<(usize, Extent)> {
        let of = |(axis, parts): (usize, &Vec<Extent>)| {
            let inner = |i: usize| parts[i + 1..].iter().copied().product::<Extent>();
            (0..parts.len()).map(|i| (axis, inner(i))).collect::<Vec<_>>()
        };
        self.parts.iter().enumerate().flat_map(of).collect()
    }

    /// The index in variables that count the parts.
    fn rewritten(&self, flat: &Index) -> Index {
        let extents = self.extents();
        let with = |v: u32| {
            let first = self.first(v as usize);
            let parts = &self.parts[v as usize];
            let vars: Vec<Index> = (first..first + parts.len()).map(|i| Index::var(i as u32)).collect();
            linearize(&vars, parts)
        };
        flat.substitute(&with, &extents).recombine(&extents)
    }
}

impl AttentionLayouts {
    pub fn new(
        graph: &Graph,
        first: &Contraction,
        first_node: NodeId,
        second: &Contraction,
        second_node: NodeId,
        side: usize,
    ) -> Option<AttentionLayouts> {
        if sums_nothing(first) || sums_nothing(second) {
            return None;
        }
        let keys = first.extents.at(first.out_rank - 1);
        let args = graph.args(first_node);
        let mut space = AxisSpace::new(first);
        let mut sides = [(args[0], &first.lhs), (args[1], &first.rhs)]
            .into_iter()
            .map(|(v, map)| operand(graph, first_node, v, map, &mut space, true))
            .collect::<Option<Vec<_>>>()?;
        sides.iter_mut().for_each(|o| o.flat = space.rewritten(&o.flat));
        // Queries do not depend on the key.
        let key = space.first(first.out_rank - 1);
        if sides[0].flat.coefficient(key as u32)? != 0 && keys > 1 {
            sides.swap(0, 1);
        }
        let (k, q) = (sides.pop()?, sides.pop()?);
        let weights = row_major(&first.extents.range(..first.out_rank));
        let (extents, origins) = (space.extents(), space.origins());
        let first_axes = (0..extents.len())
            .map(|i| {
                let (axis, by) = origins[i];
                let score = weights.get(axis).map_or(Extent::ZERO, |w| *w * by);
                Some((extents.at(i), score, [q.flat.coefficient(i as u32)?, k.flat.coefficient(i as u32)?]))
            })
            .collect::<Option<Vec<StridedAxis>>>()?;
        let args = graph.args(second_node);
        let maps = [&second.lhs, &second.rhs];
        let mut space = AxisSpace::new(second);
        let p = graph.dense(args[side]).ok()?;
        let weights = linearize(maps[side], &p.dims);
        let inside = in_bounds(maps[side], &p.dims, &second.extents);
        let v = operand(graph, second_node, args[1 - side], maps[1 - side], &mut space, false)?;
        space.linearise(&weights);
        let (p, v) = (space.rewritten(&weights), AttentionOperand { flat: space.rewritten(&v.flat), ..v });
        let extents = space.extents();
        let second_axes = (0..extents.len())
            .map(|i| Some((extents.at(i), p.coefficient(i as u32)?, [v.flat.coefficient(i as u32)?, Extent::ZERO])))
            .collect::<Option<Vec<StridedAxis>>>()?;
        let result =
            space.origins().iter().map(|(axis, by)| (*axis < second.out_rank).then_some((*axis, *by))).collect();
        let constant = p.constant == 0 && inside;
        constant.then(|| AttentionLayouts {
            q,
            k,
            v,
            rows: vec![],
            first: first_axes,
            second: second_axes,
            result,
            out_dims: second.extents.range(..second.out_rank),
            out_strides: vec![],
            keys,
        })
    }

    /// Takes the strides of the product's axes in the result, row-major if none are given. Without an answer
    /// the library cannot store such a result.
    pub fn set_result(&mut self, strides: Option<&[Extent]>) -> Option<()> {
        let row_major = row_major(&self.out_dims);
        self.out_strides = strides.unwrap_or(&row_major).to_vec();
        for (axis, result) in self.second.iter_mut().zip(&self.result) {
            axis.2[1] = result.map_or(Extent::ZERO, |(axis, by)| self.out_strides[axis] * by);
        }
        self.rows = self.join_rows()?;
        self.size().map(|_| ())
    }

    /// The rows of both contractions as one list of axes.
    fn join_rows(&self) -> Option<Vec<RowAxes>> {
        let rows = |axes: &[StridedAxis]| {
            let mut rows: Vec<StridedAxis> = axes.iter().filter(|a| a.0 > 1 && a.1 >= self.keys).copied().collect();
            rows.sort_by_key(|a| std::cmp::Reverse(a.1));
            rows
        };
        let (mut a, mut b) = (rows(&self.first), rows(&self.second));
        let mut joined: Vec<RowAxes> = vec![];
        // From the innermost axis out; an axis that is longer than its counterpart is split.
        let mut weight = self.keys;
        while let (Some(x), Some(y)) = (a.last().copied(), b.last().copied()) {
            let extent = x.0.least(y.0);
            if x.1 != weight || y.1 != weight || !extent.divides(x.0) || !extent.divides(y.0) {
                return None;
            }
            joined.push(RowAxes { ids: vec![], extent, strides: [x.2[0], x.2[1], y.2[0], y.2[1]] });
            for (axes, axis) in [(&mut a, x), (&mut b, y)] {
                axes.pop();
                if axis.0 > extent {
                    axes.push((axis.0 / extent, axis.1 * extent, axis.2.map(|s| s * extent)));
                }
            }
            weight = weight * extent;
        }
        joined.reverse();
        joined.iter_mut().enumerate().for_each(|(i, row)| row.ids = vec![i]);
        (a.is_empty() && b.is_empty()).then_some(joined)
    }

    /// The columns of the values: extent and stride in the values. They are contiguous in the result.
    fn size(&self) -> Option<(Extent, Extent)> {
        let columns = self.second.iter().filter(|a| a.0 > 1 && a.1 == 0);
        let mut columns: Vec<&StridedAxis> = columns.collect();
        columns.sort_by_key(|a| a.2[1]);
        let (mut extent, mut stride) = (Extent::ONE, Extent::ONE);
        for (n, _, [v, o]) in columns {
            if extent == 1 {
                stride = *v;
            }
            if *o != extent || *v != stride * extent {
                return None;
            }
            extent = extent * *n;
        }
        Some((extent, stride))
    }

    pub fn finish(mut self) -> Option<AttentionForm> {
        let [zero, one] = [Extent::ZERO, Extent::ONE];
        let single = |axes: &[StridedAxis], score: Extent, side: usize| {
            let mut found = axes.iter().filter(|a| a.0 > 1 && a.1 == score && (score != 0 || a.2[side] != 0));
            let axis = found.next().copied().unwrap_or((one, score, [one, one]));
            found.next().is_none().then_some(axis)
        };
        // Keys: the axis of unit stride in the scores, along which queries and results stand still.
        let (n, _, [q_key, k_key]) =
            if self.keys == 1 { (one, one, [zero, one]) } else { single(&self.first, one, 1)? };
        let (n2, _, [v_key, o_key]) =
            if self.keys == 1 { (one, one, [one, zero]) } else { single(&self.second, one, 0)? };
        let (depth, q_depth, k_depth) = self.depth()?;
        let (size, v_size) = self.size()?;
        if (n, n2) != (self.keys, self.keys) || q_key != 0 || o_key != 0 {
            return None;
        }
        let space: Extents = self.rows.iter().map(|r| r.extent).chain([self.keys]).collect();
        let mut rows: Vec<RowAxes> = vec![];
        for row in std::mem::take(&mut self.rows) {
            let fits = |o: &RowAxes| (0..4).all(|i| o.strides[i] == row.strides[i] * row.extent);
            match rows.last_mut() {
                Some(o) if fits(o) => {
                    let ids = [&o.ids[..], &row.ids].concat();
                    *o = RowAxes { ids, extent: o.extent * row.extent, ..row };
                }
                _ => rows.push(row),
            }
        }
        // Rows that share keys and values are those of one product.
        let shared = |r: &RowAxes| r.strides[1] == 0 && r.strides[2] == 0;
        let queries = (0..rows.len()).filter(|i| shared(&rows[*i])).max_by_key(|i| (rows[*i].extent, *i));
        let queries = queries.map(|i| rows.remove(i));
        if rows.len() > GEMM_BATCH_RANK {
            return None;
        }
        let skip = GEMM_BATCH_RANK - rows.len();
        let layout = |i: usize, offset: Extent, row_stride: Extent, col_stride: Extent| {
            let mut batch_strides = [zero; GEMM_BATCH_RANK];
            rows.iter().enumerate().for_each(|(b, row)| batch_strides[skip + b] = row.strides[i]);
            MatrixLayout { offset, batch_strides, row_stride, col_stride }
        };
        let of_query = |i: usize| queries.as_ref().map_or(zero, |r| r.strides[i]);
        let mut batch = [one; GEMM_BATCH_RANK];
        let mut batch_axes: [Vec<usize>; GEMM_BATCH_RANK] = Default::default();
        for (b, row) in rows.iter().enumerate() {
            batch[skip + b] = row.extent;
            batch_axes[skip + b] = row.ids.clone();
        }
        let call = Attention {
            batch,
            queries: queries.as_ref().map_or(one, |r| r.extent),
            keys: self.keys,
            depth,
            size,
            q: layout(0, self.q.flat.constant, of_query(0), q_depth),
            k: layout(1, self.k.flat.constant, k_depth, k_key),
            v: layout(2, self.v.flat.constant, v_key, v_size),
            out: layout(3, zero, of_query(3), one),
            scale: 0,
            shifted: false,
            empty_is_zero: false,
            rounded: false,
        };
        Some(AttentionForm {
            call,
            q: self.q.value,
            k: self.k.value,
            v: self.v.value,
            scale: self.q.scale * self.k.scale,
            members: [self.q.members, self.k.members, self.v.members].into_iter().flatten().collect(),
            space,
            batch_axes,
            row_axes: queries.map_or(vec![], |r| r.ids),
        })
    }

    /// The terms of a score: extent and strides in queries and keys.
    fn depth(&self) -> Option<(Extent, Extent, Extent)> {
        let terms: Vec<&StridedAxis> = self.first.iter().filter(|a| a.0 > 1 && a.1 == 0).collect();
        let Some((last, outer)) = terms.split_last() else { return Some((Extent::ONE, Extent::ONE, Extent::ONE)) };
        let (mut extent, [q, k]) = (last.0, last.2);
        for a in outer.iter().rev() {
            if a.2 != [q * extent, k * extent] {
                return None;
            }
            extent = extent * a.0;
        }
        Some((extent, q, k))
    }
}

/// The operand, read past views and scales that nobody else reads, as far as accesses stay linear.
fn operand(
    graph: &Graph,
    user: NodeId,
    value: Value,
    map: &[Index],
    space: &mut AxisSpace,
    scaled: bool,
) -> Option<AttentionOperand> {
    let ty = float_of(graph, value)?;
    let mut at = map.to_vec();
    if !in_bounds(&at, &ty.dims, &space.given) {
        return None;
    }
    let here = AttentionOperand { value, flat: linearize(&at, &ty.dims), scale: 1.0, members: BTreeSet::new() };
    let (mut found, mut last, mut reader) = (here, value, user);
    let (mut scale, mut members) = (1.0, BTreeSet::new());
    loop {
        let alone = !graph.is_root(last.node) && graph.uses(last.node).iter().all(|(u, ..)| *u == reader);
        let step = match prim(graph, last.node) {
            _ if !alone => None,
            Some(Prim::View(view)) if view.fill.is_none() => {
                let composed = view.map.iter().map(|m| m.mapped(&at, &space.given)).collect::<Option<_>>();
                composed.map(|composed| at = composed)
            }
            Some(Prim::Map(_)) if scaled => factor(graph, last.node).map(|f| scale *= f),
            _ => None,
        };
        if step.is_none() {
            break;
        }
        members.insert(last.node);
        (reader, last) = (last.node, graph.args(last.node)[0]);
        let Some(ty) = float_of(graph, last) else { break };
        let flat = linearize(&at, &ty.dims).recombine(&space.given);
        if space.can_linearise(&flat) {
            found = AttentionOperand { value: last, flat, scale, members: members.clone() };
        }
    }
    space.linearise(&found.flat);
    Some(found)
}
