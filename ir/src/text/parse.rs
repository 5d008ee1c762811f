//! The parser's entry point, its cursor, and what every part of the language shares: lists,
//! numbers, literals, types and index expressions.

use tensorc_abi::DType;

use super::constant::MAX_GENERATED_BYTES;
use super::lex::{Pos, SigilName, Tok, tokens};
use super::{MAGIC, VERSION, literal};
use crate::diag::{Diagnostic, Result};
use crate::extent::Extent;
use crate::index::{Atom, Index};
use crate::module::TextModule;
use crate::op::Registry;
use crate::scalar::Scalar;
use crate::types::DenseType;

/// Blocks, bodies and index expressions may nest this deep in total.
const MAX_DEPTH: usize = 100;

/// Most terms of a sum in an index expression, each of which may move all others.
const MAX_TERMS: usize = 4096;

/// Reads a file of graphs, kernels and plans. Operators come from `registry`.
///
/// Errors name `line:column` and what was expected there.
pub fn parse_module(text: &str, registry: &Registry) -> Result<TextModule> {
    parse_module_within(text, registry, MAX_GENERATED_BYTES)
}

/// As [`parse_module`], where constants that are not written out, such as `splat`, may have so many bytes in all:
/// everything else takes memory in proportion to the text.
pub fn parse_module_within(text: &str, registry: &Registry, generated_bytes: u64) -> Result<TextModule> {
    let mut p = Parser { tokens: tokens(text)?, at: 0, depth: 0, generated_bytes, registry };
    p.version()?;
    let mut module = TextModule::default();
    if p.eat_word("module") {
        module.name = p.sigil('@', "a module name")?.text;
    }
    loop {
        let pos = p.pos();
        match p.next() {
            Tok::End => return Ok(module),
            Tok::Word(w) if w == "graph" => module.graphs.push(p.graph_item()?),
            Tok::Word(w) if w == "kernel" => module.kernels.push(p.kernel()?),
            Tok::Word(w) if w == "plan" => module.plans.push(p.plan()?),
            other => return Err(pos.error(format!("expected `graph`, `kernel` or `plan`, found {other}"))),
        }
    }
}

pub(super) struct Parser<'r> {
    tokens: Vec<(Tok, Pos)>,
    at: usize,
    depth: usize,
    /// Bytes that further generated constants may have.
    pub(super) generated_bytes: u64,
    pub(super) registry: &'r Registry,
}

/// The variable an index expression's leaf stands for, if the token can be one.
pub(super) type VarOf<'a> = dyn Fn(&Tok) -> Option<u32> + 'a;

impl Parser<'_> {
    fn version(&mut self) -> Result<()> {
        let (magic, suffix) = MAGIC.split_once('-').unwrap_or((MAGIC, ""));
        if !matches!(self.peek(), Tok::Word(w) if w == magic) {
            return Ok(());
        }
        self.next();
        self.expect('-')?;
        self.expect_word(suffix)?;
        let pos = self.pos();
        let version: u32 = self.number("a version")?;
        match version {
            1..=VERSION => Ok(()),
            _ => Err(pos.error(format!("version {version} of the format is not known, this is version {VERSION}"))),
        }
    }

    pub(super) fn peek(&self) -> &Tok {
        self.tokens.get(self.at).map_or(&Tok::End, |(t, _)| t)
    }

    /// The token after the next.
    pub(super) fn peek_second(&self) -> &Tok {
        self.tokens.get(self.at + 1).map_or(&Tok::End, |(t, _)| t)
    }

    pub(super) fn pos(&self) -> Pos {
        let last = self.tokens.last().map_or(Pos { line: 1, column: 1 }, |(_, p)| *p);
        self.tokens.get(self.at).map_or(last, |(_, p)| *p)
    }

    /// Takes a token; it cannot be taken again.
    pub(super) fn next(&mut self) -> Tok {
        let taken = self.tokens.get_mut(self.at).map_or(Tok::End, |(t, _)| match t {
            Tok::End => Tok::End,
            other => std::mem::replace(other, Tok::Punct(' ')),
        });
        self.at += usize::from(taken != Tok::End);
        taken
    }

    pub(super) fn expected<T>(&self, what: &str) -> Result<T> {
        Err(self.pos().error(format!("expected {what}, found {}", self.peek())))
    }

    /// None of these words was found.
    pub(super) fn expected_word<'w, T>(&self, words: impl IntoIterator<Item = &'w str>) -> Result<T> {
        let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
        match quoted.split_last() {
            Some((last, others)) if !others.is_empty() => self.expected(&format!("{} or {last}", others.join(", "))),
            _ => self.expected(&quoted.concat()),
        }
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = *self.peek() == Tok::Punct(c);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, c: char) -> Result<()> {
        match self.eat(c) {
            true => Ok(()),
            false => self.expected(&format!("`{c}`")),
        }
    }

    pub(super) fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), Tok::Word(w) if w == word)
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.at_word(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        match self.eat_word(word) {
            true => Ok(()),
            false => self.expected(&format!("`{word}`")),
        }
    }

    pub(super) fn word(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Tok::Word(_) => match self.next() {
                Tok::Word(w) => Ok(w),
                _ => self.expected(what),
            },
            _ => self.expected(what),
        }
    }

    pub(super) fn string(&mut self) -> Result<String> {
        match self.peek() {
            Tok::Str(_) => match self.next() {
                Tok::Str(s) => Ok(s),
                _ => self.expected("a string"),
            },
            _ => self.expected("a string"),
        }
    }

    /// A word or a string.
    pub(super) fn label(&mut self) -> Result<String> {
        match self.peek() {
            Tok::Str(_) => self.string(),
            _ => self.word("a name or a string"),
        }
    }

    /// A name behind a sigil, without a port.
    pub(super) fn sigil(&mut self, sigil: char, what: &str) -> Result<SigilName> {
        match self.peek() {
            Tok::Sigil(c, _, None) if *c == sigil => match self.next() {
                Tok::Sigil(_, name, _) => Ok(name),
                _ => self.expected(what),
            },
            _ => self.expected(what),
        }
    }

    /// An integer, which must fit the result type.
    pub(super) fn number<T: TryFrom<i128>>(&mut self, what: &str) -> Result<T> {
        let pos = self.pos();
        let negative = self.eat('-');
        let value = match self.peek() {
            Tok::Number(n) => n.parse::<i128>().ok(),
            _ => return self.expected(what),
        };
        self.at += 1;
        let value = value.map(|v| if negative { -v } else { v });
        value.and_then(|v| T::try_from(v).ok()).ok_or_else(|| pos.error(format!("not a valid value for {what}")))
    }

    /// `open item, item, … close`; a comma may follow the last item.
    pub(super) fn list<T>(
        &mut self,
        (open, close): (char, char),
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut items = vec![];
        while !self.eat(close) {
            items.push(item(self)?);
            if !self.eat(',') {
                self.expect(close)?;
                break;
            }
        }
        Ok(items)
    }

    /// Runs a nested part, refusing nesting that could exhaust the stack.
    pub(super) fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.pos().error(format!("nesting deeper than {MAX_DEPTH}")));
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    /// The element type a word names.
    pub(super) fn at_dtype(&self) -> Option<DType> {
        match self.peek() {
            Tok::Word(w) => DType::from_name(w),
            _ => None,
        }
    }

    pub(super) fn dtype(&mut self) -> Result<DType> {
        match self.at_dtype() {
            Some(d) => {
                self.at += 1;
                Ok(d)
            }
            None => self.expected("an element type"),
        }
    }

    /// `f32[2, 3]`.
    pub(super) fn dense_type(&mut self) -> Result<DenseType> {
        let dtype = self.dtype()?;
        let dims = self.list(('[', ']'), |p| p.number("an extent"))?;
        Ok(DenseType::new(dtype, dims))
    }

    /// Whether a literal without type comes next.
    pub(super) fn at_literal(&self) -> bool {
        match self.peek() {
            Tok::Number(_) | Tok::Punct('-') => true,
            Tok::Word(w) => matches!(w.as_str(), "true" | "false" | "nan" | "inf"),
            _ => false,
        }
    }

    /// The text of a literal.
    pub(super) fn literal_text(&mut self) -> Result<String> {
        if !self.at_literal() {
            return self.expected("a number");
        }
        let sign = if self.eat('-') { "-" } else { "" };
        let text = match self.peek() {
            Tok::Number(n) => format!("{sign}{n}"),
            Tok::Word(w) if sign.is_empty() || w == "inf" => format!("{sign}{w}"),
            _ => return self.expected("a number"),
        };
        self.at += 1;
        Ok(text)
    }

    /// A literal of a known type.
    pub(super) fn literal(&mut self, dtype: DType) -> Result<Scalar> {
        let pos = self.pos();
        let text = self.literal_text()?;
        literal::parse(dtype, &text).ok_or_else(|| pos.error(format!("`{text}` is not a value of type {dtype}")))
    }

    /// `f32 1.5`.
    pub(super) fn typed_literal(&mut self) -> Result<Scalar> {
        let dtype = self.dtype()?;
        self.literal(dtype)
    }

    /// A literal that may state its type, which otherwise is the expected one.
    pub(super) fn literal_or(&mut self, expected: DType) -> Result<Scalar> {
        match self.at_dtype() {
            Some(_) => self.typed_literal(),
            None => self.literal(expected),
        }
    }

    /// A sum of terms, as [`Index::display`] writes it.
    pub(super) fn index(&mut self, var: &VarOf<'_>) -> Result<Index> {
        self.nested(|p| {
            let negative = p.eat('-');
            let mut sum = p.index_term(var, negative)?;
            loop {
                let pos = p.pos();
                let negative = match p.peek() {
                    Tok::Punct('+') => false,
                    Tok::Punct('-') => true,
                    _ => return Ok(sum),
                };
                p.at += 1;
                let term = p.index_term(var, negative)?;
                checked_add(&mut sum, term).ok_or_else(|| overflow(pos))?;
                if sum.terms.len() > MAX_TERMS {
                    return Err(pos.error(format!("an index expression of more than {MAX_TERMS} terms")));
                }
            }
        })
    }

    /// A constant, or an atom with an optional constant factor.
    fn index_term(&mut self, var: &VarOf<'_>, negative: bool) -> Result<Index> {
        let pos = self.pos();
        if let Tok::Number(_) = self.peek() {
            let value: i128 = self.number("an index")?;
            let value = i64::try_from(if negative { -value } else { value }).map_err(|_| overflow(pos))?;
            return match self.eat('*') {
                true => checked_scale(&self.index_atom(var)?, value).ok_or_else(|| overflow(pos)),
                false => Ok(Index::constant(value)),
            };
        }
        let atom = self.index_atom(var)?;
        let factor: i128 = match self.eat('*') {
            true => self.number("a factor")?,
            false => 1,
        };
        let factor = i64::try_from(if negative { -factor } else { factor }).map_err(|_| overflow(pos))?;
        checked_scale(&atom, factor).ok_or_else(|| overflow(pos))
    }

    fn index_atom(&mut self, var: &VarOf<'_>) -> Result<Index> {
        if let Some(v) = var(self.peek()) {
            self.at += 1;
            return Ok(Index::var(v));
        }
        if self.eat('(') {
            let inner = self.index(var)?;
            self.expect(')')?;
            return Ok(inner);
        }
        let name = match self.peek() {
            Tok::Word(w) if matches!(w.as_str(), "floordiv" | "mod" | "min" | "max") => w.clone(),
            _ => return self.expected("an index expression"),
        };
        self.at += 1;
        self.expect('(')?;
        let left = Box::new(self.index(var)?);
        self.expect(',')?;
        let atom = match name.as_str() {
            "min" => Atom::Min(left, Box::new(self.index(var)?)),
            "max" => Atom::Max(left, Box::new(self.index(var)?)),
            _ => {
                let pos = self.pos();
                let divisor: i64 = self.number("a divisor")?;
                match (name.as_str(), divisor) {
                    (_, ..=0) => return Err(pos.error("a divisor must be positive")),
                    ("mod", d) => Atom::Mod(left, d.into()),
                    (_, d) => Atom::Div(left, d.into()),
                }
            }
        };
        self.expect(')')?;
        Ok(Index::of(atom))
    }

    /// `[index, index, …]` over axis variables `d0`, `d1`, ….
    pub(super) fn axis_map(&mut self) -> Result<Vec<Index>> {
        let axis = |t: &Tok| match t {
            Tok::Word(w) => w.strip_prefix('d')?.parse().ok().filter(|v: &u32| format!("d{v}") == *w),
            _ => None,
        };
        self.list(('[', ']'), |p| p.index(&axis))
    }
}

fn overflow(pos: Pos) -> Diagnostic {
    pos.error("the index expression overflows 64 bits")
}

fn checked_scale(x: &Index, c: i64) -> Option<Index> {
    if c == 0 {
        return Some(Index::constant(0));
    }
    let terms =
        x.terms.iter().map(|(a, k)| Some((a.clone(), k.known()?.checked_mul(c)?.into()))).collect::<Option<_>>()?;
    Some(Index { terms, constant: x.constant.known()?.checked_mul(c)?.into() })
}

fn checked_add(sum: &mut Index, more: Index) -> Option<()> {
    let add = |a: Extent, b: Extent| a.known()?.checked_add(b.known()?).map(Extent::of);
    sum.constant = add(sum.constant, more.constant)?;
    for (atom, c) in more.terms {
        match sum.terms.binary_search_by(|(known, _)| known.cmp(&atom)) {
            Ok(i) => match add(sum.terms[i].1, c)? {
                k if k == 0 => drop(sum.terms.remove(i)),
                k => sum.terms[i].1 = k,
            },
            Err(i) => sum.terms.insert(i, (atom, c)),
        }
    }
    Some(())
}
