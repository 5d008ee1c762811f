//! Graphs whose open dimensions are symbols: passes run once, and what they make holds for many shapes.

use tensorc_ir::dim::Origin;
use tensorc_ir::extent::{Binding, Symbol, Trace};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DenseType, Dim, DimId, Shape};

/// The greatest extent that a symbol stands for.
const MAX_EXTENT: i64 = 1 << 31;

/// Extents by which passes decide what is faster, for the first axes of inputs, which are mostly those of batches, and for others.
/// Each has a factor of its own, so that an equality of products is one of expressions; powers of two in them make what networks
/// divide axes by divide these.
const BATCHES: [i64; 4] = [2 * 3, 2 * 5, 2 * 19, 2 * 23];
const LENGTHS: [i64; 8] = [32 * 11, 32 * 13, 32 * 7, 32 * 17, 32 * 29, 32 * 31, 32 * 37, 32 * 41];

/// A graph whose inputs have extents that depend on symbols, and the trace of what is done with it.
#[derive(Clone, Debug)]
pub struct Template {
    /// The graph.
    pub graph: Graph,
    /// The symbols, what numbers of the graph are of them, and on which conditions.
    pub trace: Trace,
    /// Of each symbol, its dimension.
    open: Vec<OpenDim>,
}

/// A dimension of the inputs that has no number.
#[derive(Clone, Copy, Debug)]
pub struct OpenDim {
    /// Which it is.
    pub id: DimId,
    /// The first input and axis that have it.
    place: (usize, usize),
    /// Its number in given types.
    pub given: Option<u64>,
}

/// What becomes of an open dimension.
enum Role {
    Number(u64),
    /// A symbol, with an example.
    Symbol(i64),
}

impl Template {
    /// The graph with its open dimensions as symbols, but for those that are 0 or 1 in `given`, types of the inputs: axes
    /// of one element are repeated, and those of none do not matter. `None` if the graph has no open dimensions, or the rank or
    /// the type of an input is not known, or `given` does not fit.
    pub fn of(graph: &Graph, given: Option<&[DenseType]>) -> Option<Template> {
        Template::closing(graph, given, &[])
    }

    /// As [`Template::of`], with the given numbers for the dimensions `closed`.
    pub fn closing(graph: &Graph, given: Option<&[DenseType]>, closed: &[DimId]) -> Option<Template> {
        let [mut batches, mut lengths] = [BATCHES.iter(), LENGTHS.iter()];
        Template::make(graph, given, |dim| match dim.given {
            Some(n) if n < 2 || closed.contains(&dim.id) => Some(Role::Number(n)),
            _ => {
                let example = if dim.place.1 == 0 { batches.next() } else { lengths.next() };
                example.copied().map(Role::Symbol)
            }
        })
    }

    /// As [`Template::of`], with the given numbers as examples: passes decide as for these, and so it is not for other shapes.
    pub fn like(graph: &Graph, given: &[DenseType]) -> Option<Template> {
        Template::make(graph, Some(given), |dim| {
            let n = dim.given?;
            Some(if n < 2 { Role::Number(n) } else { Role::Symbol(n as i64) })
        })
    }

    fn make(
        graph: &Graph,
        given: Option<&[DenseType]>,
        role: impl FnMut(&OpenDim) -> Option<Role>,
    ) -> Option<Template> {
        let all = open_dims(graph, given)?;
        let roles: Vec<Role> = all.iter().map(role).collect::<Option<_>>()?;
        let (mut open, mut symbols) = (vec![], vec![]);
        for (dim, role) in all.iter().zip(&roles) {
            if let Role::Symbol(example) = *role {
                open.push(*dim);
                symbols.push(Symbol { name: graph.dims.name(dim.id), range: (2, MAX_EXTENT), example });
            }
        }
        if symbols.is_empty() {
            return None;
        }
        let trace = Trace::new(symbols);
        let mut graph = graph.clone();
        let mut position = 0..open.len();
        let unified = trace.enter(|| {
            all.iter().zip(&roles).try_for_each(|(dim, role)| {
                let known = match role {
                    Role::Number(n) => Some(Dim::Const(*n)),
                    Role::Symbol(_) => position.next().map(|i| Dim::Open(trace.symbol(i))),
                };
                let origin = Origin(graph.dims.name(dim.id));
                known.and_then(|known| graph.dims.unify(Dim::Sym(dim.id), known, &origin).ok()).map(drop)
            })
        });
        unified?;
        Some(Template { graph, trace, open })
    }

    /// The dimensions for which the conditions admit no other number than the example, as far as a few tries tell.
    pub fn fixed(&self) -> Vec<DimId> {
        self.refusing(&self.examples(), |_, n| vec![n * 2, n * 3, n / 2, n + 1, n - 1])
    }

    /// The open dimensions that the conditions fix: a condition fails if the extent in `types` is replaced by that in `numbers` (one
    /// per symbol). `None` if the template does not hold for `types`.
    pub fn unlike(&self, types: &[DenseType], numbers: &[i64]) -> Option<Vec<DimId>> {
        self.binding(types)?;
        Some(self.refusing(&self.numbers(types)?, |i, _| numbers.get(i).copied().into_iter().collect()))
    }

    /// The examples of the symbols.
    pub fn examples(&self) -> Vec<i64> {
        self.trace.symbols().iter().map(|s| s.example).collect()
    }

    /// The dimensions for which the conditions admit none of the numbers tried in place of one of `numbers`.
    fn refusing(&self, numbers: &[i64], tries: impl Fn(usize, i64) -> Vec<i64>) -> Vec<DimId> {
        let admits = |i: usize, n: i64| {
            let mut values = numbers.to_vec();
            values[i] = n;
            self.trace.bind(&values).is_some()
        };
        let refused = |i: usize| !tries(i, numbers[i]).into_iter().any(|n| admits(i, n));
        self.open.iter().enumerate().filter(|(i, _)| refused(*i)).map(|(_, dim)| dim.id).collect()
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
        Some(Template { graph, trace, open: self.open.clone() })
    }

    /// The numbers of the symbols for inputs of these types; `None` if there are too few.
    pub fn numbers(&self, types: &[DenseType]) -> Option<Vec<i64>> {
        self.open.iter().map(|dim| dim.number_in(types).map(|n| n as i64)).collect()
    }

    /// Of each symbol, an input and an axis whose extent it is.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.open.iter().map(|dim| dim.place)
    }

    /// Changes the graph as part of the trace.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn change<T>(&mut self, change: impl FnOnce(&mut Graph) -> T) -> T {
        let graph = &mut self.graph;
        self.trace.enter(|| change(graph))
    }

    /// What numbers are for inputs of these types, in signature order; `None` if the template does not hold for them.
    pub fn binding(&self, types: &[DenseType]) -> Option<Binding> {
        let binding = self.trace.bind(&self.numbers(types)?)?;
        let fits = |(node, ty): (_, &DenseType)| {
            let own = self.graph.dense(Value { node, port: 0 });
            own.is_ok_and(|own| {
                let dims = own.dims.all().map(|n| binding.value(n));
                own.dtype == ty.dtype
                    && own.rank() == ty.rank()
                    && dims.zip(&ty.dims).all(|(n, given)| n == *given as i64)
            })
        };
        let inputs = self.graph.inputs().iter().copied();
        (inputs.len() == types.len() && inputs.zip(types).all(fits)).then_some(binding)
    }

    /// The graph for inputs of these types, in signature order; `None` if the template does not hold for them.
    pub fn graph_for(&self, types: &[DenseType]) -> Option<Graph> {
        Some(self.graph.bound(&self.binding(types)?))
    }
}

impl OpenDim {
    /// Its number in types of the inputs.
    fn number_in(&self, types: &[DenseType]) -> Option<u64> {
        let (input, axis) = self.place;
        types.get(input)?.dims.get(axis).copied()
    }
}

/// The open dimensions of the inputs, with their numbers in `given`, types of these; `None` if the rank or the type of an input is not known, or `given` does not fit.
pub fn open_dims(graph: &Graph, given: Option<&[DenseType]>) -> Option<Vec<OpenDim>> {
    let mut all: Vec<OpenDim> = vec![];
    for (input, &node) in graph.inputs().iter().enumerate() {
        let ty = graph.resolved(Value { node, port: 0 });
        let Shape::Ranked(dims) = ty.shape else { return None };
        ty.dtype?;
        for (axis, dim) in dims.iter().enumerate() {
            let Dim::Sym(id) = *dim else { continue };
            let mut dim = OpenDim { id, place: (input, axis), given: None };
            if let Some(types) = given {
                dim.given = Some(dim.number_in(types)?);
            }
            if all.iter().all(|other| other.id != id) {
                all.push(dim);
            }
        }
    }
    Some(all)
}
