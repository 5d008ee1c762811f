//! Scalar operations on one CLIF value, which is either a scalar or a 128-bit vector of lanes.
//!
//! Values are held in carrier types: f32 and f64 as themselves, 64-bit integers as `i64`, every
//! smaller integer sign or zero extended to `i32`, f16 and bf16 as their bits in `i32`. A scalar
//! bool is an `i8` of 0 or 1; a bool in lanes is a mask of 32 or 64-bit lanes. Lanes are vectors of
//! carriers, so that one emission serves both.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{ConstantData, Endianness, InstBuilder, MemFlagsData, Opcode, Type, Value, types};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};

use super::state::Gen;
use super::types::{carried_bits, carrier};
use crate::symbols;
use crate::walk::{UniformOperand, internal, unsupported};

/// Whether comparisons of carriers must be unsigned.
const fn unsigned_carrier(dtype: DType) -> bool {
    matches!(dtype, DType::U32 | DType::U64)
}

fn int_type(ty: Type) -> Type {
    match ty {
        types::F32 => types::I32,
        types::F64 => types::I64,
        types::F32X4 => types::I32X4,
        types::F64X2 => types::I64X2,
        other => other,
    }
}

impl Gen<'_, '_> {
    pub(super) fn ty(&self, v: Value) -> Type {
        self.b.func.dfg.value_type(v)
    }

    /// A constant of `ty` with `bits` in every lane.
    pub(super) fn konst(&mut self, ty: Type, bits: u64) -> Value {
        if ty.is_vector() {
            let size = ty.lane_type().bytes() as usize;
            let data: Vec<u8> = (0..ty.lane_count()).flat_map(|_| bits.to_le_bytes().into_iter().take(size)).collect();
            return self.vector_const(ty, data);
        }
        match ty {
            types::F32 => self.b.ins().f32const(Ieee32::with_bits(bits as u32)),
            types::F64 => self.b.ins().f64const(Ieee64::with_bits(bits)),
            types::I64 => self.b.ins().iconst(ty, bits as i64),
            _ => {
                let mask = (1u64 << ty.bits()) - 1;
                self.b.ins().iconst(ty, (bits & mask) as i64)
            }
        }
    }

    pub(super) fn vector_const(&mut self, ty: Type, data: Vec<u8>) -> Value {
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(data));
        self.b.ins().vconst(ty, constant)
    }

    /// A constant of the type of `v`.
    fn like(&mut self, v: Value, bits: u64) -> Value {
        let ty = self.ty(v);
        self.konst(ty, bits)
    }

    /// The scalar constant `c` in its carrier.
    pub(super) fn carried(&mut self, c: Scalar) -> Value {
        let bits = carried_bits(c);
        self.konst(carrier(c.dtype), bits)
    }

    pub(super) fn reinterpret(&mut self, ty: Type, v: Value) -> Value {
        if self.ty(v) == ty {
            return v;
        }
        self.b.ins().bitcast(ty, MemFlagsData::new().with_endianness(Endianness::Little), v)
    }

    fn defined_by(&self, v: Value) -> Option<Opcode> {
        let inst = self.b.func.dfg.value_def(v).inst()?;
        Some(self.b.func.dfg.insts[inst].opcode())
    }

    /// `a` where `c` holds, else `b`; `c` is a scalar condition or a mask of the lanes' width.
    pub(super) fn choose(&mut self, c: Value, a: Value, b: Value) -> Value {
        if !self.ty(c).is_vector() {
            return self.b.ins().select(c, a, b);
        }
        let ty = self.ty(a);
        // The x86 back end recognises a comparison below a bit cast, and so minps, maxps and blends.
        let through = if self.defined_by(c) == Some(Opcode::Fcmp) { ty } else { int_type(ty) };
        let c = self.reinterpret(through, c);
        let (a, b) = (self.reinterpret(through, a), self.reinterpret(through, b));
        let r = self.b.ins().bitselect(c, a, b);
        self.reinterpret(ty, r)
    }

    /// Applies `op` to operands of type `dtype` (for `Select`: handled by the caller). `None` if
    /// there is no form for lanes.
    pub(super) fn operation(
        &mut self,
        op: ScalarOp,
        dtype: DType,
        a: &[UniformOperand<Value>],
    ) -> Result<Option<Value>> {
        match op {
            ScalarOp::Cast(to) => self.cast(dtype, to, a[0].v),
            ScalarOp::Bitcast(to) => Ok(self.bitcast(dtype, to, a[0].v)),
            ScalarOp::Select => Ok(Some(self.choose(a[0].v, a[1].v, a[2].v))),
            ScalarOp::Cmp(op) => Ok(Some(self.compare(op, dtype, a[0].v, a[1].v))),
            _ if dtype == DType::Bool => self.logic(op, a).map(Some),
            _ if dtype.is_float() => self.float(op, dtype, a),
            _ => Ok(self.integer(op, dtype, a)),
        }
    }

    fn logic(&mut self, op: ScalarOp, a: &[UniformOperand<Value>]) -> Result<Value> {
        Ok(match op {
            ScalarOp::Not => self.not(a[0].v),
            ScalarOp::And => self.b.ins().band(a[0].v, a[1].v),
            ScalarOp::Or => self.b.ins().bor(a[0].v, a[1].v),
            ScalarOp::Xor => self.b.ins().bxor(a[0].v, a[1].v),
            _ => return Err(internal(format!("`{}` on bool", op.name()))),
        })
    }

    /// Logical negation.
    fn not(&mut self, v: Value) -> Value {
        if self.ty(v).is_vector() {
            return self.b.ins().bnot(v);
        }
        let one = self.like(v, 1);
        self.b.ins().bxor(v, one)
    }

    fn compare(&mut self, op: CmpOp, dtype: DType, a: Value, b: Value) -> Value {
        if dtype == DType::Bool {
            let differ = self.b.ins().bxor(a, b);
            return if op == CmpOp::Ne { differ } else { self.not(differ) };
        }
        if dtype.is_float() {
            return match op {
                CmpOp::Eq => self.b.ins().fcmp(FloatCC::Equal, a, b),
                CmpOp::Ne => self.b.ins().fcmp(FloatCC::NotEqual, a, b),
                CmpOp::Lt => self.b.ins().fcmp(FloatCC::LessThan, a, b),
                CmpOp::Le => self.b.ins().fcmp(FloatCC::LessThanOrEqual, a, b),
                CmpOp::Gt => self.b.ins().fcmp(FloatCC::LessThan, b, a),
                CmpOp::Ge => self.b.ins().fcmp(FloatCC::LessThanOrEqual, b, a),
            };
        }
        let (mut a, mut b) = (a, b);
        let flip = self.ty(a) == types::I64X2 && unsigned_carrier(dtype);
        if flip && !matches!(op, CmpOp::Eq | CmpOp::Ne) {
            let sign = self.like(a, 1 << 63);
            (a, b) = (self.b.ins().bxor(a, sign), self.b.ins().bxor(b, sign));
        }
        let unsigned = unsigned_carrier(dtype) && !flip;
        let cc = match op {
            CmpOp::Eq => IntCC::Equal,
            CmpOp::Ne => IntCC::NotEqual,
            CmpOp::Lt => IntCC::SignedLessThan,
            CmpOp::Le => IntCC::SignedLessThanOrEqual,
            CmpOp::Gt => IntCC::SignedGreaterThan,
            CmpOp::Ge => IntCC::SignedGreaterThanOrEqual,
        };
        self.b.ins().icmp(if unsigned { cc.unsigned() } else { cc }, a, b)
    }

    fn float(&mut self, op: ScalarOp, dtype: DType, a: &[UniformOperand<Value>]) -> Result<Option<Value>> {
        let x = a[0].v;
        let y = a.get(1).map_or(x, |y| y.v);
        Ok(Some(match op {
            ScalarOp::Neg => self.b.ins().fneg(x),
            ScalarOp::Abs => self.b.ins().fabs(x),
            ScalarOp::Sqrt => self.b.ins().sqrt(x),
            ScalarOp::Floor => self.b.ins().floor(x),
            ScalarOp::Ceil => self.b.ins().ceil(x),
            ScalarOp::Trunc => self.b.ins().trunc(x),
            ScalarOp::Round => self.b.ins().nearest(x),
            ScalarOp::Add => self.b.ins().fadd(x, y),
            ScalarOp::Sub => self.b.ins().fsub(x, y),
            ScalarOp::Mul => self.b.ins().fmul(x, y),
            ScalarOp::Div => self.b.ins().fdiv(x, y),
            ScalarOp::Fma => self.b.ins().fma(x, y, a[2].v),
            ScalarOp::Min => self.float_extremum(false, a),
            ScalarOp::Max => self.float_extremum(true, a),
            ScalarOp::Math(_) | ScalarOp::Rem | ScalarOp::Scale if self.ty(x).is_vector() => return Ok(None),
            ScalarOp::Math(f) if dtype != DType::F64 => {
                return Err(unsupported(format!("`{}` on {dtype} was not expanded before code generation", f.name())));
            }
            ScalarOp::Math(_) | ScalarOp::Rem | ScalarOp::Scale => {
                let args: Vec<Value> = a.iter().map(|a| a.v).collect();
                self.library(op, dtype, &args)?
            }
            _ => return Err(internal(format!("`{}` on {dtype}", op.name()))),
        }))
    }

    fn library(&mut self, op: ScalarOp, dtype: DType, args: &[Value]) -> Result<Value> {
        let callee = symbols::callee(op, dtype);
        let (name, _) = callee.ok_or_else(|| internal(format!("`{}` on {dtype} has no callee", op.name())))?;
        let inst = self.call(&name, args)?;
        Ok(self.b.inst_results(inst)[0])
    }

    /// IEEE minimum or maximum. Against a known number the one instruction of the processor does:
    /// it gives the second operand when either is NaN or both are zero.
    fn float_extremum(&mut self, max: bool, a: &[UniformOperand<Value>]) -> Value {
        for (known, other) in [(a[0], a[1]), (a[1], a[0])] {
            let Some(c) = known.c.map(|c| c.as_f64()).filter(|c| !c.is_nan()) else { continue };
            let tie_matters = c == 0.0 && c.is_sign_positive() == max;
            if tie_matters && !max {
                break;
            }
            let (k, x) = (known.v, other.v);
            let k_wins = if max {
                self.b.ins().fcmp(FloatCC::LessThan, x, k)
            } else {
                self.b.ins().fcmp(FloatCC::LessThan, k, x)
            };
            let r = self.choose(k_wins, k, x);
            // max(+0, -0) came out as -0; adding +0 changes nothing else.
            return if tie_matters { self.b.ins().fadd(r, k) } else { r };
        }
        if max { self.b.ins().fmax(a[0].v, a[1].v) } else { self.b.ins().fmin(a[0].v, a[1].v) }
    }

    fn integer(&mut self, op: ScalarOp, dtype: DType, a: &[UniformOperand<Value>]) -> Option<Value> {
        let x = a[0].v;
        let y = a.get(1).map_or(x, |y| y.v);
        let signed = dtype.is_signed_int();
        let wide = match op {
            ScalarOp::Neg => self.b.ins().ineg(x),
            ScalarOp::Abs if signed => self.b.ins().iabs(x),
            ScalarOp::Abs => x,
            ScalarOp::Not => self.b.ins().bnot(x),
            ScalarOp::Add => self.b.ins().iadd(x, y),
            ScalarOp::Sub => self.b.ins().isub(x, y),
            ScalarOp::Mul => self.b.ins().imul(x, y),
            ScalarOp::Div | ScalarOp::Rem if self.ty(x).is_vector() => return None,
            ScalarOp::Div => self.quotient(signed, a),
            ScalarOp::Rem => self.remainder(signed, a),
            ScalarOp::Min | ScalarOp::Max => {
                let first = if op == ScalarOp::Min { CmpOp::Lt } else { CmpOp::Gt };
                let c = self.compare(first, dtype, x, y);
                self.choose(c, x, y)
            }
            ScalarOp::And => self.b.ins().band(x, y),
            ScalarOp::Or => self.b.ins().bor(x, y),
            ScalarOp::Xor => self.b.ins().bxor(x, y),
            ScalarOp::Shl | ScalarOp::Shr => self.shift(op == ScalarOp::Shl, dtype, a)?,
            _ => return None,
        };
        Some(self.wrap(dtype, wide))
    }

    /// A divisor that cannot trap, and whether it is 1 in place of 0 or -1.
    fn safe_divisor(&mut self, signed: bool, y: Value) -> (Value, Value) {
        let (zero, one) = (self.like(y, 0), self.like(y, 1));
        let replaced = if signed {
            let next = self.b.ins().iadd(y, one);
            self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, next, one)
        } else {
            self.b.ins().icmp(IntCC::Equal, y, zero)
        };
        (self.b.ins().select(replaced, one, y), replaced)
    }

    fn quotient(&mut self, signed: bool, a: &[UniformOperand<Value>]) -> Value {
        let (x, y) = (a[0].v, a[1].v);
        match a[1].c.map(|c| c.as_i64()) {
            Some(0) => return self.like(x, 0),
            Some(-1) if signed => return self.b.ins().ineg(x),
            Some(c) if !signed && c > 0 && c & (c - 1) == 0 => {
                let by = self.like(x, u64::from(c.trailing_zeros()));
                return self.b.ins().ushr(x, by);
            }
            Some(_) if signed => return self.b.ins().sdiv(x, y),
            Some(_) => return self.b.ins().udiv(x, y),
            None => {}
        }
        let (d, replaced) = self.safe_divisor(signed, y);
        let q = if signed { self.b.ins().sdiv(x, d) } else { self.b.ins().udiv(x, d) };
        // By -1 and 0 the quotient is the product.
        let product = self.b.ins().imul(x, y);
        self.b.ins().select(replaced, product, q)
    }

    fn remainder(&mut self, signed: bool, a: &[UniformOperand<Value>]) -> Value {
        let (x, y) = (a[0].v, a[1].v);
        let d = match a[1].c.map(|c| c.as_i64()) {
            Some(0 | 1) => return self.like(x, 0),
            Some(-1) if signed => return self.like(x, 0),
            Some(c) if !signed && c > 0 && c & (c - 1) == 0 => {
                let mask = self.like(x, c as u64 - 1);
                return self.b.ins().band(x, mask);
            }
            Some(_) => y,
            None => self.safe_divisor(signed, y).0,
        };
        if signed { self.b.ins().srem(x, d) } else { self.b.ins().urem(x, d) }
    }

    fn shift(&mut self, left: bool, dtype: DType, a: &[UniformOperand<Value>]) -> Option<Value> {
        let (x, y, ty) = (a[0].v, a[1].v, self.ty(a[0].v));
        let (signed, width) = (dtype.is_signed_int(), dtype.size() as u64 * 8);
        if let Some(c) = a[1].c {
            let by = c.as_i64() as u64;
            if by >= width && (left || !signed) {
                return Some(self.konst(ty, 0));
            }
            let by = self.konst(ty.lane_type(), by.min(width - 1));
            return Some(match (left, signed) {
                (true, _) => self.b.ins().ishl(x, by),
                (_, true) => self.b.ins().sshr(x, by),
                _ => self.b.ins().ushr(x, by),
            });
        }
        if ty.is_vector() {
            return None;
        }
        if !left && signed {
            let most = self.konst(ty, width - 1);
            let by = self.b.ins().umin(y, most);
            return Some(self.b.ins().sshr(x, by));
        }
        let shifted = if left { self.b.ins().ishl(x, y) } else { self.b.ins().ushr(x, y) };
        let (limit, zero) = (self.konst(ty, width), self.konst(ty, 0));
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, y, limit);
        Some(self.b.ins().select(inside, shifted, zero))
    }

    /// Reduces a carrier modulo the width of `dtype`, sign or zero extended again.
    pub(super) fn wrap(&mut self, dtype: DType, v: Value) -> Value {
        let bits = dtype.size() as u64 * 8;
        if bits >= 32 {
            return v;
        }
        if dtype.is_signed_int() {
            let by = self.konst(types::I32, 32 - bits);
            let top = self.b.ins().ishl(v, by);
            return self.b.ins().sshr(top, by);
        }
        let mask = self.like(v, (1 << bits) - 1);
        self.b.ins().band(v, mask)
    }

    fn bitcast(&mut self, from: DType, to: DType, v: Value) -> Option<Value> {
        if from == to {
            return Some(v);
        }
        if to == DType::Bool {
            let zero = self.like(v, 0);
            return Some(self.b.ins().icmp(IntCC::NotEqual, v, zero));
        }
        if from == DType::Bool {
            return self.bool_to(to, v);
        }
        let ty = match (self.ty(v).is_vector(), carrier(to)) {
            (true, lane) => lane.by(128 / lane.bits())?,
            (false, ty) => ty,
        };
        let r = self.reinterpret(ty, v);
        Some(self.wrap(to, r))
    }

    /// The value of `to` for true and false; a mask must be of the lanes' width.
    fn bool_to(&mut self, to: DType, v: Value) -> Option<Value> {
        let one = carried_bits(Scalar::bool(true).cast(to));
        let ty = carrier(to);
        if !self.ty(v).is_vector() {
            let (one, zero) = (self.konst(ty, one), self.konst(ty, 0));
            return Some(self.b.ins().select(v, one, zero));
        }
        if self.ty(v).lane_type().bits() != ty.bits() {
            return None;
        }
        let one = self.like(v, one);
        let r = self.b.ins().band(v, one);
        let ty = ty.by(128 / ty.bits())?;
        Some(self.reinterpret(ty, r))
    }

    /// Conversion without a change of the number of lanes in a vector.
    pub(super) fn cast(&mut self, from: DType, to: DType, v: Value) -> Result<Option<Value>> {
        let vector = self.ty(v).is_vector();
        if from == to {
            return Ok(Some(v));
        }
        if to == DType::Bool {
            return Ok(Some(self.nonzero(from, v)));
        }
        if from == DType::Bool {
            return Ok(self.bool_to(to, v));
        }
        if matches!(from, DType::F16 | DType::BF16) {
            let wide = if from == DType::F16 { self.widen_f16(v) } else { self.widen_bf16(v) };
            return self.cast(DType::F32, to, wide);
        }
        if matches!(to, DType::F16 | DType::BF16) {
            return self.cast_to_half(from, to, v);
        }
        if vector && carrier(from).bits() != carrier(to).bits() {
            return Ok(None);
        }
        Ok(match (from, to) {
            (DType::F32, DType::F64) => Some(self.b.ins().fpromote(types::F64, v)),
            (DType::F64, DType::F32) => Some(self.b.ins().fdemote(types::F32, v)),
            (f, _) if f.is_float() => self.float_to_int(to, v),
            (_, t) if t.is_float() => self.int_to_float(from, t, v),
            _ => Some(self.int_to_int(from, to, v)),
        })
    }

    fn nonzero(&mut self, from: DType, v: Value) -> Value {
        match from {
            DType::F32 | DType::F64 => {
                let zero = self.like(v, 0);
                self.b.ins().fcmp(FloatCC::NotEqual, v, zero)
            }
            DType::F16 | DType::BF16 => {
                let (mask, zero) = (self.like(v, 0x7fff), self.like(v, 0));
                let magnitude = self.b.ins().band(v, mask);
                self.b.ins().icmp(IntCC::NotEqual, magnitude, zero)
            }
            _ => {
                let zero = self.like(v, 0);
                self.b.ins().icmp(IntCC::NotEqual, v, zero)
            }
        }
    }

    fn cast_to_half(&mut self, from: DType, to: DType, v: Value) -> Result<Option<Value>> {
        let f32_first = match from {
            DType::F32 => Some(v),
            _ if from.size() < 4 => self.cast(from, DType::F32, v)?,
            _ if self.ty(v).is_vector() => return Ok(None),
            _ => None,
        };
        if let Some(x) = f32_first {
            return Ok(Some(if to == DType::F16 { self.narrow_f16(x) } else { self.narrow_bf16(x) }));
        }
        let arg = match from {
            DType::I32 => self.b.ins().sextend(types::I64, v),
            DType::U32 => self.b.ins().uextend(types::I64, v),
            _ => v,
        };
        self.library(ScalarOp::Cast(to), from, &[arg]).map(Some)
    }

    fn float_to_int(&mut self, to: DType, v: Value) -> Option<Value> {
        let ty = match (self.ty(v).is_vector(), carrier(to)) {
            (true, types::I32) if self.ty(v) == types::F32X4 => types::I32X4,
            (true, _) => return None,
            (false, ty) => ty,
        };
        if unsigned_carrier(to) {
            return Some(self.b.ins().fcvt_to_uint_sat(ty, v));
        }
        let r = self.b.ins().fcvt_to_sint_sat(ty, v);
        let bits = to.size() as u32 * 8;
        if bits >= 32 {
            return Some(r);
        }
        let (lo, hi) = match to.is_signed_int() {
            true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
            false => (0, (1i64 << bits) - 1),
        };
        let (lo, hi) = (self.konst(ty, lo as u64), self.konst(ty, hi as u64));
        let r = self.b.ins().smax(r, lo);
        Some(self.b.ins().smin(r, hi))
    }

    fn int_to_float(&mut self, from: DType, to: DType, v: Value) -> Option<Value> {
        let ty = match (self.ty(v), carrier(to)) {
            (types::I32X4, types::F32) => types::F32X4,
            (t, _) if t.is_vector() => return None,
            (_, ty) => ty,
        };
        Some(match unsigned_carrier(from) {
            true => self.b.ins().fcvt_from_uint(ty, v),
            false => self.b.ins().fcvt_from_sint(ty, v),
        })
    }

    fn int_to_int(&mut self, from: DType, to: DType, v: Value) -> Value {
        match (carrier(from).bits(), carrier(to).bits()) {
            (32, 64) if from == DType::U32 => self.b.ins().uextend(types::I64, v),
            (32, 64) => self.b.ins().sextend(types::I64, v),
            (64, 32) => {
                let low = self.b.ins().ireduce(types::I32, v);
                self.wrap(to, low)
            }
            (64, 64) => v,
            _ => self.wrap(to, v),
        }
    }
}
