//! Guesses of operands and parameters for an operator about which only its entry is known.

use std::fmt;

use tensorc_abi::DType;
use tensorc_ir::DenseType;
use tensorc_ir::Rng;
use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::{Compute, OpRef, TypeRule};
use tensorc_ir::params::{ParamKind, ParamValue, Params};
use tensorc_ir::scalar::Scalar;

/// Operands of one node. Operands whose values decide shapes are constants.
pub struct Candidate {
    /// By formal position, `None` where absent; with whether the operand is a constant of the graph.
    pub operands: Vec<Option<(TensorData, bool)>>,
    pub params: Params,
    /// Number of results.
    pub outputs: usize,
    /// Values of the operands that are inputs of the graph.
    pub inputs: Vec<TensorData>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |o: &Option<(TensorData, bool)>| match o {
            None => "absent".to_owned(),
            Some((data, false)) => data.ty.to_string(),
            Some((data, true)) => format!("{} {:?}", data.ty, data.to_f64s()),
        };
        let operands: Vec<String> = self.operands.iter().map(one).collect();
        let params: Vec<String> = self.params.iter().map(|(n, v)| format!("{n}={v:?}")).collect();
        write!(f, "({}) {{{}}}", operands.join(", "), params.join(", "))
    }
}

impl Candidate {
    fn new(op: &OpRef, operands: Vec<Option<TensorData>>, params: Params, outputs: usize) -> Candidate {
        let fixed = |i: usize| op.static_inputs.contains(&i);
        let operands: Vec<_> = operands.into_iter().enumerate().map(|(i, o)| o.map(|o| (o, fixed(i)))).collect();
        let inputs = operands.iter().flatten().filter(|(_, fixed)| !fixed).map(|(data, _)| data.clone()).collect();
        Candidate { operands, params, outputs, inputs }
    }

    /// The graph of one node, if the operator takes so many operands and these parameters.
    pub fn graph(&self, op: &OpRef) -> Option<Graph> {
        let mut graph = Graph::new(op.name);
        let mut add = |(i, o): (usize, &Option<(TensorData, bool)>)| {
            o.as_ref().map(|(data, fixed)| match fixed {
                true => graph.add_const(format!("c{i}"), data.clone()),
                false => graph.add_input(format!("x{i}"), data.ty.clone().into()),
            })
        };
        let operands: Vec<Option<Value>> = self.operands.iter().enumerate().map(&mut add).collect();
        let node = graph.add_op("node", op, &operands, self.params.clone(), self.outputs).ok()?;
        for port in 0..self.outputs as u16 {
            graph.add_output(format!("y{port}"), Value { node, port });
        }
        Some(graph)
    }
}

/// Whether every element of the results is one expression of the operands' elements, so that the
/// compiled result must have the same bits.
pub fn elementwise(op: &OpRef) -> bool {
    matches!(op.compute, Compute::Scalar(_))
}

/// Element types worth trying for the first operand.
pub fn element_types(op: &OpRef) -> Vec<DType> {
    match op.inputs.first().map(|s| &s.ty) {
        Some(TypeRule::Group(_, list) | TypeRule::OneOf(list)) if !list.is_empty() => list.to_vec(),
        Some(_) if elementwise(op) => DType::COMPUTED.to_vec(),
        Some(_) => vec![DType::F32, DType::I64, DType::F16, DType::Bool],
        None => vec![DType::F32],
    }
}

/// The type of operand `i` when the first group has type `first`.
fn operand_type(op: &OpRef, i: usize, first: DType) -> DType {
    match op.input_spec(i).map(|s| &s.ty) {
        Some(TypeRule::Group(0, list)) if list.is_empty() || list.contains(&first) => first,
        Some(TypeRule::Group(_, list) | TypeRule::OneOf(list)) if !list.is_empty() => {
            if list.contains(&first) {
                first
            } else {
                list[0]
            }
        }
        _ => first,
    }
}

fn extreme(dtype: DType, i: u64) -> Scalar {
    const FLOATS: [f64; 16] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        f32::MAX as f64,
        f32::MIN_POSITIVE as f64,
        1e-45,
        -1e-45,
        0.5,
        -2.5,
        88.0,
        -104.0,
        65504.0,
    ];
    match dtype {
        d if d.is_float() => Scalar::from_f64(d, FLOATS[i as usize % FLOATS.len()]),
        DType::Bool => Scalar::bool(i % 2 == 1),
        d => Scalar::from_i64(d, [0, 1, -1, i64::MAX, i64::MIN, 2, 127, -128, 3, 31, 64][i as usize % 11]),
    }
}

/// Ordinary values; of element-wise operators every third is an extreme one.
fn fill(op: &OpRef, i: usize, ty: DenseType) -> TensorData {
    let mut rng = Rng::new(i as u64 * 977 + ty.len() + ty.dtype as u64);
    let dtype = ty.dtype;
    // Integers beside another type are indices or counts: small ones fit any axis.
    let index = !elementwise(op) && dtype.is_int() && i > 0;
    TensorData::from_fn(ty, |at| match (elementwise(op), at % 3) {
        (true, 0) => extreme(dtype, at / 3 + 5 * i as u64),
        _ if index => Scalar::from_i64(dtype, rng.below(2) as i64),
        _ => rng.element(dtype),
    })
}

/// Shapes of all operands: equal ones, and the patterns of contractions, windows and channels.
fn shapes(count: usize) -> Vec<Vec<Vec<u64>>> {
    let mut found: Vec<Vec<Vec<u64>>> = vec![];
    for dims in [&[7][..], &[3, 5], &[2, 3, 4], &[2, 4, 6, 5], &[0, 3], &[1, 4, 5, 5, 3]] {
        found.push(vec![dims.to_vec(); count.max(1)]);
    }
    let patterns: [&[&[u64]]; 18] = [
        &[&[9, 33], &[33, 17], &[17]],
        &[&[2, 3, 5], &[2, 5, 4], &[4]],
        &[&[2, 5, 3], &[2, 4, 3]],
        &[&[6, 5], &[4, 5], &[4]],
        &[&[1, 4, 9, 7], &[4, 4, 3, 3], &[4]],
        &[&[2, 4, 6, 5], &[4], &[4], &[4], &[4]],
        &[&[2, 3, 33], &[33], &[33]],
        &[&[4, 6], &[], &[], &[], &[]],
        &[&[4, 6], &[4], &[4]],
        &[&[2, 4, 6], &[2, 4, 6], &[2, 4, 6], &[4, 4]],
        &[&[1, 2, 5, 6], &[1, 3, 3, 2]],
        &[&[3, 5], &[3], &[5]],
        &[&[0, 5], &[0], &[5]],
        &[&[3, 5], &[], &[2]],
        &[&[2, 3, 4], &[5, 2], &[5, 4]],
        &[&[2, 3, 5, 8], &[2, 5, 4], &[2, 5, 4]],
        &[&[2, 3, 5, 8], &[6, 4], &[6, 4], &[2, 5]],
        &[&[], &[], &[]],
    ];
    for pattern in patterns.iter().filter(|p| p.len() >= count && count > 1 || count == 1) {
        found.push(pattern[..count].iter().map(|d| d.to_vec()).collect());
    }
    found
}

/// Sizes around vector widths, and shapes that broadcast.
fn elementwise_shapes(count: usize, dtype: DType) -> Vec<Vec<Vec<u64>>> {
    let every: [&[u64]; 12] = [&[0], &[1], &[2], &[3], &[7], &[8], &[9], &[31], &[33], &[5, 7], &[3, 33], &[]];
    let few: [&[u64]; 3] = [&[9], &[5, 7], &[70]];
    let sizes = if dtype == DType::F32 { &every[..] } else { &few[..] };
    let mut found: Vec<Vec<Vec<u64>>> = sizes.iter().map(|d| vec![d.to_vec(); count]).collect();
    if count > 1 {
        for small in [&[7][..], &[5, 1], &[]] {
            let mut dims = vec![small.to_vec(); count];
            dims[0] = vec![5, 7];
            found.push(dims.clone());
            dims.reverse();
            found.push(dims);
        }
    }
    found
}

/// Values that operands which decide shapes are tried with.
fn static_values() -> Vec<Vec<i64>> {
    vec![
        vec![1],
        vec![2],
        vec![0],
        vec![1, 2],
        vec![3, 4],
        vec![2, 1, 2],
        vec![1, 1, 1, 1],
        vec![0, 1, 1, 0],
        vec![5; 4],
    ]
}

/// Values that required parameters are tried with: every combination of one choice per kind. Integers
/// differ, so that they can be the ends of a range.
fn params(op: &OpRef, choice: usize) -> Params {
    let words: Vec<&str> = op.params.iter().flat_map(|p| p.doc.split(|c: char| !c.is_alphanumeric())).collect();
    let mut words: Vec<String> =
        words.into_iter().filter(|w| w.len() > 2 && w.chars().all(char::is_uppercase)).map(String::from).collect();
    words.extend(["ij,jk->ik".to_owned(), "...i->...".to_owned()]);
    let mut params = Params::new();
    let mut ints = choice..;
    for spec in op.params.iter().filter(|s| s.required) {
        let value = match spec.kind {
            ParamKind::Int => ParamValue::Int([1, 2, 0, 4][ints.next().unwrap_or(choice) % 4]),
            ParamKind::Float => ParamValue::Float([0.5, 1.0][choice % 2]),
            ParamKind::Bool => ParamValue::Bool(choice.is_multiple_of(2)),
            ParamKind::Str => ParamValue::Str(words[choice % words.len()].clone()),
            ParamKind::Choice(of) => ParamValue::Str(of[choice % of.len()].to_owned()),
            ParamKind::DType => ParamValue::DType([DType::I32, DType::F32, DType::F16, DType::F64][choice % 4]),
            ParamKind::Ints => ParamValue::Ints([vec![2], vec![3, 4], vec![1, 0], vec![2; 3]][choice % 4].clone()),
            ParamKind::Floats => ParamValue::Floats(vec![0.5]),
            ParamKind::Strs => ParamValue::Strs(vec![]),
            ParamKind::Tensor => ParamValue::Tensor(TensorData::scalar(Scalar::f32(1.0))),
        };
        params.set(spec.name, value);
    }
    params
}

/// Windows for operators that slide one and need its extent.
fn window_params(op: &OpRef, params: &Params) -> Option<Params> {
    let spec = op.params.iter().find(|s| s.name == "kernel_shape" && !s.required)?;
    Some(params.clone().with(spec.name, ParamValue::Ints(vec![3, 2])))
}

/// Candidates for an operator. Those it takes are found by asking the interpreter.
pub fn candidates(op: &OpRef) -> Vec<Candidate> {
    element_types(op).into_iter().flat_map(|first| candidates_of(op, first)).collect()
}

/// Candidates whose first operand has a given element type.
pub fn candidates_of(op: &OpRef, first: DType) -> Vec<Candidate> {
    let required = op.inputs.iter().filter(|s| !s.optional).count();
    let mut counts = vec![required];
    if op.inputs.len() > required {
        counts.push(required + 1);
    }
    if op.variadic {
        counts.extend([2, 3]);
    }
    let choices = if op.params.iter().any(|s| s.required) { 4 } else { 1 };
    let outputs =
        if op.outputs.0 == op.outputs.1 { vec![op.outputs.0] } else { vec![op.outputs.0.max(1), op.outputs.1.min(3)] };
    let mut found = vec![];
    for &count in &counts {
        let all = if elementwise(op) { elementwise_shapes(count, first) } else { shapes(count) };
        for dims in all {
            for choice in 0..choices {
                for &outputs in &outputs {
                    add_candidates(op, first, &dims[..count], params(op, choice), outputs, &mut found);
                }
            }
        }
    }
    found
}

/// The operands of one choice of shapes, in every choice of the values that decide shapes.
fn add_candidates(
    op: &OpRef,
    first: DType,
    dims: &[Vec<u64>],
    params: Params,
    outputs: usize,
    found: &mut Vec<Candidate>,
) {
    let fixed: Vec<usize> = op.static_inputs.iter().copied().filter(|i| *i < dims.len()).collect();
    let values = if fixed.is_empty() { vec![vec![]] } else { static_values() };
    for value in values {
        for rank in if fixed.is_empty() || value.len() > 1 { &[1][..] } else { &[0, 1] } {
            let operand = |(i, dims): (usize, &Vec<u64>)| {
                let dtype = operand_type(op, i, first);
                if !fixed.contains(&i) {
                    return Some(fill(op, i, DenseType::new(dtype, dims)));
                }
                let shape = if *rank == 0 { vec![] } else { vec![value.len() as u64] };
                let number = |at: u64| Scalar::from_i64(dtype, value[at as usize]);
                Some(TensorData::from_fn(DenseType::new(dtype, &shape), number))
            };
            let operands: Vec<Option<TensorData>> = dims.iter().enumerate().map(operand).collect();
            if let Some(params) = window_params(op, &params) {
                found.push(Candidate::new(op, operands.clone(), params, outputs));
            }
            found.push(Candidate::new(op, operands, params.clone(), outputs));
        }
    }
}
