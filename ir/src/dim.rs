//! Dimension variables: a union-find with equations, solved in both directions.

use std::sync::Arc;

use crate::extent::Extent;
use crate::types::{Dim, DimId, Shape, TensorType};

/// Where a fact about a dimension came from, for conflict messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(pub Arc<str>);

#[derive(Clone, Debug, PartialEq)]
struct DimEntry {
    parent: DimId,
    known: Option<(Extent, Origin)>,
    name: Option<Arc<str>>,
    /// A number that it often is, or less.
    typical: Option<u64>,
}

/// A relation between dimensions that unification alone cannot express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Equation {
    /// `out = floor((input·mul + add) / div)`, with `mul, div > 0`.
    Affine {
        /// The dimension that is computed.
        out: Dim,
        /// The dimension it is computed from.
        input: Dim,
        /// The factor.
        mul: i64,
        /// The addend, before the division.
        add: i64,
        /// The divisor; quotients are rounded down.
        div: i64,
    },
    /// The products of both sides are equal.
    Product {
        /// The factors of one side.
        left: Vec<Dim>,
        /// The factors of the other side.
        right: Vec<Dim>,
    },
    /// `out` is the sum of `terms`.
    Sum {
        /// The dimension that is the sum.
        out: Dim,
        /// The dimensions that are added.
        terms: Vec<Dim>,
    },
}

/// Two facts that exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimConflict {
    /// The extent or expression known before.
    pub expected: String,
    /// The extent or expression it contradicts.
    pub found: String,
    /// Where the first was stated.
    pub expected_from: Option<Origin>,
    /// Where the second was stated.
    pub found_from: Option<Origin>,
}

/// All dimension variables of one graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DimTable {
    entries: Vec<DimEntry>,
    equations: Vec<(Equation, Origin)>,
}

impl DimTable {
    /// A new unknown dimension, named if it is the user's.
    pub fn fresh(&mut self, name: Option<&str>) -> Dim {
        let id = DimId(self.entries.len() as u32);
        self.entries.push(DimEntry { parent: id, known: None, name: name.map(Arc::from), typical: None });
        Dim::Sym(id)
    }

    /// The dimension of that name, created at its first use.
    pub fn named(&mut self, name: &str) -> Dim {
        let found = self.entries.iter().position(|e| e.name.as_deref() == Some(name));
        match found {
            Some(i) => self.resolve(Dim::Sym(DimId(i as u32))),
            None => self.fresh(Some(name)),
        }
    }

    fn root(&self, mut id: DimId) -> DimId {
        while self.entries[id.0 as usize].parent != id {
            id = self.entries[id.0 as usize].parent;
        }
        id
    }

    /// Says what number a variable often is at most. What is compiled for many numbers is made with one like that as the example.
    pub fn expect(&mut self, id: DimId, typical: u64) {
        let root = self.root(id);
        self.entries[root.0 as usize].typical = Some(typical);
    }

    /// What [`DimTable::expect`] said of a variable.
    pub fn typical(&self, id: DimId) -> Option<u64> {
        self.entries[self.root(id).0 as usize].typical
    }

    /// The constant a dimension is known to be, or its representative variable.
    pub fn resolve(&self, dim: Dim) -> Dim {
        match dim {
            Dim::Const(_) | Dim::Open(_) => dim,
            Dim::Sym(id) => {
                let root = self.root(id);
                self.entries[root.0 as usize].known.as_ref().map_or(Dim::Sym(root), |(n, _)| Dim::of(*n))
            }
        }
    }

    pub(crate) fn resolve_shape(&self, shape: &Shape) -> Shape {
        match shape {
            Shape::Unranked => Shape::Unranked,
            Shape::Ranked(dims) => Shape::Ranked(dims.iter().map(|d| self.resolve(*d)).collect()),
        }
    }

    /// A type with all known dimensions filled in.
    pub fn resolve_type(&self, ty: &TensorType) -> TensorType {
        TensorType { dtype: ty.dtype, shape: self.resolve_shape(&ty.shape) }
    }

    /// The user's name of a variable, or a generated one.
    pub fn name(&self, id: DimId) -> Arc<str> {
        let root = self.root(id);
        self.entries[root.0 as usize].name.clone().unwrap_or_else(|| format!("d{}", root.0).into())
    }

    /// The user's name of a variable's representative, if it has one.
    pub fn user_name(&self, id: DimId) -> Option<Arc<str>> {
        self.entries[self.root(id).0 as usize].name.clone()
    }

    /// What made a variable a constant, if something did.
    pub fn origin(&self, dim: Dim) -> Option<Origin> {
        match dim {
            Dim::Const(_) | Dim::Open(_) => None,
            Dim::Sym(id) => self.entries[self.root(id).0 as usize].known.as_ref().map(|(_, o)| o.clone()),
        }
    }

    /// The text of a dimension: a number or a name.
    pub fn display(&self, dim: Dim) -> String {
        match self.resolve(dim) {
            Dim::Const(n) => n.to_string(),
            Dim::Open(n) => n.to_string(),
            Dim::Sym(id) => format!("?{}", self.name(id)),
        }
    }

    /// Makes two dimensions equal. Returns whether something new was learnt.
    pub fn unify(&mut self, expected: Dim, found: Dim, origin: &Origin) -> Result<bool, DimConflict> {
        let (a, b) = (self.resolve(expected), self.resolve(found));
        match (a, b) {
            (Dim::Sym(id), known) | (known, Dim::Sym(id)) if let Some(n) = known.as_extent() => {
                self.entries[id.0 as usize].known = Some((n, origin.clone()));
                Ok(true)
            }
            (Dim::Sym(a), Dim::Sym(b)) if a == b => Ok(false),
            (Dim::Sym(a), Dim::Sym(b)) => {
                let (keep, drop) = if a < b { (a, b) } else { (b, a) };
                let DimEntry { name, typical, .. } = self.entries[drop.0 as usize].clone();
                let entry = &mut self.entries[keep.0 as usize];
                entry.name = entry.name.take().or(name);
                entry.typical = entry.typical.into_iter().chain(typical).min();
                self.entries[drop.0 as usize].parent = keep;
                Ok(true)
            }
            _ if a.as_extent() == b.as_extent() => Ok(false),
            _ => Err(DimConflict {
                expected: self.display(a),
                found: self.display(b),
                expected_from: self.origin(expected),
                found_from: self.origin(found),
            }),
        }
    }

    /// Records a relation; it takes part in every later [`DimTable::solve`].
    pub fn relate(&mut self, equation: Equation, origin: &Origin) {
        if !self.equations.iter().any(|(e, _)| *e == equation) {
            self.equations.push((equation, origin.clone()));
        }
    }

    /// Whether an equation states a variable as an affine expression of another.
    pub fn follows(&self, variable: DimId, from: DimId) -> bool {
        let is = |dim: &Dim, id: DimId| self.resolve(*dim) == self.resolve(Dim::Sym(id));
        let states = |equation: &Equation| match equation {
            Equation::Affine { out, input, .. } => is(out, variable) && is(input, from),
            _ => false,
        };
        self.equations.iter().any(|(equation, _)| states(equation))
    }

    /// Applies the equations until nothing new follows. Returns whether something was learnt.
    pub fn solve(&mut self) -> Result<bool, DimConflict> {
        let mut learnt = false;
        loop {
            let mut progress = false;
            let mut open = vec![];
            for (equation, origin) in std::mem::take(&mut self.equations) {
                match self.apply(&equation, &origin)? {
                    Applied::Done(changed) => progress |= changed,
                    Applied::Open => open.push((equation, origin)),
                }
            }
            self.equations = open;
            learnt |= progress;
            if !progress {
                return Ok(learnt);
            }
        }
    }

    fn apply(&mut self, equation: &Equation, origin: &Origin) -> Result<Applied, DimConflict> {
        match equation {
            Equation::Affine { out, input, mul, add, div } => {
                let (input, out) = (self.resolve(*input), self.resolve(*out));
                match (input.as_extent(), out.as_extent()) {
                    (Some(n), _) => {
                        let value = (n * *mul + *add).div_floor(*div).greatest(0);
                        self.unify(out, Dim::of(value), origin).map(Applied::Done)
                    }
                    (None, Some(n)) if *div == 1 && n >= *add && Extent::of(*mul).divides(n - *add) => {
                        self.unify(input, Dim::of((n - *add).div_floor(*mul)), origin).map(Applied::Done)
                    }
                    _ => Ok(Applied::Open),
                }
            }
            Equation::Product { left, right } => {
                let (l, lu) = self.fold(left, Extent::ONE, |a, b| a.saturating_mul(b));
                let (r, ru) = self.fold(right, Extent::ONE, |a, b| a.saturating_mul(b));
                self.balance(l, &lu, r, &ru, origin, |whole, part| {
                    (part > 0 && part.divides(whole)).then(|| whole.div_floor(part))
                })
            }
            Equation::Sum { out, terms } => {
                let (sum, unknown) = self.fold(terms, Extent::ZERO, |a, b| a + b);
                let rest = |whole: Extent, part: Extent| (whole >= part).then(|| whole - part);
                let out = self.resolve(*out);
                match out.as_extent() {
                    Some(n) => self.balance(n, &[], sum, &unknown, origin, rest),
                    None => self.balance(Extent::ZERO, &[out], sum, &unknown, origin, rest),
                }
            }
        }
    }

    /// The combination of the known dimensions, and the unknown ones.
    fn fold(&self, dims: &[Dim], unit: Extent, f: impl Fn(Extent, Extent) -> Extent) -> (Extent, Vec<Dim>) {
        let mut unknown = vec![];
        let mut value = unit;
        for dim in dims {
            let dim = self.resolve(*dim);
            match dim.as_extent() {
                Some(n) => value = f(value, n),
                None => unknown.push(dim),
            }
        }
        (value, unknown)
    }

    fn balance(
        &mut self,
        left: Extent,
        left_unknown: &[Dim],
        right: Extent,
        right_unknown: &[Dim],
        origin: &Origin,
        invert: impl Fn(Extent, Extent) -> Option<Extent>,
    ) -> Result<Applied, DimConflict> {
        let (open, whole, part) = match (left_unknown, right_unknown) {
            ([], []) => return self.unify(Dim::of(left), Dim::of(right), origin).map(Applied::Done),
            ([], [open]) => (*open, left, right),
            ([open], []) => (*open, right, left),
            ([a], [b]) if left == right => return self.unify(*a, *b, origin).map(Applied::Done),
            _ => return Ok(Applied::Open),
        };
        match invert(whole, part) {
            Some(n) => self.unify(open, Dim::of(n), origin).map(Applied::Done),
            None if part == 0 => Ok(Applied::Open),
            None => Err(DimConflict {
                expected: format!("a size that makes up {whole} together with {part}"),
                found: "none".into(),
                expected_from: Some(origin.clone()),
                found_from: None,
            }),
        }
    }
}

enum Applied {
    /// The equation holds from now on; whether a dimension became known by it.
    Done(bool),
    Open,
}
