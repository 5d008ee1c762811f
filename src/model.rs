//! A loaded model and the sessions compiled for the shapes it was run with.

use std::sync::Arc;

use tensorc_frontend::onnx::Decision;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DenseType, TensorData, TensorType};
use tensorc_passes::parts::Facts;
use tensorc_passes::template::{Restrictions, TemplateRequest};
use tensorc_runtime::{TensorMut, TensorRef};

use crate::binding::input_types;
use crate::branches::Branches;
use crate::cache::ProgramCache;
use crate::compile::Report;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::hot_session::{Background, HotSession};
use crate::key::ProgramKey;
use crate::lists::Lists;
use crate::outputs::Output;
use crate::part_code::{RunCode, copy, owned};
use crate::parts::Parts;
use crate::session::Session;
use crate::templates::{EqualExtents, OpenModel};
use crate::tensor::Tensor;
use crate::texts::{ModelTexts, TextCalls};

/// Names and types of a model's inputs or outputs, in order.
pub type Signature = Vec<(String, TensorType)>;

/// Sessions kept compiled, unless options say otherwise ([`crate::Options::sessions`]).
const DEFAULT_SESSIONS: usize = 64;

/// The same of models whose states grow by each run, so that each run has another shape.
const STATEFUL_SESSIONS: usize = 4096;

/// A model as imported, dimensions possibly symbolic.
pub struct Model {
    compiler: Compiler,
    parts: Arc<Parts>,
    /// Names of inputs that may be given and have no effect.
    unused: Vec<String>,
    /// What follows the inputs, and the names of the outputs, of a model of which the graph has the inputs alone.
    pub(crate) open: Option<(Open, Vec<String>)>,
    pub(crate) texts: Option<Arc<ModelTexts>>,
    sessions: ProgramCache<Arc<HotSession>>,
    background: Background,
}

/// What must be known before there is a graph.
pub(crate) enum Open {
    /// Which branches are taken.
    Branches(Branches),
    /// Which tensors there are in sequences and optional values.
    Lists(Lists<Model>),
    /// What operators on texts give, which the host computes.
    Texts(TextCalls),
}

impl Model {
    pub(crate) fn new(compiler: Compiler, graph: Graph) -> Model {
        let sessions = ProgramCache::new(compiler.options().sessions.unwrap_or(DEFAULT_SESSIONS));
        Model {
            compiler,
            parts: Arc::new(Parts::of(graph)),
            unused: vec![],
            open: None,
            texts: None,
            sessions,
            background: Background::default(),
        }
    }

    /// Of a graph whose states the caller keeps.
    pub(crate) fn on_states(compiler: Compiler, graph: Graph) -> Model {
        let parts = Arc::new(Parts::on_states(graph.clone()));
        Model { parts, sessions: ProgramCache::new(STATEFUL_SESSIONS), ..Model::new(compiler, graph) }
    }

    /// Takes what follows the inputs from a file, when it is known which branches are taken.
    pub(crate) fn with_branches(self, branches: Branches, outputs: Vec<String>) -> Model {
        let parts = Arc::new(branches.parts(self.graph().clone()));
        Model { parts, open: Some((Open::Branches(branches), outputs)), ..self }
    }

    /// Sets how the model is imported once the lengths of its sequences and optional inputs are known.
    pub(crate) fn with_lists(self, lists: Lists<Model>, outputs: Vec<String>) -> Model {
        Model { open: Some((Open::Lists(lists), outputs)), ..self }
    }

    /// Takes no notice of inputs of these names: labels of a network that is run for inference.
    pub(crate) fn accepting(self, unused: Vec<String>) -> Model {
        Model { unused, ..self }
    }

    /// The graph as imported; the inputs alone if it takes their shapes to know which branches are taken
    /// ([`Model::has_branches`], [`Model::graph_for`]) or the host computes operators on texts ([`Model::run_arrays`]), and those alone
    /// that are tensors if there are others ([`Model::with_elements`]).
    pub fn graph(&self) -> &Graph {
        self.parts.graph()
    }

    /// Whether branches of the model depend on shapes or values of its inputs.
    pub fn has_branches(&self) -> bool {
        matches!(self.open, Some((Open::Branches(_), _)))
    }

    /// Whether inputs of the model are sequences or optional.
    pub fn has_lists(&self) -> bool {
        matches!(self.open, Some((Open::Lists(_), _)))
    }

    /// The model for the tensors of the given names in its inputs that are sequences or optional: of a sequence `x` the
    /// tensors `x[0]`, `x[1]`, …, of an optional tensor `x` itself. They become inputs. A model without such inputs stays as it
    /// is. Outputs that are sequences are outputs `y[0]`, `y[1]`, … of the model.
    ///
    /// # Errors
    /// The model cannot be imported with these.
    pub fn with_elements(self, given: &[&str]) -> Result<Model, Error> {
        match &self.open {
            Some((Open::Lists(lists), _)) => lists.load(given),
            _ => Ok(self),
        }
    }

    /// The graph for inputs of the given types, in signature order. Branches and loops that types do not decide belong to the host
    /// ([`tensorc_ir::flow::Flow::by_host`]).
    ///
    /// # Errors
    /// The types contradict the model.
    pub fn graph_for(&self, types: &[DenseType]) -> Result<Graph, Error> {
        match &self.open {
            Some((Open::Branches(branches), _)) => branches.graph_for(&self.compiler, &self.parts, types),
            _ => self.parts_for(&[])?.graph_for(&self.compiler, types),
        }
    }

    /// The model whose branches and loops belong to the host, if it is imported for types of inputs; without branches of which
    /// `decision` tells that inputs take all the same one.
    pub(crate) fn by_host(&self, decision: &Decision<'_>) -> Option<Result<Model, Error>> {
        let Some((Open::Branches(branches), _)) = &self.open else { return None };
        let graph = branches.hosted_where(&self.compiler, decision);
        Some(graph.map(|graph| Model::new(self.compiler.clone(), graph)))
    }

    /// The graph for inputs of any types whose branches and loops belong to the host, if these types do not decide them.
    pub fn hosted_graph(&self) -> Option<Graph> {
        let Some((Open::Branches(branches), _)) = &self.open else { return None };
        let facts = Facts::of_any_inputs(self.graph())?;
        let mut open = TemplateRequest { graph: self.graph(), facts: &facts }.restricting(&Restrictions::default())?;
        open.replace(|inputs| self.graph_for(&input_types(inputs)?)).ok()?;
        let hosted =
            open.graph.node_ids().into_iter().any(|node| open.graph.flow(node).is_some_and(|flow| flow.by_host));
        if hosted { branches.hosted_graph(&self.compiler).ok() } else { None }
    }

    /// The next part as it is compiled for what is known and for all other numbers in ranges.
    pub(crate) fn open_part(&self, facts: &Facts, report: &mut Report) -> Option<Arc<OpenModel>> {
        let is_one = !self.has_lists() && self.refuse_text_operators().is_ok();
        is_one.then(|| self.parts.open(&self.compiler, facts, EqualExtents::Fixed, report))?
    }

    /// What is compiled, for the given values of some inputs.
    fn parts_for(&self, values: &[(String, TensorData)]) -> Result<Arc<Parts>, Error> {
        match &self.open {
            Some((Open::Lists(lists), _)) => Err(lists.unknown()),
            Some((Open::Texts(calls), _)) => Err(calls.divided()),
            Some((Open::Branches(branches), _)) => branches.parts_for(&self.compiler, &self.parts, values),
            None => Ok(self.parts.clone()),
        }
    }

    /// The model with constants in place of inputs.
    ///
    /// # Errors
    /// There is no such input, or it is of another type; or the model has inputs that are sequences or optional
    /// ([`Model::with_elements`]).
    pub fn with_values(mut self, values: &[(&str, Tensor)]) -> Result<Model, Error> {
        if let Some((Open::Lists(lists), _)) = &self.open {
            return Err(lists.unknown());
        }
        if values.is_empty() {
            return Ok(self);
        }
        self.refuse_text_operators()?;
        let mut graph = self.graph().clone();
        for (name, tensor) in values {
            let Some(&node) = graph.inputs().iter().find(|n| *graph.node(**n).name == **name) else {
                let expected = self.inputs().into_iter().map(|(n, _)| n).collect::<Vec<_>>().join(", ");
                return Err(Error::UnknownInput { name: (*name).to_owned(), expected });
            };
            tensorc_passes::infer::bind_named(&mut graph, &[(*name, tensor.0.ty.clone())]).map_err(Error::Binding)?;
            let constant = graph.add_const(*name, tensor.0.clone());
            graph.replace_uses(Value { node, port: 0 }, constant);
            graph.remove_input(node);
            graph.remove_dead();
            if let Some((Open::Branches(branches), _)) = &mut self.open {
                *branches = branches.with_fixed(name, tensor.0.clone());
            }
        }
        self.parts = Arc::new(match &self.open {
            Some((Open::Branches(branches), _)) => branches.parts(graph),
            _ => Parts::of(graph),
        });
        Ok(self)
    }

    /// The compiler that it was loaded with.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Names and types of the inputs.
    pub fn inputs(&self) -> Signature {
        let value = |node| Value { node, port: 0 };
        let one = |&n| (self.graph().node(n).name.to_string(), self.graph().resolved(value(n)));
        self.graph().inputs().iter().map(one).collect()
    }

    /// Names and types of the results; if the model has branches nothing is known of the types, nor of the tensors in
    /// sequences, and if it has inputs that are sequences or optional.
    pub fn outputs(&self) -> Signature {
        if let Some((_, names)) = &self.open {
            return names.iter().map(|name| (name.clone(), TensorType::default())).collect();
        }
        self.graph().outputs().iter().map(|(name, v)| (name.to_string(), self.graph().resolved(*v))).collect()
    }

    /// Compiles for inputs of the given types, in signature order.
    ///
    /// # Errors
    /// The types contradict the model, or it holds what is not supported; or branches depend on the values of inputs
    /// ([`Model::compile_for`]).
    pub fn compile(&self, types: &[DenseType]) -> Result<Session, Error> {
        let mut report = Report::default();
        let code = self.parts_for(&[])?.code(&self.compiler, types, &mut report)?;
        Session::of(code, report)
    }

    /// Compiles for inputs like these, in signature order: of the same types, and with the same values where small inputs
    /// decide which branches of the model are taken.
    ///
    /// # Errors
    /// As [`Model::compile`]; or branches depend on other values.
    pub fn compile_for(&self, inputs: &[Tensor]) -> Result<Session, Error> {
        let compile = || {
            let mut report = Report::default();
            let parts = self.parts_deciding(&self.deciding(inputs))?;
            Session::of(parts.code(&self.compiler, &types(inputs), &mut report)?, report)
        };
        match &self.open {
            Some((Open::Branches(branches), _)) => branches.decided(compile),
            _ => compile(),
        }
    }

    /// The graph for inputs like these, as [`Model::compile_for`] takes them.
    ///
    /// # Errors
    /// As [`Model::graph_for`]; or branches depend on other values.
    pub fn graph_like(&self, inputs: &[Tensor]) -> Result<Graph, Error> {
        let graph = || self.parts_deciding(&self.deciding(inputs))?.graph_for(&self.compiler, &types(inputs));
        match &self.open {
            Some((Open::Branches(branches), _)) => branches.decided(graph),
            _ => graph(),
        }
    }

    /// What is compiled, for the given values of the inputs at some positions.
    fn parts_deciding(&self, deciding: &[(usize, &Tensor)]) -> Result<Arc<Parts>, Error> {
        let name = |i: usize| Some(self.graph().node(*self.graph().inputs().get(i)?).name.to_string());
        let values = deciding.iter().filter_map(|(i, t)| Some((name(*i)?, t.0.clone())));
        self.parts_for(&values.collect::<Vec<_>>())
    }

    /// The inputs whose values decide which branches are taken.
    fn deciding<'t>(&self, inputs: &'t [Tensor]) -> Vec<(usize, &'t Tensor)> {
        match &self.open {
            Some((Open::Branches(branches), _)) => branches.deciding_of(inputs).collect(),
            _ => vec![],
        }
    }

    /// Compiles before the first run what that would compile: everything if all extents are known, else what runs of many shapes
    /// share. What the model has to be run for to know is left to runs: branches and numbers of tensors that depend on inputs, and
    /// shapes if operators demand something of open extents.
    ///
    /// # Errors
    /// As [`Model::compile`] if all extents are known.
    pub fn prepare(&self) -> Result<(), Error> {
        match &self.open {
            Some((Open::Lists(_), _)) => return Ok(()),
            Some((Open::Texts(calls), _)) => return calls.prepare(),
            _ => {}
        }
        let inputs = self.graph().inputs().iter().map(|node| self.graph().dense(Value { node: *node, port: 0 }));
        match inputs.collect::<Result<Vec<_>, _>>() {
            Ok(types) if self.open.is_none() => self.session(&types, &[]).map(drop),
            Ok(_) => Ok(()),
            Err(_) => {
                self.parts.prepare(&self.compiler);
                Ok(())
            }
        }
    }

    /// Runs on named inputs and returns every output by name, compiling at the first use of a
    /// combination of shapes. What was compiled for the combinations used last is kept ([`crate::Options::sessions`]);
    /// they share the weights.
    ///
    /// Of an input that is a sequence `x`, the tensors are `x[0]`, `x[1]`, …; an optional input may be left out. The model is
    /// imported and compiled at the first use of every number of tensors. Outputs that are sequences have such names, too.
    ///
    /// Threads that call at the same time run side by side, one more than the compiler has threads, and share these; others
    /// wait. On a GPU runs follow each other.
    ///
    /// # Errors
    /// An input is missing, unknown, or of the wrong type; or compiling fails.
    pub fn run(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
        if let Some((Open::Lists(lists), _)) = &self.open {
            return lists.model(&inputs.iter().map(|(name, _)| *name).collect::<Vec<_>>())?.run(inputs);
        }
        let inputs = self.ordered(inputs)?;
        // Asked once for a run: whether floats decide may change meanwhile, and the code is for what its key says.
        let session = || self.session(&types(&inputs), &self.deciding(&inputs));
        let session = match &self.open {
            Some((Open::Branches(branches), _)) => branches.decided(session)?,
            _ => session()?,
        };
        let code = session.code();
        let outputs = code.run(&inputs)?;
        session.ran(&self.background, &self.compiler, || types(&inputs));
        Ok(code.outputs().iter().cloned().zip(outputs).collect())
    }

    /// As [`Model::run`], on borrowed inputs, with the results in the order of [`Model::outputs`], each in memory of its own. Inputs and
    /// results are copied only if the model has branches or shapes in it depend on values.
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_on(&self, inputs: &[(&str, TensorRef<'_>)]) -> Result<Vec<Output>, Error> {
        if self.open.is_some() {
            let tensors = owned(&inputs.iter().map(|(_, tensor)| *tensor).collect::<Vec<_>>())?;
            let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, _)| *name).zip(tensors).collect();
            return self.run(&named)?.iter().map(|(_, tensor)| Output::try_from(tensor)).collect();
        }
        let inputs = self.ordered(inputs)?;
        let types: Vec<DenseType> = inputs.iter().map(|t| DenseType::new(t.dtype, t.dims)).collect();
        let session = self.session(&types, &[])?;
        let outputs = session.code().run_on(&inputs)?;
        session.ran(&self.background, &self.compiler, || types);
        Ok(outputs)
    }

    /// The code for inputs of these types, kept for the next time, of a model whose graph is known.
    pub(crate) fn code(&self, types: &[DenseType]) -> Result<Arc<RunCode>, Error> {
        Ok(self.session(types, &[])?.code())
    }

    /// As [`Model::run`], with outputs of the caller's, in the order of [`Model::outputs`]: for loops whose shapes change from one call to
    /// the next, such as those of decoders. Tensors are copied only if the model has branches or shapes in it depend on values.
    ///
    /// ```no_run
    /// use tensorc::runtime::{TensorMut, TensorRef};
    /// # fn main() -> Result<(), tensorc::Error> {
    /// # let model = tensorc::Compiler::new(tensorc::Options::default())?.load("model.onnx")?;
    /// let (mut tokens, mut logits) = (vec![1i64], vec![0.0f32; 256 * 32_000]);
    /// while tokens.len() < 256 {
    ///     let n = tokens.len() as u64;
    ///     let (shape, dims) = ([1, n], [1, n, 32_000]);
    ///     let given = TensorRef::from_slice(&shape, &tokens);
    ///     let results = TensorMut::from_slice(&dims, &mut logits[..tokens.len() * 32_000]);
    ///     model.run_into(&[("tokens", given)], &mut [results])?;
    ///     tokens.push(0);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Model::run`]; or an output does not have the type or shape of the result ([`tensorc_runtime::RunError`]), or their
    /// number is another.
    pub fn run_into(&self, inputs: &[(&str, TensorRef<'_>)], outputs: &mut [TensorMut<'_>]) -> Result<(), Error> {
        if self.open.is_some() {
            let tensors = owned(&inputs.iter().map(|(_, tensor)| *tensor).collect::<Vec<_>>())?;
            let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, _)| *name).zip(tensors).collect();
            let (names, results): (Vec<_>, Vec<_>) = self.run(&named)?.into_iter().unzip();
            return copy(&names, &results, outputs);
        }
        let inputs = self.ordered(inputs)?;
        let types: Vec<DenseType> = inputs.iter().map(|t| DenseType::new(t.dtype, t.dims)).collect();
        let session = self.session(&types, &[])?;
        session.code().run_into(&inputs, outputs)?;
        session.ran(&self.background, &self.compiler, || types);
        Ok(())
    }

    /// The code for inputs of these types, and the given values of some of them, kept for the next time.
    fn session(&self, types: &[DenseType], deciding: &[(usize, &Tensor)]) -> Result<Arc<HotSession>, Error> {
        let mut key = ProgramKey::of("");
        types.iter().for_each(|ty| key.ty(ty.dtype, &ty.dims));
        for (i, tensor) in deciding {
            key.number(*i as u64);
            key.raw(tensor.bytes());
        }
        self.sessions.get_or_make(&key, || {
            let parts = self.parts_deciding(deciding)?;
            let code = parts.code(&self.compiler, types, &mut Report::default())?;
            Ok(Arc::new(HotSession::new(code, parts)))
        })
    }

    /// The inputs in signature order.
    ///
    /// # Errors
    /// An input is missing or unknown.
    pub fn ordered<T: Clone>(&self, inputs: &[(&str, T)]) -> Result<Vec<T>, Error> {
        let names = || self.graph().inputs().iter().map(|node| &*self.graph().node(*node).name);
        by_name(names, |name| self.unused.iter().any(|unused| unused == name), inputs)
    }
}

/// The inputs of these names, in the order of the names. Others are accepted if they may be left unused.
///
/// # Errors
/// An input is missing or unknown.
pub(crate) fn by_name<'n, T: Clone, I: Iterator<Item = &'n str>>(
    names: impl Fn() -> I,
    is_unused: impl Fn(&str) -> bool,
    inputs: &[(&str, T)],
) -> Result<Vec<T>, Error> {
    let expected = || names().collect::<Vec<_>>().join(", ");
    let known = |name: &str| names().any(|known| known == name) || is_unused(name);
    if let Some((name, _)) = inputs.iter().find(|(name, _)| !known(name)) {
        return Err(Error::UnknownInput { name: (*name).to_owned(), expected: expected() });
    }
    let find = |name: &str| {
        let found = inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.clone());
        found.ok_or_else(|| Error::MissingInput { name: name.to_owned(), expected: expected() })
    };
    names().map(find).collect()
}

fn types(inputs: &[Tensor]) -> Vec<DenseType> {
    inputs.iter().map(|t| t.0.ty.clone()).collect()
}
