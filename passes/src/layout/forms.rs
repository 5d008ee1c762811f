//! Where the elements of an image lie in each layout: the shape of a tensor that holds it so, and views to and from
//! planes.

use tensorc_abi::{CHANNEL_BLOCK, ImageLayout};
use tensorc_ir::index::Index;
use tensorc_ir::prim::View;
use tensorc_ir::{DenseType, Extent, Extents};

/// The image with leading axes of extent 1 up to a rank.
fn padded(ty: &DenseType, rank: usize) -> Vec<Extent> {
    let lead = std::iter::repeat_n(Extent::ONE, rank.saturating_sub(ty.rank()));
    lead.chain(ty.dims.all()).collect()
}

/// The tensor that holds an image, which broadcasts to a result of rank `rank` as the image does. Blocks of a single
/// channel have a single lane.
pub(super) fn form(ty: &DenseType, rank: usize, layout: ImageLayout) -> DenseType {
    let mut dims = padded(ty, rank);
    match layout {
        ImageLayout::Nchw => return ty.clone(),
        ImageLayout::Nchw16c => {
            let lanes = if dims[1] == 1 { 1 } else { CHANNEL_BLOCK };
            dims[1] = dims[1].div_floor(lanes);
            dims.push(lanes.into());
        }
        ImageLayout::Nhwc => dims[1..].rotate_left(1),
    }
    DenseType::new(ty.dtype, Extents::from_iter(dims))
}

/// Planes of a tensor of [`form`] at the image's own rank.
pub(super) fn to_planes(ty: &DenseType, layout: ImageLayout) -> View {
    let mut map: Vec<Index> = (0..ty.rank() as u32).map(Index::var).collect();
    match layout {
        ImageLayout::Nchw => {}
        ImageLayout::Nchw16c => {
            let lanes = if ty.dims.at(1) == 1 { 1 } else { CHANNEL_BLOCK as i64 };
            map[1] = Index::var(1).floor_div(lanes, &ty.dims);
            map.push(Index::var(1).modulo(lanes, &ty.dims));
        }
        ImageLayout::Nhwc => map[1..].rotate_left(1),
    }
    View { map, fill: None }
}

/// A tensor of [`form`] of planes.
pub(super) fn from_planes(ty: &DenseType, rank: usize, layout: ImageLayout) -> View {
    let lead = rank - ty.rank();
    let at = |axis: usize| match (layout, lead + axis) {
        _ if ty.dims.at(axis) == 1 => Index::constant(0),
        (ImageLayout::Nchw, axis) => Index::var(axis as u32 - lead as u32),
        (ImageLayout::Nchw16c, 1) => Index::var(1).scale(CHANNEL_BLOCK as i64).add(&Index::var(rank as u32)),
        (ImageLayout::Nhwc, axis) => moved(axis, rank),
        (_, axis) => Index::var(axis as u32),
    };
    View { map: (0..ty.rank()).map(at).collect(), fill: None }
}

/// Axis `axis` of an image of rank `rank` whose channels are last.
pub(super) fn moved(axis: usize, rank: usize) -> Index {
    Index::var(last_axis(axis, rank) as u32)
}

/// The position of axis `axis` of an image of rank `rank` whose channels are last.
pub(super) fn last_axis(axis: usize, rank: usize) -> usize {
    match axis {
        0 => 0,
        1 => rank - 1,
        axis => axis - 1,
    }
}

/// Whether every element lies in the same place in both layouts.
pub(super) fn coincide(ty: &DenseType, rank: usize, a: ImageLayout, b: ImageLayout) -> bool {
    use ImageLayout::{Nchw, Nchw16c, Nhwc};
    let dims = padded(ty, rank.max(2));
    let (channels, pixels) = (dims[1], dims[2..].iter().copied().product::<Extent>());
    match (a, b) {
        _ if a == b || pixels == 1 || channels == 1 => true,
        (Nchw16c, Nhwc) | (Nhwc, Nchw16c) => channels == CHANNEL_BLOCK,
        (Nchw, _) | (_, Nchw) | (Nchw16c, Nchw16c) | (Nhwc, Nhwc) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_abi::DType;
    use tensorc_ir::views::{compose, keeps_linear_order};

    #[test]
    fn there_and_back_is_nowhere_and_coinciding_layouts_are_one() {
        for dims in [&[2, 32, 3, 5][..], &[2, 16, 7], &[1, 48, 1, 1], &[3, 1, 4, 2], &[2, 32]] {
            let ty = DenseType::new(DType::F32, dims);
            for layout in ImageLayout::ALL {
                let (to, form) = (from_planes(&ty, ty.rank(), layout), form(&ty, ty.rank(), layout));
                let back = compose(&to, &ty.dims, &to_planes(&ty, layout), &form.dims, &ty.dims);
                let same = back.is_some_and(|view| keeps_linear_order(&view, &ty, &ty.dims));
                assert!(same, "{dims:?} {layout:?}");
                let kept = keeps_linear_order(&to, &ty, &form.dims);
                assert_eq!(kept, coincide(&ty, ty.rank(), ImageLayout::Nchw, layout), "{dims:?} {layout:?}");
            }
            let (blocks, last) = (ImageLayout::Nchw16c, ImageLayout::Nhwc);
            let [form_b, form_l] = [blocks, last].map(|layout| form(&ty, ty.rank(), layout));
            let (back, to) = (to_planes(&ty, blocks), from_planes(&ty, ty.rank(), last));
            let both = compose(&back, &form_b.dims, &to, &ty.dims, &form_l.dims);
            let kept = both.is_some_and(|view| keeps_linear_order(&view, &form_b, &form_l.dims));
            assert_eq!(kept, coincide(&ty, ty.rank(), blocks, last), "{dims:?}");
        }
    }
}
