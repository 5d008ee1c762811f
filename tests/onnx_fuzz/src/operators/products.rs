//! Matrix products, Einstein sums, attention, and gated activations.

use tensorc::DType;
use tensorc::ir::TensorData;
use tensorc::ir::scalar::Scalar;

use super::{Draw, types};
use crate::draw::{self, Elements};
use crate::model::{NodeSpec, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("Attention", attention),
    ("DFT", dft),
    ("Det", det),
    ("Einsum", einsum),
    ("Gemm", gemm),
    ("MatMul", matmul),
    ("RotaryEmbedding", rotary_embedding),
    ("STFT", stft),
    ("SwiGLU", swiglu),
];

const EXTENTS: [u64; 12] = [0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33];

fn extent(w: &mut Writer<'_>) -> u64 {
    match *w.rng.pick(&EXTENTS) {
        0 if !w.one_in(4) => 6,
        n => n,
    }
}

fn swiglu(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let a = w.any(&types(w, op, 0), 0, 6);
    let b = w.operand(a.dtype(), a.dims(), Elements::Any);
    Some(NodeSpec::new(op, vec![Some(a), Some(b)]).float("alpha", *w.rng.pick(&[1.0, 0.5, 1.702, -1.0])))
}

fn matmul(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let a = w.any(&allowed, 1, 4);
    let k = *a.dims().last()?;
    let n = extent(w);
    let dims = match w.choice(4) {
        0 => vec![k],
        1 => vec![k, n],
        _ if a.rank() < 3 => vec![1 + w.choice(2), k, n],
        _ => {
            let batch = draw::broadcast(&mut w.rng, &a.dims()[..a.rank() - 2]);
            [&batch[..], &[k, n]].concat()
        }
    };
    if dims.iter().product::<u64>() > draw::MOST || dims.len() > 5 {
        return None;
    }
    let b = w.operand(a.dtype(), &dims, Elements::Any);
    Some(NodeSpec::new(op, vec![Some(a), Some(b)]))
}

fn gemm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let allowed = types(w, op, 0);
    let a = w.any(&allowed, 2, 2);
    let (ta, tb) = (w.one_in(3), w.one_in(3));
    let (m, k) = if ta { (a.dims()[1], a.dims()[0]) } else { (a.dims()[0], a.dims()[1]) };
    let n = extent(w);
    let b = w.operand(a.dtype(), &if tb { [n, k] } else { [k, n] }, Elements::Any);
    let shapes: [&[u64]; 6] = [&[n], &[m, n], &[1, n], &[m, 1], &[], &[1]];
    let shape = w.rng.pick(&shapes).to_vec();
    let c = (!w.one_in(3)).then(|| w.operand(a.dtype(), &shape, Elements::Any));
    let mut spec = NodeSpec::new(op, vec![Some(a), Some(b), c]);
    if ta {
        spec = spec.int("transA", 1);
    }
    if tb {
        spec = spec.int("transB", 1);
    }
    let floats = [0.0, 1.0, 0.5, -2.0];
    if w.one_in(2) {
        spec = spec.float("alpha", *w.rng.pick(&floats));
    }
    Some(if w.one_in(2) { spec } else { spec.float("beta", *w.rng.pick(&floats)) })
}

/// Equations, with a shape for each operand by its letters.
const EQUATIONS: [(&str, &[&str]); 16] = [
    ("ij,jk->ik", &["ij", "jk"]),
    ("ij,jk", &["ij", "jk"]),
    ("ij->ji", &["ij"]),
    ("ij->i", &["ij"]),
    ("ii->i", &["ii"]),
    ("ii->", &["ii"]),
    ("ij->", &["ij"]),
    ("i,j->ij", &["i", "j"]),
    ("i,i->", &["i", "i"]),
    ("bij,bjk->bik", &["bij", "bjk"]),
    ("bij,kj->bik", &["bij", "kj"]),
    ("bhqd,bhkd->bhqk", &["bhqd", "bhkd"]),
    ("...ij,...jk->...ik", &["bij", "bjk"]),
    ("ij,ij->ij", &["ij", "ij"]),
    ("ij,jk,kl->il", &["ij", "jk", "kl"]),
    (" i j , j -> i ", &["ij", "j"]),
];

fn einsum(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let (equation, shapes) = *w.rng.pick(&EQUATIONS);
    let allowed = types(w, op, 0);
    let dtype = draw::dtype(&mut w.rng, &allowed);
    let extents: Vec<(char, u64)> = "bhijkldq".chars().map(|c| (c, 1 + w.rng.below(5))).collect();
    let extent = |c: char| extents.iter().find(|(k, _)| *k == c).map_or(1, |(_, n)| *n);
    let mut operands = vec![];
    for shape in shapes {
        let dims: Vec<u64> = shape.chars().map(extent).collect();
        operands.push(Some(w.operand(dtype, &dims, Elements::Any)));
    }
    Some(NodeSpec::new(op, operands).text("equation", equation))
}

fn det(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64]);
    let n = 1 + w.choice(6);
    let dims = [vec![], vec![3], vec![2, 2]][w.choice(3) as usize].iter().copied().chain([n, n]).collect::<Vec<u64>>();
    let x = w.operand(dtype, &dims, Elements::Unit);
    Some(NodeSpec::new(op, vec![Some(x)]))
}

fn dft(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64]);
    let (inverse, onesided) = (w.one_in(2), w.one_in(2));
    // A one-sided spectrum exists for real input only. ONNX Runtime has no inverse of it.
    let (inverse, parts) = if onesided { (false, 1) } else { (inverse, 1 + w.choice(2)) };
    let n = 1 + w.choice(40);
    let dims = [1 + w.choice(3), n, 1 + w.choice(3), parts];
    let x = w.operand(dtype, &dims, Elements::Unit);
    let length = w.one_in(2).then(|| 1 + w.choice(n + 4));
    let length = length.map(|n| w.fixed(TensorData::scalar(Scalar::i64(n as i64))));
    let mut spec = NodeSpec::new(op, vec![Some(x)]).int("inverse", inverse.into()).int("onesided", onesided.into());
    if w.model.opset < 20 {
        spec = spec.int("axis", 1);
        spec.operands.extend(length.map(Some));
    } else {
        let axis = w.fixed(TensorData::scalar(Scalar::i64(1)));
        spec.operands.extend([length, Some(axis)]);
    }
    Some(spec)
}

fn stft(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F64]);
    let n = 1 + w.choice(16);
    let dims = [1 + w.choice(2), n + w.choice(30), 1];
    let x = w.operand(dtype, &dims, Elements::Unit);
    let step = TensorData::scalar(Scalar::i64(1 + w.choice(6) as i64));
    let step = w.fixed(step);
    let window = w.one_in(2).then(|| w.operand(dtype, &[n], Elements::Unit));
    let length = w.fixed(TensorData::scalar(Scalar::i64(n as i64)));
    let onesided = w.one_in(2);
    Some(NodeSpec::new(op, vec![Some(x), Some(step), window, Some(length)]).int("onesided", onesided.into()))
}

fn attention(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F32, DType::F16]);
    let (batch, kv_heads, repeat) = (1 + w.choice(2), 1 + w.choice(2), 1 + w.choice(2));
    let heads = kv_heads * repeat;
    let (rows, keys) = (1 + w.choice(6), 1 + w.choice(9));
    let (size, value_size) = (*w.rng.pick(&[1, 4, 8]), *w.rng.pick(&[1, 4, 8]));
    let packed = w.one_in(3);
    let shape = |h: u64, n: u64, s: u64| if packed { vec![batch, n, h * s] } else { vec![batch, h, n, s] };
    let q = w.operand(dtype, &shape(heads, rows, size), Elements::Any);
    let k = w.operand(dtype, &shape(kv_heads, keys, size), Elements::Any);
    let v = w.operand(dtype, &shape(kv_heads, keys, value_size), Elements::Any);
    let mask = match w.choice(4) {
        0 => Some(w.operand(DType::Bool, &[rows, keys], Elements::Any)),
        1 => Some(w.operand(dtype, &[rows, keys], Elements::Any)),
        2 => Some(w.operand(dtype, &[batch, 1, rows, keys], Elements::Any)),
        _ => None,
    };
    let mut spec = NodeSpec::new(op, vec![Some(q), Some(k), Some(v), mask]);
    if packed {
        spec = spec.int("q_num_heads", heads as i64).int("kv_num_heads", kv_heads as i64);
    }
    if w.one_in(2) {
        spec = spec.int("is_causal", w.rng.below(2) as i64);
    }
    if w.one_in(3) {
        spec = spec.float("scale", 0.3);
    }
    Some(if w.one_in(4) { spec.float("softcap", 2.0) } else { spec })
}

fn rotary_embedding(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let dtype = *w.rng.pick(&[DType::F32, DType::F16]);
    let (batch, heads, rows, half) = (1 + w.choice(2), 1 + w.choice(2), 1 + w.choice(4), 1 + w.choice(4));
    let x = w.operand(dtype, &[batch, heads, rows, 2 * half], Elements::Any);
    let positions = w.one_in(2);
    let table = if positions { vec![rows + 3, half] } else { vec![batch, rows, half] };
    let cos = w.operand(dtype, &table, Elements::Unit);
    let sin = w.operand(dtype, &table, Elements::Unit);
    let ids = positions.then(|| w.operand(DType::I64, &[batch, rows], Elements::Index(rows + 3, false)));
    let spec = NodeSpec::new(op, vec![Some(x), Some(cos), Some(sin), ids]);
    Some(if w.one_in(2) { spec } else { spec.int("interleaved", w.rng.below(2) as i64) })
}
