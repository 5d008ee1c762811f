//! Printing of tensor graphs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use tensorc_abi::{FlowKind, Number, Requirement};

use super::constant;
use super::literal;
use super::names::{Numbered, quote, sigiled, word};
use super::out::{Out, join, list};
use super::print_kernel;
use super::print_scalar::function;
use crate::extent::Extents;
use crate::flow::Flow;
use crate::graph::{Graph, NodeId, NodeKind, OpNode, Value};
use crate::params::ParamValue;
use crate::prim::{Contraction, ConvAlgorithm, Prim, Reduction};
use crate::scalar::{Scalar, ScalarFn};
use crate::types::{Dim, DimId, Shape, TensorType};

/// Texts of the nodes and dimension variables of one graph.
struct Namer<'g> {
    graph: &'g Graph,
    nodes: BTreeMap<NodeId, String>,
    values: Numbered,
    dims: BTreeMap<DimId, String>,
    dim_names: Numbered,
    anonymous: usize,
}

impl Namer<'_> {
    fn bind(&mut self, node: NodeId) -> String {
        let text = self.values.next('%', &self.graph.node(node).name);
        self.nodes.insert(node, text.clone());
        text
    }

    fn value(&self, v: Value) -> String {
        let name = self.nodes.get(&v.node).cloned().unwrap_or_else(|| format!("%undefined{}", v.node.0));
        match v.port {
            0 => name,
            port => format!("{name}:{port}"),
        }
    }

    fn dim(&mut self, dim: Dim) -> String {
        let id = match dim {
            Dim::Const(n) => return n.to_string(),
            Dim::Open(n) => return n.to_string(),
            Dim::Sym(id) => id,
        };
        if let Some(text) = self.dims.get(&id) {
            return text.clone();
        }
        let text = match self.graph.dims.user_name(id) {
            // A number alone is an unnamed variable.
            Some(name) if name.bytes().all(|b| b.is_ascii_digit()) => {
                self.dim_names.next('?', &name).replacen(&*name, &quote(&name), 1)
            }
            Some(name) => self.dim_names.next('?', &name),
            None => {
                self.anonymous += 1;
                format!("?{}", self.anonymous - 1)
            }
        };
        self.dims.insert(id, text.clone());
        text
    }

    fn ty(&mut self, ty: &TensorType) -> String {
        let ty = self.graph.dims.resolve_type(ty);
        let dtype = ty.dtype.map_or("?", |d| d.name());
        match &ty.shape {
            Shape::Unranked if ty.dtype.is_none() => "?".into(),
            Shape::Unranked => format!("{dtype}[*]"),
            Shape::Ranked(dims) => {
                let dims: Vec<String> = dims.iter().map(|d| self.dim(*d)).collect();
                format!("{dtype}{}", list(dims))
            }
        }
    }

    /// ` : T` of a node's results.
    fn results(&mut self, node: NodeId) -> String {
        let types: Vec<String> = self.graph.node(node).types.iter().map(|t| self.ty(t)).collect();
        match &types[..] {
            [one] => format!(" : {one}"),
            _ => format!(" : ({})", join(types)),
        }
    }
}

/// `graph @name(…) { … }`.
pub(super) fn graph(out: &mut Out<'_>, g: &Graph) {
    let head = format!("graph {}", sigiled('@', &g.name));
    body(out, &head, g);
    out.close("}");
}

/// The parameter list and the open block; the caller closes the brace.
fn body(out: &mut Out<'_>, head: &str, g: &Graph) {
    let mut namer = Namer {
        graph: g,
        nodes: BTreeMap::new(),
        values: Numbered::default(),
        dims: BTreeMap::new(),
        dim_names: Numbered::default(),
        anonymous: 0,
    };
    let params: Vec<String> = g
        .inputs()
        .iter()
        .map(|&i| {
            let name = namer.bind(i);
            let ty = g.node(i).types.first().cloned().unwrap_or_default();
            format!("{name}: {}", namer.ty(&ty))
        })
        .collect();
    out.open(&format!("{head}({}) {{", join(params)));
    for id in g.order() {
        if !g.inputs().contains(&id) {
            node(out, &mut namer, id);
        }
    }
    let results = |outputs: &[(Arc<str>, Value)]| {
        join(outputs.iter().map(|(name, v)| match *name == g.node(v.node).name && v.port == 0 {
            true => namer.value(*v),
            false => format!("{} = {}", word(name), namer.value(*v)),
        }))
    };
    let (first, second) = g.outputs().split_at(g.boundary().unwrap_or(usize::MAX).min(g.outputs().len()));
    out.line(format!("return {}", results(first)).trim_end());
    if g.boundary().is_some() {
        out.line(format!("then {}", results(second)).trim_end());
    }
    for (of, v) in g.updates() {
        out.line(&format!("update {} = {}", namer.value(Value { node: *of, port: 0 }), namer.value(*v)));
    }
    for check in g.checks() {
        out.line(&format!("check {} {}", namer.value(check.value), requirement(&check.requirement)));
    }
}

/// The node, the operand and what breaks the requirement.
pub(super) fn requirement(of: &Requirement) -> String {
    [&of.node, &of.operand, &of.broken].map(|text| quote(text)).join(" ")
}

fn node(out: &mut Out<'_>, namer: &mut Namer<'_>, id: NodeId) {
    let g = namer.graph;
    let n = g.node(id);
    let operands = g.operands(id);
    let args = join(operands.iter().map(|v| v.map_or("_".to_string(), |v| namer.value(v))));
    let name = namer.bind(id);
    let history = match out.options.history && !n.history.is_empty() {
        true => format!("  // {}", n.history.join(", ")),
        false => String::new(),
    };
    match &n.kind {
        // An input that the signature lost; the verifier reports it.
        NodeKind::Input => out.line(&format!("{name} = input{}{history}", namer.results(id))),
        NodeKind::Const(data) => {
            out.line(&format!("{name} = const {}{history}", constant::print(data, out.options)));
        }
        NodeKind::Op(op) => {
            let params = params(out, op);
            let word = if op.unchecked { " unchecked" } else { "" };
            out.line(&format!("{name} = {}{word}({args}){params}{}{history}", op.def.name, namer.results(id)));
        }
        NodeKind::Prim(p) => {
            let tail = format!("{}{history}", namer.results(id));
            prim(out, &name, &args, p, &tail);
        }
        NodeKind::Fused(f) => {
            let graph_name = match f.body.name.is_empty() {
                true => String::new(),
                false => format!("{} ", sigiled('@', &f.body.name)),
            };
            let recipe = f.recipe.map_or(String::new(), |recipe| format!("by {recipe} "));
            body(out, &format!("{name} = fused.{}({args}) {recipe}{graph_name}", f.class.name()), &f.body);
            out.close(&format!("}}{}{history}", namer.results(id)));
        }
    }
}

/// ` {name = value, …}`: the parameters that differ from their defaults.
fn params(out: &Out<'_>, op: &OpNode) -> String {
    let text = |v: &ParamValue| param(out, v);
    let given: Vec<String> = op
        .params
        .iter()
        .filter_map(|(name, value)| {
            let spec = op.def.params.iter().find(|s| s.name == name);
            let default = spec.and_then(|s| s.default.as_ref());
            let value = text(value);
            (default.map(text).as_ref() != Some(&value)).then(|| format!("{name} = {value}"))
        })
        .collect();
    match given.is_empty() {
        true => String::new(),
        false => format!(" {{{}}}", given.join(", ")),
    }
}

fn param(out: &Out<'_>, value: &ParamValue) -> String {
    let float = |x: &f64| literal::print(Scalar::from_f64(tensorc_abi::DType::F64, *x));
    match value {
        ParamValue::Int(i) => i.to_string(),
        ParamValue::Float(x) => float(x),
        ParamValue::Bool(b) => b.to_string(),
        ParamValue::Str(s) => quote(s),
        ParamValue::DType(d) => d.to_string(),
        ParamValue::Ints(v) => list(v),
        ParamValue::Floats(v) => list(v.iter().map(float)),
        ParamValue::Strs(v) => list(v.iter().map(|s| quote(s))),
        ParamValue::Tensor(t) => constant::print(t, out.options),
    }
}

/// A primitive; `tail` holds its result types.
fn prim(out: &mut Out<'_>, name: &str, args: &str, prim: &Prim, tail: &str) {
    let head = |kind: &str| format!("{name} = prim.{kind}({args})");
    match prim {
        Prim::Map(f) => {
            function(out, &format!("{} ", head("map")), f);
            out.close(&format!("}}{tail}"));
        }
        Prim::Reduce(r) => reduction(out, &head("reduce"), r, tail),
        Prim::View(v) => {
            let fill = v.fill.map_or(String::new(), |c| format!(" fill {} {}", c.dtype, literal::print(c)));
            out.line(&format!("{} {}{fill}{tail}", head("view"), list(&v.map)));
        }
        Prim::Contract(c) => out.line(&format!("{} {}{tail}", head("contract"), contraction(c))),
        Prim::Gather(g) => out.line(&format!("{} axis {}{tail}", head("gather"), g.axis)),
        Prim::Concat { axis } => out.line(&format!("{} axis {axis}{tail}", head("concat"))),
        Prim::Kernel(k) => {
            print_kernel::kernel(out, &format!("{} ", head("kernel")), k);
            out.close(&format!("}}{tail}"));
        }
        Prim::Flow(f) => flow(out, &head(flow_word(&f.kind)), f, tail),
        Prim::Extern(f) => out.line(&format!("{} {}{tail}", head("extern"), quote(f.operator()))),
    }
}

/// The bodies of a branch or loop, each with a parameter list and a block of its own.
fn flow(out: &mut Out<'_>, head: &str, f: &Flow, tail: &str) {
    let host = if f.by_host { " host" } else { "" };
    out.open(&format!("{head}{host}{} {{", repeat(&f.kind)));
    for g in &f.bodies {
        let name = if g.name.is_empty() { String::new() } else { sigiled('@', &g.name) };
        body(out, format!("body {name}").trim_end(), g);
        out.close("}");
    }
    out.close(&format!("}}{tail}"));
}

/// The word of a kind of flow.
pub(super) fn flow_word<N: Number>(kind: &FlowKind<N>) -> &'static str {
    match kind {
        FlowKind::If => "if",
        FlowKind::Loop(_) => "loop",
    }
}

/// ` trips 10 while carried 2 scanned [forward] stacked [backward]`: what is not there is left out.
pub(super) fn repeat<N: Number + Display>(kind: &FlowKind<N>) -> String {
    let FlowKind::Loop(l) = kind else { return String::new() };
    let ways = |word: &str, ways: &[bool]| match ways {
        [] => String::new(),
        ways => format!(" {word} {}", list(ways.iter().map(|back| if *back { "backward" } else { "forward" }))),
    };
    let trips = l.trips.map_or(String::new(), |n| format!(" trips {n}"));
    let condition = if l.conditional { " while" } else { "" };
    let carried = if l.carried > 0 { format!(" carried {}", l.carried) } else { String::new() };
    format!("{trips}{condition}{carried}{}{}", ways("scanned", &l.scanned), ways("stacked", &l.stacked))
}

fn contraction(c: &Contraction) -> String {
    let join = |axes: Extents| axes.all().map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let (outer, inner) = (c.extents.range(..c.out_rank), c.extents.range(c.out_rank..));
    let bar = format!("{} | {}", join(outer), join(inner));
    let by = if c.algorithm == ConvAlgorithm::Direct { String::new() } else { format!(" by {}", c.algorithm.name()) };
    format!("over [{}] lhs {} rhs {}{by}", bar.trim(), list(&c.lhs), list(&c.rhs))
}

/// `map` and `finish` are left out where they return their only operand.
fn reduction(out: &mut Out<'_>, head: &str, r: &Reduction, tail: &str) {
    let keep = if r.keep_dims { " keep_dims" } else { "" };
    let init = list(r.init.iter().map(|c| format!("{} {}", c.dtype, literal::print(*c))));
    out.open(&format!("{head} axes {}{keep} init {init} {{", list(&r.axes)));
    let implied = |f: &ScalarFn| matches!(&r.init[..], [c] if *f == ScalarFn::identity(c.dtype));
    for (name, f, optional) in [("map", &r.map, true), ("combine", &r.combine, false), ("finish", &r.finish, true)] {
        if !(optional && implied(f)) {
            function(out, &format!("{name} "), f);
            out.close("}");
        }
    }
    out.close(&format!("}}{tail}"));
}
