//! Scalar operations on one value, a scalar or a vector of lanes.
//!
//! Integers have the width of their type, so that arithmetic wraps by itself; f16 and bf16 are their bits;
//! a bool is one bit. Every result has the bits that [`ScalarOp::eval`] gives, but for payloads of NaNs.

use inkwell::types::BasicTypeEnum;
use inkwell::values::InstructionOpcode as Op;
use inkwell::{FloatPredicate, IntPredicate};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};

use super::ir::{Ir, Value, lanes_of};
use crate::symbols::{self, Prototype};
use crate::walk::{internal, unsupported};

/// Properties of the processor that change which instructions are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTraits {
    /// Whether it converts between f32 and f16.
    pub converts_f16: bool,
    /// Whether it multiplies by powers of two, as [`ScalarOp::Scale`] does, in vectors of 128 to 512 bits.
    pub scales: bool,
    /// Whether it is a GPU, whose kernels are launched, and which has no run-time library.
    pub gpu: bool,
    /// Whether its groups of warps multiply tiles.
    pub groups: bool,
}

const fn bits_of(dtype: DType) -> u32 {
    dtype.size() as u32 * 8
}

impl<'c> Ir<'c, '_> {
    /// Applies `op` to operands of one shape, of which the first (the second of `Select`) has type `dtype`.
    pub(super) fn apply(&self, m: ProcessorTraits, op: ScalarOp, dtype: DType, a: &[Value<'c>]) -> Result<Value<'c>> {
        match op {
            ScalarOp::Cast(to) => self.convert(m, dtype, to, a[0]),
            ScalarOp::Bitcast(to) => self.reinterpret(dtype, to, a[0]),
            ScalarOp::Select => self.select(a[0], a[1], a[2]),
            ScalarOp::Cmp(op) => self.compare(op, dtype, a[0], a[1]),
            _ if dtype == DType::Bool => self.logic(op, a),
            _ if dtype.is_float() => self.float(m, op, dtype, a),
            _ => self.integer(m, op, dtype, a),
        }
    }

    fn logic(&self, op: ScalarOp, a: &[Value<'c>]) -> Result<Value<'c>> {
        match op {
            ScalarOp::Not => self.not(a[0]),
            ScalarOp::And => self.and(a[0], a[1]),
            ScalarOp::Or => self.or(a[0], a[1]),
            ScalarOp::Xor => self.xor(a[0], a[1]),
            _ => Err(internal(format!("`{}` on bool", op.name()))),
        }
    }

    fn compare(&self, op: CmpOp, dtype: DType, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        if matches!(dtype, DType::F32 | DType::F64) {
            let predicate = match op {
                CmpOp::Eq => FloatPredicate::OEQ,
                CmpOp::Ne => FloatPredicate::UNE,
                CmpOp::Lt => FloatPredicate::OLT,
                CmpOp::Le => FloatPredicate::OLE,
                CmpOp::Gt => FloatPredicate::OGT,
                CmpOp::Ge => FloatPredicate::OGE,
            };
            return self.compare_floats(predicate, a, b);
        }
        let signed = dtype.is_signed_int();
        let predicate = match op {
            CmpOp::Eq => IntPredicate::EQ,
            CmpOp::Ne => IntPredicate::NE,
            CmpOp::Lt => [IntPredicate::ULT, IntPredicate::SLT][usize::from(signed)],
            CmpOp::Le => [IntPredicate::ULE, IntPredicate::SLE][usize::from(signed)],
            CmpOp::Gt => [IntPredicate::UGT, IntPredicate::SGT][usize::from(signed)],
            CmpOp::Ge => [IntPredicate::UGE, IntPredicate::SGE][usize::from(signed)],
        };
        self.compare_ints(predicate, a, b)
    }

    /// An intrinsic whose operands and result have one type.
    fn same_type(&self, name: &str, a: &[Value<'c>]) -> Result<Value<'c>> {
        self.intrinsic(name, &[a[0].get_type()], a)
    }

    fn float(&self, m: ProcessorTraits, op: ScalarOp, dtype: DType, a: &[Value<'c>]) -> Result<Value<'c>> {
        match op {
            ScalarOp::Neg => self.negate(a[0]),
            ScalarOp::Abs => self.same_type("llvm.fabs", a),
            ScalarOp::Sqrt => self.same_type("llvm.sqrt", a),
            ScalarOp::Floor => self.same_type("llvm.floor", a),
            ScalarOp::Ceil => self.same_type("llvm.ceil", a),
            ScalarOp::Trunc => self.same_type("llvm.trunc", a),
            ScalarOp::Round => self.same_type("llvm.roundeven", a),
            ScalarOp::Add => self.binary(Op::FAdd, a[0], a[1]),
            ScalarOp::Sub => self.binary(Op::FSub, a[0], a[1]),
            ScalarOp::Mul => self.binary(Op::FMul, a[0], a[1]),
            ScalarOp::Div => self.binary(Op::FDiv, a[0], a[1]),
            ScalarOp::Fma => self.same_type("llvm.fma", a),
            ScalarOp::Min => self.same_type("llvm.minimum", a),
            ScalarOp::Max => self.same_type("llvm.maximum", a),
            ScalarOp::Math(f) if dtype != DType::F64 => {
                Err(unsupported(format!("`{}` on {dtype} was not expanded before code generation", f.name())))
            }
            ScalarOp::Scale if m.scales => self.scale(a[0], a[1]),
            ScalarOp::Math(_) | ScalarOp::Rem | ScalarOp::Scale => self.library(m, op, dtype, a),
            _ => Err(internal(format!("`{}` on {dtype}", op.name()))),
        }
    }

    /// A call of the run-time library, for every lane.
    fn library(&self, m: ProcessorTraits, op: ScalarOp, from: DType, a: &[Value<'c>]) -> Result<Value<'c>> {
        if m.gpu {
            return Err(unsupported(format!("`{}` on {from} has no code for a GPU", op.name())));
        }
        let callee = symbols::callee(op, from);
        let (name, p) = callee.ok_or_else(|| internal(format!("`{}` on {from} has no callee", op.name())))?;
        let function = self.prototype(&name, p);
        let one =
            |args: &[Value<'c>]| self.call(function, args)?.ok_or_else(|| internal(format!("`{name}` has no result")));
        let Some(lanes) = lanes_of(a[0]) else { return one(a) };
        let mut values = Vec::with_capacity(lanes as usize);
        for lane in 0..lanes as usize {
            let args = a.iter().map(|v| self.extract(*v, lane)).collect::<Result<Vec<_>>>()?;
            values.push(one(&args)?);
        }
        self.assemble(&values)
    }

    /// [`ScalarOp::Scale`] by the instruction, which has 4, 8 or 16 lanes.
    fn scale(&self, x: Value<'c>, n: Value<'c>) -> Result<Value<'c>> {
        let Some(lanes) = lanes_of(x) else {
            let scaled = self.scale(self.splat(x, 4)?, self.splat(n, 4)?)?;
            return self.extract(scaled, 0);
        };
        let lanes = lanes as usize;
        let width = lanes.next_power_of_two().max(4);
        let part = |v, from: usize, to: usize| self.shuffle(v, v, (from..to).map(|l| l.min(lanes - 1)));
        if width != lanes {
            let scaled = self.scale(part(x, 0, width)?, part(n, 0, width)?)?;
            return self.shuffle(scaled, scaled, 0..lanes);
        }
        let name = match width {
            4 => "llvm.x86.avx512.mask.scalef.ps.128",
            8 => "llvm.x86.avx512.mask.scalef.ps.256",
            16 => "llvm.x86.avx512.mask.scalef.ps.512",
            _ => {
                let half = |from: usize| self.scale(part(x, from, from + width / 2)?, part(n, from, from + width / 2)?);
                return self.shuffle(half(0)?, half(width / 2)?, 0..width);
            }
        };
        let every_lane = self.bits(self.int(width.max(8) as u32).into(), u64::MAX)?;
        let current_rounding = self.bits(self.int(32).into(), 4)?;
        let args = [x, n, x, every_lane, current_rounding];
        self.intrinsic(name, &[], if width == 16 { &args } else { &args[..4] })
    }

    fn prototype(&self, name: &str, p: Prototype) -> inkwell::values::FunctionValue<'c> {
        let function =
            self.declare(name, &vec![self.scalar_type(p.param); p.arity], p.result.map(|r| self.scalar_type(r)));
        // Such a function computes from its operands alone.
        let memory = inkwell::attributes::Attribute::get_named_enum_kind_id("memory");
        let none = self.cx.create_enum_attribute(memory, 0);
        function.add_attribute(inkwell::attributes::AttributeLoc::Function, none);
        function
    }

    fn integer(&self, m: ProcessorTraits, op: ScalarOp, dtype: DType, a: &[Value<'c>]) -> Result<Value<'c>> {
        let signed = dtype.is_signed_int();
        let pick = |names: [&'static str; 2]| names[usize::from(signed)];
        match op {
            ScalarOp::Neg => self.sub(self.bits_like(a[0], 0)?, a[0]),
            ScalarOp::Abs if signed => {
                let wraps = self.bits(self.int(1).into(), 0)?;
                self.intrinsic("llvm.abs", &[a[0].get_type()], &[a[0], wraps])
            }
            ScalarOp::Abs => Ok(a[0]),
            ScalarOp::Not => self.not(a[0]),
            ScalarOp::Add => self.add(a[0], a[1]),
            ScalarOp::Sub => self.sub(a[0], a[1]),
            ScalarOp::Mul => self.mul(a[0], a[1]),
            ScalarOp::Div => {
                let q = self.divided(signed, [Op::UDiv, Op::SDiv], a)?;
                self.unless_zero(a[1], q)
            }
            ScalarOp::Rem => {
                let r = self.divided(signed, [Op::URem, Op::SRem], a)?;
                self.unless_zero(a[1], r)
            }
            ScalarOp::Min => self.same_type(pick(["llvm.umin", "llvm.smin"]), a),
            ScalarOp::Max => self.same_type(pick(["llvm.umax", "llvm.smax"]), a),
            ScalarOp::And => self.and(a[0], a[1]),
            ScalarOp::Or => self.or(a[0], a[1]),
            ScalarOp::Xor => self.xor(a[0], a[1]),
            ScalarOp::Shl => self.shifted(m, Op::Shl, bits_of(dtype), a),
            ScalarOp::Shr if signed => {
                let most = self.bits_like(a[1], u64::from(bits_of(dtype)) - 1)?;
                let by = self.same_type("llvm.umin", &[a[1], most])?;
                self.binary(Op::AShr, a[0], by)
            }
            ScalarOp::Shr => self.shifted(m, Op::LShr, bits_of(dtype), a),
            _ => Err(internal(format!("`{}` on {dtype}", op.name()))),
        }
    }

    /// A division or remainder with 1 in place of divisors that trap: 0, and -1 below the minimum. `x / 1`
    /// and `x % 1` are the right results for the latter.
    fn divided(&self, signed: bool, ops: [Op; 2], a: &[Value<'c>]) -> Result<Value<'c>> {
        let (zero, one) = (self.bits_like(a[1], 0)?, self.bits_like(a[1], 1)?);
        let mut bad = self.compare_ints(IntPredicate::EQ, a[1], zero)?;
        if signed {
            let bits = scalar_bits(a[0]);
            let min = self.bits_like(a[0], 1 << (bits - 1))?;
            let least = self.compare_ints(IntPredicate::EQ, a[0], min)?;
            let minus = self.compare_ints(IntPredicate::EQ, a[1], self.bits_like(a[1], u64::MAX)?)?;
            bad = self.or(bad, self.and(least, minus)?)?;
        }
        let divisor = self.select(bad, one, a[1])?;
        self.binary(ops[usize::from(signed)], a[0], divisor)
    }

    /// `v`, but 0 where the divisor is.
    fn unless_zero(&self, divisor: Value<'c>, v: Value<'c>) -> Result<Value<'c>> {
        let zero = self.bits_like(divisor, 0)?;
        let by_zero = self.compare_ints(IntPredicate::EQ, divisor, zero)?;
        self.select(by_zero, zero, v)
    }

    /// A shift that gives 0 from the width on.
    fn shifted(&self, m: ProcessorTraits, op: Op, width: u32, a: &[Value<'c>]) -> Result<Value<'c>> {
        // LLVM 22 knows that PTX shifts give 0 from the width on and drops the choice below, but PTX takes the distance in 32 bits.
        let distance = if m.gpu && width == 64 { self.and_bits(a[1], 63)? } else { a[1] };
        let shifted = self.binary(op, a[0], distance)?;
        let inside = self.compare_ints(IntPredicate::ULT, a[1], self.bits_like(a[1], u64::from(width))?)?;
        self.select(inside, shifted, self.bits_like(a[0], 0)?)
    }

    fn reinterpret(&self, from: DType, to: DType, v: Value<'c>) -> Result<Value<'c>> {
        match (from, to) {
            _ if from == to => Ok(v),
            (_, DType::Bool) => self.compare_ints(IntPredicate::NE, v, self.bits_like(v, 0)?),
            (DType::Bool, _) => self.cast(Op::ZExt, v, self.like(v, self.scalar_type(to))?),
            _ => self.bitcast(v, self.like(v, self.scalar_type(to))?),
        }
    }

    fn convert(&self, m: ProcessorTraits, from: DType, to: DType, v: Value<'c>) -> Result<Value<'c>> {
        let half = |d| matches!(d, DType::F16 | DType::BF16);
        if from == to {
            return Ok(v);
        }
        if from == DType::Bool {
            let one = self.scalar(Scalar::bool(true).cast(to))?;
            let zero = self.scalar(Scalar::zero(to))?;
            let shaped = |x| lanes_of(v).map_or(Ok(x), |lanes| self.splat(x, lanes));
            return self.select(v, shaped(one)?, shaped(zero)?);
        }
        if to == DType::Bool {
            return self.nonzero(from, v);
        }
        if half(from) {
            let wide = self.widen_half(m, from, v)?;
            return self.convert(m, DType::F32, to, wide);
        }
        if half(to) {
            return self.convert_to_half(m, from, to, v);
        }
        let ty = self.like(v, self.scalar_type(to))?;
        match (from.is_float(), to.is_float()) {
            (true, true) if to == DType::F64 => self.cast(Op::FPExt, v, ty),
            (true, true) => self.cast(Op::FPTrunc, v, ty),
            (true, false) => {
                let name = if to.is_signed_int() { "llvm.fptosi.sat" } else { "llvm.fptoui.sat" };
                self.intrinsic(name, &[ty, v.get_type()], &[v])
            }
            (false, true) => self.cast(if from.is_signed_int() { Op::SIToFP } else { Op::UIToFP }, v, ty),
            (false, false) => self.resize(from.is_signed_int(), v, ty, bits_of(from), bits_of(to)),
        }
    }

    fn resize(&self, signed: bool, v: Value<'c>, ty: BasicTypeEnum<'c>, from: u32, to: u32) -> Result<Value<'c>> {
        match from.cmp(&to) {
            std::cmp::Ordering::Less => self.cast(if signed { Op::SExt } else { Op::ZExt }, v, ty),
            std::cmp::Ordering::Greater => self.cast(Op::Trunc, v, ty),
            std::cmp::Ordering::Equal => Ok(v),
        }
    }

    fn nonzero(&self, from: DType, v: Value<'c>) -> Result<Value<'c>> {
        let zero = self.bits_like(v, 0)?;
        match from {
            DType::F32 | DType::F64 => self.compare_floats(FloatPredicate::UNE, v, zero),
            DType::F16 | DType::BF16 => self.compare_ints(IntPredicate::NE, self.and_bits(v, 0x7fff)?, zero),
            _ => self.compare_ints(IntPredicate::NE, v, zero),
        }
    }

    /// Types that f32 holds exactly go through it; others are rounded once, by the library.
    fn convert_to_half(&self, m: ProcessorTraits, from: DType, to: DType, v: Value<'c>) -> Result<Value<'c>> {
        if from == DType::F32 || from.size() < 4 {
            let single = self.convert(m, from, DType::F32, v)?;
            return self.narrow_half(m, to, single);
        }
        let wide = match from {
            DType::I32 => self.cast(Op::SExt, v, self.ints_like(v, 64)?)?,
            DType::U32 => self.cast(Op::ZExt, v, self.ints_like(v, 64)?)?,
            _ => v,
        };
        let bits = self.library(m, ScalarOp::Cast(to), from, &[wide])?;
        self.cast(Op::Trunc, bits, self.ints_like(v, 16)?)
    }
}

fn scalar_bits(v: Value<'_>) -> u32 {
    match v {
        Value::IntValue(v) => v.get_type().get_bit_width(),
        Value::VectorValue(v) => match v.get_type().get_element_type() {
            BasicTypeEnum::IntType(ty) => ty.get_bit_width(),
            _ => 0,
        },
        _ => 0,
    }
}
