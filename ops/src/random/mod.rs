//! Random values.
//!
//! Every element is a function of a key and its position alone ([`words`]), so results do not
//! depend on order, threads or device. The key is that of the operand `key`, read at run time, so
//! that one compiled kernel serves every draw; without the operand it is a constant made from the
//! parameter `seed`, and every run draws the same values. `docs/numerics.md` defines the values.

mod discrete;
mod distribution;
mod entries;
mod mask;
mod rejection;
mod words;
mod zipfian;

use tensorc_ir::op::Accuracy;

use crate::prelude::*;
use words::WordSource;

pub fn ops() -> Vec<OpDef> {
    let masks = vec![mask::bernoulli(), mask::dropout_mask(), mask::dropout(), zipfian::sample_unique_zipfian()];
    // What is drawn is constant to differentiation; what a draw is applied to is not.
    let drawn = |def: OpDef| if matches!(def.name, "dropout" | "shuffle") { def } else { def.no_gradient() };
    [entries::ops(), discrete::ops(), masks].into_iter().flatten().map(drawn).collect()
}

/// What selects the sequence of a draw.
#[derive(Clone, Copy)]
enum RandomKey<'g> {
    Constant([u32; 2]),
    /// `u32[2]`, read at run time.
    Operand(Tensor<'g>),
}

impl<'g> RandomKey<'g> {
    /// The operand at the formal position `at`, else the key of the parameter `seed`: the bits of the
    /// seed as f32, and a constant.
    fn of(g: GraphScope<'g>, cx: &NodeCtx<'_>, at: usize) -> RandomKey<'g> {
        match g.maybe(at) {
            Some(key) => RandomKey::Operand(key),
            None => RandomKey::Constant([(cx.params.float("seed").unwrap_or(0.0) as f32).to_bits(), 0x7463_5f72]),
        }
    }
}

trait Random {
    /// Completes the entry of a random operator: its last operand is the key.
    fn random(self) -> OpDef;
}

impl Random for OpDef {
    fn random(self) -> OpDef {
        let at = self.inputs.len();
        self.param("seed", 0.0, "selects the sequence, unless `key` is given").key().edit(|d| {
            d.accuracy = Accuracy::Random;
            let own = std::mem::replace(&mut d.infer, Infer::Derived);
            d.infer = rule(move |cx| {
                cx.set_input_dims(at, [Dim::Const(2)])?;
                match &own {
                    Infer::Rule(own) => own(cx),
                    Infer::Derived => Ok(()),
                }
            });
        })
    }
}

/// Element-wise random values of the given type. Operands broadcast, and arrive in the type
/// arithmetic is done in; a result in that type is rounded to the stored one.
fn draw<'g>(
    g: GraphScope<'g>,
    key: RandomKey<'g>,
    operands: &[Tensor<'g>],
    ty: &DenseType,
    f: impl FnOnce(&WordSource, &[Ex]) -> Ex,
) -> Tensor<'g> {
    let mut inputs = operands.to_vec();
    if let RandomKey::Operand(key) = key {
        inputs.extend([0, 1].map(|i| key.view(vec![Index::constant(i)], None, [])));
    }
    g.map_with_extents(&inputs, &ty.dims, ty.dtype, &ty.dims, |s, args, extents| {
        let (values, words) = args.split_at(operands.len());
        let constant = |word: u32| s.constant(Scalar { dtype: DType::U32, bits: u64::from(word) });
        let key = match (key, words) {
            (RandomKey::Constant(key), _) => key.map(constant),
            (_, [first, second]) => [first.clone(), second.clone()],
            _ => [constant(0), constant(0)],
        };
        f(&WordSource { key, position: row_major(s, extents), short: is_short(ty.dims.count()) }, values)
    })
}

/// Whether positions among so many elements surely fit one word.
fn is_short(count: Extent) -> bool {
    count.is_surely_below((1_i64 << 32) + 1)
}

/// The key inside a kernel.
enum KernelKey<'k> {
    Constant([KernelValue<'k>; 2]),
    Parameter(KernelTensor<'k>),
}

impl<'k> KernelKey<'k> {
    fn load(&self) -> [KernelValue<'k>; 2] {
        match self {
            KernelKey::Constant(words) => *words,
            KernelKey::Parameter(key) => [0, 1].map(|i| key.get(&Index::constant(i))),
        }
    }
}

/// Declares the key as the next parameter of a kernel, if it is one.
fn kernel_key<'k, 'g>(k: &'k KernelScope, key: RandomKey<'g>, inputs: &mut Vec<Tensor<'g>>) -> KernelKey<'k> {
    match key {
        RandomKey::Constant(words) => {
            KernelKey::Constant(words.map(|w| k.constant(Scalar { dtype: DType::U32, bits: u64::from(w) })))
        }
        RandomKey::Operand(value) => {
            inputs.push(value);
            KernelKey::Parameter(k.param("key", DType::U32, [2], false))
        }
    }
}

/// The result has the operand's shape and the type of parameter `dtype`, else the operand's.
fn shaped_like() -> Infer {
    rule(|cx| {
        cx.copy_shape(0, 0)?;
        dtype_or_first(cx, "dtype")
    })
}

/// The axes of parameter `shape`.
fn shape_param(cx: &InferCtx<'_>) -> Result<Vec<Dim>, OpError> {
    let shape = cx.params.ints("shape").unwrap_or_default();
    let axis = |&n: &i64| match u64::try_from(n) {
        Ok(n) => Ok(Dim::Const(n)),
        Err(_) => Err(OpError(format!("parameter `shape` has the negative extent {n}"))),
    };
    shape.iter().map(axis).collect()
}
