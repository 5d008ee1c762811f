//! Pooling of regions in which every bin has channels of its own (Dai et al., "R-FCN", 2016).

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::mxnet::support::Describe;
use crate::nest::{Scalars, buffers, flat, int, parallel, serial};
use crate::prelude::*;

type KernelParts<T> = Result<T, OpError>;

/// Bins along an axis, and groups of bins with channels of their own.
#[derive(Clone, Copy)]
struct Grid {
    bins: u64,
    groups: u64,
}

impl Grid {
    fn of(params: &Params) -> Grid {
        let bins = params.int("pooled_size").unwrap_or(1).max(1) as u64;
        let groups = params.int("group_size").unwrap_or(0);
        Grid { bins, groups: if groups > 0 { groups as u64 } else { bins } }
    }

    /// The group of a bin.
    fn group(self, bin: &Index) -> Index {
        bin.scale(self.groups as i64).floor_div(self.bins as i64, &|_: u32| (0, i64::MAX / 8))
    }
}

/// First and last position (exclusive) of every bin of every region along an axis of `n`, [regions, bins, 2].
fn edges(b: &mut Builder<'_>, rois: Value, first: u64, scale: f64, bins: u64, n: u64) -> Result<Value> {
    let count = b.dims(rois)?[0];
    let mut ends = vec![];
    for column in [first, first + 2] {
        let end = b.slice_axis(rois, 1, column, 1)?;
        ends.push(b.reshaped(end, &[count, 1, 1])?);
    }
    b.map_as(&ends, DType::I64, &[count, bins, 2], |s, a| {
        // Halves go away from zero, as in C.
        let round = |x: &Ex| {
            let up = (x.abs() + x.lit(0.5)).floor();
            x.lt(&x.lit(0.0)).select(&-&up, &up)
        };
        let (start, end) = (round(&a[0]) * scale, (round(&a[1]) + 1.0) * scale);
        // In f64, where a factor in place of the divisor moves no edge.
        let length = (end - &start).max(&start.lit(0.1));
        let size = (length.cast(DType::F64) / bins as f64).cast(length.dtype());
        let bin = s.coord(1).cast(size.dtype());
        let low = (&bin * &size + &start).floor();
        let high = ((bin + 1.0) * size + &start).ceil();
        let at = s.coord(2).eq(&s.coord(2).lit(0.0)).select(&low, &high);
        at.max(&at.lit(0.0)).min(&at.lit(n as f64)).cast(DType::I64)
    })
}

/// Buffers that say where bins lie: the image of a region, its rows and its columns.
#[derive(Clone, Copy)]
struct BinBuffers {
    image: Buf,
    edges: [Buf; 2],
}

/// A bin of a region: its image, rows, columns, and whether it has any element, and how many.
struct Bin {
    image: Index,
    spans: [(Index, Index); 2],
    area: Operand,
    some: Operand,
}

impl BinBuffers {
    fn bin(&self, k: &mut KernelBuilder, region: &Index, bin: [&Index; 2], grid: Grid, image: &[u64]) -> Bin {
        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        let mut along = |axis: usize, at| {
            let extent = Index::constant(image[2 + axis] as i64);
            let sides = [0, 1].map(|side| {
                let at = region.scale(grid.bins as i64).add(at).scale(2).offset(side);
                k.load(self.edges[axis], at)
            });
            let difference = k.bin(ScalarOp::Sub, sides[1], sides[0]);
            let length = k.bin(ScalarOp::Max, difference, int(0));
            let [low, high] =
                sides.map(|side| k.as_index(side).maximum(&Index::default(), &free).minimum(&extent, &free));
            (length, (low, high))
        };
        let [down, across] = bin;
        let ((height, rows), (width, columns)) = (along(0, down), along(1, across));
        let area = k.bin(ScalarOp::Mul, height, width);
        let some = k.cmp(CmpOp::Gt, area, int(0));
        let n = k.load(self.image, region.clone());
        Bin { image: k.position(n, image[0]), spans: [rows, columns], area, some }
    }
}

/// Runs `body` at every element of a bin.
fn elements(k: &mut KernelBuilder, bin: &Bin, mut body: impl FnMut(&mut KernelBuilder, [Index; 2])) -> KernelParts<()> {
    let [(top, bottom), (left, right)] = bin.spans.clone();
    k.for_loop("y", (top, bottom, 1), LoopKind::Serial, |k, y| {
        k.for_loop("x", (left, right, 1), LoopKind::Serial, |k, x| {
            body(k, [y, x]);
            Ok::<(), OpError>(())
        })
    })
}

fn means(data: &DenseType, places: [&DenseType; 3], out: &DenseType, grid: Grid) -> KernelParts<Kernel> {
    let mut k = KernelBuilder::new("position_sensitive_means");
    let inputs = [("data", data), ("image", places[0]), ("rows", places[1]), ("columns", places[2])];
    let bufs = buffers(&mut k, &inputs, &[("out", out)]);
    let at_bins = BinBuffers { image: bufs[1], edges: [bufs[2], bufs[3]] };
    let wide = compute_type(data.dtype);
    parallel(&mut k, &out.dims, |k, at| {
        let total = k.alloc("total", wide, 1, MemorySpace::Stack);
        let zero = Operand::Const(Scalar::zero(wide));
        k.store(total, Index::default(), zero);
        let bin = at_bins.bin(k, &at[0], [&at[2], &at[3]], grid, &data.dims);
        let groups = grid.groups as i64;
        let channel = at[1].scale(groups).add(&grid.group(&at[2])).scale(groups).add(&grid.group(&at[3]));
        elements(k, &bin, |k, [y, x]| {
            let value = k.load(bufs[0], flat(&[bin.image.clone(), channel.clone(), y, x], &data.dims));
            let (value, old) = (k.cast(value, wide), k.load(total, Index::default()));
            let sum = k.bin(ScalarOp::Add, old, value);
            k.store(total, Index::default(), sum);
        })?;
        let (sum, area) = (k.load(total, Index::default()), k.cast(bin.area, wide));
        let mean = k.bin(ScalarOp::Div, sum, area);
        let mean = k.select(bin.some, mean, zero);
        let mean = k.cast(mean, out.dtype);
        k.store(bufs[4], flat(at, &out.dims), mean);
        Ok(())
    })?;
    Ok(k.finish())
}

/// The adjoint of [`means`]: the gradient of a bin goes to its elements in equal shares.
fn spread(head: &DenseType, places: [&DenseType; 3], sums: &DenseType, grid: Grid) -> KernelParts<Kernel> {
    let mut k = KernelBuilder::new("position_sensitive_shares");
    let inputs = [("head", head), ("image", places[0]), ("rows", places[1]), ("columns", places[2])];
    let bufs = buffers(&mut k, &inputs, &[("sums", sums)]);
    let at_bins = BinBuffers { image: bufs[1], edges: [bufs[2], bufs[3]] };
    let wide = sums.dtype;
    let each = [head.dims[1], grid.groups, grid.groups];
    parallel(&mut k, &each, |k, at| {
        let channel = flat(at, &each);
        serial(k, &[sums.dims[0], sums.dims[2], sums.dims[3]], &mut |k, p| {
            let to = flat(&[p[0].clone(), channel.clone(), p[1].clone(), p[2].clone()], &sums.dims);
            k.store(bufs[4], to, Operand::Const(Scalar::zero(wide)));
            Ok(())
        })?;
        serial(k, &[head.dims[0], grid.bins, grid.bins], &mut |k, p| {
            let mut own = |bin: &Index, group: &Index| {
                let (found, wanted) = (k.index_value(grid.group(bin)), k.index_value(group.clone()));
                k.cmp(CmpOp::Eq, found, wanted)
            };
            let (by_row, by_column) = (own(&p[1], &at[1]), own(&p[2], &at[2]));
            let own = k.bin(ScalarOp::And, by_row, by_column);
            k.if_then(own, |k| {
                let bin = at_bins.bin(k, &p[0], [&p[1], &p[2]], grid, &sums.dims);
                let from = flat(&[p[0].clone(), at[0].clone(), p[1].clone(), p[2].clone()], &head.dims);
                let part = k.load(bufs[0], from);
                let (part, area) = (k.cast(part, wide), k.cast(bin.area, wide));
                let share = k.bin(ScalarOp::Div, part, area);
                elements(k, &bin, |k, [y, x]| {
                    let to = flat(&[bin.image.clone(), channel.clone(), y, x], &sums.dims);
                    let old = k.load(bufs[4], to.clone());
                    let sum = k.bin(ScalarOp::Add, old, share);
                    k.store(bufs[4], to, sum);
                })
            })
        })
    })?;
    Ok(k.finish())
}

/// Image, rows and columns of the bins of regions, and their types.
fn places(b: &mut Builder<'_>, params: &Params, rois: Value, image: &[u64]) -> Result<([Value; 3], [DenseType; 3])> {
    let scale = params.float("spatial_scale").unwrap_or(1.0);
    let (grid, count) = (Grid::of(params), b.dims(rois)?[0]);
    let number = b.slice_axis(rois, 1, 0, 1)?;
    let number = b.reshaped(number, &[count])?;
    let found = [
        b.converted(number, DType::I64)?,
        edges(b, rois, 2, scale, grid.bins, image[2])?,
        edges(b, rois, 1, scale, grid.bins, image[3])?,
    ];
    let types = [b.ty(found[0])?, b.ty(found[1])?, b.ty(found[2])?];
    Ok((found, types))
}

fn body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Value> {
    let (data, rois) = (operand(b, args, 0)?, operand(b, args, 1)?);
    let (ty, out) = (b.ty(data)?, cx.outputs[0].clone());
    let (at, types) = places(b, cx.params, rois, &ty.dims)?;
    let kernel = means(&ty, [&types[0], &types[1], &types[2]], &out, Grid::of(cx.params)).or_fail(b)?;
    Ok(b.kernel(kernel, &[data, at[0], at[1], at[2]], &[out])[0])
}

pub fn psroi_pooling() -> OpDef {
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        for name in ["output_dim", "pooled_size"] {
            if let Some(n) = cx.params.int(name).filter(|n| *n < 1) {
                return Err(OpError(format!("parameter `{name}` is {n}, expected at least 1")));
            }
        }
        let (Some(data), Some(rois)) = (rank_in(cx, 0, 4..=4)?, rank_in(cx, 1, 2..=2)?) else { return Ok(()) };
        shaped(cx, 1, &[rois[0], Dim::Const(5)])?;
        let (grid, results) = (Grid::of(cx.params), cx.params.int("output_dim").unwrap_or(1) as u64);
        cx.unify_dims(data[1], Dim::Const(results * grid.groups * grid.groups), "output_dim · group_size² channels")?;
        let bins = Dim::Const(grid.bins);
        cx.set_output_dims(0, [rois[0], Dim::Const(results), bins, bins])
    });
    let doc = "The mean of every bin of regions [image, x1, y1, x2, y2] of images, each bin in channels of its own: \
               result channel d takes channel (d·group_size + row group)·group_size + column group. 0 of an empty bin.";
    define("mx_psroi_pooling", doc, composite(body), infer)
        .group("data", FLOATS)
        .group("rois", FLOATS)
        .required("spatial_scale", ParamKind::Float, "elements of the data per unit of the regions")
        .required("output_dim", ParamKind::Int, "channels of the result")
        .required("pooled_size", ParamKind::Int, "bins along an axis")
        .param("group_size", ParamValue::Int(0), "groups of bins along an axis; 0: each bin is one")
        .gradient(|b, cx| {
            let (data, rois, head) = (cx.input(0)?, cx.input(1)?, cx.head(b, 0)?);
            let (ty, head_ty) = (b.ty(data)?, b.ty(head)?);
            let (at, types) = places(b, cx.node.params, rois, &ty.dims)?;
            let sums = DenseType::new(compute_type(ty.dtype), &ty.dims);
            let of = [&types[0], &types[1], &types[2]];
            let kernel = spread(&head_ty, of, &sums, Grid::of(cx.node.params)).or_fail(b)?;
            let part = b.kernel(kernel, &[head, at[0], at[1], at[2]], &[sums])[0];
            Ok(vec![Some(b.converted(part, ty.dtype)?), None])
        })
        .ulp(2.0)
        .named(&["_contrib_PSROIPooling"])
}
