//! Conversions between types, and between masks and values.

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;

use super::super::{ValueId, carrier_bytes};
use super::Writer;
use super::assembler::Source;
use super::opcode as op;
use super::select::{GREATER_OR_EQUAL, ORDERED, UNORDERED, carrier_float};
use super::values::carrier_bits;

impl Writer<'_> {
    pub(super) fn cast(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let from = self.dtype(a);
        match (from, to) {
            _ if from == to && from != DType::Bool => self.alias(v, a),
            (DType::Bool, DType::Bool) => None,
            (_, DType::Bool) => self.truth(v, a),
            (DType::Bool, _) => {
                let one = carrier_bits(Scalar::bool(true).cast(to));
                let target = self.define(v)?;
                self.ones(target, a, one, carrier_bytes(to))
            }
            (DType::F16 | DType::BF16, DType::F32) => self.widen_half(v, a),
            (DType::F32, DType::F16 | DType::BF16) => self.narrow_to_half(v, a, to),
            _ if is_half(from) || is_half(to) => None,
            (DType::F32, DType::F64) => self.convert(v, a, op::F64_OF_F32, self.lanes * 8),
            (DType::F64, DType::F32) => self.convert(v, a, op::F32_OF_F64, self.lanes * 8),
            _ if carrier_float(from) => self.float_to_integer(v, a, to),
            _ if carrier_float(to) => self.integer_to_float(v, a, to),
            _ => self.integer_to_integer(v, a, to),
        }
    }

    /// An instruction of one operand, named by the wider of its vectors.
    fn convert(&mut self, v: ValueId, a: ValueId, opcode: op::Opcode, bytes: u32) -> Option<()> {
        let from = self.register(a)?;
        let target = self.define(v)?;
        self.write(opcode, bytes, target, 0, Source::Register(from));
        Some(())
    }

    /// A value with the given bits where a mask holds, and 0 elsewhere.
    pub(super) fn ones(&mut self, target: u8, mask: ValueId, bits: u64, element: u32) -> Option<()> {
        let bytes = self.lanes * element;
        let one = self.splat(bits, element);
        if self.is_512() {
            let k = self.mask(mask)?;
            let Source::Memory(one) = one else { return None };
            let one = Source::Memory(super::Memory { splat: false, ..one });
            let opcode = if element == 8 { op::SPLAT_WIDE.wide(true) } else { op::SPLAT };
            self.write_masked(opcode, bytes, (target, 0, one), (k, true));
            return Some(());
        }
        let from = self.register(mask)?;
        if self.mask_bytes[mask as usize] != element {
            return None;
        }
        self.write(op::AND, bytes, target, from, one);
        Some(())
    }

    /// Whether integers of 32 bits in a register are not 0.
    pub(super) fn nonzero(&mut self, v: ValueId, from: u8, bytes: u32) -> Option<()> {
        if self.is_512() {
            let k = self.define_mask(v)?;
            self.write(op::TEST, bytes, k, from, Source::Register(from));
            return Some(());
        }
        let target = self.define(v)?;
        let (zero, ones) = (self.splat(0, 4), self.splat(u64::MAX, 4));
        self.write(op::EQUAL, bytes, target, from, zero);
        self.write(op::XOR, bytes, target, target, ones);
        Some(())
    }

    /// Whether a value is not 0.
    fn truth(&mut self, v: ValueId, a: ValueId) -> Option<()> {
        let (dtype, bytes) = (self.dtype(a), self.bytes_of(a));
        let element = carrier_bytes(dtype);
        self.mask_bytes[v as usize] = element;
        let from = self.register(a)?;
        if carrier_float(dtype) {
            let zero = self.splat(0, element);
            let target = if self.is_512() { self.define_mask(v)? } else { self.define(v)? };
            let opcode = op::COMPARE.double(dtype == DType::F64);
            self.write_with(opcode, bytes, target, from, zero, Some(4));
            return Some(());
        }
        if is_half(dtype) {
            let magnitude = self.temporary()?;
            let mask = self.splat(0x7fff, 4);
            self.write(op::AND, bytes, magnitude, from, mask);
            return self.nonzero(v, magnitude, bytes);
        }
        if element == 4 {
            return self.nonzero(v, from, bytes);
        }
        if !self.is_512() {
            return None;
        }
        let k = self.define_mask(v)?;
        self.write(op::TEST.wide(true), bytes, k, from, Source::Register(from));
        Some(())
    }

    fn widen_half(&mut self, v: ValueId, a: ValueId) -> Option<()> {
        let bytes = self.lanes * 4;
        if self.dtype(a) == DType::BF16 {
            let target = self.take(a, v)?;
            self.shift(bytes, target, op::SHIFT_LEFT, 16);
            return Some(());
        }
        let from = self.register(a)?;
        let packed = match self.is_512() {
            true => {
                let packed = self.temporary()?;
                self.write(op::TRUNCATE_TO_16, bytes, from, 0, Source::Register(packed));
                packed
            }
            false => self.packed(from, 0xffff)?,
        };
        let target = self.define(v)?;
        self.write(op::F32_OF_F16, bytes, target, 0, Source::Register(packed));
        Some(())
    }

    fn narrow_to_half(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let bytes = self.lanes * 4;
        let from = self.register(a)?;
        if to == DType::F16 {
            let target = self.define(v)?;
            // To nearest, halves to even. The result is where the operand is else.
            self.write_with(op::F16_OF_F32, bytes, from, 0, Source::Register(target), Some(0));
            self.write(op::EXTEND_U16, bytes, target, 0, Source::Register(target));
            return Some(());
        }
        // The upper half, plus just under half a unit of it, plus its last bit: halves to even.
        let (target, top) = (self.define(v)?, self.temporary()?);
        let (one, bias) = (self.splat(1, 4), self.splat(0x7fff, 4));
        self.copy(bytes, top, from);
        self.shift(bytes, top, op::SHIFT_RIGHT, 16);
        self.write(op::AND, bytes, target, top, one);
        self.write(op::ADD_INT, bytes, target, target, Source::Register(from));
        self.write(op::ADD_INT, bytes, target, target, bias);
        self.shift(bytes, target, op::SHIFT_RIGHT, 16);
        // A NaN keeps its upper bits and becomes quiet.
        let quiet = self.splat(0x40, 4);
        self.write(op::OR, bytes, top, top, quiet);
        if self.is_512() {
            let k = self.temporary_mask()?;
            self.write_with(op::COMPARE, bytes, k, from, Source::Register(from), Some(UNORDERED));
            self.write_masked(op::BLEND_MASKED, bytes, (target, target, Source::Register(top)), (k, false));
        } else {
            let mask = self.temporary()?;
            self.write_with(op::COMPARE, bytes, mask, from, Source::Register(from), Some(UNORDERED));
            self.write_with(op::BLEND, bytes, target, target, Source::Register(top), Some(mask << 4));
        }
        Some(())
    }

    fn integer_to_float(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let (from, double) = (self.dtype(a), to == DType::F64);
        let opcode = match (from, double) {
            (DType::I64, false) => op::F32_OF_I64,
            (DType::I64, true) => op::F64_OF_I64,
            (DType::U64, false) => op::F32_OF_U64,
            (DType::U64, true) => op::F64_OF_U64,
            (DType::U32, false) => op::F32_OF_U32,
            (DType::U32, true) => op::F64_OF_U32,
            (_, false) => op::F32_OF_I32,
            (_, true) => op::F64_OF_I32,
        };
        if (from, double) == (DType::I64, true) && !self.is_512() {
            return self.wide_to_double(v, a);
        }
        if matches!(from, DType::I64 | DType::U64 | DType::U32) && !self.is_512() {
            return None;
        }
        let bytes = self.lanes * carrier_bytes(from).max(carrier_bytes(to));
        self.convert(v, a, opcode, bytes)
    }

    /// Rounds toward 0; what does not fit becomes the nearest number that does, NaN 0.
    fn float_to_integer(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let from = self.dtype(a);
        let (opcode, limit, most) = match (from, to) {
            (_, DType::U64) => return None,
            (DType::F32, DType::U32) => return self.float_to_u32(v, a),
            (DType::F32, _) if to.size() < 4 => return self.float_to_narrow(v, a, to),
            (DType::F64, _) if to != DType::I64 => return self.double_to_integer(v, a, to),
            (DType::F32, DType::I64) => (op::I64_OF_F32, Scalar::f32((1u64 << 63) as f32), i64::MAX as u64),
            (DType::F64, DType::I64) => {
                let limit = Scalar { dtype: DType::F64, bits: ((1u64 << 63) as f64).to_bits() };
                (op::I64_OF_F64, limit, i64::MAX as u64)
            }
            _ => (op::I32_OF_F32, Scalar::f32(2_147_483_648.0), i32::MAX as u64),
        };
        let (source, wide) = (carrier_bytes(from), carrier_bytes(to) == 8);
        if wide && !self.is_512() {
            return None;
        }
        let (from_bytes, bytes) = (self.lanes * source, self.lanes * carrier_bytes(to));
        let x = self.register(a)?;
        let target = self.define(v)?;
        // Too small and too large numbers both give the least one.
        self.write(opcode, bytes, target, 0, Source::Register(x));
        let compare = op::COMPARE.double(from == DType::F64);
        let limit = self.splat(limit.bits, source);
        let most = self.splat(most, carrier_bytes(to));
        if self.is_512() {
            let k = self.temporary_mask()?;
            self.write_with(compare, from_bytes, k, x, limit, Some(GREATER_OR_EQUAL));
            self.write_masked(op::BLEND_MASKED.wide(wide), bytes, (target, target, most), (k, false));
            self.write_with(compare, from_bytes, k, x, Source::Register(x), Some(UNORDERED));
            let same = Source::Register(target);
            self.write_masked(op::XOR.wide(wide), bytes, (target, target, same), (k, false));
        } else {
            let mask = self.temporary()?;
            self.write_with(compare, bytes, mask, x, limit, Some(GREATER_OR_EQUAL));
            // The least number, with all bits exchanged, is the greatest.
            self.write(op::XOR, bytes, target, target, Source::Register(mask));
            self.write_with(compare, bytes, mask, x, Source::Register(x), Some(UNORDERED));
            self.write(op::AND_NOT, bytes, target, mask, Source::Register(target));
        }
        Some(())
    }

    /// To a type of fewer bits than 32, whose least and greatest numbers f32 holds.
    fn float_to_narrow(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let (lo, hi) = integer_limits(to);
        let (lo, hi) =
            (self.splat(carrier_bits(Scalar::f32(lo as f32)), 4), self.splat(carrier_bits(Scalar::f32(hi as f32)), 4));
        let (x, bytes) = (self.register(a)?, self.lanes * 4);
        let target = self.define(v)?;
        // Of NaN and the least number the latter.
        self.write(op::MAX, bytes, target, x, lo);
        self.write(op::MIN, bytes, target, target, hi);
        if !to.is_signed_int() {
            self.write(op::I32_OF_F32, bytes, target, 0, Source::Register(target));
        } else if self.is_512() {
            let k = self.temporary_mask()?;
            self.write_with(op::COMPARE, bytes, k, x, Source::Register(x), Some(ORDERED));
            self.write_masked(op::I32_OF_F32, bytes, (target, 0, Source::Register(target)), (k, true));
        } else {
            let mask = self.temporary()?;
            self.write(op::I32_OF_F32, bytes, target, 0, Source::Register(target));
            self.write_with(op::COMPARE, bytes, mask, x, Source::Register(x), Some(UNORDERED));
            self.write(op::AND_NOT, bytes, target, mask, Source::Register(target));
        }
        Some(())
    }

    /// With AVX-512, whose instruction makes the greatest number of what is too large.
    fn float_to_u32(&mut self, v: ValueId, a: ValueId) -> Option<()> {
        if !self.is_512() {
            return None;
        }
        let (x, zero, bytes) = (self.register(a)?, self.splat(0, 4), self.lanes * 4);
        let target = self.define(v)?;
        // Of NaN and 0 the second.
        self.write(op::MAX, bytes, target, x, zero);
        self.write(op::U32_OF_F32, bytes, target, 0, Source::Register(target));
        Some(())
    }

    /// To a type of at most 32 bits, whose least and greatest numbers f64 holds.
    fn double_to_integer(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        if !self.is_512() {
            return None;
        }
        let (lo, hi) = integer_limits(to);
        let (lo, hi) = (self.splat((lo as f64).to_bits(), 8), self.splat((hi as f64).to_bits(), 8));
        let (x, from_bytes, bytes) = (self.register(a)?, self.lanes * 8, self.lanes * 4);
        let (target, k) = (self.define(v)?, self.temporary_mask()?);
        self.write(op::MAX.double(true), from_bytes, target, x, lo);
        self.write(op::MIN.double(true), from_bytes, target, target, hi);
        let opcode = if to == DType::U32 { op::U32_OF_F64 } else { op::I32_OF_F64 };
        self.write(opcode, from_bytes, target, 0, Source::Register(target));
        self.write_with(op::COMPARE.double(true), from_bytes, k, x, Source::Register(x), Some(UNORDERED));
        self.write_masked(op::XOR, bytes, (target, target, Source::Register(target)), (k, false));
        Some(())
    }

    fn integer_to_integer(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let from = self.dtype(a);
        match (carrier_bytes(from), carrier_bytes(to)) {
            (4, 8) => {
                let opcode = if from == DType::U32 { op::EXTEND_U32 } else { op::EXTEND_I32 };
                self.convert(v, a, opcode, self.lanes * 8)
            }
            (8, 4) => {
                if !self.is_512() {
                    return None;
                }
                let x = self.register(a)?;
                let target = self.define(v)?;
                // The result is where the operand is else.
                self.write(op::TRUNCATE_TO_32, self.lanes * 8, x, 0, Source::Register(target));
                self.wrap(v, to)
            }
            (8, 8) => self.alias(v, a),
            _ => {
                self.alias(v, a)?;
                self.wrap(v, to)
            }
        }
    }

    pub(super) fn bitcast(&mut self, v: ValueId, a: ValueId, to: DType) -> Option<()> {
        let from = self.dtype(a);
        if from == DType::Bool || to == DType::Bool {
            return if from == to { None } else { self.cast(v, a, to) };
        }
        self.alias(v, a)?;
        if carrier_float(to) { Some(()) } else { self.wrap(v, to) }
    }
}

/// The least and the greatest number of a type of at most 32 bits.
fn integer_limits(dtype: DType) -> (i64, i64) {
    let bits = dtype.size() * 8;
    match dtype.is_signed_int() {
        true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        false => (0, (1i64 << bits) - 1),
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}
