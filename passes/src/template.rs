//! Graphs whose open dimensions are symbols: passes run once, and what they make holds for many shapes. So are numbers that become
//! known in a run and decide shapes ([`crate::parts`]).

mod restrictions;

use smallvec::SmallVec;
use tensorc_ir::diag::Result;
use tensorc_ir::dim::Origin;
use tensorc_ir::extent::{Binding, Symbol, Trace};
use tensorc_ir::graph::Graph;
use tensorc_ir::{DenseType, Dim, DimId, Extent, Shape};

use crate::parts::{Facts, MAX_EXTENT, PartShape, ShapeSource, SourceKind, Typing, next_part};

pub use restrictions::Restrictions;

/// Extents by which passes decide what is faster, for the first axes of inputs, which are mostly those of batches, and for others.
/// Each has a factor of its own, so that an equality of products is one of expressions; powers of two in them make what networks
/// divide axes by divide these.
const BATCHES: [i64; 4] = [2 * 3, 2 * 5, 2 * 19, 2 * 23];
const LENGTHS: [i64; 8] = [32 * 11, 32 * 13, 32 * 7, 32 * 17, 32 * 29, 32 * 31, 32 * 37, 32 * 41];
/// The same for numbers that become known in a run.
const COUNTS: [i64; 16] = [43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109];

/// The largest extent that [`Template::admissible`] tries.
const MAX_GUESS: i64 = 4096;

/// A graph whose inputs have extents that depend on symbols, and the trace of what is done with it.
#[derive(Clone, Debug)]
pub struct Template {
    /// The graph.
    pub graph: Graph,
    /// The symbols, what numbers of the graph are of them, and on which conditions.
    pub trace: Trace,
    /// What decides shapes, with numbers that may depend on symbols.
    facts: Facts,
    /// Of each symbol, the first source and number that it is.
    places: Vec<Place>,
}

/// A source, and the position of a number there: an axis, or an element.
pub type Place = (usize, usize);

/// A number of a source that is not known beforehand.
#[derive(Clone, Debug)]
struct OpenNumber<'a> {
    /// The dimension of inputs.
    dim: Option<DimId>,
    name: String,
    place: Place,
    source: &'a ShapeSource,
    /// Its number in given types.
    given: Option<u64>,
    /// What it often is at most ([`tensorc_ir::dim::DimTable::typical`]).
    typical: Option<u64>,
}

/// What becomes of an open number.
enum Role {
    Number(u64),
    /// A symbol, with an example.
    Symbol(i64),
    /// The number at an earlier place.
    As(Place),
}

/// How type inference that failed for examples gets past the condition found last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admissible {
    /// A place has this number.
    Number(Place, u64),
    /// A place has the number of an earlier one.
    Equal(Place, Place),
}

/// What a template is made from.
#[derive(Clone, Copy)]
pub struct TemplateRequest<'a> {
    /// A graph as a front end made it.
    pub graph: &'a Graph,
    /// What is known; no types, if the template need not hold for some.
    pub facts: &'a Facts,
}

impl<'a> TemplateRequest<'a> {
    /// The graph with its open numbers as symbols, but for those below [`ShapeSource::least`] in the given types, and as far as
    /// `restricted` says. `None` if nothing is open, or the rank or the type of an input is not known, or the given types do not fit.
    pub fn restricting(&self, restricted: &Restrictions) -> Option<Template> {
        let [mut batches, mut lengths] = [BATCHES.iter(), LENGTHS.iter()];
        let mut counts = COUNTS.iter();
        let mut taken: Vec<i64> = vec![];
        let first_like =
            |place: Place| restricted.tied().iter().find(|(tied, _)| *tied == place).map(|(_, first)| *first);
        self.make(|open| match (open.given, first_like(open.place)) {
            (Some(n), _) if !open.source.admits(n) || restricted.fixed().contains(&open.place) => Some(Role::Number(n)),
            (_, Some(first)) => Some(Role::As(first)),
            _ => {
                let example = match open.dim {
                    None => counts.next(),
                    Some(_) if open.place.1 == 0 => batches.next(),
                    Some(_) => lengths.next(),
                };
                let least = open.source.least() as i64;
                let typical = open.typical.map_or(i64::MAX, |n| i64::try_from(n).unwrap_or(i64::MAX));
                let wanted = (*example?).min(typical).max(least);
                // No two are equal, or passes would take two extents for one.
                let n = (least..=wanted).rev().chain(wanted + 1..).find(|n| !taken.contains(n))?;
                taken.push(n);
                Some(Role::Symbol(n))
            }
        })
    }

    /// As [`TemplateRequest::restricting`], with the given numbers as examples: passes decide as for these, and so it is not for other
    /// shapes.
    pub fn like(&self) -> Option<Template> {
        self.make(|open| {
            let n = open.given?;
            Some(if open.source.admits(n) { Role::Symbol(n as i64) } else { Role::Number(n) })
        })
    }

    /// What numbers of the given types tell templates apart, besides those that are open.
    pub fn class(&self) -> impl Iterator<Item = u64> {
        let Facts { sources, types, .. } = self.facts;
        sources.iter().zip(types).flat_map(|(source, ty)| {
            let number = |(axis, n): (usize, &u64)| match source.kind {
                _ if source.is_open(axis) && source.admits(*n) => source.least(),
                _ if source.is_open(axis) => *n,
                SourceKind::Elements => *n,
                // It follows from others.
                SourceKind::Input | SourceKind::Result => 0,
            };
            ty.dims.example().iter().enumerate().map(number)
        })
    }

    fn make(&self, role: impl FnMut(&OpenNumber<'_>) -> Option<Role>) -> Option<Template> {
        let all = self.open_numbers()?;
        let roles: Vec<Role> = all.iter().map(role).collect::<Option<_>>()?;
        let (mut places, mut symbols) = (vec![], vec![]);
        for (open, role) in all.iter().zip(&roles) {
            if let Role::Symbol(example) = *role {
                places.push(open.place);
                symbols.push(Symbol {
                    name: open.name.as_str().into(),
                    range: (open.source.least() as i64, MAX_EXTENT as i64),
                    example,
                });
            }
        }
        if symbols.is_empty() {
            return None;
        }
        let trace = Trace::new(symbols);
        let mut graph = self.graph.clone();
        let mut position = 0..places.len();
        let mut numbers: Vec<Extent> = vec![];
        for role in &roles {
            numbers.push(match *role {
                Role::Number(n) => Extent::of(n as i64),
                Role::Symbol(_) => trace.symbol(position.next()?),
                Role::As(first) => *numbers.get(all.iter().position(|open| open.place == first)?)?,
            });
        }
        let types = trace.enter(|| self.declared(&mut graph, &all, &numbers))?;
        Some(Template { graph, trace, facts: Facts { types, ..self.facts.clone() }, places })
    }

    /// Types of the sources, with `numbers` in the open places. Binds the input dimensions of `graph`.
    fn declared(&self, graph: &mut Graph, all: &[OpenNumber<'_>], numbers: &[Extent]) -> Option<Vec<DenseType>> {
        for (open, number) in all.iter().zip(numbers) {
            let Some(id) = open.dim else { continue };
            graph.dims.unify(Dim::Sym(id), Dim::of(*number), &Origin(graph.dims.name(id))).ok()?;
        }
        // Inference refuses what contradicts.
        graph.dims.solve().ok();
        let declared = |(i, source): (usize, &ShapeSource)| {
            if source.kind == SourceKind::Input {
                return graph.dense(source.value).ok();
            }
            let given = self.facts.types.get(i)?;
            let number = |axis: usize| {
                let open = all.iter().position(|open| open.place == (i, axis));
                open.map_or_else(|| given.dims.at(axis), |at| numbers[at])
            };
            Some(DenseType { dtype: given.dtype, dims: (0..given.rank()).map(number).collect() })
        };
        self.facts.sources.iter().enumerate().map(declared).collect()
    }

    /// The open numbers of sources; `None` if the rank or the type of an input is not known, or the given types do not fit.
    fn open_numbers(&self) -> Option<Vec<OpenNumber<'a>>> {
        let mut all: Vec<OpenNumber<'a>> = vec![];
        for (source, from) in self.facts.sources.iter().enumerate() {
            let name = &self.graph.node(from.value.node).name;
            let given = |axis: usize| match self.facts.types.is_empty() {
                false => number_at(&self.facts.types, (source, axis)).map(Some),
                true => Some(None),
            };
            if from.kind != SourceKind::Input {
                let count = self.facts.types.get(source)?.rank();
                for axis in (0..count).filter(|axis| from.is_open(*axis)) {
                    let (name, place) = (from.number_name(name, axis), (source, axis));
                    all.push(OpenNumber { dim: None, name, place, source: from, given: given(axis)?, typical: None });
                }
                continue;
            }
            let ty = self.graph.resolved(from.value);
            let Shape::Ranked(dims) = ty.shape else { return None };
            ty.dtype?;
            for (axis, dim) in dims.iter().enumerate() {
                let Dim::Sym(id) = *dim else { continue };
                let given = given(axis)?;
                let is_known = |of: DimId| of == id || self.graph.dims.follows(id, of);
                if !all.iter().filter_map(|other| other.dim).any(is_known) {
                    let (name, typical) = (self.graph.dims.name(id).to_string(), self.graph.dims.typical(id));
                    let place = (source, axis);
                    all.push(OpenNumber { dim: Some(id), name, place, source: from, given, typical });
                }
            }
        }
        Some(all)
    }
}

impl Template {
    /// The graph with the open dimensions of its inputs as symbols, as [`TemplateRequest::restricting`].
    pub fn of(graph: &Graph, given: Option<&[DenseType]>) -> Option<Template> {
        let facts = &Facts::of_inputs(graph, given.unwrap_or_default());
        TemplateRequest { graph, facts }.restricting(&Restrictions::default())
    }

    /// Puts a graph with the same inputs, made from the graph as part of the trace, in its place.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn replace<E>(
        &mut self,
        make: impl FnOnce(&Graph) -> std::result::Result<Graph, E>,
    ) -> std::result::Result<(), E> {
        self.graph = self.trace.enter(|| make(&self.graph))?;
        let types = std::mem::take(&mut self.facts.types);
        self.facts = Facts { types, ..Facts::of_inputs(&self.graph, &[]) };
        Ok(())
    }

    /// Types the graph, and reduces it to the next part ([`next_part`]).
    ///
    /// # Errors
    /// As [`next_part`].
    pub fn divide(&mut self, typing: Typing<'_>) -> Result<PartShape> {
        let Template { graph, trace, facts, .. } = self;
        trace.enter(|| next_part(graph, typing, facts))
    }

    /// The numbers for which the conditions admit no other than the example, as far as a few tries tell.
    pub fn fixed(&self) -> Vec<Place> {
        self.refusing(&self.examples(), |_, n| others(n))
    }

    /// The open numbers that the conditions fix: a condition fails if that in `types` is replaced by that in `numbers` (one
    /// per symbol). `None` if the template does not hold for `types`.
    pub fn unlike(&self, types: &[DenseType], numbers: &[i64]) -> Option<Vec<Place>> {
        self.binding(types)?;
        Some(self.refusing(&self.numbers(types)?, |i, _| numbers.get(i).copied().into_iter().collect()))
    }

    /// The open numbers of `types` that the conditions refuse in place of one of the examples; `None` if there are too few.
    pub fn refused(&self, types: &[DenseType]) -> Option<Vec<Place>> {
        let numbers = self.numbers(types)?;
        Some(self.refusing(&self.examples(), |i, _| vec![numbers[i]]))
    }

    /// Among some places, those whose numbers conditions make equal, as far as a few tries tell: the numbers at both change
    /// together where one alone does not change. Each is tied to the first of its kind.
    pub fn equal(&self, types: &[DenseType], among: &[Place]) -> Vec<(Place, Place)> {
        let Some(numbers) = self.numbers(types) else { return vec![] };
        let mut rest: Vec<usize> = (0..self.places.len()).filter(|i| among.contains(&self.places[*i])).collect();
        let mut binding = Binding::default();
        let mut change_together = |kind: &[usize]| {
            let mut values = numbers.clone();
            others(numbers[kind[0]]).into_iter().any(|n| {
                kind.iter().for_each(|i| values[*i] = n);
                self.trace.rebind(&values, &mut binding)
            })
        };
        let mut tied = vec![];
        while !rest.is_empty() {
            let first = rest.remove(0);
            let like: Vec<usize> = rest.iter().copied().filter(|i| numbers[*i] == numbers[first]).collect();
            let pair = like.iter().copied().find(|i| change_together(&[first, *i])).map(|i| vec![i]);
            let kind =
                pair.or_else(|| (like.len() > 1 && change_together(&[&[first], &like[..]].concat())).then_some(like));
            let kind = kind.unwrap_or_default();
            rest.retain(|i| !kind.contains(i));
            tied.extend(kind.into_iter().map(|i| (self.places[i], self.places[first])));
        }
        tied
    }

    /// Places with equal numbers in `types`, each with the first of its kind.
    pub fn alike(&self, types: &[DenseType]) -> Vec<(Place, Place)> {
        let numbers = self.numbers(types).unwrap_or_default();
        let first = |i: usize| numbers.iter().position(|n| *n == numbers[i]).filter(|first| *first < i);
        let pair = |i: usize| Some((self.places[i], self.places[first(i)?]));
        (0..numbers.len()).filter_map(pair).collect()
    }

    /// After type inference failed: what makes the condition found last not hold, so that inference gets past it. The other symbols
    /// have their examples. Multiples of 16 are tried first: networks for images and sound have such extents.
    pub fn admissible(&self) -> Option<Admissible> {
        let examples = self.examples();
        let breaks = |changed: &[usize], n: i64| {
            let mut values = examples.clone();
            changed.iter().for_each(|i| values[*i] = n);
            self.trace.breaks_newest(&values)
        };
        for step in [16, 1] {
            for i in 0..self.places.len() {
                let Some(n) = (1..=MAX_GUESS / step).map(|n| n * step).find(|n| breaks(&[i], *n)) else { continue };
                let equal = examples.iter().position(|other| *other == n);
                let equal = equal.filter(|other| others(n).into_iter().all(|n| breaks(&[i, *other], n)));
                return Some(match equal {
                    Some(other) => Admissible::Equal(self.places[i.max(other)], self.places[i.min(other)]),
                    None => Admissible::Number(self.places[i], n.unsigned_abs()),
                });
            }
        }
        None
    }

    /// The places of the symbols, with their examples.
    pub fn example_numbers(&self) -> impl Iterator<Item = (Place, u64)> {
        self.places.iter().copied().zip(self.examples().into_iter().map(i64::unsigned_abs))
    }

    /// The example of the number at a place.
    pub fn example_at(&self, place: Place) -> Option<u64> {
        Some(self.number_at(place)?.example().unsigned_abs())
    }

    /// The examples of the symbols.
    pub fn examples(&self) -> Vec<i64> {
        self.trace.symbols().iter().map(|s| s.example).collect()
    }

    /// The places at which the conditions admit none of the numbers tried in place of one of `numbers`.
    fn refusing(&self, numbers: &[i64], tries: impl Fn(usize, i64) -> Vec<i64>) -> Vec<Place> {
        let (mut values, mut binding) = (numbers.to_vec(), Binding::default());
        let mut refused = |i: usize| {
            let admits = |n: i64| {
                values[i] = n;
                self.trace.rebind(&values, &mut binding)
            };
            let refused = !tries(i, numbers[i]).into_iter().any(admits);
            values[i] = numbers[i];
            refused
        };
        self.places.iter().enumerate().filter(|(i, _)| refused(*i)).map(|(_, place)| *place).collect()
    }

    /// A template with conditions of its own from here on.
    #[must_use]
    pub fn fork(&self) -> Template {
        Template { trace: self.trace.fork(), ..self.clone() }
    }

    /// As [`Template::fork`], with the numbers of inputs of these types as examples; `None` if the template does not hold for them.
    pub fn with_examples(&self, types: &[DenseType]) -> Option<Template> {
        let (trace, binding) = self.trace.with_examples(&self.numbers(types)?)?;
        let graph = trace.enter(|| self.graph.renumbered(&|n| binding.example(n)));
        let number =
            |ty: &DenseType| DenseType { dtype: ty.dtype, dims: ty.dims.all().map(|n| binding.example(n)).collect() };
        let types = self.facts.types.iter().map(number).collect();
        Some(Template { graph, trace, facts: Facts { types, ..self.facts.clone() }, places: self.places.clone() })
    }

    /// The numbers of the symbols for sources of these types; `None` if there are too few.
    pub fn numbers(&self, types: &[DenseType]) -> Option<Vec<i64>> {
        self.numbers_of(types).collect()
    }

    fn numbers_of(&self, types: &[DenseType]) -> impl Iterator<Item = Option<i64>> {
        self.places.iter().map(|place| number_at(types, *place).map(|n| n as i64))
    }

    /// Of each symbol, a source and the position of a number that it is: an input and an axis, at first.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.places.iter().copied()
    }

    /// A number of a source, which may depend on symbols; `None` if there is none at this place.
    pub fn number_at(&self, (source, position): Place) -> Option<Extent> {
        let ty = self.facts.types.get(source)?;
        (position < ty.rank()).then(|| ty.dims.at(position))
    }

    /// The numbers of sources that are known, and follow from nothing else: their places, and what they are.
    pub fn known_numbers(&self) -> impl Iterator<Item = (Place, i64)> {
        let sources = self.facts.sources.iter().zip(&self.facts.types).enumerate();
        sources.flat_map(|(i, (source, ty))| {
            let follows = move |axis: usize| source.kind == SourceKind::Result && !source.is_open(axis);
            let numbers = ty.dims.all().enumerate().filter(move |(axis, _)| !follows(*axis));
            numbers.filter_map(move |(axis, n)| Some(((i, axis), n.known()?)))
        })
    }

    /// Changes the graph as part of the trace.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Graph) -> T) -> T {
        let graph = &mut self.graph;
        self.trace.enter(|| change(graph))
    }

    /// What numbers are for sources of these types, the inputs first; `None` if the template does not hold for them.
    pub fn binding(&self, types: &[DenseType]) -> Option<Binding> {
        let mut binding = Binding::default();
        self.rebind(types, &mut binding).then_some(binding)
    }

    /// As [`Template::binding`], in the memory of another binding. Whether the template holds for the sources.
    pub fn rebind(&self, types: &[DenseType], binding: &mut Binding) -> bool {
        let numbers: Option<SmallVec<[i64; 8]>> = self.numbers_of(types).collect();
        if !numbers.is_some_and(|numbers| self.trace.rebind(&numbers, binding)) {
            return false;
        }
        let Facts { sources, types: own, .. } = &self.facts;
        let fits = |((source, own), ty): ((&ShapeSource, &DenseType), &DenseType)| {
            let given = ty.dims.example().iter().map(|n| *n as i64);
            let mut dims = own.dims.all().map(|n| binding.value(n)).zip(given).enumerate();
            // What is not open in a result follows from others.
            let follows = |axis: usize| source.kind == SourceKind::Result && !source.is_open(axis);
            own.dtype == ty.dtype
                && own.rank() == ty.rank()
                && dims.all(|(axis, (n, given))| n == given || follows(axis))
        };
        own.len() == types.len() && sources.iter().zip(own).zip(types).all(fits)
    }

    /// The graph for sources of these types, the inputs first; `None` if the template does not hold for them.
    pub fn graph_for(&self, types: &[DenseType]) -> Option<Graph> {
        Some(self.graph.bound(&self.binding(types)?))
    }
}

/// Numbers to try in place of one.
fn others(n: i64) -> Vec<i64> {
    vec![n * 2, n * 3, n / 2, n + 1, n - 1]
}

/// The number at a place in types of sources.
fn number_at(types: &[DenseType], (source, position): Place) -> Option<u64> {
    types.get(source)?.dims.get(position).copied()
}
