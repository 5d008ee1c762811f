//! Connectionist temporal classification: the loss of Graves and others (2006), by their forward-backward
//! recursion on logarithms, with its gradient.

use crate::prelude::*;

const F64: DType = DType::F64;

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

/// The tensors of the kernel. Scratch: two tables of log-probabilities over time and states, and the class of
/// every state, for each sequence.
struct Ctc<'k> {
    k: &'k KernelScope,
    at: CtcExtents,
    logs: KernelTensor<'k>,
    gradient: KernelTensor<'k>,
    alpha: KernelTensor<'k>,
    beta: KernelTensor<'k>,
    class: KernelTensor<'k>,
}

/// One sequence: its number, its length and its number of states.
struct Sequence<'a, 'k> {
    n: &'a Index,
    time: KernelValue<'k>,
    states: KernelValue<'k>,
}

impl<'k> Ctc<'k> {
    /// log p of a class at a time.
    fn log(&self, s: &Sequence<'_, 'k>, t: &Index, class: KernelValue<'k>) -> KernelValue<'k> {
        self.logs.get([t, s.n, &class.clamped(self.at.classes)])
    }

    /// Whether there is a state of this number.
    fn exists(&self, s: &Sequence<'_, 'k>, state: KernelValue<'k>) -> KernelValue<'k> {
        state.ge(0) & state.lt(s.states)
    }

    /// A cell of a table at time `t` and a state that may lie outside: -∞ there.
    fn cell_or_none(
        &self,
        s: &Sequence<'_, 'k>,
        (table, t): (KernelTensor<'k>, &Index),
        state: KernelValue<'k>,
    ) -> KernelValue<'k> {
        let inside = self.exists(s, state);
        let value = table.get([s.n, t, &state.clamped(self.at.states())]);
        inside.select(value, f64::NEG_INFINITY)
    }

    /// Whether a path may go from a state to the next but one in a direction: both labels, and different.
    fn may_skip(&self, s: &Sequence<'_, 'k>, state: &Index, other: KernelValue<'k>) -> KernelValue<'k> {
        let inside = self.exists(s, other);
        let here = self.class.get([s.n, state]);
        let there = self.class.get([s.n, &other.clamped(self.at.states())]);
        let differ = here.ne(there);
        (differ & here.ne(self.at.blank as i64)) & inside
    }

    /// One direction of the recursion into `table`; `way` is -1 for forward (states come from before).
    fn recur(&self, s: &Sequence<'_, 'k>, table: KernelTensor<'k>, forward: bool) {
        let k = self.k;
        let way = if forward { -1 } else { 1 };
        k.each("step", self.at.time, |step| {
            let number = k.position(step);
            k.when(number.lt(s.time), || {
                let last = s.time - 1;
                let time = if forward { number } else { last - number };
                let t = time.clamped(self.at.time);
                let from = (time + way).clamped(self.at.time);
                let first = number.eq(0);
                k.each("state", self.at.states(), |state| {
                    let value = k.position(state);
                    let log = self.log(s, &t, self.class.get([s.n, state]));
                    // Paths begin in the first two states and end in the last two.
                    let place = if forward { value } else { s.states - 1 - value };
                    let (low, high, used) = (place.ge(0), place.lt(2), value.lt(s.states));
                    let begun = (low & high & used).select(log, f64::NEG_INFINITY);
                    let (near, far) = (value + way, value + 2 * way);
                    let stay = self.cell_or_none(s, (table, &from), value);
                    let next = self.cell_or_none(s, (table, &from), near);
                    let skipped = self.cell_or_none(s, (table, &from), far);
                    let skip = self.may_skip(s, state, far).select(skipped, f64::NEG_INFINITY);
                    let [sum] = k.eval(&[stay, next, skip], |a| [log_sum(a)]);
                    let grown = sum + log;
                    let grown = used.select(grown, f64::NEG_INFINITY);
                    table.set([s.n, &t, state], first.select(begun, grown));
                });
            });
        });
    }

    /// The logarithm of the probability, from the last two states at the last time.
    fn total(&self, s: &Sequence<'_, 'k>) -> KernelValue<'k> {
        let t = (s.time - 1).clamped(self.at.time);
        let (end, before) = (s.states - 1, s.states - 2);
        let ends = [end, before].map(|state| self.cell_or_none(s, (self.alpha, &t), state));
        let [total] = self.k.eval(&ends, |a| [log_sum(a)]);
        total
    }

    /// `p - Σ over the states of a class of e^(α + β - log p - total)`, 0 behind the end.
    fn differentiate(&self, s: &Sequence<'_, 'k>, total: KernelValue<'k>) {
        let (k, classes) = (self.k, self.at.classes);
        k.each("t", self.at.time, |t| {
            let running = k.position(t).lt(s.time);
            k.each("c", classes, |c| {
                let [p] = k.eval(&[self.logs.get([t, s.n, c])], |a| [a[0].exp()]);
                self.gradient.set([t, s.n, c], running.select(p, 0.0));
            });
            k.when(running, || {
                k.each("state", self.at.states(), |state| {
                    k.when(k.position(state).lt(s.states), || {
                        let class = self.class.get([s.n, state]);
                        let log = self.log(s, t, class);
                        let (a, b) = (self.alpha.get([s.n, t, state]), self.beta.get([s.n, t, state]));
                        let [part] = k.eval(&[a, b, log, total], |a| {
                            let none = a[3].eq(&a[3].lit(f64::NEG_INFINITY));
                            [none.select(&a[0].lit(0.0), &(&a[0] + &a[1] - &a[2] - &a[3]).exp())]
                        });
                        let at = [t, s.n, &class.clamped(classes)];
                        self.gradient.set(at, self.gradient.get(at) - part);
                    });
                });
            });
        });
    }

    /// Writes the class of every state, and finds how many labels there are: those before the first padding,
    /// or the number given.
    fn states(
        &self,
        n: &Index,
        labels: KernelTensor<'k>,
        (given, padding): (Option<KernelTensor<'k>>, i64),
    ) -> KernelValue<'k> {
        let k = self.k;
        let (blank, most) = (self.at.blank as i64, self.at.labels as i64);
        let count = k.cell("count", DType::I64);
        let start = given.map_or(k.int(most), |lengths| lengths.get_as(n, DType::I64));
        count.set(start.min(most).max(0));
        let base = n.scale(self.at.states() as i64);
        self.class.set(&base, blank);
        k.each("label", self.at.labels, |i| {
            let label = labels.get_as([n, i], DType::I64);
            if given.is_none() {
                let old = count.get();
                let least = old.min(i);
                count.set(label.eq(padding).select(least, old));
            }
            let at = base.add(&i.scale(2));
            self.class.set(&at.offset(1), label);
            self.class.set(&at.offset(2), blank);
        });
        count.get() * 2 + 1
    }
}

/// Types of the operands: log-probabilities, labels, and the lengths that are given.
fn kernel(
    at: CtcExtents,
    types: [Option<&DenseType>; 4],
    results: &[DenseType; 5],
    padding: i64,
) -> Result<Kernel, OpError> {
    let k = &KernelScope::new("ctc_loss");
    let names = ["logs", "labels", "data_lengths", "label_lengths"];
    let given: Vec<_> = names.into_iter().zip(types).map(|(name, ty)| ty.map(|ty| k.input(name, ty))).collect();
    let names = ["loss", "gradient", "alpha", "beta", "class"];
    let [loss, gradient, alpha, beta, class] = k.outputs(names, results.each_ref());
    let (Some(logs), Some(labels)) = (given[0], given[1]) else { return Err("operands are missing".into()) };
    let ctc = Ctc { k, at, logs, gradient, alpha, beta, class };
    k.parallel_each("sequence", at.batch, |n| {
        let states = ctc.states(n, labels, (given[3], padding));
        let most = at.time as i64;
        let time = given[2].map_or(k.int(most), |lengths| lengths.get_as(n, DType::I64).max(1).min(most));
        let s = Sequence { n, time, states };
        ctc.recur(&s, ctc.alpha, true);
        ctc.recur(&s, ctc.beta, false);
        let total = ctc.total(&s);
        loss.set(n, -total);
        ctc.differentiate(&s, total);
    });
    k.finish()
}

/// The second result is the gradient of the first.
fn gradient<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    if g.given_head(cx, 1).is_some() {
        return Err(g.fail("its gradient, the second result, has no gradient of its own"));
    }
    let head = g.head(cx, 0);
    let head = head.reshaped([1, head.dims()?[0], 1]);
    Ok(vec![Some(g.value(cx.outputs[1]) * head), None, None, None])
}

fn blank_first(params: &Params) -> bool {
    params.str("blank_label") != Some("last")
}

/// Operands of lengths, and the parameters that say whether they count.
const LENGTHS: [(usize, &str); 2] = [(2, "use_data_lengths"), (3, "use_label_lengths")];

pub fn ctc_loss() -> OpDef {
    let compute = formulas(|g, cx| {
        let [data, labels] = g.operands();
        let (dims, label_dims) = (data.dims()?, labels.dims()?);
        let blank = if blank_first(cx.params) { 0 } else { dims[2] - 1 };
        let at = CtcExtents { time: dims[0], batch: dims[1], classes: dims[2], labels: label_dims[1], blank };
        let logs = g.op("log_softmax", &[data.cast(F64)], Params::new().with("axis", -1));
        let table = DenseType::new(F64, [at.batch, at.time, at.states()]);
        let types = [
            DenseType::new(F64, [at.batch]),
            DenseType::new(F64, &dims),
            table.clone(),
            table,
            DenseType::new(DType::I64, [at.batch, at.states()]),
        ];
        // Without lengths, a label sequence ends at the first 0 if that is the blank, else at the first -1.
        let padding = if blank_first(cx.params) { 0 } else { -1 };
        let mut inputs = vec![logs, labels];
        let mut kinds = [Some(logs.ty()?), Some(labels.ty()?), None, None];
        for (i, flag) in LENGTHS {
            if let Some(lengths) = g.maybe(i).filter(|_| cx.params.flag(flag)) {
                kinds[i] = Some(lengths.ty()?);
                inputs.push(lengths);
            }
        }
        let kernel = kernel(at, kinds.each_ref().map(Option::as_ref), &types, padding);
        let made = g.kernel(kernel, &inputs, &types)?;
        Ok(made.into_iter().zip(cx.outputs).map(|(value, ty)| value.reshaped_to(ty)).collect())
    });
    let infer = shape_rule(|cx| {
        cx.same_dtype(1, 0)?;
        let Some(data) = rank_in(cx, 0, 3..=3)? else { return Ok(()) };
        if data[0] == Dim::Const(0) || data[2] == Dim::Const(0) {
            return Err("operand `data`: no time steps or no classes".into());
        }
        let labels = rank_in(cx, 1, 2..=2)?;
        if let Some(labels) = labels {
            shaped(cx, 1, &[data[1], labels[1]])?;
        }
        for (i, flag) in LENGTHS {
            let missing = cx.params.flag(flag) && !cx.has_input(i);
            reject_if(missing, || format!("parameter `{flag}` asks for an operand"))?;
            cx.set_input_dims(i, [data[1]])?;
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
        .param("use_data_lengths", false, "whether `data_lengths` is given")
        .param("use_label_lengths", false, "whether `label_lengths` is given")
        .choice("blank_label", &["first", "last"], "first", "which class is the blank")
        .present(|params, i| params.bool(if i == 2 { "use_data_lengths" } else { "use_label_lengths" }) == Some(true))
        .outputs(2, 2)
        .results(|_| ResultCount { visible: 1, listed: 2 })
        .gradient(derivative(gradient))
        .ulp(16.0)
        .named(&["CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"])
}
