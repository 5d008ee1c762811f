//! What the threads of a warp do together (PTX ISA, "shfl.sync", "vote.sync", "elect.sync", "bar.warp.sync", "ldmatrix", "Matrix
//! fragments for mma.m16n8k…").

use std::collections::BTreeMap;

use super::Fault;
use super::float::{BF16, F16};
use super::machine::{Machine, State};
use super::op::{At, Direction, Factor, List, Op, Slot, Space, Vote, WarpProduct};
use super::shadow::{Visit, WARP};

/// Rows of a matrix that `ldmatrix` loads, and bytes of each.
const ROWS: usize = 8;
const ROW_BYTES: usize = 16;

impl Machine<'_> {
    /// Executes what all threads of a warp, or of a group, have come to; says whether there was something.
    pub fn collectives(&mut self, first: usize, lanes: usize) -> Result<bool, Fault> {
        let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for t in first..first + lanes {
            if self.state[t] == State::Collective {
                places.entry(self.at[t]).or_default().push(t);
            }
        }
        let mut goes_on = false;
        for (at, threads) in places {
            let op = self.program.steps[at as usize].op;
            if matches!(op, Op::GroupFence | Op::GroupMma(_) | Op::GroupCommit | Op::GroupWait { .. } | Op::Registers) {
                goes_on |= self.by_group(at, &op, threads[0])?;
                continue;
            }
            let members = self.members(&op, &threads, first, lanes)?;
            if !members.iter().all(|t| threads.contains(t)) {
                continue;
            }
            self.together(&op, &threads)?;
            self.go_on(&threads);
            goes_on = true;
        }
        Ok(goes_on)
    }

    /// Threads that waited for each other go on behind the step.
    pub fn go_on(&mut self, threads: &[usize]) {
        for t in threads {
            self.at[*t] += 1;
            self.state[*t] = State::Ready;
        }
    }

    /// The threads that a step needs; threads that have ended are not waited for where the step names its members.
    fn members(&self, op: &Op, threads: &[usize], first: usize, lanes: usize) -> Result<Vec<usize>, Fault> {
        let (Op::WarpBarrier { members }
        | Op::Shuffle { members, .. }
        | Op::Vote { members, .. }
        | Op::Elect { members, .. }) = op
        else {
            return Ok((first..first + WARP).collect());
        };
        let mask = self.get(threads[0], *members);
        for t in threads {
            if self.get(*t, *members) != mask || mask >> (t - first) & 1 == 0 {
                return self.fail(*t, format!("members {mask:#x} that are not those of every thread"));
            }
        }
        let named = (first..first + lanes).filter(|t| mask >> (t - first) & 1 == 1);
        Ok(named.filter(|t| self.state[*t] != State::Exited).collect())
    }

    fn together(&mut self, op: &Op, threads: &[usize]) -> Result<(), Fault> {
        match *op {
            Op::WarpBarrier { .. } => {
                self.clocks.meet(threads);
                Ok(())
            }
            Op::Shuffle { direction, to, inside, a, b, c, .. } => {
                self.exchange(direction, (to, inside), (a, b, c), threads)
            }
            Op::Vote { vote, to, a, .. } => {
                self.vote(vote, to, a, threads);
                Ok(())
            }
            Op::Elect { leader, is_leader, members } => {
                // The same one for the same members throughout a launch.
                let mask = self.get(threads[0], members);
                let set: Vec<u64> = (0..WARP as u64).filter(|lane| mask >> lane & 1 == 1).collect();
                let drawn = self.seed.wrapping_add(mask).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                let elected = set[drawn as usize % set.len()];
                if !threads.iter().any(|t| (t % WARP) as u64 == elected) {
                    return self.fail(threads[0], "members of which one has ended");
                }
                for t in threads {
                    self.set(*t, leader, elected);
                    self.set(*t, is_leader, u64::from((t % WARP) as u64 == elected));
                }
                Ok(())
            }
            Op::LoadMatrix { at, registers, transposed } => self.load_matrix(at, registers, transposed, threads),
            Op::Mma(product) => {
                self.mma(&product, threads);
                Ok(())
            }
            _ => self.fail(threads[0], "a step that a warp does not execute"),
        }
    }

    fn exchange(
        &mut self,
        direction: Direction,
        (to, inside): (Slot, Slot),
        (a, b, c): (Slot, Slot, Slot),
        threads: &[usize],
    ) -> Result<(), Fault> {
        let mut results = vec![];
        for t in threads {
            let (lane, first) = ((t % WARP) as i64, t - t % WARP);
            let (distance, clamp) = (self.get(*t, b) as i64 & 31, self.get(*t, c) as i64);
            let (mask, limit) = (clamp >> 8 & 31, clamp & 31);
            let (least, most) = (lane & mask, lane & mask | limit & !mask & 31);
            let (source, within) = match direction {
                Direction::Up => (lane - distance, lane - distance >= most),
                Direction::Down => (lane + distance, lane + distance <= most),
                Direction::Butterfly => (lane ^ distance, lane ^ distance <= most),
                Direction::Index => (least | distance & !mask, (least | distance & !mask) <= most),
            };
            let source = first + if within { source } else { lane } as usize;
            if !threads.contains(&source) {
                return self.fail(*t, format!("the value of thread {source}, which does not take part"));
            }
            results.push((*t, self.get(source, a), within));
        }
        for (t, value, within) in results {
            self.set(t, to, value);
            self.set(t, inside, within.into());
        }
        Ok(())
    }

    fn vote(&mut self, vote: Vote, to: Slot, a: Slot, threads: &[usize]) {
        let yes: Vec<bool> = threads.iter().map(|t| self.get(*t, a) != 0).collect();
        let value = match vote {
            Vote::All => u64::from(!yes.contains(&false)),
            Vote::Any => u64::from(yes.contains(&true)),
            Vote::Uniform => u64::from(!(yes.contains(&true) && yes.contains(&false))),
            Vote::Ballot => threads.iter().zip(&yes).map(|(t, yes)| u64::from(*yes) << (t % WARP)).sum(),
        };
        threads.iter().for_each(|t| self.set(*t, to, value));
    }

    /// Thread `8 i + j` has the address of row `j` of matrix `i`; of each row, four threads get two elements of 16 bits each, of
    /// a transposed matrix those of a column.
    fn load_matrix(&mut self, at: At, registers: List, transposed: bool, threads: &[usize]) -> Result<(), Fault> {
        let registers: Vec<Slot> = self.program.list(registers).to_vec();
        for (i, register) in registers.into_iter().enumerate() {
            let mut rows = [[0u8; ROW_BYTES]; ROWS];
            for (row, t) in rows.iter_mut().zip(&threads[i * ROWS..]) {
                let address = self.get(*t, at.base).wrapping_add_signed(at.offset);
                let visit = Visit::of(&self.clocks, *t);
                match self.memory.read(Space::Shared, address, ROW_BYTES, visit, &self.clocks) {
                    Ok(found) => row.copy_from_slice(found),
                    Err(why) => return self.fail(*t, why),
                }
            }
            let element = |row: usize, column: usize| {
                u64::from(rows[row][2 * column]) | u64::from(rows[row][2 * column + 1]) << 8
            };
            for t in threads {
                let (major, minor) = (t % WARP / 4, 2 * (t % 4));
                let [low, high] = [minor, minor + 1].map(|minor| match transposed {
                    true => element(minor, major),
                    false => element(major, minor),
                });
                self.set(*t, register, low | high << 16);
            }
        }
        Ok(())
    }

    /// `d = a · b + c`; with group `g` and place `q` of a thread in it, element `h` of register `r` is of `a` in row `g + 8 (r mod 2)`,
    /// of 16-bit operands in column `2 q + h + 8 ⌊r / 2⌋`, of tf32 in column `q + 4 ⌊r / 2⌋`; of `b` it is in column `g` and row
    /// `2 q + h + 8 r` or `q + 4 r`; of `c` and `d` in row `g + 8 ⌊r / 2⌋` and column `2 q + r mod 2`.
    fn mma(&mut self, product: &WarpProduct, threads: &[usize]) {
        let WarpProduct { factor, terms, registers } = *product;
        let registers = self.program.list(registers);
        let (d, rest) = registers.split_at(4);
        let (a_and_b, c) = rest.split_at(rest.len() - 4);
        let (a, b) = a_and_b.split_at(a_and_b.len() / 3 * 2);
        let per_register = if factor == Factor::TF32 { 1 } else { 2 };
        let place = |q: usize, h: usize, r: usize| if per_register == 2 { 2 * q + h + 8 * r } else { q + 4 * r };
        let (mut left, mut right) = ([0f64; 16 * 16], [0f64; 16 * 8]);
        for t in threads {
            let (g, q) = (t % WARP / 4, t % 4);
            for (r, register) in a.iter().enumerate() {
                let bits = self.get(*t, *register);
                for h in 0..per_register {
                    left[(g + 8 * (r % 2)) * 16 + place(q, h, r / 2)] = value(factor, bits, h);
                }
            }
            for (r, register) in b.iter().enumerate() {
                let bits = self.get(*t, *register);
                for h in 0..per_register {
                    right[place(q, h, r) * 8 + g] = value(factor, bits, h);
                }
            }
        }
        let (d, c) = (d.to_vec(), c.to_vec());
        for t in threads {
            let (g, q) = (t % WARP / 4, t % 4);
            let mut sums = [0u64; 4];
            for (r, sum) in sums.iter_mut().enumerate() {
                let (row, column) = (g + 8 * (r / 2), 2 * q + r % 2);
                let products: f64 = (0..terms).map(|k| left[row * 16 + k] * right[k * 8 + column]).sum();
                *sum = add(self.get(*t, c[r]), products);
            }
            d.iter().zip(sums).for_each(|(register, sum)| self.set(*t, *register, sum));
        }
    }
}

/// A sum of f32 and products, rounded once.
pub(super) fn add(sum: u64, products: f64) -> u64 {
    let total = (f64::from(f32::from_bits(sum as u32)) + products) as f32;
    if total.is_nan() { super::float::NAN32 } else { u64::from(total.to_bits()) }
}

/// A number in half `h` of a register, as matrix units see it: of tf32 without the low 13 bits.
pub(super) fn value(factor: Factor, bits: u64, h: usize) -> f64 {
    match factor {
        Factor::F16 => F16.value(bits >> (16 * h) & 0xffff),
        Factor::BF16 => BF16.value(bits >> (16 * h) & 0xffff),
        Factor::TF32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
    }
}
