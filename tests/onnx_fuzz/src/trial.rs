//! One model file through the public interface: loading, compiling, running; and how it ended.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use tensorc::ir::scalar::Scalar;
use tensorc::ir::{DenseType, Rng, TensorData, TensorType};
use tensorc::{Compiler, Error, Tensor};
use tensorc_frontend::onnx::OnnxError;

/// How a model ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran, or compiled where inputs of its declared shapes would be too large to make.
    Done,
    /// A typed error about the model, as it should be.
    Refused,
    /// A typed error that blames tensorc itself.
    Internal(String),
    /// A panic: its place and message.
    Panicked(String),
}

/// Inputs larger than this are not made; the model is only compiled for them.
const INPUT_BYTES: u64 = 16 << 20;

thread_local! {
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Remembers places of panics that [`caught`] catches instead of printing them.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                return print(info);
            }
            let place = info.location().map(|l| format!("{}:{}", l.file(), l.line())).unwrap_or_default();
            PLACE.with(|p| *p.borrow_mut() = place);
        }));
    });
}

/// Calls `f`; a panic becomes its place and message.
///
/// # Errors
/// `f` panicked.
pub fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    remember_panics();
    let before = CATCHING.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    CATCHING.set(before);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        format!("{}: {}", PLACE.with(|p| p.take()), text.unwrap_or_default())
    })
}

/// Loads, compiles and runs a model file on small inputs that a seed draws.
pub fn trial(compiler: &Compiler, path: &Path, seed: u64) -> Outcome {
    match caught(|| attempt(compiler, path, seed)) {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) => judge(&error),
        Err(panic) => Outcome::Panicked(panic),
    }
}

/// Whether an error is about the model or about tensorc.
fn judge(error: &Error) -> Outcome {
    use tensorc::ir::diag::DiagnosticCode as Code;
    let internal = match error {
        Error::Internal(_) | Error::Plan(_) => true,
        Error::Diagnostic(d) => matches!(d.code, Code::Internal | Code::Verify),
        Error::Onnx { source, .. } => {
            matches!(&**source, OnnxError::Invalid(d) if matches!(d.code, Code::Internal | Code::Verify))
        }
        _ => false,
    };
    if internal { Outcome::Internal(error.to_string()) } else { Outcome::Refused }
}

fn attempt(compiler: &Compiler, path: &Path, seed: u64) -> Result<(), Error> {
    let model = compiler.load(path)?;
    let mut rng = Rng::new(seed);
    let signature = model.inputs();
    let mut bound = vec![];
    let types: Vec<DenseType> = signature.iter().map(|(_, ty)| concrete(ty, &mut rng, &mut bound)).collect();
    let bytes = types.iter().try_fold(0u64, |sum, ty| sum.checked_add(bytes(ty)?));
    if bytes.is_none_or(|bytes| bytes > INPUT_BYTES) {
        return model.compile(&types).map(drop);
    }
    let tensors: Vec<Tensor> = types
        .iter()
        .map(|ty| {
            let data = TensorData::from_fn(ty.clone(), |_| element(&mut rng, ty));
            Tensor::from_bytes(ty.dtype, &ty.dims, data.bytes().to_vec())
        })
        .collect::<Result<_, _>>()?;
    let named: Vec<(&str, Tensor)> = signature.iter().map(|(name, _)| name.as_str()).zip(tensors).collect();
    model.run(&named).map(drop)
}

fn bytes(ty: &DenseType) -> Option<u64> {
    ty.dims.iter().try_fold(ty.dtype.size() as u64, |n, d| n.checked_mul(*d))
}

/// Small extents for those that are free, equal ones for equal dimensions.
fn concrete(ty: &TensorType, rng: &mut Rng, bound: &mut Vec<(tensorc::ir::Dim, u64)>) -> DenseType {
    let dims = ty.shape.dims().unwrap_or_default().iter().map(|dim| match dim.as_const() {
        Some(extent) => extent,
        None => match bound.iter().find(|(d, _)| d == dim) {
            Some((_, extent)) => *extent,
            None => {
                let extent = 1 + rng.below(4);
                bound.push((*dim, extent));
                extent
            }
        },
    });
    DenseType::new(ty.dtype.unwrap_or(tensorc::DType::F32), dims.collect::<Vec<_>>())
}

/// Mostly ordinary, small where integers may be indices, now and then extreme.
fn element(rng: &mut Rng, ty: &DenseType) -> Scalar {
    let dtype = ty.dtype;
    match rng.below(40) {
        0 if dtype.is_float() => Scalar::from_f64(dtype, *rng.pick(&[f64::NAN, f64::INFINITY, -1e30, 0.0])),
        0 => Scalar::from_i64(dtype, *rng.pick(&[i64::MAX, i64::MIN, -1, 1 << 20])),
        _ if dtype.is_int() => Scalar::from_i64(dtype, rng.below(3) as i64),
        _ => rng.element(dtype),
    }
}
