//! The loop over the MCUs of a scan: those of the region are decoded, others passed over.

use super::bits::{Bits, EntropyInput};
use super::block::{self, BadBlock, BlockView, PAIR, Tables};
use super::error::{JpegError, grow};
use super::idct::{self, PairTable};
use super::kernels::Kernels;
use super::plan::{ComponentPlan, RegionPlan};
use super::rows::{self, RowScratch};

/// MCUs whose coefficients are kept before they are transformed: even, so that their blocks make pairs, and so few that
/// they stay in the first-level cache.
const CHUNK: usize = 8;

/// Pairs of blocks of a chunk, at most 6 blocks for each MCU.
const CHUNK_PAIRS: usize = CHUNK * 3;

/// Buffers that are kept from image to image.
#[derive(Default)]
pub(super) struct ScanBuffers {
    /// The last two rows of MCUs, as samples.
    ring: Vec<u8>,
    /// Pairs of blocks of a chunk, all zero between chunks.
    coefficients: Vec<i16>,
    scratch: RowScratch,
}

impl ScanBuffers {
    /// # Errors
    ///
    /// There is no memory for so wide an image.
    pub fn reserve(&mut self, plan: &RegionPlan) -> Result<(), JpegError> {
        grow(&mut self.ring, plan.ring)?;
        self.coefficients.clear();
        grow(&mut self.coefficients, CHUNK_PAIRS * PAIR + size_of::<BlockView>())?;
        self.scratch.reserve(plan.columns.len())
    }
}

/// All that decoding a region needs. Slices are by component.
pub(super) struct ScanJob<'a> {
    pub plan: &'a RegionPlan,
    pub tables: &'a [Tables<'a>],
    pub quantisation: &'a [PairTable],
    /// MCUs between restart markers; 0: none.
    pub restart: usize,
    pub input: EntropyInput<'a>,
    pub work: &'a mut ScanBuffers,
    pub out: &'a mut [u8],
}

/// What the entropy decoder knows.
#[derive(Clone, Copy, Default)]
struct EntropyState {
    bits: Bits,
    predictors: [i32; 3],
}

/// Decodes the region of a job.
#[inline(always)]
pub(super) fn run<K: Kernels>(kernels: K, mut job: ScanJob<'_>) -> Result<(), JpegError> {
    let plan = job.plan;
    let (mut state, mut mcu, mut row) = (EntropyState::default(), 0, plan.rows.start);
    while mcu < plan.end() {
        let mut run = usize::MAX;
        if job.restart > 0 {
            run = job.restart - mcu % job.restart;
            if mcu > 0 && run == job.restart {
                job.input.restart(mcu / job.restart - 1, &mut state.bits)?;
                state.predictors = [0; 3];
            }
        }
        let next = plan.next_needed(mcu);
        if next > mcu {
            let count = run.min(next - mcu);
            // The data of a whole interval need not be looked at.
            if count < job.restart || job.restart == 0 {
                state = job.pass(count, state)?;
            }
            mcu += count;
            continue;
        }
        let column = mcu % plan.mcus_across;
        let count = run.min(plan.mcu_columns.end - column).min(CHUNK);
        state = job.decode(count, state)?;
        job.transform(kernels, mcu, count);
        mcu += count;
        if column + count == plan.mcu_columns.end {
            let ready = plan.ready(mcu / plan.mcus_across - usize::from(column + count == plan.mcus_across));
            rows::write(kernels, plan, &job.work.ring, &mut job.work.scratch, row..ready, job.out);
            row = row.max(ready);
        }
    }
    Ok(())
}

impl From<BadBlock> for JpegError {
    fn from(_: BadBlock) -> JpegError {
        JpegError::Invalid("data that no Huffman code or block fits")
    }
}

/// Pairs of blocks of a part in a chunk.
fn pairs_of(part: &ComponentPlan) -> usize {
    part.component.horizontal * part.component.vertical * CHUNK / 2
}

impl ScanJob<'_> {
    /// Passes over MCUs.
    #[inline(always)]
    fn pass(&mut self, count: usize, mut state: EntropyState) -> Result<EntropyState, JpegError> {
        let mut nowhere: BlockView = [0; 256];
        for _ in 0..count {
            self.input.prepare(&mut state.bits);
            for (i, part) in self.plan.parts().iter().enumerate() {
                for _ in 0..part.component.horizontal * part.component.vertical {
                    let predictor = &mut state.predictors[i];
                    block::decode::<false>(
                        &mut state.bits,
                        self.input.window,
                        self.tables[i],
                        predictor,
                        &mut nowhere,
                    )?;
                }
            }
            self.input.check(&state.bits)?;
        }
        Ok(state)
    }

    /// Decodes the coefficients of at most [`CHUNK`] MCUs. The last place of a pair says how many there are: see
    /// [`block::decode`].
    #[inline(always)]
    fn decode(&mut self, count: usize, mut state: EntropyState) -> Result<EntropyState, JpegError> {
        for mcu in 0..count {
            self.input.prepare(&mut state.bits);
            let mut base = 0;
            for (i, part) in self.plan.parts().iter().enumerate() {
                let (across, down) = (part.component.horizontal, part.component.vertical);
                for block in 0..across * down {
                    let (x, y) = (mcu * across + block % across, block / across);
                    let at = (base + y * (across * CHUNK / 2) + x / 2) * PAIR;
                    let Some(pair) = self.work.coefficients[at..].first_chunk_mut::<{ PAIR + 128 }>() else { continue };
                    let Some(view) = pair[x % 2 * 8..].first_chunk_mut::<256>() else { continue };
                    let predictor = &mut state.predictors[i];
                    let (bits, tables) = (&mut state.bits, self.tables[i]);
                    let end = block::decode::<true>(bits, self.input.window, tables, predictor, view)?;
                    pair[PAIR - 1] = pair[PAIR - 1].max(end as i16);
                }
                base += pairs_of(part);
            }
            self.input.check(&state.bits)?;
        }
        Ok(state)
    }

    /// Makes samples of `count` MCUs from number `mcu` on.
    #[inline(always)]
    fn transform<K: Kernels>(&mut self, kernels: K, mcu: usize, count: usize) {
        let (row, column) = (mcu / self.plan.mcus_across, mcu % self.plan.mcus_across);
        let mut base = 0;
        for (part, table) in self.plan.parts().iter().zip(self.quantisation) {
            let across = part.component.horizontal;
            for y in 0..part.component.vertical {
                let pairs = &mut self.work.coefficients[(base + y * (across * CHUNK / 2)) * PAIR..];
                let left = (column - self.plan.mcu_columns.start) * part.mcu_width();
                let mut at = part.at(row * part.mcu_height() + y * part.size) + left;
                for pair in &mut pairs.as_chunks_mut::<PAIR>().0[..(count * across).div_ceil(2)] {
                    transform(kernels, part, pair, table, &mut self.work.ring[at..]);
                    *pair = [0; PAIR];
                    at += 2 * part.size;
                }
            }
            base += pairs_of(part);
        }
    }
}

#[inline(always)]
fn transform<K: Kernels>(kernels: K, part: &ComponentPlan, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8]) {
    if pair[PAIR - 1] <= 1 || part.size == 1 {
        let samples = idct::constant(pair, table);
        for row in out.chunks_mut(part.stride).take(part.size) {
            row[..part.size].fill(samples[0]);
            row[part.size..2 * part.size].fill(samples[1]);
        }
        return;
    }
    match part.size {
        8 => kernels.full(pair, table, out, part.stride),
        4 => kernels.half(pair, table, out, part.stride),
        _ => kernels.quarter(pair, table, out, part.stride),
    }
}
