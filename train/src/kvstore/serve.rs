//! Values that ranks keep for each other: the asynchronous store.
//!
//! Every rank serves the parts of the values that are placed on it ([`tensorc_kvstore::place`]). A push moves a part at
//! once, by the optimizer of the rank that keeps it; a pull fetches what the parts are by then. Pushes and pulls of one rank
//! arrive in their order, so that a pull sees the rank's own pushes.
//!
//! The part that serves has a runtime of its own: it never waits for work of this rank that may wait for another's server.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tensorc_kvstore::place::{Placement, ValueShard};
use tensorc_kvstore::{Answered, Compression, Group, GroupError, Key, KvError, ServeRequest};
use tensorc_runtime::DType;
use tensorc_runtime::array::{self, ArrayOperand, ArrayView, LaunchOutput};
use tensorc_runtime::engine::OpName;

use super::reduce::{Landing, PieceBytes, Residual, await_landing, decode, token};
use super::sums::Urgency;
use crate::error::Error;
use crate::optimizer::{Optimizer, Updater};
use tensorc::Tensor;
use tensorc_nd::{NDArray, Runtime};

/// What a question is about, besides the key.
const PULL: u64 = 0;
/// A push; the rest of the detail says how values are encoded.
const PUSH: u64 = 1;

/// What the serving thread is told.
enum Told {
    Add { index: u64, name: String, dtype: DType, part: Bytes },
    Optimizer(Optimizer),
    Asked(ServeRequest),
}

/// This rank's access to the values of all, and its own share of them.
pub struct Servers {
    group: Group,
    placement: Placement,
    keys: BTreeMap<Key, Placed>,
    tell: Sender<Told>,
}

/// A value as it lies on the ranks.
struct Placed {
    /// By the order of `init`, the same on every rank.
    index: u64,
    parts: Vec<ValueShard>,
    /// By part.
    residuals: Vec<Residual>,
    /// Orders this rank's pushes and pulls of the value.
    order: ArrayView,
}

impl Servers {
    /// Begins to serve.
    pub fn new(rt: &Runtime, group: Group) -> Result<Servers, Error> {
        let servers = u32::try_from(group.size()).ok().and_then(NonZeroU32::new);
        let Some(servers) = servers else { return Err(Error::Internal("a group without ranks".into())) };
        let own = Runtime::with_compiler(rt.compiler().clone(), rt.options().clone())?;
        let (tell, told) = channel();
        let spawned = std::thread::Builder::new().name("kvstore-server".into()).spawn(move || serve(&own, &told));
        spawned.map_err(|error| Error::Internal(format!("no thread for a server: {error}")))?;
        let asked = tell.clone();
        // A server that has ended drops the question, which fails the group.
        group.serve(Box::new(move |request| drop(asked.send(Told::Asked(request)))));
        Ok(Servers { group, placement: Placement::new(servers), keys: BTreeMap::new(), tell })
    }

    /// Places a value; every rank calls it, and none goes on before all have.
    pub fn add(&mut self, rt: &Runtime, key: &Key, value: &NDArray) -> Result<(), Error> {
        let known = self.keys.get(key).map(|placed| placed.index);
        if known.is_some() {
            // What was pushed before moves the value before.
            rt.wait_all()?;
            self.group.barrier(&format!("pushes to {key}"))?;
        }
        let index = known.unwrap_or(self.keys.len() as u64);
        let spread = match key {
            Key::Int(number) => *number,
            Key::Str(_) => index as i64,
        };
        let parts = self.placement.parts(spread, value.len());
        let bytes = Bytes::from(value.to_bytes()?);
        let size = value.dtype().size();
        for part in parts.iter().filter(|part| part.server as usize == self.group.rank()) {
            let part = bytes.slice(part.elements.start as usize * size..part.elements.end as usize * size);
            self.say(Told::Add { index, name: key.to_string(), dtype: value.dtype(), part });
        }
        let zeros = parts.iter().map(|part| vec![0.0; (part.elements.end - part.elements.start) as usize]);
        let residuals = zeros.map(|zeros| Arc::new(Mutex::new(zeros))).collect();
        self.keys.insert(key.clone(), Placed { index, parts, residuals, order: token(rt)? });
        self.group.barrier(&format!("value of {key}"))?;
        Ok(())
    }

    fn say(&self, told: Told) {
        // A server that has ended has failed the group, which says why.
        let _ = self.tell.send(told);
    }

    /// Lets an optimizer move the parts kept here; every rank calls it.
    pub fn set_optimizer(&self, optimizer: Optimizer) -> Result<(), Error> {
        self.say(Told::Optimizer(optimizer));
        Ok(self.group.barrier("optimizer of the servers")?)
    }

    fn placed(&self, key: &Key) -> Result<&Placed, Error> {
        self.keys.get(key).ok_or_else(|| KvError::Unknown { key: key.clone() }.into())
    }

    /// Sends a gradient to where the value is.
    pub fn push(
        &self,
        rt: &Runtime,
        key: &Key,
        gradient: &NDArray,
        compression: Compression,
        urgency: Urgency,
    ) -> Result<(), Error> {
        let Placed { index, parts, residuals, order } = self.placed(key)?;
        if compression != Compression::None && gradient.dtype() != DType::F32 {
            return Err(KvError::CompressedType { compression, dtype: gradient.dtype() }.into());
        }
        gradient.settle()?;
        let (group, index, parts, residuals) = (self.group.clone(), *index, parts.clone(), residuals.clone());
        let (size, detail) = (gradient.dtype().size(), detail(compression));
        let answers = Answers::new(parts.len());
        let attached = answers.clone();
        let inputs = vec![ArrayOperand::View(gradient.view().clone())];
        let request = urgency.launch(&SEND, order.device(), inputs, vec![LaunchOutput::write(order.clone())]);
        array::launch(rt.space(), request, move |inputs, _| {
            for (at, (part, residual)) in parts.iter().zip(&residuals).enumerate() {
                let range = part.elements.start as usize * size..part.elements.end as usize * size;
                let mut message = vec![];
                match compression {
                    Compression::None => message.extend_from_slice(&inputs[0].data[range]),
                    _ => {
                        let mut residual = residual.lock().unwrap_or_else(PoisonError::into_inner);
                        let kept = if compression.keeps_residual() { &mut residual[..] } else { &mut [] };
                        compression.encode(&inputs[0].data[range], kept, &mut message)?;
                    }
                }
                group.ask(part.server as usize, index, detail, message.into(), answers.clone().of(at));
            }
            Ok(())
        })?;
        await_landing(rt, &ANSWER, order, order, attached.landing, urgency)
    }

    /// Writes what the value is by now to an array.
    pub fn pull(&self, rt: &Runtime, key: &Key, to: &NDArray, urgency: Urgency) -> Result<(), Error> {
        let Placed { index, parts, order, .. } = self.placed(key)?;
        to.settle()?;
        let (group, index, parts) = (self.group.clone(), *index, parts.clone());
        let answers = Answers::new(parts.len());
        let (attached, taken) = (answers.clone(), answers.landing.clone());
        let request = |name, inputs, outputs| urgency.launch(name, order.device(), inputs, outputs);
        let fetch = request(&FETCH, vec![], vec![LaunchOutput::update(order.clone())]);
        array::launch(rt.space(), fetch, move |_, _| {
            for (at, part) in parts.iter().enumerate() {
                group.ask(part.server as usize, index, PULL, Bytes::new(), answers.clone().of(at));
            }
            Ok(())
        })?;
        await_landing(rt, &ANSWER, order, order, attached.landing, urgency)?;
        let store =
            request(&STORE, vec![ArrayOperand::View(order.clone())], vec![LaunchOutput::write(to.view().clone())]);
        array::launch(rt.space(), store, move |_, outputs| PieceBytes::new(&taken.take()?).copy_to(outputs[0].data))?;
        to.view().chunk().touch();
        Ok(())
    }
}

static SEND: OpName = OpName::from_static("kvstore_push");
static FETCH: OpName = OpName::from_static("kvstore_pull");
static ANSWER: OpName = OpName::from_static("kvstore_answer");
static STORE: OpName = OpName::from_static("kvstore_store");

/// Answers of several ranks, which together are one outcome.
#[derive(Clone)]
struct Answers {
    parts: Arc<Mutex<Vec<Option<Bytes>>>>,
    landing: Arc<Landing>,
}

impl Answers {
    fn new(parts: usize) -> Answers {
        Answers { parts: Arc::new(Mutex::new(vec![None; parts])), landing: Arc::default() }
    }

    /// Takes the answer about one part.
    fn of(self, at: usize) -> Answered {
        Box::new(move |answer: Result<Bytes, GroupError>| {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(bytes) => parts[at] = Some(bytes),
                Err(error) => return self.landing.arrive(Err(error)),
            }
            if parts.iter().all(Option::is_some) {
                self.landing.arrive(Ok(parts.iter().flatten().cloned().collect()));
            }
        })
    }
}

/// How a push says what its values are encoded as.
fn detail(compression: Compression) -> u64 {
    let (code, threshold) = match compression {
        Compression::None => (0, 0.0),
        Compression::TwoBit { threshold } => (1, threshold),
        Compression::OneBit { threshold } => (2, threshold),
        Compression::F16 => (3, 0.0),
        Compression::BF16 => (4, 0.0),
    };
    PUSH | code << 8 | u64::from(f32::to_bits(threshold)) << 32
}

fn compression_of(detail: u64) -> Result<Compression, String> {
    let threshold = f32::from_bits((detail >> 32) as u32);
    match detail >> 8 & 0xff {
        0 => Ok(Compression::None),
        1 => Ok(Compression::TwoBit { threshold }),
        2 => Ok(Compression::OneBit { threshold }),
        3 => Ok(Compression::F16),
        4 => Ok(Compression::BF16),
        other => Err(format!("there is no encoding {other}")),
    }
}

/// A part of a value that this rank keeps.
struct ServedPart {
    name: String,
    value: NDArray,
}

/// What the serving thread has.
struct Shelf<'r> {
    rt: &'r Runtime,
    values: BTreeMap<u64, ServedPart>,
    updater: Option<Updater>,
}

/// Serves until nobody can ask any more.
fn serve(rt: &Runtime, told: &Receiver<Told>) {
    let mut shelf = Shelf { rt, values: BTreeMap::new(), updater: None };
    while let Ok(told) = told.recv() {
        match told {
            Told::Add { index, name, dtype, part } => {
                let dims = [part.len() as u64 / dtype.size() as u64];
                // What cannot be kept is missed by the first question.
                if let Ok(value) = rt.from_bytes(rt.options().device, dtype, &dims, &part) {
                    shelf.values.insert(index, ServedPart { name, value });
                }
            }
            Told::Optimizer(optimizer) => shelf.updater = Some(Updater::new(optimizer)),
            Told::Asked(ServeRequest { subject, detail, data, reply, .. }) => {
                reply.send(shelf.answer(subject, detail, data).map_err(|error| error.to_string()));
            }
        }
    }
}

impl Shelf<'_> {
    fn answer(&mut self, index: u64, detail: u64, data: Bytes) -> Result<Bytes, Error> {
        let missing = || Error::Internal(format!("no part of value {index} is kept here"));
        let ServedPart { name, value } = self.values.get(&index).ok_or_else(missing)?;
        if detail & 0xff == PULL {
            return Ok(value.to_bytes()?.into());
        }
        let compression = compression_of(detail).map_err(Error::Internal)?;
        let data = decode(compression, data, value.len() as usize)?;
        let gradient = Tensor::from_bytes(value.dtype(), value.dims(), data)?;
        let gradient = self.rt.from_tensor(&gradient, value.device())?;
        let updater = self.updater.as_mut().ok_or(KvError::NoOptimizer)?;
        updater.update(name, value, &gradient)?;
        Ok(Bytes::new())
    }
}
