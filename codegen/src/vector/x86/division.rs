//! Quotients and remainders of signed integers, for which there are no instructions on vectors: by division of floats of
//! the same width, whose errors are found by multiplying back.

use tensorc_abi::DType;

use super::super::{ValueId, carrier_bytes};
use super::Writer;
use super::assembler::Source;
use super::opcode::{self as op, Opcode};

impl Writer<'_> {
    /// The quotient, rounded toward zero, or the remainder; 0 where the divisor is 0.
    ///
    /// A first quotient `q` of floats is off by a few units in its last place, so `a - q·b`, which is exact modulo the width,
    /// is not much greater than `b`. The quotient of that by `b` is off by one at most, and then too far from zero: the
    /// remainder has the other sign than `a`.
    pub(super) fn divide(&mut self, v: ValueId, (a, b): (ValueId, ValueId), remainder: bool) -> Option<()> {
        let dtype = self.dtype(a);
        if dtype != DType::I32 && !(dtype == DType::I64 && self.is_512()) {
            return None;
        }
        let (wide, bytes) = (carrier_bytes(dtype) == 8, self.bytes_of(a));
        let (to_float, to_integer) = match wide {
            true => (op::F64_OF_I64, op::I64_OF_F64),
            false => (op::F32_OF_I32, op::I32_OF_F32),
        };
        let [add, sub, mul] =
            [op::ADD_INT.or_wide(0xd4, wide), op::SUB_INT.or_wide(0xfb, wide), op::MUL_INT.wide(wide)];
        let xor = op::XOR.wide(wide);
        let (x, y) = (self.register(a)?, self.register(b)?);
        let result = self.define(v)?;
        let [float, divisor, other, step] =
            [self.temporary()?, self.temporary()?, self.temporary()?, self.temporary()?];
        let (quotient, rest) = if remainder { (other, result) } else { (result, other) };
        let two = |w: &mut Self, opcode: Opcode, target: u8, first: u8, second: u8| {
            w.write(opcode, bytes, target, first, Source::Register(second));
        };
        two(self, to_float, float, 0, x);
        two(self, to_float, divisor, 0, y);
        two(self, op::DIV.double(wide), float, float, divisor);
        two(self, to_integer, quotient, 0, float);
        two(self, mul, step, quotient, y);
        two(self, sub, rest, x, step);
        two(self, to_float, float, 0, rest);
        two(self, op::DIV.double(wide), float, float, divisor);
        two(self, to_integer, step, 0, float);
        two(self, add, quotient, quotient, step);
        two(self, mul, step, step, y);
        two(self, sub, rest, rest, step);
        // By how much the quotient is too far from zero where it is: 1 or -1.
        two(self, xor, step, x, y);
        let sign = if wide { 63 } else { 31 };
        self.write_with(op::SHIFT.wide(wide), bytes, op::SHIFT_ARITHMETIC, step, Source::Register(step), Some(sign));
        let one = self.splat(1, carrier_bytes(dtype));
        self.write(op::OR.wide(wide), bytes, step, step, one);
        two(self, xor, float, rest, x);
        let correct = if remainder { add } else { sub };
        if self.is_512() {
            let (wrong, divides) = (self.temporary_mask()?, self.temporary_mask()?);
            two(self, xor, divisor, divisor, divisor);
            two(self, op::TEST.wide(wide), wrong, rest, rest);
            let negative = super::assembler::Instruction {
                opcode: op::COMPARE_SIGNED.wide(wide),
                bytes,
                target: wrong,
                second: float,
                source: Source::Register(divisor),
                immediate: Some(1),
                mask: wrong,
                zero: false,
            };
            self.asm.vector(self.prefix(), &negative);
            if remainder {
                two(self, mul, step, step, y);
            }
            self.write_masked(correct, bytes, (result, result, Source::Register(step)), (wrong, false));
            two(self, op::TEST.wide(wide), divides, y, y);
            self.write_masked(op::LOAD.double(wide), bytes, (result, 0, Source::Register(result)), (divides, true));
            return Some(());
        }
        if remainder {
            two(self, mul, step, step, y);
        }
        two(self, xor, divisor, divisor, divisor);
        two(self, op::GREATER, float, divisor, float);
        two(self, op::AND, step, step, float);
        two(self, op::EQUAL, float, rest, divisor);
        two(self, op::AND_NOT, step, float, step);
        two(self, correct, result, result, step);
        two(self, op::EQUAL, float, y, divisor);
        two(self, op::AND_NOT, result, float, result);
        Some(())
    }
}
