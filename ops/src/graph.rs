//! Composite operators and derivatives written with operators: handles on the values of a graph under construction.
//!
//! Handles share the builder and are copied freely. An operator is added when Rust evaluates the expression. After the
//! first error nothing more is added; it is the error of the whole body.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::compose::{cast, maybe, number, operand, reduce, reshape, with_number};
use crate::views::{Build, Complaint, OrFail, sum_of};
use tensorc_ir::build::{Builder, IterationInputs, LoopOperands, LoopResults};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::Value;
use tensorc_ir::index::Index;
use tensorc_ir::kir::Kernel;
use tensorc_ir::op::{Compute, GradCtx, NodeCtx, OpError};
use tensorc_ir::params::Params;
use tensorc_ir::prim::{Contraction, Prim, Reduction, View};
use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder};
use tensorc_ir::{DType, DenseType, Extent, Extents, TensorData};

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

/// The gradients of operands.
pub type Gradients<'g> = Result<Vec<Option<Tensor<'g>>>>;

/// One iteration of [`GraphScope::repeat`].
pub type Repeated<'f> = dyn for<'b> Fn(GraphScope<'b>, [&[Tensor<'b>]; 3]) -> Result<[Vec<Tensor<'b>>; 2]> + 'f;

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
    Compute::Composite(Box::new(move |b, cx, args| results(b, args, |g| body(g, cx))))
}

/// The results of a body.
pub fn results(
    b: &mut Builder<'_>,
    operands: &[Option<Value>],
    body: impl for<'g> FnOnce(GraphScope<'g>) -> Result<Vec<Tensor<'g>>>,
) -> Result<Vec<Value>> {
    let results = within(b, operands, |g| Ok(body(g)?.into_iter().map(Some).collect()))?;
    Ok(results.into_iter().flatten().collect())
}

/// The rule of a derivative, for [`Define::gradient`]: the gradient of each operand.
pub fn derivative(
    body: impl for<'g> Fn(GraphScope<'g>, &GradCtx<'_>) -> Gradients<'g> + Send + Sync + 'static,
) -> impl Fn(&mut Builder<'_>, &GradCtx<'_>) -> Result<Vec<Option<Value>>> + Send + Sync + 'static {
    move |b, cx| within(b, cx.inputs, |g| body(g, cx))
}

fn within(
    b: &mut Builder<'_>,
    operands: &[Option<Value>],
    body: impl for<'g> FnOnce(GraphScope<'g>) -> Gradients<'g>,
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

    /// The required operands from the first on.
    pub fn operands<const N: usize>(self) -> [Tensor<'g>; N] {
        std::array::from_fn(|i| self.operand(i))
    }

    /// All operands that are given.
    pub fn given(self) -> Vec<Tensor<'g>> {
        self.operands.iter().flatten().map(|v| self.value(*v)).collect()
    }

    /// An optional operand.
    pub fn maybe(self, i: usize) -> Option<Tensor<'g>> {
        maybe(self.operands, i).map(|v| self.value(v))
    }

    /// The gradient of a result, zeros if nothing depends on it.
    pub fn head(self, cx: &GradCtx<'_>, i: usize) -> Tensor<'g> {
        self.add(|b| cx.head(b, i))
    }

    /// The gradient of a result, if anything depends on it.
    pub fn given_head(self, cx: &GradCtx<'_>, i: usize) -> Option<Tensor<'g>> {
        maybe(cx.heads, i).map(|v| self.value(v))
    }

    /// The value that a function of the builder makes of others.
    pub fn join(self, parts: &[Tensor<'g>], f: impl FnOnce(&mut Builder<'_>, &[Value]) -> Result<Value>) -> Tensor<'g> {
        let parts: Option<Vec<Value>> = parts.iter().map(|t| t.value).collect();
        Tensor { graph: self, value: parts.and_then(|parts| self.attempt(|b| f(b, &parts))) }
    }

    /// An operator with one result.
    pub fn op(self, name: &str, operands: &[Tensor<'g>], params: Params) -> Tensor<'g> {
        self.join(operands, |b, operands| b.op(name, operands, params))
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
        self.join(parts, |b, parts| b.concat(parts, axis))
    }

    /// An element-wise expression over `dims` of tensors that broadcast to them, as elements of a type.
    pub fn map(
        self,
        inputs: &[Tensor<'g>],
        dtype: DType,
        dims: impl Into<Extents>,
        f: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex,
    ) -> Tensor<'g> {
        self.join(inputs, |b, inputs| b.map_as(inputs, dtype, dims, f))
    }

    /// As [`GraphScope::map`], of an expression that computes with extents, too: operands where they depend on symbols.
    pub fn map_with_extents(
        self,
        inputs: &[Tensor<'g>],
        extents: &Extents,
        dtype: DType,
        dims: impl Into<Extents>,
        f: impl FnOnce(&ScalarBuilder, &[Ex], &[Ex]) -> Ex,
    ) -> Tensor<'g> {
        let open: Extents = extents.all().filter(|n| n.known().is_none()).collect();
        let mut operands = inputs.to_vec();
        if !open.is_empty() {
            let all = self.extents(&open);
            operands.extend((0..open.len() as u64).map(|i| all.slice(0, i, 1).reshape([])));
        }
        self.map(&operands, dtype, dims, |s, a| {
            let (a, open) = a.split_at(inputs.len());
            let mut open = open.iter().cloned();
            let known = |n: i64| s.constant(Scalar::i64(n));
            let extents: Vec<Ex> = extents.all().filter_map(|n| n.known().map(known).or_else(|| open.next())).collect();
            f(s, a, &extents)
        })
    }

    /// A tensor of one number throughout.
    pub fn filled(self, ty: &DenseType, x: f64) -> Tensor<'g> {
        self.add(|b| b.filled(ty, x))
    }

    /// A constant.
    pub fn constant(self, data: TensorData) -> Tensor<'g> {
        self.add(|b| Ok(b.constant(data)))
    }

    /// A constant without axes.
    pub fn scalar(self, x: Scalar) -> Tensor<'g> {
        self.add(|b| Ok(b.scalar(x)))
    }

    /// A vector of integers: positions, axes, extents.
    pub fn i64s(self, values: &[i64]) -> Tensor<'g> {
        self.add(|b| Ok(b.i64s(values)))
    }

    /// A vector of extents, as integers.
    pub fn extents(self, values: &Extents) -> Tensor<'g> {
        self.add(|b| Ok(b.extents(values)))
    }

    /// The results of a kernel.
    pub fn kernel(
        self,
        kernel: Result<Kernel, OpError>,
        inputs: &[Tensor<'g>],
        types: &[DenseType],
    ) -> Result<Vec<Tensor<'g>>> {
        let inputs: Vec<Value> = inputs.iter().filter_map(|t| t.value).collect();
        let made = self.build(|b| b.kernel(kernel, &inputs, types))?;
        Ok(made.into_iter().map(|v| self.value(v)).collect())
    }

    /// Repeats an iteration, given what is carried, rows of what is scanned, and what is fixed; it gives what is carried on, and
    /// rows of what is stacked. Results: what is carried at last, and what is stacked ([`Builder::repeat`]).
    pub fn repeat(
        self,
        trips: Extent,
        operands: [&[Tensor<'g>]; 3],
        iteration: &Repeated<'_>,
    ) -> Result<[Vec<Tensor<'g>>; 2]> {
        let [carried, scanned, fixed] =
            operands.map(|tensors| tensors.iter().filter_map(|t| t.value).collect::<Vec<Value>>());
        let operands = LoopOperands { trips, carried: &carried, scanned: &scanned, fixed: &fixed };
        let one = |b: &mut Builder<'_>, inputs: &IterationInputs| {
            let mut made = results(b, &[], |g| {
                let tensors = |values: &[Value]| values.iter().map(|v| g.value(*v)).collect::<Vec<_>>();
                let IterationInputs { carried, rows, fixed } = inputs;
                let [next, stacked] = iteration(g, [&tensors(carried), &tensors(rows), &tensors(fixed)])?;
                Ok([next, stacked].concat())
            })?;
            let stacked = made.split_off(inputs.carried.len().min(made.len()));
            Ok(LoopResults { carried: made, stacked })
        };
        let LoopResults { carried, stacked } = self.build(|b| b.repeat(operands, &one))?;
        Ok([carried, stacked].map(|values| values.into_iter().map(|v| self.value(v)).collect()))
    }

    /// What is not supported, as an error at the node.
    pub fn fail(self, why: impl Into<String>) -> Diagnostic {
        self.build(|b| Ok(b.fail(why))).unwrap_or_else(|earlier| earlier)
    }

    /// A complaint of the operator as an error at its node.
    pub fn check<T>(self, result: Result<T, OpError>) -> Result<T> {
        self.build(|b| result.map_err(|e| b.error(DiagnosticCode::TypeConflict, e.0)))
    }
}

impl Complaint for GraphScope<'_> {
    fn unsupported(&self, why: String) -> Diagnostic {
        self.fail(why)
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
    pub fn dims(self) -> Result<Extents> {
        Ok(self.ty()?.dims)
    }

    /// The only element, if it is known before the graph runs.
    pub fn known_item(self) -> Result<Option<Scalar>> {
        let item = |b: &mut Builder<'_>| self.value.and_then(|v| b.known(v)).and_then(|data| data.item());
        self.graph.build(|b| Ok(item(b)))
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

    /// What a reduction makes of the elements.
    pub fn reduced(self, how: Result<Reduction, OpError>) -> Result<Tensor<'g>> {
        let how = how.or_fail(&self.graph)?;
        Ok(self.then(|b, v| b.reduced(v, how)))
    }

    /// The results, of these types, of a reduction that has several.
    pub fn reduced_to(self, how: Reduction, types: &[DenseType]) -> Result<Vec<Tensor<'g>>> {
        let x = self.value.into_iter().collect::<Vec<_>>();
        let made = self.graph.build(|b| b.prim(Prim::Reduce(how.into()), &x, types))?;
        Ok(made.into_iter().map(|v| self.graph.value(v)).collect())
    }

    /// The sum over the axes from one on, without them.
    pub fn sum_from(self, axis: usize) -> Result<Tensor<'g>> {
        let ty = self.ty()?;
        let axes: Vec<usize> = (axis..ty.rank()).collect();
        self.reduced(sum_of(ty.dtype, &axes, false, Ex::clone, |sum| sum.cast(ty.dtype)))
    }

    /// Converts to a type.
    pub fn cast(self, to: DType) -> Tensor<'g> {
        self.then(|b, v| cast(b, v, to))
    }

    /// Converts to a type, as a primitive.
    pub fn convert(self, to: DType) -> Tensor<'g> {
        self.then(|b, v| b.converted(v, to))
    }

    /// A number as a constant of this type.
    pub fn number(self, x: f64) -> Tensor<'g> {
        self.then(|b, v| number(b, v, x))
    }

    /// The elements that a view shows.
    pub fn view(self, map: Vec<Index>, fill: Option<Scalar>, dims: impl Into<Extents>) -> Tensor<'g> {
        self.then(|b, v| b.view(v, View { map, fill }, dims))
    }

    /// The slices along an axis at positions.
    pub fn gather(self, at: Tensor<'g>, axis: usize) -> Tensor<'g> {
        self.graph.join(&[self, at], |b, v| b.gathered(v[0], v[1], axis))
    }

    /// A sum of products with the elements of another tensor.
    pub fn contract(self, other: Tensor<'g>, sum: Contraction) -> Tensor<'g> {
        self.graph.join(&[self, other], |b, v| b.contract(v[0], v[1], sum))
    }

    /// Converts to the type arithmetic is done in.
    pub fn widened(self) -> Tensor<'g> {
        self.then(crate::compose::widened)
    }

    /// Another shape of the same elements.
    pub fn reshape(self, dims: impl Into<Extents>) -> Tensor<'g> {
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

    /// As [`Tensor::reshape`], an operator of its own.
    pub fn reshaped(self, dims: impl Into<Extents>) -> Tensor<'g> {
        self.then(|b, v| reshape(b, v, dims))
    }

    /// As [`Tensor::as_type`], the shape by an operator of its own.
    pub fn reshaped_to(self, ty: &DenseType) -> Tensor<'g> {
        self.reshaped(&ty.dims).cast(ty.dtype)
    }

    /// `len` elements from `start` along one axis.
    pub fn slice(self, axis: usize, start: impl Into<Extent>, len: impl Into<Extent>) -> Tensor<'g> {
        self.then(|b, v| b.slice_axis(v, axis, start, len))
    }

    /// An expression of the elements, in their type.
    pub fn map(self, f: impl FnOnce(&Ex) -> Ex) -> Tensor<'g> {
        self.map_with(&[], |_, a| f(&a[0]))
    }

    /// The elements times `factor / n`.
    pub fn over_extent(self, factor: f64, n: Extent) -> Tensor<'g> {
        if let Some(n) = n.known() {
            let share = factor / n.max(1) as f64;
            return if share == 1.0 { self } else { self * share };
        }
        let wide = DType::F64;
        let quotient = |s: &ScalarBuilder, _: &[Ex], n: &[Ex]| s.number(wide, factor) / n[0].cast(wide);
        let share = self.graph.map_with_extents(&[], &Extents::of([n]), wide, [], quotient);
        self.graph.join(&[self, share], |b, values| {
            let dtype = b.ty(values[0])?.dtype;
            let share = b.converted(values[1], dtype)?;
            b.op("mul", &[values[0], share], Params::new())
        })
    }

    /// An element-wise expression of this tensor and of others that broadcast to it; the result has its type and shape.
    pub fn map_with(self, others: &[Tensor<'g>], f: impl FnOnce(&ScalarBuilder, &[Ex]) -> Ex) -> Tensor<'g> {
        self.graph.join(&[&[self], others].concat(), |b, inputs| {
            let ty = b.ty(inputs[0])?;
            b.map_as(inputs, ty.dtype, &ty.dims, f)
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
