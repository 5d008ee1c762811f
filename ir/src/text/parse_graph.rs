//! Parsing of tensor graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::{Loop, Number, Requirement};

use super::base64;
use super::lex::{Pos, SigilName, Tok};
use super::parse::Parser;
use crate::diag::{DiagnosticCode, Result};
use crate::flow::{Flow, FlowKind};
use crate::graph::{Check, FusedCluster, FusionClass, Graph, NodeId, Value};
use crate::op::OpRef;
use crate::params::{ParamKind, ParamValue, Params};
use crate::prim::{Contraction, ConvAlgorithm, Gather, Prim, Reduction, View};
use crate::recipe::Recipe;
use crate::rng::Rng;
use crate::scalar::{Scalar, ScalarFn};
use crate::tensor::TensorData;
use crate::types::{DenseType, Dim, Shape, TensorType};

type ParsedTypes = SmallVec<[TensorType; 1]>;

/// The graph so far and its names.
struct GraphScope {
    graph: Graph,
    values: BTreeMap<(String, u32), NodeId>,
    /// The flag marks unnamed variables, which are written as numbers.
    dims: BTreeMap<(bool, String, u32), Dim>,
}

impl GraphScope {
    fn bind(&mut self, name: &SigilName, node: NodeId, pos: Pos) -> Result<()> {
        match self.values.insert(name.key(), node) {
            Some(_) => Err(pos.error(format!("`%{}` is defined twice", name.text))),
            None => Ok(()),
        }
    }

    fn dim(&mut self, name: SigilName) -> Dim {
        let anonymous = !name.quoted && name.text.bytes().all(|b| b.is_ascii_digit());
        let dims = &mut self.graph.dims;
        let fresh = || dims.fresh((!anonymous).then_some(name.text.as_str()));
        let key = (anonymous, name.text.clone(), name.number);
        *self.dims.entry(key).or_insert_with(fresh)
    }
}

impl Parser<'_> {
    /// A graph from its name on.
    pub(super) fn graph_item(&mut self) -> Result<Graph> {
        let name = self.sigil('@', "a graph name")?.text;
        self.graph_body(name)
    }

    /// `(%x: T, …) { nodes return … }`.
    fn graph_body(&mut self, name: String) -> Result<Graph> {
        self.nested(|p| {
            let mut s = GraphScope { graph: Graph::new(name), values: BTreeMap::new(), dims: BTreeMap::new() };
            p.list(('(', ')'), |p| {
                let pos = p.pos();
                let name = p.sigil('%', "an input name")?;
                p.expect(':')?;
                let ty = p.tensor_type(&mut s)?;
                let value = s.graph.add_input(name.text.as_str(), ty);
                s.bind(&name, value.node, pos)
            })?;
            p.expect('{')?;
            while !p.eat_word("return") {
                p.node(&mut s)?;
            }
            p.outputs(&mut s)?;
            if p.eat_word("then") {
                s.graph.set_boundary(Some(s.graph.outputs().len()));
                p.outputs(&mut s)?;
            }
            while p.eat_word("update") {
                let pos = p.pos();
                let of = p.value(&s)?.node;
                if !s.graph.inputs().contains(&of) {
                    return Err(pos.error("only inputs are updated"));
                }
                p.expect('=')?;
                let value = p.value(&s)?;
                s.graph.add_update(of, value);
            }
            while p.eat_word("check") {
                let value = p.value(&s)?;
                s.graph.add_check(Check { value, requirement: p.requirement()? });
            }
            p.expect('}')?;
            Ok(s.graph)
        })
    }

    /// The node, the operand and what breaks a requirement, in quotes.
    pub(super) fn requirement(&mut self) -> Result<Requirement> {
        Ok(Requirement { node: self.string()?, operand: self.string()?, broken: self.string()? })
    }

    /// `%a, name = %b, …`, up to the end of the graph, `then`, `update` or `check`.
    fn outputs(&mut self, s: &mut GraphScope) -> Result<()> {
        let ends = |p: &Self| {
            let keyword = p.at_word("then") || p.at_word("update") || p.at_word("check");
            *p.peek() == Tok::Punct('}') || keyword && *p.peek_second() != Tok::Punct('=')
        };
        while !ends(self) {
            let label = match self.peek() {
                Tok::Sigil(..) => None,
                _ => {
                    let label = self.label()?;
                    self.expect('=')?;
                    Some(label)
                }
            };
            let value = self.value(s)?;
            let name = label.map_or_else(|| s.graph.node(value.node).name.clone(), Into::into);
            s.graph.add_output(name, value);
            if !self.eat(',') {
                return match ends(self) {
                    true => Ok(()),
                    false => self.expected("`,` or `}`"),
                };
            }
        }
        Ok(())
    }

    fn value(&mut self, s: &GraphScope) -> Result<Value> {
        let pos = self.pos();
        let Tok::Sigil('%', name, port) = self.peek() else { return self.expected("a value") };
        let (key, text, port) = (name.key(), name.text.clone(), port.unwrap_or(0));
        self.next();
        let node = *s.values.get(&key).ok_or_else(|| pos.error(format!("`%{text}` is not defined")))?;
        match usize::from(port) < s.graph.node(node).types.len() {
            true => Ok(Value { node, port }),
            false => Err(pos.error(format!("`%{text}` has no result {port}"))),
        }
    }

    /// `?`, `f32[*]`, `?[2, ?b]`, `f32[2, 3]`.
    fn tensor_type(&mut self, s: &mut GraphScope) -> Result<TensorType> {
        let dtype = match self.eat('?') {
            true => None,
            false => Some(self.dtype()?),
        };
        if dtype.is_none() && *self.peek() != Tok::Punct('[') {
            return Ok(TensorType::unknown());
        }
        if (self.peek(), self.peek_second()) == (&Tok::Punct('['), &Tok::Punct('*')) {
            self.next();
            self.next();
            self.expect(']')?;
            return Ok(TensorType { dtype, shape: Shape::Unranked });
        }
        let dims = self.list(('[', ']'), |p| match p.peek() {
            Tok::Sigil('?', ..) => p.sigil('?', "a dimension").map(|name| s.dim(name)),
            _ => p.number("an extent").map(Dim::Const),
        })?;
        Ok(TensorType { dtype, shape: Shape::Ranked(dims.into_iter().collect()) })
    }

    /// ` : T` or ` : (T, …)`, if it is there.
    fn results(&mut self, s: &mut GraphScope) -> Result<Option<ParsedTypes>> {
        if !self.eat(':') {
            return Ok(None);
        }
        match self.peek() {
            Tok::Punct('(') => Ok(Some(self.list(('(', ')'), |p| p.tensor_type(s))?.into())),
            _ => Ok(Some([self.tensor_type(s)?].into_iter().collect())),
        }
    }

    fn node(&mut self, s: &mut GraphScope) -> Result<()> {
        let pos = self.pos();
        let name = self.sigil('%', "a node or `return`")?;
        self.expect('=')?;
        let at = self.pos();
        let word = self.word("an operator")?;
        let label = name.text.as_str();
        let node = if word == "const" {
            let data = self.constant()?;
            s.graph.add_const(label, data).node
        } else {
            let unchecked = self.eat_word("unchecked");
            let args = self.list(('(', ')'), |p| match p.eat_word("_") {
                true => Ok(None),
                false => p.value(s).map(Some),
            })?;
            let node = match word.split_once('.') {
                Some(("prim", kind)) => {
                    let prim = self.prim(kind, at)?;
                    let args = present(&args, at)?;
                    let types = self.results(s)?.ok_or_else(|| at.error("the result types are missing"))?;
                    let id = s.graph.add_prim(label, prim, &args, &[]);
                    s.graph.node_mut(id).types = types;
                    id
                }
                Some(("fused", kind)) => {
                    let fused = self.fused(kind, at)?;
                    let args = present(&args, at)?;
                    let types = self.results(s)?.ok_or_else(|| at.error("the result types are missing"))?;
                    let id = s.graph.add_fused(label, fused, &args, &[]);
                    s.graph.node_mut(id).types = types;
                    id
                }
                _ => self.op(s, label, &word, &args, at)?,
            };
            if unchecked {
                s.graph.set_unchecked(node);
            }
            node
        };
        s.bind(&name, node, pos)
    }

    fn op(&mut self, s: &mut GraphScope, label: &str, word: &str, args: &[Option<Value>], at: Pos) -> Result<NodeId> {
        let def = self.registry.get(word).cloned();
        let def = def.ok_or_else(|| {
            at.diagnostic(DiagnosticCode::UnknownOperator, format!("operator `{word}` is not registered"))
        })?;
        let params = self.params(&def)?;
        let types = self.results(s)?;
        let types = types.unwrap_or_else(|| (0..def.outputs.0.max(1)).map(|_| TensorType::unknown()).collect());
        let id = s.graph.add_op(label, &def, args, params, types.len()).map_err(|mut d| {
            d.message = format!("{}:{}: {}", at.line, at.column, d.message);
            d
        })?;
        s.graph.node_mut(id).types = types;
        Ok(id)
    }

    /// `{name = value, …}`, if it is there.
    fn params(&mut self, def: &OpRef) -> Result<Params> {
        let mut params = Params::new();
        if *self.peek() != Tok::Punct('{') {
            return Ok(params);
        }
        self.list(('{', '}'), |p| {
            let pos = p.pos();
            let name = p.word("a parameter name")?;
            p.expect('=')?;
            let spec = def.params.iter().find(|s| s.name == name);
            let spec = spec.ok_or_else(|| {
                pos.diagnostic(DiagnosticCode::Operands, format!("{} has no parameter `{name}`", def.name))
            })?;
            if params.get(&name).is_some() {
                return Err(pos.error(format!("parameter `{name}` is given twice")));
            }
            params.set(spec.name, p.param(spec.kind)?);
            Ok(())
        })?;
        Ok(params)
    }

    fn param(&mut self, kind: ParamKind) -> Result<ParamValue> {
        let square = ('[', ']');
        Ok(match kind {
            ParamKind::Int => ParamValue::Int(self.number("an integer")?),
            ParamKind::Float => ParamValue::Float(self.float()?),
            ParamKind::Bool => match () {
                _ if self.eat_word("true") => ParamValue::Bool(true),
                _ if self.eat_word("false") => ParamValue::Bool(false),
                _ => return self.expected("`true` or `false`"),
            },
            ParamKind::Str | ParamKind::Choice(_) => ParamValue::Str(self.string()?),
            ParamKind::DType => ParamValue::DType(self.dtype()?),
            ParamKind::Ints => ParamValue::Ints(self.list(square, |p| p.number("an integer"))?),
            ParamKind::Floats => ParamValue::Floats(self.list(square, Self::float)?),
            ParamKind::Strs => ParamValue::Strs(self.list(square, Self::string)?),
            ParamKind::Tensor => ParamValue::Tensor(self.constant()?),
        })
    }

    fn float(&mut self) -> Result<f64> {
        self.literal(tensorc_abi::DType::F64).map(|s| f64::from_bits(s.bits))
    }

    /// A dense type and a value.
    fn constant(&mut self) -> Result<TensorData> {
        let ty = self.dense_type()?;
        let pos = self.pos();
        if *self.peek() == Tok::Punct('[') {
            let elements = self.list(('[', ']'), |p| p.literal(ty.dtype))?;
            let count = elements.len() as u64;
            return match count == ty.len() {
                true => Ok(TensorData::from_fn(ty, |i| elements[i as usize])),
                false => Err(pos.error(format!("{count} elements given for {ty}"))),
            };
        }
        let form = self.word("the value of a constant")?;
        match form.as_str() {
            "dense" => {
                let bytes = base64::decode(&self.string()?).ok_or_else(|| pos.error("the base64 is malformed"))?;
                let count = bytes.len();
                let why = format!("{count} bytes given for {ty}");
                TensorData::new(ty, bytes.into()).ok_or_else(|| pos.error(why))
            }
            "elided" => Err(pos.error("the value of this constant is elided; print it in full")),
            "splat" => {
                self.expect('(')?;
                let value: Scalar = self.literal(ty.dtype)?;
                self.expect(')')?;
                self.generated(ty, pos, |_| value)
            }
            "iota" => {
                let dtype = ty.dtype;
                self.generated(ty, pos, |i| Scalar::from_i64(dtype, i as i64))
            }
            "random" => {
                self.expect('(')?;
                let seed = self.number("a seed")?;
                self.expect(')')?;
                let (dtype, mut rng) = (ty.dtype, Rng::new(seed));
                self.generated(ty, pos, |_| rng.element(dtype))
            }
            _ => Err(pos.error(format!("`{form}` is not a form of constant"))),
        }
    }

    /// A constant whose size the text does not explain.
    fn generated(&mut self, ty: DenseType, pos: Pos, element: impl FnMut(u64) -> Scalar) -> Result<TensorData> {
        let left = self.generated_bytes.checked_sub(ty.bytes());
        let data = left.and_then(|_| TensorData::try_from_fn(ty.clone(), element));
        self.generated_bytes = left.unwrap_or(0);
        data.ok_or_else(|| pos.error(format!("a generated constant of type {ty} is too large")))
    }

    fn prim(&mut self, kind: &str, at: Pos) -> Result<Prim> {
        Ok(match kind {
            "map" => Prim::Map(self.scalar_fn()?.into()),
            "reduce" => Prim::Reduce(self.reduction()?.into()),
            "view" => {
                let map = self.axis_map()?;
                let fill = match self.eat_word("fill") {
                    true => Some(self.typed_literal()?),
                    false => None,
                };
                Prim::View(View { map, fill }.into())
            }
            "contract" => Prim::Contract(self.contraction()?.into()),
            "gather" => {
                self.expect_word("axis")?;
                Prim::Gather(Gather { axis: self.number("an axis")? })
            }
            "concat" => {
                self.expect_word("axis")?;
                Prim::Concat { axis: self.number("an axis")? }
            }
            "kernel" => Prim::Kernel(self.kernel()?.into()),
            "if" | "loop" => Prim::Flow(self.flow(kind)?.into()),
            "extern" => return Err(at.error("a function of the program that printed it; write the operator instead")),
            _ => return Err(at.error(format!("`{kind}` is not a primitive"))),
        })
    }

    /// `host while carried 1 { body @name(…) { … } … }`.
    fn flow(&mut self, kind: &str) -> Result<Flow> {
        let by_host = self.eat_word("host");
        let kind = if kind == "if" { FlowKind::If } else { FlowKind::Loop(self.repeat()?) };
        self.expect('{')?;
        let mut bodies = vec![];
        while self.eat_word("body") {
            let name = self.body_name()?;
            bodies.push(self.graph_body(name)?);
        }
        self.expect('}')?;
        Ok(Flow { kind, bodies, by_host })
    }

    /// `@name`, if it is there.
    pub(super) fn body_name(&mut self) -> Result<String> {
        match self.peek() {
            Tok::Sigil('@', ..) => Ok(self.sigil('@', "a name")?.text),
            _ => Ok(String::new()),
        }
    }

    /// How a loop is repeated: `trips 10 while carried 2 scanned [forward] stacked [backward]`.
    pub(super) fn repeat<N: Number>(&mut self) -> Result<Loop<N>> {
        let trips = match self.eat_word("trips") {
            true => Some(N::from(self.number::<u64>("a number of iterations")?)),
            false => None,
        };
        let conditional = self.eat_word("while");
        let carried: u32 = if self.eat_word("carried") { self.number("a number of values")? } else { 0 };
        let mut ways = |word: &str| match self.eat_word(word) {
            true => self.list(('[', ']'), |p| match p.eat_word("backward") {
                true => Ok(true),
                false => p.expect_word("forward").map(|()| false),
            }),
            false => Ok(vec![]),
        };
        Ok(Loop { trips, conditional, carried: carried as usize, scanned: ways("scanned")?, stacked: ways("stacked")? })
    }

    fn reduction(&mut self) -> Result<Reduction> {
        let square = ('[', ']');
        self.expect_word("axes")?;
        let axes = self.list(square, |p| p.number("an axis"))?;
        let keep_dims = self.eat_word("keep_dims");
        self.expect_word("init")?;
        let init = self.list(square, Self::typed_literal)?;
        let pos = self.pos();
        self.expect('{')?;
        let mut parts: [Option<ScalarFn>; 3] = [None, None, None];
        while !self.eat('}') {
            let at = self.pos();
            let word = self.word("`map`, `combine` or `finish`")?;
            let slot = match ["map", "combine", "finish"].iter().position(|n| *n == word) {
                Some(i) if parts[i].is_none() => &mut parts[i],
                Some(_) => return Err(at.error(format!("`{word}` is given twice"))),
                None => return Err(at.error("expected `map`, `combine` or `finish`")),
            };
            *slot = Some(self.scalar_fn()?);
        }
        let implied = |part: Option<ScalarFn>, name: &str| match (part, &init[..]) {
            (Some(f), _) => Ok(f),
            (None, [c]) => Ok(ScalarFn::identity(c.dtype)),
            _ => Err(pos.error(format!("`{name}` must be given for several accumulators"))),
        };
        let [map, combine, finish] = parts;
        let (map, finish) = (implied(map, "map")?, implied(finish, "finish")?);
        let combine = combine.ok_or_else(|| pos.error("`combine` is missing"))?;
        Ok(Reduction { axes, keep_dims, init, map, combine, finish })
    }

    fn contraction(&mut self) -> Result<Contraction> {
        self.expect_word("over")?;
        self.expect('[')?;
        let mut extents = vec![];
        let mut out_rank = None;
        while !self.eat(']') {
            match self.peek() {
                Tok::Punct('|') if out_rank.is_none() => {
                    self.next();
                    out_rank = Some(extents.len());
                }
                _ => {
                    extents.push(self.number("an extent")?);
                    if !matches!(self.peek(), Tok::Punct('|' | ']')) {
                        self.expect(',')?;
                    }
                }
            }
        }
        let Some(out_rank) = out_rank else { return self.expected("a `|` before the reduced axes") };
        self.expect_word("lhs")?;
        let lhs = self.axis_map()?;
        self.expect_word("rhs")?;
        let rhs = self.axis_map()?;
        let algorithm = match self.eat_word("by") {
            true => ConvAlgorithm::ALL.into_iter().find(|a| self.eat_word(a.name())),
            false => Some(ConvAlgorithm::Direct),
        };
        let Some(algorithm) = algorithm else {
            return self.expected_word(ConvAlgorithm::ALL.map(ConvAlgorithm::name));
        };
        Ok(Contraction { extents: extents.into(), out_rank, lhs, rhs, algorithm })
    }

    fn fused(&mut self, kind: &str, at: Pos) -> Result<FusedCluster> {
        let class = FusionClass::from_name(kind);
        let class = class.ok_or_else(|| at.error(format!("`{kind}` is not a fusion class")))?;
        let recipe = match self.eat_word("by") {
            true => Some(self.recipe()?),
            false => None,
        };
        let name = self.body_name()?;
        Ok(FusedCluster { class, recipe, body: Arc::new(self.graph_body(name)?) })
    }

    /// A recipe: `row`, `tiled[128, 64]`.
    fn recipe(&mut self) -> Result<Recipe> {
        let at = self.pos();
        let name = self.word("a recipe")?;
        let parameters = match self.peek() {
            Tok::Punct('[') => self.list(('[', ']'), |p| p.number("a number"))?,
            _ => vec![],
        };
        Recipe::from_parts(&name, &parameters).ok_or_else(|| at.error(format!("`{name}` is not a recipe of that form")))
    }
}

/// Operands of which none may be absent.
fn present(args: &[Option<Value>], at: Pos) -> Result<Vec<Value>> {
    args.iter().copied().collect::<Option<_>>().ok_or_else(|| at.error("only operators have optional operands"))
}
