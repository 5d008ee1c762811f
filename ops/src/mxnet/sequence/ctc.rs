//! Connectionist temporal classification: the loss of Graves and others (2006), by their forward-backward
//! recursion on logarithms, with its gradient.

use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, Operand};
use tensorc_ir::scalar::{CmpOp, ScalarOp};

use crate::nest::{Scalars, int};
use crate::prelude::*;

const F64: DType = DType::F64;

fn real(x: f64) -> Operand {
    Operand::Const(Scalar::from_f64(F64, x))
}

/// The logarithm of the sum of what three numbers are logarithms of.
fn log_sum(args: &[Ex]) -> Ex {
    let top = args.iter().skip(1).fold(args[0].clone(), |m, x| m.max(x));
    let none = top.eq(&top.lit(f64::NEG_INFINITY));
    let sum = args.iter().fold(top.lit(0.0), |s, x| s + (x - &top).exp());
    none.select(&top, &(sum.log() + &top))
}

/// Extents of a problem.
#[derive(Clone, Copy)]
struct CtcExtents {
    time: u64,
    batch: u64,
    classes: u64,
    labels: u64,
    blank: u64,
}

impl CtcExtents {
    /// Labels with a blank before, between and behind.
    fn states(&self) -> u64 {
        2 * self.labels + 1
    }
}

/// The buffers of the kernel. Scratch: two tables of log-probabilities over time and states, and the class of
/// every state, for each sequence.
struct Ctc {
    at: CtcExtents,
    logs: Buf,
    loss: Buf,
    gradient: Buf,
    alpha: Buf,
    beta: Buf,
    class: Buf,
}

/// One sequence: its number, its length and its number of states, as values.
struct Sequence<'a> {
    n: &'a Index,
    time: Operand,
    states: Operand,
}

impl Ctc {
    fn clamp(k: &KernelBuilder, x: Operand, last: u64) -> Index {
        let free = |_: u32| (i64::MIN / 8, i64::MAX / 8);
        k.as_index(x).maximum(&Index::default(), &free).minimum(&Index::constant(last as i64), &free)
    }

    fn cell(&self, s: &Sequence<'_>, t: &Index, state: &Index) -> Index {
        let states = self.at.states() as i64;
        s.n.scale(self.at.time as i64 * states).add(&t.scale(states)).add(state)
    }

    fn class_at(&self, k: &mut KernelBuilder, s: &Sequence<'_>, state: &Index) -> Operand {
        k.load(self.class, s.n.scale(self.at.states() as i64).add(state))
    }

    /// log p of a class at a time.
    fn log(&self, k: &mut KernelBuilder, s: &Sequence<'_>, t: &Index, class: Operand) -> Operand {
        let row = t.scale(self.at.batch as i64).add(s.n).scale(self.at.classes as i64);
        let class = Ctc::clamp(k, class, self.at.classes - 1);
        k.load(self.logs, row.add(&class))
    }

    /// A cell of a table at time `t` and a state that may lie outside: -∞ there.
    fn cell_or_none(
        &self,
        k: &mut KernelBuilder,
        s: &Sequence<'_>,
        (table, t): (Buf, &Index),
        state: Operand,
    ) -> Operand {
        let low = k.cmp(CmpOp::Ge, state, int(0));
        let high = k.cmp(CmpOp::Lt, state, s.states);
        let inside = k.bin(ScalarOp::And, low, high);
        let at = Ctc::clamp(k, state, self.at.states() - 1);
        let value = k.load(table, self.cell(s, t, &at));
        k.select(inside, value, real(f64::NEG_INFINITY))
    }

    /// Whether a path may go from a state to the next but one in a direction: both labels, and different.
    fn may_skip(&self, k: &mut KernelBuilder, s: &Sequence<'_>, state: &Index, other: Operand) -> Operand {
        let low = k.cmp(CmpOp::Ge, other, int(0));
        let high = k.cmp(CmpOp::Lt, other, s.states);
        let inside = k.bin(ScalarOp::And, low, high);
        let here = self.class_at(k, s, state);
        let at = Ctc::clamp(k, other, self.at.states() - 1);
        let there = self.class_at(k, s, &at);
        let differ = k.cmp(CmpOp::Ne, here, there);
        let label = k.cmp(CmpOp::Ne, here, int(self.at.blank as i64));
        let both = k.bin(ScalarOp::And, differ, label);
        k.bin(ScalarOp::And, both, inside)
    }

    /// One direction of the recursion into `table`; `way` is -1 for forward (states come from before).
    fn recur(&self, k: &mut KernelBuilder, s: &Sequence<'_>, table: Buf, forward: bool) -> Result<(), OpError> {
        let three = ScalarFn::build(&[F64; 3], |_, a| vec![log_sum(a)])?;
        let way = if forward { -1 } else { 1 };
        k.for_range("step", self.at.time, LoopKind::Serial, |k, step| {
            let step_value = k.index_value(step.clone());
            let running = k.cmp(CmpOp::Lt, step_value, s.time);
            k.if_then(running, |k| {
                let last = k.bin(ScalarOp::Sub, s.time, int(1));
                let t_value = if forward { step_value } else { k.bin(ScalarOp::Sub, last, step_value) };
                let t = Ctc::clamp(k, t_value, self.at.time - 1);
                let from_value = k.bin(ScalarOp::Add, t_value, int(way));
                let from = Ctc::clamp(k, from_value, self.at.time - 1);
                let first = k.cmp(CmpOp::Eq, step_value, int(0));
                k.for_range("state", self.at.states(), LoopKind::Serial, |k, state| {
                    let value = k.index_value(state.clone());
                    let class = self.class_at(k, s, &state);
                    let log = self.log(k, s, &t, class);
                    // Paths begin in the first two states and end in the last two.
                    let place = match forward {
                        true => value,
                        false => {
                            let end = k.bin(ScalarOp::Sub, s.states, int(1));
                            k.bin(ScalarOp::Sub, end, value)
                        }
                    };
                    let low = k.cmp(CmpOp::Ge, place, int(0));
                    let high = k.cmp(CmpOp::Lt, place, int(2));
                    let used = k.cmp(CmpOp::Lt, value, s.states);
                    let start = k.bin(ScalarOp::And, low, high);
                    let start = k.bin(ScalarOp::And, start, used);
                    let begun = k.select(start, log, real(f64::NEG_INFINITY));
                    let near = k.bin(ScalarOp::Add, value, int(way));
                    let far = k.bin(ScalarOp::Add, value, int(2 * way));
                    let stay = self.cell_or_none(k, s, (table, &from), value);
                    let next = self.cell_or_none(k, s, (table, &from), near);
                    let skipped = self.cell_or_none(k, s, (table, &from), far);
                    let may = self.may_skip(k, s, &state, far);
                    let skip = k.select(may, skipped, real(f64::NEG_INFINITY));
                    let sum = k.apply(&three, &[stay, next, skip], &[])[0];
                    let grown = k.bin(ScalarOp::Add, sum, log);
                    let grown = k.select(used, grown, real(f64::NEG_INFINITY));
                    let result = k.select(first, begun, grown);
                    k.store(table, self.cell(s, &t, &state), result);
                    Ok::<(), OpError>(())
                })
            })
        })
    }

    /// The loss, from the last two states at the last time.
    fn total(&self, k: &mut KernelBuilder, s: &Sequence<'_>) -> Result<Operand, OpError> {
        let two = ScalarFn::build(&[F64; 2], |_, a| vec![log_sum(a)])?;
        let last = k.bin(ScalarOp::Sub, s.time, int(1));
        let t = Ctc::clamp(k, last, self.at.time - 1);
        let (end, before) = (k.bin(ScalarOp::Sub, s.states, int(1)), k.bin(ScalarOp::Sub, s.states, int(2)));
        let a = self.cell_or_none(k, s, (self.alpha, &t), end);
        let b = self.cell_or_none(k, s, (self.alpha, &t), before);
        Ok(k.apply(&two, &[a, b], &[])[0])
    }

    /// `p - Σ over the states of a class of e^(α + β - log p - total)`, 0 behind the end.
    fn differentiate(&self, k: &mut KernelBuilder, s: &Sequence<'_>, total: Operand) -> Result<(), OpError> {
        let share = ScalarFn::build(&[F64; 4], |_, a| {
            let none = a[3].eq(&a[3].lit(f64::NEG_INFINITY));
            vec![none.select(&a[0].lit(0.0), &(&a[0] + &a[1] - &a[2] - &a[3]).exp())]
        })?;
        let power = ScalarFn::build(&[F64], |_, a| vec![a[0].exp()])?;
        let classes = self.at.classes;
        k.for_range("t", self.at.time, LoopKind::Serial, |k, t| {
            let row = t.scale(self.at.batch as i64).add(s.n).scale(classes as i64);
            let now = k.index_value(t.clone());
            let running = k.cmp(CmpOp::Lt, now, s.time);
            k.for_range("c", classes, LoopKind::Serial, |k, c| {
                let log = k.load(self.logs, row.add(&c));
                let p = k.apply(&power, &[log], &[])[0];
                let value = k.select(running, p, real(0.0));
                k.store(self.gradient, row.add(&c), value);
                Ok::<(), OpError>(())
            })?;
            k.if_then(running, |k| {
                k.for_range("state", self.at.states(), LoopKind::Serial, |k, state| {
                    let here = k.index_value(state.clone());
                    let used = k.cmp(CmpOp::Lt, here, s.states);
                    k.if_then(used, |k| {
                        let class = self.class_at(k, s, &state);
                        let log = self.log(k, s, &t, class);
                        let cell = self.cell(s, &t, &state);
                        let (a, b) = (k.load(self.alpha, cell.clone()), k.load(self.beta, cell));
                        let part = k.apply(&share, &[a, b, log, total], &[])[0];
                        let at = row.add(&Ctc::clamp(k, class, classes - 1));
                        let old = k.load(self.gradient, at.clone());
                        let new = k.bin(ScalarOp::Sub, old, part);
                        k.store(self.gradient, at, new);
                        Ok(())
                    })
                })
            })
        })
    }

    /// Writes the class of every state, and finds how many labels there are: those before the first padding,
    /// or the number given.
    fn states(
        &self,
        k: &mut KernelBuilder,
        n: &Index,
        labels: Buf,
        (given, padding): (Option<Buf>, i64),
    ) -> Result<Operand, OpError> {
        let count = k.alloc("count", DType::I64, 1, tensorc_ir::kir::MemorySpace::Stack);
        let (zero, most) = (Index::default(), self.at.labels as i64);
        let start = match given {
            Some(buf) => k.load_i64(buf, n.clone()),
            None => int(most),
        };
        let start = k.bin(ScalarOp::Min, start, int(most));
        let start = k.bin(ScalarOp::Max, start, int(0));
        k.store(count, zero.clone(), start);
        let base = n.scale(self.at.states() as i64);
        k.store(self.class, base.clone(), int(self.at.blank as i64));
        k.for_range("label", self.at.labels, LoopKind::Serial, |k, i| {
            let label = k.load_i64(labels, n.scale(most).add(&i));
            if given.is_none() {
                let old = k.load(count, zero.clone());
                let here = k.index_value(i.clone());
                let least = k.bin(ScalarOp::Min, old, here);
                let padded = k.cmp(CmpOp::Eq, label, int(padding));
                let new = k.select(padded, least, old);
                k.store(count, zero.clone(), new);
            }
            let at = base.add(&i.scale(2));
            k.store(self.class, at.offset(1), label);
            k.store(self.class, at.offset(2), int(self.at.blank as i64));
            Ok::<(), OpError>(())
        })?;
        let labels = k.load(count, zero);
        let twice = k.bin(ScalarOp::Mul, labels, int(2));
        Ok(k.bin(ScalarOp::Add, twice, int(1)))
    }
}

/// Types of the operands: log-probabilities, labels, and the lengths that are given.
fn kernel(
    at: CtcExtents,
    types: [Option<&DenseType>; 4],
    results: &[DenseType],
    padding: i64,
) -> Result<Kernel, OpError> {
    let mut k = KernelBuilder::new("ctc_loss");
    let names = ["logs", "labels", "data_lengths", "label_lengths"];
    let bufs: Vec<Option<Buf>> =
        names.into_iter().zip(types).map(|(name, ty)| ty.map(|ty| k.param(name, ty.dtype, ty.len(), false))).collect();
    let outs: Vec<Buf> = ["loss", "gradient", "alpha", "beta", "class"]
        .into_iter()
        .zip(results)
        .map(|(name, ty)| k.param(name, ty.dtype, ty.len(), true))
        .collect();
    let (Some(logs), Some(labels)) = (bufs[0], bufs[1]) else { return Err("operands are missing".into()) };
    let ctc = Ctc { at, logs, loss: outs[0], gradient: outs[1], alpha: outs[2], beta: outs[3], class: outs[4] };
    k.for_range("sequence", at.batch, LoopKind::Parallel, |k, n| {
        let states = ctc.states(k, &n, labels, (bufs[3], padding))?;
        let time = match bufs[2] {
            Some(buf) => {
                let t = k.load_i64(buf, n.clone());
                let t = k.bin(ScalarOp::Max, t, int(1));
                k.bin(ScalarOp::Min, t, int(at.time as i64))
            }
            None => int(at.time as i64),
        };
        let s = Sequence { n: &n, time, states };
        ctc.recur(k, &s, ctc.alpha, true)?;
        ctc.recur(k, &s, ctc.beta, false)?;
        let total = ctc.total(k, &s)?;
        let loss = k.op(ScalarOp::Neg, &[total]);
        k.store(ctc.loss, n.clone(), loss);
        ctc.differentiate(k, &s, total)
    })?;
    Ok(k.finish())
}

/// The second result is the gradient of the first.
fn gradient(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    if cx.heads.get(1).copied().flatten().is_some() {
        return Err(b.fail("its gradient, the second result, has no gradient of its own"));
    }
    let head = cx.head(b, 0)?;
    let dims = b.dims(head)?;
    let head = reshape(b, head, &[1, dims[0], 1])?;
    Ok(vec![Some(b.call("mul", &[cx.outputs[1], head])?), None, None, None])
}

fn blank_first(params: &Params) -> bool {
    params.str("blank_label") != Some("last")
}

pub fn ctc_loss() -> OpDef {
    let compute = Compute::Composite(Box::new(|b, cx, args| {
        let (data, labels) = (operand(b, args, 0)?, operand(b, args, 1)?);
        let (dims, label_dims) = (b.dims(data)?, b.dims(labels)?);
        let blank = if blank_first(cx.params) { 0 } else { dims[2] - 1 };
        let at = CtcExtents { time: dims[0], batch: dims[1], classes: dims[2], labels: label_dims[1], blank };
        let wide = cast(b, data, F64)?;
        let logs = b.op("log_softmax", &[wide], Params::new().with("axis", ParamValue::Int(-1)))?;
        let table = DenseType::new(F64, &[at.batch, at.time, at.states()]);
        let types = [
            DenseType::new(F64, &[at.batch]),
            DenseType::new(F64, &dims),
            table.clone(),
            table,
            DenseType::new(DType::I64, &[at.batch, at.states()]),
        ];
        // Without lengths, a label sequence ends at the first 0 if that is the blank, else at the first -1.
        let padding = if blank_first(cx.params) { 0 } else { -1 };
        let given: Vec<(usize, &str)> = vec![(2, "use_data_lengths"), (3, "use_label_lengths")];
        let mut inputs = vec![logs, labels];
        let mut kinds = [Some(b.ty(logs)?), Some(b.ty(labels)?), None, None];
        for (i, flag) in given {
            if let Some(lengths) = maybe(args, i).filter(|_| cx.params.bool(flag) == Some(true)) {
                kinds[i] = Some(b.ty(lengths)?);
                inputs.push(lengths);
            }
        }
        let kernel = kernel(at, kinds.each_ref().map(Option::as_ref), &types, padding).or_fail(b)?;
        let made = b.kernel(kernel, &inputs, &types);
        let loss = reshape(b, made[0], &cx.outputs[0].dims)?;
        Ok(vec![cast(b, loss, cx.outputs[0].dtype)?, cast(b, made[1], cx.outputs[1].dtype)?])
    }));
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        cx.same_dtype(1, 0)?;
        let Some(data) = rank_in(cx, 0, 3..=3)? else { return Ok(()) };
        if data[0] == Dim::Const(0) || data[2] == Dim::Const(0) {
            return Err("operand `data`: no time steps or no classes".into());
        }
        let labels = rank_in(cx, 1, 2..=2)?;
        if let Some(labels) = labels {
            shaped(cx, 1, &[data[1], labels[1]])?;
        }
        for (i, flag) in [(2, "use_data_lengths"), (3, "use_label_lengths")] {
            match (cx.params.bool(flag) == Some(true), cx.has_input(i)) {
                (true, false) => return Err(OpError(format!("parameter `{flag}` asks for an operand"))),
                (_, true) => {
                    cx.set_input_shape(i, Shape::Ranked([data[1]].into_iter().collect()))?;
                }
                _ => {}
            }
        }
        cx.set_output_dims(0, [data[1]])?;
        cx.set_output_dims(1, data)
    });
    let doc = "The negative logarithm of the probability of every label sequence, summed over its alignments with \
               [time, batch, class] activations, to which softmax is applied. Without lengths, labels end at the \
               first 0 (blank first) or -1 (blank last). The second result is the gradient of the first.";
    define("mx_ctc_loss", doc, compute, infer)
        .operand("data", FLOATS)
        .operand("label", NUMBERS)
        .optional("data_lengths", TypeRule::OneOf(NUMBERS))
        .optional("label_lengths", TypeRule::OneOf(NUMBERS))
        .param("use_data_lengths", ParamValue::Bool(false), "whether `data_lengths` is given")
        .param("use_label_lengths", ParamValue::Bool(false), "whether `label_lengths` is given")
        .choice("blank_label", &["first", "last"], "first", "which class is the blank")
        .present(|params, i| params.bool(if i == 2 { "use_data_lengths" } else { "use_label_lengths" }) == Some(true))
        .outputs(2, 2)
        .results(|_| ResultCount { visible: 1, listed: 2 })
        .gradient(gradient)
        .ulp(16.0)
        .mxnet("CTCLoss")
        .mxnet("ctc_loss")
        .mxnet("_contrib_CTCLoss")
        .mxnet("_contrib_ctc_loss")
}
