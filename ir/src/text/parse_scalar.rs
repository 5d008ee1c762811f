//! Parsing of scalar functions and instructions.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tensorc_abi::DType;

use super::lex::{Pos, SigilName, Tok};
use super::literal;
use super::parse::Parser;
use super::print_scalar::{literal_type, suffix};
use crate::diag::Result;
use crate::scalar::{Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};

/// An operand of an instruction: something named, or a constant.
pub(super) enum ParsedOperand<T> {
    Ref(T, DType),
    Const(Scalar),
}

impl<T> ParsedOperand<T> {
    fn dtype(&self) -> DType {
        match self {
            ParsedOperand::Ref(_, d) => *d,
            ParsedOperand::Const(c) => c.dtype,
        }
    }
}

/// An operand before the instruction's type is known.
enum Raw<T> {
    Typed(ParsedOperand<T>),
    Untyped(String),
}

pub(super) struct Instruction<T> {
    pub(super) op: ScalarOp,
    pub(super) args: SmallVec<[ParsedOperand<T>; 3]>,
    pub(super) result: DType,
}

impl Parser<'_> {
    /// `mnemonic[.type] operand, …`; `resolve` gives what a name stands for and its type.
    pub(super) fn instruction<T>(
        &mut self,
        resolve: &dyn Fn(&SigilName) -> Option<(T, DType)>,
    ) -> Result<Instruction<T>> {
        let pos = self.pos();
        let word = self.word("an operation")?;
        let (op, stated) = mnemonic(&word).ok_or_else(|| pos.error(format!("`{word}` is not an operation")))?;
        let mut raw: Vec<(Raw<T>, Pos)> = vec![];
        loop {
            let at = self.pos();
            raw.push((self.raw_operand(resolve)?, at));
            if !self.eat(',') {
                break;
            }
        }
        let skip = usize::from(op == ScalarOp::Select);
        let first = raw.iter().skip(skip).find_map(|(r, _)| match r {
            Raw::Typed(a) => Some(a.dtype()),
            Raw::Untyped(_) => None,
        });
        let common = stated.or(first);
        let mut args: SmallVec<[ParsedOperand<T>; 3]> = SmallVec::new();
        for (i, (raw, at)) in raw.into_iter().enumerate() {
            args.push(match raw {
                Raw::Typed(arg) => arg,
                Raw::Untyped(text) => {
                    let dtype = literal_type(op, i, common).ok_or_else(|| at.error("the literal needs a type"))?;
                    let value = literal::parse(dtype, &text);
                    ParsedOperand::Const(
                        value.ok_or_else(|| at.error(format!("`{text}` is not a value of type {dtype}")))?,
                    )
                }
            });
        }
        let dtypes: SmallVec<[DType; 3]> = args.iter().map(ParsedOperand::dtype).collect();
        let result = op.result(&dtypes).map_err(|why| pos.error(why))?;
        match (stated, suffix(op, &dtypes)) {
            (Some(stated), Some(found)) if stated != found => {
                Err(pos.error(format!("the operation says {stated}, its operands are {found}")))
            }
            _ => Ok(Instruction { op, args, result }),
        }
    }

    fn raw_operand<T>(&mut self, resolve: &dyn Fn(&SigilName) -> Option<(T, DType)>) -> Result<Raw<T>> {
        if self.at_dtype().is_some() {
            return self.typed_literal().map(|c| Raw::Typed(ParsedOperand::Const(c)));
        }
        match self.peek() {
            Tok::Sigil('%', ..) => {
                let pos = self.pos();
                let name = self.sigil('%', "an operand")?;
                let (value, dtype) =
                    resolve(&name).ok_or_else(|| pos.error(format!("`%{}` is not a visible value", name.text)))?;
                Ok(Raw::Typed(ParsedOperand::Ref(value, dtype)))
            }
            _ if self.at_literal() => self.literal_text().map(Raw::Untyped),
            _ => self.expected("an operand"),
        }
    }

    /// `(%x: f32, …) { lines yield … }`.
    pub(super) fn scalar_fn(&mut self) -> Result<ScalarFn> {
        let mut f = ParsedFunction::default();
        let params = self.list(('(', ')'), |p| {
            let pos = p.pos();
            let name = p.sigil('%', "an operand name")?;
            p.expect(':')?;
            Ok((name, p.dtype()?, pos))
        })?;
        for (i, (name, dtype, pos)) in params.into_iter().enumerate() {
            f.f.inputs.push(dtype);
            let id = f.push(ScalarNode::Input(i as u32), dtype);
            f.bind(name, id, pos)?;
        }
        let params = f.f.nodes.len();
        f.used.resize(params, false);
        self.expect('{')?;
        while !self.eat_word("yield") {
            self.scalar_line(&mut f)?;
        }
        while !self.eat('}') {
            let pos = self.pos();
            let id = match self.at_dtype() {
                Some(_) => {
                    let c = self.typed_literal()?;
                    f.constant(c)
                }
                None => {
                    let name = self.sigil('%', "a result")?;
                    f.resolve(&name).ok_or_else(|| pos.error(format!("`%{}` is not defined", name.text)))?.0
                }
            };
            f.mark(id);
            f.f.outputs.push(id);
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        Ok(f.finish(params))
    }

    fn scalar_line(&mut self, f: &mut ParsedFunction) -> Result<()> {
        let pos = self.pos();
        let name = self.sigil('%', "a line or `yield`")?;
        self.expect('=')?;
        let at = self.pos();
        let id = if self.eat_word("const") {
            let c = self.typed_literal()?;
            f.push(ScalarNode::Const(c), c.dtype)
        } else if self.eat_word("coord") {
            let axis = self.number("an axis")?;
            f.push(ScalarNode::Coord(axis), DType::I64)
        } else if self.eat_word("input") {
            let i: u32 = self.number("an operand number")?;
            let dtype = f.f.inputs.get(i as usize).copied();
            let dtype = dtype.ok_or_else(|| at.error(format!("the function has no operand {i}")))?;
            f.push(ScalarNode::Input(i), dtype)
        } else {
            let ins = self.instruction(&|name| f.resolve(name))?;
            let args = ins
                .args
                .into_iter()
                .map(|a| match a {
                    ParsedOperand::Ref(id, _) => id,
                    ParsedOperand::Const(c) => f.constant(c),
                })
                .collect::<SmallVec<[ScalarId; 3]>>();
            args.iter().for_each(|id| f.mark(*id));
            f.push(ScalarNode::Op(ins.op, args), ins.result)
        };
        f.bind(name, id, pos)
    }
}

/// The operation and the stated type of `name.type`.
fn mnemonic(word: &str) -> Option<(ScalarOp, Option<DType>)> {
    let (name, dtype) = match word.split_once('.') {
        Some((name, dtype)) => (name, Some(DType::from_name(dtype)?)),
        None => (word, None),
    };
    let op = match (name, dtype) {
        ("cast", Some(to)) => ScalarOp::Cast(to),
        ("bitcast", Some(to)) => ScalarOp::Bitcast(to),
        _ => ScalarOp::from_name(name)?,
    };
    Some((op, dtype))
}

/// A function under construction, with the nodes of all its operands in front.
struct ParsedFunction {
    f: ScalarFn,
    names: BTreeMap<(String, u32), ScalarId>,
    constants: BTreeMap<Scalar, ScalarId>,
    /// Whether each of the leading operand nodes is used.
    used: Vec<bool>,
}

impl Default for ParsedFunction {
    fn default() -> ParsedFunction {
        let f = ScalarFn { inputs: vec![], nodes: vec![], dtypes: vec![], outputs: vec![] };
        ParsedFunction { f, names: BTreeMap::new(), constants: BTreeMap::new(), used: vec![] }
    }
}

impl ParsedFunction {
    fn push(&mut self, node: ScalarNode, dtype: DType) -> ScalarId {
        let id = ScalarId(self.f.nodes.len() as u32);
        if let ScalarNode::Const(c) = node {
            self.constants.entry(c).or_insert(id);
        }
        self.f.nodes.push(node);
        self.f.dtypes.push(dtype);
        id
    }

    fn constant(&mut self, c: Scalar) -> ScalarId {
        match self.constants.get(&c) {
            Some(id) => *id,
            None => self.push(ScalarNode::Const(c), c.dtype),
        }
    }

    fn bind(&mut self, name: SigilName, id: ScalarId, pos: Pos) -> Result<()> {
        match self.names.insert(name.key(), id) {
            Some(_) => Err(pos.error(format!("`%{}` is defined twice", name.text))),
            None => Ok(()),
        }
    }

    fn resolve(&self, name: &SigilName) -> Option<(ScalarId, DType)> {
        self.names.get(&name.key()).map(|id| (*id, self.f.dtype(*id)))
    }

    fn mark(&mut self, id: ScalarId) {
        if let Some(used) = self.used.get_mut(id.0 as usize) {
            *used = true;
        }
    }

    /// Removes the nodes of unused operands among the first `params` nodes.
    fn finish(mut self, params: usize) -> ScalarFn {
        let mut renumber = Vec::with_capacity(self.f.nodes.len());
        let mut kept = 0;
        for i in 0..self.f.nodes.len() {
            renumber.push(ScalarId(kept));
            kept += u32::from(i >= params || self.used[i]);
        }
        let mut keep = (0..self.f.nodes.len()).map(|i| i >= params || self.used[i]);
        self.f.nodes.retain(|_| keep.next().unwrap_or(true));
        let mut keep = (0..self.f.dtypes.len()).map(|i| i >= params || self.used[i]);
        self.f.dtypes.retain(|_| keep.next().unwrap_or(true));
        for node in &mut self.f.nodes {
            if let ScalarNode::Op(_, args) = node {
                args.iter_mut().for_each(|a| *a = renumber[a.0 as usize]);
            }
        }
        self.f.outputs.iter_mut().for_each(|o| *o = renumber[o.0 as usize]);
        self.f
    }
}
