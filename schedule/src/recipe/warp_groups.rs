//! Products of f16 and bf16, and of f32 that may be rounded to tf32, by groups of four warps: for GPUs of compute capability 9.0a.
//!
//! The copy engine reads one operand at least, as matrices in memory; the other may be computed.

use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{BatchAxis, GROUP_ROWS, GroupMma, TensorMap};

use crate::access::Located;
use crate::access::product::{MatrixProduct, ProductAxes, total};
use crate::target::Gpu;

/// Groups of four warps that multiply.
pub const GROUPS: u64 = 2;
/// Rows of a tile of the result.
pub const ROWS: u64 = GROUPS * GROUP_ROWS as u64;
/// Columns of a tile of the result: the widest that occupies all multiprocessors, or else the narrowest.
pub const COLUMNS: [u64; 3] = [256, 128, 64];
/// Alignment in bytes of the rows of a matrix that the copy engine reads.
pub const COPY_ALIGNMENT: i64 = 16;
/// Fewest rows, columns and terms of a product that is worth it.
const MIN_EXTENT: u64 = 64;

/// An operand as matrices in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandMatrix {
    /// Elements from one row to the next.
    pub stride: u64,
    /// Whether its rows are rows of terms.
    pub along_terms: bool,
    /// Rows of a matrix.
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    /// The axes of the matrices of batches, those of near neighbours first, and their positions among the product's; an operand
    /// that is the same along an axis does not have it.
    pub batch: Vec<(BatchAxis, usize)>,
}

/// Where an operand comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixSource {
    /// Memory, by the copy engine.
    Matrix(OperandMatrix),
    /// Threads compute it; whether its neighbouring terms lie side by side.
    Computed {
        /// Whether neighbouring elements are neighbouring terms of the sums.
        along_terms: bool,
    },
}

/// The product with one group each of rows and columns: outer ones, along which the other operand is the same, are batches.
pub fn batched(mut product: MatrixProduct) -> MatrixProduct {
    let ProductAxes { batch, rows, columns, .. } = &mut product.axes;
    for own in [rows, columns] {
        batch.extend(own.drain(..own.len().saturating_sub(1)));
    }
    product
}

/// Both operands of a [`batched`] product, if groups of warps can multiply them and it is worth it.
///
/// # Errors
/// A type of the cluster is not known.
pub fn sources(cluster: &Located<'_>, product: &MatrixProduct, tf32: bool) -> Result<Option<[MatrixSource; 2]>> {
    let axes = &product.axes;
    let dtype = cluster.ty(product.operands[0])?.dtype;
    let plain = [&axes.rows, &axes.columns, &axes.terms].into_iter().all(|g| g.len() == 1);
    let large = || [&axes.rows, &axes.columns, &axes.terms].into_iter().all(|g| total(g) >= MIN_EXTENT);
    let taken = GroupMma::takes(dtype) && (dtype != DType::F32 || tf32);
    if !plain || !taken || cluster.ty(product.operands[1])?.dtype != dtype || !large() {
        return Ok(None);
    }
    let found = [matrix(cluster, product, 0)?, matrix(cluster, product, 1)?];
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let [a, b] = found;
    let term = |flat: &Index| axes.terms.last().is_some_and(|g| flat.step(g.axis as u32) == Some(1));
    // No input but those of operands depends on terms.
    let along = |operand: usize| product.uses.flats.iter().any(|(v, f)| *v != product.operands[1 - operand] && term(f));
    let source = |matrix: Option<OperandMatrix>, operand: usize| match matrix {
        Some(matrix) => MatrixSource::Matrix(matrix),
        None => MatrixSource::Computed { along_terms: along(operand) },
    };
    Ok(Some([source(a, 0), source(b, 1)]))
}

/// The columns of tiles of the result.
pub fn columns(product: &MatrixProduct, gpu: &Gpu) -> u64 {
    let busy = |columns: &u64| product.tiles(ROWS, *columns) >= gpu.multiprocessors();
    COLUMNS.into_iter().find(busy).unwrap_or(COLUMNS[2])
}

/// An operand as the copy engine can read it: an input, whole, whose rows begin at multiples of 16 bytes.
fn matrix(cluster: &Located<'_>, product: &MatrixProduct, operand: usize) -> Result<Option<OperandMatrix>> {
    let ([own], [term]) = (product.own_axes(operand), &product.axes.terms[..]) else { return Ok(None) };
    let Some(flat) = product.plain_read(cluster, operand)?.filter(|flat| flat.constant == 0) else { return Ok(None) };
    let step = |axis: usize| flat.step(axis as u32).unwrap_or(0);
    let (stride, columns, along_terms) = match (step(own.axis), step(term.axis)) {
        (stride, 1) => (stride, term.extent, true),
        (1, stride) => (stride, own.extent, false),
        _ => return Ok(None),
    };
    let dtype = cluster.ty(product.operands[operand])?.dtype;
    // Matrix units take operands of 32 bits by terms alone.
    if dtype.size() != 2 && !along_terms {
        return Ok(None);
    }
    let aligned = |stride: i64| stride > 0 && stride * dtype.size() as i64 % COPY_ALIGNMENT == 0;
    let rows = if along_terms { own.extent } else { term.extent };
    let [rows, columns] = [rows, columns].map(|n| n.fixed() as u64);
    let mut batch = vec![];
    for (i, group) in product.axes.batch.iter().enumerate() {
        match step(group.axis) {
            0 => {}
            stride if aligned(stride) => {
                batch.push((BatchAxis { extent: group.extent.fixed() as u64, stride: stride as u64 }, i))
            }
            _ => return Ok(None),
        }
    }
    batch.sort_by_key(|(axis, _)| axis.stride);
    let fits = stride >= columns as i64 && aligned(stride) && batch.len() <= TensorMap::MAX_BATCH_AXES;
    Ok(fits.then_some(OperandMatrix { stride: stride as u64, along_terms, rows, columns, batch }))
}
