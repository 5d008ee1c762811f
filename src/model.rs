//! A loaded model and the sessions compiled for the shapes it was run with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::{DenseType, TensorType};

use crate::{Compiler, Error, Session, Tensor};

/// Names and types of a model's inputs or outputs, in order.
pub type Signature = Vec<(String, TensorType)>;

/// Element types and extents of a run's inputs.
type Shapes = Vec<(u8, Vec<u64>)>;

/// A model as imported, dimensions possibly symbolic.
pub struct Model {
    compiler: Compiler,
    graph: Graph,
    /// Names of inputs that may be given and have no effect.
    unused: Vec<String>,
    sessions: Mutex<BTreeMap<Shapes, Arc<Mutex<Session>>>>,
}

impl Model {
    pub(crate) fn new(compiler: Compiler, graph: Graph) -> Model {
        Model { compiler, graph, unused: vec![], sessions: Mutex::default() }
    }

    /// Takes no notice of inputs of these names: labels of a network that is run for inference.
    pub(crate) fn accepting(self, unused: Vec<String>) -> Model {
        Model { unused, ..self }
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    pub fn inputs(&self) -> Signature {
        let value = |node| Value { node, port: 0 };
        let one = |&n| (self.graph.node(n).name.to_string(), self.graph.resolved(value(n)));
        self.graph.inputs().iter().map(one).collect()
    }

    pub fn outputs(&self) -> Signature {
        self.graph.outputs().iter().map(|(name, v)| (name.to_string(), self.graph.resolved(*v))).collect()
    }

    /// Compiles for inputs of the given types, in signature order.
    ///
    /// # Errors
    /// The types contradict the model, or it holds what is not supported.
    pub fn compile(&self, types: &[DenseType]) -> Result<Session, Error> {
        let mut graph = self.graph.clone();
        tensorc_passes::infer::bind(&mut graph, types)?;
        Session::new(self.compiler.clone(), graph)
    }

    /// Runs on named inputs and returns every output by name, compiling at the first use of a
    /// combination of shapes.
    ///
    /// # Errors
    /// An input is missing, unknown, or of the wrong type; or compiling fails.
    pub fn run(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Tensor)>, Error> {
        let inputs = self.ordered(inputs)?;
        let session = self.session(&inputs)?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        let outputs = session.run(&inputs)?;
        Ok(self.graph.outputs().iter().map(|(name, _)| name.to_string()).zip(outputs).collect())
    }

    /// The inputs in signature order.
    ///
    /// # Errors
    /// An input is missing or unknown.
    pub fn ordered(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<Tensor>, Error> {
        let signature = self.inputs();
        let expected = || signature.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ");
        let known = |n: &str| signature.iter().any(|(s, _)| s == n) || self.unused.iter().any(|s| s == n);
        if let Some((name, _)) = inputs.iter().find(|(n, _)| !known(n)) {
            return Err(Error::UnknownInput { name: (*name).to_owned(), expected: expected() });
        }
        let find = |name: &String| {
            let found = inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.clone());
            found.ok_or_else(|| Error::MissingInput { name: name.clone(), expected: expected() })
        };
        signature.iter().map(|(name, _)| find(name)).collect()
    }

    fn session(&self, inputs: &[Tensor]) -> Result<Arc<Mutex<Session>>, Error> {
        let key: Shapes = inputs.iter().map(|t| (t.dtype() as u8, t.dims().to_vec())).collect();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = sessions.get(&key) {
            return Ok(found.clone());
        }
        let types: Vec<DenseType> = inputs.iter().map(|t| t.0.ty.clone()).collect();
        let session = Arc::new(Mutex::new(self.compile(&types)?));
        sessions.insert(key, session.clone());
        Ok(session)
    }
}
