//! Fused matrix products and convolutions: FusedMatMul, FusedGemm, FusedConv, ConvTransposeWithDynamicPads.

use super::activation::activated;
use crate::contract::{gemm, product_shape};
use crate::conv::{conv, window_params};
use crate::prelude::*;
use crate::rules::{ints, need_ints, open_rank_in};

pub fn ops() -> Vec<OpDef> {
    vec![fused_matmul(), fused_gemm(), fused_conv(), conv_transpose_dynamic()]
}

/// Axes of an operand of `fused_matmul` in the order of `matmul`.
fn operand_axes(params: &Params, operand: usize, rank: usize) -> Vec<usize> {
    let [transposed, batch] = [["transA", "transBatchA"], ["transB", "transBatchB"]][operand].map(|n| params.flag(n));
    let mut axes: Vec<usize> = (0..rank).collect();
    if batch && rank > 2 {
        axes[..rank - 1].rotate_left(1);
    }
    if transposed && rank > 1 {
        axes.swap(rank - 1, rank - 2);
    }
    axes
}

fn fused_matmul() -> OpDef {
    let compute = formula(|g, cx| {
        let operand = |i: usize| {
            let x = g.operand(i);
            Ok(x.permute(&operand_axes(cx.params, i, x.dims()?.len())))
        };
        let product = operand(0)?.call("matmul", &[operand(1)?]);
        Ok(match cx.params.float("alpha").unwrap_or(1.0) {
            1.0 => product,
            alpha => product.map(|x| x * alpha),
        })
    });
    let infer = shape_rule(|cx| {
        let mut dims = vec![];
        for i in [0, 1] {
            let Some(own) = open_rank_in(cx, i, 1..=usize::MAX)? else { return Ok(()) };
            dims.push(operand_axes(cx.params, i, own.len()).iter().map(|&axis| own[axis]).collect::<Vec<_>>());
        }
        product_shape(cx, &dims[0], &dims[1])
    });
    let doc = "alpha times the matrix product, of operands whose last two axes are swapped, or whose first axis comes \
               behind the batch axes, if asked.";
    define("fused_matmul", doc, compute, infer)
        .groups(&["A", "B"], FLOATS)
        .param("alpha", 1.0, "scale of the product")
        .param("transA", false, "swap the last two axes of A")
        .param("transB", false, "swap the last two axes of B")
        .param("transBatchA", false, "the rows of A are its first axis")
        .param("transBatchB", false, "the rows of B are its first axis")
        .contrib("FusedMatMul")
        .contrib("TransposeMatMul")
        .ulp(1.0)
}

fn fused_gemm() -> OpDef {
    let base = gemm();
    let compute = formula(|g, cx| {
        let own = ["alpha", "beta", "transA", "transB"].into_iter();
        let given = own.filter_map(|name| Some((name, cx.params.get(name)?.clone())));
        let params = given.fold(Params::new(), |all, (name, value)| all.with(name, value));
        let operands = [g.maybe(0), g.maybe(1), g.maybe(2)];
        let product = g.op_multi("gemm", &operands, params, 1)[0];
        let number = |name| cx.params.float(name);
        let name = cx.params.str("activation").unwrap_or("");
        let numbers = match name {
            "Selu" => [number("activation_alpha"), number("activation_gamma")],
            _ => [number("activation_alpha"), number("activation_beta")],
        };
        activated(product, name, &numbers)
    });
    let doc = "An activation of `gemm`.";
    define("fused_gemm", doc, compute, base.infer)
        .groups(&["A", "B"], FLOATS)
        .optional("C", TypeRule::Group(0, FLOATS))
        .param("alpha", 1.0, "")
        .param("beta", 1.0, "")
        .param("transA", false, "")
        .param("transB", false, "")
        .param("activation", "", "its ONNX name; none if empty")
        .maybe("activation_alpha", ParamKind::Float, "its `alpha`")
        .maybe("activation_beta", ParamKind::Float, "its `beta`")
        .maybe("activation_gamma", ParamKind::Float, "its `gamma`")
        .contrib("FusedGemm")
        .ulp(4.0)
}

/// The window parameters of a node, and its groups, for another operator.
fn window_values(params: &Params, names: &[&'static str]) -> Params {
    let given = names.iter().filter_map(|name| Some((*name, params.get(name)?.clone())));
    given.fold(Params::new(), |all, (name, value)| all.with(name, value))
}

fn fused_conv() -> OpDef {
    let base = conv();
    let compute = formula(|g, cx| {
        let names = ["auto_pad", "kernel_shape", "strides", "dilations", "pads", "group"];
        let operands = [g.maybe(0), g.maybe(1), g.maybe(2)];
        let y = g.op_multi("conv", &operands, window_values(cx.params, &names), 1)[0];
        let y = g.maybe(3).map_or(y, |z| y + z);
        let numbers: Vec<Option<f64>> =
            cx.params.floats("activation_params").unwrap_or(&[]).iter().map(|x| Some(*x)).collect();
        activated(y, cx.params.str("activation").unwrap_or(""), &numbers)
    });
    let infer = match base.infer {
        Infer::Rule(of_conv) => rule(move |cx| {
            of_conv(cx)?;
            if !cx.has_input(3) {
                return Ok(());
            }
            let shape = cx.output_shape(0);
            cx.set_input_shape(3, shape)
        }),
        derived => derived,
    };
    window_params(define("fused_conv", "An activation of `conv` and a tensor added to it.", compute, infer))
        .groups(&["X", "W"], FLOATS)
        .optional("B", TypeRule::Group(0, FLOATS))
        .optional("Z", TypeRule::Group(0, FLOATS))
        .param("group", 1, "Number of channel groups.")
        .param("activation", "", "its ONNX name; none if empty")
        .maybe("activation_params", ParamKind::Floats, "its numbers: alpha, beta, or least and greatest")
        .contrib("FusedConv")
        .ulp(4.0)
}

fn conv_transpose_dynamic() -> OpDef {
    let names = ["auto_pad", "kernel_shape", "strides", "dilations", "group", "output_padding"];
    let with_pads = move |params: &Params, pads: Vec<i64>| window_values(params, &names).with("pads", pads);
    let compute = formula(move |g, cx| {
        let pads = if cx.has_input(2) { need_ints(cx, 2, "Pads").or_fail(&g)? } else { vec![] };
        let operands = [g.maybe(0), g.maybe(1), g.maybe(3)];
        Ok(g.op_multi("conv_transpose", &operands, with_pads(cx.params, pads), 1)[0])
    });
    let infer = rule(|cx| {
        cx.same_dtype(0, 0)?;
        let (Some(x), Some(w)) = (open_rank_in(cx, 0, 3..=usize::MAX)?, open_rank_in(cx, 1, 3..=usize::MAX)?) else {
            return Ok(());
        };
        let rank = x.len() - 2;
        reject_if(w.len() != x.len(), || format!("operand `W`: expected rank {}, found rank {}", x.len(), w.len()))?;
        cx.unify_dims(x[1], w[0], "operand `W`, axis 0 (channels)")?;
        let list = |name: &str, default: i64| match cx.params.ints(name).unwrap_or(&[]) {
            [] => Ok(vec![default; rank]),
            given if given.len() == rank => Ok(given.to_vec()),
            given => Err(OpError(format!("parameter `{name}`: expected {rank} entries, found {}", given.len()))),
        };
        let (strides, dilations, extra) = (list("strides", 1)?, list("dilations", 1)?, list("output_padding", 0)?);
        let group = cx.params.int("group").unwrap_or(1);
        reject_if(
            group < 1 || strides.iter().chain(&dilations).any(|n| *n < 1),
            || "parameters `group`, `strides` and `dilations` must be positive",
        )?;
        let pads = if cx.has_input(2) { ints(cx, 2) } else { Some(vec![0; 2 * rank]) };
        if let Some(pads) = &pads {
            reject_if(pads.len() != 2 * rank, || {
                format!("operand `Pads`: expected {} elements, found {}", 2 * rank, pads.len())
            })?;
        }
        let channels = w[1].as_const().map(|n| Dim::Const(n * group as u64));
        let mut out = vec![Some(x[0]), channels];
        for i in 0..rank {
            let (n, k) = (x[2 + i].as_const(), w[2 + i].as_const());
            let extent = n.zip(k).zip(pads.as_ref()).map(|((n, k), pads)| {
                let full = (n as i64 - 1) * strides[i] + extra[i] + (k as i64 - 1) * dilations[i] + 1;
                full - pads[i] - pads[rank + i]
            });
            reject_if(extent.is_some_and(|n| n < 0), || format!("spatial axis {i}: the pads exceed the result"))?;
            out.push(extent.map(|n| Dim::Const(n as u64)));
        }
        partial(cx, 0, &out)
    });
    let doc = "`conv_transpose` with pads that are an operand.";
    window_params(define("conv_transpose_dynamic_pads", doc, compute, infer))
        .groups(&["X", "W"], FLOATS)
        .static_optionals(&["Pads"], &[DType::I64])
        .optional("B", TypeRule::Group(0, FLOATS))
        .param("group", 1, "Number of channel groups.")
        .maybe("output_padding", ParamKind::Ints, "Extra extent after every spatial axis.")
        .contrib("ConvTransposeWithDynamicPads")
        .ulp(1.0)
}
