//! Conversions between f32 and the bits of f16 and bf16: an instruction where there is one, else integers.

use inkwell::IntPredicate;
use inkwell::values::InstructionOpcode as Op;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;

use super::ir::{Ir, Value};
use super::scalar::ProcessorTraits;

impl<'c> Ir<'c, '_> {
    /// The f32 that bits of f16 or bf16 stand for.
    pub(super) fn widen_half(&self, m: ProcessorTraits, from: DType, h: Value<'c>) -> Result<Value<'c>> {
        let float = self.like(h, self.cx.f32_type().into())?;
        if from == DType::F16 && m.converts_f16 {
            let half = self.bitcast(h, self.like_half(h, from)?)?;
            return self.cast(Op::FPExt, half, float);
        }
        let wide = self.cast(Op::ZExt, h, self.ints_like(h, 32)?)?;
        match from {
            DType::F16 => self.widen_f16(wide),
            _ => self.bitcast(self.shift(Op::Shl, wide, 16)?, float),
        }
    }

    /// An f32 rounded to bits of f16 or bf16, nearest even.
    pub(super) fn narrow_half(&self, m: ProcessorTraits, to: DType, x: Value<'c>) -> Result<Value<'c>> {
        let short = self.ints_like(x, 16)?;
        // Every GPU rounds to bf16 (PTX ISA, "cvt", sm_80); of processors few do.
        let converts = if to == DType::F16 { m.converts_f16 } else { m.gpu };
        if converts {
            let half = self.cast(Op::FPTrunc, x, self.like_half(x, to)?)?;
            return self.bitcast(half, short);
        }
        let bits = self.bitcast(x, self.ints_like(x, 32)?)?;
        let narrow = if to == DType::F16 { self.narrow_f16(bits)? } else { self.narrow_bf16(bits)? };
        self.cast(Op::Trunc, narrow, short)
    }

    fn like_half(&self, v: Value<'c>, dtype: DType) -> Result<inkwell::types::BasicTypeEnum<'c>> {
        let ty = if dtype == DType::F16 { self.cx.f16_type() } else { self.cx.bf16_type() };
        self.like(v, ty.into())
    }

    /// The exponent is rebiased by an exact multiplication, which also normalises subnormals.
    fn widen_f16(&self, h: Value<'c>) -> Result<Value<'c>> {
        let float = self.like(h, self.cx.f32_type().into())?;
        let magnitude = self.and_bits(h, 0x7fff)?;
        let shifted = self.shift(Op::Shl, magnitude, 13)?;
        let scale = self.bits(float, 0x7780_0000)?;
        let finite = self.binary(Op::FMul, self.bitcast(shifted, float)?, scale)?;
        let finite = self.bitcast(finite, h.get_type())?;
        let special = self.or(shifted, self.bits_like(h, 0x7f80_0000)?)?;
        let is_special = self.compare_ints(IntPredicate::UGT, magnitude, self.bits_like(h, 0x7bff)?)?;
        let magnitude = self.select(is_special, special, finite)?;
        let sign = self.shift(Op::Shl, self.and_bits(h, 0x8000)?, 16)?;
        self.bitcast(self.or(magnitude, sign)?, float)
    }

    /// Subnormal results are rounded by an addition whose unit in the last place is theirs; normal ones by
    /// adding just under half a unit and carrying.
    fn narrow_f16(&self, bits: Value<'c>) -> Result<Value<'c>> {
        let float = self.like(bits, self.cx.f32_type().into())?;
        let at = |c: u64| self.bits_like(bits, c);
        let magnitude = self.and_bits(bits, 0x7fff_ffff)?;
        let rounded = self.binary(Op::FAdd, self.bitcast(magnitude, float)?, self.bits(float, 0x3f00_0000)?)?;
        let subnormal = self.sub(self.bitcast(rounded, bits.get_type())?, at(0x3f00_0000)?)?;
        let odd = self.and_bits(self.shift(Op::LShr, magnitude, 13)?, 1)?;
        let biased = self.add(self.add(magnitude, at(0xc800_0fff)?)?, odd)?;
        let normal = self.shift(Op::LShr, biased, 13)?;
        let is_small = self.compare_ints(IntPredicate::ULT, magnitude, at(0x3880_0000)?)?;
        let finite = self.select(is_small, subnormal, normal)?;
        let is_nan = self.compare_ints(IntPredicate::UGT, magnitude, at(0x7f80_0000)?)?;
        let special = self.select(is_nan, at(0x7e00)?, at(0x7c00)?)?;
        let is_special = self.compare_ints(IntPredicate::UGT, magnitude, at(0x477f_ffff)?)?;
        let magnitude = self.select(is_special, special, finite)?;
        let sign = self.and_bits(self.shift(Op::LShr, bits, 16)?, 0x8000)?;
        self.or(magnitude, sign)
    }

    fn narrow_bf16(&self, bits: Value<'c>) -> Result<Value<'c>> {
        let top = self.shift(Op::LShr, bits, 16)?;
        let odd = self.and_bits(top, 1)?;
        let biased = self.add(self.add(bits, self.bits_like(bits, 0x7fff)?)?, odd)?;
        let rounded = self.shift(Op::LShr, biased, 16)?;
        let quiet = self.or(top, self.bits_like(bits, 0x40)?)?;
        let magnitude = self.and_bits(bits, 0x7fff_ffff)?;
        let is_nan = self.compare_ints(IntPredicate::UGT, magnitude, self.bits_like(bits, 0x7f80_0000)?)?;
        self.select(is_nan, quiet, rounded)
    }
}
