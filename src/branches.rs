//! Models of which the types of inputs, or small inputs themselves, decide what their branches and loops are: imported for them. Types
//! may depend on symbols, so that one import is for many shapes.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use tensorc_frontend::onnx::{Decision, ImportOptions, ImportedValue, OnnxError, import};
use tensorc_ir::diag::Result as TypeResult;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DenseType, Extents, TensorData};
use tensorc_passes::infer::infer_graph;
use tensorc_passes::values::StaticValues;

use crate::cache::ProgramCache;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::key::ProgramKey;
use crate::parts::{Import, Parts};
use crate::source::ModelSource;
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
}

/// What becomes of loops that cannot stay in a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undecided {
    /// Short ones are written out.
    Short,
    /// The host runs them, and branches.
    Host,
    /// All are written out, however many copies that takes.
    Long,
}

/// A way to import the model.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Attempt {
    values: Deciding,
    loops: Undecided,
}

/// One after the other is tried, until one suffices. What the host runs is compiled once; a long loop that is written out, for each
/// number of iterations.
const ATTEMPTS: [Attempt; 7] = [
    Attempt { values: Deciding::Nothing, loops: Undecided::Short },
    Attempt { values: Deciding::Integers, loops: Undecided::Short },
    Attempt { values: Deciding::Floats, loops: Undecided::Short },
    Attempt { values: Deciding::Nothing, loops: Undecided::Host },
    Attempt { values: Deciding::Nothing, loops: Undecided::Long },
    Attempt { values: Deciding::Integers, loops: Undecided::Long },
    Attempt { values: Deciding::Floats, loops: Undecided::Long },
];

/// Values of inputs by name.
type Values = Vec<(String, TensorData)>;

/// The file of a model whose branches are open.
pub(crate) struct Branches {
    file: Arc<ModelFile>,
    /// Position in [`ATTEMPTS`].
    attempt: AtomicU8,
    /// By values that decide, and whether long loops are written out.
    known: ProgramCache<Arc<Parts>>,
    /// The model whose branches and loops the host runs.
    hosted: OnceLock<Arc<Parts>>,
}

/// What is imported, types and values of inputs aside.
#[derive(Clone)]
struct ModelFile {
    source: ModelSource,
    /// How many tensors inputs have that are sequences or optional.
    lengths: Vec<(String, usize)>,
    /// Inputs of the file that are constants of the model.
    fixed: Values,
}

impl Branches {
    /// If all that keeps a model from being imported is that it is not known which branches are taken.
    pub fn of(source: &ModelSource, lengths: &[(&str, usize)], error: &OnnxError) -> Option<Branches> {
        error.is_undecided().then(|| {
            let lengths = lengths.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
            Branches::new(ModelFile { source: source.clone(), lengths, fixed: vec![] })
        })
    }

    fn new(file: ModelFile) -> Branches {
        let (attempt, known, hosted) = (AtomicU8::default(), ProgramCache::new(MAX_KNOWN), OnceLock::new());
        Branches { file: file.into(), attempt, known, hosted }
    }

    /// The same model with a constant in place of an input.
    #[must_use]
    pub fn with_fixed(&self, name: &str, value: TensorData) -> Branches {
        let mut file = (*self.file).clone();
        file.fixed.push((name.to_owned(), value));
        Branches::new(file)
    }

    /// The model of which `inputs` has the inputs, as it is for any values of them, if that is decided by their types.
    pub fn parts(&self, inputs: Graph) -> Parts {
        Parts::importing(inputs, self.import(vec![], Undecided::Short))
    }

    /// The model for the given values of some inputs. `typed` is what [`Branches::parts`] has made.
    ///
    /// # Errors
    /// It cannot be imported for the host.
    pub fn parts_for(
        &self,
        compiler: &Compiler,
        typed: &Arc<Parts>,
        values: &[(String, TensorData)],
    ) -> Result<Arc<Parts>, Error> {
        self.made(compiler, typed, values, self.attempt().loops)
    }

    fn made(
        &self,
        compiler: &Compiler,
        typed: &Arc<Parts>,
        values: &[(String, TensorData)],
        loops: Undecided,
    ) -> Result<Arc<Parts>, Error> {
        match loops {
            Undecided::Host => return self.hosted(compiler),
            Undecided::Short if values.is_empty() => return Ok(typed.clone()),
            Undecided::Short | Undecided::Long => {}
        }
        let mut key = ProgramKey::of(if loops == Undecided::Long { "long" } else { "" });
        for (name, data) in values {
            key.number(name.len() as u64);
            key.raw(name.as_bytes());
            key.tensor(data);
        }
        let import = self.import(values.to_vec(), loops);
        self.known.get_or_make(&key, || Ok(Arc::new(Parts::importing(typed.graph().clone(), import))))
    }

    /// The model as it is for any types and values of its inputs: the host runs branches and loops.
    fn hosted(&self, compiler: &Compiler) -> Result<Arc<Parts>, Error> {
        if let Some(parts) = self.hosted.get() {
            return Ok(parts.clone());
        }
        let options = ImportOptions { hosted: true, ..ImportOptions::default() };
        let parts = Arc::new(Parts::of(self.file.import(compiler, options)?));
        Ok(self.hosted.get_or_init(|| parts).clone())
    }

    /// As [`Branches::hosted`], the graph alone.
    pub fn hosted_graph(&self, compiler: &Compiler) -> Result<Graph, Error> {
        Ok(self.hosted(compiler)?.graph().clone())
    }

    /// As [`Branches::hosted_graph`], without the branches that conditions decide for all inputs.
    pub fn hosted_where(&self, compiler: &Compiler, decision: &Decision<'_>) -> Result<Graph, Error> {
        let options = ImportOptions { hosted: true, decision: Some(decision), ..ImportOptions::default() };
        self.file.import(compiler, options)
    }

    /// The graph for inputs of these types: whole if they decide it, else with branches and loops for the host.
    ///
    /// # Errors
    /// The types contradict the model, or it cannot be imported.
    pub fn graph_for(&self, compiler: &Compiler, typed: &Arc<Parts>, types: &[DenseType]) -> Result<Graph, Error> {
        let graph = |loops| self.made(compiler, typed, &[], loops)?.graph_for(compiler, types);
        let mut found = graph(Undecided::Short);
        for loops in [Undecided::Long, Undecided::Host] {
            match &found {
                Err(error) if is_undecided(error) => found = graph(loops),
                _ => break,
            }
        }
        found
    }

    fn import(&self, values: Values, loops: Undecided) -> Arc<Import> {
        let file = self.file.clone();
        Arc::new(move |compiler, inputs| file.import_for(compiler, inputs, &values, loops))
    }

    fn attempt(&self) -> Attempt {
        ATTEMPTS[usize::from(self.attempt.load(Ordering::Relaxed))]
    }

    /// The inputs that a branch may depend on by more than their shapes.
    pub fn deciding_of<'t>(&self, inputs: &'t [Tensor]) -> impl Iterator<Item = (usize, &'t Tensor)> {
        let deciding = self.attempt().values;
        let decides = move |t: &Tensor| {
            let kind = if t.dtype().is_float() { Deciding::Floats } else { Deciding::Integers };
            kind <= deciding && t.dims().iter().product::<u64>() <= MAX_DECIDING_ELEMENTS as u64
        };
        inputs.iter().enumerate().filter(move |(_, t)| decides(t))
    }

    /// Does something that depends on the inputs of [`Branches::deciding_of`], again with the next attempt if this one does not suffice.
    pub fn decided<T>(&self, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let first = self.attempt.load(Ordering::Relaxed);
        let mut at = first;
        let mut host = None;
        loop {
            let error = match work() {
                Err(error) => error,
                done => return done,
            };
            let by_host = ATTEMPTS[usize::from(at)].loops == Undecided::Host;
            if !is_undecided(&error) && !by_host {
                // Values that decide nothing are no part of what is compiled.
                self.attempt.store(first, Ordering::Relaxed);
                return Err(error);
            }
            if by_host {
                host = Some(error);
            } else if usize::from(at) + 1 == ATTEMPTS.len() {
                self.attempt.store(first, Ordering::Relaxed);
                // What keeps the host from running it says more than that it is undecided.
                return Err(host.unwrap_or(error));
            }
            at += 1;
            self.attempt.store(at, Ordering::Relaxed);
        }
    }
}

fn is_undecided(error: &Error) -> bool {
    matches!(error, Error::Onnx { source, .. } if source.is_undecided())
}

impl ModelFile {
    /// The model for types of its inputs, some of them with values.
    fn import_for(
        &self,
        compiler: &Compiler,
        inputs: &Graph,
        values: &[(String, TensorData)],
        loops: Undecided,
    ) -> Result<Graph, Error> {
        let shape = |node: &NodeId| {
            let ty = inputs.dense(Value { node: *node, port: 0 })?;
            Ok((&*inputs.node(*node).name, ty.dims))
        };
        let shapes = inputs.inputs().iter().map(shape).collect::<TypeResult<Vec<(&str, Extents)>>>()?;
        let shapes: Vec<(&str, &Extents)> = shapes.iter().map(|(name, dims)| (*name, dims)).collect();
        let analysis = |graph: &Graph, v: Value| known(compiler, graph, v, values);
        let options = ImportOptions {
            shapes: &shapes,
            analysis: Some(&analysis),
            only_short: loops == Undecided::Short,
            ..ImportOptions::default()
        };
        self.import(compiler, options)
    }

    fn import(&self, compiler: &Compiler, options: ImportOptions<'_>) -> Result<Graph, Error> {
        let values: Vec<(&str, TensorData)> = self.fixed.iter().map(|(n, data)| (n.as_str(), data.clone())).collect();
        let lengths: Vec<(&str, usize)> = self.lengths.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        let options = ImportOptions { lengths: &lengths, values: &values, ..options };
        let model = self.source.open(compiler)?;
        Ok(import(model, compiler.registry(), &options).map_err(|error| self.source.error(error))?.graph)
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
