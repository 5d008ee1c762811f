//! The type of an operator entry and the registry that holds them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_abi::{DType, FindOp};

use crate::build::Builder;
use crate::demand::Allowed;
use crate::diag::{Diagnostic, DiagnosticCode};
use crate::extent::Extents;
use crate::graph::Value;
use crate::infer::InferCtx;
use crate::params::{ParamKind, ParamSpec, Params};
use crate::prim::Prim;
use crate::scalar::{Ex, MathLibrary, ScalarBuilder};
use crate::tensor::TensorData;
use crate::types::DenseType;

/// A shared entry of the registry.
pub type OpRef = Arc<OpDef>;

/// Why an operator cannot do what is asked of it; the caller adds the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpError(pub String);

impl<S: Into<String>> From<S> for OpError {
    fn from(why: S) -> OpError {
        OpError(why.into())
    }
}

/// A node as its operator sees it when it is lowered: everything is known.
pub struct NodeCtx<'a> {
    /// The parameters of the node.
    pub params: &'a Params,
    /// How far composites are expanded.
    pub grain: Grain,
    /// By formal position; `None` for an absent optional operand.
    pub inputs: &'a [Option<DenseType>],
    /// The types of the results.
    pub outputs: &'a [DenseType],
    /// Values of the operands named in [`OpDef::static_inputs`], by formal position.
    pub values: &'a [Option<TensorData>],
}

/// How finely kernels that operators bring along divide their work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grain {
    /// For the few threads of a processor, which walk memory along.
    #[default]
    Coarse,
    /// For the many threads of a GPU: neighbouring iterations of the parallel loop access neighbouring elements.
    Fine,
}

impl NodeCtx<'_> {
    /// The type of a required operand.
    pub fn input(&self, i: usize) -> Result<&DenseType, OpError> {
        self.inputs.get(i).and_then(Option::as_ref).ok_or_else(|| OpError(format!("operand {i} is missing")))
    }

    /// Whether the operand at a formal position is given.
    pub fn has_input(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// The value of a static operand, if it is present.
    pub fn value(&self, i: usize) -> Option<&TensorData> {
        self.values.get(i).and_then(Option::as_ref)
    }
}

type ScalarBody = dyn Fn(&ScalarBuilder, &ScalarCtx<'_>, &[Option<Ex>]) -> Result<Vec<Ex>, OpError> + Send + Sync;
type PrimBody = dyn Fn(&NodeCtx<'_>) -> Result<Prim, OpError> + Send + Sync;
/// What a composite operator adds to a graph: its results, from its operands by formal position.
pub(crate) type CompositeBody =
    dyn Fn(&mut Builder<'_>, &NodeCtx<'_>, &[Option<Value>]) -> Result<Vec<Value>, Diagnostic> + Send + Sync;
/// What stands for the results of an operator that finds elements, by parameters, operands and the number of results.
type FoundBody =
    dyn Fn(&mut Builder<'_>, &Params, &[Option<Value>], usize) -> Result<Vec<Value>, Diagnostic> + Send + Sync;
type HostBody = dyn Fn(&NodeCtx<'_>, &[Option<TensorData>]) -> Result<Vec<TensorData>, OpError> + Send + Sync;
type FindRule = dyn Fn(&Params, usize) -> Result<FindOp, OpError> + Send + Sync;
type InferRule = dyn Fn(&mut InferCtx<'_>) -> Result<(), OpError> + Send + Sync;

/// What a scalar body may look at besides its operands. Operands arrive in their storage type:
/// arithmetic on f16 and bf16 is written as a widening, an f32 computation and a rounding.
pub struct ScalarCtx<'a> {
    /// The parameters of the node.
    pub params: &'a Params,
    /// The types of the operands as stored, by formal position.
    pub inputs: &'a [Option<DType>],
    /// Rank of the result: coordinates `0..rank` may be used.
    pub rank: usize,
    /// Extents of the result when known (always at lowering, not yet while types are inferred).
    pub dims: Option<&'a Extents>,
}

/// A node as the rule of its derivative sees it.
pub struct GradCtx<'a> {
    /// Types, parameters and static values of the node.
    pub node: &'a NodeCtx<'a>,
    /// By formal position; `None` for an absent optional operand.
    pub inputs: &'a [Option<Value>],
    /// The results of the node.
    pub outputs: &'a [Value],
    /// The gradient of each result; `None` where nothing that is differentiated depends on it.
    pub heads: &'a [Option<Value>],
}

impl GradCtx<'_> {
    /// A required operand.
    pub fn input(&self, i: usize) -> Result<Value, Diagnostic> {
        let value = self.inputs.get(i).copied().flatten();
        value.ok_or_else(|| Diagnostic::new(DiagnosticCode::Operands, format!("operand {i} is missing")))
    }

    /// The gradient of a result, zeros if nothing depends on it.
    pub fn head(&self, b: &mut Builder<'_>, i: usize) -> Result<Value, Diagnostic> {
        match self.heads.get(i).copied().flatten() {
            Some(head) => Ok(head),
            None => b.filled(&self.node.outputs[i], 0.0),
        }
    }
}

/// The gradient of each operand by formal position, in the operand's type and shape; `None` for zero.
type GradBody = dyn Fn(&mut Builder<'_>, &GradCtx<'_>) -> Result<Vec<Option<Value>>, Diagnostic> + Send + Sync;

/// The derivative of an operator.
pub enum Grad {
    /// From what the operator computes: its expression, its primitive, or its expansion.
    Derived,
    /// Written in terms of other operators, so that it can be differentiated again. The only values it may use
    /// are those in the context: what it does not use need not be kept for it.
    Rule(Box<GradBody>),
    /// From this composite, which computes the same and takes the place of an operator that is a kernel of its
    /// own where that is differentiated.
    Through(Box<CompositeBody>),
    /// Of an operator that finds elements: as this composite, which takes elements at the positions that other operators find. It
    /// takes the operator's place in a graph that is to be divided and differentiated, where types may not be known yet.
    Found(Box<FoundBody>),
    /// Nothing flows back, without this being a mistake: the result is constant to differentiation.
    Zero,
    /// Asking for it is an error, for this reason.
    None(&'static str),
}

/// Results of a node, as its parameters decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultCount {
    /// Those that users compose with.
    pub visible: usize,
    /// Those and what else MXNet counts, for example the mask of a dropout. The next values of
    /// [`OpDef::states`] come after these.
    pub listed: usize,
}

/// Auxiliary state: pairs of an operand's formal position and the result that is its next value. Whoever runs the
/// operator writes the one over the other; see [`crate::graph::Graph::add_update`].
pub enum States {
    /// Operand and result, by formal position.
    Fixed(Vec<(usize, usize)>),
    /// As the parameters decide, of an operator with any number of operands.
    Rule(Box<StateRule>),
}

type StateRule = dyn Fn(&Params) -> Vec<(usize, usize)> + Send + Sync;
type Presence = dyn Fn(&Params, usize) -> bool + Send + Sync;
type Fixed = dyn Fn(&Params, usize) -> Option<f64> + Send + Sync;
type DemandRule = dyn Fn(&NodeCtx<'_>) -> Result<Option<Allowed>, OpError> + Send + Sync;
type ResultRule = dyn Fn(&Params) -> ResultCount + Send + Sync;

/// How an operator computes.
pub enum Compute {
    /// Element-wise with broadcasting, from one expression over the operands' elements.
    Scalar(Box<ScalarBody>),
    /// One primitive.
    Prim(Box<PrimBody>),
    /// A graph of other operators.
    Composite(Box<CompositeBody>),
    /// Output shapes depend on element values: runs on the host between compiled stages.
    Host(Box<HostBody>),
}

/// How result types follow from operand types, and back.
pub enum Infer {
    /// For [`Compute::Scalar`]: broadcast shapes; the element type is that of the expression.
    Derived,
    /// A function that states equations.
    Rule(Box<InferRule>),
}

/// Which element types an operand may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeRule {
    /// Any type.
    Any,
    /// Equal to every other operand of the same group, and in the list unless it is empty.
    Group(u8, &'static [DType]),
    /// One of these types.
    OneOf(&'static [DType]),
}

/// A formal operand.
#[derive(Clone, Debug)]
pub struct InputSpec {
    /// Its name.
    pub name: &'static str,
    /// The types it may have.
    pub ty: TypeRule,
    /// Whether it may be absent.
    pub optional: bool,
}

/// Distance from the exactly rounded result that an implementation may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accuracy {
    /// Equal to the reference, bit for bit.
    Exact,
    /// Units in the last place of the result type, per element, or per accumulated term.
    Ulp(f64),
    /// Only the distribution is defined.
    Random,
}

/// An operator of ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnnxName {
    /// The domain, in its long spelling.
    pub domain: &'static str,
    /// The operator type.
    pub name: &'static str,
    /// The first version of the domain's operator set that an entry's semantics agree with. Older forms are upgraded by
    /// the importer.
    pub since: u32,
}

impl OnnxName {
    /// The standard operators.
    pub const STANDARD: &'static str = "ai.onnx";
    /// The operators that ONNX Runtime adds.
    pub const MICROSOFT: &'static str = "com.microsoft";
    /// The operators of classical machine learning.
    pub const ML: &'static str = "ai.onnx.ml";

    /// Whether it is a standard operator.
    pub fn is_standard(&self) -> bool {
        self.domain == OnnxName::STANDARD
    }
}

/// What other formats call an operator.
#[derive(Clone, Debug, Default)]
pub struct ForeignNames {
    /// Operators of ONNX.
    pub onnx: Vec<OnnxName>,
    /// ForeignNames in MXNet, the first of which is written.
    pub mxnet: Vec<&'static str>,
}

/// One operator: the only place it is described.
pub struct OpDef {
    /// The name in graphs.
    pub name: &'static str,
    /// What the operator computes.
    pub doc: &'static str,
    /// The formal operands.
    pub inputs: Vec<InputSpec>,
    /// The last input specification may repeat.
    pub variadic: bool,
    /// Least and greatest number of results.
    pub outputs: (usize, usize),
    /// The parameters.
    pub params: Vec<ParamSpec>,
    /// The parameter that a number among the operands of a call stands for: `smooth_l1(x, 2.0)`.
    pub scalar: Option<&'static str>,
    /// Formal positions of operands whose *values* decide shapes or structure.
    pub static_inputs: Vec<usize>,
    /// Formal position of a random operator's optional operand `key: u32[2]`. It selects the sequence at
    /// run time, in place of the constant key that the parameters give.
    pub key_input: Option<usize>,
    /// Auxiliary state.
    pub states: States,
    /// Whether an optional operand takes part, by parameters and formal position. Where it does, composing
    /// symbols makes a variable for it. `None`: optional operands take part if given.
    pub present: Option<Box<Presence>>,
    /// The value that every element of an operand counts as, by parameters and formal position, whatever the
    /// operand holds. Whoever runs the operator on a variable lets the variable hold it.
    pub fixed: Option<Box<Fixed>>,
    /// A loss: its gradient does not use those of its results, so nobody need give them.
    pub is_loss: bool,
    /// `None`: [`OpDef::outputs`]`.0` results, all visible.
    pub results: Option<Box<ResultRule>>,
    /// ForeignNames of results for symbols, `output` or `output0`, `output1`, … if empty.
    pub result_names: Vec<&'static str>,
    /// What it demands of the values of operands, by formal position; a rule may demand nothing of a node.
    pub demands: Vec<(usize, Box<DemandRule>)>,
    /// How results are computed.
    pub compute: Compute,
    /// Of an operator that finds elements, what it looks for, by parameters and the rank of the first operand: the host of a
    /// model compiled ahead of time computes it so.
    pub finds: Option<Box<FindRule>>,
    /// How types are inferred.
    pub infer: Infer,
    /// The derivative.
    pub grad: Grad,
    /// How far results may be from the reference.
    pub accuracy: Accuracy,
    /// What other formats call it.
    pub names: ForeignNames,
    /// What passes need it for, if they do.
    pub role: Option<OpRole>,
}

/// What passes need an operator of the registry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpRole {
    /// The adjoint of [`crate::prim::Gather`]: adds up slices by index. Operands: updates, indices, and the
    /// extent of the parameter `axis`. It is an operator because it has loops of its own.
    GatherAdjoint,
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpDef({})", self.name)
    }
}

impl OpDef {
    /// An entry without operands or parameters, with one result.
    pub fn new(name: &'static str, doc: &'static str, compute: Compute, infer: Infer) -> OpDef {
        OpDef {
            name,
            doc,
            inputs: vec![],
            variadic: false,
            outputs: (1, 1),
            params: vec![],
            scalar: None,
            static_inputs: vec![],
            key_input: None,
            states: States::Fixed(vec![]),
            present: None,
            fixed: None,
            is_loss: false,
            results: None,
            result_names: vec![],
            demands: vec![],
            grad: match &compute {
                Compute::Host(_) => Grad::None("its result's shape depends on values"),
                _ => Grad::Derived,
            },
            compute,
            finds: None,
            infer,
            accuracy: Accuracy::Exact,
            names: ForeignNames::default(),
            role: None,
        }
    }

    /// The name of the parameter that tells an operator whether it runs for training. Whoever runs a graph
    /// sets it on every operator that has it.
    pub const TRAINING: &'static str = "training";

    /// The name of the parameter with which a loss uses the gradients of its results after all.
    pub(crate) const OUT_GRAD: &'static str = "out_grad";

    /// Whether the gradient of a node with these parameters does not use those of its results.
    pub fn ignores_heads(&self, params: &Params) -> bool {
        self.is_loss && params.bool(OpDef::OUT_GRAD) != Some(true)
    }

    /// Results of a node with these parameters.
    pub fn result_count(&self, params: &Params) -> ResultCount {
        match &self.results {
            Some(rule) => rule(params),
            None => ResultCount { visible: self.outputs.0, listed: self.outputs.0 },
        }
    }

    /// The auxiliary states of a node with these parameters.
    pub fn states(&self, params: &Params) -> Cow<'_, [(usize, usize)]> {
        match &self.states {
            States::Fixed(pairs) => Cow::Borrowed(pairs),
            States::Rule(rule) => Cow::Owned(rule(params)),
        }
    }

    /// Whether the operand at a formal position is auxiliary state.
    pub fn is_state(&self, params: &Params, operand: usize) -> bool {
        self.states(params).iter().any(|(o, _)| *o == operand)
    }

    /// The specification of the operand at a formal position.
    pub fn input_spec(&self, i: usize) -> Option<&InputSpec> {
        self.inputs.get(i).or_else(|| self.inputs.last().filter(|_| self.variadic))
    }

    /// Whether the entry can be used as it says.
    fn check(&self) -> Result<(), String> {
        let is_word = |name: &str| {
            let mut chars = name.chars();
            chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
                && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !is_word(self.name) {
            return Err("its name is not a word of letters, digits and `_`".to_owned());
        }
        for (i, spec) in self.inputs.iter().enumerate() {
            if self.inputs[..i].iter().any(|other| other.name == spec.name) {
                return Err(format!("two operands are called `{}`", spec.name));
            }
        }
        for (i, spec) in self.params.iter().enumerate() {
            if self.params[..i].iter().any(|other| other.name == spec.name) {
                return Err(format!("two parameters are called `{}`", spec.name));
            }
            if !is_word(spec.name) {
                return Err(format!("`{}` cannot be the name of a parameter", spec.name));
            }
            if let Some(default) = &spec.default {
                let alone = std::slice::from_ref(spec);
                let mut given = Params::new().with(spec.name, default.clone());
                given.complete(alone).map_err(|why| format!("the default of a parameter is wrong: {why}"))?;
            }
        }
        match self.scalar.and_then(|name| self.params.iter().find(|p| p.name == name)) {
            None if self.scalar.is_some() => Err("its scalar is no parameter".to_owned()),
            Some(spec) if self.params.len() > 1 || spec.kind != ParamKind::Float => {
                Err(format!("an operator with the scalar `{}` takes no other parameter, and it is a float", spec.name))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_operands(&self, operands: &[Option<Value>]) -> Result<(), String> {
        if operands.len() > self.inputs.len() && !self.variadic {
            return Err(format!("{} operands given, at most {} expected", operands.len(), self.inputs.len()));
        }
        let needed = 0..operands.len().max(self.inputs.len());
        let mut missing =
            needed.filter(|i| !matches!(operands.get(*i), Some(Some(_)))).filter_map(|i| self.input_spec(i));
        match missing.find(|spec| !spec.optional) {
            Some(spec) => Err(format!("operand `{}` is missing", spec.name)),
            None => Ok(()),
        }
    }
}

/// The entries for the operators of a domain by name, each with its first version.
type OnnxVersions = BTreeMap<&'static str, Vec<(u32, OpRef)>>;

/// All operators known to a compiler instance, and the math library.
pub struct Registry {
    ops: BTreeMap<&'static str, OpRef>,
    onnx: BTreeMap<&'static str, OnnxVersions>,
    mxnet: BTreeMap<&'static str, OpRef>,
    math: Box<dyn MathLibrary + Send + Sync>,
}

impl Registry {
    /// Collects operators; a name that is taken is an error.
    pub fn new(
        ops: impl IntoIterator<Item = OpDef>,
        math: Box<dyn MathLibrary + Send + Sync>,
    ) -> Result<Registry, String> {
        let mut registry = Registry { ops: BTreeMap::new(), onnx: BTreeMap::new(), mxnet: BTreeMap::new(), math };
        for op in ops {
            registry.add(op)?;
        }
        Ok(registry)
    }

    /// Adds one operator, for example a user's own.
    ///
    /// # Errors
    /// One of its names is taken, or the entry contradicts itself. Then the registry is as before.
    pub fn add(&mut self, op: OpDef) -> Result<(), String> {
        op.check().map_err(|why| format!("operator `{}`: {why}", op.name))?;
        if self.ops.contains_key(op.name) {
            return Err(format!("operator `{}` is registered twice", op.name));
        }
        for name in &op.names.mxnet {
            if let Some(other) = self.mxnet.get(name) {
                return Err(format!("operators `{}` and `{}` both have the MXNet name `{name}`", other.name, op.name));
            }
        }
        for OnnxName { domain, name, since } in &op.names.onnx {
            let versions = self.onnx.get(domain).and_then(|names| names.get(name));
            if let Some((_, other)) = versions.into_iter().flatten().find(|(version, _)| version == since) {
                return Err(format!(
                    "operators `{}` and `{}` are both `{name}` of {domain} {since}",
                    other.name, op.name
                ));
            }
        }
        let op = Arc::new(op);
        for OnnxName { domain, name, since } in &op.names.onnx {
            self.onnx.entry(domain).or_default().entry(name).or_default().push((*since, op.clone()));
        }
        for name in &op.names.mxnet {
            self.mxnet.insert(name, op.clone());
        }
        self.ops.insert(op.name, op);
        Ok(())
    }

    /// The operator of a name.
    pub fn get(&self, name: &str) -> Option<&OpRef> {
        self.ops.get(name)
    }

    /// The entry that plays a role for passes.
    pub fn with_role(&self, role: OpRole) -> Option<&OpRef> {
        self.ops.values().find(|op| op.role == Some(role))
    }

    /// The entry for an ONNX operator of a domain at a version of its operator set.
    pub fn onnx(&self, domain: &str, op_type: &str, opset: u32) -> Option<&OpRef> {
        let versions = self.onnx.get(domain)?.get(op_type)?;
        versions.iter().filter(|(since, _)| *since <= opset).max_by_key(|(since, _)| *since).map(|(_, op)| op)
    }

    /// The entry for an MXNet operator, by any of its names there.
    pub fn mxnet(&self, name: &str) -> Option<&OpRef> {
        self.mxnet.get(name)
    }

    /// Every operator, by name.
    pub fn iter(&self) -> impl Iterator<Item = &OpRef> {
        self.ops.values()
    }

    /// The bodies of the library functions.
    pub fn math(&self) -> &dyn MathLibrary {
        self.math.as_ref()
    }
}
