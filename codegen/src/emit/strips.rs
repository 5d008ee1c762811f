//! Library functions apart from the expressions around them: a loop stores the arguments of a
//! stretch of elements, the library replaces them by its results at the full width of the
//! machine, and later loops read these.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, LoopKind, Space};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Ex, MathFn, MathLibrary, ScalarBuilder, ScalarFn, ScalarId, ScalarNode, ScalarOp};
use tensorc_ir::{DType, DenseType};

use super::cluster::{Cluster, internal};
use super::inline::{Bound, Inliner};

/// Shorter stretches of elements keep the function in the expression.
pub const SHORTEST: u64 = 32;
/// Most memory for results of one iteration, in bytes.
pub const MEMORY: u64 = 128 << 10;
/// Elements of a strip in a loop that may be longer: its results stay in the nearest cache.
const STRIP: u64 = 1024;
/// Most strips of that length.
pub const STRIPS: u64 = MEMORY / (4 * STRIP);

/// The library function a map node is a call of, if it can be applied to strips.
pub fn call(f: &ScalarFn, math: &dyn MathLibrary) -> Option<MathFn> {
    match (&f.nodes[..], &f.dtypes[..]) {
        ([ScalarNode::Input(0), ScalarNode::Op(ScalarOp::Math(m), _)], [DType::F32, DType::F32])
            if f.outputs == [ScalarId(1)] && math.body(*m).is_strip() =>
        {
            Some(*m)
        }
        _ => None,
    }
}

/// The body with every library function that can be applied to strips in a node of its own.
pub fn split_calls(body: &Graph, math: &dyn MathLibrary) -> Result<Graph> {
    let mut graph = body.clone();
    for n in body.order() {
        if let NodeKind::Prim(Prim::Map(f)) = &body.node(n).kind
            && call(f, math).is_none()
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

/// Nodes whose elements are read elsewhere than where they are computed.
pub fn moved(cluster: &Cluster<'_>) -> BTreeSet<NodeId> {
    let mut moved = BTreeSet::new();
    for &n in cluster.order.iter().rev() {
        if moved.contains(&n) || matches!(cluster.prim(n), Some(Prim::View(_) | Prim::Gather(_))) {
            moved.extend(cluster.body.args(n).iter().map(|v| v.node));
        }
    }
    moved
}

/// The calls of a cluster worth applying to strips: those of element values that no view moves,
/// `available` of them at most.
pub fn choose(cluster: &Cluster<'_>, dims: &[u64], available: u64) -> Result<BTreeMap<NodeId, MathFn>> {
    let moved = moved(cluster);
    let mut chosen = BTreeMap::new();
    for (&n, &f) in &cluster.calls {
        let full = cluster.ty(Value { node: n, port: 0 })?.dims == dims;
        if full && !moved.contains(&n) && (chosen.len() as u64) < available {
            chosen.insert(n, f);
        }
    }
    Ok(chosen)
}

/// The results of calls that `roots` need and that are not bound, in stages: each needs results of
/// earlier ones only.
pub fn stages(cluster: &Cluster<'_>, roots: &[Value], bound: &dyn Fn(Value) -> bool) -> Vec<Vec<Value>> {
    let mut walk = Walk { cluster, bound, depths: BTreeMap::new(), stages: vec![] };
    for v in roots {
        walk.depth(*v);
    }
    walk.stages
}

/// What is computed by a loop over columns.
pub struct Strips<'a> {
    pub roots: &'a [Value],
    /// Coordinates of an element, in axes.
    pub coords: &'a [Index],
    /// Most columns of the loop; too few for a strip keep functions in the expression.
    pub block: u64,
    pub lanes: u64,
}

/// A loop over the columns `lo..hi`, in vectors up to `whole`; library functions set apart are
/// applied to strips of columns first. `place` prepares a column, `last` uses the roots there.
pub fn columns(
    e: &mut Inliner<'_>,
    s: &Strips<'_>,
    (lo, hi, whole): (Index, Index, Index),
    place: &dyn Fn(&mut Inliner<'_>, Index),
    last: &dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
) -> Result<()> {
    let stages = match s.block >= SHORTEST {
        true => stages(e.cluster, s.roots, &|v| e.is_bound(v)),
        false => vec![],
    };
    let length = s.block.min(STRIP);
    let mut strips = Columns { s, place, last, buffers: BTreeMap::new() };
    for v in stages.iter().flatten() {
        strips.buffers.insert(*v, e.alloc("strip", DType::F32, length, Space::Stack));
    }
    if stages.is_empty() || length == s.block {
        return strips.strip(e, &stages, &(lo, hi, whole));
    }
    e.looped("s", (lo, hi.clone(), length as i64), LoopKind::Serial, |e, from| {
        let wide = |_: u32| (0, i64::MAX / 8);
        let end = from.offset(length as i64);
        let to = e.b.let_index("to", end.minimum(&hi, &wide));
        let whole = e.b.let_index("whole", end.minimum(&whole, &wide));
        strips.strip(e, &stages, &(from, to, whole))
    })
}

struct Columns<'a> {
    s: &'a Strips<'a>,
    place: &'a dyn Fn(&mut Inliner<'_>, Index),
    last: &'a dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
    buffers: BTreeMap<Value, Buf>,
}

impl Columns<'_> {
    fn strip(&self, e: &mut Inliner<'_>, stages: &[Vec<Value>], range: &(Index, Index, Index)) -> Result<()> {
        let cluster = e.cluster;
        let (from, to, _) = range;
        for (i, stage) in stages.iter().enumerate() {
            self.elements(e, &stages[..i], range, &|e, i| {
                let at = i.sub(from);
                stage.iter().try_for_each(|v| {
                    let value = e.value(cluster.body.args(v.node)[0], self.s.coords, None)?;
                    e.b.store(self.buffers[v], at.clone(), value);
                    Ok(())
                })
            })?;
            for v in stage {
                e.b.apply_strip(cluster.apart[&v.node], self.buffers[v], Index::default(), to.sub(from));
            }
        }
        self.elements(e, stages, range, self.last)
    }

    /// A loop over the strip, with the results of the given stages at hand.
    fn elements(
        &self,
        e: &mut Inliner<'_>,
        ready: &[Vec<Value>],
        (from, to, whole): &(Index, Index, Index),
        body: &dyn Fn(&mut Inliner<'_>, &Index) -> Result<()>,
    ) -> Result<()> {
        e.columns((from.clone(), to.clone()), whole.clone(), self.s.lanes, &mut |e, i| {
            (self.place)(e, i.clone());
            let at = i.sub(from);
            for v in ready.iter().flatten() {
                let result = e.b.load(self.buffers[v], at.clone());
                e.bind(*v, Bound::Operand(result));
            }
            body(e, &i)
        })
    }
}

struct Walk<'a> {
    cluster: &'a Cluster<'a>,
    bound: &'a dyn Fn(Value) -> bool,
    depths: BTreeMap<Value, usize>,
    stages: Vec<Vec<Value>>,
}

impl Walk<'_> {
    /// How many calls in a row lead to a value.
    fn depth(&mut self, v: Value) -> usize {
        if (self.bound)(v) || !matches!(self.cluster.prim(v.node), Some(Prim::Map(_))) {
            return 0;
        }
        if let Some(depth) = self.depths.get(&v) {
            return *depth;
        }
        let below = self.cluster.body.args(v.node).iter().map(|a| self.depth(*a)).max().unwrap_or(0);
        let mut depth = below;
        if self.cluster.apart.contains_key(&v.node) {
            self.stages.resize_with(self.stages.len().max(below + 1), Vec::new);
            self.stages[below].push(v);
            depth += 1;
        }
        self.depths.insert(v, depth);
        depth
    }
}
