//! Contractions that a library kernel computes, the generated epilogue applied to its blocks, and the generated
//! prologue that computes blocks of an operand.

use std::collections::BTreeSet;

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{Attention, ConvPass, ImageLayout, SUM_COLS, SUM_ROWS};
use tensorc_ir::diag::Result;
use tensorc_ir::extent::{Axes, advice};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::index::{Index, delinearize, linearize};
use tensorc_ir::kir::{Kernel, LoopKind};
use tensorc_ir::views::identity_map;
use tensorc_ir::{Extent, Extents};
use tensorc_schedule::access::{ClusterAccesses, MergedAxes, group_axes};
use tensorc_schedule::layout::{Layouts, span};
use tensorc_schedule::recipe::{Library, contraction, split_final_view, sums_apart};
use tensorc_schedule::recognise::attention::Attended;
use tensorc_schedule::recognise::contract::Gemm;

use super::cluster::Cluster;
use super::inline::{Bound, Inliner};
use super::map;
use super::math::{Math, split_vector_calls};
use super::vector_math::{self, VectorLoop};

/// The epilogue: a kernel that the library calls on each block of its result, which it changes in place, or makes of a block of
/// sums that lies apart. `library` has the strides of the result.
pub fn emit_epilogue(
    body: &Graph,
    library: &Library,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    inputs: &[usize],
) -> Result<Kernel> {
    let (node, c) = contraction(body)?;
    let accumulated = Value { node, port: 0 };
    let mut after = body.clone();
    if let Library::Gemm { a: None, .. } | Library::Conv { a: None, .. } = library {
        // What computes the operand is another kernel.
        let side = library.left_side();
        let given = after.add_input("operand", body.dense(body.args(node)[side])?.into());
        after.set_arg(node, side as u16, given);
    }
    let body = &split_vector_calls(&after, math.library)?;
    let (result, _) = split_final_view(body, body.outputs()[0].1)?;
    let dims = c.extents.range(..c.out_rank);
    let coords = identity_map(dims.len());
    let len = span(body.dense(body.outputs()[0].1)?.dims.count(), layouts.output(0));
    let layout = BlockAxes::new(library, &dims);
    let sums = if sums_apart(body)? { Sums::Apart } else { Sums::InPlace };
    let blocks = Blocks { accumulated: Some((accumulated, sums)), result, space: dims, coords, len, layout };
    emit_blocks(body, &blocks, name, (math, layouts), inputs)
}

/// The kernel that computes blocks of the left operand of a library call.
pub fn emit_prologue(
    body: &Graph,
    library: &Library,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    inputs: &[usize],
) -> Result<Kernel> {
    let (node, c) = contraction(body)?;
    let side = library.left_side();
    let operand = body.args(node)[side];
    let mut alone = body.clone();
    alone.set_outputs([("operand".into(), operand)]);
    let body = &split_vector_calls(&alone, math.library)?;
    let operand = body.outputs()[0].1;
    let dims = body.dense(operand)?.dims;
    let (space, coords) = match library {
        Library::Gemm { .. } => (c.extents.clone(), [&c.lhs, &c.rhs][side].clone()),
        Library::Conv { .. } => (dims.clone(), identity_map(dims.len())),
    };
    let layout = BlockAxes::of_left(library, &dims);
    let rows: Extent = match library {
        Library::Gemm { gemm, .. } => gemm.call.m,
        Library::Conv { .. } => layout.row_axes.iter().map(|a| dims.at(*a)).product(),
    };
    let len = rows * layout.cols;
    let blocks = Blocks { accumulated: None, result: operand, space, coords, len, layout };
    emit_blocks(body, &blocks, name, (math, layouts), inputs)
}

/// The kernel that makes scores of each tile of products of queries and keys.
pub fn emit_scores(
    body: &Graph,
    found: &Attended,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    inputs: &[usize],
) -> Result<Kernel> {
    let mut scores = body.clone();
    scores.set_outputs([("scores".into(), found.scores)]);
    let body = &split_vector_calls(&scores, math.library)?;
    let result = body.outputs()[0].1;
    let space = found.space.clone();
    let position = linearize(&identity_map(space.len()), &space);
    let coords = delinearize(&position, &body.dense(result)?.dims, &space);
    let layout = BlockAxes {
        batch_axes: found.batch_axes.clone(),
        row_axes: found.row_axes.clone(),
        col_axes: vec![space.len() - 1],
        row_stride: Attention::TILE_COLS.into(),
        cols: map::short(found.call.keys, Attention::TILE_COLS),
        is_tile: true,
        ..BlockAxes::default()
    };
    let (accumulated, len) = (Some((found.accumulated, Sums::InPlace)), Attention::TILE.into());
    emit_blocks(body, &Blocks { accumulated, result, space, coords, len, layout }, name, (math, layouts), inputs)
}

/// What is computed block by block, and where.
struct Blocks {
    /// What the library leaves in a block, and where.
    accumulated: Option<(Value, Sums)>,
    /// What takes its place, or fills the block.
    result: Value,
    /// The axes that blocks walk, and the coordinates of the result in them.
    space: Extents,
    coords: Vec<Index>,
    /// Elements of the memory that blocks are part of.
    len: Extent,
    layout: BlockAxes,
}

/// Where the sums of a block are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// Where the result goes.
    InPlace,
    /// In memory of the library, another buffer.
    Apart,
}

fn emit_blocks(
    body: &Graph,
    f: &Blocks,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    inputs: &[usize],
) -> Result<Kernel> {
    let Blocks { accumulated, result, space, coords, layout, .. } = f;
    let (sums, result) = (accumulated.map(|(_, sums)| sums), *result);
    let accumulated = accumulated.map(|(value, _)| value);
    let mut cluster = Cluster::new(body, math, layouts)?;
    cluster.on_blocks = true;
    let mut uses = ClusterAccesses::default();
    uses.collect(&cluster, result, coords, space, &|v| Some(v) == accumulated)?;
    if !layout.is_tile && accumulated.is_some() {
        uses.store(result, linearize(coords, space));
    }
    let mut after: BTreeSet<_> = accumulated.iter().map(|v| v.node).collect();
    for &n in &cluster.order {
        if cluster.body.args(n).iter().any(|a| after.contains(&a.node)) {
            after.insert(n);
        }
    }
    if advice(|| layout.cols >= vector_math::MIN_CALL_ELEMENTS) && math.has_vector_calls() {
        cluster.vector_calls =
            vector_math::choose(&cluster, &body.dense(result)?.dims, |calls| calls <= vector_math::MAX_CALLS)?;
    }
    let block = accumulated.filter(|_| sums == Some(Sums::Apart));
    let block = block.map(|v| Ok((body.dense(v)?.dtype, (SUM_ROWS * SUM_COLS).into()))).transpose()?;
    let mut e = Inliner::on_blocks(&cluster, (name, space), block, (body.dense(result)?.dtype, f.len), inputs)?;
    let scalars: Vec<Index> = ["b0", "b1", "b2", "m0", "m1", "n0", "n1"].iter().map(|n| e.b.scalar_index(n)).collect();
    let merged = group_axes(space, &uses, &|_| false, &|_, _| true);
    for (axes, at) in layout.batch_axes.iter().zip(&scalars) {
        place(&mut e, &merged, space, axes, at);
    }
    // Wide vectors are for whole ones; what is left over of a block in place is slow with them.
    let whole = |lanes: u64| if layout.cols % lanes == 0 { lanes } else { lanes.min(8) };
    let lanes = advice(|| whole(cluster.lanes(layout.cols)));
    let rows = (scalars[3].clone(), scalars[4].clone(), 1);
    let (n0, n1) = match layout.whole_rows {
        true => (Index::default(), Index::constant(layout.cols)),
        false => (scalars[5].clone(), scalars[6].clone()),
    };
    e.looped("i", rows, LoopKind::Serial, |e, i| {
        place(e, &merged, space, &layout.row_axes, &i);
        e.hoist_if(&uses, &layout.col_axes, &|v| !after.contains(&v.node))?;
        let in_tile = |stride: Extent| i.sub(&scalars[3]).scale(stride).sub(&n0);
        let mut start = if layout.is_tile { in_tile(layout.row_stride) } else { i.scale(layout.row_stride) };
        for (b, stride) in scalars.iter().zip(layout.batch_strides) {
            start = start.add(&b.scale(stride));
        }
        let start = e.b.let_index("row", start);
        let sums_start = match sums {
            Some(Sums::Apart) => e.b.let_index("sums", in_tile(SUM_COLS.into())),
            _ => start.clone(),
        };
        let to = e.output(usize::from(sums == Some(Sums::Apart)));
        let wide = |_: u32| (0, i64::MAX / 8);
        let whole = match layout.whole_rows {
            true => n1.clone(),
            false => e.b.let_index("whole", n0.add(&n1.sub(&n0).floor_div(lanes, &wide).scale(lanes))),
        };
        let columns = VectorLoop { roots: &[result], coords, block: layout.cols, lanes };
        let enter = |e: &mut Inliner<'_>, j: Index| {
            place(e, &merged, space, &layout.col_axes, &j);
            if let Some(accumulated) = accumulated {
                let sum = e.b.load(e.output(0), sums_start.add(&j));
                e.bind(accumulated, Bound::Operand(sum));
            }
        };
        vector_math::columns(e, &columns, (n0.clone(), n1.clone(), whole), &enter, &|e, j| {
            let value = e.value(result, coords, None)?;
            e.b.store(to, start.add(j), value);
            Ok(())
        })
    })?;
    Ok(e.finish())
}

/// Which axes of the result or of an operand a block's batch, row and column counters walk, and its strides.
#[derive(Default)]
struct BlockAxes {
    batch_axes: [Vec<usize>; GEMM_BATCH_RANK],
    row_axes: Vec<usize>,
    col_axes: Vec<usize>,
    batch_strides: [Extent; GEMM_BATCH_RANK],
    row_stride: Extent,
    cols: Extent,
    /// Whether every block has all columns.
    whole_rows: bool,
    /// Whether blocks lie in memory of their own, from its beginning.
    is_tile: bool,
}

impl BlockAxes {
    /// Blocks of the left operand, of extents `dims`.
    fn of_left(library: &Library, dims: &Extents) -> BlockAxes {
        let (batch_axes, row_axes, col_axes, cols) = match library {
            Library::Gemm { gemm, .. } => {
                let Gemm { call, batch_axes, row_axes, depth_axes, .. } = (**gemm).clone();
                (batch_axes, row_axes, depth_axes, call.k)
            }
            Library::Conv { conv, .. } if conv.layouts[0] == ImageLayout::Nchw16c => {
                ([vec![0], vec![1], vec![]], vec![2, 3], vec![4], dims.at(4))
            }
            Library::Conv { .. } => ([vec![0], vec![], vec![]], vec![1], vec![2, 3], dims.at(2) * dims.at(3)),
        };
        let whole_rows = matches!(library, Library::Conv { conv, .. } if conv.layouts[0] == ImageLayout::Nchw16c);
        BlockAxes { batch_axes, row_axes, col_axes, row_stride: cols, cols, whole_rows, ..BlockAxes::default() }
    }

    fn new(library: &Library, dims: &Extents) -> BlockAxes {
        match library {
            Library::Gemm { gemm, .. } => BlockAxes {
                batch_axes: gemm.batch_axes.clone(),
                row_axes: gemm.row_axes.clone(),
                col_axes: gemm.col_axes.clone(),
                batch_strides: gemm.call.c.batch_strides,
                row_stride: gemm.call.c.row_stride,
                cols: gemm.call.n,
                ..BlockAxes::default()
            },
            Library::Conv { conv, .. } if conv.pass == ConvPass::FilterGradient => {
                let taps = dims.range(1..).count();
                BlockAxes {
                    row_axes: vec![0],
                    col_axes: (1..dims.len()).collect(),
                    row_stride: taps,
                    cols: taps,
                    ..BlockAxes::default()
                }
            }
            Library::Conv { conv, .. } if conv.layouts[1] == ImageLayout::Nhwc => BlockAxes {
                batch_axes: [vec![0], vec![], vec![]],
                row_axes: vec![1, 2],
                col_axes: vec![3],
                batch_strides: [conv.image_strides()[1], Extent::ZERO, Extent::ZERO],
                row_stride: dims.at(3),
                cols: dims.at(3),
                ..BlockAxes::default()
            },
            Library::Conv { conv, .. } if conv.layouts[1] == ImageLayout::Nchw16c => {
                let (pixels, lanes) = (dims.at(2) * dims.at(3), dims.at(4));
                BlockAxes {
                    batch_axes: [vec![0], vec![1], vec![]],
                    row_axes: vec![2, 3],
                    col_axes: vec![4],
                    batch_strides: [conv.image_strides()[1], pixels * lanes, Extent::ZERO],
                    row_stride: lanes,
                    cols: lanes,
                    whole_rows: true,
                    ..BlockAxes::default()
                }
            }
            Library::Conv { conv, .. } => {
                // Channels are one axis, or a group axis and one within the group.
                let channels = conv.groups
                    * match conv.pass {
                        ConvPass::DataGradient => conv.in_channels,
                        _ => conv.out_channels,
                    };
                let first_pixel = if dims.at(1) == channels { 2 } else { 3 };
                let pixels = dims.range(first_pixel..).count();
                let [x, y] = conv.image_strides();
                let result_image = if conv.pass == ConvPass::DataGradient { x } else { y };
                BlockAxes {
                    batch_axes: [vec![0], vec![], vec![]],
                    row_axes: (1..first_pixel).collect(),
                    col_axes: (first_pixel..dims.len()).collect(),
                    batch_strides: [result_image, Extent::ZERO, Extent::ZERO],
                    row_stride: pixels,
                    cols: pixels,
                    ..BlockAxes::default()
                }
            }
        }
    }
}

/// Sets the axes a counter walks: the innermost alone if it is the only one or all accesses walk them as one.
fn place(e: &mut Inliner<'_>, merged: &[MergedAxes], dims: &Extents, axes: &[usize], at: &Index) {
    let axes: Vec<usize> = axes.iter().copied().filter(|a| !dims.at(*a).is_surely(1)).collect();
    let extent: Extent = axes.iter().map(|a| dims.at(*a)).product();
    let Some(&last) = axes.last() else { return };
    if axes.len() == 1 || merged.iter().any(|g| g.axis == last && g.extent.is_surely(extent)) {
        e.set_axis(last, at.clone());
        return;
    }
    let limits = move |_: u32| (0, extent - 1);
    let mut weight = Extent::ONE;
    for &a in axes.iter().rev() {
        let digit = at.floor_div(weight, &limits).modulo(dims.at(a), &limits);
        e.set_axis(a, digit);
        weight = weight * dims.at(a);
    }
}
