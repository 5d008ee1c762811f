//! Instructions for what the body of a loop computes, and the registers of its values.

use tensorc_abi::DType;
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use super::super::{ArgumentWords, Count, Op, ValueId, carrier_bytes};
use super::Writer;
use super::assembler::{Gpr, RAX, Source};
use super::opcode::{self as op, Opcode};
use super::registers::Held;

/// Predicates of comparisons of floats that raise nothing for quiet NaNs.
fn float_predicate(cmp: CmpOp) -> u8 {
    match cmp {
        CmpOp::Eq => 0x00,
        CmpOp::Ne => 0x04,
        CmpOp::Lt => 0x11,
        CmpOp::Le => 0x12,
        CmpOp::Gt => 0x1e,
        CmpOp::Ge => 0x1d,
    }
}

/// Of integers, with AVX-512.
fn integer_predicate(cmp: CmpOp) -> u8 {
    match cmp {
        CmpOp::Eq => 0,
        CmpOp::Lt => 1,
        CmpOp::Le => 2,
        CmpOp::Ne => 4,
        CmpOp::Ge => 5,
        CmpOp::Gt => 6,
    }
}

/// Either is NaN.
pub(super) const UNORDERED: u8 = 0x03;
/// Neither of two numbers is NaN.
pub(super) const ORDERED: u8 = 0x07;
pub(super) const GREATER_OR_EQUAL: u8 = 0x1d;

impl Writer<'_> {
    /// The body for one vector.
    pub(super) fn body(&mut self, chunk: u32) -> Option<()> {
        self.chunk = chunk;
        for (home, pinned) in self.homes.iter_mut().zip(&self.pinned) {
            *home = super::Home { register: *pinned, slot: None };
        }
        for at in 0..self.l.code.len() {
            self.at = at;
            self.instruction(at as ValueId)?;
            self.end();
        }
        self.vectors.clear();
        self.masks.clear();
        Some(())
    }

    /// Frees the registers of values that nothing uses any more.
    fn end(&mut self) {
        for r in 0..self.vectors.count() as u8 {
            if let Held::Value(v) = self.vectors.held(r)
                && !self.is_used_later(v)
            {
                self.vectors.set(r, Held::Nothing);
            }
        }
        for k in 1..7 {
            if let Held::Value(v) = self.masks.held(k)
                && !self.is_used_later(v)
            {
                self.masks.set(k, Held::Nothing);
            }
        }
        self.vectors.end();
        self.masks.end();
    }

    fn instruction(&mut self, v: ValueId) -> Option<()> {
        let l = self.l;
        match &l.code[v as usize].op {
            Op::Const(_) | Op::Uniform(_) => Some(()),
            Op::Positions { .. } => self.positions(v),
            Op::Load { place, guard } => self.load(v, place, *guard),
            Op::LoadHalf { place, from } => self.load_half(v, place, *from),
            Op::Lookup { pointer, from, position } => self.look_up(v, *pointer, *from, *position),
            Op::Store { place, value } => self.store(place, *value),
            Op::StoreHalf { place, value } => self.store_half(place, *value),
            Op::Accumulator(i) => self.accumulator(v, *i),
            Op::SetAccumulator(i, value) => {
                let from = self.register(*value)?;
                let register = self.accumulator_register(*i);
                self.copy(self.vector_bytes(self.dtype(*value)), register, from);
                Some(())
            }
            Op::Begin(number) => self.begin(*number),
            Op::End(number) => self.end_loop(*number),
            Op::Lesser(a, b) => self.extremum(v, *a, *b, false),
            Op::Greater(a, b) => self.extremum(v, *a, *b, true),
            Op::Apply(op, args) => self.apply(v, *op, args),
        }
    }

    fn accumulator_register(&self, i: u32) -> u8 {
        let chunk = if self.l.accumulators[i as usize].local { 0 } else { self.chunk as u8 };
        self.accumulators[i as usize] + chunk
    }

    fn accumulator(&mut self, v: ValueId, i: u32) -> Option<()> {
        let register = self.accumulator_register(i);
        let set = |at: usize| matches!(self.l.code[at].op, Op::SetAccumulator(j, _) if j == i);
        let last = self.uses[v as usize].last().copied().unwrap_or(self.at);
        if (self.at..last).any(set) {
            let own = self.define(v)?;
            self.copy(self.vector_bytes(self.dtype(v)), own, register);
        } else {
            self.homes[v as usize].register = Some(register);
        }
        Some(())
    }

    /// The result of an [`Op::Positions`].
    fn positions(&mut self, v: ValueId) -> Option<()> {
        let l = self.l;
        let Op::Positions { uniform, per_iteration, per_lane, ahead, turns } = &l.code[v as usize].op else {
            return None;
        };
        let (element, bytes) = (carrier_bytes(self.dtype(v)), self.bytes_of(v));
        let wide = element == 8;
        let factor = if l.form == super::LoopForm::Iterations { *per_iteration } else { *per_lane };
        let first = ahead + i64::from(self.chunk) * i64::from(self.lanes);
        let word = self.argument(ArgumentWords::uniform(l, *uniform as usize), 8);
        let register = self.define(v)?;
        self.load_splat(register, element, Source::Memory(word));
        let [add, sub] = [(op::ADD_INT, 0xd4), (op::SUB_INT, 0xfb)].map(|(narrow, byte)| narrow.or_wide(byte, wide));
        if factor != 0 {
            let counted = self.multiple_of(RAX, factor, element)?;
            self.write(add, bytes, register, register, Source::Register(counted));
        }
        if let Some((number, by)) = *turns {
            // Its counter says how many turns are left.
            let Count::Known(all) = l.loops[number as usize].count else { return None };
            let all = self.splat(all.wrapping_mul(by) as u64, element);
            self.write(add, bytes, register, register, all);
            let left = self.multiple_of(self.counter(number), by, element)?;
            self.write(sub, bytes, register, register, Source::Register(left));
        }
        if *per_lane != 0 {
            let lane = self.by_lane(element, |lane| (first + i64::from(lane)).wrapping_mul(*per_lane));
            self.write(add, bytes, register, register, lane);
        }
        Some(())
    }

    /// A general register times a factor, in all lanes.
    fn multiple_of(&mut self, general: Gpr, factor: i64, element: u32) -> Option<u8> {
        let (wide, bytes) = (element == 8, self.lanes * element);
        let target = self.temporary()?;
        if self.is_512() {
            self.write(op::SPLAT_GENERAL.wide(wide), bytes, target, 0, Source::Register(general));
        } else {
            let splat = if wide { op::SPLAT_INT_WIDE } else { op::SPLAT_INT };
            self.write(op::MOVE_GENERAL.wide(true), 16, target, 0, Source::Register(general));
            self.write(splat, bytes, target, 0, Source::Register(target));
        }
        if factor != 1 {
            if wide && !self.is_512() {
                return None;
            }
            let factor = self.splat(factor as u64, element);
            self.write(op::MUL_INT.wide(wide), bytes, target, target, factor);
        }
        Some(target)
    }

    /// Two operands in registers and a result.
    pub(super) fn binary(&mut self, v: ValueId, opcode: Opcode, a: ValueId, b: ValueId) -> Option<u8> {
        let (first, second) = (self.register(a)?, self.source(b)?);
        let target = self.define(v)?;
        self.write(opcode, self.bytes_of(a), target, first, second);
        Some(target)
    }

    fn unary(&mut self, v: ValueId, opcode: Opcode, a: ValueId, immediate: Option<u8>) -> Option<()> {
        let from = self.source(a)?;
        let target = self.define(v)?;
        self.write_with(opcode, self.bytes_of(a), target, 0, from, immediate);
        Some(())
    }

    /// An operation with the same bits in every lane.
    fn with_bits(&mut self, v: ValueId, opcode: Opcode, a: ValueId, bits: u64) -> Option<()> {
        let first = self.register(a)?;
        let second = self.splat(bits, carrier_bytes(self.dtype(a)));
        let target = self.define(v)?;
        self.write(opcode, self.bytes_of(a), target, first, second);
        Some(())
    }

    fn extremum(&mut self, v: ValueId, a: ValueId, b: ValueId, greater: bool) -> Option<()> {
        let dtype = self.dtype(a);
        if dtype.is_float() && carrier_float(dtype) {
            let opcode = if greater { op::MAX } else { op::MIN };
            return self.binary(v, opcode.double(dtype == DType::F64), a, b).map(drop);
        }
        self.integer_extremum(v, dtype, a, b, greater)
    }

    fn integer_extremum(&mut self, v: ValueId, dtype: DType, a: ValueId, b: ValueId, greater: bool) -> Option<()> {
        let wide = carrier_bytes(dtype) == 8;
        if dtype.is_float() || dtype == DType::Bool || wide && !self.is_512() {
            return None;
        }
        let unsigned = matches!(dtype, DType::U32 | DType::U64);
        let opcode = match (greater, unsigned) {
            (true, true) => op::MAX_UNSIGNED,
            (true, false) => op::MAX_SIGNED,
            (false, true) => op::MIN_UNSIGNED,
            (false, false) => op::MIN_SIGNED,
        };
        self.binary(v, opcode.wide(wide), a, b).map(drop)
    }

    fn apply(&mut self, v: ValueId, scalar: ScalarOp, args: &[ValueId]) -> Option<()> {
        let dtype = self.dtype(args[0]);
        match scalar {
            ScalarOp::Cast(to) => self.cast(v, args[0], to),
            ScalarOp::Bitcast(to) => self.bitcast(v, args[0], to),
            ScalarOp::Select => self.select(v, args),
            ScalarOp::Cmp(cmp) => self.compare(v, cmp, args[0], args[1]),
            _ if dtype == DType::Bool => self.logic(v, scalar, args),
            _ if carrier_float(dtype) => self.float(v, scalar, args),
            _ if dtype.is_float() => None,
            _ => self.integer(v, scalar, args),
        }
    }

    fn float(&mut self, v: ValueId, scalar: ScalarOp, args: &[ValueId]) -> Option<()> {
        let (a, double) = (args[0], self.dtype(args[0]) == DType::F64);
        let sign = if double { 1 << 63 } else { 1 << 31 };
        let opcode = match scalar {
            ScalarOp::Neg => return self.with_bits(v, op::XOR.wide(double && self.is_512()), a, sign),
            ScalarOp::Abs => return self.with_bits(v, op::AND.wide(double && self.is_512()), a, sign - 1),
            ScalarOp::Sqrt => return self.unary(v, op::SQRT.double(double), a, None),
            ScalarOp::Round | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc => {
                let mode = match scalar {
                    ScalarOp::Round => 8,
                    ScalarOp::Floor => 9,
                    ScalarOp::Ceil => 10,
                    _ => 11,
                };
                let opcode = op::ROUND.or_wide(0x09, double);
                let opcode = if self.is_512() { opcode } else { opcode.wide(false) };
                return self.unary(v, opcode, a, Some(mode));
            }
            ScalarOp::Min | ScalarOp::Max => return self.float_extremum(v, scalar == ScalarOp::Max, a, args[1]),
            ScalarOp::Fma => return self.fma(v, args),
            ScalarOp::Add => op::ADD,
            ScalarOp::Sub => op::SUB,
            ScalarOp::Mul => op::MUL,
            ScalarOp::Div => op::DIV,
            ScalarOp::Scale if self.is_512() && !double => {
                return self.binary(v, op::SCALE, a, args[1]).map(drop);
            }
            _ => return None,
        };
        let opcode = opcode.double(double);
        // Constants are best last, where they may stay in memory.
        let turn = matches!(scalar, ScalarOp::Add | ScalarOp::Mul) && self.constant(a).is_some();
        let (a, b) = if turn { (args[1], a) } else { (a, args[1]) };
        self.binary(v, opcode, a, b).map(drop)
    }

    /// `a·b + c`; the instruction overwrites one of its operands.
    fn fma(&mut self, v: ValueId, args: &[ValueId]) -> Option<()> {
        let (mut a, mut b, c) = (args[0], args[1], args[2]);
        let (double, bytes) = (self.dtype(a) == DType::F64, self.bytes_of(a));
        if self.constant(a).is_some() {
            (a, b) = (b, a);
        }
        // Operands that are spilled come back before one of them is chosen.
        for x in [a, c] {
            self.register(x)?;
        }
        if !self.is_takable(c) && (self.is_takable(a) || self.is_takable(b)) {
            let (taken, other) = if self.is_takable(a) { (a, b) } else { (b, a) };
            let second = self.register(other)?;
            let source = self.source(c)?;
            let target = self.take(taken, v)?;
            self.write(op::FMA_213.wide(double), bytes, target, second, source);
            return Some(());
        }
        let (second, source) = (self.register(a)?, self.source(b)?);
        let target = self.take(c, v)?;
        self.write(op::FMA_231.wide(double), bytes, target, second, source);
        Some(())
    }

    /// IEEE minimum or maximum. The instruction gives its second operand when either is NaN or both are zero, so that
    /// against a known number it does nearly alone.
    fn float_extremum(&mut self, v: ValueId, max: bool, a: ValueId, b: ValueId) -> Option<()> {
        let (double, bytes) = (self.dtype(a) == DType::F64, self.bytes_of(a));
        let opcode = if max { op::MAX } else { op::MIN }.double(double);
        for (known, other) in [(a, b), (b, a)] {
            let Some(c) = self.constant(known).map(|c| c.as_f64()).filter(|c| !c.is_nan()) else { continue };
            let tie_matters = c == 0.0 && c.is_sign_positive() == max;
            if tie_matters && !max {
                break;
            }
            let target = self.binary(v, opcode, known, other)?;
            // max(+0, -0) came out as -0; adding +0 changes nothing else.
            if tie_matters {
                let zero = self.source(known)?;
                self.write(op::ADD.double(double), bytes, target, target, zero);
            }
            return Some(());
        }
        let (x, y) = (self.register(a)?, self.register(b)?);
        let compare = op::COMPARE.double(double);
        if self.is_512() {
            let (target, k) = (self.define(v)?, self.temporary_mask()?);
            // The sign is that of the number chosen.
            let which = if max { 5 } else { 4 };
            self.write_with(op::RANGE.wide(double), bytes, target, x, Source::Register(y), Some(which));
            self.write_with(compare, bytes, k, x, Source::Register(y), Some(UNORDERED));
            self.write_masked(op::ADD.double(double), bytes, (target, x, Source::Register(y)), (k, false));
            return Some(());
        }
        let (one, other) = (self.define(v)?, self.temporary()?);
        self.write(opcode, bytes, one, x, Source::Register(y));
        self.write(opcode, bytes, other, y, Source::Register(x));
        // Of zeros with different signs, the bits of both.
        let join = if max { op::AND } else { op::OR };
        self.write(join, bytes, one, one, Source::Register(other));
        // All bits set are a NaN.
        self.write_with(compare, bytes, other, x, Source::Register(y), Some(UNORDERED));
        self.write(op::OR, bytes, one, one, Source::Register(other));
        Some(())
    }

    fn integer(&mut self, v: ValueId, scalar: ScalarOp, args: &[ValueId]) -> Option<()> {
        let (a, dtype) = (args[0], self.dtype(args[0]));
        let (wide, signed) = (carrier_bytes(dtype) == 8, dtype.is_signed_int());
        let evex_wide = wide && self.is_512();
        match scalar {
            ScalarOp::Neg => {
                let zero = self.temporary()?;
                let bytes = self.bytes_of(a);
                self.write(op::XOR.wide(evex_wide), bytes, zero, zero, Source::Register(zero));
                let from = self.source(a)?;
                let target = self.define(v)?;
                self.write(op::SUB_INT.or_wide(0xfb, wide), bytes, target, zero, from);
            }
            ScalarOp::Abs if !signed => return self.alias(v, a),
            ScalarOp::Abs if wide && !self.is_512() => return None,
            ScalarOp::Abs => self.unary(v, op::ABS_INT.or_wide(0x1f, wide), a, None)?,
            ScalarOp::Not => self.with_bits(v, op::XOR.wide(evex_wide), a, u64::MAX)?,
            ScalarOp::Add => drop(self.binary(v, op::ADD_INT.or_wide(0xd4, wide), a, args[1])?),
            ScalarOp::Sub => drop(self.binary(v, op::SUB_INT.or_wide(0xfb, wide), a, args[1])?),
            ScalarOp::Mul if wide && !self.is_512() => return None,
            ScalarOp::Mul => drop(self.binary(v, op::MUL_INT.wide(wide), a, args[1])?),
            ScalarOp::And => drop(self.binary(v, op::AND.wide(evex_wide), a, args[1])?),
            ScalarOp::Or => drop(self.binary(v, op::OR.wide(evex_wide), a, args[1])?),
            ScalarOp::Xor => drop(self.binary(v, op::XOR.wide(evex_wide), a, args[1])?),
            ScalarOp::Div | ScalarOp::Rem => return self.divide(v, (a, args[1]), scalar == ScalarOp::Rem),
            ScalarOp::Min | ScalarOp::Max => {
                return self.integer_extremum(v, dtype, a, args[1], scalar == ScalarOp::Max);
            }
            ScalarOp::Shl | ScalarOp::Shr => {
                if wide && scalar == ScalarOp::Shr && signed && !self.is_512() {
                    return self.shift_wide(v, a, args[1]);
                }
                let opcode = match (scalar, signed) {
                    (ScalarOp::Shl, _) => op::SHIFT_LEFT_BY,
                    (_, true) => op::SHIFT_ARITHMETIC_BY,
                    _ => op::SHIFT_RIGHT_BY,
                };
                self.binary(v, opcode.wide(wide), a, args[1])?;
            }
            _ => return None,
        }
        self.wrap(v, dtype)
    }

    /// The result of another value's, unchanged.
    pub(super) fn alias(&mut self, v: ValueId, a: ValueId) -> Option<()> {
        self.take(a, v).map(drop)
    }

    /// Reduces a carrier modulo the width of a type, sign or zero extended again.
    pub(super) fn wrap(&mut self, v: ValueId, dtype: DType) -> Option<()> {
        let bits = dtype.size() as u8 * 8;
        if bits >= 32 {
            return Some(());
        }
        let (register, bytes) = (self.register(v)?, self.lanes * 4);
        if dtype.is_signed_int() {
            self.shift(bytes, register, op::SHIFT_LEFT, 32 - bits);
            self.shift(bytes, register, op::SHIFT_ARITHMETIC, 32 - bits);
        } else {
            let mask = self.splat((1 << bits) - 1, 4);
            self.write(op::AND, bytes, register, register, mask);
        }
        Some(())
    }

    /// Shifts elements of 32 bits in place; the encoding has the target where a second operand is else.
    pub(super) fn shift(&mut self, bytes: u32, register: u8, kind: u8, by: u8) {
        self.write_with(op::SHIFT, bytes, kind, register, Source::Register(register), Some(by));
    }

    fn compare(&mut self, v: ValueId, cmp: CmpOp, a: ValueId, b: ValueId) -> Option<()> {
        let dtype = self.dtype(a);
        if dtype == DType::Bool {
            return self.compare_masks(v, cmp, a, b);
        }
        self.mask_bytes[v as usize] = carrier_bytes(dtype);
        let bytes = self.bytes_of(a);
        if carrier_float(dtype) {
            let (first, second) = (self.register(a)?, self.source(b)?);
            let target = if self.is_512() { self.define_mask(v)? } else { self.define(v)? };
            let opcode = op::COMPARE.double(dtype == DType::F64);
            self.write_with(opcode, bytes, target, first, second, Some(float_predicate(cmp)));
            return Some(());
        }
        if dtype.is_float() {
            return None;
        }
        let (wide, unsigned) = (carrier_bytes(dtype) == 8, matches!(dtype, DType::U32 | DType::U64));
        if self.is_512() {
            let (first, second) = (self.register(a)?, self.source(b)?);
            let k = self.define_mask(v)?;
            let opcode = if unsigned { op::COMPARE_UNSIGNED } else { op::COMPARE_SIGNED }.wide(wide);
            self.write_with(opcode, bytes, k, first, second, Some(integer_predicate(cmp)));
            return Some(());
        }
        self.compare_vectors(v, cmp, (a, b), (wide, unsigned))
    }

    /// With AVX2, which compares for equality and for greater alone.
    fn compare_vectors(
        &mut self,
        v: ValueId,
        cmp: CmpOp,
        (a, b): (ValueId, ValueId),
        (wide, unsigned): (bool, bool),
    ) -> Option<()> {
        let (bytes, element) = (self.bytes_of(a), if wide { 8 } else { 4 });
        let (mut x, mut y) = (self.register(a)?, self.register(b)?);
        if unsigned && !matches!(cmp, CmpOp::Eq | CmpOp::Ne) {
            let sign = self.splat(1 << (element * 8 - 1), element);
            for side in [&mut x, &mut y] {
                let flipped = self.temporary()?;
                self.write(op::XOR, bytes, flipped, *side, sign);
                *side = flipped;
            }
        }
        let (opcode, swap, invert) = match cmp {
            CmpOp::Eq => (if wide { op::EQUAL_WIDE } else { op::EQUAL }, false, false),
            CmpOp::Ne => (if wide { op::EQUAL_WIDE } else { op::EQUAL }, false, true),
            CmpOp::Gt => (if wide { op::GREATER_WIDE } else { op::GREATER }, false, false),
            CmpOp::Le => (if wide { op::GREATER_WIDE } else { op::GREATER }, false, true),
            CmpOp::Lt => (if wide { op::GREATER_WIDE } else { op::GREATER }, true, false),
            CmpOp::Ge => (if wide { op::GREATER_WIDE } else { op::GREATER }, true, true),
        };
        let (first, second) = if swap { (y, x) } else { (x, y) };
        let target = self.define(v)?;
        self.write(opcode, bytes, target, first, Source::Register(second));
        if invert {
            let ones = self.splat(u64::MAX, 4);
            self.write(op::XOR, bytes, target, target, ones);
        }
        Some(())
    }

    fn compare_masks(&mut self, v: ValueId, cmp: CmpOp, a: ValueId, b: ValueId) -> Option<()> {
        if !matches!(cmp, CmpOp::Eq | CmpOp::Ne) {
            return None;
        }
        if self.is_512() {
            let (x, y) = (self.mask(a)?, self.mask(b)?);
            let k = self.define_mask(v)?;
            self.write_mask(if cmp == CmpOp::Eq { op::MASK_XNOR } else { op::MASK_XOR }, k, x, y);
            return Some(());
        }
        let bytes = self.same_masks(v, &[a, b])?;
        let (x, y) = (self.register(a)?, self.register(b)?);
        let target = self.define(v)?;
        self.write(op::XOR, bytes, target, x, Source::Register(y));
        if cmp == CmpOp::Eq {
            let ones = self.splat(u64::MAX, 4);
            self.write(op::XOR, bytes, target, target, ones);
        }
        Some(())
    }

    /// With AVX2, the bytes of masks that are alike, and of a result like them.
    fn same_masks(&mut self, v: ValueId, masks: &[ValueId]) -> Option<u32> {
        let element = self.mask_bytes[masks[0] as usize];
        if masks.iter().any(|m| self.mask_bytes[*m as usize] != element) {
            return None;
        }
        self.mask_bytes[v as usize] = element;
        Some(self.lanes * element)
    }

    fn logic(&mut self, v: ValueId, scalar: ScalarOp, args: &[ValueId]) -> Option<()> {
        if self.is_512() {
            let x = self.mask(args[0])?;
            let y = if args.len() > 1 { self.mask(args[1])? } else { x };
            let k = self.define_mask(v)?;
            match scalar {
                ScalarOp::Not => self.write_mask(op::MASK_NOT, k, 0, x),
                ScalarOp::And => self.write_mask(op::MASK_AND, k, x, y),
                ScalarOp::Or => self.write_mask(op::MASK_OR, k, x, y),
                ScalarOp::Xor => self.write_mask(op::MASK_XOR, k, x, y),
                _ => return None,
            }
            return Some(());
        }
        let bytes = self.same_masks(v, args)?;
        let x = self.register(args[0])?;
        let (opcode, second) = match scalar {
            ScalarOp::Not => (op::XOR, self.splat(u64::MAX, 4)),
            ScalarOp::And => (op::AND, Source::Register(self.register(args[1])?)),
            ScalarOp::Or => (op::OR, Source::Register(self.register(args[1])?)),
            ScalarOp::Xor => (op::XOR, Source::Register(self.register(args[1])?)),
            _ => return None,
        };
        let target = self.define(v)?;
        self.write(opcode, bytes, target, x, second);
        Some(())
    }

    fn select(&mut self, v: ValueId, args: &[ValueId]) -> Option<()> {
        let (c, a, b) = (args[0], args[1], args[2]);
        let dtype = self.dtype(a);
        if dtype == DType::Bool {
            return None;
        }
        let (bytes, wide) = (self.bytes_of(a), carrier_bytes(dtype) == 8);
        if self.is_512() {
            let k = self.mask(c)?;
            let (second, source) = (self.register(b)?, self.source(a)?);
            let target = self.define(v)?;
            self.write_masked(op::BLEND_MASKED.wide(wide), bytes, (target, second, source), (k, false));
            return Some(());
        }
        if self.mask_bytes[c as usize] != carrier_bytes(dtype) {
            return None;
        }
        let mask = self.register(c)?;
        let (second, source) = (self.register(b)?, self.source(a)?);
        let target = self.define(v)?;
        let opcode = Opcode { byte: if wide { 0x4b } else { 0x4a }, ..op::BLEND };
        self.write_with(opcode, bytes, target, second, source, Some(mask << 4));
        Some(())
    }
}

/// Whether a type is one of floats that arithmetic knows.
pub(super) fn carrier_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}
