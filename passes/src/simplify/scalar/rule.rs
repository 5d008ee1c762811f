//! Rules of scalar bodies: their text, and the terms and conditions it stands for.
//!
//! The form is described at the top of `rules/scalar.rules`.

use std::sync::LazyLock;

use crate::options::Label;
use smallvec::SmallVec;
use tensorc_ir::DType;
use tensorc_ir::scalar::{Scalar, ScalarOp};

use super::super::casts;
use super::term::ScalarFacts;

/// A pattern or replacement.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleTerm {
    /// A variable, by position in [`ScalarRule::vars`].
    Var(usize),
    /// A number, in the type of its surroundings.
    Literal(f64),
    /// A truth value.
    Truth(bool),
    /// An operation on terms.
    Op(ScalarOp, Vec<RuleTerm>),
    /// A cast to the type variable at a position in [`ScalarRule::types`].
    Cast(usize, Box<RuleTerm>),
    /// The logarithm to the base 2 of a constant power of two.
    Exponent(Box<RuleTerm>),
}

/// A condition on variables and type variables.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The name of the condition.
    pub name: &'static str,
    check: ConditionFn,
    vars: Vec<usize>,
    types: Vec<usize>,
}

type ConditionFn = fn(&[ScalarFacts], &[DType]) -> bool;

/// One line of the rules.
#[derive(Clone, Debug)]
pub struct ScalarRule {
    /// The name of the rule.
    pub name: &'static str,
    /// Which arithmetic the rule keeps.
    pub label: Label,
    /// The line as it is written.
    pub text: &'static str,
    /// What is matched.
    pub pattern: RuleTerm,
    /// What takes its place.
    pub replacement: RuleTerm,
    /// What must hold for the match.
    pub conditions: Vec<Condition>,
    /// The variables of the pattern.
    pub vars: Vec<&'static str>,
    /// The type variables of the pattern.
    pub types: Vec<&'static str>,
}

impl ScalarRule {
    /// Whether the conditions hold for what variables and type variables stand for.
    pub fn holds(&self, vars: &[ScalarFacts], types: &[DType]) -> bool {
        self.conditions.iter().all(|c| {
            let facts: SmallVec<[ScalarFacts; 4]> = c.vars.iter().map(|v| vars[*v]).collect();
            let types: SmallVec<[DType; 2]> = c.types.iter().map(|t| types[*t]).collect();
            (c.check)(&facts, &types)
        })
    }
}

/// Every rule, in the order of the file, or what is wrong with the file.
pub fn rules() -> Result<&'static [ScalarRule], String> {
    static RULES: LazyLock<Result<Vec<ScalarRule>, String>> =
        LazyLock::new(|| parse(include_str!("../rules/scalar.rules")));
    RULES.as_ref().map(|rules| &rules[..]).map_err(String::clone)
}

/// The predicates, each with the numbers of variables and type variables it takes.
const PREDICATES: &[(&str, usize, usize, ConditionFn)] = &[
    ("float", 1, 0, |v, _| v[0].dtype.is_float()),
    ("int", 1, 0, |v, _| v[0].dtype.is_int()),
    ("bool", 1, 0, |v, _| v[0].dtype == DType::Bool),
    ("signed", 1, 0, |v, _| v[0].dtype.is_float() || v[0].dtype.is_signed_int()),
    ("unsigned", 1, 0, |v, _| v[0].dtype.is_int() && !v[0].dtype.is_signed_int()),
    ("const", 1, 0, |v, _| v[0].constant.is_some()),
    ("power_of_two", 1, 0, |v, _| v[0].constant.is_some_and(is_power_of_two)),
    ("grows", 1, 0, |v, _| v[0].constant.is_some_and(|c| is_power_of_two(c) && c.as_f64().abs() >= 1.0)),
    ("moderate", 1, 0, |v, _| v[0].constant.is_some_and(|c| (1e-12..=1e12).contains(&c.as_f64().abs()))),
    ("nonnegative", 1, 0, |v, _| v[0].nonnegative),
    ("integral", 1, 0, |v, _| v[0].integral),
    ("same_type", 1, 1, |v, t| v[0].dtype == t[0]),
    ("same_types", 2, 0, |v, _| v[0].dtype == v[1].dtype),
    ("skips", 1, 2, |v, t| casts::skips(v[0].dtype, t[0], t[1])),
];

/// A power of two; as a float one whose inverse is exact, far from overflow and underflow.
fn is_power_of_two(c: Scalar) -> bool {
    let (mantissa, exponent) = match c.dtype {
        DType::F32 => (c.bits & 0x7f_ffff, (c.bits >> 23 & 0xff) as i64 - 127),
        DType::F64 => (c.bits & 0xf_ffff_ffff_ffff, (c.bits >> 52 & 0x7ff) as i64 - 1023),
        d if d.is_int() => return c.bits.is_power_of_two() && (!d.is_signed_int() || c.as_i64() > 0),
        _ => return false,
    };
    mantissa == 0 && (-60..=60).contains(&exponent)
}

/// The exponent of a power of two, in the same type.
pub fn exponent(c: Scalar) -> Scalar {
    Scalar::from_i64(c.dtype, i64::from(c.bits.trailing_zeros()))
}

/// A literal of a pattern in a type; `None` if the type does not hold it.
pub fn literal(value: f64, dtype: DType) -> Option<Scalar> {
    let c = Scalar::from_f64(dtype, value);
    let kept = c.as_f64() == value && (!dtype.is_float() || c.as_f64().is_sign_positive() == value.is_sign_positive());
    (kept && dtype != DType::Bool).then_some(c)
}

fn parse(text: &'static str) -> Result<Vec<ScalarRule>, String> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with("//"));
    lines.map(|(i, line)| rule(line).map_err(|why| format!("scalar.rules:{}: {why}", i + 1))).collect()
}

fn rule(text: &'static str) -> Result<ScalarRule, String> {
    let (head, body) = text.split_once(':').ok_or("`:` expected")?;
    let (label, name) = head.split_once(' ').ok_or("a label and a name expected")?;
    let label = [Label::Exact, Label::Reassoc, Label::Approx].into_iter().find(|l| l.name() == label);
    let (terms, conditions) = body.split_once(" if ").map_or((body, None), |(t, c)| (t, Some(c)));
    let (pattern, replacement) = terms.split_once("=>").ok_or("`=>` expected")?;
    let mut p = Parser { rest: pattern, vars: vec![], types: vec![], closed: false };
    let pattern = p.whole()?;
    (p.rest, p.closed) = (replacement, true);
    let replacement = p.whole()?;
    let mut found = vec![];
    if let Some(conditions) = conditions {
        p.rest = conditions;
        found.push(p.condition()?);
        while p.eat(",") {
            found.push(p.condition()?);
        }
        p.end()?;
    }
    let label = label.ok_or("the label is not exact, reassoc or approx")?;
    Ok(ScalarRule {
        name: name.trim(),
        label,
        text,
        pattern,
        replacement,
        conditions: found,
        vars: p.vars,
        types: p.types,
    })
}

struct Parser {
    rest: &'static str,
    vars: Vec<&'static str>,
    types: Vec<&'static str>,
    /// Only variables that the pattern has are allowed.
    closed: bool,
}

impl Parser {
    fn eat(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        self.eat(token).then_some(()).ok_or_else(|| format!("`{token}` expected before `{}`", self.rest.trim()))
    }

    fn end(&self) -> Result<(), String> {
        let rest = self.rest.trim();
        rest.is_empty().then_some(()).ok_or_else(|| format!("unexpected `{rest}`"))
    }

    fn word(&mut self) -> &'static str {
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c))).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    fn whole(&mut self) -> Result<RuleTerm, String> {
        let term = self.term()?;
        self.end().map(|()| term)
    }

    fn position(list: &mut Vec<&'static str>, name: &'static str, closed: bool) -> Result<usize, String> {
        match list.iter().position(|n| *n == name) {
            Some(at) => Ok(at),
            None if closed => Err(format!("`{name}` is not in the pattern")),
            None => {
                list.push(name);
                Ok(list.len() - 1)
            }
        }
    }

    fn term(&mut self) -> Result<RuleTerm, String> {
        let word = self.word();
        if word == "cast" {
            self.expect("<")?;
            let name = self.word();
            let target = Self::position(&mut self.types, name, self.closed)?;
            self.expect(">")?;
            self.expect("(")?;
            let inner = self.term()?;
            self.expect(")")?;
            return Ok(RuleTerm::Cast(target, Box::new(inner)));
        }
        if self.eat("(") {
            let mut args = vec![self.term()?];
            while self.eat(",") {
                args.push(self.term()?);
            }
            self.expect(")")?;
            if word == "exponent" && args.len() == 1 {
                return Ok(RuleTerm::Exponent(Box::new(args.swap_remove(0))));
            }
            let op = ScalarOp::from_name(word).filter(|op| op.arity() == args.len());
            return Ok(RuleTerm::Op(
                op.ok_or_else(|| format!("`{word}` is not an operation of {}", args.len()))?,
                args,
            ));
        }
        match word {
            "true" | "false" => Ok(RuleTerm::Truth(word == "true")),
            "inf" | "-inf" => word.parse().map(RuleTerm::Literal).map_err(|_| word.to_string()),
            _ if word.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                word.parse().map(RuleTerm::Literal).map_err(|_| format!("`{word}` is not a number"))
            }
            "" => Err(format!("a term expected before `{}`", self.rest.trim())),
            name => Self::position(&mut self.vars, name, self.closed).map(RuleTerm::Var),
        }
    }

    fn condition(&mut self) -> Result<Condition, String> {
        let word = self.word();
        let (name, vars, types, check) =
            *PREDICATES.iter().find(|p| p.0 == word).ok_or_else(|| format!("`{word}` is not a condition"))?;
        let mut condition = Condition { name, check, vars: vec![], types: vec![] };
        self.expect("(")?;
        for i in 0..vars + types {
            if i > 0 {
                self.expect(",")?;
            }
            let word = self.word();
            match i < vars {
                true => condition.vars.push(Self::position(&mut self.vars, word, true)?),
                false => condition.types.push(Self::position(&mut self.types, word, true)?),
            }
        }
        self.expect(")").map(|()| condition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_parse_and_have_names_of_their_own() {
        let rules = rules().unwrap();
        let mut names: Vec<&str> = rules.iter().map(|r| r.name).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == rules.len() && rules.len() > 80);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, why) in [
            ("exact a: add(x, 0) => y", "`y` is not in the pattern"),
            ("maybe a: add(x, 0) => x", "the label is not exact, reassoc or approx"),
            ("exact a: add(x) => x", "`add` is not an operation of 1"),
            ("exact a: add(x, 0 => x", "`)` expected before ``"),
            ("exact a: add(x, 0) => x if odd(x)", "`odd` is not a condition"),
            ("exact a: add(x, 0) => x y", "unexpected `y`"),
        ] {
            assert_eq!(rule(text).unwrap_err(), why);
        }
    }
}
