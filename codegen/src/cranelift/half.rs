//! Conversions between f32 and the bits of f16 and bf16, on scalars and lanes alike.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};

use super::state::Gen;

impl Gen<'_, '_> {
    /// Half precision bits to f32: the exponent is rebiased by an exact multiplication, which also
    /// normalises subnormals.
    pub(super) fn widen_f16(&mut self, h: Value) -> Value {
        let (int, float) = self.bits_and_float(h);
        let magnitude_mask = self.konst(int, 0x7fff);
        let magnitude = self.b.ins().band(h, magnitude_mask);
        let shift = self.konst(types::I32, 13);
        let shifted = self.b.ins().ishl(magnitude, shift);
        let tiny = self.reinterpret(float, shifted);
        let scale = self.konst(float, 0x7780_0000);
        let finite = self.b.ins().fmul(tiny, scale);
        let finite = self.reinterpret(int, finite);
        let (inf, exponent) = (self.konst(int, 0x7bff), self.konst(int, 0x7f80_0000));
        let special = self.b.ins().bor(shifted, exponent);
        let is_special = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, inf);
        let magnitude = self.choose(is_special, special, finite);
        let sign_mask = self.konst(int, 0x8000);
        let sign = self.b.ins().band(h, sign_mask);
        let up = self.konst(types::I32, 16);
        let sign = self.b.ins().ishl(sign, up);
        let bits = self.b.ins().bor(magnitude, sign);
        self.reinterpret(float, bits)
    }

    pub(super) fn widen_bf16(&mut self, h: Value) -> Value {
        let (_, float) = self.bits_and_float(h);
        let up = self.konst(types::I32, 16);
        let bits = self.b.ins().ishl(h, up);
        self.reinterpret(float, bits)
    }

    /// The integer and float types of the shape of `v`.
    fn bits_and_float(&self, v: Value) -> (Type, Type) {
        match self.ty(v).is_vector() {
            true => (types::I32X4, types::F32X4),
            false => (types::I32, types::F32),
        }
    }

    /// f32 to half precision bits, nearest even. Subnormal results are rounded by an addition whose
    /// unit in the last place is theirs; normal ones by adding just under half a unit and carrying.
    pub(super) fn narrow_f16(&mut self, x: Value) -> Value {
        let (int, float) = self.bits_and_float(x);
        let bits = self.reinterpret(int, x);
        let magnitude_mask = self.konst(int, 0x7fff_ffff);
        let magnitude = self.b.ins().band(bits, magnitude_mask);
        let half = self.konst(float, 0x3f00_0000);
        let as_float = self.reinterpret(float, magnitude);
        let rounded = self.b.ins().fadd(as_float, half);
        let rounded = self.reinterpret(int, rounded);
        let half = self.konst(int, 0x3f00_0000);
        let subnormal = self.b.ins().isub(rounded, half);
        let (thirteen, one) = (self.konst(types::I32, 13), self.konst(int, 1));
        let last = self.b.ins().ushr(magnitude, thirteen);
        let odd = self.b.ins().band(last, one);
        let bias = self.konst(int, 0xc800_0fff);
        let biased = self.b.ins().iadd(magnitude, bias);
        let biased = self.b.ins().iadd(biased, odd);
        let normal = self.b.ins().ushr(biased, thirteen);
        let limit = self.konst(int, 0x3880_0000);
        let is_small = self.b.ins().icmp(IntCC::SignedLessThan, magnitude, limit);
        let finite = self.choose(is_small, subnormal, normal);
        let (inf, nan) = (self.konst(int, 0x7c00), self.konst(int, 0x7e00));
        let inf32 = self.konst(int, 0x7f80_0000);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, inf32);
        let special = self.choose(is_nan, nan, inf);
        let limit = self.konst(int, 0x477f_ffff);
        let is_special = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, limit);
        let magnitude = self.choose(is_special, special, finite);
        let down = self.konst(types::I32, 16);
        let sign = self.b.ins().ushr(bits, down);
        let sign_mask = self.konst(int, 0x8000);
        let sign = self.b.ins().band(sign, sign_mask);
        self.b.ins().bor(magnitude, sign)
    }

    pub(super) fn narrow_bf16(&mut self, x: Value) -> Value {
        let (int, _) = self.bits_and_float(x);
        let bits = self.reinterpret(int, x);
        let (sixteen, one) = (self.konst(types::I32, 16), self.konst(int, 1));
        let top = self.b.ins().ushr(bits, sixteen);
        let odd = self.b.ins().band(top, one);
        let bias = self.konst(int, 0x7fff);
        let biased = self.b.ins().iadd(bits, bias);
        let biased = self.b.ins().iadd(biased, odd);
        let rounded = self.b.ins().ushr(biased, sixteen);
        let quiet_bit = self.konst(int, 0x40);
        let quiet = self.b.ins().bor(top, quiet_bit);
        let magnitude_mask = self.konst(int, 0x7fff_ffff);
        let magnitude = self.b.ins().band(bits, magnitude_mask);
        let inf = self.konst(int, 0x7f80_0000);
        let is_nan = self.b.ins().icmp(IntCC::SignedGreaterThan, magnitude, inf);
        self.choose(is_nan, quiet, rounded)
    }
}
