//! Models with branches of which shapes, or small inputs, decide: imported anew for each.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use tensorc_frontend::onnx::{ImportOptions, ImportedValue, OnnxError, OnnxModel, import};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DenseType, TensorData};
use tensorc_passes::infer::infer_graph;
use tensorc_passes::values::StaticValues;

use crate::compiler::Compiler;
use crate::error::Error;
use crate::tensor::Tensor;

/// Most elements of an input whose value a branch may depend on.
const MAX_DECIDING_ELEMENTS: usize = 16;

/// The file of a model whose branches are open.
pub(crate) struct Branches {
    path: PathBuf,
    /// How many tensors inputs have that are sequences or optional.
    lengths: Vec<(String, usize)>,
    /// Inputs of the file that are constants of the model.
    fixed: Vec<(String, TensorData)>,
    /// Whether floats decide, too. That is found out when integers do not suffice.
    floats: AtomicBool,
}

impl Branches {
    /// If all that keeps a model from being imported is that it is not known which branches are taken.
    pub fn of(path: &Path, lengths: &[(&str, usize)], error: &OnnxError) -> Option<Branches> {
        match error {
            OnnxError::Unsupported(list) if list.only_undecided() => {
                let lengths = lengths.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
                Some(Branches { path: path.to_owned(), lengths, fixed: vec![], floats: AtomicBool::new(false) })
            }
            _ => None,
        }
    }

    /// Makes an input a constant.
    pub fn fix(&mut self, name: &str, value: TensorData) {
        self.fixed.push((name.to_owned(), value));
    }

    /// The inputs that a branch may depend on by more than their shapes.
    pub fn deciding<'t>(&self, inputs: &'t [Tensor]) -> impl Iterator<Item = (usize, &'t Tensor)> {
        let floats = self.floats.load(Ordering::Relaxed);
        let decides = move |t: &Tensor| {
            (floats || !t.dtype().is_float()) && t.dims().iter().product::<u64>() <= MAX_DECIDING_ELEMENTS as u64
        };
        inputs.iter().enumerate().filter(move |(_, t)| decides(t))
    }

    /// Does something that depends on the inputs of [`Branches::deciding`], again if that shows that floats decide.
    pub fn decided<T>(&self, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let floats = self.floats.load(Ordering::Relaxed);
        let undecided = |error: &OnnxError| matches!(error, OnnxError::Unsupported(list) if list.only_undecided());
        match work() {
            Err(Error::Onnx { source, .. }) if !floats && undecided(&source) => {
                self.floats.store(true, Ordering::Relaxed);
                // Floats that decide nothing are no part of what is compiled.
                work().inspect_err(|_| self.floats.store(false, Ordering::Relaxed))
            }
            result => result,
        }
    }

    /// The graph with the branches that are taken for inputs of the given types, some of them with values.
    pub fn taken(
        &self,
        compiler: &Compiler,
        types: &[(String, DenseType)],
        values: &[(String, TensorData)],
    ) -> Result<Graph, Error> {
        let fail = |source| Error::Onnx { path: self.path.clone(), source: Box::new(source) };
        let shapes: Vec<(&str, &[u64])> = types.iter().map(|(name, ty)| (name.as_str(), &ty.dims[..])).collect();
        let analysis = |graph: &Graph, v: Value| known(compiler, graph, v, values);
        let fixed: Vec<(&str, TensorData)> = self.fixed.iter().map(|(n, data)| (n.as_str(), data.clone())).collect();
        let lengths: Vec<(&str, usize)> = self.lengths.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let options = ImportOptions {
            shapes: &shapes,
            lengths: &lengths,
            values: &fixed,
            analysis: Some(&analysis),
            ..ImportOptions::default()
        };
        let model = OnnxModel::open_with(&self.path, compiler.read_options()).map_err(fail)?;
        Ok(import(model, compiler.registry(), &options).map_err(fail)?.graph)
    }
}

/// What follows for a value of a graph if inputs of it have the given values.
fn known(compiler: &Compiler, graph: &Graph, v: Value, values: &[(String, TensorData)]) -> ImportedValue {
    let mut part = graph.clone();
    part.set_outputs([("value".into(), v)]);
    part.remove_dead();
    let inputs: Vec<NodeId> = part.inputs().to_vec();
    for node in inputs {
        let name = part.node(node).name.clone();
        if let Some((_, data)) = values.iter().find(|(given, _)| **given == *name) {
            let constant = part.add_const(name, data.clone());
            part.replace_uses(Value { node, port: 0 }, constant);
        }
    }
    let static_bytes = compiler.options().passes.static_bytes;
    // What contradicts itself is not known; inference of the whole graph says where.
    let consistent = infer_graph(&mut part, compiler.registry(), static_bytes).is_ok();
    let v = part.outputs()[0].1;
    match consistent {
        true => ImportedValue {
            ty: part.resolved(v),
            value: StaticValues::new(compiler.registry(), static_bytes).get(&part, v),
        },
        false => ImportedValue::default(),
    }
}
