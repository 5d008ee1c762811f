//! Printing of plans.

use tensorc_abi::{
    Arg, Attention, BatchedGemm, BufferId, Conv2d, ConvLayout, ConvPass, Epilogue, Home, KernelId, MatrixLayout,
    Packing, Plan, StepOp, VendorCall, VendorContraction,
};

use super::names::{Numbered, quote, sigiled, word};
use super::print::{Out, join, list};

struct Names {
    kernels: Vec<String>,
    weights: Vec<String>,
    buffers: Vec<String>,
}

/// `plan @name { … }`.
pub(super) fn plan(out: &mut Out<'_>, p: &Plan) {
    let mut at = Numbered::default();
    let kernels = p.kernels.iter().map(|k| at.next('@', k)).collect();
    let mut dollar = Numbered::default();
    let weights = p.weights.iter().map(|w| dollar.next('$', &w.name)).collect();
    let mut percent = Numbered::default();
    let buffers = p.buffers.iter().map(|b| percent.next('%', &b.name)).collect();
    let names = Names { kernels, weights, buffers };

    out.open(&format!("plan {} {{", sigiled('@', &p.name)));
    out.line(&format!("arena {} lower_bound {}", p.arena_bytes, p.lower_bound_bytes));
    names.kernels.iter().for_each(|k| out.line(&format!("kernel {k}")));
    for (w, name) in p.weights.iter().zip(&names.weights) {
        out.line(&format!("weight {name} = constant {} {}", w.constant, packing(&w.packing)));
    }
    for (b, name) in p.buffers.iter().zip(&names.buffers) {
        let home = match b.home {
            Home::Input(i) => format!("input {i}"),
            Home::Output(i) => format!("output {i}"),
            Home::State(i) => format!("state {i}"),
            Home::Weight(w) => format!("weight {}", names.weight(w)),
            Home::Arena(offset) => format!("arena {offset}"),
        };
        let part = b.part.map_or(String::new(), |p| {
            format!(" part of {} at {} run {} stride {}", names.buffer(p.of), p.offset, p.run, p.stride)
        });
        out.line(&format!("buffer {name}: {}{} = {home}{part}", b.dtype, list(&b.dims)));
    }
    out.line(&format!("inputs({})", join(p.inputs.iter().map(|b| names.buffer(*b)))));
    if !p.states.is_empty() {
        out.line(&format!("states({})", join(p.states.iter().map(|b| names.buffer(*b)))));
    }
    out.line(&format!("outputs({})", join(p.outputs.iter().map(|b| names.buffer(*b)))));
    let boundary = p.boundary.map(|n| n as usize);
    for (i, s) in p.steps.iter().enumerate() {
        if boundary == Some(i) {
            out.line("then");
        }
        let counts = format!("{{flops = {}, bytes = {}}}", s.flops, s.bytes);
        out.line(&format!("step {} {counts} {}", word(&s.name), names.step(&s.op)));
    }
    if boundary.is_some_and(|n| n >= p.steps.len()) {
        out.line("then");
    }
    out.close("}");
}

impl Names {
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

    fn epilogue(&self, e: Option<&Epilogue>) -> String {
        e.map_or(String::new(), |e| format!(" epilogue {}({})", self.kernel(e.kernel), self.args(&e.args)))
    }

    fn step(&self, op: &StepOp) -> String {
        let b = |id: &BufferId| self.buffer(*id);
        match op {
            StepOp::Launch { kernel, args, extent } => {
                format!("launch {}({}) extent {extent}", self.kernel(*kernel), self.args(args))
            }
            StepOp::Gemm { call, a, b: rhs, c, epilogue } => {
                let epilogue = self.epilogue(epilogue.as_ref());
                format!("gemm({}, {}, mut {}) {}{epilogue}", b(a), b(rhs), b(c), gemm(call))
            }
            StepOp::Conv { call, a, b: rhs, c, epilogue } => {
                let epilogue = self.epilogue(epilogue.as_ref());
                format!("{}({}, {}, mut {}) {}{epilogue}", conv_pass(call.pass), b(a), b(rhs), b(c), conv(call))
            }
            StepOp::Attention { call, q, k, v, out, epilogue } => {
                let epilogue = self.epilogue(epilogue.as_ref());
                format!("attention({}, {}, {}, mut {}) {}{epilogue}", b(q), b(k), b(v), b(out), attention(call))
            }
            StepOp::Vendor { call, args } => {
                format!("{}({}) {} {}", vendor_word(call), self.args(args), call.dtype.name(), vendor(call))
            }
            StepOp::Copy { src, dst } => format!("copy({}, mut {})", b(src), b(dst)),
            StepOp::Extern { operator, function, args } => {
                format!("extern {} {function} ({})", quote(operator), self.args(args))
            }
        }
    }
}

fn packing(p: &Packing) -> String {
    match p {
        Packing::Plain => "plain".into(),
        Packing::GemmB { k, n, offset, row_stride, col_stride } => format!(
            "gemm_b {{k = {k}, n = {n}, offset = {offset}, row_stride = {row_stride}, col_stride = {col_stride}}}"
        ),
        Packing::Conv(c) => format!("{} {}", conv_pass(c.pass), conv(c)),
    }
}

fn layout(l: &MatrixLayout) -> String {
    let [b0, b1, b2] = l.batch_strides;
    list([l.offset, b0, b1, b2, l.row_stride, l.col_stride])
}

fn attention(c: &Attention) -> String {
    let flag = |set: bool, name: &str| if set { format!(", {name} = 1") } else { String::new() };
    format!(
        "{{batch = {}, queries = {}, keys = {}, depth = {}, size = {}, q = {}, k = {}, v = {}, out = {}, scale = {}{}{}}}",
        list(c.batch),
        c.queries,
        c.keys,
        c.depth,
        c.size,
        layout(&c.q),
        layout(&c.k),
        layout(&c.v),
        layout(&c.out),
        c.scale,
        flag(c.shifted, "shifted"),
        flag(c.empty_is_zero, "empty_is_zero")
    )
}

/// The word that names a call of a vendor's library.
pub(super) fn vendor_word(call: &VendorCall) -> &'static str {
    match call.contraction {
        VendorContraction::Product { .. } => "cublaslt_gemm",
        VendorContraction::Convolution(_) => "cudnn_conv",
    }
}

fn vendor(call: &VendorCall) -> String {
    let mut record = match &call.contraction {
        VendorContraction::Product { call, .. } => gemm(call),
        VendorContraction::Convolution(call) => conv(call),
    };
    record.pop();
    let flag = |set: bool, name: &str| if set { format!(", {name} = 1") } else { String::new() };
    let (bias, tf32) = (flag(call.has_bias(), "bias"), flag(call.tf32, "tf32"));
    format!("{record}{bias}{tf32}, workspace = {}}}", call.workspace)
}

fn gemm(c: &BatchedGemm) -> String {
    let packed = if c.b_packed { ", b_packed = 1" } else { "" };
    format!(
        "{{batch = {}, m = {}, n = {}, k = {}, a = {}, b = {}, c = {}{packed}}}",
        list(c.batch),
        c.m,
        c.n,
        c.k,
        layout(&c.a),
        layout(&c.b),
        layout(&c.c)
    )
}

/// The word that names the step.
pub(super) fn conv_pass(pass: ConvPass) -> &'static str {
    match pass {
        ConvPass::Packed => "conv",
        ConvPass::Winograd2 => "conv_winograd2",
        ConvPass::Winograd4 => "conv_winograd4",
        ConvPass::Forward => "conv_forward",
        ConvPass::DataGradient => "conv_data_gradient",
        ConvPass::FilterGradient => "conv_filter_gradient",
    }
}

fn conv(c: &Conv2d) -> String {
    let images = if c.images == [0; 2] { String::new() } else { format!(", images = {}", list(c.images)) };
    let layout = match c.layout {
        ConvLayout::Planar => "",
        ConvLayout::ToBlocked => ", y_blocked = 1",
        ConvLayout::Blocked => ", x_blocked = 1, y_blocked = 1",
    };
    format!(
        "{{batch = {}, groups = {}, in_channels = {}, out_channels = {}, input = {}, output = {}, kernel = {}, \
         strides = {}, dilations = {}, pads = {}{layout}{images}}}",
        c.batch,
        c.groups,
        c.in_channels,
        c.out_channels,
        list(c.input),
        list(c.output),
        list(c.kernel),
        list(c.strides),
        list(c.dilations),
        list(c.pads)
    )
}
