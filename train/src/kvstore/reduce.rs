//! Sums over the ranks of a group, as operations of the engine: one for the arrays' bytes, one that ends with the group's
//! collective, one that writes the result. Nothing waits, and an error of an array reaches every rank.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tensorc_kvstore::{CollectiveCall, Compression, Group, GroupError, KvError, sum};
use tensorc_runtime::array::{self, ArrayOperand, ArrayView, LaunchOutput};
use tensorc_runtime::engine::{Completion, Failure, Op, OpName};
use tensorc_runtime::{DType, TensorMut, TensorRef};

use super::sums::Urgency;
use crate::error::Error;
use tensorc_nd::{NDArray, Runtime};

/// Most bytes of one collective: longer arrays are cut, so that pieces follow each other on their way.
pub const MAX_COLLECTIVE_BYTES: u64 = 4 << 20;

/// What quantising has left of the gradients so far, by element.
pub type Residual = Arc<Mutex<Vec<f32>>>;

/// Nothing left yet, for each piece of an array of f32.
pub fn residuals(count: u64) -> Vec<Residual> {
    let step = MAX_COLLECTIVE_BYTES / size_of::<f32>() as u64;
    let zeros = |begin: u64| vec![0.0; (count - begin).min(step) as usize];
    (0..count).step_by(step as usize).map(|begin| Arc::new(Mutex::new(zeros(begin)))).collect()
}

/// A part of an array that takes part in a sum.
pub struct ReducePiece {
    /// This rank's sums over its subtrees.
    pub parts: Vec<ArrayView>,
    pub to: ArrayView,
    /// What is left to be sent, if gradients are quantised.
    pub residual: Option<Residual>,
}

impl ReducePiece {
    fn elements(&self) -> usize {
        self.to.len() as usize
    }
}

/// A sum over ranks of several pieces of one type, sent together.
pub struct Reduction<'a> {
    pub key: String,
    pub pieces: Vec<ReducePiece>,
    /// Leaves of each rank.
    pub leaves: u32,
    pub compression: Compression,
    pub urgency: Urgency,
    pub rt: &'a Runtime,
    pub group: &'a Group,
}

/// Cuts arrays of one type and shape into pieces of at most [`MAX_COLLECTIVE_BYTES`] bytes: views of each, in order.
///
/// # Errors
/// A view that cannot be.
pub fn cut(arrays: &[&NDArray]) -> Result<Vec<Vec<ArrayView>>, Error> {
    let mut flat = vec![];
    for array in arrays {
        array.settle()?;
        flat.push(array.view().reshape(&[array.len()])?);
    }
    let Some(first) = flat.first() else { return Ok(vec![]) };
    let step = MAX_COLLECTIVE_BYTES / first.dtype().size() as u64;
    let mut pieces = vec![];
    for begin in (0..first.len()).step_by(step as usize) {
        let end = (begin + step).min(first.len());
        pieces.push(flat.iter().map(|view| view.rows(begin, end)).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(pieces)
}

impl Reduction<'_> {
    /// Pushes the operations. The order of calls is the same on every rank.
    ///
    /// # Errors
    /// An operation cannot be pushed.
    pub fn push(self) -> Result<(), Error> {
        let Reduction { key, pieces, leaves, compression, urgency, rt, group } = self;
        let elements = pieces.iter().map(ReducePiece::elements).sum::<usize>() as u64;
        let Some(dtype) = pieces.first().map(|piece| piece.to.dtype()) else { return Ok(()) };
        let wire = Wire::new(compression, dtype)?;
        let (packed, landed) = (token(rt)?, token(rt)?);
        let ticket = group.reserve(wire.call(key, elements, leaves), urgency.priority);
        let (engine, failed) = (rt.engine().clone(), packed.clone());
        let why = move || engine.error(failed.chunk().var()).map(|error| error.to_string());
        let ticket =
            ticket.or_because(Box::new(move || why().unwrap_or_else(|| "its arrays were not computed".into())));
        let landing = Arc::new(Landing::default());
        let (arrives, attached, taken) = (landing.clone(), landing.clone(), landing);
        let request = |name, inputs, outputs| urgency.launch(name, packed.device(), inputs, outputs);
        let sources = pieces.iter().flat_map(|piece| piece.parts.iter().cloned().map(ArrayOperand::View)).collect();
        let targets: Vec<LaunchOutput> = pieces.iter().map(|piece| LaunchOutput::write(piece.to.clone())).collect();
        let residuals: Vec<Option<Residual>> = pieces.iter().map(|piece| piece.residual.clone()).collect();
        let lengths: Vec<usize> = pieces.iter().map(ReducePiece::elements).collect();
        let (pool, decodes) = (group.buffers().clone(), wire.clone());

        let pack = request(&PACK, sources, vec![LaunchOutput::write(packed.clone())]);
        array::launch(rt.space(), pack, move |inputs, _| {
            let parts = wire.pack(inputs, &residuals, &pool)?;
            ticket.start(parts, Box::new(move |result| arrives.arrive(result)));
            Ok(())
        })?;
        await_landing(rt, &SUM, &packed, &landed, attached, urgency)?;
        let unpack = request(&UNPACK, vec![ArrayOperand::View(landed.clone())], targets);
        array::launch(rt.space(), unpack, move |_, outputs| decodes.unpack(&taken.take()?, outputs, &lengths))?;
        pieces.iter().for_each(|piece| piece.to.chunk().touch());
        Ok(())
    }
}

static PACK: OpName = OpName::from_static("kvstore_pack");
static SUM: OpName = OpName::from_static("kvstore_sum_ranks");
static UNPACK: OpName = OpName::from_static("kvstore_unpack");

/// Pushes an operation that ends with an outcome, after what writes `from` and before what reads `to`.
///
/// # Errors
/// The engine does not run.
pub fn await_landing(
    rt: &Runtime,
    name: &OpName,
    from: &ArrayView,
    to: &ArrayView,
    landing: Arc<Landing>,
    urgency: Urgency,
) -> Result<(), Error> {
    let (reads, writes) = ([from.chunk().var()], [to.chunk().var()]);
    let op = Op { reads: &reads, writes: &writes, property: urgency.property, ..Op::new(name) };
    Ok(rt.engine().push_async(op, move |_, completion| landing.attach(completion))?)
}

/// The bytes of so many values of a type that were encoded.
///
/// # Errors
/// The codes are not those of so many values.
pub fn decode(compression: Compression, codes: Bytes, count: usize) -> Result<Bytes, Error> {
    if compression == Compression::None {
        return Ok(codes);
    }
    let mut values = vec![0.0f32; count];
    compression.decode_into(&codes, &mut values)?;
    Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into())
}

/// An array that only orders operations.
///
/// # Errors
/// There is no memory.
pub fn token(rt: &Runtime) -> Result<ArrayView, Error> {
    Ok(rt.empty(tensorc_runtime::Device::default(), DType::U8, &[1])?.view().clone())
}

/// How values are sent.
#[derive(Clone, Debug)]
enum Wire {
    /// As they are.
    Plain(DType),
    /// f32 rounded to 16 bits; summed in f32.
    Narrow(DType, Compression),
    /// Quantised; every rank gets the codes of all.
    Codes(Compression),
}

impl Wire {
    fn new(compression: Compression, dtype: DType) -> Result<Wire, Error> {
        match compression {
            Compression::None => Ok(Wire::Plain(dtype)),
            _ if dtype != DType::F32 => Err(KvError::CompressedType { compression, dtype }.into()),
            Compression::F16 => Ok(Wire::Narrow(DType::F16, compression)),
            Compression::BF16 => Ok(Wire::Narrow(DType::BF16, compression)),
            Compression::TwoBit { .. } | Compression::OneBit { .. } => Ok(Wire::Codes(compression)),
        }
    }

    fn call(&self, key: String, elements: u64, leaves: u32) -> CollectiveCall {
        match self {
            Wire::Plain(dtype) | Wire::Narrow(dtype, _) => CollectiveCall::sum(key, *dtype, elements, leaves),
            Wire::Codes(compression) => CollectiveCall::gather(format!("{key} ({elements} as {compression:?})")),
        }
    }

    /// The messages of this rank, from its sums, piece by piece and part by part. Codes of few bits are made of the sum over
    /// all parts: what they keep back is the rank's.
    fn pack(
        &self,
        inputs: &[TensorRef<'_>],
        residuals: &[Option<Residual>],
        pool: &tensorc_kvstore::Buffers,
    ) -> Result<Vec<Bytes>, Failure> {
        let parts = inputs.len() / residuals.len().max(1);
        let of_part = |part: usize| inputs.iter().skip(part).step_by(parts);
        match self {
            Wire::Plain(_) => (0..parts).map(|part| joined(of_part(part), pool)).collect(),
            Wire::Narrow(_, compression) => {
                let narrow = |part| {
                    let mut message = room(*compression, of_part(part), pool)?;
                    of_part(part).try_for_each(|input| compression.encode(input.data, &mut [], &mut message))?;
                    Ok(message.into())
                };
                (0..parts).map(narrow).collect()
            }
            Wire::Codes(compression) => {
                let mut message = room(*compression, of_part(0), pool)?;
                for (of_piece, residual) in inputs.chunks(parts.max(1)).zip(residuals) {
                    let Some(residual) = residual else { return Err("no residual of a quantised gradient".into()) };
                    let mut residual = residual.lock().unwrap_or_else(PoisonError::into_inner);
                    match of_piece {
                        [one] => compression.encode(one.data, &mut residual, &mut message)?,
                        several => {
                            let data: Vec<&[u8]> = several.iter().map(|part| part.data).collect();
                            let mut total = vec![0; data.first().map_or(0, |data| data.len())];
                            sum::sum_into(&mut total, &data, DType::F32)?;
                            compression.encode(&total, &mut residual, &mut message)?;
                        }
                    }
                }
                Ok(vec![message.into()])
            }
        }
    }

    /// Writes what came to arrays of these numbers of elements.
    fn unpack(&self, results: &[Bytes], outputs: &mut [TensorMut<'_>], lengths: &[usize]) -> Result<(), Failure> {
        match self {
            Wire::Plain(_) => {
                let mut stream = PieceBytes::new(results);
                outputs.iter_mut().try_for_each(|output| stream.copy_to(output.data))
            }
            Wire::Narrow(dtype, compression) => {
                let mut stream = PieceBytes::new(results);
                let mut narrow = vec![];
                for (output, length) in outputs.iter_mut().zip(lengths) {
                    narrow.resize(length * dtype.size(), 0);
                    stream.copy_to(&mut narrow)?;
                    compression.decode_into(&narrow, floats(output)?)?;
                }
                Ok(())
            }
            Wire::Codes(compression) => {
                let mut at = 0;
                for (output, length) in outputs.iter_mut().zip(lengths) {
                    output.data.fill(0);
                    let end = at + compression.encoded_len(*length);
                    for codes in results {
                        let codes = codes.get(at..end).ok_or("codes of another length")?;
                        compression.decode_add(codes, floats(output)?)?;
                    }
                    at = end;
                }
                Ok(())
            }
        }
    }
}

/// Arrays one after the other.
fn joined<'t>(
    inputs: impl Iterator<Item = &'t TensorRef<'t>> + Clone,
    pool: &tensorc_kvstore::Buffers,
) -> Result<Bytes, Failure> {
    let mut message = pool.take(inputs.clone().map(|input| input.data.len()).sum())?;
    let mut at = 0;
    for input in inputs {
        message[at..at + input.data.len()].copy_from_slice(input.data);
        at += input.data.len();
    }
    Ok(message.into())
}

/// Room for the codes of arrays of f32.
fn room<'t>(
    compression: Compression,
    inputs: impl Iterator<Item = &'t TensorRef<'t>>,
    pool: &tensorc_kvstore::Buffers,
) -> Result<Vec<u8>, Failure> {
    let length = |input: &TensorRef<'_>| compression.encoded_len(input.data.len() / size_of::<f32>());
    let mut message = pool.take(inputs.map(length).sum())?;
    message.clear();
    Ok(message)
}

fn floats<'t>(output: &'t mut TensorMut<'_>) -> Result<&'t mut [f32], Failure> {
    output.as_mut_slice::<f32>().ok_or_else(|| "a gradient that is not f32".into())
}

/// Consecutive bytes in several pieces.
pub struct PieceBytes<'b> {
    pieces: std::slice::Iter<'b, Bytes>,
    rest: &'b [u8],
}

impl<'b> PieceBytes<'b> {
    pub fn new(pieces: &'b [Bytes]) -> PieceBytes<'b> {
        PieceBytes { pieces: pieces.iter(), rest: &[] }
    }

    /// Fills memory with the next bytes.
    ///
    /// # Errors
    /// There are too few.
    pub fn copy_to(&mut self, mut out: &mut [u8]) -> Result<(), Failure> {
        while !out.is_empty() {
            if self.rest.is_empty() {
                self.rest = self.pieces.next().ok_or("a sum of another length")?;
            }
            let count = out.len().min(self.rest.len());
            let (head, tail) = out.split_at_mut(count);
            head.copy_from_slice(&self.rest[..count]);
            (self.rest, out) = (&self.rest[count..], tail);
        }
        Ok(())
    }
}

/// Where the outcome of a collective meets the operation that ends with it.
#[derive(Default)]
pub struct Landing(Mutex<Landed>);

#[derive(Default)]
struct Landed {
    completion: Option<Completion>,
    outcome: Option<Result<Vec<Bytes>, GroupError>>,
}

impl Landing {
    fn lock(&self) -> MutexGuard<'_, Landed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The outcome is there; only the first one counts.
    pub fn arrive(&self, outcome: Result<Vec<Bytes>, GroupError>) {
        let mut landed = self.lock();
        landed.outcome.get_or_insert(outcome);
        Landing::meet(landed);
    }

    /// The operation waits for it from now on.
    pub fn attach(&self, completion: Completion) {
        let mut landed = self.lock();
        landed.completion = Some(completion);
        Landing::meet(landed);
    }

    fn meet(mut landed: MutexGuard<'_, Landed>) {
        let result = match &landed.outcome {
            None => return,
            Some(outcome) => outcome.as_ref().map(drop).map_err(|error| error.clone().into()),
        };
        let completion = landed.completion.take();
        drop(landed);
        if let Some(completion) = completion {
            completion.complete(result);
        }
    }

    /// What came.
    ///
    /// # Errors
    /// That of the outcome.
    pub fn take(&self) -> Result<Vec<Bytes>, Failure> {
        match self.lock().outcome.take() {
            Some(outcome) => Ok(outcome?),
            None => Err("the sum of the ranks has not come".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4))]
    struct Aligned([u8; 4]);

    /// Two pieces of two parts each: what is encoded, and what is kept back, is the sum of the parts.
    #[test]
    fn codes_are_of_all_parts_of_a_rank() {
        let compression = Compression::TwoBit { threshold: 0.5 };
        let wire = Wire::new(compression, DType::F32).unwrap();
        let data = [0.3f32, 0.3, -0.5, -0.25].map(f32::to_le_bytes);
        let inputs = data.each_ref().map(|data| TensorRef { dtype: DType::F32, dims: &[1], data });
        let kept = [residuals(1).swap_remove(0), residuals(1).swap_remove(0)];
        let given = kept.clone().map(Some);
        let packed = wire.pack(&inputs, &given, &tensorc_kvstore::Buffers::default()).unwrap();
        let (mut first, mut second) = (Aligned([0; 4]), Aligned([0; 4]));
        let mut outputs =
            [&mut first, &mut second].map(|array| TensorMut { dtype: DType::F32, dims: &[1], data: &mut array.0 });
        wire.unpack(&packed, &mut outputs, &[1, 1]).unwrap();
        assert_eq!((packed.len(), f32::from_le_bytes(first.0), f32::from_le_bytes(second.0)), (1, 0.5, -0.5));
        let left = kept.map(|residual| residual.lock().unwrap()[0]);
        assert!((left[0] - 0.1).abs() < 1e-6 && left[1] == -0.25, "{left:?}");
    }
}
