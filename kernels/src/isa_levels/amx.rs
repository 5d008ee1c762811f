//! Products by tile registers (AMX): up to twice sixteen rows and 32 columns, sixteen groups of terms at a time. A group is four bytes, or
//! two numbers of bf16.
//!
//! `tdpbusd` and `tdpbsud` add products of bytes exactly. `tdpbf16ps` adds the first and the second terms of pairs apart, up to
//! sixteen pairs, then their sum to what there was; it flushes subnormal numbers to zero.

use core::arch::asm;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::cell::Cell;
use core::mem::MaybeUninit;

use super::integer::Fetch;
use super::{CHUNK, IntegerTile, LANES, NextRows, RegisterTile, TERMS, TILE_ROWS};

/// Columns of two tiles.
const COLS: usize = 2 * LANES;
/// Bytes of a row of a tile.
const ROW: usize = LANES * TERMS;

/// What is multiplied and added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TileOp {
    /// Bytes, by the signs of an [`IntegerTile`].
    Bytes,
    /// Numbers of bf16, with sums in f32 in the place of i32.
    Rounded,
}

/// The shapes of tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    first_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile registers of a thread: two of C, one of A and two of B for whole chunks; then one of A and two of B for the rest of a
/// run, or one of A and two of C for the next rows.
pub(super) struct TileRegisters {
    /// What registers have shapes for.
    shaped: Cell<Option<Shaped>>,
}

/// What registers have shapes for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shaped {
    rows: usize,
    next: usize,
    /// Groups of the rest of a run.
    rest: usize,
}

impl TileRegisters {
    pub fn new() -> TileRegisters {
        TileRegisters { shaped: Cell::new(None) }
    }

    /// Gives the registers their shapes.
    ///
    /// # Safety
    /// The processor has tile registers.
    unsafe fn shape(&self, shaped: Shaped) {
        if self.shaped.get() == Some(shaped) {
            return;
        }
        let Shaped { rows, next, rest } = shaped;
        let mut shapes = Shapes { palette: 1, first_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shapes.row_bytes[..5].fill(ROW as u16);
        shapes.rows[..5].copy_from_slice(&[rows, rows, rows, CHUNK, CHUNK].map(|rows| rows as u8));
        if rest > 0 {
            shapes.row_bytes[5..8].copy_from_slice(&[rest * TERMS, ROW, ROW].map(|bytes| bytes as u16));
            shapes.rows[5..8].copy_from_slice(&[rows, rest, rest].map(|rows| rows as u8));
        } else if next > 0 {
            shapes.row_bytes[5..8].fill(ROW as u16);
            shapes.rows[5..8].fill(next as u8);
        }
        // SAFETY: by the caller's contract; the shapes are valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags)) };
        self.shaped.set(Some(shaped));
    }

    /// The sums of pixels whose channels are pairs of bf16.
    ///
    /// # Safety
    /// As [`super::IsaLevel`], with tile registers.
    pub unsafe fn multiply_pixels(&self, t: &RegisterTile) {
        // Taps of a row that lie side by side are one run.
        let beside = t.kernel[1] == 1 || t.tap[1] == t.channels;
        let (taps, words) = if beside { (1, t.kernel[1] * t.channels) } else { (t.kernel[1], t.channels) };
        // SAFETY: passed on from the caller.
        unsafe {
            self.shape(Shaped { rows: t.pixels, next: 0, rest: words % CHUNK });
            for row in 0..t.rows {
                PixelRun {
                    x: t.x.wrapping_add(row * t.row),
                    y: t.y.wrapping_add(row * t.pixels * t.y_step),
                    taps,
                    words,
                }
                .sums(t);
            }
        }
    }

    /// Tiles side by side, and the rows behind them.
    ///
    /// # Safety
    /// As [`super::IsaLevel`], with tile registers and twice at most [`TILE_ROWS`] rows.
    pub unsafe fn multiply(&self, op: TileOp, t: &IntegerTile<'_>, next: Option<NextRows>) {
        let rest = if t.filled { 0 } else { t.groups % CHUNK };
        // SAFETY: passed on from the caller.
        unsafe {
            if let Some(NextRows { a, a_chunk, rows }) = next.filter(|_| rest > 0) {
                let c = t.c.wrapping_offset(t.rows as isize * t.ldc);
                self.multiply(op, t, None);
                return self.multiply(op, &IntegerTile { a, a_chunk, rows, c, ..*t }, None);
            }
            let behind = next.map_or(0, |next| next.rows);
            self.shape(Shaped { rows: t.rows, next: behind, rest });
            let mut fetch = Fetch::new(t);
            for (tile, column) in (0..t.cols).step_by(COLS).enumerate() {
                let (b, cols) = (t.b.wrapping_add(tile * t.b_tile), COLS.min(t.cols - column));
                let (c, ldc) = (t.c.wrapping_add(column), t.ldc);
                if cols.is_multiple_of(LANES) {
                    sums(op, (t, next), (b, cols / LANES), (c, ldc), &mut fetch);
                    continue;
                }
                // Columns that there are not have no memory in C.
                let mut apart = [[MaybeUninit::<i32>::uninit(); COLS]; 2 * TILE_ROWS];
                let to = (apart.as_mut_ptr().cast(), COLS as isize);
                if t.continued {
                    copy(t.rows + behind, cols, (c, ldc), to);
                }
                sums(op, (t, next), (b, cols.div_ceil(LANES)), to, &mut fetch);
                copy(t.rows + behind, cols, to, (c, ldc));
            }
        }
    }
}

impl Drop for TileRegisters {
    fn drop(&mut self) {
        if self.shaped.get().is_some() {
            // SAFETY: the processor has tile registers, and nothing else uses them.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
}

/// Copies some columns of rows.
///
/// # Safety
/// Both sides have them.
unsafe fn copy(rows: usize, cols: usize, (from, step): (*mut i32, isize), (to, to_step): (*mut i32, isize)) {
    for i in 0..rows as isize {
        // SAFETY: by the caller's contract.
        unsafe { core::ptr::copy_nonoverlapping(from.offset(i * step), to.offset(i * to_step), cols) };
    }
}

/// Initialises an accumulator tile: with zeros, or with the sums that C holds.
macro_rules! begin {
    ($tile:literal, $continued:expr, $c:expr, $stride:expr) => {
        match $continued {
            true => asm!(
                concat!("tileloadd tmm", $tile, ", [{c} + {stride}]"),
                c = in(reg) $c,
                stride = in(reg) $stride,
                options(nostack, readonly, preserves_flags),
            ),
            false => asm!(concat!("tilezero tmm", $tile), options(nomem, nostack, preserves_flags)),
        }
    };
}

/// Stores an accumulator tile to C.
macro_rules! end {
    ($tile:literal, $c:expr, $stride:expr) => {
        asm!(
            concat!("tilestored [{c} + {stride}], tmm", $tile),
            c = in(reg) $c,
            stride = in(reg) $stride,
            options(nostack, preserves_flags),
        )
    };
}

/// Adds the products of a chunk to the sums of a tile, or of two side by side. The registers keep their values between blocks of
/// assembly, as compiled code does not use them.
macro_rules! add {
    (1, $op:literal, $a:literal, $b:literal, $right:literal, $from:expr, $row:expr, $columns:expr, $group:expr) => {
        asm!(
            concat!("tileloadd tmm", $a, ", [{a} + {row}]"),
            concat!("tileloadd tmm", $b, ", [{b} + {group}]"),
            concat!($op, " tmm0, tmm", $a, ", tmm", $b),
            a = in(reg) $from,
            row = in(reg) $row,
            b = in(reg) $columns,
            group = in(reg) $group,
            options(nostack, readonly, preserves_flags),
        )
    };
    (2, $op:literal, $a:literal, $b:literal, $right:literal, $from:expr, $row:expr, $columns:expr, $group:expr) => {
        asm!(
            concat!("tileloadd tmm", $a, ", [{a} + {row}]"),
            concat!("tileloadd tmm", $b, ", [{b} + {group}]"),
            concat!("tileloadd tmm", $right, ", [{b} + {group} + 64]"),
            concat!($op, " tmm0, tmm", $a, ", tmm", $b),
            concat!($op, " tmm1, tmm", $a, ", tmm", $right),
            a = in(reg) $from,
            row = in(reg) $row,
            b = in(reg) $columns,
            group = in(reg) $group,
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// As [`add`], to the sums of the next rows, with the columns that it has loaded.
macro_rules! add_next {
    (1, $op:literal, $from:expr, $row:expr) => {
        asm!(
            "tileloadd tmm5, [{a} + {row}]",
            concat!($op, " tmm6, tmm5, tmm3"),
            a = in(reg) $from,
            row = in(reg) $row,
            options(nostack, readonly, preserves_flags),
        )
    };
    (2, $op:literal, $from:expr, $row:expr) => {
        asm!(
            "tileloadd tmm5, [{a} + {row}]",
            concat!($op, " tmm6, tmm5, tmm3"),
            concat!($op, " tmm7, tmm5, tmm4"),
            a = in(reg) $from,
            row = in(reg) $row,
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// Adds all products of a tile by one instruction, for so many vectors of columns.
macro_rules! add_all {
    ($vectors:tt, $op:literal, $t:expr, $next:expr, $b:expr, $fetch:expr) => {{
        let (t, group) = ($t, TERMS * $t.b_step);
        let groups = if t.filled { t.groups.next_multiple_of(CHUNK) } else { t.groups };
        for (run, first) in t.runs.iter().enumerate() {
            let mut a = t.a.wrapping_add(run * t.a_run);
            let mut b = $b.wrapping_add(TERMS * *first as usize);
            for chunk in 0..groups / CHUNK {
                $fetch.chunk();
                add!($vectors, $op, "2", "3", "4", a, t.a_row, b, group);
                if let Some(next) = &$next {
                    let a = next.a.wrapping_add(run * t.a_run + chunk * next.a_chunk);
                    add_next!($vectors, $op, a, t.a_row);
                }
                a = a.wrapping_add(t.a_chunk);
                b = b.wrapping_add(CHUNK * group);
            }
            if groups % CHUNK > 0 {
                add!($vectors, $op, "5", "6", "7", a, t.a_rest_row, b, group);
            }
        }
    }};
}

/// Adds all products of a tile whose columns begin at an address.
macro_rules! add_by_op {
    ($vectors:tt, $operation:expr, $t:expr, $next:expr, $b:expr, $fetch:expr) => {
        match ($operation, $t.left_signed) {
            (TileOp::Bytes, false) => add_all!($vectors, "tdpbusd", $t, $next, $b, $fetch),
            (TileOp::Bytes, true) => add_all!($vectors, "tdpbsud", $t, $next, $b, $fetch),
            (TileOp::Rounded, _) => add_all!($vectors, "tdpbf16ps", $t, $next, $b, $fetch),
        }
    };
}

/// The sums of one or two vectors of columns, and of the next rows.
///
/// # Safety
/// As [`TileRegisters::multiply`], whose registers have the shapes of the tile; whole tiles of C are writable.
unsafe fn sums(
    op: TileOp,
    (t, next): (&IntegerTile<'_>, Option<NextRows>),
    (b, vectors): (*const u8, usize),
    (c, ldc): (*mut i32, isize),
    fetch: &mut Fetch,
) {
    let stride = ldc * size_of::<i32>() as isize;
    let right = c.wrapping_add(LANES);
    let behind = t.rows as isize * ldc;
    let (below, below_right) = (c.wrapping_offset(behind), right.wrapping_offset(behind));
    // SAFETY: by the caller's contract.
    unsafe {
        begin!("0", t.continued, c, stride);
        if next.is_some() {
            begin!("6", t.continued, below, stride);
        }
        if vectors == 1 {
            add_by_op!(1, op, t, next, b, fetch);
        } else {
            begin!("1", t.continued, right, stride);
            if next.is_some() {
                begin!("7", t.continued, below_right, stride);
            }
            add_by_op!(2, op, t, next, b, fetch);
            end!("1", right, stride);
            if next.is_some() {
                end!("7", below_right, stride);
            }
        }
        end!("0", c, stride);
        if next.is_some() {
            end!("6", below, stride);
        }
    }
}

/// The pixels of a row of a [`RegisterTile`].
struct PixelRun {
    x: *const f32,
    y: *mut f32,
    /// Runs of taps in each filter row, and the words that a pixel has of each.
    taps: usize,
    words: usize,
}

/// Adds the products of all runs, for so many blocks of channels.
macro_rules! add_pixels {
    ($vectors:tt, $run:expr, $t:expr) => {{
        let (run, t) = ($run, $t);
        let (step, group) = (t.step * size_of::<f32>(), $vectors * ROW);
        let (mut w, mut ahead) = (t.w.cast::<u8>(), t.ahead.cast::<u8>());
        for (block, k, tap) in
            (0..t.blocks).flat_map(|b| (0..t.kernel[0]).flat_map(move |k| (0..run.taps).map(move |s| (b, k, s))))
        {
            let mut x = run.x.wrapping_add(block * t.block + k * t.tap[0] + tap * t.tap[1]);
            for words in (0..run.words).step_by(CHUNK).map(|first| CHUNK.min(run.words - first)) {
                for _ in 0..words {
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    ahead = ahead.wrapping_add(ROW);
                }
                match words {
                    CHUNK => add!($vectors, "tdpbf16ps", "2", "3", "4", x, step, w, group),
                    _ => add!($vectors, "tdpbf16ps", "5", "6", "7", x, step, w, group),
                }
                x = x.wrapping_add(words);
                w = w.wrapping_add(words * group);
            }
        }
    }};
}

impl PixelRun {
    /// The sums of one block of channels, or of two.
    ///
    /// # Safety
    /// As [`TileRegisters::multiply_pixels`], whose registers have the shapes of the tile.
    unsafe fn sums(&self, t: &RegisterTile) {
        let (right, stride) = (self.y.wrapping_add(t.y_block), t.y_step * size_of::<f32>());
        // SAFETY: by the caller's contract.
        unsafe {
            begin!("0", t.continued, self.y, stride);
            if t.vectors == 1 {
                add_pixels!(1, self, t);
            } else {
                begin!("1", t.continued, right, stride);
                add_pixels!(2, self, t);
                end!("1", right, stride);
            }
            end!("0", self.y, stride);
        }
    }
}
