//! Operators for many shapes: the extents of which a graph takes any become symbols, and results for many extents are compared
//! with the reference interpreter's.

use tensorc::ir::graph::{Graph, NodeKind, Value};
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Registry;
use tensorc::ir::{DenseType, Dim, Shape, TensorData, TensorType};
use tensorc::passes::infer::InferTypes;
use tensorc::passes::{Pass, PassCx};
use tensorc::{Compiler, Tensor};

use crate::compare::{data, tensor};
use crate::operators::{caught, nearly_same};

/// Extents around vector widths and block sizes, primes, and the special cases 0 and 1.
const EXTENTS: [u64; 15] = [129, 33, 17, 128, 5, 2, 32, 16, 97, 31, 3, 15, 127, 1, 0];
/// Most elements of the inputs together. Sums of more differ by their order.
const MOST_ELEMENTS: u64 = 4_000;

/// A graph some of whose extents are symbols.
pub struct Opened {
    pub graph: Graph,
    /// For each input, what each axis is: a number, or one of the symbols.
    axes: Vec<Vec<Axis>>,
    symbols: usize,
    examples: Vec<TensorData>,
}

enum Axis {
    Number(u64),
    Symbol(usize),
}

/// The graph with inputs of these types, but for symbols in the place of the extents `open` (input, axis).
fn with_symbols(graph: &Graph, types: &[DenseType], open: &[(usize, usize)]) -> Graph {
    let mut graph = graph.clone();
    for id in graph.node_ids() {
        let node = graph.node_mut(id);
        if matches!(node.kind, NodeKind::Op(_)) {
            node.types.iter_mut().for_each(|ty| *ty = TensorType::unknown());
        }
    }
    for (i, (node, ty)) in graph.inputs().to_vec().into_iter().zip(types).enumerate() {
        let dim = |(axis, n): (usize, &u64)| match open.contains(&(i, axis)) {
            true => graph.dims.fresh(Some(&format!("x{i}_{axis}"))),
            false => Dim::Const(*n),
        };
        let dims = ty.dims.iter().enumerate().map(dim).collect();
        graph.node_mut(node).types[0] = TensorType::new(ty.dtype, Shape::Ranked(dims));
    }
    graph
}

fn inferred(mut graph: Graph, registry: &Registry) -> Option<Graph> {
    let infer = || InferTypes.run(&mut graph, &mut PassCx::new(registry)).is_ok();
    caught("inferring", infer).is_ok_and(|ok| ok).then_some(graph)
}

impl Opened {
    /// Opens a graph. `None` if it has nodes other than operators, or if each of its extents must have one number.
    pub fn of(graph: &Graph, examples: &[TensorData], registry: &Registry) -> Option<Opened> {
        let simple = |id| matches!(graph.node(id).kind, NodeKind::Op(_) | NodeKind::Input | NodeKind::Const(_));
        if !graph.node_ids().into_iter().all(simple) {
            return None;
        }
        let types: Vec<DenseType> = examples.iter().map(|data| data.ty.clone()).collect();
        let mut open = vec![];
        for (i, ty) in types.iter().enumerate() {
            for axis in (0..ty.rank()).filter(|axis| ty.dims[*axis] > 1) {
                open.push((i, axis));
                if inferred(with_symbols(graph, &types, &open), registry).is_none() {
                    open.pop();
                }
            }
        }
        let graph = inferred(with_symbols(graph, &types, &open), registry)?;
        let mut roots = vec![];
        let mut axis = |dim: &Dim| match graph.dims.resolve(*dim) {
            Dim::Const(n) => Axis::Number(n),
            dim => Axis::Symbol(roots.iter().position(|root| *root == dim).unwrap_or_else(|| {
                roots.push(dim);
                roots.len() - 1
            })),
        };
        let dims = |node| graph.ty(Value { node, port: 0 }).shape.dims().expect("inputs have ranks");
        let axes: Vec<Vec<Axis>> =
            graph.inputs().iter().map(|node| dims(*node).iter().map(&mut axis).collect()).collect();
        let symbols = roots.len();
        (symbols > 0).then(|| Opened { graph, axes, symbols, examples: examples.to_vec() })
    }

    /// The types of inputs for the given numbers of the symbols, if these are small enough.
    fn types(&self, numbers: &[u64]) -> Option<Vec<DenseType>> {
        let extent = |axis: &Axis| match axis {
            Axis::Number(n) => *n,
            Axis::Symbol(i) => numbers[*i],
        };
        let ty = |(axes, data): (&Vec<Axis>, &TensorData)| {
            DenseType::new(data.dtype(), axes.iter().map(extent).collect::<Vec<_>>())
        };
        let types: Vec<DenseType> = self.axes.iter().zip(&self.examples).map(ty).collect();
        (types.iter().map(DenseType::len).sum::<u64>() <= MOST_ELEMENTS).then_some(types)
    }

    /// Numbers for the symbols, the choice `at`: different ones, or equal ones, which operators may demand without saying so.
    fn numbers(&self, at: usize) -> Vec<u64> {
        let pick = |at: usize| EXTENTS[at % EXTENTS.len()];
        match at.is_multiple_of(2) {
            true => (0..self.symbols).map(|i| pick(at + 4 * i)).collect(),
            false => vec![pick(at); self.symbols],
        }
    }

    /// Compares results for some extents. Inputs repeat the elements of the examples. Returns how many shapes the operators took.
    ///
    /// # Errors
    /// The first difference, error of compiled code alone, or panic.
    pub fn judge(&self, compiler: &Compiler, choices: impl Iterator<Item = usize>) -> Result<usize, String> {
        let model = compiler.model(self.graph.clone());
        let names: Vec<String> = model.inputs().into_iter().map(|(name, _)| name).collect();
        let mut taken = 0;
        for types in choices.filter_map(|at| self.types(&self.numbers(at))) {
            let repeated = |(ty, data): (&DenseType, &TensorData)| {
                TensorData::from_fn(ty.clone(), |i| data.get(i % data.ty.len()))
            };
            let inputs: Vec<TensorData> = types.iter().zip(&self.examples).map(repeated).collect();
            let at = |why: String| {
                let types: Vec<String> = types.iter().map(ToString::to_string).collect();
                format!("({}): {why}", types.join(", "))
            };
            let want = caught("interpreting", || eval_graph(&self.graph, compiler.registry(), &inputs)).map_err(at)?;
            let named: Vec<(&str, Tensor)> = names.iter().map(String::as_str).zip(inputs.iter().map(tensor)).collect();
            let got = caught("compiling or running", || model.run(&named)).map_err(at)?;
            let Ok(want) = want else { continue };
            let got = got.map_err(|e| at(e.to_string()))?;
            for (i, ((_, got), want)) in got.iter().zip(&want).enumerate() {
                nearly_same(&data(got), want).map_err(|why| at(format!("result {i}: {why}")))?;
            }
            taken += 1;
        }
        Ok(taken)
    }
}
