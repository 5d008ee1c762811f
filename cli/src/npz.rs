//! Reading and writing `.npz` files: arrays by name.
//!
//! bf16 travels as u16, for numpy has no name for it; the model says what the bits mean.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use npyz::{DType as NpyDType, Order, TypeChar, WriterBuilder};
use tensorc::{DType, Tensor};

use super::Failure;

fn fail(path: &Path, why: impl std::fmt::Display) -> Failure {
    format!("{}: {why}", path.display()).into()
}

/// Every array of the file, in name order.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Failure> {
    let file = File::open(path).map_err(|e| fail(path, e))?;
    let mut archive = npyz::npz::NpzArchive::new(BufReader::new(file)).map_err(|e| fail(path, e))?;
    let mut names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    names.sort();
    let mut arrays = vec![];
    for name in names {
        let wrap = |e: std::io::Error| fail(path, format!("array `{name}`: {e}"));
        let Some(npy) = archive.by_name(&name).map_err(wrap)? else { continue };
        arrays.push((name.clone(), array(npy).map_err(|why| fail(path, format!("array `{name}`: {why}")))?));
    }
    Ok(arrays)
}

/// The element type numpy's description names, and whether it is big-endian.
fn element(dtype: &NpyDType) -> Result<(DType, bool), String> {
    let NpyDType::Plain(t) = dtype else { return Err("structured arrays are not supported".into()) };
    let found = match (t.type_char(), t.size_field()) {
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Bool, 1) => DType::Bool,
        _ => return Err(format!("element type {t} is not supported")),
    };
    Ok((found, t.endianness() == npyz::Endianness::Big))
}

fn array<R: Read>(npy: npyz::NpyFile<R>) -> Result<Tensor, String> {
    let (dtype, big) = element(&npy.dtype())?;
    let dims = npy.shape().to_vec();
    let fortran = npy.order() == Order::Fortran;
    let count = dims.iter().try_fold(1u64, |a, &d| a.checked_mul(d)).ok_or("the shape is too large")?;
    let size = dtype.size();
    let mut bytes = vec![];
    let limit = count.checked_mul(size as u64).ok_or("the shape is too large")?;
    npy.into_inner().take(limit).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 != limit {
        return Err(format!("{} bytes of data, expected {limit}", bytes.len()));
    }
    if big {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if fortran && dims.len() > 1 {
        bytes = row_major(&bytes, &dims, size);
    }
    Tensor::from_bytes(dtype, &dims, bytes).map_err(|e| e.to_string())
}

fn row_major(bytes: &[u8], dims: &[u64], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for position in 0..dims.iter().product::<u64>() {
        let (mut rest, mut from) = (position, 0);
        for (axis, &n) in dims.iter().enumerate().rev() {
            from += rest % n * dims[..axis].iter().product::<u64>();
            rest /= n;
        }
        out.extend_from_slice(&bytes[from as usize * size..(from as usize + 1) * size]);
    }
    out
}

/// Writes arrays by name.
pub fn write(path: &Path, arrays: &[(String, Tensor)]) -> Result<(), Failure> {
    let mut file = npyz::npz::NpzWriter::create(path).map_err(|e| fail(path, e))?;
    for (name, t) in arrays {
        let wrap = |e: std::io::Error| fail(path, format!("array `{name}`: {e}"));
        macro_rules! put {
            ($t:ty, $size:expr, $decode:expr) => {{
                let dims = t.dims().to_vec();
                let builder = file.array(name, Default::default()).map_err(wrap)?;
                let mut writer = builder.default_dtype().shape(&dims).begin_nd().map_err(wrap)?;
                let decode: fn(&[u8]) -> $t = $decode;
                writer.extend(t.bytes().chunks_exact($size).map(decode)).map_err(wrap)?;
                writer.finish().map_err(wrap)?;
            }};
            ($t:ty) => {
                put!($t, size_of::<$t>(), |b| <$t>::from_le_bytes(b.try_into().unwrap_or_default()))
            };
        }
        match t.dtype() {
            DType::F32 => put!(f32),
            DType::F64 => put!(f64),
            DType::F16 => put!(half::f16),
            DType::BF16 | DType::U16 => put!(u16),
            DType::I8 => put!(i8),
            DType::I16 => put!(i16),
            DType::I32 => put!(i32),
            DType::I64 => put!(i64),
            DType::U8 => put!(u8),
            DType::U32 => put!(u32),
            DType::U64 => put!(u64),
            DType::Bool => put!(bool, 1, |b| b[0] != 0),
        }
    }
    Ok(())
}
