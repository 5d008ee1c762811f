//! `TensorProto` to dense little-endian bytes.

use bytes::Bytes;
use prost::Message;
use tensorc_abi::content::Content;
use tensorc_ir::{DType, DenseType, TensorData};

use super::below_byte;
use super::error::{NotOnnx, OnnxError, TensorProblem, TensorSite};
use super::files::ModelFiles;
use super::limits::{Budget, room};
use super::proto::{DataLocation, DataType, SparseTensorProto, TensorProto};
use super::wire;

/// The content of a tensor.
///
/// Raw and external data is not copied.
///
/// # Errors
/// The element type is not supported, the data does not match the shape, or external data cannot
/// be read. `site` names the tensor in them.
pub fn read_tensor(proto: &TensorProto, site: TensorSite, files: &mut ModelFiles) -> Result<TensorData, OnnxError> {
    read(proto, files).map_err(|problem| OnnxError::Tensor { tensor: site.into(), problem })
}

/// The tensor with its data inside, if that is in another file.
///
/// # Errors
/// As [`read_tensor`].
pub fn embedded(proto: &TensorProto, site: TensorSite, files: &mut ModelFiles) -> Result<TensorProto, OnnxError> {
    let embed = |files: &mut ModelFiles| {
        check(proto)?;
        if !is_external(proto)? {
            return Ok(proto.clone());
        }
        let dtype = element_type(proto.data_type.unwrap_or(0))?;
        let (_, _, bytes) = extent(&proto.dims, dtype.size())?;
        let content = files.external(&proto.external_data, below_byte::bytes(dtype, bytes))?;
        let raw_data = Some(content.bytes().clone());
        content.check()?;
        Ok(TensorProto { raw_data, external_data: vec![], data_location: None, ..proto.clone() })
    };
    embed(files).map_err(|problem: TensorProblem| OnnxError::Tensor { tensor: site.into(), problem })
}

/// A tensor with these elements inside.
pub fn stored_tensor(name: &str, data: &TensorData) -> TensorProto {
    let raw_data = match data.dtype().bits() {
        ..8 => below_byte::packed(data.dtype(), data.bytes()),
        _ => data.bytes().clone(),
    };
    TensorProto {
        name: Some(name.to_owned()),
        dims: data.dims().iter().map(|extent| *extent as i64).collect(),
        data_type: Some(data_type(data.dtype())),
        raw_data: Some(raw_data),
        ..TensorProto::default()
    }
}

/// Decodes a file that holds one `TensorProto`, as the ONNX test cases store inputs and outputs.
///
/// # Errors
/// The bytes are no `TensorProto`, or see [`read_tensor`].
pub fn decode_tensor(bytes: Bytes) -> Result<(String, TensorData), OnnxError> {
    wire::scan(&bytes, &wire::TENSOR, &mut Budget::default())?;
    let proto = TensorProto::decode(bytes).map_err(|_| OnnxError::NotOnnx(NotOnnx::Damaged))?;
    let tensor = read_tensor(&proto, TensorSite::File, &mut ModelFiles::default())?;
    Ok((proto.name().to_owned(), tensor))
}

/// The dense form of a sparse tensor in coordinate format.
///
/// The indices are either `[nnz]`, positions in the row-major order of the dense tensor, or
/// `[nnz, rank]`, coordinates; both in ascending order.
///
/// # Errors
/// As [`read_tensor`], for indices outside of the shape or out of order, and for a shape that is out of all proportion to
/// what is stored.
pub fn read_sparse_tensor(
    proto: &SparseTensorProto,
    site: TensorSite,
    files: &mut ModelFiles,
) -> Result<TensorData, OnnxError> {
    densify(proto, files).map_err(|problem| OnnxError::Tensor { tensor: site.into(), problem })
}

/// The element type of a tensor value.
///
/// # Errors
/// The type is not defined by ONNX, or tensorc has no counterpart for it.
pub(crate) fn element_type(data_type: i32) -> Result<DType, TensorProblem> {
    let found = DType::ALL.into_iter().find(|dtype| self::data_type(*dtype) == data_type);
    found.ok_or_else(|| match DataType::try_from(data_type) {
        Ok(DataType::Undefined) | Err(_) => TensorProblem::UnknownType(data_type),
        Ok(unsupported) => TensorProblem::UnsupportedType(type_name(unsupported)),
    })
}

/// The ONNX code of an element type.
pub fn data_type(dtype: DType) -> i32 {
    let code = match dtype {
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U8 => DataType::Uint8,
        DType::U16 => DataType::Uint16,
        DType::U32 => DataType::Uint32,
        DType::U64 => DataType::Uint64,
        DType::Bool => DataType::Bool,
        DType::F8E4M3FN => DataType::Float8e4m3fn,
        DType::F8E4M3FNUZ => DataType::Float8e4m3fnuz,
        DType::F8E5M2 => DataType::Float8e5m2,
        DType::F8E5M2FNUZ => DataType::Float8e5m2fnuz,
        DType::F8E8M0 => DataType::Float8e8m0,
        DType::F6E2M3 => DataType::Float6e2m3,
        DType::F6E3M2 => DataType::Float6e3m2,
        DType::F4E2M1 => DataType::Float4e2m1,
        DType::I4 => DataType::Int4,
        DType::I2 => DataType::Int2,
        DType::U4 => DataType::Uint4,
        DType::U2 => DataType::Uint2,
    };
    code as i32
}

/// What messages call an element type, by its code.
pub(super) fn element_name(code: i32) -> String {
    match (element_type(code), DataType::try_from(code)) {
        (Ok(dtype), _) => dtype.name().to_owned(),
        (Err(_), Ok(known)) => type_name(known).to_owned(),
        (Err(_), Err(_)) => format!("element type {code}"),
    }
}

/// The name of an element type in the ONNX specification.
pub(super) fn type_name(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Undefined => "undefined",
        DataType::Float => "float",
        DataType::Double => "double",
        DataType::Float16 => "float16",
        DataType::Bfloat16 => "bfloat16",
        DataType::Float8e4m3fn => "float8e4m3fn",
        DataType::Float8e4m3fnuz => "float8e4m3fnuz",
        DataType::Float8e5m2 => "float8e5m2",
        DataType::Float8e5m2fnuz => "float8e5m2fnuz",
        DataType::Float8e8m0 => "float8e8m0",
        DataType::Float6e2m3 => "float6e2m3",
        DataType::Float6e3m2 => "float6e3m2",
        DataType::Float4e2m1 => "float4e2m1",
        DataType::Uint2 => "uint2",
        DataType::Uint4 => "uint4",
        DataType::Uint8 => "uint8",
        DataType::Uint16 => "uint16",
        DataType::Uint32 => "uint32",
        DataType::Uint64 => "uint64",
        DataType::Int2 => "int2",
        DataType::Int4 => "int4",
        DataType::Int8 => "int8",
        DataType::Int16 => "int16",
        DataType::Int32 => "int32",
        DataType::Int64 => "int64",
        DataType::Bool => "bool",
        DataType::String => "string",
        DataType::Complex64 => "complex64",
        DataType::Complex128 => "complex128",
    }
}

/// Dimensions of a tensor; no array library has more.
pub(super) const MAX_RANK: usize = 64;

/// Dimensions, number of elements, and number of bytes if an element has `size`.
fn extent(dims: &[i64], size: usize) -> Result<(Vec<u64>, u64, u64), TensorProblem> {
    if dims.len() > MAX_RANK {
        return Err(TensorProblem::TooManyDimensions { found: dims.len(), most: MAX_RANK });
    }
    let mut sizes = Vec::with_capacity(dims.len());
    for (index, &value) in dims.iter().enumerate() {
        sizes.push(u64::try_from(value).map_err(|_| TensorProblem::BadDimension { index, value })?);
    }
    // A zero anywhere makes the tensor empty however large the other dimensions are.
    let elements = if sizes.contains(&0) { Some(0) } else { sizes.iter().try_fold(1u64, |n, &d| n.checked_mul(d)) };
    let bytes = elements.and_then(|n| n.checked_mul(size as u64)).filter(|&b| b <= isize::MAX as u64);
    match (elements, bytes) {
        (Some(elements), Some(bytes)) => Ok((sizes, elements, bytes)),
        _ => Err(TensorProblem::TooLarge(dims.to_vec())),
    }
}

/// Checks what can be said of a tensor without reading its data, also of one that no node uses and of element types that
/// tensorc has no counterpart for: where the data is, and whether as much is stored as the shape needs.
///
/// # Errors
/// The data is in several places or in the wrong one, or is of the wrong length; or the shape is not one.
pub(super) fn check(proto: &TensorProto) -> Result<(), TensorProblem> {
    let external = is_external(proto)?;
    // Some writers set an empty `raw_data` next to another field.
    let raw = proto.raw_data.as_ref().map_or(0, Bytes::len);
    let fields = [
        ("raw_data", raw),
        ("float_data", proto.float_data.len()),
        ("int32_data", proto.int32_data.len()),
        ("string_data", proto.string_data.len()),
        ("int64_data", proto.int64_data.len()),
        ("double_data", proto.double_data.len()),
        ("uint64_data", proto.uint64_data.len()),
        ("external_data", proto.external_data.len() + usize::from(external)),
    ];
    let filled: Vec<&'static str> = fields.iter().filter(|(_, len)| *len > 0).map(|(name, _)| *name).collect();
    if filled.len() > 1 {
        return Err(TensorProblem::SeveralFields(filled.join(", ")));
    }
    let dtype = match element_type(proto.data_type.unwrap_or(0)) {
        Ok(dtype) => dtype,
        Err(problem) if problem.is_unsupported() => return extent(&proto.dims, 1).map(drop),
        Err(problem) => return Err(problem),
    };
    let (dims, elements, bytes) = extent(&proto.dims, dtype.size())?;
    if proto.segment.is_some() || external {
        return Ok(());
    }
    let (typed, len) = typed_field(proto, dtype);
    let (stored, unit, expected) = match filled.first() {
        Some(&"raw_data") => (raw, "bytes", below_byte::bytes(dtype, bytes)),
        Some(field) if *field != typed => return Err(TensorProblem::WrongField { field, dtype: dtype.name() }),
        _ if below_byte::in_typed_field(dtype) => (len, "elements", below_byte::bytes(dtype, bytes)),
        _ => (len, "elements", elements),
    };
    if stored as u64 == expected {
        return Ok(());
    }
    Err(TensorProblem::SizeMismatch { dims, dtype: dtype.name(), unit, expected, found: stored as u64 })
}

fn is_external(proto: &TensorProto) -> Result<bool, TensorProblem> {
    let location = proto.data_location.unwrap_or(0);
    let known = DataLocation::try_from(location).map_err(|_| TensorProblem::UnknownLocation(location))?;
    Ok(known == DataLocation::External)
}

fn read(proto: &TensorProto, files: &mut ModelFiles) -> Result<TensorData, TensorProblem> {
    check(proto)?;
    if proto.segment.is_some() {
        return Err(TensorProblem::Segmented);
    }
    let dtype = element_type(proto.data_type.unwrap_or(0))?;
    let (dims, elements, bytes) = extent(&proto.dims, dtype.size())?;
    let mut is_packed = dtype.bits() < 8;
    let data = match &proto.raw_data {
        _ if is_external(proto)? => files.external(&proto.external_data, below_byte::bytes(dtype, bytes))?,
        Some(raw) if !raw.is_empty() => files.holes.content(raw),
        _ if elements == 0 => Bytes::new().into(),
        _ => {
            is_packed = below_byte::in_typed_field(dtype);
            files.budget.take_bytes(bytes)?;
            typed_data(proto, dtype)?.into()
        }
    };
    let data = match dtype {
        DType::Bool => normalise_bool(data.bytes().clone()).into(),
        _ if is_packed => {
            files.budget.take_bytes(bytes)?;
            let unpacked = below_byte::unpacked(dtype, data.bytes(), bytes);
            data.check()?;
            unpacked.into()
        }
        _ => data,
    };
    data.check()?;
    dense(dtype, dims, data)
}

fn dense(dtype: DType, dims: Vec<u64>, data: Content) -> Result<TensorData, TensorProblem> {
    let (expected, found) = (DenseType::new(dtype, &dims).bytes(), data.len() as u64);
    let mismatch =
        TensorProblem::SizeMismatch { dims: dims.clone(), dtype: dtype.name(), unit: "bytes", expected, found };
    TensorData::of(DenseType::new(dtype, dims), data).ok_or(mismatch)
}

/// Makes every true element 1, the only form the run time knows.
pub(crate) fn normalise_bool(data: Bytes) -> Bytes {
    if data.iter().all(|&b| b <= 1) { data } else { data.iter().map(|&b| u8::from(b != 0)).collect() }
}

/// The typed field that holds values of `dtype`.
fn typed_field(proto: &TensorProto, dtype: DType) -> (&'static str, usize) {
    match dtype {
        DType::F32 => ("float_data", proto.float_data.len()),
        DType::F64 => ("double_data", proto.double_data.len()),
        DType::I64 => ("int64_data", proto.int64_data.len()),
        DType::U32 | DType::U64 => ("uint64_data", proto.uint64_data.len()),
        _ => ("int32_data", proto.int32_data.len()),
    }
}

/// The elements of the typed field as bytes. Floats of at most 16 bits are stored as their bits, one in each
/// `int32_data` element, but for types that are packed there.
fn typed_data(proto: &TensorProto, dtype: DType) -> Result<Bytes, TensorProblem> {
    let int32 = &proto.int32_data;
    Ok(match dtype {
        DType::F32 => gather(&proto.float_data, |v| v.to_le_bytes()),
        DType::F64 => gather(&proto.double_data, |v| v.to_le_bytes()),
        DType::I64 => gather(&proto.int64_data, |v| v.to_le_bytes()),
        DType::U64 => gather(&proto.uint64_data, |v| v.to_le_bytes()),
        DType::U32 => narrow(&proto.uint64_data, dtype, 0, u32::MAX.into(), |v| (v as u32).to_le_bytes())?,
        DType::I32 => gather(int32, |v| v.to_le_bytes()),
        DType::Bool => gather(int32, |v| [u8::from(v != 0)]),
        // Signed 16-bit writers sign-extend the bits of a float.
        DType::F16 | DType::BF16 => {
            narrow(int32, dtype, i16::MIN.into(), u16::MAX.into(), |v| (v as u16).to_le_bytes())?
        }
        DType::U16 => narrow(int32, dtype, 0, u16::MAX.into(), |v| (v as u16).to_le_bytes())?,
        DType::I16 => narrow(int32, dtype, i16::MIN.into(), i16::MAX.into(), |v| (v as i16).to_le_bytes())?,
        DType::U8 => narrow(int32, dtype, 0, u8::MAX.into(), |v| [v as u8])?,
        DType::I8 => narrow(int32, dtype, i8::MIN.into(), i8::MAX.into(), |v| [v as u8])?,
        DType::F6E2M3 | DType::F6E3M2 => narrow(int32, dtype, 0, 63, |v| [v as u8])?,
        // Signed writers sign-extend bytes.
        _ => narrow(int32, dtype, i8::MIN.into(), u8::MAX.into(), |v| [v as u8])?,
    })
}

fn gather<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Bytes {
    values.iter().flat_map(|&v| bytes(v)).collect()
}

/// As [`gather`], for element types narrower than the field (i8 in `int32_data`). A number out of range is an error.
fn narrow<T: Copy + Ord + Into<i128>, const N: usize>(
    values: &[T],
    dtype: DType,
    min: T,
    max: T,
    bytes: impl Fn(T) -> [u8; N],
) -> Result<Bytes, TensorProblem> {
    match values.iter().find(|&&v| v < min || v > max) {
        Some(&value) => Err(TensorProblem::OutOfRange { value: value.into(), dtype: dtype.name() }),
        None => Ok(gather(values, bytes)),
    }
}

fn densify(proto: &SparseTensorProto, files: &mut ModelFiles) -> Result<TensorData, TensorProblem> {
    let values = read(proto.values.as_ref().ok_or(TensorProblem::Sparse("it has no values"))?, files)?;
    let indices = read(proto.indices.as_ref().ok_or(TensorProblem::Sparse("it has no indices"))?, files)?;
    if indices.dtype() != DType::I64 {
        return Err(TensorProblem::Sparse("its indices are not of type int64"));
    }
    let width = values.dtype().size();
    let (dims, elements, bytes) = extent(&proto.dims, width)?;
    let coordinates = match (values.dims(), indices.dims()) {
        ([n], [m]) if n == m => None,
        ([n], [m, rank]) if n == m && *rank == dims.len() as u64 && *rank > 0 => Some(dims.len()),
        _ => return Err(TensorProblem::Sparse("the shapes of its values and indices do not fit together")),
    };
    let stored = values.content().len() + indices.content().len();
    files.budget.take_dense(stored as u64, bytes)?;
    let mut data: Vec<u8> = room(bytes)?;
    data.resize(bytes as usize, 0);
    let numbers: Vec<i64> = indices.bytes().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
    indices.content().check()?;
    let mut last = None;
    for (entry, value) in values.bytes().chunks_exact(width).enumerate() {
        let position = match coordinates {
            None => u64::try_from(numbers[entry]).ok().filter(|&p| p < elements),
            Some(rank) => linear_position(&numbers[entry * rank..(entry + 1) * rank], &dims),
        };
        let position = position.ok_or(TensorProblem::Sparse("an index is outside of the shape"))?;
        if last.replace(position).is_some_and(|last| last >= position) {
            return Err(TensorProblem::Sparse("its indices are not in ascending order"));
        }
        let at = position as usize * width;
        data[at..at + width].copy_from_slice(value);
    }
    values.content().check()?;
    dense(values.dtype(), dims, Bytes::from(data).into())
}

/// Row-major position of a coordinate; `None` outside of `dims`.
fn linear_position(coordinate: &[i64], dims: &[u64]) -> Option<u64> {
    coordinate.iter().zip(dims).try_fold(0u64, |position, (&c, &d)| {
        let c = u64::try_from(c).ok().filter(|&c| c < d)?;
        position.checked_mul(d)?.checked_add(c)
    })
}
