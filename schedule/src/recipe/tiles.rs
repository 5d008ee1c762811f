//! Tiles of matrix products on a GPU: by ordinary multiplications, and by the matrix units of warps.

use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::kir::Mma;
use tensorc_ir::{DType, Extent};

use crate::access::Located;
use crate::access::product::MatrixProduct;

/// Fewest results of each batch that are worth tiles.
pub(crate) const MIN_RESULTS: u64 = 64;
/// Sides of tiles by ordinary multiplications.
pub(crate) const SIDES: [u64; 4] = [16, 32, 64, 128];
/// Sides of tiles by matrix units.
pub(crate) const UNIT_SIDES: [u64; 2] = [64, 128];
/// Tiles that occupy a GPU, by ordinary multiplications and by matrix units.
const MIN_TILES: u64 = 128;
const MIN_MATRIX_UNIT_TILES: u64 = 100;
/// Rows and columns of one product of matrix units.
pub const UNIT_ROWS: u64 = 16;
/// Columns of one product of matrix units.
pub const UNIT_COLUMNS: u64 = 8;

/// The rows and columns of a tile by ordinary multiplications: large where there are enough tiles to occupy a GPU. Results do not
/// depend on them, as terms are added in one order. An open extent may be large.
pub fn ordinary(product: &MatrixProduct) -> [u64; 2] {
    let most = if advice(|| product.tiles(128, 128) >= MIN_TILES) { 128 } else { 64 };
    let holds = |side: u64, n: Extent| !n.is_open() && n <= side;
    let fit = |n: Extent| SIDES.into_iter().find(|side| holds(*side, n) || *side == most).unwrap_or(most);
    [fit(product.rows()), fit(product.columns())]
}

/// Whether matrix units multiply the operands, and the product is large enough for them.
///
/// # Errors
/// The type of an operand is not known.
pub(crate) fn fits_matrix_units(cluster: &Located<'_>, product: &MatrixProduct, tf32: bool) -> Result<bool> {
    let [a, b] = product.operands;
    let (a, b) = (cluster.ty(a)?.dtype, cluster.ty(b)?.dtype);
    let taken = matches!(a, DType::F16 | DType::BF16) || a == DType::F32 && tf32;
    let large = || product.rows() >= UNIT_ROWS && product.columns() >= UNIT_COLUMNS;
    Ok(a == b && taken && large() && product.terms() >= unit_terms(a))
}

/// Terms of one product of matrix units.
pub fn unit_terms(dtype: DType) -> u64 {
    Mma::depth(dtype).unwrap_or(1) as u64
}

/// The side of a tile by matrix units: large where there are enough tiles to occupy a GPU. Results do not depend on it.
pub(crate) fn unit_side(product: &MatrixProduct) -> u64 {
    if advice(|| product.tiles(128, 128) >= MIN_MATRIX_UNIT_TILES) { 128 } else { 64 }
}
