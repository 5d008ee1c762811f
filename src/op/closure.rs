//! Operators that are Rust closures: they run as they are, as steps of a plan.

use std::sync::Arc;

use tensorc_abi::{ExternCall, ExternFn};
use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::graph::Value;
use tensorc_ir::op::{Compute, Grad, GradCtx, Infer, InputSpec, NodeCtx, OpDef, OpError, TypeRule};
use tensorc_ir::params::Params;
use tensorc_ir::prim::Prim;
use tensorc_ops::def::{Define, FLOATS};
use tensorc_runtime::resource::threefry2x32;
use tensorc_runtime::{Element, TensorMut, TensorRef};

/// A call of a closure: parameters, operands to read and results to write.
pub struct ClosureCall<'c, 'd> {
    /// The parameters of the call.
    pub params: &'c Params,
    /// By formal position; `None` for an absent optional operand.
    pub inputs: &'c [Option<TensorRef<'d>>],
    /// Undefined until written.
    pub outputs: &'c mut [TensorMut<'d>],
    /// As many bytes as [`Closure::scratch`] asked for, undefined.
    pub scratch: &'c mut [u8],
    key: Option<[u32; 2]>,
}

/// The gradient call of a closure: what was asked to be kept, and gradients to write.
pub struct BackwardCall<'c, 'd> {
    /// The parameters of the call.
    pub params: &'c Params,
    /// Operands by formal position, those that [`Keep`] names.
    pub inputs: &'c [Option<TensorRef<'d>>],
    /// Results of the forward call, those that [`Keep`] names.
    pub results: &'c [Option<TensorRef<'d>>],
    /// Gradients of the results; none for [`Keep::no_heads`].
    pub heads: &'c [TensorRef<'d>],
    /// Gradients of the operands by formal position, undefined until written; `None` for operands that are not
    /// floats or are absent.
    pub grads: &'c mut [Option<TensorMut<'d>>],
    /// Working memory, as much as the operator asked for.
    pub scratch: &'c mut [u8],
    key: Option<[u32; 2]>,
}

/// Random numbers of one call. Calls get keys of the device's stream in the order in which they are made, so
/// numbers do not depend on when and where a call runs. The backward call draws the forward call's numbers.
#[derive(Clone, Debug)]
pub struct Random {
    key: [u32; 2],
    counter: u64,
}

impl Random {
    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [low, high] = threefry2x32(self.key, [self.counter as u32, (self.counter >> 32) as u32]);
        self.counter += 1;
        u64::from(high) << 32 | u64::from(low)
    }

    /// Uniform in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn random(key: Option<[u32; 2]>) -> Result<Random, String> {
    let key = key.ok_or("it draws random numbers but is not `Closure::random`")?;
    Ok(Random { key, counter: 0 })
}

fn given<'d>(tensors: &[Option<TensorRef<'d>>], i: usize, what: &str) -> Result<TensorRef<'d>, String> {
    tensors.get(i).copied().flatten().ok_or_else(|| format!("{what} {i} is not given"))
}

fn slice<'d, T: Element>(tensor: TensorRef<'d>, what: &str) -> Result<&'d [T], String> {
    tensor.as_slice().ok_or_else(|| format!("{what} holds {}, not aligned {}", tensor.dtype, T::DTYPE))
}

fn slice_mut<'t, T: Element>(tensor: &'t mut TensorMut<'_>, what: &str) -> Result<&'t mut [T], String> {
    let dtype = tensor.dtype;
    tensor.as_mut_slice().ok_or_else(|| format!("{what} holds {dtype}, not aligned {}", T::DTYPE))
}

impl<'d> ClosureCall<'_, 'd> {
    /// An operand that is present.
    ///
    /// # Errors
    /// It is absent.
    pub fn input(&self, i: usize) -> Result<TensorRef<'d>, String> {
        given(self.inputs, i, "operand")
    }

    /// The elements of an operand.
    ///
    /// # Errors
    /// It is absent or of another type.
    pub fn read<T: Element>(&self, i: usize) -> Result<&'d [T], String> {
        slice(self.input(i)?, "an operand")
    }

    /// The elements of a result, to be written.
    ///
    /// # Errors
    /// There is no such result, or it is of another type.
    pub fn write<T: Element>(&mut self, i: usize) -> Result<&mut [T], String> {
        slice_mut(self.outputs.get_mut(i).ok_or_else(|| format!("there is no result {i}"))?, "a result")
    }

    /// The call's random numbers, from their beginning.
    ///
    /// # Errors
    /// The operator is not [`Closure::random`].
    pub fn random(&self) -> Result<Random, String> {
        random(self.key)
    }

    /// Whether the call is part of training; see [`Closure::training`].
    pub fn is_training(&self) -> bool {
        self.params.bool(OpDef::TRAINING).unwrap_or(false)
    }
}

impl<'d> BackwardCall<'_, 'd> {
    /// The elements of an operand that was kept.
    ///
    /// # Errors
    /// It was not, or is of another type.
    pub fn input<T: Element>(&self, i: usize) -> Result<&'d [T], String> {
        slice(given(self.inputs, i, "operand")?, "an operand")
    }

    /// The elements of a result that was kept.
    ///
    /// # Errors
    /// It was not, or is of another type.
    pub fn result<T: Element>(&self, i: usize) -> Result<&'d [T], String> {
        slice(given(self.results, i, "result")?, "a result")
    }

    /// The gradient of a result.
    ///
    /// # Errors
    /// It is not used, or of another type.
    pub fn head<T: Element>(&self, i: usize) -> Result<&'d [T], String> {
        let head = self.heads.get(i).copied().ok_or_else(|| format!("the gradient of result {i} is not given"))?;
        slice(head, "a gradient")
    }

    /// The gradient of an operand, to be written.
    ///
    /// # Errors
    /// The operand has none, or it is of another type.
    pub fn grad<T: Element>(&mut self, i: usize) -> Result<&mut [T], String> {
        let grad = self.grads.get_mut(i).and_then(Option::as_mut);
        slice_mut(grad.ok_or_else(|| format!("operand {i} has no gradient"))?, "a gradient")
    }

    /// The random numbers that the forward call drew.
    ///
    /// # Errors
    /// The operator is not [`Closure::random`].
    pub fn random(&self) -> Result<Random, String> {
        random(self.key)
    }
}

/// What a backward closure uses; everything else is not kept for it.
#[derive(Clone, Debug)]
pub struct Keep {
    inputs: Vec<usize>,
    results: Vec<usize>,
    heads: bool,
}

impl Keep {
    /// The gradients of the results alone.
    pub fn heads() -> Keep {
        Keep { inputs: vec![], results: vec![], heads: true }
    }

    /// Nothing, not even the gradients of the results: a loss.
    pub fn no_heads() -> Keep {
        Keep { heads: false, ..Keep::heads() }
    }

    /// And these operands.
    pub fn inputs(self, positions: &[usize]) -> Keep {
        Keep { inputs: positions.to_vec(), ..self }
    }

    /// And these results.
    pub fn results(self, positions: &[usize]) -> Keep {
        Keep { results: positions.to_vec(), ..self }
    }
}

type Forward = dyn Fn(&mut ClosureCall<'_, '_>) -> Result<(), String> + Send + Sync;
type BackwardFn = dyn Fn(&mut BackwardCall<'_, '_>) -> Result<(), String> + Send + Sync;
type ScratchFn = dyn Fn(&Params, &[Option<DenseType>]) -> u64 + Send + Sync;

/// An operator that is a closure, being put together. It has the methods of [`Define`]: parameters, results,
/// states. [`Closure::build`] makes the operator.
pub struct Closure {
    def: OpDef,
    forward: Arc<Forward>,
    backward: Option<(Keep, Arc<BackwardFn>)>,
    scratch: Option<Arc<ScratchFn>>,
}

/// An operator that calls a closure, on float operands of one type. It is not fused with its neighbours. `types` says
/// what it results in, see [`super::like`] and [`super::types`]. An error it returns, or a panic, becomes that of
/// its results, and of all that depends on them, with operator and node named.
///
/// Several calls may run at the same time.
pub fn closure(
    name: &'static str,
    operands: &[&'static str],
    types: Infer,
    forward: impl Fn(&mut ClosureCall<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
) -> Closure {
    // Replaced by `build`, which knows everything the primitive needs.
    let compute = tensorc_ops::def::prim(|_| Err(OpError("is not built".into())));
    let mut def = OpDef::new(name, "", compute, types);
    let spec = |name: &&'static str| InputSpec { name, ty: TypeRule::Group(0, FLOATS), optional: false };
    def.inputs = operands.iter().map(spec).collect();
    def.grad = Grad::None("it is a closure without a backward closure");
    Closure { def, forward: Arc::new(forward), backward: None, scratch: None }
}

impl Define for Closure {
    fn edit(mut self, f: impl FnOnce(&mut OpDef)) -> Closure {
        f(&mut self.def);
        self
    }
}

impl Closure {
    /// The gradient, as a closure as well: it cannot be differentiated again.
    pub fn backward(
        mut self,
        keep: Keep,
        backward: impl Fn(&mut BackwardCall<'_, '_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Closure {
        self.def.is_loss = !keep.heads;
        self.backward = Some((keep, Arc::new(backward)));
        self
    }

    /// Bytes of working memory, from parameters and operand types. It is planned with the tensors around it.
    pub fn scratch(self, bytes: impl Fn(&Params, &[Option<DenseType>]) -> u64 + Send + Sync + 'static) -> Closure {
        Closure { scratch: Some(Arc::new(bytes)), ..self }
    }

    /// The closure draws random numbers. Call this after all operands are declared.
    pub fn random(self) -> Closure {
        self.key()
    }

    /// The closure asks whether it runs for training.
    pub fn training(self) -> Closure {
        self.param(OpDef::TRAINING, false, "Whether the call is part of training.")
    }

    /// The operator.
    pub fn build(self) -> OpDef {
        let Closure { mut def, forward, backward, scratch } = self;
        let (name, key) = (def.name, def.key_input);
        let space = scratch.clone();
        def.compute = Compute::Prim(Box::new(move |cx| {
            let bytes = space.as_ref().map_or(0, |rule| rule(cx.params, cx.inputs));
            Ok(Prim::Extern(forward_fn(name, key, cx, bytes, forward.clone())))
        }));
        if let Some((keep, body)) = backward {
            def.grad = Grad::Rule(Box::new(move |b, cx| {
                let bytes = scratch.as_ref().map_or(0, |rule| rule(cx.node.params, cx.node.inputs));
                differentiate(name, key, &keep, b, cx, bytes, body.clone())
            }));
        }
        def
    }
}

impl From<Closure> for OpDef {
    fn from(closure: Closure) -> OpDef {
        closure.build()
    }
}

fn bytes_of<'t>(types: impl IntoIterator<Item = &'t DenseType>) -> Vec<u64> {
    types.into_iter().map(DenseType::bytes).collect()
}

fn tensor<'d>(ty: &'d DenseType, data: &'d [u8]) -> TensorRef<'d> {
    TensorRef::new(ty.dtype, &ty.dims, data)
}

/// The key among the operands.
fn key_of(inputs: &[Option<TensorRef<'_>>], at: Option<usize>) -> Option<[u32; 2]> {
    let given = inputs.get(at?).copied().flatten()?;
    let mut words = given.elements::<u32>();
    Some([words.next()?, words.next()?])
}

fn forward_fn(name: &'static str, key: Option<usize>, cx: &NodeCtx<'_>, scratch: u64, body: Arc<Forward>) -> ExternFn {
    let (params, inputs, outputs) = (cx.params.clone(), cx.inputs.to_vec(), cx.outputs.to_vec());
    let sizes = (bytes_of(inputs.iter().flatten()), bytes_of(&outputs));
    ExternFn::new(name, sizes.0, sizes.1, scratch, move |call: ExternCall<'_, '_>| {
        let mut data = call.inputs.iter();
        let inputs: Vec<Option<TensorRef<'_>>> =
            inputs.iter().map(|ty| Some(tensor(ty.as_ref()?, data.next()?))).collect();
        let memory = outputs.iter().zip(call.outputs.iter_mut());
        let mut outputs: Vec<TensorMut<'_>> = memory.map(|(ty, d)| TensorMut::new(ty.dtype, &ty.dims, d)).collect();
        let key = key_of(&inputs, key);
        let scratch = call.scratch;
        body(&mut ClosureCall { params: &params, inputs: &inputs, outputs: &mut outputs, scratch, key })
    })
}

/// Adds the backward closure to a graph. Its operands are what is kept, then the heads, then the key.
fn differentiate(
    name: &'static str,
    key: Option<usize>,
    keep: &Keep,
    b: &mut Builder<'_>,
    cx: &GradCtx<'_>,
    scratch: u64,
    body: Arc<BackwardFn>,
) -> Result<Vec<Option<Value>>, Diagnostic> {
    let mut operands = vec![];
    let mut layout = BackwardTypes::default();
    for (i, ty) in cx.node.inputs.iter().enumerate() {
        let kept = ty.clone().filter(|_| keep.inputs.contains(&i) || key == Some(i));
        operands.extend(cx.inputs.get(i).copied().flatten().filter(|_| kept.is_some()));
        layout.inputs.push(kept);
        layout.grads.push(ty.clone().filter(|ty| ty.dtype.is_float()));
    }
    for (i, ty) in cx.node.outputs.iter().enumerate() {
        let kept = keep.results.contains(&i).then(|| ty.clone());
        operands.extend(cx.outputs.get(i).copied().filter(|_| kept.is_some()));
        layout.results.push(kept);
    }
    if keep.heads {
        for (i, ty) in cx.node.outputs.iter().enumerate() {
            operands.push(cx.head(b, i)?);
            layout.heads.push(ty.clone());
        }
    }
    let types: Vec<DenseType> = layout.grads.iter().flatten().cloned().collect();
    let defined = layout.grads.clone();
    if types.is_empty() {
        return Ok(vec![None; defined.len()]);
    }
    let function = backward_fn(name, key, cx.node.params.clone(), layout, scratch, body);
    let mut results = b.prim(Prim::Extern(function), &operands, &types)?.into_iter();
    Ok(defined.iter().map(|ty| ty.as_ref().and_then(|_| results.next())).collect())
}

/// Types of the tensors of a backward call.
#[derive(Default)]
struct BackwardTypes {
    inputs: Vec<Option<DenseType>>,
    results: Vec<Option<DenseType>>,
    heads: Vec<DenseType>,
    grads: Vec<Option<DenseType>>,
}

fn backward_fn(
    name: &'static str,
    key: Option<usize>,
    params: Params,
    layout: BackwardTypes,
    scratch: u64,
    body: Arc<BackwardFn>,
) -> ExternFn {
    let BackwardTypes { inputs, results, heads, grads } = layout;
    let reads = bytes_of(inputs.iter().chain(&results).flatten().chain(&heads));
    let writes = bytes_of(grads.iter().flatten());
    ExternFn::new(format!("backward of {name}"), reads, writes, scratch, move |call: ExternCall<'_, '_>| {
        let mut data = call.inputs.iter();
        let mut kept = |types: &'_ [Option<DenseType>]| -> Vec<Option<&[u8]>> {
            types.iter().map(|ty| ty.as_ref().and_then(|_| data.next().copied())).collect()
        };
        let (of_inputs, of_results) = (kept(&inputs), kept(&results));
        let of_heads: Vec<&[u8]> = data.copied().collect();
        fn join<'d>(types: &'d [Option<DenseType>], data: Vec<Option<&'d [u8]>>) -> Vec<Option<TensorRef<'d>>> {
            types.iter().zip(data).map(|(ty, data)| Some(tensor(ty.as_ref()?, data?))).collect()
        }
        let (inputs, results) = (join(&inputs, of_inputs), join(&results, of_results));
        let heads: Vec<TensorRef<'_>> = heads.iter().zip(of_heads).map(|(ty, data)| tensor(ty, data)).collect();
        let mut memory = call.outputs.iter_mut();
        let mut grads: Vec<Option<TensorMut<'_>>> = grads
            .iter()
            .map(|ty| ty.as_ref().and_then(|ty| Some(TensorMut::new(ty.dtype, &ty.dims, memory.next()?))))
            .collect();
        body(&mut BackwardCall {
            params: &params,
            inputs: &inputs,
            results: &results,
            heads: &heads,
            grads: &mut grads,
            scratch: call.scratch,
            key: key_of(&inputs, key),
        })
    })
}
