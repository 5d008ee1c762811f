//! Operand loads and epilogue stores, shared by the three matrix-product kernels.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, Operand};
use tensorc_ir::scalar::{Scalar, ScalarOp};
use tensorc_schedule::access::product::{MatrixProduct, total};

use super::loops::{below, inside, set_groups};
use super::next_multiple;
use crate::emit::inline::{Bound, Inliner};

/// The element of an operand in a row or column and of a term, zero beyond the last ones, which tiles of the given length and
/// terms may reach.
pub fn operand_element(
    e: &mut Inliner<'_>,
    product: &MatrixProduct,
    operand: usize,
    (position, term): (&Index, &Index),
    [length, depth]: [u64; 2],
) -> Result<Operand> {
    let (groups, index) = (product.own_axes(operand), product.index_map(operand));
    let (extent, terms) = (total(groups), product.terms());
    let inside = inside(e, &[(position, extent, length), (term, terms, depth)]);
    set_groups(e, groups, position, extent);
    set_groups(e, &product.axes.terms, term, terms);
    let ty = e.cluster.ty(product.operands[operand])?;
    let guard = e.guard(index, &ty.dims, inside);
    let value = e.value(product.operands[operand], index, guard)?;
    let zero = Operand::Const(Scalar::zero(ty.dtype));
    Ok(match guard {
        Some(cond) => e.b.op(ScalarOp::Select, &[cond, value, zero]),
        None => value,
    })
}

/// Stores the epilogue of `width` neighbouring results of a row; register `at` of `sums` has the first sum. Results outside the
/// matrix, which the last tiles cover, are not stored.
pub fn store_run(
    e: &mut Inliner<'_>,
    product: &MatrixProduct,
    (sums, at): (Buf, &Index),
    (row, column): (&Index, &Index),
    tile: [u64; 2],
    width: u64,
) -> Result<()> {
    let (rows, columns) = (product.rows(), product.columns());
    let range = (Index::default(), Index::constant(width as i64), 1);
    let most = next_multiple(columns, tile[1]);
    below(e, row, rows, next_multiple(rows, tile[0]), |e| {
        set_groups(e, &product.axes.rows, row, rows);
        if width > 1 && columns.sure_quotient(width).is_some() {
            return below(e, column, columns, most, |e| {
                e.looped("l", range, LoopKind::Vector, |e, l| {
                    store_one(e, product, (sums, at.add(&l)), &column.add(&l))
                })
            });
        }
        e.looped("l", range, LoopKind::Unroll, |e, l| {
            let column = e.b.let_index("column", column.add(&l));
            below(e, &column, columns, most, |e| store_one(e, product, (sums, at.add(&l)), &column))
        })
    })
}

fn store_one(e: &mut Inliner<'_>, product: &MatrixProduct, (sums, at): (Buf, Index), column: &Index) -> Result<()> {
    let dtype = e.cluster.ty(product.value)?.dtype;
    set_groups(e, &product.axes.columns, column, product.columns());
    let sum = e.b.load(sums, at);
    let sum = if e.b.dtype(sum) == dtype { sum } else { e.b.op(ScalarOp::Cast(dtype), &[sum]) };
    e.bind(product.value, Bound::Operand(sum));
    let values = product.stored.iter().map(|s| e.value(s.value, &s.coords, None)).collect::<Result<Vec<_>>>()?;
    for (s, value) in product.stored.iter().zip(values) {
        let at = e.kernel_index(&s.address);
        e.b.store(e.output(s.output), at, value);
    }
    Ok(())
}
