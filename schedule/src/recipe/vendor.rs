//! Contractions that vendor libraries compute on a GPU: products by cuBLASLt, convolutions by cuDNN.
//!
//! The library computes the contraction alone, or with a bias that is all that follows; anything else that follows is a generated
//! kernel over what the library wrote. The other epilogues of cuBLASLt are not used: its relu does not define NaN, and its gelu
//! does not say how it is computed. A contraction whose operands are computed in its cluster, or have a layout that the library
//! does not take, stays a generated kernel.

use tensorc_abi::DType;
use tensorc_abi::vendor::{VendorCall, VendorContraction};
use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Fixed;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::{Contraction, Prim};
use tensorc_ir::scalar::{ScalarFn, ScalarNode, ScalarOp};
use tensorc_ir::views::strides_in_result;

use super::library::{Library, contraction};
use crate::access::Located;
use crate::layout::Layouts;
use crate::recognise::contract::{as_forward, as_product};
use crate::target::VendorLibraries;

/// Most working memory of a call in bytes: NVIDIA's advice for GPUs of compute capability 9.0.
const MAX_WORKSPACE: u64 = 32 << 20;
/// Partial results of f32 that working memory has room for.
const PARTIAL_RESULTS: u64 = 16;

/// A contraction as a library computes it, with the positions of its operands among the cluster's inputs.
#[derive(Clone, Debug)]
pub struct Vendor {
    /// The call of the vendor's library.
    pub call: VendorCall,
    /// The operands, by position among the inputs.
    pub operands: [usize; 2],
    /// The input that is added to every row by the library, if that is all that follows.
    pub bias: Option<usize>,
    /// Whether the library writes the cluster's result.
    pub whole: bool,
}

/// How a vendor library computes the contraction of a cluster, if one does. `tf32`: whether f32 may be rounded to 10 bits of
/// fraction.
///
/// # Errors
/// A type of the cluster is not known.
pub fn vendor(cluster: &Located<'_>, libraries: VendorLibraries, tf32: bool) -> Result<Option<Vendor>> {
    let Located { body, layouts } = *cluster;
    let (node, c) = contraction(body)?;
    let args = body.args(node);
    let position = |v: Value| body.inputs().iter().position(|n| *n == v.node);
    let (Some(left), Some(right)) = (position(args[0]), position(args[1])) else { return Ok(None) };
    let (lhs, rhs, out) = (body.dense(args[0])?, body.dense(args[1])?, body.dense(Value { node, port: 0 })?);
    if lhs.dtype != out.dtype || rhs.dtype != out.dtype || body.outputs().len() != 1 {
        return Ok(None);
    }
    let tf32 = tf32 && out.dtype == DType::F32;
    let follows = Follows::of(body, node)?;
    let library = if libraries.convolutions { as_forward(&c, &lhs, &rhs) } else { None };
    let convolution = library.map(|conv| Library::Conv { conv: Box::new(conv), a: Some(left), b: right });
    let product = |follows: &Follows| -> Option<Library> {
        let strides = match follows {
            Follows::Moves(strides) => Some(&strides[..]),
            _ => None,
        };
        let gemm = as_product(&c, &lhs, &rhs, strides).filter(|_| libraries.products)?;
        let (a, b) = if gemm.swapped { (right, left) } else { (left, right) };
        Some(Library::Gemm { gemm: Box::new(gemm), a: Some(a), b })
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
        let Ok(library) = library.located(&Layouts { inputs: layouts.inputs.clone(), outputs }) else { continue };
        let operands = library.operands();
        let [a, b] = operands[..] else { continue };
        let (contraction, operands, bias) = match library {
            Library::Conv { conv, .. } => (VendorContraction::Convolution(conv.convert(&Fixed)), [a, b], None),
            Library::Gemm { gemm, .. } => {
                let call = gemm.call.convert(&Fixed);
                let bias = follows.bias(body, call.n, &gemm.col_axes, &c);
                let bias = bias.filter(|i| whole && layouts.input(*i).is_none());
                if matches!(follows, Follows::Adds(_)) && whole && bias.is_none() {
                    continue;
                }
                (VendorContraction::Product { call, bias: bias.is_some() }, [a, b], bias)
            }
        };
        let workspace = (PARTIAL_RESULTS * 4).saturating_mul(out.len()).min(MAX_WORKSPACE);
        let call = VendorCall { contraction, dtype: out.dtype, tf32, workspace };
        if call.fits() {
            return Ok(Some(Vendor { call, operands, bias, whole }));
        }
    }
    Ok(None)
}

/// What follows a contraction in its cluster.
enum Follows {
    Nothing,
    /// A view, which moves elements to places with these strides.
    Moves(Vec<Extent>),
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
