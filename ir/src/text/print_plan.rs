//! Printing of plans.

use std::convert::Infallible;
use std::fmt::Display;

use tensorc_abi::fields::Visitor;
use tensorc_abi::{
    Arg, BufferId, Epilogue, FlowPlan, KernelId, LeftOperand, Number, Packing, Plan, Scratch, StepOp, StorageClass,
    VendorCall, VendorContraction,
};

use super::names::{Numbered, quote, sigiled, word};
use super::out::{Out, join, list};
use super::print_graph::{flow_word, repeat, requirement};

/// A number that has a text: known, or an expression of symbols.
pub(super) trait Shown: Number<Signed: Display> + Display {}

impl<N: Number<Signed: Display> + Display> Shown for N {}

struct PlanNames<'t> {
    kernels: &'t [String],
    weights: &'t [String],
    buffers: Vec<String>,
}

/// `plan @name { … }`.
pub(super) fn plan<N: Shown>(out: &mut Out<'_>, p: &Plan<N>) {
    let mut at = Numbered::default();
    let kernels: Vec<String> = p.kernels.iter().map(|k| at.next('@', k)).collect();
    let mut dollar = Numbered::default();
    let weights: Vec<String> = p.weights.iter().map(|w| dollar.next('$', &w.name)).collect();

    out.open(&format!("plan {} {{", sigiled('@', &p.name)));
    out.line(&format!("arena {} lower_bound {}", p.arena_bytes, p.lower_bound_bytes));
    kernels.iter().for_each(|k| out.line(&format!("kernel {k}")));
    for (w, name) in p.weights.iter().zip(&weights) {
        out.line(&format!("weight {name} = constant {} {}", w.constant, packing(&w.packing)));
    }
    contents(out, p, (&kernels, &weights));
    out.close("}");
}

/// Buffers, signature and steps of a plan.
fn contents<N: Shown>(out: &mut Out<'_>, p: &Plan<N>, (kernels, weights): (&[String], &[String])) {
    let mut percent = Numbered::default();
    let buffers = p.buffers.iter().map(|b| percent.next('%', &b.name)).collect();
    let names = PlanNames { kernels, weights, buffers };
    for (b, name) in p.buffers.iter().zip(&names.buffers) {
        let storage = match b.storage {
            StorageClass::Input(i) => format!("input {i}"),
            StorageClass::Output(i) => format!("output {i}"),
            StorageClass::State(i) => format!("state {i}"),
            StorageClass::Weight(w) => format!("weight {}", names.weight(w)),
            StorageClass::Arena(offset) => format!("arena {offset}"),
        };
        let part = b.part.map_or(String::new(), |p| {
            format!(" part of {} at {} run {} stride {}", names.buffer(p.of), p.offset, p.run, p.stride)
        });
        out.line(&format!("buffer {name}: {}{} = {storage}{part}", b.dtype, list(b.dims.iter().copied())));
    }
    out.line(&format!("inputs({})", join(p.inputs.iter().map(|b| names.buffer(*b)))));
    if !p.states.is_empty() {
        out.line(&format!("states({})", join(p.states.iter().map(|b| names.buffer(*b)))));
    }
    out.line(&format!("outputs({})", join(p.outputs.iter().map(|b| names.buffer(*b)))));
    if !p.kept.is_empty() {
        out.line(&format!("kept({})", join(p.kept.iter().map(|b| names.buffer(*b)))));
    }
    for check in &p.checks {
        out.line(&format!("check {} {}", names.buffer(check.buffer), requirement(&check.requirement)));
    }
    let boundary = p.boundary.map(|n| n as usize);
    for (i, s) in p.steps.iter().enumerate() {
        if boundary == Some(i) {
            out.line("then");
        }
        let counts = format!("{{flops = {}, bytes = {}}}", s.flops, s.bytes);
        let scratch = p.scratch_of(i).map_or_else(String::new, scratch);
        let text = format!("step {} {counts} {}{scratch}", word(&s.name), names.step(&s.op));
        match s.op.flow() {
            None => out.line(&text),
            Some(flow) => bodies(out, &text, flow, (kernels, weights)),
        }
    }
    if boundary.is_some_and(|n| n >= p.steps.len()) {
        out.line("then");
    }
}

/// A step and its nested plans, which have the kernels and weights of the plan around them.
fn bodies<N: Shown>(out: &mut Out<'_>, step: &str, flow: &FlowPlan<N>, tables: (&[String], &[String])) {
    out.open(&format!("{step} {{"));
    for body in &flow.bodies {
        let head = format!("body {}", if body.name.is_empty() { String::new() } else { sigiled('@', &body.name) });
        out.open(&format!("{} {{", head.trim_end()));
        out.line(&format!("arena {} lower_bound {}", body.arena_bytes, body.lower_bound_bytes));
        contents(out, body, tables);
        out.close("}");
    }
    out.close("}");
}

fn scratch(&Scratch { offset, shared, bytes, live, .. }: &Scratch) -> String {
    let shared = if shared > 0 { format!(", shared = {shared}") } else { String::new() };
    format!(" scratch {{offset = {offset}, bytes = {bytes}, live = {live}{shared}}}")
}

impl PlanNames<'_> {
    fn buffer(&self, b: BufferId) -> String {
        self.buffers.get(b.0 as usize).cloned().unwrap_or_else(|| format!("%undefined{}", b.0))
    }

    fn kernel(&self, k: KernelId) -> String {
        self.kernels.get(k.0 as usize).cloned().unwrap_or_else(|| format!("@undefined{}", k.0))
    }

    fn weight(&self, w: u32) -> String {
        self.weights.get(w as usize).cloned().unwrap_or_else(|| format!("$undefined{w}"))
    }

    fn args(&self, args: &[Arg]) -> String {
        join(args.iter().map(|a| format!("{}{}", if a.writes { "mut " } else { "" }, self.buffer(a.buffer))))
    }

    fn step<N: Shown>(&self, op: &StepOp<N>) -> String {
        match op {
            StepOp::Launch { kernel, args, extent } => {
                format!("launch {}({}) extent {extent}", self.kernel(*kernel), self.args(args))
            }
            StepOp::Vendor { call, args } => {
                format!("{}({}) {} {}", vendor_word(call), self.args(args), call.dtype.name(), vendor(call))
            }
            StepOp::Flow { flow, args } => {
                format!("{}({}){}", flow_word(&flow.kind), self.args(args), repeat(&flow.kind))
            }
            StepOp::Extern { operator, function, args } => {
                format!("extern {} {function} ({})", quote(operator), self.args(args))
            }
            other => {
                let mut printed = Printed { names: Some(self), ..Printed::default() };
                let Ok(()) = other.clone().parts::<Printed<'_>>(&mut printed);
                let record = if printed.numbers.is_empty() { String::new() } else { format!(" {}", printed.record()) };
                let Printed { operands, rest, .. } = printed;
                format!("{}({}){record}{rest}", other.word().unwrap_or_default(), operands.join(", "))
            }
        }
    }
}

/// The text of a step by its parts, or of the numbers of a call alone.
#[derive(Default)]
struct Printed<'n> {
    names: Option<&'n PlanNames<'n>>,
    operands: Vec<String>,
    numbers: Vec<String>,
    /// What comes behind the numbers.
    rest: String,
}

impl Printed<'_> {
    /// The numbers of a call.
    fn of(visit: impl FnOnce(&mut Printed<'_>) -> Result<(), Infallible>) -> String {
        let mut printed = Printed::default();
        let Ok(()) = visit(&mut printed);
        printed.record()
    }

    fn record(&self) -> String {
        format!("{{{}}}", self.numbers.join(", "))
    }

    fn number<T: Display + Copy>(&mut self, name: &str, values: &[T]) -> Result<(), Infallible> {
        let value = if let [one] = values { one.to_string() } else { list(values.iter().copied()) };
        self.numbers.push(format!("{name} = {value}"));
        Ok(())
    }

    fn operand(&mut self, before: &str, id: BufferId) -> Result<(), Infallible> {
        self.operands.push(format!("{before}{}", self.names.map(|names| names.buffer(id)).unwrap_or_default()));
        Ok(())
    }

    fn called(&mut self, word: &str, kernel: KernelId, args: &[Arg]) -> Result<(), Infallible> {
        if let Some(names) = self.names {
            self.rest += &format!(" {word} {}({})", names.kernel(kernel), names.args(args));
        }
        Ok(())
    }
}

impl<N: Shown> Visitor<N> for Printed<'_> {
    type Error = Infallible;

    fn unsigned(&mut self, name: &'static str, values: &mut [N]) -> Result<(), Infallible> {
        self.number(name, values)
    }

    fn signed(&mut self, name: &'static str, values: &mut [N::Signed]) -> Result<(), Infallible> {
        self.number(name, values)
    }

    fn bits(&mut self, name: &'static str, value: &mut u32) -> Result<(), Infallible> {
        self.number(name, &[*value])
    }

    fn flag(&mut self, name: &'static str, value: &mut bool) -> Result<(), Infallible> {
        if *value { self.number(name, &[1]) } else { Ok(()) }
    }

    fn optional(&mut self, name: &'static str, values: &mut [N]) -> Result<(), Infallible> {
        if values.iter().any(|value| *value != N::from(0)) { self.number(name, values) } else { Ok(()) }
    }

    fn bytes(&mut self, name: &'static str, values: &mut [u8]) -> Result<(), Infallible> {
        if values.iter().any(|value| *value != 0) { self.number(name, values) } else { Ok(()) }
    }

    fn left(&mut self, operand: &mut LeftOperand) -> Result<(), Infallible> {
        match operand {
            LeftOperand::Buffer(id) => self.operand("", *id),
            LeftOperand::Computed(_) => {
                self.operands.push("computed".into());
                Ok(())
            }
        }
    }

    fn read(&mut self, buffer: &mut BufferId) -> Result<(), Infallible> {
        self.operand("", *buffer)
    }

    fn written(&mut self, buffer: &mut BufferId) -> Result<(), Infallible> {
        self.operand("mut ", *buffer)
    }

    fn prologue(&mut self, operand: &mut LeftOperand) -> Result<(), Infallible> {
        operand.prologue().map_or(Ok(()), |p| self.called("prologue", p.kernel, &p.args))
    }

    fn epilogue(&mut self, epilogue: &mut Option<Epilogue>) -> Result<(), Infallible> {
        epilogue.as_ref().map_or(Ok(()), |e| self.called(e.word(), e.kernel, &e.args))
    }
}

fn packing(p: &Packing) -> String {
    match *p {
        Packing::Plain => "plain".into(),
        Packing::GemmB { k, n, offset, row_stride, col_stride, elements } => format!(
            "{} {{k = {k}, n = {n}, offset = {offset}, row_stride = {row_stride}, col_stride = {col_stride}}}",
            elements.word(),
        ),
        Packing::Conv(mut c) => format!("{} {}", c.pass.step_word(), Printed::of(|p| c.fields::<Printed<'_>>(p))),
    }
}

/// The word that names a call of a vendor's library.
pub(super) fn vendor_word(call: &VendorCall) -> &'static str {
    match call.contraction {
        VendorContraction::Product { .. } => "cublaslt_gemm",
        VendorContraction::Convolution(_) => "cudnn_conv",
    }
}

fn vendor(call: &VendorCall) -> String {
    let mut record = match call.contraction {
        VendorContraction::Product { mut call, .. } => Printed::of(|p| call.fields::<Printed<'_>>(p)),
        VendorContraction::Convolution(mut call) => Printed::of(|p| call.fields::<Printed<'_>>(p)),
    };
    record.pop();
    let flag = |set: bool, name: &str| if set { format!(", {name} = 1") } else { String::new() };
    let (bias, tf32) = (flag(call.has_bias(), "bias"), flag(call.tf32, "tf32"));
    format!("{record}{bias}{tf32}, workspace = {}}}", call.workspace)
}
