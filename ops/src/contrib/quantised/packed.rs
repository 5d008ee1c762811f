//! Weights of less than a byte, several in a byte, in blocks with a scale each.

use super::super::only;
use crate::prelude::*;
use crate::rules::open_rank_in;

pub fn ops() -> Vec<OpDef> {
    vec![matmul_nbits(), matmul_bnb4(), gather_block_quantized()]
}

const BYTE: &[DType] = &[DType::U8];

/// The numbers of `bits` along the last axis of bytes, the low ones first.
fn unpacked(x: Tensor<'_>, bits: u64, to: DType) -> Result<Tensor<'_>> {
    let dims = x.dims()?.to_vec();
    let (last, each) = (dims.len() - 1, 8 / bits);
    let mut wide = dims.clone();
    wide[last] *= each;
    let mut map = vars(dims.len());
    map[last] = map[last].floor_div(each as i64, &wide[..]);
    let bytes = x.view(map, None, &wide);
    Ok(x.graph().map(&[bytes], to, &wide, |s, a| {
        let number = |n: u64| s.constant(Scalar::i64(n as i64));
        let place = s.coord(last);
        let within = &place - place.clone() / number(each) * number(each);
        let moved = a[0].cast(DType::I64).shr(&(within * number(bits)));
        let high = moved.shr(&number(bits));
        (&moved - high * number(1 << bits)).cast(to)
    }))
}

/// `part`, of one element for each block along the last axis, for each of `n` elements.
fn by_block(part: Tensor<'_>, block: u64, n: u64) -> Result<Tensor<'_>> {
    let mut dims = part.dims()?.to_vec();
    let last = dims.len() - 1;
    dims[last] = n;
    let mut map = vars(dims.len());
    map[last] = map[last].floor_div(block as i64, &dims[..]);
    Ok(part.view(map, None, &dims))
}

/// The bits of an element, which divide a byte.
fn bits_of(params: &Params) -> Result<u64, OpError> {
    match params.int("bits").unwrap_or(4) {
        bits @ (2 | 4 | 8) => Ok(bits as u64),
        bits => Err(OpError(format!("parameter `bits` is {bits}; 2, 4 and 8 are supported"))),
    }
}

/// The elements of a block, a power of two.
fn block_of(params: &Params) -> Result<u64, OpError> {
    match params.int("block_size").unwrap_or(128) {
        block if block >= 16 && block.count_ones() == 1 => Ok(block as u64),
        block => Err(OpError(format!("parameter `block_size` is {block}; powers of two from 16 on are supported"))),
    }
}

fn count_of(params: &Params, name: &str) -> Result<u64, OpError> {
    match params.int(name) {
        Some(n) if n > 0 => Ok(n as u64),
        found => Err(OpError(format!("parameter `{name}` is {}", found.unwrap_or(0)))),
    }
}

/// The product of rows with a matrix [n, k] of weights, and a bias.
fn times<'g>(x: Tensor<'g>, weights: Tensor<'g>, bias: Option<Tensor<'g>>, to: DType) -> Tensor<'g> {
    let y = x.widened().call("matmul", &[weights.permute(&[1, 0])]);
    bias.map_or(y, |bias| y + bias.widened()).cast(to)
}

fn matmul_nbits() -> OpDef {
    let compute = formula(|g, cx| {
        let (bits, block) = (bits_of(cx.params).or_fail(&g)?, block_of(cx.params).or_fail(&g)?);
        let (n, k) = (count_of(cx.params, "N").or_fail(&g)?, count_of(cx.params, "K").or_fail(&g)?);
        let (blocks, dtype) = (k.div_ceil(block), compute_type(cx.outputs[0].dtype));
        let packed = g.operand(1).reshape([n, blocks * block * bits / 8]);
        let steps = unpacked(packed, bits, dtype)?.slice(1, 0u64, k);
        let scales = by_block(g.operand(2).widened().reshape([n, blocks]), block, k)?;
        let centred = match g.maybe(3) {
            None => steps + -f64::from(1u32 << (bits - 1)),
            Some(zeros) if zeros.ty()?.dtype == DType::U8 => {
                let row = (blocks * bits).div_ceil(8);
                let zeros = unpacked(zeros.reshape([n, row]), bits, dtype)?.slice(1, 0u64, blocks);
                steps - by_block(zeros, block, k)?
            }
            Some(zeros) => steps - by_block(zeros.cast(dtype).reshape([n, blocks]), block, k)?,
        };
        Ok(times(g.operand(0), centred * scales, g.maybe(5), cx.outputs[0].dtype))
    });
    let infer = shape_rule(|cx| {
        let (bits, block) = (bits_of(cx.params)?, block_of(cx.params)?);
        let (n, k) = (count_of(cx.params, "N")?, count_of(cx.params, "K")?);
        reject_if(cx.has_input(4), || "operand `g_idx` is not supported")?;
        reject_if(
            cx.params.int("weight_prepacked").unwrap_or(0) != 0,
            || "parameter `weight_prepacked` is not supported",
        )?;
        let blocks = k.div_ceil(block);
        let elements = |cx: &InferCtx<'_>, i: usize, expected: u64| {
            let Some(dims) = open_rank_in(cx, i, 1..=3)? else { return Ok(()) };
            match dims.iter().map(|d| d.as_const()).product::<Option<u64>>() {
                Some(found) if found != expected => {
                    Err(OpError(format!("{}: expected {expected} elements, found {found}", cx.input_name(i))))
                }
                _ => Ok(()),
            }
        };
        elements(cx, 1, n * blocks * block * bits / 8)?;
        elements(cx, 2, n * blocks)?;
        if cx.has_input(3) {
            let packed = cx.input_dtype(3) == Some(DType::U8);
            elements(cx, 3, if packed { n * (blocks * bits).div_ceil(8) } else { n * blocks })?;
        }
        if cx.has_input(5) {
            shaped(cx, 5, &[Dim::Const(n)])?;
        }
        rows_of_product(cx, k, n)
    });
    define("matmul_nbits", "The product with weights of 2, 4 or 8 bits, in blocks along K.", compute, infer)
        .group("A", FLOATS)
        .operand("B", BYTE)
        .group("scales", FLOATS)
        .optional("zero_points", TypeRule::OneOf(&[DType::U8, DType::F32, DType::F64, DType::F16, DType::BF16]))
        .optional("g_idx", TypeRule::OneOf(&[DType::I32]))
        .optional("bias", TypeRule::Group(0, FLOATS))
        .required("K", ParamKind::Int, "rows of the weights")
        .required("N", ParamKind::Int, "columns of the weights")
        .required("block_size", ParamKind::Int, "rows with one scale")
        .param("bits", 4, "of a weight")
        .param("accuracy_level", 0, "No effect: weights are floats in the product.")
        .param("weight_prepacked", 0, "Only 0 is supported.")
        .contrib("MatMulNBits")
        .ulp(16.0)
}

/// Rows of k elements become rows of n.
fn rows_of_product(cx: &mut InferCtx<'_>, k: u64, n: u64) -> Result<(), OpError> {
    let Some(mut dims) = open_rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
    let last = dims.len() - 1;
    cx.unify_dims(Dim::Const(k), dims[last], &format!("operand `A`, axis {last}"))?;
    dims[last] = Dim::Const(n);
    cx.set_output_dims(0, dims)
}

/// What four bits stand for in NF4: quantiles of the normal distribution (Dettmers et al., "QLoRA", 2023).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// What four bits stand for in FP4: a sign and one of eight magnitudes.
const FP4: [f32; 8] = [0.0, 0.005_208_333_3, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25];

fn matmul_bnb4() -> OpDef {
    let compute = formula(|g, cx| {
        let block = block_of(cx.params).or_fail(&g)?;
        let (n, k) = (count_of(cx.params, "N").or_fail(&g)?, count_of(cx.params, "K").or_fail(&g)?);
        // The first of two elements is the high half.
        let bytes = g.operand(1).reshape([(n * k).div_ceil(2)]);
        let halves = unpacked(bytes, 4, DType::I64)?;
        let d = halves.dims()?;
        let at = halves.reshape([d[0] / 2, 2]);
        let swapped = g.concat(&[at.slice(1, 1u64, 1u64), at.slice(1, 0u64, 1u64)], 1).reshape(&d);
        let table: Vec<f32> = match cx.params.int("quant_type") {
            Some(1) => NF4.to_vec(),
            _ => FP4.iter().copied().chain(FP4.map(|x| -x)).collect(),
        };
        let data = TensorData::f32s(&[16], &table);
        let table = g.constant(data.ok_or_else(|| g.fail("the table is malformed"))?);
        let values = table.gather(swapped, 0).slice(0, 0u64, n * k);
        let scales = by_block(g.operand(2).widened().reshape([(n * k).div_ceil(block)]), block, n * k)?;
        let weights = (values.cast(compute_type(cx.outputs[0].dtype)) * scales).reshape([n, k]);
        Ok(times(g.operand(0), weights, None, cx.outputs[0].dtype))
    });
    let infer = shape_rule(|cx| {
        let block = block_of(cx.params)?;
        let (n, k) = (count_of(cx.params, "N")?, count_of(cx.params, "K")?);
        let kind = cx.params.int("quant_type").unwrap_or(-1);
        reject_if(!(0..=1).contains(&kind), || format!("parameter `quant_type` is {kind}; 0 and 1 are supported"))?;
        only(cx, "transB", 1)?;
        shaped(cx, 1, &[Dim::Const((n * k).div_ceil(2))])?;
        shaped(cx, 2, &[Dim::Const((n * k).div_ceil(block))])?;
        rows_of_product(cx, k, n)
    });
    define("matmul_bnb4", "The product with weights of 4 bits that stand for numbers of a table.", compute, infer)
        .group("A", FLOATS)
        .operand("B", BYTE)
        .group("absmax", FLOATS)
        .required("K", ParamKind::Int, "rows of the weights")
        .required("N", ParamKind::Int, "columns of the weights")
        .required("block_size", ParamKind::Int, "elements with one scale")
        .required("quant_type", ParamKind::Int, "the table: 0 is FP4, 1 is NF4")
        .param("transB", 1, "Weights are stored transposed; only 1 is supported.")
        .param("training_mode", 0, "No effect.")
        .contrib("MatMulBnb4")
        .ulp(16.0)
}

fn gather_block_quantized() -> OpDef {
    let compute = formula(|g, cx| {
        let (bits, block) = (bits_of(cx.params).or_fail(&g)?, block_of(cx.params).or_fail(&g)?);
        let [data, at] = g.operands();
        let d = data.dims()?;
        let (last, rows) = (d.len() - 1, d[0] as f64);
        let n = d[last] * (8 / bits);
        let wrapped = at.cast(DType::I64).map(|i| i.lt(&i.lit(0.0)).select(&(i + rows), i));
        let inside = wrapped.map(|i| i.max(&i.lit(0.0)).min(&i.lit(rows - 1.0)));
        let taken = |i: usize| g.operand(i).gather(inside, 0);
        let dtype = compute_type(cx.outputs[0].dtype);
        let steps = unpacked(taken(0), bits, dtype)?;
        let out = steps.dims()?;
        let scales = by_block(taken(2).widened(), block, n)?;
        let centred = match g.maybe(3) {
            None => steps + -f64::from(1u32 << (bits - 1)),
            Some(_) => {
                let zeros = unpacked(taken(3), bits, dtype)?;
                steps - by_block(zeros, block, n)?
            }
        };
        let shown = wrapped.reshape([&wrapped.dims()?[..], &vec![1; last]].concat());
        // No row for an index beyond them.
        Ok(g.map(&[centred * scales, shown], cx.outputs[0].dtype, &out, |_, a| {
            let zero = a[0].lit(0.0);
            let below = a[1].lt(&a[1].lit(rows)).select(&a[0], &zero);
            a[1].ge(&a[1].lit(0.0)).select(&below, &zero)
        }))
    });
    let infer = rule(|cx| {
        let (bits, block) = (bits_of(cx.params)?, block_of(cx.params)?);
        cx.same_dtype(0, 2)?;
        let (Some(d), Some(at)) = (open_rank_in(cx, 0, 2..=usize::MAX)?, cx.open_dims(1)) else { return Ok(()) };
        let axis = |name: &str, default: i64| normalize_axis(cx.params.int(name).unwrap_or(default), d.len());
        let (gathered, quantised) = (axis("gather_axis", 0)?, axis("quantize_axis", 1)?);
        reject_if(
            gathered != 0 || quantised != d.len() - 1,
            || "only slices of the first axis, in blocks along the last, are supported",
        )?;
        let n = d[d.len() - 1].as_const().map(|n| n * (8 / bits));
        if let Some(n) = n {
            let mut of_scales = d.clone();
            of_scales[d.len() - 1] = Dim::Const(n.div_ceil(block));
            shaped(cx, 2, &of_scales)?;
            if cx.has_input(3) {
                of_scales[d.len() - 1] = Dim::Const((n.div_ceil(block) * bits).div_ceil(8));
                shaped(cx, 3, &of_scales)?;
            }
        }
        let middle = d[1..d.len() - 1].iter().copied().map(Some);
        let dims: Vec<Option<Dim>> = at.iter().copied().map(Some).chain(middle).chain([n.map(Dim::Const)]).collect();
        partial(cx, 0, &dims)
    });
    let doc = "Slices of weights of 2, 4 or 8 bits, in blocks along the last axis; zeros for an index beyond them.";
    define("gather_block_quantized", doc, compute, infer)
        .operand("data", BYTE)
        .operand("indices", INDICES)
        .operand("scales", FLOATS)
        .optional("zero_points", TypeRule::OneOf(BYTE))
        .param("bits", 4, "of an element")
        .param("block_size", 128, "elements with one scale")
        .param("gather_axis", 0, "Only the first axis is supported.")
        .param("quantize_axis", 1, "Only the last axis is supported.")
        .contrib("GatherBlockQuantized")
}
