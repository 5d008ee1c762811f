//! Products of tiles by groups of four warps (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": "Register Fragments and
//! Shared Memory Matrix Layouts", "Matrix Descriptor Format", "Strides", "Async Proxy"; `wgmma.fence`, `commit_group`, `wait_group`).
//!
//! A matrix descriptor is, from the lowest bit on: 14 bits of the start address and, each from bit 16 and 32 on, of the leading
//! and the stride dimension byte offset, all in units of 16 bytes; base offset in bits 49 to 51; in bits 62 and 63 how pieces are
//! permuted: not, by 128, 64 or 32 bytes.

use std::collections::VecDeque;

use super::Fault;
use super::machine::{Machine, State};
use super::op::{GroupProduct, Op, Slot};
use super::shadow::WARP;
use super::tensor::Swizzle;
use super::warp::{add, value};

/// Warps of a group and rows of a product.
const WARPS: usize = 4;
const ROWS: usize = 64;
/// Rows of a core matrix, and bytes of each.
const CORE: usize = 8;
const CORE_BYTES: usize = 16;

/// A product under way.
#[derive(Clone, Debug)]
struct Pending {
    product: GroupProduct,
    descriptors: [Descriptor; 2],
    adds: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Groups of products that are ended, oldest first.
    ended: VecDeque<Vec<Pending>>,
    open: Vec<Pending>,
    /// Whether registers are ordered before products.
    fenced: bool,
}

impl Group {
    pub fn is_busy(&self) -> bool {
        !self.open.is_empty() || !self.ended.is_empty()
    }

    fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.ended.iter().flatten().chain(&self.open)
    }
}

/// Where a matrix lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    start: u64,
    leading: u64,
    stride: u64,
    swizzle: Swizzle,
    transposed: bool,
    /// Bytes of an element.
    size: usize,
}

impl Descriptor {
    pub fn decode(bits: u64, transposed: bool, size: usize) -> Result<Descriptor, String> {
        let field = |from: u32| (bits >> from & 0x3fff) << 4;
        let base = bits >> 49 & 7;
        let unused = bits & (0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3ff << 52);
        if unused != 0 || base != 0 {
            return Err(format!("the matrix descriptor {bits:#x} with base offset {base} or bits without a meaning"));
        }
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        Ok(Descriptor { start: field(0), leading: field(16), stride: field(32), swizzle, transposed, size })
    }

    /// The address of an element: row `i` of `a` or column `i` of `b`, term `k`.
    ///
    /// Without transposition terms are neighbours: rows of the span of the swizzle, eight of them a core, cores at the stride
    /// offset; without a swizzle two cores for the 32 bytes of all terms, at the leading offset. Transposed, of 16 bits alone, rows
    /// are neighbours, in pieces of the span at the leading offset, eight terms a core, cores at the stride offset; without a
    /// swizzle the offsets change their roles.
    pub fn address(&self, i: usize, k: usize) -> u64 {
        let (span, leading, stride) = (self.swizzle.span(), self.leading as usize, self.stride as usize);
        let plain = self.swizzle == Swizzle::None;
        let core = CORE_BYTES / self.size;
        let offset = match (self.transposed, plain) {
            (false, true) => i % CORE * 16 + i / CORE * stride + k / core * leading + k % core * self.size,
            (false, false) => i % CORE * span + i / CORE * stride + k * self.size,
            (true, true) => i % CORE * 2 + i / CORE * stride + k % CORE * 16 + k / CORE * leading,
            (true, false) => i % (span / 2) * 2 + i / (span / 2) * leading + k % CORE * span + k / CORE * stride,
        };
        self.swizzle.apply(self.start + offset as u64)
    }
}

impl Machine<'_> {
    /// Executes what all threads of a group have come to.
    pub fn by_group(&mut self, at: u32, op: &Op, thread: usize) -> Result<bool, Fault> {
        let group = thread / (WARPS * WARP);
        let threads: Vec<usize> = (group * WARPS * WARP..(group + 1) * WARPS * WARP).collect();
        if threads.last().is_some_and(|t| *t >= self.threads) {
            return self.fail(thread, "a group of warps that is not whole");
        }
        if !threads.iter().all(|t| self.state[*t] == State::Collective && self.at[*t] == at) {
            return Ok(false);
        }
        match *op {
            Op::GroupFence => self.groups[group].fenced = true,
            Op::GroupCommit => {
                let open = std::mem::take(&mut self.groups[group].open);
                self.groups[group].ended.push_back(open);
            }
            Op::GroupWait { pending } => {
                while self.groups[group].ended.len() > pending as usize {
                    let ended = self.groups[group].ended.pop_front().unwrap_or_default();
                    ended.iter().for_each(|product| self.finish_product(product, &threads));
                    self.groups[group].fenced = false;
                }
            }
            Op::GroupMma(product) => self.begin_product(group, product, &threads)?,
            _ => {}
        }
        self.go_on(&threads);
        Ok(true)
    }

    fn begin_product(&mut self, group: usize, product: GroupProduct, threads: &[usize]) -> Result<(), Fault> {
        let first = threads[0];
        for slot in [product.a, product.b, product.adds] {
            if let Some(t) = threads.iter().find(|t| self.get(**t, slot) != self.get(first, slot)) {
                return self.fail(*t, "a descriptor that is not the same for the whole group");
            }
        }
        if !self.groups[group].fenced {
            return self.fail(first, "no fence orders registers before the product");
        }
        let own = self.program.list(product.sums);
        let overlaps = |pending: &Pending| {
            let other = self.program.list(pending.product.sums);
            other != own && other.iter().any(|slot| own.contains(slot))
        };
        if self.groups[group].pending().any(overlaps) {
            return self.fail(first, "sums of another form are under way");
        }
        let mut descriptors = [product.a, product.b].map(|slot| self.get(first, slot)).into_iter();
        let size = product.factor.bytes();
        let mut decoded = |i: usize| Descriptor::decode(descriptors.next().unwrap_or(0), product.transposed[i], size);
        let descriptors = match (decoded(0), decoded(1)) {
            (Ok(a), Ok(b)) => [a, b],
            (Err(why), _) | (_, Err(why)) => return self.fail(first, why),
        };
        let pending = Pending { product, descriptors, adds: self.get(first, product.adds) != 0 };
        for warp in threads.iter().step_by(WARP) {
            let actor = self.clocks.matrix(*warp);
            for at in pieces(&pending) {
                if let Err(why) = self.memory.begin_read(at, 16, (actor, *warp), &self.clocks) {
                    return self.fail(*warp, why);
                }
            }
        }
        self.groups[group].open.push(pending);
        Ok(())
    }

    fn finish_product(&mut self, pending: &Pending, threads: &[usize]) {
        let GroupProduct { factor, columns, sums, negated, .. } = pending.product;
        let (size, depth) = (factor.bytes(), factor.group_terms());
        let side = |machine: &Self, which: usize, rows: usize| -> Vec<f64> {
            let sign = if negated[which] { -1.0 } else { 1.0 };
            let element = |i: usize| {
                let at = pending.descriptors[which].address(i / depth, i % depth) as usize;
                let bytes = &machine.memory.shared[at..at + size];
                sign * value(factor, super::memory::number(bytes), 0)
            };
            (0..rows * depth).map(element).collect()
        };
        let (a, b) = (side(self, 0, ROWS), side(self, 1, columns));
        let sums: Vec<Slot> = self.program.list(sums).to_vec();
        for (place, t) in threads.iter().enumerate() {
            // Rows of a warp are 16 of the 64; in them sums lie as those of a product by a warp, eight columns after the other.
            let (warp, lane) = (place / WARP, place % WARP);
            for (i, slot) in sums.iter().enumerate() {
                let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
                let column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                let terms = a[row * depth..][..depth].iter().zip(&b[column * depth..][..depth]);
                let products: f64 = terms.map(|(a, b)| a * b).sum();
                let sum = if pending.adds { self.get(*t, *slot) } else { 0 };
                self.set(*t, *slot, add(sum, products));
            }
        }
        for warp in threads.iter().step_by(WARP) {
            let actor = self.clocks.matrix(*warp);
            let time = self.clocks.finish(actor);
            pieces(pending).iter().for_each(|at| self.memory.end_read(*at, 16, actor, time));
            let mut told = vec![0; actor + 1];
            told[actor] = time;
            (*warp..warp + WARP).for_each(|t| self.clocks.acquire(t, &told));
        }
    }

    /// Sums under way are not touched.
    pub fn check_sums(&self, t: usize, at: usize) -> Result<(), Fault> {
        let step = &self.program.steps[at];
        if matches!(step.op, Op::GroupMma(_) | Op::GroupWait { .. }) {
            return Ok(());
        }
        let uses = self.program.list(self.program.uses[at]);
        let sums = |pending: &Pending| self.program.list(pending.product.sums).iter().any(|slot| uses.contains(slot));
        match self.groups[t / (WARPS * WARP)].pending().any(sums) {
            true => self.fail(t, "sums are used before their product is awaited"),
            false => Ok(()),
        }
    }
}

/// The addresses of the pieces of 16 bytes that a product reads.
fn pieces(pending: &Pending) -> Vec<u64> {
    let mut found = vec![];
    for (descriptor, rows) in pending.descriptors.iter().zip([ROWS, pending.product.columns]) {
        // Of the neighbours in 16 bytes one.
        let core = CORE_BYTES / descriptor.size;
        let (rows_apart, terms_apart) = if descriptor.transposed { (core, 1) } else { (1, core) };
        for i in (0..rows).step_by(rows_apart) {
            found.extend(
                (0..pending.product.factor.group_terms()).step_by(terms_apart).map(|k| descriptor.address(i, k)),
            );
        }
    }
    found
}
