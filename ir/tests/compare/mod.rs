//! Structural equality: the same program, whatever its node, variable and dimension numbers.

use std::collections::BTreeMap;

use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::kir::Kernel;
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::prim::Prim;
use tensorc_ir::text::canonical_kernel;
use tensorc_ir::{Dim, DimId, Shape, TensorType, TextModule};

/// Whether two modules hold the same programs; otherwise where they first differ.
pub fn same_module(a: &TextModule, b: &TextModule) -> Result<(), String> {
    if a.name != b.name || a.graphs.len() != b.graphs.len() || a.kernels.len() != b.kernels.len() {
        return Err("the modules differ in name or number of graphs or kernels".into());
    }
    a.graphs.iter().zip(&b.graphs).try_for_each(|(a, b)| same_graph(a, b))?;
    if let Some((k, _)) = a.kernels.iter().zip(&b.kernels).find(|(a, b)| !same_kernel(a, b)) {
        return Err(format!("kernel `{}` differs", k.name));
    }
    match a.plans == b.plans {
        true => Ok(()),
        false => Err("the plans differ".into()),
    }
}

/// Whether two kernels are equal up to the numbers and names of variables and local buffers.
pub fn same_kernel(a: &Kernel, b: &Kernel) -> bool {
    let unnamed = |k: &Kernel| {
        let mut k = canonical_kernel(k);
        k.vars.iter_mut().for_each(|v| v.name.clear());
        k.buffers.iter_mut().for_each(|b| b.name.clear());
        k
    };
    unnamed(a) == unnamed(b)
}

/// Whether two graphs have the same nodes (name, kind, operands, resolved types), outputs, updates and boundary;
/// otherwise where they first differ. Equations between dimensions and node histories are not
/// compared: the text form has neither.
pub fn same_graph(a: &Graph, b: &Graph) -> Result<(), String> {
    let fail = |what: String| Err(format!("graph `{}`: {what}", a.name));
    let (order_a, order_b) = (a.order(), b.order());
    if a.name != b.name || order_a.len() != order_b.len() || a.inputs().len() != b.inputs().len() {
        return fail(format!("name, inputs or number of nodes differ ({} and {})", order_a.len(), order_b.len()));
    }
    let mut m = Matching { a, b, nodes: BTreeMap::new(), dims: BTreeMap::new(), back: BTreeMap::new() };
    for (x, y) in order_a.iter().zip(&order_b) {
        m.nodes.insert(*x, *y);
    }
    for (x, y) in order_a.iter().zip(&order_b) {
        if let Err(what) = m.node(*x, *y) {
            return fail(format!("node `{}`: {what}", a.node(*x).name));
        }
    }
    let outputs = |m: &Matching<'_>| a.outputs().iter().map(|(n, v)| (n.clone(), m.value(*v))).collect::<Vec<_>>();
    if outputs(&m) != b.outputs().iter().map(|(n, v)| (n.clone(), Some(*v))).collect::<Vec<_>>() {
        return fail("the outputs differ".into());
    }
    let updates: Vec<_> = a.updates().iter().map(|(of, v)| (m.nodes.get(of).copied(), m.value(*v))).collect();
    if updates != b.updates().iter().map(|(of, v)| (Some(*of), Some(*v))).collect::<Vec<_>>() {
        return fail("the updates differ".into());
    }
    match a.boundary() == b.boundary() {
        true => Ok(()),
        false => fail("the phases differ".into()),
    }
}

struct Matching<'a> {
    a: &'a Graph,
    b: &'a Graph,
    nodes: BTreeMap<NodeId, NodeId>,
    dims: BTreeMap<DimId, DimId>,
    back: BTreeMap<DimId, DimId>,
}

impl Matching<'_> {
    fn value(&self, v: Value) -> Option<Value> {
        self.nodes.get(&v.node).map(|&node| Value { node, port: v.port })
    }

    fn node(&mut self, x: NodeId, y: NodeId) -> Result<(), String> {
        let (n, o) = (self.a.node(x), self.b.node(y));
        if n.name != o.name {
            return Err(format!("the other is named `{}`", o.name));
        }
        let operands: Vec<_> = self.a.operands(x).into_iter().map(|v| v.map(|v| self.value(v))).collect();
        if operands != self.b.operands(y).into_iter().map(|v| v.map(Some)).collect::<Vec<_>>() {
            return Err("the operands differ".into());
        }
        if n.types.len() != o.types.len() || !n.types.iter().zip(&o.types).all(|(s, t)| self.same_type(s, t)) {
            return Err("the types differ".into());
        }
        let same = match (&n.kind, &o.kind) {
            (NodeKind::Input, NodeKind::Input) => {
                let place = |g: &Graph, id| g.inputs().iter().position(|i| *i == id);
                place(self.a, x) == place(self.b, y)
            }
            (NodeKind::Const(s), NodeKind::Const(t)) => s == t,
            (NodeKind::Op(s), NodeKind::Op(t)) => s.def.name == t.def.name && same_params(&s.params, &t.params),
            (NodeKind::Prim(Prim::Kernel(s)), NodeKind::Prim(Prim::Kernel(t))) => same_kernel(s, t),
            (NodeKind::Prim(s), NodeKind::Prim(t)) => s == t,
            (NodeKind::Fused(s), NodeKind::Fused(t)) if (s.class, s.recipe) == (t.class, t.recipe) => {
                return same_graph(&s.body, &t.body);
            }
            _ => false,
        };
        match same {
            true => Ok(()),
            false => Err("what they compute differs".into()),
        }
    }

    fn same_type(&mut self, s: &TensorType, t: &TensorType) -> bool {
        let (s, t) = (self.a.dims.resolve_type(s), self.b.dims.resolve_type(t));
        s.dtype == t.dtype
            && match (&s.shape, &t.shape) {
                (Shape::Unranked, Shape::Unranked) => true,
                (Shape::Ranked(s), Shape::Ranked(t)) => {
                    s.len() == t.len() && s.iter().zip(t).all(|(s, t)| self.same_dim(*s, *t))
                }
                _ => false,
            }
    }

    fn same_dim(&mut self, s: Dim, t: Dim) -> bool {
        match (s, t) {
            (Dim::Sym(s), Dim::Sym(t)) => {
                let there = *self.dims.entry(s).or_insert(t) == t;
                let back = *self.back.entry(t).or_insert(s) == s;
                there && back && self.a.dims.user_name(s) == self.b.dims.user_name(t)
            }
            _ => s == t,
        }
    }
}

fn same_params(a: &Params, b: &Params) -> bool {
    let bits = |v: &ParamValue| match v {
        ParamValue::Float(x) => vec![x.to_bits()],
        ParamValue::Floats(x) => x.iter().map(|x| x.to_bits()).collect(),
        _ => vec![],
    };
    let same = |s: &ParamValue, t: &ParamValue| match (s, t) {
        (ParamValue::Float(_), ParamValue::Float(_)) | (ParamValue::Floats(_), ParamValue::Floats(_)) => {
            bits(s) == bits(t)
        }
        _ => s == t,
    };
    a.iter().count() == b.iter().count() && a.iter().zip(b.iter()).all(|((n, s), (o, t))| n == o && same(s, t))
}
