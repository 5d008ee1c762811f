//! Type and shape inference for one node: the equations an operator may state, and their solution.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_abi::DType;

use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::dim::{DimConflict, DimTable, Equation, Origin};
use crate::extent::{Extent, Extents};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::op::{Compute, Infer, OpDef, OpError, ScalarCtx, TypeRule};
use crate::params::Params;
use crate::scalar::{Ex, ScalarBuilder, ScalarFn};
use crate::tensor::TensorData;
use crate::types::{Dim, Dims, MAX_RANK, Shape, TensorType};

/// Gives the value of a graph value if it is, or folds to, a constant.
pub(crate) type ValueOf<'a> = dyn Fn(&Graph, Value) -> Option<TensorData> + 'a;

/// What an inference rule sees of its node. Every method may be called again when more is known;
/// facts only ever accumulate.
pub struct InferCtx<'a> {
    /// The parameters of the node.
    pub params: &'a Params,
    def: &'a OpDef,
    dims: &'a mut DimTable,
    inputs: Vec<Option<TensorType>>,
    outputs: Vec<TensorType>,
    values: Vec<Option<TensorData>>,
    origin: Origin,
    changed: bool,
}

impl InferCtx<'_> {
    /// Number of formal operands given (trailing absent ones not counted).
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Number of results.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the operand at a formal position is given.
    pub fn has_input(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// The type of an operand, dimensions resolved; unknown if it is absent. Extents are numbers ([`Extent::fixed`]).
    pub fn input(&self, i: usize) -> TensorType {
        TensorType { dtype: self.input_dtype(i), shape: fixed(self.input_shape(i)) }
    }

    /// The element type of an operand, if it is known.
    pub fn input_dtype(&self, i: usize) -> Option<DType> {
        self.inputs.get(i).and_then(Option::as_ref).and_then(|t| t.dtype)
    }

    /// The type of a result, dimensions resolved. Extents are numbers ([`Extent::fixed`]).
    pub fn output(&self, i: usize) -> TensorType {
        TensorType { dtype: self.outputs[i].dtype, shape: fixed(self.output_shape(i)) }
    }

    /// The element type of a result, if it is known.
    pub fn output_dtype(&self, i: usize) -> Option<DType> {
        self.outputs[i].dtype
    }

    /// The resolved axes of an operand, if its rank is known. Extents are numbers ([`Extent::fixed`]).
    pub fn input_dims(&self, i: usize) -> Option<Dims> {
        self.input(i).shape.dims().map(Dims::from)
    }

    /// The shape of an operand, dimensions resolved; unknown if it is absent. Extents may depend on symbols: a rule must not take
    /// them for dimensions that are not known yet.
    pub fn input_shape(&self, i: usize) -> Shape {
        self.inputs.get(i).and_then(Option::as_ref).map(|t| self.dims.resolve_shape(&t.shape)).unwrap_or_default()
    }

    /// The shape of a result, as [`InferCtx::input_shape`].
    pub fn output_shape(&self, i: usize) -> Shape {
        self.dims.resolve_shape(&self.outputs[i].shape)
    }

    /// The axes of an operand, if its rank is known, as [`InferCtx::input_shape`].
    pub fn open_dims(&self, i: usize) -> Option<Dims> {
        self.input_shape(i).dims().map(Dims::from)
    }

    /// The value of a static operand, if it is constant.
    pub fn value(&self, i: usize) -> Option<&TensorData> {
        self.values.get(i).and_then(Option::as_ref)
    }

    /// A new unknown dimension.
    pub fn fresh(&mut self) -> Dim {
        self.dims.fresh(None)
    }

    /// A dimension with what is known of it.
    pub fn resolve(&self, dim: Dim) -> Dim {
        self.dims.resolve(dim)
    }

    /// Makes two dimensions equal.
    pub fn unify_dims(&mut self, expected: Dim, found: Dim, what: &str) -> Result<(), OpError> {
        let origin = self.origin.clone();
        self.changed |= self.dims.unify(expected, found, &origin).map_err(|c| conflict(what, &c))?;
        Ok(())
    }

    /// States a relation that is solved as soon as enough is known.
    pub fn relate(&mut self, equation: Equation) -> Result<(), OpError> {
        self.dims.relate(equation, &self.origin);
        self.changed |= self.dims.solve().map_err(|c| conflict("dimensions", &c))?;
        Ok(())
    }

    /// `floor((input·mul + add) / div)` as a dimension.
    pub fn affine(&mut self, input: Dim, mul: i64, add: i64, div: i64) -> Result<Dim, OpError> {
        let out = self.fresh_or_known(input, mul, add, div);
        if let Dim::Sym(_) = out {
            self.relate(Equation::Affine { out, input, mul, add, div })?;
        }
        Ok(self.resolve(out))
    }

    fn fresh_or_known(&mut self, input: Dim, mul: i64, add: i64, div: i64) -> Dim {
        match self.resolve(input).as_extent() {
            Some(n) => Dim::of((n * mul + add).div_floor(div).greatest(0)),
            None => self.fresh(),
        }
    }

    /// States the shape of an output.
    pub fn set_output_shape(&mut self, i: usize, shape: Shape) -> Result<(), OpError> {
        if let Some(rank) = shape.rank().filter(|rank| *rank > MAX_RANK) {
            return Err(OpError(format!("output {i} would have {rank} axes; a tensor has {MAX_RANK} at most")));
        }
        let mut ty = std::mem::take(&mut self.outputs[i]);
        let result = self.merge_shape(&mut ty, shape, &format!("output {i}"));
        self.outputs[i] = ty;
        result
    }

    /// States the axes of a result.
    pub fn set_output_dims(&mut self, i: usize, dims: impl IntoIterator<Item = Dim>) -> Result<(), OpError> {
        self.set_output_shape(i, Shape::Ranked(dims.into_iter().collect()))
    }

    /// A result has the shape of an operand, as far as that is known.
    pub fn copy_shape(&mut self, output: usize, input: usize) -> Result<(), OpError> {
        self.set_output_shape(output, self.input_shape(input))
    }

    /// States the element type of a result.
    pub fn set_output_dtype(&mut self, i: usize, dtype: DType) -> Result<(), OpError> {
        let what = format!("output {i}");
        let mut ty = std::mem::take(&mut self.outputs[i]);
        let result = self.merge_dtype(&mut ty, dtype, &what);
        self.outputs[i] = ty;
        result
    }

    /// The output has the element type of an operand (both ways).
    pub fn same_dtype(&mut self, output: usize, input: usize) -> Result<(), OpError> {
        match (self.input_dtype(input), self.outputs[output].dtype) {
            (Some(d), _) => self.set_output_dtype(output, d),
            (None, Some(d)) => self.set_input_dtype(input, d),
            (None, None) => Ok(()),
        }
    }

    /// States the shape of an operand.
    pub fn set_input_shape(&mut self, i: usize, shape: Shape) -> Result<(), OpError> {
        let what = self.input_name(i);
        let Some(mut ty) = self.inputs.get_mut(i).and_then(Option::take) else { return Ok(()) };
        let result = self.merge_shape(&mut ty, shape, &what);
        self.inputs[i] = Some(ty);
        result
    }

    /// States the axes of an operand.
    pub fn set_input_dims(&mut self, i: usize, dims: impl IntoIterator<Item = Dim>) -> Result<(), OpError> {
        self.set_input_shape(i, Shape::Ranked(dims.into_iter().collect()))
    }

    /// States the element type of an operand.
    pub fn set_input_dtype(&mut self, i: usize, dtype: DType) -> Result<(), OpError> {
        let what = self.input_name(i);
        let Some(mut ty) = self.inputs.get_mut(i).and_then(Option::take) else { return Ok(()) };
        let result = self.merge_dtype(&mut ty, dtype, &what);
        self.inputs[i] = Some(ty);
        result
    }

    /// The operand's name, for messages.
    pub fn input_name(&self, i: usize) -> String {
        match self.def.input_spec(i) {
            Some(spec) if self.def.variadic && i + 1 >= self.def.inputs.len() => {
                format!("operand `{}` ({i})", spec.name)
            }
            Some(spec) => format!("operand `{}`", spec.name),
            None => format!("operand {i}"),
        }
    }

    fn merge_shape(&mut self, ty: &mut TensorType, shape: Shape, what: &str) -> Result<(), OpError> {
        let Shape::Ranked(dims) = shape else { return Ok(()) };
        match &ty.shape {
            Shape::Unranked => {
                ty.shape = Shape::Ranked(dims);
                self.changed = true;
                Ok(())
            }
            Shape::Ranked(old) if old.len() != dims.len() => {
                Err(OpError(format!("{what}: expected rank {}, found rank {}", dims.len(), old.len())))
            }
            Shape::Ranked(old) => {
                let pairs: SmallVec<[(Dim, Dim); 4]> = dims.into_iter().zip(old.iter().copied()).collect();
                pairs
                    .into_iter()
                    .enumerate()
                    .try_for_each(|(axis, (new, old))| self.unify_dims(new, old, &format!("{what}, axis {axis}")))
            }
        }
    }

    fn merge_dtype(&mut self, ty: &mut TensorType, dtype: DType, what: &str) -> Result<(), OpError> {
        match ty.dtype {
            None => {
                ty.dtype = Some(dtype);
                self.changed = true;
                Ok(())
            }
            Some(d) if d == dtype => Ok(()),
            Some(d) => Err(OpError(format!("{what}: expected {dtype}, found {d}"))),
        }
    }

    /// The numpy broadcast of several shapes; `None` while a rank is unknown.
    pub fn broadcast(&mut self, shapes: &[Shape]) -> Result<Option<Dims>, OpError> {
        let Some(shapes) = shapes.iter().map(|s| s.dims()).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
        let mut out = Dims::new();
        for axis in 0..rank {
            let mut result = Dim::Const(1);
            for (i, shape) in shapes.iter().enumerate() {
                let Some(position) = (axis + shape.len()).checked_sub(rank) else { continue };
                result = match (result, self.dims.resolve(shape[position])) {
                    (Dim::Const(1), d) => d,
                    (d, Dim::Const(1)) => d,
                    (a, b) if a == b => a,
                    (Dim::Sym(_), Dim::Sym(_)) => self.fresh(),
                    (known, Dim::Sym(_)) | (Dim::Sym(_), known) => known,
                    (a, b) if a.as_extent() == b.as_extent() => a,
                    (a, d) | (d, a) if a.as_extent() == Some(Extent::ONE) => d,
                    (a, b) => {
                        let (a, b) = (self.dims.display(a), self.dims.display(b));
                        let what = self.input_name(i);
                        return Err(OpError(format!("{what}, axis {position}: cannot broadcast {b} to {a}")));
                    }
                };
            }
            out.push(result);
        }
        Ok(Some(out))
    }

    /// Normalises an axis in `-rank..rank`.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, OpError> {
        normalize_axis(axis, rank)
    }

    fn check_types(&mut self) -> Result<(), OpError> {
        let mut groups: Vec<(u8, DType, String)> = vec![];
        for i in 0..self.inputs.len() {
            let Some(rule) = self.def.input_spec(i).map(|s| s.ty.clone()) else { continue };
            let Some(dtype) = self.input_dtype(i) else { continue };
            let allowed = match &rule {
                TypeRule::Any => &[],
                TypeRule::Group(_, list) | TypeRule::OneOf(list) => *list,
            };
            if !allowed.is_empty() && !allowed.contains(&dtype) {
                let names: Vec<_> = allowed.iter().map(|d| d.name()).collect();
                return Err(OpError(format!(
                    "{}: expected one of {}, found {dtype}",
                    self.input_name(i),
                    names.join(", ")
                )));
            }
            if let TypeRule::Group(g, _) = rule {
                match groups.iter().find(|(other, ..)| *other == g) {
                    Some((_, d, from)) if *d != dtype => {
                        return Err(OpError(format!(
                            "{}: expected {d} like {from}, found {dtype}",
                            self.input_name(i)
                        )));
                    }
                    Some(_) => {}
                    None => groups.push((g, dtype, self.input_name(i))),
                }
            }
        }
        for i in 0..self.inputs.len() {
            if let Some(TypeRule::Group(g, _)) = self.def.input_spec(i).map(|s| s.ty.clone())
                && let Some((_, d, _)) = groups.iter().find(|(other, ..)| *other == g)
            {
                self.set_input_dtype(i, *d)?;
            }
        }
        Ok(())
    }

    /// What [`Infer::Derived`] learns: broadcast shapes, and the element type of the expression.
    pub fn derived(&mut self) -> Result<(), OpError> {
        // Nothing broadcasts with a single operand, so its shape follows from that of the result, too.
        let mut present = (0..self.inputs.len()).filter(|i| self.has_input(*i));
        if let (Some(only), None, 1) = (present.next(), present.next(), self.outputs.len()) {
            let shape = self.output_shape(0);
            self.set_input_shape(only, shape)?;
        }
        let given: Vec<Shape> = self.inputs.iter().flatten().map(|t| t.shape.clone()).collect();
        let dims = self.broadcast(&given)?;
        if let Some(dims) = &dims {
            for i in 0..self.outputs.len() {
                self.set_output_dims(i, dims.iter().copied())?;
            }
        }
        let known = self.inputs.iter().flatten().all(|t| t.dtype.is_some());
        if let (true, Compute::Scalar(_)) = (known, &self.def.compute) {
            let dtypes: Vec<Option<DType>> = self.inputs.iter().map(|t| t.as_ref().and_then(|t| t.dtype)).collect();
            let f = scalar_fn(self.def, self.params, &dtypes, dims.map_or(0, |d| d.len()), None)?;
            for (i, d) in f.output_dtypes().into_iter().enumerate() {
                self.set_output_dtype(i, d)?;
            }
        }
        Ok(())
    }
}

/// The shape with numbers for extents.
fn fixed(shape: Shape) -> Shape {
    let number = |d: Dim| d.as_const().map_or(d, Dim::Const);
    match shape {
        Shape::Ranked(dims) => Shape::Ranked(dims.into_iter().map(number).collect()),
        Shape::Unranked => Shape::Unranked,
    }
}

fn conflict(what: &str, c: &DimConflict) -> OpError {
    let from = |o: &Option<Origin>| o.as_ref().map_or(String::new(), |o| format!(" (from `{}`)", o.0));
    OpError(format!(
        "{what}: expected {}{}, found {}{}",
        c.expected,
        from(&c.expected_from),
        c.found,
        from(&c.found_from)
    ))
}

/// Maps an axis in `-rank..rank` to `0..rank`.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, OpError> {
    let r = rank as i64;
    match axis {
        a if (0..r).contains(&a) => Ok(a as usize),
        a if (-r..0).contains(&a) => Ok((a + r) as usize),
        a => Err(OpError(format!("axis {a} is out of range for rank {rank}"))),
    }
}

/// The expression of a [`Compute::Scalar`] operator for the given operand types.
pub fn scalar_fn(
    def: &OpDef,
    params: &Params,
    inputs: &[Option<DType>],
    rank: usize,
    dims: Option<&Extents>,
) -> Result<ScalarFn, OpError> {
    let Compute::Scalar(body) = &def.compute else {
        return Err(OpError(format!("{} is not element-wise", def.name)));
    };
    let b = ScalarBuilder::new();
    let args: Vec<Option<Ex>> = inputs.iter().map(|d| d.map(|d| b.input(d))).collect();
    let outputs = body(&b, &ScalarCtx { params, inputs, rank, dims }, &args)?;
    b.finish(&outputs.iter().collect::<Vec<_>>()).map_err(OpError)
}

/// Runs the rule of one operator node and writes what was learnt back to the types of the node and
/// of its operands. Returns whether anything was learnt.
pub fn infer_node(graph: &mut Graph, node: NodeId, value_of: &ValueOf<'_>) -> Result<bool> {
    let NodeKind::Op(op) = &graph.node(node).kind else { return Ok(false) };
    let (def, params, name) = (op.def.clone(), op.params.clone(), graph.node(node).name.clone());
    let operands = graph.operands(node);
    let values = (0..operands.len())
        .map(|i| match (def.static_inputs.contains(&i), operands[i]) {
            (true, Some(v)) => value_of(graph, v),
            _ => None,
        })
        .collect();
    let inputs: Vec<Option<TensorType>> = operands.iter().map(|v| v.map(|v| graph.resolved(v))).collect();
    let outputs: Vec<TensorType> = graph.node(node).types.iter().map(|t| graph.dims.resolve_type(t)).collect();
    let mut dims = std::mem::take(&mut graph.dims);
    let origin = Origin(Arc::clone(&name));
    let mut cx =
        InferCtx { params: &params, def: &def, dims: &mut dims, inputs, outputs, values, origin, changed: false };
    let result = cx.check_types().and_then(|()| match &def.infer {
        Infer::Derived => cx.derived(),
        Infer::Rule(rule) => rule(&mut cx),
    });
    let (inputs, outputs, changed) = (cx.inputs, cx.outputs, cx.changed);
    graph.dims = dims;
    if let Err(OpError(why)) = result {
        let conflict = Diagnostic::new(DiagnosticCode::TypeConflict, format!("{}: {why}", def.name)).at(&name);
        return Err(extent_origins(graph, node).into_iter().fold(conflict, Diagnostic::note));
    }
    for (v, ty) in operands.iter().zip(inputs) {
        if let (Some(v), Some(ty)) = (v, ty) {
            // A known rank keeps its variables: they remember where their extents come from.
            let old = &mut graph.node_mut(v.node).types[v.port as usize];
            old.dtype = ty.dtype;
            if old.shape == Shape::Unranked {
                old.shape = ty.shape;
            }
        }
    }
    graph.node_mut(node).types = outputs.into();
    Ok(changed)
}

/// Which extents of the operands other nodes decided.
fn extent_origins(graph: &Graph, node: NodeId) -> Vec<String> {
    let own = &graph.node(node).name;
    let mut notes = vec![];
    for v in graph.args(node) {
        for (axis, dim) in graph.ty(v).shape.dims().unwrap_or_default().iter().enumerate() {
            if let (Some(Origin(from)), Dim::Const(n)) = (graph.dims.origin(*dim), graph.dims.resolve(*dim))
                && from != *own
            {
                notes.push(format!("axis {axis} of `{}` is {n} because of `{from}`", graph.node(v.node).name));
            }
        }
    }
    notes.dedup();
    notes
}
