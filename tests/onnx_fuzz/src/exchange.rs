//! Files in which models and tensors go to another implementation and its results come back: counts and lengths as 32 bits,
//! little-endian, and messages of ONNX.
//!
//! A file of models holds for each: its length and bytes, the number of inputs, and for each of these its length and bytes as a
//! named tensor. A file of results holds for each: the number of results, and for each of these its length and bytes as a
//! named tensor; or [`REFUSED`], and a length and a text.

use std::io::{self, Read, Write};

use bytes::Bytes;
use prost::Message;
use tensorc::ir::TensorData;
use tensorc_frontend::onnx::tensor::decode_tensor;

use crate::model::{Model, Stated, tensor_proto};

/// In place of a number of results.
pub const REFUSED: u32 = u32::MAX;

/// What another implementation made of a model.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Its results by name.
    Results(Vec<(String, TensorData)>),
    /// Why it did not run.
    Refused(String),
}

fn block(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u32).to_le_bytes())?;
    out.write_all(bytes)
}

/// Writes a model, with every result an output, and its inputs.
///
/// # Errors
/// The file cannot be written.
pub fn write_model(out: &mut impl Write, model: &Model) -> io::Result<()> {
    block(out, &model.proto(true, Stated::Numbers).encode_to_vec())?;
    out.write_all(&(model.inputs.len() as u32).to_le_bytes())?;
    model.inputs.iter().try_for_each(|v| block(out, &tensor_proto(&v.name, &v.data).encode_to_vec()))
}

fn number(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn take(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; number(from)? as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the next answer; `None` at the end of the file.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read_answer(from: &mut impl Read) -> io::Result<Option<Answer>> {
    let count = match number(from) {
        Ok(count) => count,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    };
    if count == REFUSED {
        return Ok(Some(Answer::Refused(String::from_utf8_lossy(&take(from)?).into_owned())));
    }
    let one = |_| decode_tensor(Bytes::from(take(from)?)).map_err(|e| io::Error::other(e.to_string()));
    Ok(Some(Answer::Results((0..count).map(one).collect::<io::Result<_>>()?)))
}
