//! Random graphs that update some of their inputs and run in two phases.

use tensorc::runtime::plan::{Needs, Phase};
use tensorc::runtime::{Bindings, Context, Executable, Pool, TensorMut, TensorRef};
use tensorc_abi::{Buffer, BufferId};
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::op::Registry;
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DType, TensorData};
use tensorc_passes::differentiate::differentiate;
use tensorc_passes::infer::infer_graph;
use tensorc_random::Rng;

/// Adds outputs, updates of inputs by values of their type, whatever these are, and a boundary
/// somewhere between the outputs or, in a quarter of the graphs, none.
pub fn add_updates(graph: &mut Graph, registry: &Registry, rng: &mut Rng) {
    infer_graph(graph, registry, 1 << 20).unwrap();
    let all = |graph: &Graph| -> Vec<Value> {
        let nodes = graph.order().into_iter();
        nodes.flat_map(|node| (0..graph.node(node).types.len() as u16).map(move |port| Value { node, port })).collect()
    };
    for input in graph.inputs().to_vec() {
        // So that inputs have something to become: `x + 1` of themselves, and of what is like them.
        let ty = graph.dense(Value { node: input, port: 0 }).unwrap();
        let like: Vec<Value> = all(graph).into_iter().filter(|v| graph.dense(*v).as_ref() == Ok(&ty)).collect();
        let picked = [*rng.pick(&like), *rng.pick(&like)].map(Some);
        let add = registry.get("add").unwrap();
        let sum = graph.add_op("sum", add, &picked, Default::default(), 1).unwrap();
        graph.node_mut(sum).types[0] = ty.into();
    }
    let values = all(graph);
    for i in 0..rng.below(3) {
        graph.add_output(format!("extra{i}"), *rng.pick(&values));
    }
    for input in graph.inputs().to_vec() {
        let ty = graph.dense(Value { node: input, port: 0 }).unwrap();
        let like: Vec<Value> = values.iter().copied().filter(|v| graph.dense(*v).as_ref() == Ok(&ty)).collect();
        if !rng.one_in(4) {
            // More often one of the last.
            let last = &like[like.len() - like.len().min(3)..];
            graph.add_update(input, if rng.one_in(2) { *rng.pick(last) } else { *rng.pick(&like) });
        }
    }
    if !rng.one_in(4) {
        graph.set_boundary(Some(rng.below(graph.outputs().len() as u64 + 1) as usize));
    }
    graph.remove_dead();
}

/// Whether the graph updates an input by another value than itself.
pub fn changes_states(graph: &Graph) -> bool {
    graph.updates().iter().any(|(of, v)| v.node != *of && !matches!(graph.node(v.node).kind, NodeKind::Const(_)))
}

/// Outputs, then next values of updated inputs, of the whole run or of its phases one by one.
pub fn run(
    executable: &std::sync::Arc<Executable>,
    graph: &Graph,
    pool: &Pool,
    inputs: &[TensorData],
    by_phase: bool,
) -> Result<Vec<Vec<u8>>, String> {
    let plan = executable.plan();
    let buffers = |ids: &[BufferId]| ids.iter().map(|id| plan.buffer(*id).clone()).collect::<Vec<Buffer>>();
    let (output_types, state_types) = (buffers(&plan.outputs), buffers(&plan.states));
    let is_state = |i: &usize| graph.states().iter().any(|(s, _)| s == i);
    let places = (0..inputs.len()).filter(|i| !is_state(i));
    let reads: Vec<TensorRef<'_>> =
        places.map(|i| TensorRef::new(inputs[i].ty.dtype, &inputs[i].ty.dims, inputs[i].bytes())).collect();
    let mut states: Vec<Vec<u8>> = graph.states().iter().map(|(i, _)| inputs[*i].bytes().to_vec()).collect();
    // What an earlier run left must not matter.
    let mut outputs: Vec<Vec<u8>> = output_types.iter().map(|b| vec![0xa5; b.bytes() as usize]).collect();
    let mut context = Context::new(executable.clone(), pool).map_err(|e| e.to_string())?;
    let tensors = |types: &[Buffer], data: &mut [Vec<u8>], which: &[usize], f: &mut dyn FnMut(&mut [TensorMut<'_>])| {
        let all = types.iter().zip(data).enumerate().filter(|(i, _)| which.contains(i));
        let mut some: Vec<TensorMut<'_>> = all.map(|(_, (b, d))| TensorMut::new(b.dtype, &b.dims, d)).collect();
        f(&mut some);
    };
    let whole = Needs {
        inputs: (0..reads.len()).collect(),
        read_states: vec![],
        states: (0..states.len()).collect(),
        outputs: (0..outputs.len()).collect(),
    };
    let parts = if by_phase { vec![Some(Phase::First), Some(Phase::Second)] } else { vec![None] };
    for part in parts {
        let needs = match part {
            Some(phase) => executable.needs(phase).ok_or("the plan has no boundary")?,
            None => &whole,
        };
        let old = states.clone();
        let mut given: Vec<TensorRef<'_>> = needs.inputs.iter().map(|i| reads[*i]).collect();
        let read = |i: &usize| TensorRef::new(state_types[*i].dtype, &state_types[*i].dims, &old[*i]);
        given.extend(needs.read_states.iter().map(read));
        let mut result = Ok(());
        tensors(&state_types, &mut states, &needs.states, &mut |states| {
            tensors(&output_types, &mut outputs, &needs.outputs, &mut |outputs| {
                let bindings = Bindings { inputs: &given, states, outputs };
                result = match part {
                    Some(phase) => context.run_phase(phase, pool, bindings),
                    None => context.run(pool, bindings),
                };
            });
        });
        result.map_err(|e| e.to_string())?;
    }
    Ok([outputs, states].concat())
}

/// Adds gradients of all outputs with respect to the inputs of type f32, as outputs of the second
/// phase. Returns whether there are such.
pub fn add_backward(graph: &mut Graph, registry: &Registry) -> bool {
    infer_graph(graph, registry, 1 << 20).unwrap();
    let of = |ids: Vec<Value>, graph: &Graph| -> Vec<Value> {
        ids.into_iter().filter(|v| graph.dense(*v).unwrap().dtype == DType::F32).collect()
    };
    let outputs = of(graph.outputs().iter().map(|(_, v)| *v).collect(), graph);
    let inputs = of(graph.inputs().iter().map(|node| Value { node: *node, port: 0 }).collect(), graph);
    let first = graph.outputs().len();
    let heads: Vec<(Value, Option<Value>)> = outputs
        .into_iter()
        .map(|v| {
            let ones = TensorData::from_fn(graph.dense(v).unwrap(), |_| Scalar::f32(1.0));
            (v, Some(graph.add_const("head", ones)))
        })
        .collect();
    let Ok(gradients) = differentiate(graph, registry, &heads, &inputs) else { return false };
    for (i, gradient) in gradients.into_iter().enumerate() {
        if let Some(v) = gradient {
            graph.add_output(format!("gradient{i}"), v);
        }
    }
    graph.set_boundary(Some(first));
    graph.remove_dead();
    graph.outputs().len() > first
}
