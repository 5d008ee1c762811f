//! Graphs that differ in the extents of their inputs alone. The first is compiled for its shape; what is compiled for a second one
//! serves all that differ from these in the same extents.

use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::dim::{Equation, Origin};
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::{DenseType, Dim, Shape, TensorType};

use crate::compile::Report;
use crate::compiler::Compiler;
use crate::parts::{Derive, Parts};
use crate::program::Program;

/// Shapes that others are compared with, and graphs that came of it.
const MAX_SHAPES: usize = 8;
const MAX_OPENED: usize = 4;

/// What graphs have in common that differ in extents alone.
pub struct ProgramFamily {
    /// Without types of operators.
    graph: Graph,
    derive: Option<Arc<Derive>>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Types of the inputs, of graphs that are compiled for their shapes.
    shapes: Vec<Vec<DenseType>>,
    opened: Vec<Arc<Opened>>,
}

/// A graph with symbols for the extents in which shapes differed.
struct Opened {
    /// By input.
    axes: Vec<Vec<Axis>>,
    parts: Parts,
}

/// An extent of an input.
#[derive(Clone, Copy)]
enum Axis {
    Number(u64),
    Symbol(usize),
    /// A multiple of a symbol, or a sum.
    Affine {
        symbol: usize,
        mul: i64,
        add: i64,
    },
}

/// Extents in which two shapes differ: the numbers in both, and the dimensions.
#[derive(Default)]
struct Varying {
    symbols: Vec<((u64, u64), Dim)>,
    /// What follows from symbols.
    others: Vec<((u64, u64), Axis, Dim)>,
}

impl ProgramFamily {
    /// Of one of the graphs; `None` if it holds more than operators of constants and inputs.
    pub fn of(graph: &Graph) -> Option<ProgramFamily> {
        let mut graph = graph.clone();
        for id in graph.node_ids() {
            let node = graph.node_mut(id);
            match node.kind {
                NodeKind::Op(_) => node.types.iter_mut().for_each(|ty| *ty = TensorType::unknown()),
                NodeKind::Input | NodeKind::Const(_) => {}
                _ => return None,
            }
        }
        Some(ProgramFamily { graph, derive: None, seen: Mutex::default() })
    }

    /// The same with something made of each graph once it has types. Inputs that are not needed then may be removed from it.
    #[must_use]
    pub fn deriving(self, derive: Arc<Derive>) -> ProgramFamily {
        ProgramFamily { derive: Some(derive), ..self }
    }

    /// The program for inputs of these types; `None` if it is the first, or nothing is compiled for many shapes like it: then it must be
    /// compiled for itself.
    pub fn program(&self, compiler: &Compiler, types: &[DenseType]) -> Option<Program> {
        self.opened(types)?.program(compiler, types)
    }

    /// The graph that is compiled for many shapes, this one among them.
    fn opened(&self, types: &[DenseType]) -> Option<Arc<Opened>> {
        let Seen { shapes, opened } = &mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // A shape has the same bits whenever it is compiled again.
        if shapes.iter().any(|shape| shape == types) {
            return None;
        }
        if let Some(found) = opened.iter().find(|opened| opened.admits(types)) {
            return Some(found.clone());
        }
        let nearest = shapes.iter().min_by_key(|shape| differences(shape, types));
        match nearest.filter(|_| opened.len() < MAX_OPENED) {
            Some(nearest) => {
                let made = Arc::new(self.open(nearest, types));
                opened.push(made.clone());
                Some(made)
            }
            None => {
                if shapes.len() < MAX_SHAPES {
                    shapes.push(types.to_vec());
                }
                None
            }
        }
    }

    /// The graph with symbols in which two shapes differ. Extents that are equal in both are one symbol.
    fn open(&self, first: &[DenseType], second: &[DenseType]) -> Opened {
        let (mut graph, mut varying, mut axes) = (self.graph.clone(), Varying::default(), vec![]);
        for (node, (first, second)) in graph.inputs().to_vec().into_iter().zip(first.iter().zip(second)) {
            let both = first.dims.iter().copied().zip(second.dims.iter().copied());
            let (of_input, dims): (Vec<Axis>, Vec<Dim>) = both.map(|pair| varying.axis(pair, &mut graph)).unzip();
            graph.node_mut(node).types[0] = TensorType::new(first.dtype, Shape::Ranked(dims.into_iter().collect()));
            axes.push(of_input);
        }
        let parts = match &self.derive {
            Some(derive) => Parts::deriving(graph, derive.clone()),
            None => Parts::of(graph),
        };
        Opened { axes, parts }
    }
}

impl Varying {
    /// What an extent is whose numbers in both shapes these are.
    fn axis(&mut self, pair: (u64, u64), graph: &mut Graph) -> (Axis, Dim) {
        if pair.0 == pair.1 {
            return (Axis::Number(pair.0), Dim::Const(pair.0));
        }
        if let Some(at) = self.symbols.iter().position(|(known, _)| *known == pair) {
            return (Axis::Symbol(at), self.symbols[at].1);
        }
        if let Some((_, axis, dim)) = self.others.iter().find(|(known, ..)| *known == pair) {
            return (*axis, *dim);
        }
        let name = format!("n{}", self.symbols.len() + self.others.len());
        let out = graph.dims.fresh(Some(&name));
        let of = self.symbols.iter().enumerate().find_map(|(at, (of, dim))| Some((at, *dim, affine(*of, pair)?)));
        let Some((symbol, input, (mul, add))) = of else {
            self.symbols.push((pair, out));
            return (Axis::Symbol(self.symbols.len() - 1), out);
        };
        graph.dims.relate(Equation::Affine { out, input, mul, add, div: 1 }, &Origin(name.into()));
        let axis = Axis::Affine { symbol, mul, add };
        self.others.push((pair, axis, out));
        (axis, out)
    }
}

/// The factor and the addend that make one extent of another in both shapes: one of them alone.
fn affine(of: (u64, u64), to: (u64, u64)) -> Option<(i64, i64)> {
    let [x, y, a, b] = [of.0, of.1, to.0, to.1].map(|n| i64::try_from(n).ok());
    let (x, y, a, b) = (x?, y?, a?, b?);
    let mul = if x == 0 { 0 } else { a / x };
    if mul > 1 && x.checked_mul(mul) == Some(a) && y.checked_mul(mul) == Some(b) {
        return Some((mul, 0));
    }
    (a - x == b - y).then_some((1, a - x))
}

/// In how many extents two shapes differ.
fn differences(first: &[DenseType], second: &[DenseType]) -> usize {
    first.iter().zip(second).flat_map(|(x, y)| x.dims.iter().zip(y.dims.iter())).filter(|(x, y)| x != y).count()
}

impl Opened {
    /// Whether inputs of these types differ from the others in extents that are symbols.
    fn admits(&self, types: &[DenseType]) -> bool {
        let mut numbers: Vec<Option<u64>> = vec![];
        let mut fits = |axis: &Axis, n: u64| match *axis {
            Axis::Number(known) => known == n,
            Axis::Symbol(at) => {
                numbers.resize(numbers.len().max(at + 1), None);
                *numbers[at].get_or_insert(n) == n
            }
            Axis::Affine { symbol, mul, add } => {
                let of = numbers.get(symbol).copied().flatten().and_then(|n| i64::try_from(n).ok());
                of.and_then(|of| of.checked_mul(mul)?.checked_add(add)) == i64::try_from(n).ok()
            }
        };
        self.axes.iter().zip(types).all(|(axes, ty)| axes.iter().zip(ty.dims.iter()).all(|(axis, n)| fits(axis, *n)))
    }

    fn program(&self, compiler: &Compiler, types: &[DenseType]) -> Option<Program> {
        let mut report = Report::default();
        let model = self.parts.whole(compiler, types, &mut report)?;
        model.program(compiler, types, report)
    }
}
