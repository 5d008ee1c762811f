//! The inputs of a run: read from a file, or random.

use std::collections::BTreeMap;
use std::path::Path;

use tensorc::binding;
use tensorc::samples::random_arrays;
use tensorc::{Array, DType, Model, Tensor, TextArray};
use tensorc_data::formats::stored_as;

use super::failure::{CliFailure, Usage};
use super::npz;

/// A model's inputs in signature order, and whether they were made up.
pub struct Inputs {
    pub arrays: Vec<(String, Array)>,
    pub random: bool,
}

impl Inputs {
    /// The inputs as graphs take them: numbers in the place of texts.
    pub fn numbers(&self, model: &Model) -> Result<Vec<(String, Tensor)>, CliFailure> {
        Ok(model.numbers_of(&self.named())?)
    }

    /// The inputs by borrowed names.
    pub fn named(&self) -> Vec<(&str, Array)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array.clone())).collect()
    }
}

/// Tensors by borrowed names.
pub fn borrowed(tensors: &[(String, Tensor)]) -> Vec<(&str, Tensor)> {
    tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect()
}

/// The arrays of a file, or random ones whose open dimensions `--shape` gives.
pub fn inputs(model: &Model, file: Option<&Path>, extents: &[String]) -> Result<Inputs, CliFailure> {
    let signature = model.inputs();
    match file {
        Some(path) => {
            let mut arrays = npz::read(path)?;
            for (name, array) in &mut arrays {
                let Array::Numbers(array) = array else { continue };
                let declared = signature.iter().find(|(n, _)| n == name).and_then(|(_, t)| t.dtype);
                let stored = declared.filter(|dtype| *dtype != array.dtype() && stored_as(*dtype) == array.dtype());
                let Some(dtype) = stored else { continue };
                if let Some(byte) = array.bytes().iter().find(|byte| dtype.is_narrow() && !dtype.holds(**byte)) {
                    return Err(format!("input `{name}`: byte {byte:#04x} is no element of {dtype}").into());
                }
                *array = Tensor::from_bytes(dtype, array.dims(), array.bytes().to_vec())?;
            }
            Ok(Inputs { arrays, random: false })
        }
        None => {
            let types = binding::with_extents(model.graph(), &shapes(extents)?)?;
            Ok(Inputs { arrays: random_arrays(model, &types)?, random: true })
        }
    }
}

/// The entries of arguments of `--shape`, each of which may hold several: `batch=4,length=1..9`. A comma before a text without `=`
/// separates extents.
pub fn entries(args: &[String]) -> Vec<String> {
    let mut entries = vec![];
    for arg in args {
        let mut entry = String::new();
        for (i, piece) in arg.split(',').enumerate() {
            match i {
                0 => entry.push_str(piece),
                _ if entry.contains('=') && piece.contains('=') => {
                    entries.push(std::mem::replace(&mut entry, piece.to_owned()));
                }
                _ => entry.extend([",", piece]),
            }
        }
        entries.push(entry);
    }
    entries
}

/// The extents given by `--shape NAME=N,…`, by name.
pub fn shapes(args: &[String]) -> Result<BTreeMap<String, Vec<u64>>, CliFailure> {
    let one = |text: &String| -> Result<(String, Vec<u64>), CliFailure> {
        let bad = || Usage(format!("--shape {text}: expected NAME=N,N,…"));
        let (name, list) = text.rsplit_once('=').ok_or_else(bad)?;
        let extents: Result<Vec<u64>, _> = list.split(',').filter(|s| !s.is_empty()).map(str::parse).collect();
        Ok((name.to_owned(), extents.map_err(|_| bad())?))
    };
    entries(args).iter().map(one).collect()
}

/// The values given by `--value NAME=X,…`, by name, of the types the model declares.
pub fn values(model: &Model, args: &[String]) -> Result<Vec<(String, Tensor)>, CliFailure> {
    let signature = model.inputs();
    let one = |text: &String| -> Result<(String, Tensor), CliFailure> {
        let bad = |why: &str| Usage(format!("--value {text}: {why}"));
        let (name, list) = text.rsplit_once('=').ok_or_else(|| bad("expected NAME=X,X,…"))?;
        let (_, ty) = signature.iter().find(|(n, _)| n == name).ok_or_else(|| bad("there is no such input"))?;
        let dtype = ty.dtype.unwrap_or(DType::F32);
        let numbers: Vec<f64> =
            list.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| bad("that is no number"))?;
        let dims = match ty.shape.dims() {
            Some([]) => vec![],
            Some(dims) => match dims.iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>() {
                Some(dims) => dims,
                None => vec![numbers.len() as u64],
            },
            None => vec![numbers.len() as u64],
        };
        let scalars = numbers.iter().map(|x| tensorc::ir::scalar::Scalar::from_f64(dtype, *x));
        if scalars.clone().zip(&numbers).any(|(scalar, x)| !scalar.is_real() && scalar.as_f64() != *x) {
            return Err(bad(&format!("the input is of type {dtype}")).into());
        }
        let bytes = scalars.flat_map(|s| s.bits.to_le_bytes()[..dtype.size()].to_vec());
        Ok((name.to_owned(), Tensor::from_bytes(dtype, &dims, bytes.collect::<Vec<u8>>())?))
    };
    args.iter().map(one).collect()
}

const MAX_SHOWN_ELEMENTS: usize = 8;

/// Type, shape and the first elements of an array.
pub fn line(array: &Array) -> String {
    match array {
        Array::Numbers(t) => format!("{}{:?} {}", t.dtype(), t.dims(), summary(t)),
        Array::Texts(texts) => format!("text{:?} {}", texts.dims(), first_texts(texts)),
    }
}

fn first_texts(texts: &TextArray) -> String {
    let shown: Vec<String> = texts.texts().iter().take(MAX_SHOWN_ELEMENTS).map(|text| format!("{text:?}")).collect();
    let more = if texts.texts().len() > MAX_SHOWN_ELEMENTS { ", …" } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

/// The first elements of a tensor, and its range.
fn summary(t: &Tensor) -> String {
    let size = t.dtype().size();
    let values: Vec<f64> =
        t.bytes().chunks_exact(size).map(|b| tensorc::ir::scalar::Scalar::read(t.dtype(), b).as_f64()).collect();
    let shown: Vec<String> = values
        .iter()
        .take(MAX_SHOWN_ELEMENTS)
        .map(|v| format!("{v:.6}").trim_end_matches('0').trim_end_matches('.').to_owned())
        .collect();
    let more = if values.len() > MAX_SHOWN_ELEMENTS { ", …" } else { "" };
    let range = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
    match values.len() {
        0 => "[]".into(),
        1..=MAX_SHOWN_ELEMENTS => format!("[{}]", shown.join(", ")),
        _ => format!("[{}{more}] min {:.6} max {:.6}", shown.join(", "), range.0, range.1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_may_hold_several_shapes() {
        let split = |text: &str| entries(&[text.to_owned()]);
        assert_eq!(split("batch=1..64,length=1..4096"), ["batch=1..64", "length=1..4096"]);
        assert_eq!(split("x=1,3,8,8,batch=4"), ["x=1,3,8,8", "batch=4"]);
        assert_eq!(split("x[0]=3,4"), ["x[0]=3,4"]);
        assert_eq!(split("in,put=2,3"), ["in,put=2,3"]);
        assert_eq!(split("height=32..640/32,x="), ["height=32..640/32", "x="]);
        assert_eq!(split("nonsense"), ["nonsense"]);
    }
}
