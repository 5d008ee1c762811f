//! Composite operators and derivatives written with operators: handles on the values of a graph under construction.
//!
//! Handles share the builder and are copied freely. An operator is added when Rust evaluates the expression. After the
//! first error nothing more is added; it is the error of the whole body.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::prelude::*;

/// What handles share.
trait Access {
    /// Runs an action, unless one has failed.
    fn act(&self, action: &mut dyn FnMut(&mut Builder<'_>) -> Result<()>);
    /// The first error.
    fn error(&self) -> Option<Diagnostic>;
}

struct Session<'a, 'b> {
    builder: RefCell<&'a mut Builder<'b>>,
    error: RefCell<Option<Diagnostic>>,
}

impl Access for Session<'_, '_> {
    fn act(&self, action: &mut dyn FnMut(&mut Builder<'_>) -> Result<()>) {
        let mut error = self.error.borrow_mut();
        if error.is_none() {
            *error = action(&mut self.builder.borrow_mut()).err();
        }
    }

    fn error(&self) -> Option<Diagnostic> {
        self.error.borrow().clone()
    }
}

/// A graph under construction: the body of an operator, with its operands.
#[derive(Clone, Copy)]
pub struct GraphScope<'g> {
    access: &'g dyn Access,
    operands: &'g [Option<Value>],
}

/// A value of the graph; none after an error.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    graph: GraphScope<'g>,
    value: Option<Value>,
}

/// A body with one result, as [`composite`].
pub fn formula(
    body: impl for<'g> Fn(GraphScope<'g>, &NodeCtx<'_>) -> Result<Tensor<'g>> + Send + Sync + 'static,
) -> Compute {
    formulas(move |g, cx| Ok(vec![body(g, cx)?]))
}

/// A body in terms of other operators.
pub fn formulas(
    body: impl for<'g> Fn(GraphScope<'g>, &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> + Send + Sync + 'static,
) -> Compute {
    Compute::Composite(Box::new(move |b, cx, args| {
        let results = within(b, args, |g| Ok(body(g, cx)?.into_iter().map(Some).collect()))?;
        Ok(results.into_iter().flatten().collect())
    }))
}

/// The rule of a derivative, for [`Define::gradient`]: the gradient of each operand.
pub fn derivative(
    body: impl for<'g> Fn(GraphScope<'g>, &GradCtx<'_>) -> Result<Vec<Option<Tensor<'g>>>> + Send + Sync + 'static,
) -> impl Fn(&mut Builder<'_>, &GradCtx<'_>) -> Result<Vec<Option<Value>>> + Send + Sync + 'static {
    move |b, cx| within(b, cx.inputs, |g| body(g, cx))
}

fn within(
    b: &mut Builder<'_>,
    operands: &[Option<Value>],
    body: impl for<'g> FnOnce(GraphScope<'g>) -> Result<Vec<Option<Tensor<'g>>>>,
) -> Result<Vec<Option<Value>>> {
    let session = Session { builder: RefCell::new(b), error: RefCell::new(None) };
    let results = body(GraphScope { access: &session, operands })
        .map(|results| results.into_iter().map(|r| r.and_then(|r| r.value)).collect());
    match session.error.take() {
        Some(error) => Err(error),
        None => results,
    }
}

impl<'g> GraphScope<'g> {
    fn attempt<T>(self, f: impl FnOnce(&mut Builder<'_>) -> Result<T>) -> Option<T> {
        let (mut f, mut made) = (Some(f), None);
        self.access.act(&mut |b| {
            made = f.take().map(|f| f(b)).transpose()?;
            Ok(())
        });
        made
    }

    /// What a function of the builder returns.
    pub fn build<T>(self, f: impl FnOnce(&mut Builder<'_>) -> Result<T>) -> Result<T> {
        let failed = || Diagnostic::new(DiagnosticCode::Internal, "a value is missing");
        self.attempt(f).ok_or_else(|| self.access.error().unwrap_or_else(failed))
    }

    /// The value that a function of the builder makes.
    pub fn add(self, f: impl FnOnce(&mut Builder<'_>) -> Result<Value>) -> Tensor<'g> {
        Tensor { graph: self, value: self.attempt(f) }
    }

    /// A handle on a value.
    pub fn value(self, value: Value) -> Tensor<'g> {
        Tensor { graph: self, value: Some(value) }
    }

    /// A required operand.
    pub fn operand(self, i: usize) -> Tensor<'g> {
        self.add(|b| operand(b, self.operands, i))
    }

    /// An optional operand.
    pub fn maybe(self, i: usize) -> Option<Tensor<'g>> {
        maybe(self.operands, i).map(|v| self.value(v))
    }

    /// The gradient of a result, zeros if nothing depends on it.
    pub fn head(self, cx: &GradCtx<'_>, i: usize) -> Tensor<'g> {
        self.add(|b| cx.head(b, i))
    }

    /// An operator with one result.
    pub fn op(self, name: &str, operands: &[Tensor<'g>], params: Params) -> Tensor<'g> {
        let operands: Option<Vec<Value>> = operands.iter().map(|t| t.value).collect();
        Tensor { graph: self, value: operands.and_then(|o| self.attempt(|b| b.op(name, &o, params))) }
    }

    /// An operator with optional operands and a number of results.
    pub fn op_multi(
        self,
        name: &str,
        operands: &[Option<Tensor<'g>>],
        params: Params,
        count: usize,
    ) -> Vec<Tensor<'g>> {
        let given: Vec<Option<Value>> = operands.iter().map(|t| t.and_then(|t| t.value)).collect();
        let complete = operands.iter().flatten().all(|t| t.value.is_some());
        let made = self.attempt(|b| match complete {
            true => b.op_multi(name, &given, params, count),
            false => Err(b.fail("a value is missing")),
        });
        let value = |i| Tensor { graph: self, value: made.as_ref().and_then(|made| made.get(i).copied()) };
        (0..count).map(value).collect()
    }

    /// Tensors joined along an axis.
    pub fn concat(self, parts: &[Tensor<'g>], axis: usize) -> Tensor<'g> {
        let parts: Option<Vec<Value>> = parts.iter().map(|t| t.value).collect();
        Tensor { graph: self, value: parts.and_then(|p| self.attempt(|b| b.concat(&p, axis))) }
    }

    /// A complaint of the operator as an error at its node.
    pub fn check<T>(self, result: Result<T, OpError>) -> Result<T> {
        self.build(|b| result.map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0)))
    }
}

impl<'g> Tensor<'g> {
    /// The value that a function of the builder makes of this one.
    pub fn then(self, f: impl FnOnce(&mut Builder<'_>, Value) -> Result<Value>) -> Tensor<'g> {
        Tensor { graph: self.graph, value: self.value.and_then(|v| self.graph.attempt(|b| f(b, v))) }
    }

    /// The graph.
    pub fn graph(self) -> GraphScope<'g> {
        self.graph
    }

    /// The type.
    pub fn ty(self) -> Result<DenseType> {
        self.graph.build(|b| b.ty(self.value.ok_or_else(|| b.fail("a value is missing"))?))
    }

    /// The extents.
    pub fn dims(self) -> Result<Vec<u64>> {
        Ok(self.ty()?.dims)
    }

    /// An operator without parameters, of this and further operands.
    pub fn call(self, name: &str, others: &[Tensor<'g>]) -> Tensor<'g> {
        self.graph.op(name, &[&[self], others].concat(), Params::new())
    }

    /// A binary operator with a number on the right.
    pub fn with_number(self, name: &str, x: f64) -> Tensor<'g> {
        self.then(|b, v| with_number(b, name, v, x))
    }

    /// `eˣ`.
    pub fn exp(self) -> Tensor<'g> {
        self.call("exp", &[])
    }

    /// The natural logarithm.
    pub fn log(self) -> Tensor<'g> {
        self.call("log", &[])
    }

    /// The square root.
    pub fn sqrt(self) -> Tensor<'g> {
        self.call("sqrt", &[])
    }

    /// `1 / √x`.
    pub fn rsqrt(self) -> Tensor<'g> {
        self.call("rsqrt", &[])
    }

    /// A reduction over axes, which stay with extent 1.
    pub fn reduce(self, name: &str, axes: &[usize]) -> Tensor<'g> {
        self.then(|b, v| reduce(b, name, v, axes))
    }

    /// The sum over axes, which stay with extent 1.
    pub fn sum(self, axes: &[usize]) -> Tensor<'g> {
        self.reduce("reduce_sum", axes)
    }

    /// The mean over axes, which stay with extent 1.
    pub fn mean(self, axes: &[usize]) -> Tensor<'g> {
        self.reduce("reduce_mean", axes)
    }

    /// Converts to a type.
    pub fn cast(self, to: DType) -> Tensor<'g> {
        self.then(|b, v| cast(b, v, to))
    }

    /// Converts to the type arithmetic is done in.
    pub fn widened(self) -> Tensor<'g> {
        self.then(crate::compose::widened)
    }

    /// Another shape of the same elements.
    pub fn reshape(self, dims: &[u64]) -> Tensor<'g> {
        self.then(|b, v| b.reshaped(v, dims))
    }

    /// The elements in the shape of a result or an operand, cast to its type.
    pub fn as_type(self, ty: &DenseType) -> Tensor<'g> {
        self.reshape(&ty.dims).cast(ty.dtype)
    }

    /// A vector over axis 1 of a tensor of the given rank, shaped to broadcast with it.
    pub fn per_channel(self, rank: usize) -> Tensor<'g> {
        self.then(|b, v| crate::compose::per_channel(b, v, rank))
    }

    /// The axes in another order.
    pub fn permute(self, order: &[usize]) -> Tensor<'g> {
        self.then(|b, v| b.permuted(v, order))
    }

    /// `len` elements from `start` along one axis.
    pub fn slice(self, axis: usize, start: u64, len: u64) -> Tensor<'g> {
        self.then(|b, v| b.slice_axis(v, axis, start, len))
    }

    /// An expression of the elements, in their type.
    pub fn map(self, f: impl FnOnce(&Ex) -> Ex) -> Tensor<'g> {
        self.map_with(&[], |_, a| f(&a[0]))
    }

    /// An element-wise expression of this tensor and of others that broadcast to it; the result has its type and shape.
    pub fn map_with(self, others: &[Tensor<'g>], f: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex) -> Tensor<'g> {
        let inputs: Option<Vec<Value>> = [&[self], others].concat().iter().map(|t| t.value).collect();
        self.then(|b, v| {
            let ty = b.ty(v)?;
            b.map_as(&inputs.unwrap_or_default(), ty.dtype, &ty.dims, f)
        })
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:literal;)*) => { $(
        impl<'g> $trait for Tensor<'g> {
            type Output = Tensor<'g>;

            fn $method(self, other: Tensor<'g>) -> Tensor<'g> {
                self.call($op, &[other])
            }
        }

        impl<'g> $trait<f64> for Tensor<'g> {
            type Output = Tensor<'g>;

            fn $method(self, other: f64) -> Tensor<'g> {
                self.with_number($op, other)
            }
        }
    )* };
}

operators! {
    Add add "add";
    Sub sub "sub";
    Mul mul "mul";
    Div div "div";
}

impl<'g> Neg for Tensor<'g> {
    type Output = Tensor<'g>;

    fn neg(self) -> Tensor<'g> {
        self.call("neg", &[])
    }
}
