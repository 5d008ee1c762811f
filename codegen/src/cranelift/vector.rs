//! Values that differ by lane: chunks of 128 bits, masks, conversions between widths, memory.

use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Type, Value, types};
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::Operand;
use tensorc_ir::scalar::ScalarOp;

use super::kernel::{Bind, Chunks, Gen, internal};
use super::scalar::{Arg, carried_bits, carrier};

/// A comparison's operands and their chunks.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    operands: SmallVec<[Operand; 3]>,
    chunks: Vec<Chunks>,
}

/// The type of a chunk of `dtype`; masks have lanes of `mask_bits`.
pub(super) fn chunk_type(dtype: DType, mask_bits: u32) -> Type {
    match (dtype, carrier(dtype)) {
        (DType::Bool, _) if mask_bits == 64 => types::I64X2,
        (DType::Bool, _) => types::I32X4,
        (_, types::F32) => types::F32X4,
        (_, types::F64) => types::F64X2,
        (_, types::I64) => types::I64X2,
        _ => types::I32X4,
    }
}

fn little() -> MemFlagsData {
    MemFlagsData::new().with_endianness(Endianness::Little)
}

impl Gen<'_, '_> {
    pub(super) fn lane_count(&self) -> Result<usize> {
        self.lanes.as_ref().map(|l| l.lanes).ok_or_else(|| internal("lanes outside of a vector loop"))
    }

    /// The distance, in elements, between what neighbouring lanes access, if it is fixed.
    pub(super) fn lane_stride(&self, index: &Index) -> Option<i64> {
        let current = self.lanes.as_ref()?;
        let mut other = false;
        index.visit_vars(&mut |v| other |= matches!(self.vars[v as usize], Bind::Lanes(_)));
        if other { None } else { index.coefficient(current.var) }
    }

    /// Whether neighbouring lanes access neighbouring elements.
    pub(super) fn is_contiguous(&self, index: &Index) -> bool {
        self.lane_stride(index) == Some(1)
    }

    /// The same value in every lane.
    pub(super) fn splat(&mut self, a: Arg, dtype: DType, mask_bits: u32) -> Chunks {
        let ty = chunk_type(dtype, mask_bits);
        let lanes = self.lanes.as_ref().map_or(0, |l| l.lanes);
        let n = lanes / ty.lane_count() as usize;
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
        Chunks::from_elem(chunk, n)
    }

    /// An operand by lane. A bool becomes a mask of `mask_bits`.
    pub(super) fn lane_operand(&mut self, operand: Operand, mask_bits: u32) -> Result<Chunks> {
        let dtype = self.dtype(operand);
        if let Some(a) = self.scalar_operand(operand)? {
            return Ok(self.splat(a, dtype, mask_bits));
        }
        let Operand::Var(var) = operand else { return Err(internal("a constant that differs by lane")) };
        match self.vars[var.0 as usize].clone() {
            Bind::Lanes(chunks) if dtype == DType::Bool => Ok(self.resize_mask(&chunks, mask_bits)),
            Bind::Lanes(chunks) => Ok(chunks),
            Bind::Lane => self.index_lanes(&Index::var(var.0)),
            Bind::Index(index) => self.index_lanes(&index),
            other => Err(internal(format!("`{}` is {other:?} in lanes", self.kernel.var(var).name))),
        }
    }

    /// The width of the mask that a bool operand already is, if it is one.
    fn mask_bits(&self, operand: Operand) -> Option<u32> {
        let Operand::Var(var) = operand else { return None };
        match &self.vars[var.0 as usize] {
            Bind::Lanes(chunks) => Some(self.ty(*chunks.first()?).lane_type().bits()),
            _ => None,
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

    /// One lane as a scalar.
    pub(super) fn extract(&mut self, dtype: DType, chunks: &[Value], lane: usize) -> Value {
        let per = self.ty(chunks[0]).lane_count() as usize;
        let v = self.b.ins().extractlane(chunks[lane / per], (lane % per) as u8);
        if dtype != DType::Bool {
            return v;
        }
        let low = self.b.ins().ireduce(types::I8, v);
        let one = self.konst(types::I8, 1);
        self.b.ins().band(low, one)
    }

    /// A scalar as the content of a lane.
    fn lane_content(&mut self, dtype: DType, v: Value) -> Value {
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

    /// Chunks from one scalar for each lane.
    pub(super) fn assemble(&mut self, dtype: DType, values: &[Value]) -> Chunks {
        let ty = chunk_type(dtype, 32);
        let mut out = Chunks::new();
        for group in values.chunks(ty.lane_count() as usize) {
            let first = self.lane_content(dtype, group[0]);
            let mut chunk = self.b.ins().scalar_to_vector(ty, first);
            for (i, v) in group.iter().enumerate().skip(1) {
                chunk = self.insert(dtype, chunk, *v, i);
            }
            out.push(chunk);
        }
        out
    }

    /// `a` where the mask, or the one scalar condition, holds.
    pub(super) fn choose_chunks(&mut self, c: &[Value], a: &[Value], b: &[Value]) -> Chunks {
        a.iter().zip(b).enumerate().map(|(i, (a, b))| self.choose(c[i.min(c.len() - 1)], *a, *b)).collect()
    }

    /// An operation of which some operand differs by lane.
    pub(super) fn lane_operation(&mut self, op: ScalarOp, operands: &[Operand]) -> Result<Chunks> {
        let dtype = self.dtype(operands[0]);
        match op {
            ScalarOp::Select => return self.lane_select(operands),
            ScalarOp::Cast(to) => {
                let chunks = self.lane_operand(operands[0], self.mask_bits(operands[0]).unwrap_or(32))?;
                return match self.cast_chunks(dtype, to, &chunks)? {
                    Some(r) => Ok(r),
                    None => self.by_lane(op, operands),
                };
            }
            _ => {}
        }
        let mask_bits = operands.iter().find_map(|o| self.mask_bits(*o)).unwrap_or(32);
        let mask_bits = if matches!(op, ScalarOp::Bitcast(_)) { 32 } else { mask_bits };
        let mut args: SmallVec<[(Chunks, Option<_>); 3]> = SmallVec::new();
        for operand in operands {
            args.push((self.lane_operand(*operand, mask_bits)?, self.known(*operand)));
        }
        let mut out = Chunks::new();
        for i in 0..args[0].0.len() {
            let chunk: SmallVec<[Arg; 3]> = args.iter().map(|(v, c)| Arg { v: v[i], c: *c }).collect();
            match self.apply(op, dtype, &chunk)? {
                Some(v) => out.push(v),
                None => return self.by_lane(op, operands),
            }
        }
        if let (ScalarOp::Cmp(_), Some(first)) = (op, out.first()) {
            let compared = Compared { operands: operands.into(), chunks: args.into_iter().map(|(v, _)| v).collect() };
            self.compared.insert(first.as_u32(), compared);
        }
        Ok(out)
    }

    fn lane_select(&mut self, operands: &[Operand]) -> Result<Chunks> {
        let dtype = self.dtype(operands[1]);
        let bits = match dtype {
            DType::Bool => operands.iter().find_map(|o| self.mask_bits(*o)).unwrap_or(32),
            _ => carrier(dtype).bits(),
        };
        let condition: Chunks = match self.scalar_operand(operands[0])? {
            Some(c) => Chunks::from_elem(c.v, 1),
            None => self.lane_operand(operands[0], bits)?,
        };
        // Constants of the comparison are taken from it, which lets minps and maxps be recognised.
        let compared = self.compared.get(&condition[0].as_u32()).cloned();
        let mut values: SmallVec<[Chunks; 2]> = SmallVec::new();
        for operand in &operands[1..] {
            let same = compared.as_ref().and_then(|c| {
                let at = c.operands.iter().position(|o| o == operand)?;
                Some(c.chunks[at].clone())
            });
            values.push(match same {
                Some(chunks) if dtype != DType::Bool => chunks,
                _ => self.lane_operand(*operand, bits)?,
            });
        }
        Ok(self.choose_chunks(&condition, &values[0], &values[1]))
    }

    /// Applies a scalar operation lane after lane.
    fn by_lane(&mut self, op: ScalarOp, operands: &[Operand]) -> Result<Chunks> {
        let dtype = self.dtype(operands[0]);
        let dtypes: SmallVec<[DType; 3]> = operands.iter().map(|o| self.dtype(*o)).collect();
        let result = op.result(&dtypes).map_err(internal)?;
        let mut sources: SmallVec<[(Option<Arg>, Chunks); 3]> = SmallVec::new();
        for operand in operands {
            sources.push(match self.scalar_operand(*operand)? {
                Some(a) => (Some(a), Chunks::new()),
                None => (None, self.lane_operand(*operand, 32)?),
            });
        }
        let mut values = Vec::new();
        for lane in 0..self.lane_count()? {
            let mut args: SmallVec<[Arg; 3]> = SmallVec::new();
            for ((uniform, chunks), dtype) in sources.iter().zip(&dtypes) {
                args.push(match uniform {
                    Some(a) => *a,
                    None => Arg { v: self.extract(*dtype, chunks, lane), c: None },
                });
            }
            let value = self.apply(op, dtype, &args)?;
            values.push(value.ok_or_else(|| internal(format!("no code for `{}` on {dtype}", op.name())))?);
        }
        Ok(self.assemble(result, &values))
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
        address: Value,
        offset: i32,
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
    pub(super) fn store_chunks(&mut self, dtype: DType, chunks: &[Value], address: Value, offset: i32) {
        let flags = MemFlagsData::new().with_notrap();
        let size = dtype.size();
        if size >= 4 {
            for (i, c) in chunks.iter().enumerate() {
                self.b.ins().store(flags, *c, address, offset + 16 * i as i32);
            }
            return;
        }
        let mut chunks: Chunks = chunks.iter().copied().collect();
        if dtype == DType::Bool {
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
