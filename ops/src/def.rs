//! Short forms for writing operator entries.

use crate::graph::{GraphScope, Tensor, formula};
use crate::views::{Build, widen};
use tensorc_ir::build::Builder;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::graph::Value;
use tensorc_ir::infer::{InferCtx, normalize_axis};
use tensorc_ir::op::{
    Accuracy, Compute, Grad, GradCtx, Infer, InputSpec, NodeCtx, OnnxName, OpDef, OpError, ResultCount, ScalarCtx,
    States, TypeRule,
};
use tensorc_ir::params::{ParamKind, ParamSpec, ParamValue, Params};
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{Ex, ScalarBuilder};
use tensorc_ir::{Allowed, DType, Shape, TensorData};

/// Floating-point types.
pub const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
/// Integer types.
pub const INTS: &[DType] =
    &[DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];
/// Integer and floating-point types: all that expressions are computed in but bool, which is the last of them.
pub const NUMBERS: &[DType] = match &DType::COMPUTED {
    [numbers @ .., DType::Bool] => numbers,
    _ => panic!("bool is the last"),
};
pub(crate) const BOOLS: &[DType] = &[DType::Bool];
/// Types of shape, axis and index operands.
pub(crate) const INDICES: &[DType] = &[DType::I64, DType::I32];

/// An entry without operands or parameters; the methods of [`Define`] add them.
pub fn define(name: &'static str, doc: &'static str, compute: Compute, infer: Infer) -> OpDef {
    OpDef::new(name, doc, compute, infer)
}

/// Element-wise on operands of one type group; f16 and bf16 compute in f32 and round the result.
/// The result type is that of the expression (bool for predicates).
pub fn elementwise(
    name: &'static str,
    doc: &'static str,
    types: &'static [DType],
    operands: &[&'static str],
    body: impl Fn(&ScalarCtx<'_>, &[Ex]) -> Ex + Send + Sync + 'static,
) -> OpDef {
    let compute = scalar(move |_, cx, args| match &widened(args)[..] {
        [] => Err("it takes at least one operand".into()),
        given => Ok(narrowed(args, body(cx, given))),
    });
    define(name, doc, compute, Infer::Derived).groups(operands, types)
}

/// The operands that are there, halves as f32.
fn widened(args: &[Option<Ex>]) -> Vec<Ex> {
    args.iter().flatten().map(widen).collect()
}

/// A result in f32, rounded to the type of the first operand if that is a half.
fn narrowed(args: &[Option<Ex>], out: Ex) -> Ex {
    match args.iter().flatten().next().map(Ex::dtype) {
        Some(half @ (DType::F16 | DType::BF16)) if out.dtype() == DType::F32 => out.cast(half),
        _ => out,
    }
}

/// An element-wise body with one result that handles storage types itself.
pub fn scalar(
    body: impl Fn(&ScalarBuilder, &ScalarCtx<'_>, &[Option<Ex>]) -> Result<Ex, OpError> + Send + Sync + 'static,
) -> Compute {
    Compute::Scalar(Box::new(move |b, cx, args| body(b, cx, args).map(|x| vec![x])))
}

/// An operator that is one primitive.
pub fn prim(body: impl Fn(&NodeCtx<'_>) -> Result<Prim, OpError> + Send + Sync + 'static) -> Compute {
    Compute::Prim(Box::new(body))
}

/// A body in terms of other operators, with one result. It may assume every required operand.
pub fn composite(
    body: impl Fn(&mut Builder<'_>, &NodeCtx<'_>, &[Option<Value>]) -> Result<Value, Diagnostic> + Send + Sync + 'static,
) -> Compute {
    Compute::Composite(Box::new(move |b, cx, args| body(b, cx, args).map(|v| vec![v])))
}

/// Another operator, without parameters, of the first operand.
pub fn calling(op: &'static str) -> Compute {
    formula(move |g, _| Ok(g.operand(0).call(op, &[])))
}

/// An operator that the host computes while compiling.
pub fn host(
    body: impl Fn(&NodeCtx<'_>, &[Option<TensorData>]) -> Result<Vec<TensorData>, OpError> + Send + Sync + 'static,
) -> Compute {
    Compute::Host(Box::new(body))
}

/// An inference rule.
pub fn rule(body: impl Fn(&mut InferCtx<'_>) -> Result<(), OpError> + Send + Sync + 'static) -> Infer {
    Infer::Rule(Box::new(body))
}

/// An inference rule for shapes: the result has the type of the first operand.
pub fn shape_rule(body: impl Fn(&mut InferCtx<'_>) -> Result<(), OpError> + Send + Sync + 'static) -> Infer {
    rule(move |cx| {
        cx.same_dtype(0, 0)?;
        body(cx)
    })
}

/// A float parameter that is declared with a default; NaN if it is not, which no test overlooks.
pub fn float_param(cx: &ScalarCtx<'_>, name: &str) -> f64 {
    cx.params.float(name).unwrap_or(f64::NAN)
}

/// Chained additions to an entry.
pub trait Define: Sized {
    /// Changes the entry.
    fn edit(self, f: impl FnOnce(&mut OpDef)) -> Self;

    /// What the operator computes, for the reference.
    fn doc(self, doc: &'static str) -> Self {
        self.edit(|d| d.doc = doc)
    }

    /// The only parameter, a float that calls may also give as a number among the operands.
    fn scalar(self, name: &'static str, default: f64, doc: &'static str) -> Self {
        self.param(name, default, doc).edit(|d| d.scalar = Some(name))
    }

    /// Required operands of one type, which is that of the others added this way.
    fn groups(self, names: &[&'static str], types: &'static [DType]) -> Self {
        names.iter().fold(self, |def, name| def.group(name, types))
    }

    /// A required operand whose type agrees with the others added this way.
    fn group(self, name: &'static str, types: &'static [DType]) -> Self {
        self.edit(|d| d.inputs.push(InputSpec { name, ty: TypeRule::Group(0, types), optional: false }))
    }

    /// Required operands, each of one of the given types (empty: any).
    fn operands(self, names: &[&'static str], types: &'static [DType]) -> Self {
        names.iter().fold(self, |def, name| def.operand(name, types))
    }

    /// A required operand of one of the given types (empty: any).
    fn operand(self, name: &'static str, types: &'static [DType]) -> Self {
        let ty = if types.is_empty() { TypeRule::Any } else { TypeRule::OneOf(types) };
        self.edit(|d| d.inputs.push(InputSpec { name, ty, optional: false }))
    }

    /// An optional operand with a type rule of its own.
    fn optional(self, name: &'static str, ty: TypeRule) -> Self {
        self.edit(|d| d.inputs.push(InputSpec { name, ty, optional: true }))
    }

    /// The value of the operand added last decides shapes.
    fn static_value(self) -> Self {
        self.edit(|d| d.static_inputs.push(d.inputs.len() - 1))
    }

    /// What the operator demands of the values of an operand, by formal position. A run confirms it.
    fn demand(
        self,
        operand: usize,
        allowed: impl Fn(&NodeCtx<'_>) -> Result<Option<Allowed>, OpError> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|d| d.demands.push((operand, Box::new(allowed))))
    }

    /// An operand, by formal position, holds positions along axis `axis` of operand 0, negative ones from its end.
    fn positions(self, operand: usize) -> Self {
        self.demand(operand, |cx| {
            let data = cx.input(0)?;
            let axis = normalize_axis(cx.params.int("axis").unwrap_or(0), data.rank())?;
            Ok(Some(Allowed::position(data.dims.at(axis))))
        })
    }

    /// Required operands whose values decide shapes.
    fn static_operands(self, names: &[&'static str], types: &'static [DType]) -> Self {
        names.iter().fold(self, |def, name| def.operand(name, types).static_value())
    }

    /// Optional operands whose values decide shapes.
    fn static_optionals(self, names: &[&'static str], types: &'static [DType]) -> Self {
        names.iter().fold(self, |def, name| def.optional(name, TypeRule::OneOf(types)).static_value())
    }

    /// The operand that selects the sequence of a random operator; always the last one.
    fn key(self) -> Self {
        let def = self.optional("key", TypeRule::OneOf(&[DType::U32]));
        def.edit(|d| d.key_input = d.inputs.len().checked_sub(1))
    }

    /// The operand added last repeats.
    fn variadic(self) -> Self {
        self.edit(|d| d.variadic = true)
    }

    /// Other element types for the operands of the group.
    fn types(self, types: &'static [DType]) -> Self {
        self.edit(|d| {
            for spec in &mut d.inputs {
                if let TypeRule::Group(_, admitted) = &mut spec.ty {
                    *admitted = types;
                }
            }
        })
    }

    /// Operands of an element-wise operator have one shape, instead of being broadcast; the shape of one follows
    /// from that of another, or of the result.
    fn equal_shapes(self) -> Self {
        self.edit(|d| {
            d.infer = rule(|cx| {
                for i in 0..cx.input_count() {
                    match cx.input(i).shape {
                        Shape::Unranked => {
                            let shape = cx.output_shape(0);
                            cx.set_input_shape(i, shape)?;
                        }
                        shape => cx.set_output_shape(0, shape).map_err(|e| {
                            OpError(format!("the shapes of the operands differ at {}: {}", cx.input_name(i), e.0))
                        })?,
                    }
                }
                cx.derived()
            })
        })
    }

    /// The smallest and the largest number of results.
    fn outputs(self, least: usize, most: usize) -> Self {
        self.edit(|d| d.outputs = (least, most))
    }

    /// A parameter that need not be given.
    fn declare(self, name: &'static str, kind: ParamKind, default: Option<ParamValue>, doc: &'static str) -> Self {
        self.edit(|d| d.params.push(ParamSpec { name, kind, default, required: false, range: None, doc }))
    }

    /// Changes the parameter added last.
    fn edit_last(self, f: impl FnOnce(&mut ParamSpec)) -> Self {
        self.edit(|d| {
            if let Some(spec) = d.params.last_mut() {
                f(spec);
            }
        })
    }

    /// A parameter with a default.
    fn param(self, name: &'static str, default: impl Into<ParamValue>, doc: &'static str) -> Self {
        let default = default.into();
        self.declare(name, default.kind(), Some(default), doc)
    }

    /// A parameter that may be absent.
    fn maybe(self, name: &'static str, kind: ParamKind, doc: &'static str) -> Self {
        self.declare(name, kind, None, doc)
    }

    /// A parameter that must be given.
    fn required(self, name: &'static str, kind: ParamKind, doc: &'static str) -> Self {
        self.declare(name, kind, None, doc).edit_last(|spec| spec.required = true)
    }

    /// A positive number of things that must be given.
    fn count(self, name: &'static str, doc: &'static str) -> Self {
        self.required(name, ParamKind::Int, doc).within(1.0, i64::MAX as f64)
    }

    /// A number from 0 to 1 with a default.
    fn share(self, name: &'static str, default: f64, doc: &'static str) -> Self {
        self.param(name, default, doc).within(0.0, 1.0)
    }

    /// The standard ONNX operator with these semantics, and the first opset that has them.
    fn onnx(self, name: &'static str, since: u32) -> Self {
        self.onnx_of(OnnxName::STANDARD, name, since)
    }

    /// The operator with these semantics that ONNX Runtime adds.
    fn contrib(self, name: &'static str) -> Self {
        self.onnx_of(OnnxName::MICROSOFT, name, 1)
    }

    /// The ONNX operator of a domain with these semantics, and the first version of its operator set that has them.
    fn onnx_of(self, domain: &'static str, name: &'static str, since: u32) -> Self {
        self.edit(|d| d.names.onnx.push(OnnxName { domain, name, since }))
    }

    /// Adds a name in MXNet.
    fn mxnet(self, name: &'static str) -> Self {
        self.named(&[name])
    }

    /// Adds names in MXNet; the first is written to files.
    fn named(self, names: &[&'static str]) -> Self {
        self.edit(|d| d.names.mxnet.extend(names))
    }

    /// Parameters that steer MXNet's implementation only.
    fn ignored(self, specs: &[(&'static str, ParamValue)]) -> Self {
        specs.iter().fold(self, |def, (name, default)| def.param(name, default.clone(), "No effect."))
    }

    /// The label of a loss: an operand that only the gradient uses. A network that is run for inference may go
    /// without it.
    fn label(self) -> Self {
        self.optional("label", TypeRule::OneOf(NUMBERS)).present(|_, _| true)
    }

    /// The derivative, in terms of other operators.
    fn gradient(
        self,
        body: impl Fn(&mut Builder<'_>, &GradCtx<'_>) -> Result<Vec<Option<Value>>, Diagnostic> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|d| d.grad = Grad::Rule(Box::new(body)))
    }

    /// The derivative of an element-wise operator of one operand, by its result and the gradient of that.
    fn slope(self, body: impl Fn(&Ex, &Ex) -> Ex + Send + Sync + 'static) -> Self {
        self.gradient(move |b, cx| {
            let (ty, head) = (&cx.node.outputs[0], cx.head(b, 0)?);
            let part = b.map_as(&[cx.outputs[0], head], ty.dtype, &ty.dims, |_, a| body(&a[0], &a[1]))?;
            Ok(vec![Some(part)])
        })
    }

    /// Differentiated as this composite of the same operands, which computes the same.
    fn differentiated_as(
        self,
        body: impl for<'g> Fn(GraphScope<'g>, &NodeCtx<'_>) -> Result<Tensor<'g>> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|d| {
            d.grad =
                Grad::Through(Box::new(move |b, cx, args| crate::graph::results(b, args, |g| Ok(vec![body(g, cx)?]))));
        })
    }

    /// Of an operator that finds elements: differentiated as this composite, of operators that find integers and those that take
    /// elements. It knows no types.
    fn found_as(
        self,
        body: impl for<'g> Fn(GraphScope<'g>, &Params, usize) -> Result<Vec<Tensor<'g>>> + Send + Sync + 'static,
    ) -> Self {
        self.edit(|d| {
            d.grad = Grad::Found(Box::new(move |b, params, args, count| {
                crate::graph::results(b, args, |g| body(g, params, count))
            }));
        })
    }

    /// Constant to differentiation.
    fn no_gradient(self) -> Self {
        self.edit(|d| d.grad = Grad::Zero)
    }

    /// Differentiating it is an error, for this reason.
    fn not_differentiable(self, why: &'static str) -> Self {
        self.edit(|d| d.grad = Grad::None(why))
    }

    /// The gradient does not use those of the results.
    fn loss(self) -> Self {
        self.edit(|d| d.is_loss = true)
    }

    /// An operand that is auxiliary state, and the result that is its next value.
    fn state(self, operand: usize, result: usize) -> Self {
        self.edit(|d| {
            let mut pairs = d.states(&Params::new()).into_owned();
            pairs.push((operand, result));
            d.states = States::Fixed(pairs);
        })
    }

    /// Auxiliary states as the parameters decide.
    fn states_by(self, rule: impl Fn(&Params) -> Vec<(usize, usize)> + Send + Sync + 'static) -> Self {
        self.edit(|d| d.states = States::Rule(Box::new(rule)))
    }

    /// Whether an optional operand takes part.
    fn present(self, rule: impl Fn(&Params, usize) -> bool + Send + Sync + 'static) -> Self {
        self.edit(|d| d.present = Some(Box::new(rule)))
    }

    /// The value that every element of an operand counts as, whatever it holds.
    fn fixed(self, rule: impl Fn(&Params, usize) -> Option<f64> + Send + Sync + 'static) -> Self {
        self.edit(|d| d.fixed = Some(Box::new(rule)))
    }

    /// How many results there are.
    fn results(self, rule: impl Fn(&Params) -> ResultCount + Send + Sync + 'static) -> Self {
        self.edit(|d| d.results = Some(Box::new(rule)))
    }

    /// The names of the results.
    fn result_names(self, names: &[&'static str]) -> Self {
        self.edit(|d| d.result_names = names.to_vec())
    }

    /// One of several words.
    fn choice(self, name: &'static str, of: &'static [&'static str], default: &'static str, doc: &'static str) -> Self {
        self.declare(name, ParamKind::Choice(of), Some(default.into()), doc)
    }

    /// Inclusive bounds of the parameter added last.
    fn within(self, low: f64, high: f64) -> Self {
        self.edit_last(|spec| spec.range = Some((low, high)))
    }

    /// Error bound in units in the last place.
    fn ulp(self, n: f64) -> Self {
        self.edit(|d| d.accuracy = Accuracy::Ulp(n))
    }
}

impl Define for OpDef {
    fn edit(mut self, f: impl FnOnce(&mut OpDef)) -> OpDef {
        f(&mut self);
        self
    }
}
