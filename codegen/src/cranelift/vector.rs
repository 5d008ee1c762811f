//! Values that differ by lane: chunks of 128 bits, masks, conversions between widths, memory.

use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Value, types};
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::scalar::{Scalar, ScalarOp};

use super::state::{Chunks, Compared, Gen};
use super::types::{carried_bits, carrier, chunk_type};
use crate::walk::{KernelEmitter, LaneArg, Shaped, UniformOperand, internal};

fn little() -> MemFlagsData {
    MemFlagsData::new().with_endianness(Endianness::Little)
}

/// The width of the mask that an operand already is, if it is one.
fn mask_bits(g: &Gen<'_, '_>, arg: &LaneArg<Gen<'_, '_>>) -> Option<u32> {
    match &arg.value {
        Shaped::Lanes(chunks) => Some(g.ty(*chunks.first()?).lane_type().bits()),
        Shaped::Uniform(_) => None,
    }
}

impl<'a, 'b> Gen<'a, 'b> {
    /// The same value in every lane. A bool becomes a mask of `mask_bits`.
    pub(super) fn splat_as(&mut self, a: UniformOperand<Value>, dtype: DType, lanes: usize, mask_bits: u32) -> Chunks {
        let ty = chunk_type(dtype, mask_bits);
        let chunk = match a.c {
            Some(c) if dtype == DType::Bool => self.konst(ty, if c.as_bool() { u64::MAX } else { 0 }),
            Some(c) => self.konst(ty, carried_bits(c)),
            None if dtype == DType::Bool => {
                let wide = self.b.ins().uextend(ty.lane_type(), a.v);
                let wide = self.b.ins().ineg(wide);
                self.b.ins().splat(ty, wide)
            }
            None => self.b.ins().splat(ty, a.v),
        };
        Chunks::from_elem(chunk, lanes / ty.lane_count() as usize)
    }

    /// A constant in every lane.
    pub(super) fn fill(&mut self, c: Scalar, lanes: usize, mask_bits: u32) -> Chunks {
        let v = self.carried(c);
        self.splat_as(UniformOperand { v, c: Some(c) }, c.dtype, lanes, mask_bits)
    }

    /// An operand by lane. A bool becomes a mask of `mask_bits`.
    pub(super) fn lane_value(&mut self, value: &Shaped<Self>, dtype: DType, lanes: usize, mask_bits: u32) -> Chunks {
        match value {
            Shaped::Uniform(a) => self.splat_as(*a, dtype, lanes, mask_bits),
            Shaped::Lanes(chunks) if dtype == DType::Bool => self.resize_mask(chunks, mask_bits),
            Shaped::Lanes(chunks) => chunks.clone(),
        }
    }

    /// Changes the width of a mask's lanes.
    pub(super) fn resize_mask(&mut self, mask: &[Value], bits: u32) -> Chunks {
        let now = mask.first().map_or(bits, |m| self.ty(*m).lane_type().bits());
        match (now, bits) {
            (32, 64) => self.widen(mask, true),
            (64, 32) => self.narrow_pairs(mask),
            _ => mask.iter().copied().collect(),
        }
    }

    /// 32-bit integer lanes to 64-bit ones.
    fn widen(&mut self, chunks: &[Value], signed: bool) -> Chunks {
        let mut out = Chunks::new();
        for &c in chunks {
            if signed {
                out.push(self.b.ins().swiden_low(c));
                out.push(self.b.ins().swiden_high(c));
            } else {
                out.push(self.b.ins().uwiden_low(c));
                out.push(self.b.ins().uwiden_high(c));
            }
        }
        out
    }

    /// The low halves of 64-bit integer lanes.
    fn narrow_pairs(&mut self, chunks: &[Value]) -> Chunks {
        let mut out = Chunks::new();
        for pair in chunks.chunks(2) {
            out.push(self.shuffle(pair[0], pair[1], [0, 2, 4, 6]));
        }
        out
    }

    /// Picks 32-bit lanes out of two chunks, as `i32x4`.
    pub(super) fn shuffle(&mut self, a: Value, b: Value, lanes: [u8; 4]) -> Value {
        let (a, b) = (self.reinterpret(types::I8X16, a), self.reinterpret(types::I8X16, b));
        let mask: Vec<u8> = lanes.iter().flat_map(|l| (0..4).map(move |i| l * 4 + i)).collect();
        let mask = self.b.func.dfg.immediates.push(mask.into());
        let r = self.b.ins().shuffle(a, b, mask);
        self.b.ins().bitcast(types::I32X4, little(), r)
    }

    /// A lane of a chunk as a scalar.
    pub(super) fn content(&mut self, dtype: DType, chunk: Value, lane: usize) -> Value {
        let v = self.b.ins().extractlane(chunk, lane as u8);
        if dtype != DType::Bool {
            return v;
        }
        let low = self.b.ins().ireduce(types::I8, v);
        let one = self.konst(types::I8, 1);
        self.b.ins().band(low, one)
    }

    /// A scalar as the content of a lane.
    pub(super) fn lane_content(&mut self, dtype: DType, v: Value) -> Value {
        if dtype != DType::Bool {
            return v;
        }
        let wide = self.b.ins().uextend(types::I32, v);
        self.b.ins().ineg(wide)
    }

    /// Replaces one lane; masks are of 32-bit lanes.
    pub(super) fn insert(&mut self, dtype: DType, chunk: Value, v: Value, lane: usize) -> Value {
        let v = self.lane_content(dtype, v);
        self.b.ins().insertlane(chunk, v, lane as u8)
    }

    /// `a` where the mask, or the one scalar condition, holds.
    pub(super) fn choose_chunks(&mut self, c: &[Value], a: &[Value], b: &[Value]) -> Chunks {
        a.iter().zip(b).enumerate().map(|(i, (a, b))| self.choose(c[i.min(c.len() - 1)], *a, *b)).collect()
    }

    /// An operation of which some operand differs by lane.
    pub(super) fn lane_operation(&mut self, op: ScalarOp, operands: &[LaneArg<Self>], lanes: usize) -> Result<Chunks> {
        let dtype = operands[0].dtype;
        let mask_bits = operands.iter().find_map(|o| mask_bits(self, o)).unwrap_or(32);
        let mask_bits = if matches!(op, ScalarOp::Bitcast(_)) { 32 } else { mask_bits };
        if op == ScalarOp::Select {
            return Ok(self.lane_select(operands, lanes, mask_bits));
        }
        let mut args: SmallVec<[Chunks; 3]> = SmallVec::new();
        for o in operands {
            args.push(self.lane_value(&o.value, o.dtype, lanes, mask_bits));
        }
        if let ScalarOp::Cast(to) = op {
            return match self.cast_chunks(dtype, to, &args[0])? {
                Some(r) => Ok(r),
                None => self.by_lane(op, operands, lanes),
            };
        }
        let known = |o: &LaneArg<Self>| match o.value {
            Shaped::Uniform(a) => a.c,
            Shaped::Lanes(_) => None,
        };
        let mut out = Chunks::new();
        for i in 0..args[0].len() {
            let chunk: SmallVec<[UniformOperand<Value>; 3]> =
                args.iter().zip(operands).map(|(v, o)| UniformOperand { v: v[i], c: known(o) }).collect();
            match self.operation(op, dtype, &chunk)? {
                Some(v) => out.push(v),
                None => return self.by_lane(op, operands, lanes),
            }
        }
        if let (ScalarOp::Cmp(_), Some(first)) = (op, out.first()) {
            let operands = operands.iter().map(|o| o.operand).collect();
            self.compared.insert(first.as_u32(), Compared { operands, chunks: args });
        }
        Ok(out)
    }

    fn lane_select(&mut self, operands: &[LaneArg<Self>], lanes: usize, mask_bits: u32) -> Chunks {
        let dtype = operands[1].dtype;
        let bits = if dtype == DType::Bool { mask_bits } else { carrier(dtype).bits() };
        let condition = match &operands[0].value {
            Shaped::Uniform(c) => Chunks::from_elem(c.v, 1),
            by_lane => self.lane_value(by_lane, DType::Bool, lanes, bits),
        };
        // Constants of the comparison are taken from it, which lets minps and maxps be recognised.
        let compared = self.compared.get(&condition[0].as_u32()).cloned();
        let mut values: SmallVec<[Chunks; 2]> = SmallVec::new();
        for o in &operands[1..] {
            let same = compared.as_ref().and_then(|c| {
                let at = c.operands.iter().position(|known| *known == o.operand)?;
                Some(c.chunks[at].clone())
            });
            values.push(match same {
                Some(chunks) if dtype != DType::Bool => chunks,
                _ => self.lane_value(&o.value, dtype, lanes, bits),
            });
        }
        self.choose_chunks(&condition, &values[0], &values[1])
    }

    /// Applies a scalar operation lane after lane.
    fn by_lane(&mut self, op: ScalarOp, operands: &[LaneArg<Self>], lanes: usize) -> Result<Chunks> {
        let dtypes: SmallVec<[DType; 3]> = operands.iter().map(|o| o.dtype).collect();
        let result = op.result(&dtypes).map_err(internal)?;
        let mut values = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let mut args: SmallVec<[UniformOperand<Value>; 3]> = SmallVec::new();
            for o in operands {
                args.push(match &o.value {
                    Shaped::Uniform(a) => *a,
                    Shaped::Lanes(chunks) => UniformOperand { v: self.extract(o.dtype, chunks, lane)?, c: None },
                });
            }
            values.push(self.apply(op, dtypes[0], &args)?);
        }
        self.assemble(result, &values)
    }

    /// Conversion of all lanes; `None` if only scalars can be converted.
    fn cast_chunks(&mut self, from: DType, to: DType, chunks: &[Value]) -> Result<Option<Chunks>> {
        let now = self.ty(chunks[0]).lane_type().bits();
        let (half, wanted) = (matches!(from, DType::F16 | DType::BF16), carrier(to).bits());
        if from == DType::Bool && to != DType::Bool {
            let mask = self.resize_mask(chunks, wanted);
            return self.each(from, to, &mask);
        }
        if to == DType::Bool || now == wanted {
            return self.each(from, to, chunks);
        }
        if half {
            let Some(wide) = self.each(from, DType::F32, chunks)? else { return Ok(None) };
            return self.cast_chunks(DType::F32, to, &wide);
        }
        Ok(match (from, to) {
            (DType::F32, DType::F64) => {
                let mut out = Chunks::new();
                for &c in chunks {
                    out.push(self.b.ins().fvpromote_low(c));
                    let high = self.shuffle(c, c, [2, 3, 2, 3]);
                    let high = self.reinterpret(types::F32X4, high);
                    out.push(self.b.ins().fvpromote_low(high));
                }
                Some(out)
            }
            (DType::F64, DType::F32) => {
                let low: Chunks = chunks.iter().map(|c| self.b.ins().fvdemote(*c)).collect();
                let mut out = Chunks::new();
                for pair in low.chunks(2) {
                    let r = self.shuffle(pair[0], pair[1], [0, 1, 4, 5]);
                    out.push(self.reinterpret(types::F32X4, r));
                }
                Some(out)
            }
            (f, _) if f.is_float() => None,
            (_, DType::F64) => {
                let wide = self.widen(chunks, from != DType::U32);
                let convert = |c: &Value| match from {
                    DType::U32 => self.b.ins().fcvt_from_uint(types::F64X2, *c),
                    _ => self.b.ins().fcvt_from_sint(types::F64X2, *c),
                };
                Some(wide.iter().map(convert).collect())
            }
            (_, t) if t.is_float() => None,
            _ if wanted == 64 => Some(self.widen(chunks, from != DType::U32)),
            _ => {
                let low = self.narrow_pairs(chunks);
                Some(low.iter().map(|c| self.wrap(to, *c)).collect())
            }
        })
    }

    fn each(&mut self, from: DType, to: DType, chunks: &[Value]) -> Result<Option<Chunks>> {
        let mut out = Chunks::new();
        for &c in chunks {
            match self.cast(from, to, c)? {
                Some(v) => out.push(v),
                None => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    /// Reads consecutive elements.
    pub(super) fn load_chunks(
        &mut self,
        dtype: DType,
        flags: MemFlagsData,
        (address, offset): (Value, i32),
        lanes: usize,
    ) -> Chunks {
        let ty = chunk_type(dtype, 32);
        let per = ty.lane_count() as usize;
        let step = (per * dtype.size()) as i32;
        let mut out = Chunks::new();
        for i in 0..lanes / per {
            let at = offset + i as i32 * step;
            out.push(match dtype.size() {
                4 | 8 => self.b.ins().load(ty, flags, address, at),
                2 => {
                    let raw = self.b.ins().load(types::I64, flags, address, at);
                    let raw = self.b.ins().scalar_to_vector(types::I64X2, raw);
                    let raw = self.reinterpret(types::I16X8, raw);
                    self.widen_low(dtype, raw)
                }
                _ => {
                    let raw = self.b.ins().load(types::I32, flags, address, at);
                    let raw = self.b.ins().scalar_to_vector(types::I32X4, raw);
                    let raw = self.reinterpret(types::I8X16, raw);
                    let raw = self.widen_low(dtype, raw);
                    let raw = self.widen_low(dtype, raw);
                    if dtype == DType::Bool { self.b.ins().ineg(raw) } else { raw }
                }
            });
        }
        out
    }

    fn widen_low(&mut self, dtype: DType, v: Value) -> Value {
        if dtype.is_signed_int() { self.b.ins().swiden_low(v) } else { self.b.ins().uwiden_low(v) }
    }

    /// Writes consecutive elements; masks are of 32-bit lanes.
    pub(super) fn store_chunks(&mut self, dtype: DType, chunks: &[Value], (address, offset): (Value, i32)) {
        let flags = MemFlagsData::new().with_notrap();
        let size = dtype.size();
        if size >= 4 {
            for (i, c) in chunks.iter().enumerate() {
                self.b.ins().store(flags, *c, address, offset + 16 * i as i32);
            }
            return;
        }
        let mut chunks = Chunks::from(chunks);
        if dtype == DType::Bool {
            chunks = self.resize_mask(&chunks, 32);
            let one = self.konst(types::I32X4, 1);
            chunks = chunks.iter().map(|c| self.b.ins().band(*c, one)).collect();
        }
        let mut at = offset;
        let mut rest = &chunks[..];
        while !rest.is_empty() {
            let take = [4, 2, 1].into_iter().find(|n| *n <= rest.len() && n * 4 * size <= 16).unwrap_or(1);
            let (group, others) = rest.split_at(take);
            let packed = self.pack(dtype, group);
            let bytes = take * 4 * size;
            match bytes {
                16 => self.b.ins().store(flags, packed, address, at),
                8 => {
                    let v = self.reinterpret(types::I64X2, packed);
                    let v = self.b.ins().extractlane(v, 0u8);
                    self.b.ins().store(flags, v, address, at)
                }
                _ => {
                    let v = self.reinterpret(types::I32X4, packed);
                    let v = self.b.ins().extractlane(v, 0u8);
                    self.b.ins().store(flags, v, address, at)
                }
            };
            at += bytes as i32;
            rest = others;
        }
    }

    /// Packs one, two or four chunks of carriers to elements of one or two bytes, lowest first. The
    /// values fit, so that saturation does not happen.
    fn pack(&mut self, dtype: DType, group: &[Value]) -> Value {
        let pick = |i: usize| group[i.min(group.len() - 1)];
        let signed = dtype.is_signed_int();
        if dtype.size() == 2 {
            return match signed {
                true => self.b.ins().snarrow(pick(0), pick(1)),
                false => self.b.ins().unarrow(pick(0), pick(1)),
            };
        }
        let low = self.b.ins().snarrow(pick(0), pick(1));
        let high = if group.len() > 2 { self.b.ins().snarrow(pick(2), pick(3)) } else { low };
        match signed {
            true => self.b.ins().snarrow(low, high),
            false => self.b.ins().unarrow(low, high),
        }
    }
}
