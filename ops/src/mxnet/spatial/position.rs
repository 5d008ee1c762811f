//! Pooling of regions in which every bin has channels of its own (Dai et al., "R-FCN", 2016).

use super::region::{column, half_away};
use crate::prelude::*;

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
fn edges(rois: Tensor<'_>, first: u64, scale: f64, bins: u64, n: u64) -> Result<Tensor<'_>> {
    let count = rois.dims()?[0];
    let ends = [first, first + 2].map(|i| column(rois, i).reshape([count, 1, 1]));
    Ok(rois.graph().map(&ends, DType::I64, [count, bins, 2], |s, a| {
        let (start, end) = (half_away(&a[0]) * scale, (half_away(&a[1]) + 1.0) * scale);
        // In f64, where a factor in place of the divisor moves no edge.
        let length = (end - &start).max(&start.lit(0.1));
        let size = (length.cast(DType::F64) / bins as f64).cast(length.dtype());
        let bin = s.coord(1).cast(size.dtype());
        let low = (&bin * &size + &start).floor();
        let high = ((bin + 1.0) * size + &start).ceil();
        let at = s.coord(2).eq(&s.coord(2).lit(0.0)).select(&low, &high);
        at.max(&at.lit(0.0)).min(&at.lit(n as f64)).cast(DType::I64)
    }))
}

/// Where bins lie: the image of a region, its rows and its columns.
#[derive(Clone, Copy)]
struct BinPlaces<'k> {
    image: KernelTensor<'k>,
    edges: [KernelTensor<'k>; 2],
}

/// A bin of a region: its image, rows, columns, and whether it has any element, and how many.
struct Bin<'k> {
    image: Index,
    spans: [(Index, Index); 2],
    area: KernelValue<'k>,
    some: KernelValue<'k>,
}

impl<'k> BinPlaces<'k> {
    fn new([image, rows, columns]: [KernelTensor<'k>; 3]) -> BinPlaces<'k> {
        BinPlaces { image, edges: [rows, columns] }
    }

    /// A bin of a region, by its row and its column; `image` has the extents of the images.
    fn bin(&self, region: &Index, at: [&Index; 2], image: &[u64]) -> Bin<'k> {
        let along = |axis: usize| {
            let [low, high] = [0, 1].map(|side| self.edges[axis].get([region, at[axis], &Index::constant(side)]));
            let length = (high - low).max(0);
            (length, [low, high].map(|side| bounded(&side.index(), image[2 + axis])))
        };
        let ((height, [top, bottom]), (width, [left, right])) = (along(0), along(1));
        let area = height * width;
        let some = area.gt(0);
        Bin { image: self.image.position(region, image[0]), spans: [(top, bottom), (left, right)], area, some }
    }
}

impl Bin<'_> {
    /// Runs `body` at every element of the bin, by its row and its column.
    fn each(&self, k: &KernelScope, body: impl FnOnce(&Index, &Index)) {
        let [(top, bottom), (left, right)] = &self.spans;
        k.range("y", (top, bottom), |y| k.range("x", (left, right), |x| body(y, x)));
    }
}

fn means(data: &DenseType, places: [&DenseType; 3], out: &DenseType, grid: Grid) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("position_sensitive_means");
    let data = k.input("data", data);
    let places = BinPlaces::new(k.inputs(["image", "rows", "columns"], places));
    let result = k.output("out", out);
    let wide = compute_type(data.dtype());
    k.parallel(&out.dims, |at| {
        let total = k.cell("total", wide).holding(0.0);
        let bin = places.bin(&at[0], [&at[2], &at[3]], &data.dims());
        let groups = grid.groups as i64;
        let channel = at[1].scale(groups).add(&grid.group(&at[2])).scale(groups).add(&grid.group(&at[3]));
        bin.each(k, |y, x| {
            let value = data.get_as([&bin.image, &channel, y, x], wide);
            total.add(value);
        });
        let (sum, area) = (total.get(), bin.area.cast(wide));
        let mean = sum / area;
        result.set_cast(at, bin.some.select(mean, 0.0));
    });
    k.finish()
}

/// The adjoint of [`means`]: the gradient of a bin goes to its elements in equal shares.
fn spread(head: &DenseType, places: [&DenseType; 3], sums: &DenseType, grid: Grid) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("position_sensitive_shares");
    let head = k.input("head", head);
    let places = BinPlaces::new(k.inputs(["image", "rows", "columns"], places));
    let result = k.output("sums", sums);
    let wide = sums.dtype;
    let each = [head.dims()[1], grid.groups, grid.groups];
    k.parallel(&each, |at| {
        let channel = linearize(at, &each);
        k.serial(&[sums.dims[0], sums.dims[2], sums.dims[3]], |p| {
            result.set([&p[0], &channel, &p[1], &p[2]], 0.0);
        });
        k.serial(&[head.dims()[0], grid.bins, grid.bins], |p| {
            let own = |bin: &Index, group: &Index| k.position(&grid.group(bin)).eq(group);
            let (by_row, by_column) = (own(&p[1], &at[1]), own(&p[2], &at[2]));
            k.when(by_row & by_column, || {
                let bin = places.bin(&p[0], [&p[1], &p[2]], &sums.dims);
                let part = head.get_as([&p[0], &at[0], &p[1], &p[2]], wide);
                let share = part / bin.area.cast(wide);
                bin.each(k, |y, x| result.add([&bin.image, &channel, y, x], share));
            });
        });
    });
    k.finish()
}

/// What a kernel makes of `x` and of where bins lie: their image, rows and columns.
fn over_bins<'g>(
    cx: &NodeCtx<'_>,
    x: Tensor<'g>,
    result: DenseType,
    kernel: fn(&DenseType, [&DenseType; 3], &DenseType, Grid) -> Result<Kernel, OpError>,
) -> Result<Tensor<'g>> {
    let (g, grid) = (x.graph(), Grid::of(cx.params));
    let (image, rois) = (g.operand(0).dims()?, g.operand(1));
    let scale = cx.params.float("spatial_scale").unwrap_or(1.0);
    let number = column(rois, 0).reshape([rois.dims()?[0]]).convert(DType::I64);
    let (rows, columns) = (edges(rois, 2, scale, grid.bins, image[2])?, edges(rois, 1, scale, grid.bins, image[3])?);
    let places = [&number.ty()?, &rows.ty()?, &columns.ty()?];
    let kernel = kernel(&x.ty()?, places, &result, grid);
    Ok(g.kernel(kernel, &[x, number, rows, columns], &[result])?[0])
}

pub fn psroi_pooling() -> OpDef {
    let infer = shape_rule(|cx| {
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
    define("mx_psroi_pooling", doc, formula(|g, cx| over_bins(cx, g.operand(0), cx.outputs[0].clone(), means)), infer)
        .groups(&["data", "rois"], FLOATS)
        .required("spatial_scale", ParamKind::Float, "elements of the data per unit of the regions")
        .required("output_dim", ParamKind::Int, "channels of the result")
        .required("pooled_size", ParamKind::Int, "bins along an axis")
        .param("group_size", 0, "groups of bins along an axis; 0: each bin is one")
        .gradient(derivative(|g, cx| {
            let ty = g.operand(0).ty()?;
            let sums = DenseType::new(compute_type(ty.dtype), &ty.dims);
            let part = over_bins(cx.node, g.head(cx, 0), sums, spread)?;
            Ok(vec![Some(part.convert(ty.dtype)), None])
        }))
        .ulp(2.0)
        .named(&["_contrib_PSROIPooling"])
}
