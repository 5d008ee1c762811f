//! Recognition of the gradients of convolutions.
//!
//! Maps are compared by what they say, not by how they are written: channel indices up to equal normal
//! forms, and where a gradient's windows lie by looking at every position and tap of an axis.

use tensorc_abi::{Conv2d, ConvPass, DType};
use tensorc_ir::index::Index;
use tensorc_ir::prim::Contraction;
use tensorc_ir::{DenseType, Extent, Extents};

use super::{join_pair, same};

/// Positions times taps of an axis above which its windows are not looked at one by one.
const MAX_PAIRS: u64 = 1 << 20;

/// The contraction as the gradient of a convolution's filters (one- or two-dimensional, grouped or
/// not).
///
/// Axes `[oc, ic, kernel…, n, out…]`, where `oc` counts output channels of all groups; left operand
/// `(n, floordiv(oc, oc per group)·ic per group + ic, out·stride + kernel·dilation - pad, …)`, right
/// operand the gradient of y, `(n, oc, out…)`, whose channels may be split into groups.
pub(crate) fn as_conv_filter_gradient(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let spatial = axes(c, lhs, rhs)?;
    let (n, out) = (2 + spatial, 3 + spatial);
    if c.out_rank != n || c.extents.len() != out + spatial || lhs.rank() != spatial + 2 {
        return None;
    }
    let (mut map, mut dims): (_, Vec<Extent>) = (c.rhs.clone(), rhs.dims.all().collect());
    if rhs.rank() == spatial + 3 {
        join_pair(&mut map, &mut dims, 1, &c.extents);
    }
    let (channels, per_group) = (c.extents.at(0), c.extents.at(1));
    let groups = lhs.dims.at(1).sure_quotient(per_group).filter(|n| *n > 0)?;
    let filters = channels.sure_quotient(groups)?;
    if [lhs.dims.at(0), lhs.dims.at(1)] != [c.extents.at(n), groups * per_group] || channels != groups * filters {
        return None;
    }
    let var = |i: usize| Index::var(i as u32);
    let group = var(0).floor_div(filters.greatest(1), &c.extents);
    let right = [&[n, 0][..], &(out..out + spatial).collect::<Vec<_>>()].concat();
    let canonical = same(&c.lhs[0], &var(n), &c.extents)
        && same(&c.lhs[1], &group.scale(per_group).add(&var(1)), &c.extents)
        && right.iter().zip(&map).all(|(v, m)| same(m, &var(*v), &c.extents))
        && right.iter().zip(&dims).all(|(v, d)| c.extents.at(*v) == *d);
    if !canonical || dims.len() != spatial + 2 {
        return None;
    }
    let mut conv = super::unit(ConvPass::FilterGradient, [c.extents.at(n), groups, per_group, filters]);
    for s in 0..spatial {
        let (axis, o, k) = (2 - spatial + s, out + s, 2 + s);
        (conv.input[axis], conv.output[axis], conv.kernel[axis]) =
            (lhs.dims.at(2 + s), c.extents.at(o), c.extents.at(k));
        let window = super::window(&c.lhs[2 + s], o, k, &c.extents)?;
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window;
    }
    Some(conv)
}

/// The contraction as the gradient of a convolution's operand (one- or two-dimensional, grouped or
/// not).
///
/// Axes `[n, ic, in…, oc, kernel…]`, where `ic` counts input channels of all groups and `oc` output
/// channels of one; left operand the gradient of y, `(n, floordiv(ic, ic per group)·oc per group + oc,
/// (in + pad - kernel·dilation) / stride, …)`, which is out of range where the quotient is not exact,
/// and whose channels may be split into groups; right operand the filters.
pub(crate) fn as_conv_data_gradient(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let spatial = axes(c, rhs, lhs)?;
    let (oc, kernel) = (2 + spatial, 3 + spatial);
    if c.out_rank != oc || c.extents.len() != kernel + spatial || rhs.rank() != spatial + 2 {
        return None;
    }
    let (mut map, mut dims): (_, Vec<Extent>) = (c.lhs.clone(), lhs.dims.all().collect());
    if lhs.rank() == spatial + 3 {
        join_pair(&mut map, &mut dims, 1, &c.extents);
    }
    let (filters, per_group) = (c.extents.at(oc), rhs.dims.at(1));
    let groups = if per_group == 0 { return None } else { c.extents.at(1).sure_quotient(per_group)? };
    let var = |i: usize| Index::var(i as u32);
    let group = var(1).floor_div(per_group.greatest(1), &c.extents);
    let within = var(1).modulo(per_group.greatest(1), &c.extents);
    let channel = group.scale(filters).add(&var(oc));
    let canonical = dims.len() == spatial + 2
        && dims[..2] == [c.extents.at(0), groups * filters]
        && rhs.dims.at(0) == groups * filters
        && c.extents.at(1) == groups * per_group
        && rhs.dims.range(2..) == c.extents.range(kernel..)
        && same(&map[0], &var(0), &c.extents)
        && same(&map[1], &channel, &c.extents)
        && same(&c.rhs[0], &channel, &c.extents)
        && same(&c.rhs[1], &within, &c.extents);
    if !canonical {
        return None;
    }
    let mut conv = super::unit(ConvPass::DataGradient, [c.extents.at(0), groups, per_group, filters]);
    for s in 0..spatial {
        let (axis, h, k) = (2 - spatial + s, 2 + s, kernel + s);
        let (last, tap) = (c.extents.at(k) - 1, &c.rhs[2 + s]);
        let backwards = match () {
            _ if same(tap, &var(k), &c.extents) => false,
            _ if same(tap, &var(k).scale(-1).offset(last), &c.extents) => true,
            _ => return None,
        };
        (conv.input[axis], conv.output[axis], conv.kernel[axis]) = (c.extents.at(h), dims[2 + s], c.extents.at(k));
        let window = reached(&map[2 + s], (h, k), backwards, dims[2 + s], &c.extents)?;
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window;
    }
    Some(conv)
}

/// The number of spatial axes of f32 operands, `image` of rank two more and `other` of that or, with
/// channels split into groups, one more.
fn axes(c: &Contraction, image: &DenseType, other: &DenseType) -> Option<usize> {
    let spatial = image.rank().checked_sub(2)?;
    let fits = (1..=2).contains(&spatial)
        && [image, other].iter().all(|ty| ty.dtype == DType::F32)
        && (spatial + 2..=spatial + 3).contains(&other.rank())
        && !super::sums_nothing(c)
        && super::addressable(c, [image, other]);
    fits.then_some(spatial)
}

/// Stride, dilation and padding of the windows along one axis, if `index` is the position of the one of
/// `n` windows whose tap lies at position `h`, and outside `0..n` where there is none.
fn reached(
    index: &Index,
    (h, k): (usize, usize),
    backwards: bool,
    n: Extent,
    extents: &Extents,
) -> Option<(Extent, Extent, Extent)> {
    let (positions, taps, n) = (extents.at(h).fixed(), extents.at(k).fixed(), n.fixed());
    let mut own = true;
    index.visit_vars(&mut |v| own &= [h, k].contains(&(v as usize)) || extents.at(v as usize) == 1);
    if !own || (positions as u64).checked_mul(taps as u64)? > MAX_PAIRS {
        return None;
    }
    let at = |position: i64, tap: i64| {
        let tap = if backwards { taps - 1 - tap } else { tap };
        let window = index.eval(&|v| match v as usize {
            v if v == h => position,
            v if v == k => tap,
            _ => 0,
        });
        (0..n).contains(&window).then_some(window)
    };
    let pairs = || (0..taps).flat_map(move |tap| (0..positions).map(move |position| (position, tap)));
    // position = window·stride + tap·dilation - pad
    let (first_position, first_tap, first) =
        pairs().find_map(|(position, tap)| Some((position, tap, at(position, tap)?)))?;
    let stride = (0..positions)
        .find_map(|p| at(p, first_tap).filter(|w| *w != first).map(|w| (p - first_position) / (w - first)))
        .unwrap_or(1);
    let dilation = pairs()
        .find(|(p, tap)| *tap != first_tap && at(*p, *tap).is_some())
        .and_then(|(p, tap)| Some((p - first_position - (at(p, tap)? - first) * stride) / (tap - first_tap)))
        .unwrap_or(1);
    let pad = first * stride + first_tap * dilation - first_position;
    if stride < 1 || dilation < 1 || pad < 0 {
        return None;
    }
    let fits = pairs().all(|(position, tap)| {
        let reach = position + pad - tap * dilation;
        let window = reach.div_euclid(stride);
        at(position, tap) == (reach.rem_euclid(stride) == 0 && (0..n).contains(&window)).then_some(window)
    });
    fits.then_some((stride.into(), dilation.into(), pad.into()))
}
