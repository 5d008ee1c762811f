//! What the threads of a warp do together, and asynchronous copies.

use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::{BufferPlace, Mma, Operand, Var, WARP, warp_matrix};
use tensorc_ir::scalar::Scalar;

use super::counts::BufferTraffic;
use super::machine::{Copied, SimtMachine};
use super::values::{Mask, ThreadIndices, ThreadValues};

/// Rows of a matrix that is loaded, and bytes of each.
const ROWS: usize = 8;
const ROW_BYTES: usize = 16;

impl SimtMachine<'_> {
    /// The warps of a mask by their first threads; an error if one is not complete.
    pub(super) fn warps(&self, what: &str, mask: &Mask) -> Result<Vec<usize>> {
        match mask.is_whole(WARP) {
            true => Ok(mask.threads().filter(|t| t % WARP == 0).collect()),
            false => self.fail(format!("{what} that some threads of a warp do not reach")),
        }
    }

    pub(super) fn shuffle(&mut self, var: Var, value: Operand, distance: u32, mask: &Mask) -> Result<()> {
        self.warps("a shuffle", mask)?;
        let values = (0..self.threads).map(|t| self.operand(value, t ^ distance as usize)).collect();
        self.bind(var, ThreadValues::Each(values));
        Ok(())
    }

    pub(super) fn mma(&mut self, mma: &Mma, mask: &Mask) -> Result<()> {
        let dtype = self.kernel.buf(mma.a.buf).dtype;
        let Some(depth) = Mma::depth(dtype) else { return self.fail(format!("a product of matrices of {dtype}")) };
        let (in_a, in_b, in_acc) = warp_matrix::elements(dtype);
        let [at_a, at_b, acc] = [&mma.a, &mma.b, &mma.acc].map(|p| self.places(&p.index));
        for warp in self.warps("a product of matrices", mask)? {
            let (mut a, mut b) = (vec![0f64; 16 * depth], vec![0f64; depth * 8]);
            for lane in 0..WARP {
                for (i, x) in self.part(&mma.a, &at_a, in_a, warp + lane)?.into_iter().enumerate() {
                    let (row, column) = warp_matrix::a(dtype, lane, i);
                    a[row * depth + column] = factor(x);
                }
                for (i, x) in self.part(&mma.b, &at_b, in_b, warp + lane)?.into_iter().enumerate() {
                    let (row, column) = warp_matrix::b(dtype, lane, i);
                    b[row * 8 + column] = factor(x);
                }
            }
            for lane in 0..WARP {
                for (i, x) in self.part(&mma.acc, &acc, in_acc, warp + lane)?.into_iter().enumerate() {
                    let (row, column) = warp_matrix::acc(lane, i);
                    let terms = (0..depth).map(|k| a[row * depth + k] * b[k * 8 + column]);
                    let sum = x.as_f64() + terms.sum::<f64>();
                    let at = self.element(mma.acc.buf, acc.of(warp + lane), in_acc, warp + lane)?;
                    self.write(mma.acc.buf, at + i, Scalar::f32(sum as f32), warp + lane)?;
                }
            }
            self.counts.products += 1;
        }
        Ok(())
    }

    /// One thread's part of a matrix.
    fn part(&mut self, place: &BufferPlace, places: &ThreadIndices, len: usize, thread: usize) -> Result<Vec<Scalar>> {
        let at = self.element(place.buf, places.of(thread), len, thread)?;
        (at..at + len).map(|i| self.read(place.buf, i, thread)).collect()
    }

    pub(super) fn load_matrix(
        &mut self,
        into: &BufferPlace,
        from: &BufferPlace,
        count: usize,
        transposed: bool,
        mask: &Mask,
    ) -> Result<()> {
        let (sources, targets) = (self.places(&from.index), self.places(&into.index));
        let size = self.kernel.buf(from.buf).dtype.size();
        let (row_len, own) = (ROW_BYTES / size, 4 / size);
        for warp in self.warps("a load of matrices", mask)? {
            for matrix in 0..count {
                let mut rows = vec![];
                for thread in (0..ROWS).map(|row| warp + matrix * ROWS + row) {
                    let at = self.element(from.buf, sources.of(thread), row_len, thread)?;
                    self.check_aligned(from, at, ROW_BYTES as u64)?;
                    rows.push(at);
                }
                for lane in 0..WARP {
                    for i in 0..own {
                        // Neighbours of a row, or of a column.
                        let (major, minor) = (lane / 4, own * (lane % 4) + i);
                        let (row, column) = if transposed { (minor, major) } else { (major, minor) };
                        let value = self.read(from.buf, rows[row] + column, warp + lane)?;
                        let at = self.element(into.buf, targets.of(warp + lane), own * count, warp + lane)?;
                        self.write(into.buf, at + own * matrix + i, value, warp + lane)?;
                    }
                }
                let places: Vec<_> = rows.iter().map(|at| (warp, ((size * at) as u64, ROW_BYTES as u64))).collect();
                self.count_warps(from.buf, BufferTraffic::Matrix, &places);
            }
        }
        Ok(())
    }

    fn check_aligned(&self, place: &BufferPlace, at: usize, bytes: u64) -> Result<()> {
        let info = self.kernel.buf(place.buf);
        let address = self.shared[place.buf.0 as usize].base + (at * info.dtype.size()) as u64;
        match address.is_multiple_of(bytes) {
            true => Ok(()),
            false => self.fail(format!("element {at} of `{}` is not aligned to {bytes} bytes", info.name)),
        }
    }

    pub(super) fn copy_async(
        &mut self,
        into: &BufferPlace,
        from: &BufferPlace,
        len: usize,
        cond: Option<Operand>,
        mask: &Mask,
    ) -> Result<()> {
        let info = self.kernel.buf(into.buf);
        let (size, zero) = (info.dtype.size() as u64, Scalar::zero(info.dtype));
        let bytes = len as u64 * size;
        let (mut written, mut read) = (vec![], vec![]);
        let (sources, targets) = (self.places(&from.index), self.places(&into.index));
        for t in mask.threads() {
            let to = self.element(into.buf, targets.of(t), len, t)?;
            self.check_aligned(into, to, bytes)?;
            written.push((t / WARP, (to as u64 * size, bytes)));
            let mut values = vec![zero; len];
            if cond.is_none_or(|c| self.operand(c, t).as_bool()) {
                let at = self.element(from.buf, sources.of(t), len, t)?;
                self.check_aligned(from, at, bytes)?;
                for (i, value) in values.iter_mut().enumerate() {
                    *value = self.read(from.buf, at + i, t)?;
                }
                read.push((t / WARP, (at as u64 * size, bytes)));
            }
            for (i, value) in values.into_iter().enumerate() {
                self.write(into.buf, to + i, value, t)?;
                self.shared[into.buf.0 as usize].pending[to + i] = true;
            }
            if let Some(open) = self.groups[t].back_mut() {
                open.push(Copied { buf: into.buf, first: to, len });
            }
        }
        self.count_warps(into.buf, BufferTraffic::Copy, &written);
        self.count_warps(from.buf, BufferTraffic::Copy, &read);
        Ok(())
    }

    /// Copies become visible to their thread: as if it wrote them now.
    pub(super) fn await_copies(&mut self, pending: usize, mask: &Mask) -> Result<()> {
        for t in mask.threads() {
            while self.groups[t].len() > pending + 1 {
                for copied in self.groups[t].pop_front().unwrap_or_default() {
                    let moment = self.clocks.moment(self.block, t);
                    let shared = &mut self.shared[copied.buf.0 as usize];
                    for at in copied.first..copied.first + copied.len {
                        shared.pending[at] = false;
                        if !shared.cells[at].write(moment) {
                            return self.race(copied.buf, at, t);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// An element as the matrix units see it.
fn factor(x: Scalar) -> f64 {
    match x.dtype {
        DType::F32 => f64::from(tf32(x.as_f32())),
        _ => x.as_f64(),
    }
}

/// An f32 rounded to 10 bits of fraction, ties away from zero, as `cvt.rna.tf32.f32` does.
fn tf32(x: f32) -> f32 {
    match x.is_finite() {
        true => f32::from_bits((x.to_bits() + 0x1000) & 0xffff_e000),
        false => x,
    }
}
