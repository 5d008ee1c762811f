//! What blocks leave that share the keys of some queries, and the kernel that puts it together: a thread for each element
//! of the result.

use tensorc_abi::Attention;
use tensorc_ir::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, LoopRange, MemorySpace as Memory, Operand};
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarFn, ScalarOp};
use tensorc_schedule::flash::Left;
use tensorc_schedule::recognise::attention::Attended;

use super::{base, divided};

fn single(x: f32) -> Operand {
    Operand::Const(Scalar::f32(x))
}

/// The kernel that puts parts together, with an output of `len` elements; written for a processor, as one parallel loop.
pub fn emit(found: &Attended, parts: u64, name: &str, exp: &ScalarFn, len: u64) -> Result<Kernel> {
    let call = &found.fixed_call();
    let place = Left { call, parts };
    let mut b = KernelBuilder::new(name);
    let left = b.param("parts", DType::F32, place.elements(), false);
    let out = b.param("out0", found.dtype, len, true);
    let results = place.queries() * call.size;
    b.for_range("p", results, LoopKind::Parallel, |b, p| -> Result<()> {
        let limits = move |_: u32| (0, results as i64 - 1);
        let column = b.let_index("column", p.modulo(call.size as i64, &limits));
        let query = b.let_index("query", p.floor_div(call.size as i64, &limits));
        // The first part of the query; others follow.
        let first = b.let_index("first", query.scale(parts as i64));
        let joined = Joined { found, call, place, exp, left, first, column };
        let shift = if call.shifted { Some(joined.shift(b)?) } else { None };
        let value = joined.value(b, shift)?;
        let at = joined.place_of(b, &query, results);
        b.store(out, at, value);
        Ok(())
    })?;
    Ok(b.finish())
}

/// An element of the result.
struct Joined<'a> {
    found: &'a Attended,
    call: &'a Attention,
    place: Left<'a>,
    exp: &'a ScalarFn,
    left: Buf,
    first: Index,
    column: Index,
}

impl Joined<'_> {
    fn parts(&self) -> LoopRange {
        (Index::default(), Index::constant(self.place.parts as i64), 1)
    }

    /// What is subtracted from scores: the largest maximum.
    fn shift(&self, b: &mut KernelBuilder) -> Result<Operand> {
        let top = b.alloc("top", DType::F32, 1, Memory::Register);
        b.store(top, Index::default(), single(f32::NEG_INFINITY));
        b.for_loop("part", self.parts(), LoopKind::Serial, |b, part| -> Result<()> {
            let maximum = b.load(self.left, self.place.maximum(&self.first.add(&part)));
            let before = b.load(top, Index::default());
            let larger = b.op(ScalarOp::Max, &[before, maximum]);
            b.store(top, Index::default(), larger);
            Ok(())
        })?;
        let largest = b.load(top, Index::default());
        // Where all scores are -∞, weights are 0.
        let none = b.op(ScalarOp::Cmp(CmpOp::Eq), &[largest, single(f32::NEG_INFINITY)]);
        Ok(b.op(ScalarOp::Select, &[none, single(0.0), largest]))
    }

    fn value(&self, b: &mut KernelBuilder, shift: Option<Operand>) -> Result<Operand> {
        let [sum, total] = ["weighted", "total"].map(|name| b.alloc(name, DType::F32, 1, Memory::Register));
        [sum, total].into_iter().for_each(|buf| b.store(buf, Index::default(), single(0.0)));
        b.for_loop("part", self.parts(), LoopKind::Serial, |b, part| -> Result<()> {
            let row = b.let_index("row", self.first.add(&part));
            let factor = shift.map(|shift| {
                let maximum = b.load(self.left, self.place.maximum(&row));
                let below = b.op(ScalarOp::Sub, &[maximum, shift]);
                b.apply(self.exp, &[below], &[])[0]
            });
            for (buf, at) in [(sum, self.place.sum(&row, &self.column)), (total, self.place.total(&row))] {
                let mut own = b.load(self.left, at);
                if let Some(factor) = factor {
                    own = b.op(ScalarOp::Mul, &[own, factor]);
                }
                let before = b.load(buf, Index::default());
                let after = b.op(ScalarOp::Add, &[before, own]);
                b.store(buf, Index::default(), after);
            }
            Ok(())
        })?;
        let [sum, total] = [sum, total].map(|buf| b.load(buf, Index::default()));
        let inverse = b.op(ScalarOp::Div, &[single(1.0), total]);
        Ok(divided(b, self.found, (sum, total, inverse)))
    }

    /// Where in the result the element of a query, counted over all batches, is.
    fn place_of(&self, b: &mut KernelBuilder, query: &Index, results: u64) -> Index {
        let call = self.call;
        let limits = move |_: u32| (0, results as i64 - 1);
        let item = b.let_index("item", query.floor_div(call.queries as i64, &limits));
        let mut below = call.batch.iter().product::<u64>();
        let digit = |extent: &u64| {
            below /= extent;
            item.floor_div(below as i64, &limits).modulo(*extent as i64, &limits)
        };
        let batch: Vec<Index> = call.batch.iter().map(digit).collect();
        let query = query.modulo(call.queries as i64, &limits).scale(call.out.row_stride);
        b.let_index("at", base(&self.found.call.out, &batch).add(&query).add(&self.column))
    }
}
