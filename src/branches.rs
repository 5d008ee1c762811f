//! Models of which the types of inputs, or small inputs themselves, decide what their branches and loops are: imported for them. Types
//! may depend on symbols, so that one import is for many shapes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tensorc_frontend::onnx::{ImportOptions, ImportedValue, OnnxError, OnnxModel, import};
use tensorc_ir::diag::Result as TypeResult;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{Extents, TensorData};
use tensorc_passes::infer::infer_graph;
use tensorc_passes::values::StaticValues;

use crate::cache::ProgramCache;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::key::ProgramKey;
use crate::parts::{Import, Parts};
use crate::tensor::Tensor;

/// Most elements of an input whose value a branch may depend on.
const MAX_DECIDING_ELEMENTS: usize = 16;

/// Combinations of deciding values for which what was compiled is kept.
const MAX_KNOWN: usize = 16;

/// Which small inputs decide by their values. It is found out when fewer do not suffice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deciding {
    Nothing,
    Integers,
    Floats,
    /// All that is known before a run does not suffice: the host runs branches and loops.
    Host,
}

impl Deciding {
    const ALL: [Deciding; 4] = [Deciding::Nothing, Deciding::Integers, Deciding::Floats, Deciding::Host];
}

/// Values of inputs by name.
type Values = Vec<(String, TensorData)>;

/// The file of a model whose branches are open.
pub(crate) struct Branches {
    file: Arc<ModelFile>,
    /// Position in [`Deciding::ALL`].
    deciding: AtomicU8,
    /// By values that decide.
    known: ProgramCache<Arc<Parts>>,
    /// The model whose branches and loops the host runs.
    hosted: OnceLock<Arc<Parts>>,
}

/// What is imported, types and values of inputs aside.
#[derive(Clone)]
struct ModelFile {
    path: PathBuf,
    /// How many tensors inputs have that are sequences or optional.
    lengths: Vec<(String, usize)>,
    /// Inputs of the file that are constants of the model.
    fixed: Values,
}

impl Branches {
    /// If all that keeps a model from being imported is that it is not known which branches are taken.
    pub fn of(path: &Path, lengths: &[(&str, usize)], error: &OnnxError) -> Option<Branches> {
        error.is_undecided().then(|| {
            let lengths = lengths.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
            Branches::new(ModelFile { path: path.to_owned(), lengths, fixed: vec![] })
        })
    }

    fn new(file: ModelFile) -> Branches {
        let (deciding, known, hosted) = (AtomicU8::default(), ProgramCache::new(MAX_KNOWN), OnceLock::new());
        Branches { file: file.into(), deciding, known, hosted }
    }

    /// The same model with a constant in place of an input.
    #[must_use]
    pub fn with_fixed(&self, name: &str, value: TensorData) -> Branches {
        let mut file = (*self.file).clone();
        file.fixed.push((name.to_owned(), value));
        Branches::new(file)
    }

    /// The model of which `inputs` has the inputs, as it is for any values of them.
    pub fn parts(&self, inputs: Graph) -> Parts {
        Parts::importing(inputs, self.import(vec![]))
    }

    /// Whether nothing less than a run decides the branches and loops.
    pub fn are_hosted(&self) -> bool {
        self.deciding() == Deciding::Host
    }

    /// The model as it is for any types and values of its inputs: the host runs branches and loops.
    pub fn hosted(&self, compiler: &Compiler) -> Result<Arc<Parts>, Error> {
        if let Some(parts) = self.hosted.get() {
            return Ok(parts.clone());
        }
        let options = ImportOptions { hosted: true, ..ImportOptions::default() };
        let parts = Arc::new(Parts::of(self.file.import(compiler, options)?));
        Ok(self.hosted.get_or_init(|| parts).clone())
    }

    /// The model of which `inputs` has the inputs, as it is for the given values of some of them.
    pub fn parts_for(&self, inputs: &Graph, values: &[(String, TensorData)]) -> Result<Arc<Parts>, Error> {
        let mut key = ProgramKey::of("");
        for (name, data) in values {
            key.number(name.len() as u64);
            key.raw(name.as_bytes());
            key.tensor(data);
        }
        let make = || Ok(Arc::new(Parts::importing(inputs.clone(), self.import(values.to_vec()))));
        self.known.get_or_make(&key, make)
    }

    fn import(&self, values: Values) -> Arc<Import> {
        let file = self.file.clone();
        Arc::new(move |compiler, inputs| file.import_for(compiler, inputs, &values))
    }

    fn deciding(&self) -> Deciding {
        Deciding::ALL[usize::from(self.deciding.load(Ordering::Relaxed))]
    }

    /// The inputs that a branch may depend on by more than their shapes.
    pub fn deciding_of<'t>(&self, inputs: &'t [Tensor]) -> impl Iterator<Item = (usize, &'t Tensor)> {
        let deciding = self.deciding();
        let decides = move |t: &Tensor| {
            let kind = if t.dtype().is_float() { Deciding::Floats } else { Deciding::Integers };
            kind <= deciding
                && deciding != Deciding::Host
                && t.dims().iter().product::<u64>() <= MAX_DECIDING_ELEMENTS as u64
        };
        inputs.iter().enumerate().filter(move |(_, t)| decides(t))
    }

    /// Does something that depends on the inputs of [`Branches::deciding_of`], again with more of them if these do not suffice.
    pub fn decided<T>(&self, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let first = self.deciding.load(Ordering::Relaxed);
        let mut at = first;
        loop {
            match work() {
                Err(Error::Onnx { source, .. })
                    if usize::from(at) + 1 < Deciding::ALL.len() && source.is_undecided() =>
                {
                    at += 1;
                    self.deciding.store(at, Ordering::Relaxed);
                }
                // Values that decide nothing are no part of what is compiled.
                Err(error) => {
                    self.deciding.store(first, Ordering::Relaxed);
                    return Err(error);
                }
                done => return done,
            }
        }
    }
}

impl ModelFile {
    /// The model for types of its inputs, some of them with values.
    fn import_for(&self, compiler: &Compiler, inputs: &Graph, values: &[(String, TensorData)]) -> Result<Graph, Error> {
        let shape = |node: &NodeId| {
            let ty = inputs.dense(Value { node: *node, port: 0 })?;
            Ok((&*inputs.node(*node).name, ty.dims))
        };
        let shapes = inputs.inputs().iter().map(shape).collect::<TypeResult<Vec<(&str, Extents)>>>()?;
        let shapes: Vec<(&str, &Extents)> = shapes.iter().map(|(name, dims)| (*name, dims)).collect();
        let analysis = |graph: &Graph, v: Value| known(compiler, graph, v, values);
        let options = ImportOptions { shapes: &shapes, analysis: Some(&analysis), ..ImportOptions::default() };
        self.import(compiler, options)
    }

    fn import(&self, compiler: &Compiler, options: ImportOptions<'_>) -> Result<Graph, Error> {
        let fail = |source| Error::Onnx { path: self.path.clone(), source: Box::new(source) };
        let values: Vec<(&str, TensorData)> = self.fixed.iter().map(|(n, data)| (n.as_str(), data.clone())).collect();
        let lengths: Vec<(&str, usize)> = self.lengths.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let options = ImportOptions { lengths: &lengths, values: &values, ..options };
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
