//! Contractions that libraries of a GPU's maker compute: products by cuBLASLt, convolutions by cuDNN.
//!
//! The library computes the contraction alone, or with a bias that is all that follows; anything else that follows is a kernel of our own,
//! over what the library wrote. The other functions that cuBLASLt can apply are not ours: its relu says nothing of NaN, and
//! its gelu nothing of how it is computed. A contraction whose operands are computed in its cluster, or lie as the library does
//! not take them, stays a kernel.

use std::borrow::Cow;

use tensorc_abi::vendor::{VendorCall, VendorContraction};
use tensorc_abi::{Arg, BufferId, DType, Home, StepOp};
use tensorc_ir::DenseType;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::{ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::views::strides_in_result;

use super::{Lowering, flops};
use crate::layout::Layouts;
use crate::recipe::{Library, contraction, laid_out};
use crate::recognise::contract::{as_forward, as_product};
use crate::target::VendorLibraries;

/// Most working memory of a call, what NVIDIA advises for GPUs of compute capability 9.0.
const MOST_WORKSPACE: u64 = 32 << 20;
/// Partial results of f32 that working memory has room for.
const PARTS: u64 = 16;

/// A contraction as a library computes it, with the positions of its operands among the cluster's inputs.
struct Form {
    call: VendorCall,
    operands: [usize; 2],
    /// The input that is added to every row by the library, if that is all that follows.
    bias: Option<usize>,
    /// Whether the library writes the cluster's result.
    whole: bool,
}

impl Lowering<'_> {
    /// Lowers a cluster to a call of a library and a kernel for what follows; false if no library computes it.
    pub(super) fn vendor(&mut self, node: NodeId, body: &Graph, libraries: VendorLibraries) -> Result<bool> {
        let layouts = self.layouts(node)?;
        let Some(form) = self.form(body, &layouts, libraries)? else { return Ok(false) };
        let inputs = self.graph.args(node);
        let (contraction, _) = contraction(body)?;
        let total = flops(body)?;
        let (result, rest) = match form.whole {
            true => (self.results(node)?[0], None),
            false => {
                let ty = body.dense(Value { node: contraction, port: 0 })?;
                let name = body.node(contraction).name.to_string();
                (self.buffer(&name, &ty, Home::Arena(0)), Some(rest(body, contraction)?))
            }
        };
        let mut operands = vec![];
        for input in form.operands.iter().chain(&form.bias) {
            operands.push(self.operand(inputs[*input])?);
        }
        let rest_flops = rest.as_ref().map_or(Ok(0), |(body, _)| flops(body))?;
        self.call(node, form.call, &operands, result, total - rest_flops);
        if let Some((body, used)) = rest {
            let mut buffers = vec![result];
            for i in &used {
                buffers.push(self.operand(inputs[*i])?);
            }
            let from = used.iter().map(|i| layouts.input(*i));
            let layouts = Layouts { inputs: std::iter::once(None).chain(from).collect(), outputs: layouts.outputs };
            let results = self.results(node)?;
            let rest = (FusionClass::Map, Cow::Owned(body));
            self.launch_cluster(node, rest, &layouts, [&buffers, &results], rest_flops)?;
        }
        Ok(true)
    }

    /// Adds the step of a call.
    fn call(&mut self, node: NodeId, call: VendorCall, operands: &[BufferId], result: BufferId, flops: u64) {
        let name = self.graph.node(node).name.to_string();
        let mut written = vec![result];
        if call.workspace > 0 {
            let ty = DenseType::new(DType::U8, &[call.workspace]);
            written.push(self.buffer(&format!("{name} workspace"), &ty, Home::Arena(0)));
        }
        let read = operands.iter().map(|buffer| Arg { buffer: *buffer, writes: false });
        let write = written.into_iter().map(|buffer| Arg { buffer, writes: true });
        let args = read.chain(write).collect();
        self.step(node, StepOp::Vendor { call, args }, flops);
        // Working memory is not what the contraction moves.
        if let Some(step) = self.plan().steps.last_mut() {
            step.bytes -= call.workspace;
        }
    }

    /// How a library computes the contraction of a cluster.
    fn form(&self, body: &Graph, layouts: &Layouts, libraries: VendorLibraries) -> Result<Option<Form>> {
        let (node, c) = contraction(body)?;
        let args = body.args(node);
        let position = |v: Value| body.inputs().iter().position(|n| *n == v.node);
        let (Some(left), Some(right)) = (position(args[0]), position(args[1])) else { return Ok(None) };
        let (lhs, rhs, out) = (body.dense(args[0])?, body.dense(args[1])?, body.dense(Value { node, port: 0 })?);
        if lhs.dtype != out.dtype || rhs.dtype != out.dtype || body.outputs().len() != 1 {
            return Ok(None);
        }
        let tf32 = self.target.tf32 && out.dtype == DType::F32;
        let follows = Follows::of(body, node)?;
        let library = if libraries.convolutions { as_forward(&c, &lhs, &rhs) } else { None };
        let convolution = library.map(|conv| Library::Conv { conv, a: Some(left), b: right });
        let product = |follows: &Follows| -> Option<Library> {
            let strides = match follows {
                Follows::Moves(strides) => Some(&strides[..]),
                _ => None,
            };
            let gemm = as_product(&c, &lhs, &rhs, strides).filter(|_| libraries.products)?;
            let (a, b) = if gemm.swapped { (right, left) } else { (left, right) };
            Some(Library::Gemm { gemm, a: Some(a), b })
        };
        let candidates = [
            (convolution, false),
            // What only moves the result may be part of how it is written.
            (product(&follows), follows.is_written()),
            (product(&Follows::Computes), false),
        ];
        for (library, writes) in candidates {
            let Some(library) = library else { continue };
            let whole = writes || matches!(follows, Follows::Nothing);
            let outputs = if whole { layouts.outputs.clone() } else { vec![] };
            let Ok(library) = laid_out(library, &Layouts { inputs: layouts.inputs.clone(), outputs }) else { continue };
            let operands = library.operands();
            let [a, b] = operands[..] else { continue };
            let (contraction, operands, bias) = match library {
                Library::Conv { conv, .. } => (VendorContraction::Convolution(conv), [a, b], None),
                Library::Gemm { gemm, .. } => {
                    let bias = follows.bias(body, gemm.call.n, &gemm.col_axes, &c);
                    let bias = bias.filter(|i| whole && layouts.input(*i).is_none());
                    if matches!(follows, Follows::Adds(_)) && whole && bias.is_none() {
                        continue;
                    }
                    (VendorContraction::Product { call: gemm.call, bias: bias.is_some() }, [a, b], bias)
                }
            };
            let workspace = (PARTS * 4).saturating_mul(out.len()).min(MOST_WORKSPACE);
            let call = VendorCall { contraction, dtype: out.dtype, tf32, workspace };
            if call.fits() {
                return Ok(Some(Form { call, operands, bias, whole }));
            }
        }
        Ok(None)
    }
}

/// What follows a contraction in its cluster.
enum Follows {
    Nothing,
    /// A view, which moves elements to places with these strides.
    Moves(Vec<i64>),
    /// A value is added, broadcast along the leading axes.
    Adds(Value),
    Computes,
}

impl Follows {
    fn of(body: &Graph, node: NodeId) -> Result<Follows> {
        let contracted = Value { node, port: 0 };
        let [(_, output)] = body.outputs() else { return Ok(Follows::Computes) };
        if *output == contracted {
            return Ok(Follows::Nothing);
        }
        let args = body.args(output.node);
        match &body.node(output.node).kind {
            NodeKind::Prim(Prim::View(view)) if args[0] == contracted => {
                let strides = strides_in_result(view, &body.dense(contracted)?.dims, &body.dense(*output)?.dims);
                Ok(strides.map_or(Follows::Computes, Follows::Moves))
            }
            NodeKind::Prim(Prim::Map(f)) if adds(f) && args.len() == 2 && args[0] != args[1] => {
                let other = if args[0] == contracted { args[1] } else { args[0] };
                let is_input = matches!(body.node(other.node).kind, NodeKind::Input);
                Ok(if is_input && args.contains(&contracted) { Follows::Adds(other) } else { Follows::Computes })
            }
            _ => Ok(Follows::Computes),
        }
    }

    /// Whether the library writes what follows, other than nothing.
    fn is_written(&self) -> bool {
        matches!(self, Follows::Moves(_) | Follows::Adds(_))
    }

    /// The input that a library adds to every row of `n` columns: a vector along the columns.
    fn bias(&self, body: &Graph, n: u64, columns: &[usize], c: &Contraction) -> Option<usize> {
        let Follows::Adds(v) = self else { return None };
        let ty = body.dense(*v).ok()?;
        // Extents are aligned at the last axis; the columns are one axis to the library, so they come in their order.
        let along = columns.is_sorted()
            && (0..c.out_rank).all(|axis| {
                let own = (axis + ty.rank()).checked_sub(c.out_rank).map_or(1, |i| ty.dims[i]);
                own == if columns.contains(&axis) { c.extents[axis] } else { 1 }
            });
        let position = body.inputs().iter().position(|node| *node == v.node);
        position.filter(|_| along && ty.len() == n && n > 1)
    }
}

/// Whether a function adds its two operands, in f32 if they are stored in fewer bits.
fn adds(f: &ScalarFn) -> bool {
    let [output] = f.outputs[..] else { return false };
    let through = |mut at: tensorc_ir::scalar::ScalarId| loop {
        match &f.nodes[at.0 as usize] {
            ScalarNode::Op(ScalarOp::Cast(_), args) => at = args[0],
            node => return node,
        }
    };
    match through(output) {
        ScalarNode::Op(ScalarOp::Add, args) => {
            let inputs: Vec<_> = args.iter().map(|a| through(*a)).collect();
            let operands = [&ScalarNode::Input(0), &ScalarNode::Input(1)];
            inputs == operands || inputs == [operands[1], operands[0]]
        }
        _ => false,
    }
}

/// What follows a contraction, as a graph of the contraction's result and some of the cluster's inputs, whose positions are
/// given.
fn rest(body: &Graph, contraction: NodeId) -> Result<(Graph, Vec<usize>)> {
    let mut rest = Graph::new("");
    let contracted = Value { node: contraction, port: 0 };
    let mut values = std::collections::BTreeMap::new();
    values.insert(contracted, rest.add_input("contracted", body.dense(contracted)?.into()));
    let mut used = vec![];
    for (i, &node) in body.inputs().iter().enumerate() {
        let v = Value { node, port: 0 };
        if body.uses(node).iter().any(|(user, ..)| *user != contraction) {
            used.push(i);
            values.insert(v, rest.add_input(body.node(node).name.clone(), body.dense(v)?.into()));
        }
    }
    for node in body.order() {
        let NodeKind::Prim(prim) = &body.node(node).kind else { continue };
        if node == contraction {
            continue;
        }
        let missing = || Diagnostic::new(Code::Internal, "what follows a contraction reads one of its operands");
        let args =
            body.args(node).iter().map(|v| values.get(v).copied().ok_or_else(missing)).collect::<Result<Vec<_>>>()?;
        let types = (0..body.node(node).types.len() as u16).map(|port| body.dense(Value { node, port }));
        let types = types.collect::<Result<Vec<_>>>()?;
        let new = rest.add_prim(body.node(node).name.clone(), prim.clone(), &args, &types);
        for port in 0..types.len() as u16 {
            values.insert(Value { node, port }, Value { node: new, port });
        }
    }
    for (name, v) in body.outputs() {
        let missing = || Diagnostic::new(Code::Internal, "a cluster gives out one of its inputs");
        rest.add_output(name.clone(), *values.get(v).ok_or_else(missing)?);
    }
    Ok((rest, used))
}
