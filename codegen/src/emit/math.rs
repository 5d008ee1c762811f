//! Library functions for vectors: which there are, and a body in which each call of one is a node of its own.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Ex, MathFn, MathLibrary, ScalarBuilder, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::{DType, DenseType};
use tensorc_schedule::Target;
use tensorc_schedule::target::{Cpu, Processor, Vectors};

/// The library functions, and what kernels are made for.
#[derive(Clone, Copy)]
pub struct Math<'a> {
    /// The bodies of the library functions.
    pub library: &'a dyn MathLibrary,
    /// What kernels are made for.
    pub target: &'a Target,
}

impl Math<'_> {
    /// Whether library functions are applied to arrays in memory.
    pub(crate) fn has_vector_calls(&self) -> bool {
        matches!(self.target.processor, Processor::Cpu(Cpu { vectors: Vectors::Narrow, .. }))
    }
}

pub fn internal(why: impl Into<String>) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Internal, why)
}

/// The library function a map node is a call of, if the library has it for arrays.
pub fn vector_call(f: &ScalarFn, math: &dyn MathLibrary) -> Option<MathFn> {
    match (&f.nodes[..], &f.dtypes[..]) {
        ([ScalarNode::Input(0), ScalarNode::Op(ScalarOp::Math(m), _)], [DType::F32, DType::F32])
            if f.outputs == [ScalarId(1)] && math.body(*m).is_strip() =>
        {
            Some(*m)
        }
        _ => None,
    }
}

/// The body with every library function that takes arrays in a node of its own.
pub fn split_vector_calls(body: &Graph, math: &dyn MathLibrary) -> Result<Graph> {
    let mut graph = body.clone();
    for n in body.order() {
        if let NodeKind::Prim(Prim::Map(f)) = &body.node(n).kind
            && vector_call(f, math).is_none()
            && f.nodes.iter().any(|node| matches!(node, ScalarNode::Op(ScalarOp::Math(_), _)))
        {
            split_node(&mut graph, n, &f.clone(), math)?;
        }
    }
    graph.remove_dead();
    Ok(graph)
}

fn split_node(graph: &mut Graph, node: NodeId, f: &ScalarFn, math: &dyn MathLibrary) -> Result<()> {
    let name = graph.node(node).name.clone();
    let ty = DenseType { dtype: DType::F32, ..graph.dense(Value { node, port: 0 })? };
    let operands = graph.args(node).to_vec();
    let mut cuts: Vec<(ScalarId, Value)> = vec![];
    for (i, scalar) in f.nodes.iter().enumerate() {
        let ScalarNode::Op(ScalarOp::Math(m), args) = scalar else { continue };
        if f.dtypes[i] != DType::F32 || !math.body(*m).is_strip() {
            continue;
        }
        let (argument, used) = part(f, &operands, &cuts, &args[..1])?;
        let mut varies = false;
        for v in &used {
            varies |= graph.dense(*v)?.dims == ty.dims;
        }
        if !varies {
            continue;
        }
        let argument = match argument.is_identity() {
            true => used[0],
            false => {
                let map = Prim::Map(argument.into());
                Value { node: graph.add_prim(name.clone(), map, &used, std::slice::from_ref(&ty)), port: 0 }
            }
        };
        let lone = ScalarFn::build(&[DType::F32], |_, args| vec![args[0].math(*m)]).map_err(internal)?;
        let result = graph.add_prim(name.clone(), Prim::Map(lone.into()), &[argument], std::slice::from_ref(&ty));
        cuts.push((ScalarId(i as u32), Value { node: result, port: 0 }));
    }
    if cuts.is_empty() {
        return Ok(());
    }
    let (rest, used) = part(f, &operands, &cuts, &f.outputs)?;
    let types =
        (0..f.outputs.len()).map(|p| graph.dense(Value { node, port: p as u16 })).collect::<Result<Vec<_>>>()?;
    let rest_node = graph.add_prim(name, Prim::Map(rest.into()), &used, &types);
    for (port, id) in f.outputs.iter().enumerate() {
        let port = port as u16;
        let cut = cuts.iter().find(|(c, _)| c == id).map(|(_, v)| *v);
        graph.replace_uses(Value { node, port }, cut.unwrap_or(Value { node: rest_node, port }));
    }
    Ok(())
}

/// The part of `f` that computes `outputs` from its operands and the results of the cuts, and
/// which of these values it takes.
fn part(
    f: &ScalarFn,
    operands: &[Value],
    cuts: &[(ScalarId, Value)],
    outputs: &[ScalarId],
) -> Result<(ScalarFn, Vec<Value>)> {
    let cut = |i: usize| cuts.iter().find(|(c, _)| c.0 as usize == i).map(|(_, v)| *v);
    let mut live = vec![false; f.nodes.len()];
    outputs.iter().for_each(|o| live[o.0 as usize] = true);
    for i in (0..f.nodes.len()).rev() {
        if let (true, None, ScalarNode::Op(_, args)) = (live[i], cut(i), &f.nodes[i]) {
            args.iter().for_each(|a| live[a.0 as usize] = true);
        }
    }
    let b = ScalarBuilder::new();
    let mut used = vec![];
    let mut map: Vec<Option<Ex>> = vec![None; f.nodes.len()];
    for i in (0..f.nodes.len()).filter(|i| live[*i]) {
        map[i] = Some(match (&f.nodes[i], cut(i)) {
            (_, Some(value)) => {
                used.push(value);
                b.input(DType::F32)
            }
            (ScalarNode::Input(k), _) => {
                used.push(operands[*k as usize]);
                b.input(f.dtypes[i])
            }
            (ScalarNode::Const(c), _) => b.constant(*c),
            (ScalarNode::Coord(a), _) => b.coord(*a as usize),
            (ScalarNode::Op(op, args), _) => {
                let args: Vec<&Ex> = args.iter().filter_map(|a| map[a.0 as usize].as_ref()).collect();
                b.op(*op, &args)
            }
        });
    }
    let outputs: Vec<&Ex> = outputs.iter().filter_map(|o| map[o.0 as usize].as_ref()).collect();
    Ok((b.finish(&outputs).map_err(internal)?, used))
}
