//! What AVX2 has no instruction for on integers of 64 bits, in a few others.

use super::super::ValueId;
use super::Writer;
use super::assembler::Source;
use super::opcode as op;

impl Writer<'_> {
    /// Shifts signed integers right by a known number of bits.
    pub(super) fn shift_wide(&mut self, v: ValueId, a: ValueId, by: ValueId) -> Option<()> {
        let by = self.constant(by)?.bits;
        if by >= u64::from(u64::BITS) {
            return None;
        }
        let (x, bytes) = (self.register(a)?, self.lanes * 8);
        let target = self.define(v)?;
        let by_lane = self.splat(by, 8);
        self.write(op::SHIFT_RIGHT_BY.wide(true), bytes, target, x, by_lane);
        // The sign bit where it is now; exchanging it and subtracting it extends it.
        let sign = self.splat(1 << (63 - by), 8);
        self.write(op::XOR, bytes, target, target, sign);
        self.write(op::SUB_INT.or_wide(0xfb, true), bytes, target, target, sign);
        Some(())
    }

    /// Signed integers as f64: each half stands in the fraction of a number whose exponent gives it its place, and the
    /// only sum that rounds is the last.
    pub(super) fn wide_to_double(&mut self, v: ValueId, a: ValueId) -> Option<()> {
        let (x, bytes) = (self.register(a)?, self.lanes * 8);
        let (high, low) = (self.define(v)?, self.temporary()?);
        let power = |n: u64| (1023 + n) << 52;
        let half = self.splat(32, 8);
        self.write(op::SHIFT_RIGHT_BY.wide(true), bytes, high, x, half);
        // 2⁸⁴ plus the upper half, which counts from -2³¹, times 2³².
        let upper = self.splat(power(84) | 1 << 31, 8);
        self.write(op::XOR, bytes, high, high, upper);
        let mask = self.splat(u64::from(u32::MAX), 8);
        self.write(op::AND, bytes, low, x, mask);
        let lower = self.splat(power(52), 8);
        self.write(op::OR, bytes, low, low, lower);
        let excess = self.splat((2f64.powi(84) + 2f64.powi(63) + 2f64.powi(52)).to_bits(), 8);
        self.write(op::SUB.double(true), bytes, high, high, excess);
        self.write(op::ADD.double(true), bytes, high, high, Source::Register(low));
        Some(())
    }
}
