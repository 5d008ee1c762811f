//! Arrays from `.npz` files.

use std::path::Path;

use npyz::{DType as NpyDType, TypeChar};
use tensorc::{DType, Tensor};

fn element(dtype: &NpyDType) -> DType {
    let NpyDType::Plain(t) = dtype else { panic!("not an array of numbers") };
    match (t.type_char(), t.size_field()) {
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Bool, 1) => DType::Bool,
        other => panic!("element type {other:?}"),
    }
}

/// Every array of a file, in name order.
pub fn read(path: &Path) -> Vec<(String, Tensor)> {
    let mut archive = npyz::npz::NpzArchive::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut names: Vec<String> = archive.array_names().map(str::to_owned).collect();
    names.sort();
    let mut read = |name: String| {
        let array = archive.by_name(&name).unwrap().unwrap();
        assert_eq!(array.order(), npyz::Order::C, "{name}");
        let (dtype, dims) = (element(&array.dtype()), array.shape().to_vec());
        let mut bytes = vec![];
        std::io::Read::read_to_end(&mut array.into_inner(), &mut bytes).unwrap();
        (name, Tensor::from_bytes(dtype, &dims, bytes).unwrap())
    };
    names.into_iter().map(&mut read).collect()
}
