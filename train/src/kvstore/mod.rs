//! The key-value store: values by key, summed over devices and processes.
//!
//! ```
//! use tensorc_train::kvstore::KVStore;
//! use tensorc_nd::{Runtime, RuntimeOptions};
//! # fn main() -> Result<(), tensorc_train::Error> {
//! let rt = Runtime::new(RuntimeOptions::default())?;
//! let store = KVStore::create(&rt, "local")?;
//! let value = rt.array(&[2], &[2.0f32, 3.0])?;
//! store.init("weight", &value)?;
//! store.push("weight", &[&value, &value, &value, &value], 0)?;
//! let sum = rt.zeros(&[2], tensorc::DType::F32)?;
//! store.pull("weight", &[&sum], 0)?;
//! assert_eq!(sum.to_vec::<f32>()?, [8.0, 12.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing waits unless its documentation says so: pushes and pulls are operations of the engine, ordered by the arrays
//! they use. Without an optimizer, a push replaces a key's value by the sum of what was pushed; with one, the optimizer
//! moves the value by it. The semantics are those of MXNet's KVStore.
//!
//! - `entry`: what is kept for a key
//! - `sums`, `reduce`: sums over devices, and over ranks
//! - `serve`: values that ranks keep for each other, asynchronously
//! - `updates`: what a push does to a value

mod entry;
mod reduce;
mod serve;
mod sums;
mod updates;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use tensorc_kvstore::*;
use tensorc_runtime::Device;

use entry::{Entries, StoredValue};
use reduce::{ReducePiece, Reduction, cut};
pub(crate) use reduce::{Residual, residuals};
use serve::Servers;
use sums::sum_to;
pub(crate) use sums::{Urgency, add_to, copy_to_all};
use updates::Updates;

use crate::error::Error;
use crate::optimizer::Optimizer;
use tensorc_nd::{NDArray, Runtime};

/// Values by key, shared by devices and processes. Clones are handles of the same store.
#[derive(Clone)]
pub struct KVStore(Arc<Store>);

struct Store {
    rt: Runtime,
    kind: StoreKind,
    /// The ranks of a distributed store.
    group: Option<Group>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: Keys,
    entries: Entries,
    updates: Updates,
    compression: Compression,
    servers: Option<Servers>,
}

/// A key with arrays of several devices.
pub type DeviceValues<'a> = (Key, Vec<&'a NDArray>);

impl KVStore {
    /// A store by the name of its kind: `local`, `device`, `dist_sync`, `dist_device_sync` or `dist_async`. The distributed
    /// kinds join the processes of an MPI job, which the feature `mpi` is needed for; a process that no launcher started is
    /// a job of one.
    ///
    /// # Errors
    /// No kind has the name, this program was built without the feature, or MPI cannot be used.
    pub fn create(rt: &Runtime, kind: &str) -> Result<KVStore, Error> {
        KVStore::with_options(rt, kind.parse()?, GroupOptions::default())
    }

    /// A store of a kind, with a deadline of its own for ranks that wait for each other.
    ///
    /// # Errors
    /// As [`KVStore::create`].
    pub fn with_options(rt: &Runtime, kind: StoreKind, mut options: GroupOptions) -> Result<KVStore, Error> {
        if !kind.is_distributed() {
            return Ok(KVStore::new(rt, kind, None));
        }
        options.profiler = options.profiler.or_else(|| rt.options().engine.profiler.clone());
        KVStore::of_group(rt, kind, join_job(kind, options)?)
    }

    /// A distributed store over the ranks of a group.
    ///
    /// # Errors
    /// The kind is not distributed.
    pub fn of_group(rt: &Runtime, kind: StoreKind, group: Group) -> Result<KVStore, Error> {
        match kind.is_distributed() {
            true => {
                let store = KVStore::new(rt, kind, Some(group.clone()));
                if kind.is_async() {
                    store.lock().servers = Some(Servers::new(rt, group)?);
                }
                Ok(store)
            }
            false => Err(KvError::NotDistributed { kind }.into()),
        }
    }

    fn new(rt: &Runtime, kind: StoreKind, group: Option<Group>) -> KVStore {
        KVStore(Arc::new(Store { rt: rt.clone(), kind, group, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kind that it was created with.
    pub fn kind(&self) -> StoreKind {
        self.0.kind
    }

    /// The ranks of a distributed store.
    pub fn group(&self) -> Option<&Group> {
        self.0.group.as_ref()
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.group().map_or(0, Group::rank)
    }

    /// Processes that share the store.
    pub fn num_workers(&self) -> usize {
        self.group().map_or(1, Group::size)
    }

    /// Sets the first value of a key, in distributed stores that of rank 0 for all ranks, which are waited for.
    ///
    /// # Errors
    /// The key has a value already, or is of another kind than the keys before it; the ranks differ.
    pub fn init(&self, key: impl Into<Key>, value: &NDArray) -> Result<(), Error> {
        self.put(key.into(), value, false)
    }

    /// [`KVStore::init`], also of a key that has a value.
    pub(crate) fn set(&self, key: impl Into<Key>, value: &NDArray) -> Result<(), Error> {
        self.put(key.into(), value, true)
    }

    fn put(&self, key: Key, value: &NDArray, replace: bool) -> Result<(), Error> {
        let mut state = self.lock();
        if !replace && state.entries.by_key.contains_key(&key) {
            return Err(KvError::Duplicate { key }.into());
        }
        if value.dtype().is_narrow() {
            return Err(KvError::Elements { key, dtype: value.dtype() }.into());
        }
        state.keys.check(&key)?;
        let stored = value.copy()?;
        if let Some(group) = self.group() {
            adopt(group, &format!("first value of {key}"), &stored)?;
        }
        if let Some(servers) = &mut state.servers {
            servers.add(&self.0.rt, &key, &stored)?;
        }
        state.entries.by_key.insert(key, StoredValue::new(stored));
        Ok(())
    }

    /// Sums the values of the devices, and of all ranks if the store is distributed, and lets the sum be the key's value or
    /// the gradient that moves it. Of what waits, the highest priority begins first.
    ///
    /// # Errors
    /// The key has no value, or values differ from it in type or shape.
    pub fn push(&self, key: impl Into<Key>, values: &[&NDArray], priority: i32) -> Result<(), Error> {
        self.push_all(&[(key.into(), values.to_vec())], priority)
    }

    /// [`KVStore::push`] of several keys. In distributed stores, keys that follow each other travel together.
    ///
    /// # Errors
    /// As [`KVStore::push`].
    pub fn push_all(&self, list: &[DeviceValues<'_>], priority: i32) -> Result<(), Error> {
        let state = &mut *self.lock();
        for (key, values) in list {
            check(state, key, values, "push")?;
        }
        match &self.0.group {
            None => list.iter().try_for_each(|(key, values)| self.push_here(state, key, values, priority)),
            Some(_) if state.servers.is_some() => {
                list.iter().try_for_each(|(key, values)| self.push_to_servers(state, key, values, priority))
            }
            // The sums of a key are written to one array: a key that comes twice has two turns.
            Some(group) if list.iter().map(|(key, _)| key).collect::<BTreeSet<_>>().len() < list.len() => {
                list.chunks(1).try_for_each(|one| self.push_ranks(state, group, one, priority))
            }
            Some(group) => self.push_ranks(state, group, list, priority),
        }
    }

    fn push_here(&self, state: &mut State, key: &Key, values: &[&NDArray], priority: i32) -> Result<(), Error> {
        let rt = &self.0.rt;
        if self.0.kind.reduces_on_device() {
            state.entries.settle_on_device(key, values)?;
        }
        if state.updates.are_none() {
            let stored = &entry(state, key)?.stored;
            return sum_to(rt, values, stored, Urgency::usual(priority));
        }
        let merged = merge(rt, &mut state.entries, key, values, priority)?;
        let stored = entry(state, key)?.stored.clone();
        state.updates.apply(key, &merged, &stored)
    }

    fn push_to_servers(&self, state: &mut State, key: &Key, values: &[&NDArray], priority: i32) -> Result<(), Error> {
        let merged = merge(&self.0.rt, &mut state.entries, key, values, priority)?;
        let Some(servers) = &state.servers else { return Ok(()) };
        servers.push(&self.0.rt, key, &merged, state.compression, Urgency::ahead(priority))
    }

    /// Sums keys over ranks, together, and then updates each.
    fn push_ranks(
        &self,
        state: &mut State,
        group: &Group,
        list: &[DeviceValues<'_>],
        priority: i32,
    ) -> Result<(), Error> {
        let (compression, mut arrays) = (state.compression, vec![]);
        for (key, values) in list {
            let merged = merge(&self.0.rt, &mut state.entries, key, values, priority)?;
            let entry = entry(state, key)?;
            let residuals = if compression.keeps_residual() { entry.residuals().to_vec() } else { vec![] };
            arrays.push((key.to_string(), merged, residuals));
        }
        let sums = arrays.iter().map(|(key, merged, residuals)| RankSum {
            key,
            parts: vec![merged],
            to: merged,
            residuals,
            priority,
        });
        reduce_all(&self.0.rt, group, &sums.collect::<Vec<_>>(), 1, compression)?;
        for ((key, _), (_, merged, _)) in list.iter().zip(&arrays) {
            let stored = entry(state, key)?.stored.clone();
            match state.updates.are_none() {
                true => copy_to_all(&self.0.rt, merged, &[&stored], Urgency::usual(priority))?,
                false => state.updates.apply(key, merged, &stored)?,
            }
        }
        Ok(())
    }

    /// Copies a key's value to arrays on any devices, after what was pushed before.
    ///
    /// # Errors
    /// The key has no value, or arrays differ from it in type or shape.
    pub fn pull(&self, key: impl Into<Key>, to: &[&NDArray], priority: i32) -> Result<(), Error> {
        self.pull_all(&[(key.into(), to.to_vec())], priority)
    }

    /// [`KVStore::pull`] of several keys.
    ///
    /// # Errors
    /// As [`KVStore::pull`].
    pub fn pull_all(&self, list: &[DeviceValues<'_>], priority: i32) -> Result<(), Error> {
        let state = &mut *self.lock();
        for (key, to) in list {
            check(state, key, to, "pull")?;
            let stored = entry(state, key)?.stored.clone();
            if let Some(servers) = &state.servers {
                servers.pull(&self.0.rt, key, &stored, Urgency::ahead(priority))?;
            }
            copy_to_all(&self.0.rt, &stored, to, Urgency::usual(priority))?;
        }
        Ok(())
    }

    /// [`KVStore::push`], then [`KVStore::pull`].
    ///
    /// # Errors
    /// As theirs.
    pub fn pushpull(
        &self,
        key: impl Into<Key>,
        values: &[&NDArray],
        to: &[&NDArray],
        priority: i32,
    ) -> Result<(), Error> {
        let key = key.into();
        self.push(key.clone(), values, priority)?;
        self.pull(key, to, priority)
    }

    /// [`KVStore::init`], then [`KVStore::pull`].
    ///
    /// # Errors
    /// As theirs.
    pub fn broadcast(&self, key: impl Into<Key>, value: &NDArray, to: &[&NDArray], priority: i32) -> Result<(), Error> {
        let key = key.into();
        self.init(key.clone(), value)?;
        self.pull(key, to, priority)
    }

    /// Lets an optimizer move the values by what is pushed. In distributed stores every rank calls it, waits for the others,
    /// and the configuration of rank 0 counts. States are kept by every rank that keeps the value.
    ///
    /// # Errors
    /// The ranks differ, or the configuration contradicts itself.
    pub fn set_optimizer(&self, optimizer: Optimizer) -> Result<(), Error> {
        optimizer.schedule.check()?;
        let optimizer = match self.group() {
            None => optimizer,
            Some(group) => of_all(group, "optimizer", &optimizer)?.swap_remove(0),
        };
        let mut state = self.lock();
        if let Some(servers) = &state.servers {
            servers.set_optimizer(optimizer.clone())?;
        }
        state.updates = Updates::optimizer(optimizer);
        Ok(())
    }

    /// Lets a function change values: of a key, what was pushed, and the value. It is called while pushing, and pushes
    /// operations itself.
    ///
    /// # Errors
    /// The store is asynchronous: its values are moved elsewhere, by an optimizer.
    pub fn set_updater(
        &self,
        update: impl FnMut(&Key, &NDArray, &NDArray) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        if self.0.kind.is_async() {
            return Err(KvError::Updater { kind: self.0.kind }.into());
        }
        self.lock().updates = Updates::function(update);
        Ok(())
    }

    /// Sends gradients in fewer bits. Local stores send nothing.
    ///
    /// # Errors
    /// The store is `local`.
    pub fn set_gradient_compression(&self, compression: Compression) -> Result<(), Error> {
        if self.0.kind == StoreKind::Local {
            return Err(KvError::Compression { kind: self.0.kind }.into());
        }
        self.lock().compression = compression;
        Ok(())
    }

    /// How gradients are sent.
    pub(crate) fn compression(&self) -> Compression {
        self.lock().compression
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    /// A rank does not come.
    pub fn barrier(&self) -> Result<(), Error> {
        self.group().map_or(Ok(()), |group| Ok(group.barrier("barrier of the store")?))
    }

    /// Waits for what was pushed, and leaves the ranks when all do.
    ///
    /// # Errors
    /// What was pushed failed, or a rank does something else.
    pub fn close(&self) -> Result<(), Error> {
        let pending = self.0.rt.wait_all();
        let left = self.group().map_or(Ok(()), |group| Ok(group.close()?));
        left.and(Ok(pending?))
    }

    /// Saves the optimizer's states, which every rank of a synchronous store has.
    ///
    /// # Errors
    /// There is no optimizer, what computed a state failed, or the file cannot be written. The states of an asynchronous
    /// store are with its servers.
    pub fn save_optimizer_states(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.refuse_async()?;
        let mut state = self.lock();
        state.updates.updater()?.save(&self.0.rt, path)
    }

    /// Takes up the optimizer's states of a file, for all keys.
    ///
    /// # Errors
    /// There is no optimizer, or the file does not fit it; as [`KVStore::save_optimizer_states`].
    pub fn load_optimizer_states(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        self.refuse_async()?;
        let State { entries, updates, .. } = &mut *self.lock();
        let named: Vec<(String, &NDArray)> =
            entries.by_key.iter().map(|(key, entry)| (key.to_string(), &entry.stored)).collect();
        let named = named.iter().map(|(name, array)| (name.as_str(), *array));
        updates.updater()?.load(&self.0.rt, Device::default(), path, named)
    }
}

impl KVStore {
    fn refuse_async(&self) -> Result<(), Error> {
        match self.0.kind.is_async() {
            true => Err(KvError::States { kind: self.0.kind }.into()),
            false => Ok(()),
        }
    }
}

/// Joins the MPI job that this process is part of.
fn join_job(kind: StoreKind, options: GroupOptions) -> Result<Group, Error> {
    #[cfg(feature = "mpi")]
    {
        let _ = kind;
        let make = || -> Result<Box<dyn Transport>, _> {
            Ok(Box::new(tensorc_kvstore::transport::mpi::MpiTransport::init()?))
        };
        Ok(Group::join(make, options)?)
    }
    #[cfg(not(feature = "mpi"))]
    {
        let _ = options;
        Err(KvError::Unavailable { kind, feature: "mpi" }.into())
    }
}

/// The values of all ranks.
pub(crate) fn of_all<T>(group: &Group, what: &str, own: &T) -> Result<Vec<T>, Error>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let wrong = |error: serde_json::Error| Error::Internal(format!("{what} of a rank: {error}"));
    let all = group.gather(what, serde_json::to_vec(own).map_err(wrong)?)?;
    all.iter().map(|text| serde_json::from_slice(text).map_err(wrong)).collect()
}

/// Lets an array have rank 0's elements; waits for the ranks. Arrays of other shapes are an error, also with as many elements.
pub(crate) fn adopt(group: &Group, key: &str, array: &NDArray) -> Result<(), Error> {
    let key = &format!("{key}, shape {:?}", array.dims());
    for (number, piece) in cut(&[array])?.into_iter().flatten().enumerate() {
        let part = array.reshape(&[-1])?;
        let from = number as u64 * (reduce::MAX_COLLECTIVE_BYTES / array.dtype().size() as u64);
        let part = part.rows(from, from + piece.len())?;
        let own = if group.rank() == 0 { vec![bytes::Bytes::from(part.to_bytes()?)] } else { vec![] };
        let call = CollectiveCall::broadcast(key, 0, array.dtype(), piece.len());
        let found = group.wait(call, own)?;
        if let (Some(bytes), true) = (found.into_iter().next(), group.rank() != 0) {
            part.assign(&tensorc::Tensor::from_bytes(array.dtype(), part.dims(), bytes)?)?;
        }
    }
    Ok(())
}

/// An array that is summed over ranks.
pub(crate) struct RankSum<'a> {
    pub key: &'a str,
    /// This rank's sums over its subtrees.
    pub parts: Vec<&'a NDArray>,
    pub to: &'a NDArray,
    /// By piece, if gradients are quantised.
    pub residuals: &'a [Residual],
    /// The largest of a collective's counts.
    pub priority: i32,
}

/// Most bytes of the first collective of several: it sets out early.
const MAX_FIRST_BUCKET_BYTES: u64 = 1 << 20;
/// A collective takes a quarter of what is left at most, so that few bytes wait for the last array, unless it would be shorter than this.
const MIN_BUCKET_BYTES: u64 = 256 << 10;

/// Sums arrays over the ranks of a group, several in one collective as long as they are short.
pub(crate) fn reduce_all(
    rt: &Runtime,
    group: &Group,
    sums: &[RankSum<'_>],
    leaves: u32,
    compression: Compression,
) -> Result<(), Error> {
    let mut bundle: Vec<(&RankSum<'_>, ReducePiece)> = vec![];
    let mut left: u64 = sums.iter().map(|sum| sum.to.view().bytes()).sum();
    let share = |left: u64, most| (left / 4).clamp(MIN_BUCKET_BYTES, most);
    let mut limit = share(left, MAX_FIRST_BUCKET_BYTES);
    let push = |bundle: Vec<(&RankSum<'_>, ReducePiece)>| {
        let key = match (bundle.first(), bundle.len()) {
            (None, _) => return Ok(()),
            (Some((sum, _)), 1) => sum.key.to_owned(),
            (Some((sum, _)), count) => format!("{} and {} more", sum.key, count - 1),
        };
        let priority = bundle.iter().map(|(sum, _)| sum.priority).max().unwrap_or(0);
        let pieces = bundle.into_iter().map(|(_, piece)| piece).collect();
        Reduction { key, pieces, leaves, compression, urgency: Urgency::ahead(priority), rt, group }.push()
    };
    for sum in sums {
        let arrays: Vec<&NDArray> = sum.parts.iter().copied().chain([sum.to]).collect();
        for (number, mut views) in cut(&arrays)?.into_iter().enumerate() {
            let Some(to) = views.pop() else { continue };
            let bytes = bundle.iter().map(|(_, piece)| piece.to.bytes()).sum::<u64>();
            let other = bundle.first().is_some_and(|(_, piece)| piece.to.dtype() != to.dtype());
            if !bundle.is_empty() && (bytes + to.bytes() > limit || other) {
                push(std::mem::take(&mut bundle))?;
                left -= bytes;
                limit = share(left, reduce::MAX_COLLECTIVE_BYTES);
            }
            let residual = sum.residuals.get(number).cloned();
            bundle.push((sum, ReducePiece { parts: views, to, residual }));
        }
    }
    push(bundle)
}

fn entry<'s>(state: &'s mut State, key: &Key) -> Result<&'s mut StoredValue, Error> {
    state.entries.by_key.get_mut(key).ok_or_else(|| KvError::Unknown { key: key.clone() }.into())
}

/// Refuses arrays that are not like the key's value.
fn check(state: &mut State, key: &Key, arrays: &[&NDArray], what: &'static str) -> Result<(), Error> {
    state.keys.check(key)?;
    let stored = &entry(state, key)?.stored;
    let unlike = |array: &&&NDArray| (array.dtype(), array.dims()) != (stored.dtype(), stored.dims());
    match (arrays.iter().find(unlike), arrays.is_empty()) {
        (None, false) => Ok(()),
        (None, true) => Err(KvError::NoArrays { key: key.clone(), what }.into()),
        (Some(found), _) => {
            let (found, expected) = (format!("{found:?}"), format!("{stored:?}"));
            Err(KvError::Type { key: key.clone(), what, expected, found }.into())
        }
    }
}

/// The sum of the values of several devices, on the device of the key's value.
fn merge(rt: &Runtime, entries: &mut Entries, key: &Key, values: &[&NDArray], priority: i32) -> Result<NDArray, Error> {
    let Some(entry) = entries.by_key.get_mut(key) else { return Err(KvError::Unknown { key: key.clone() }.into()) };
    let merged = entry.merged(rt)?;
    sum_to(rt, values, &merged, Urgency::usual(priority))?;
    Ok(merged)
}

impl std::fmt::Debug for KVStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, rank, workers) = (self.kind(), self.rank(), self.num_workers());
        f.debug_struct("KVStore").field("kind", &kind).field("rank", &rank).field("workers", &workers).finish()
    }
}
