//! Training over several micro-batches, devices and processes.
//!
//! A step has a fixed number of micro-batches, shared out evenly: first over the processes of a distributed store, then
//! over the devices of each. Their gradients are summed in the order of a tree over the micro-batches
//! ([`tensorc_kvstore::tree`]) whoever computes them, so that a step has the same bits for any division. Auxiliary states
//! become the mean of what each micro-batch makes of them.
//!
//! The first device sums, updates the parameters, and passes them on to the others. Over processes, gradients travel in
//! buckets, in the order in which they become final, while the backward pass goes on.
//!
//! With [`Sums::Nccl`], each device sums its own micro-batches, NCCL adds these sums on the first device, and copies the
//! parameters to the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tensorc_kvstore::tree::Accumulator;
use tensorc_runtime::Device;

use super::Module;
use super::step::StagedBatch;
use crate::error::Error;
use crate::kvstore::{self, Compression, KVStore, RankSum, Residual, Urgency, add_to, copy_to_all};
use tensorc_nd::executor::Executor;
use tensorc_nd::{JoinedGpus, NDArray, Runtime};

/// How the gradients of a process's devices are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// By additions on the first device, in the order of a tree over the micro-batches: the same bits for any number of devices.
    #[default]
    Tree,
    /// By NVIDIA's NCCL, in its order, so that bits depend on the number of devices and on NCCL. Needs the feature `nccl`, the
    /// library, and two or more different GPUs of CUDA's driver.
    Nccl,
}

/// How a step is shared out.
pub(super) struct Parallel {
    pub store: Option<KVStore>,
    /// Executors of the devices after the first.
    pub others: Vec<Executor>,
    /// Micro-batches of each device.
    pub micro: usize,
    /// Arrays for sums of gradients and auxiliary states while their device runs again.
    sets: Vec<Vec<NDArray>>,
    /// Auxiliary states at the beginning of a step, by device.
    saved: Vec<Vec<NDArray>>,
    /// Outputs of all micro-batches, one after the other.
    pub outputs: Vec<NDArray>,
    /// The devices, if NCCL sums over them.
    joined: Option<JoinedGpus>,
    agreed: Agreed,
}

/// What modules that share parameters have in common.
#[derive(Clone, Default)]
struct Agreed {
    /// What quantising has left, by parameter.
    residuals: Arc<Mutex<BTreeMap<String, Vec<Residual>>>>,
    /// Names of gradients in the order in which all ranks sum them, for each set of names.
    orders: Arc<Mutex<Vec<Vec<String>>>>,
}

/// Where the sum of some micro-batches is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// In the gradient arrays of a device.
    Device(usize),
    /// In a set.
    Set(usize),
}

impl Parallel {
    /// `like` is of a module that shares the parameters.
    pub fn new(
        store: Option<KVStore>,
        others: Vec<Executor>,
        micro: usize,
        joined: Option<JoinedGpus>,
        like: Option<&Parallel>,
    ) -> Parallel {
        let (sets, saved, outputs) = (vec![], vec![], vec![]);
        let agreed = like.map_or_else(Agreed::default, |like| like.agreed.clone());
        Parallel { store, others, micro, sets, saved, outputs, joined, agreed }
    }

    /// Micro-batches of this process.
    pub fn leaves(&self) -> usize {
        self.micro * (1 + self.others.len())
    }

    pub fn ranks(&self) -> usize {
        self.store.as_ref().map_or(1, KVStore::num_workers)
    }

    pub fn rank(&self) -> usize {
        self.store.as_ref().map_or(0, KVStore::rank)
    }

    /// The store that moves the parameters by itself, if it does.
    fn servers(&self) -> Option<&KVStore> {
        self.store.as_ref().filter(|store| store.kind().is_async())
    }

    /// Processes whose gradients are summed.
    pub fn summed_ranks(&self) -> usize {
        if self.servers().is_some() { 1 } else { self.ranks() }
    }

    /// The position of this process's first micro-batch among those that are summed, and their number.
    fn place(&self) -> (u32, u32) {
        let (leaves, ranks) = (self.leaves(), self.summed_ranks());
        ((self.rank() % ranks * leaves) as u32, (ranks * leaves) as u32)
    }

    /// Micro-batches of the processes before this one, and of those after it.
    fn around(&self) -> (usize, usize) {
        (self.rank() * self.leaves(), (self.ranks() - 1 - self.rank()) * self.leaves())
    }
}

/// Sums that a process has computed, and the sets that are in use.
struct Partial {
    /// One for all devices, or, if they are joined, one for each.
    accumulators: Vec<Accumulator<Holder>>,
    used: usize,
}

impl Partial {
    fn of(&mut self, device: usize) -> &mut Accumulator<Holder> {
        let last = self.accumulators.len() - 1;
        &mut self.accumulators[device.min(last)]
    }
}

impl Module {
    /// The devices of this process.
    pub(super) fn devices(&self) -> Vec<Device> {
        let others = self.parallel.as_ref().map_or(&[][..], |parallel| &parallel.others[..]);
        [self.device].into_iter().chain(others.iter().map(Executor::device)).collect()
    }

    /// The devices of this process, if NCCL sums over them.
    pub(super) fn joined(&self) -> Option<&JoinedGpus> {
        self.parallel.as_ref().and_then(|parallel| parallel.joined.as_ref())
    }

    fn shared(&mut self) -> Result<&mut Parallel, Error> {
        self.parallel.as_deref_mut().ok_or_else(|| Error::Internal("the module has one executor only".into()))
    }

    /// The executor of a micro-batch, by its number in this process.
    pub(super) fn executor_of(&self, leaf: usize) -> &Executor {
        match &self.parallel {
            Some(parallel) if leaf >= parallel.micro => &parallel.others[leaf / parallel.micro - 1],
            _ => &self.executor,
        }
    }

    pub(super) fn executor_of_mut(&mut self, leaf: usize) -> &mut Executor {
        match &mut self.parallel {
            Some(parallel) if leaf >= parallel.micro => &mut parallel.others[leaf / parallel.micro - 1],
            _ => &mut self.executor,
        }
    }

    /// Micro-batches of this process in a step.
    pub(super) fn leaves(&self) -> usize {
        self.parallel.as_ref().map_or(1, |parallel| parallel.leaves())
    }

    /// Micro-batches of all processes whose gradients are summed in a step.
    pub(super) fn summed_leaves(&self) -> usize {
        self.parallel.as_ref().map_or(1, |parallel| parallel.leaves() * parallel.summed_ranks())
    }

    /// Gradient arrays of parameters, then auxiliary states, of a device.
    fn summed(&self, device: usize) -> Vec<&NDArray> {
        let executor = self.executor_of(device * self.parallel.as_ref().map_or(1, |parallel| parallel.micro));
        let gradients = executor.gradients().filter(|(name, _)| !self.is_input(name)).map(|(_, array)| array);
        gradients.chain(executor.auxiliaries().iter().map(|(_, array)| array)).collect()
    }

    /// Copies what a micro-batch gave to its rows of the outputs of all.
    pub(super) fn collect_outputs(&mut self, leaf: usize) -> Result<(), Error> {
        let leaves = self.leaves();
        if leaves == 1 {
            return Ok(());
        }
        if self.shared()?.outputs.is_empty() {
            let mut made = vec![];
            for output in self.executor.outputs() {
                let mut dims = output.dims().to_vec();
                if let Some(rows) = dims.first_mut() {
                    *rows *= leaves as u64;
                }
                made.push(self.rt.empty(self.device, output.dtype(), &dims)?);
            }
            self.shared()?.outputs = made;
        }
        let all = self.parallel.as_ref().map_or(&[][..], |parallel| &parallel.outputs[..]);
        for (output, all) in self.executor_of(leaf).outputs().iter().zip(all) {
            match output.dims().first() {
                Some(rows) => output.copy_into(&all.rows(leaf as u64 * rows, (leaf as u64 + 1) * rows)?)?,
                None => output.copy_into(all)?,
            }
        }
        Ok(())
    }

    /// A step: every micro-batch of this process, the sums over all, and the update.
    pub(super) fn step_parallel(&mut self, staged: &StagedBatch) -> Result<(), Error> {
        let mut sums = self.begin_sums()?;
        let (before, after) = self.shared()?.around();
        self.executor.pass_over_keys(before);
        for (leaf, inputs) in staged.iter().enumerate() {
            self.take(leaf, inputs)?;
            self.executor_of_mut(leaf).forward(true)?;
            self.executor_of_mut(leaf).backward(&[])?;
            self.collect_outputs(leaf)?;
            self.add_leaf(&mut sums, leaf)?;
        }
        self.executor.pass_over_keys(after);
        self.finish_sums(sums)?;
        self.update()
    }

    /// Remembers the auxiliary states from which every micro-batch begins.
    fn begin_sums(&mut self) -> Result<Partial, Error> {
        let (first, total) = self.shared()?.place();
        let (micro, leaves) = (self.shared()?.micro, self.leaves());
        if micro > 1 && !self.executor.auxiliaries().is_empty() {
            let devices = leaves / micro;
            let mut saved = std::mem::take(&mut self.shared()?.saved);
            for device in 0..devices {
                let states = self.executor_of(device * micro).auxiliaries();
                if saved.len() == device {
                    saved.push(states.iter().map(|(_, state)| state.copy()).collect::<Result<_, _>>()?);
                    continue;
                }
                states.iter().zip(&saved[device]).try_for_each(|((_, state), kept)| state.copy_into(kept))?;
            }
            self.shared()?.saved = saved;
        }
        let accumulators = match self.joined() {
            None => vec![Accumulator::new(total, first..first + leaves as u32)],
            Some(joined) => joined.devices().iter().map(|_| Accumulator::new(micro as u32, 0..micro as u32)).collect(),
        };
        Ok(Partial { accumulators, used: 0 })
    }

    /// Takes the gradients of a micro-batch into the sums, and makes room for those of the next on its device.
    fn add_leaf(&mut self, sums: &mut Partial, leaf: usize) -> Result<(), Error> {
        let micro = self.shared()?.micro;
        let device = leaf / micro;
        let module = &*self;
        let add = |left: &mut Holder, right: Holder| {
            let (to, from) = (module.held(*left), module.held(right));
            to.iter().zip(from).try_for_each(|(to, from)| add_to(&module.rt, to, from, Urgency::ahead(0)))
        };
        sums.of(device).push(Holder::Device(device), add)?;
        let runs_again = !(leaf + 1).is_multiple_of(micro);
        if runs_again && sums.of(device).last() == Some(&Holder::Device(device)) {
            let set = sums.used;
            sums.used += 1;
            self.make_set(set, device)?;
            let (from, to) = (self.held(Holder::Device(device)), self.held(Holder::Set(set)));
            from.iter().zip(to).try_for_each(|(from, to)| copy_to_all(&self.rt, from, &[to], Urgency::ahead(0)))?;
            if let Some(last) = sums.of(device).last_mut() {
                *last = Holder::Set(set);
            }
        }
        if runs_again {
            let kept = self.parallel.as_ref().and_then(|parallel| parallel.saved.get(device));
            for ((_, state), kept) in self.executor_of(leaf).auxiliaries().iter().zip(kept.into_iter().flatten()) {
                kept.copy_into(state)?;
            }
        }
        Ok(())
    }

    fn held(&self, holder: Holder) -> Vec<&NDArray> {
        match (holder, &self.parallel) {
            (Holder::Set(set), Some(parallel)) => parallel.sets[set].iter().collect(),
            (Holder::Device(device), _) => self.summed(device),
            (Holder::Set(_), None) => vec![],
        }
    }

    /// Makes a set on a device, unless it is there.
    fn make_set(&mut self, set: usize, device: usize) -> Result<(), Error> {
        let made: Vec<NDArray> = {
            let like = self.summed(device);
            let there = |made: &Vec<NDArray>| made.iter().zip(&like).all(|(made, like)| made.device() == like.device());
            let sets = self.parallel.as_ref().map_or(&[][..], |parallel| &parallel.sets[..]);
            if sets.get(set).is_some_and(there) {
                return Ok(());
            }
            let make = |like: &&NDArray| self.rt.empty(like.device(), like.dtype(), like.dims());
            like.iter().map(make).collect::<Result<_, _>>()?
        };
        let sets = &mut self.shared()?.sets;
        match sets.get_mut(set) {
            Some(old) => *old = made,
            None => sets.push(made),
        }
        Ok(())
    }

    /// Lets the gradient arrays of the first device be the sums over all micro-batches, and its auxiliary states the means.
    fn finish_sums(&mut self, sums: Partial) -> Result<(), Error> {
        let (_, total) = self.shared()?.place();
        let parts_of =
            |accumulator: Accumulator<Holder>| accumulator.into_parts().into_iter().map(|(_, holder)| holder);
        let (leaves, parts) = match self.joined() {
            None => (self.leaves(), sums.accumulators.into_iter().flat_map(parts_of).collect()),
            Some(joined) => {
                for (device, accumulator) in sums.accumulators.into_iter().enumerate() {
                    parts_of(accumulator).try_for_each(|part| self.copy_sums(part, device))?;
                }
                self.reduce_joined(joined)?;
                (1, vec![Holder::Device(0)])
            }
        };
        let states = self.executor.auxiliaries().len();
        let store = self.kvstore().filter(|store| !store.kind().is_async());
        match store.and_then(KVStore::group).cloned() {
            Some(group) => self.sum_over_ranks(&group, &parts, leaves as u32)?,
            None => parts.iter().try_for_each(|part| self.copy_sums(*part, 0))?,
        }
        let all = self.summed(0);
        all[all.len() - states..].iter().try_for_each(|state| scale(&self.rt, state, 1.0 / f64::from(total)))
    }

    /// Copies sums to the gradient arrays and auxiliary states of a device, unless they are there.
    fn copy_sums(&self, from: Holder, device: usize) -> Result<(), Error> {
        let (from, to) = (self.held(from), self.summed(device));
        let mut copies = from.iter().zip(to);
        copies.try_for_each(|(from, to)| copy_to_all(&self.rt, from, &[to], Urgency::ahead(0)))
    }

    /// Lets the arrays of the first device be the sums over all devices, the last parameters first.
    fn reduce_joined(&self, joined: &JoinedGpus) -> Result<(), Error> {
        let all: Vec<Vec<&NDArray>> = (0..joined.devices().len()).map(|device| self.summed(device)).collect();
        let mut places = (0..all[0].len()).rev();
        Ok(places.try_for_each(|at| joined.reduce(&all.iter().map(|arrays| arrays[at]).collect::<Vec<_>>(), 0))?)
    }

    /// Sums the parts over all ranks, each of which has so many leaves.
    fn sum_over_ranks(&mut self, group: &kvstore::Group, parts: &[Holder], leaves: u32) -> Result<(), Error> {
        let compression =
            self.parallel.as_ref().and_then(|p| p.store.as_ref()).map_or(Compression::None, KVStore::compression);
        let names: Vec<String> = {
            let gradients = self.executor.gradients().map(|(name, _)| name).filter(|name| !self.is_input(name));
            gradients
                .chain(self.executor.auxiliaries().iter().map(|(name, _)| name.as_str()))
                .map(str::to_owned)
                .collect()
        };
        let states = self.executor.auxiliaries().len();
        let learned = names.len() - states;
        let agreed = self.shared()?.agreed.clone();
        let order = self.order_of_sums(group, &agreed, &names[..learned])?;
        let mut residuals = agreed.residuals.lock().unwrap_or_else(PoisonError::into_inner);
        if compression.keeps_residual() {
            for (name, array) in names.iter().zip(self.summed(0)) {
                residuals.entry(name.clone()).or_insert_with(|| kvstore::residuals(array.len()));
            }
        }
        let held: Vec<Vec<&NDArray>> = parts.iter().map(|part| self.held(*part)).collect();
        let targets = self.summed(0);
        let sum = |at: usize| RankSum {
            key: &names[at],
            parts: held.iter().map(|of_part| of_part[at]).collect(),
            to: targets[at],
            residuals: residuals.get(&names[at]).map_or(&[][..], |residuals| &residuals[..]),
            priority: -(at as i32),
        };
        let gradients: Vec<RankSum<'_>> = order.iter().copied().map(sum).collect();
        let reduce =
            |sums: &[RankSum<'_>], compression| kvstore::reduce_all(&self.rt, group, sums, leaves, compression);
        reduce(&gradients, compression)?;
        // Means of few numbers, which a quantised gradient's residual would spoil.
        let states: Vec<RankSum<'_>> = (learned..names.len()).map(sum).collect();
        reduce(&states, Compression::None)
    }

    /// Positions of gradients in the order in which rank 0's backward pass is done with them, so that those sent together have
    /// not waited for each other; the last layers' first where that is not known. The first time for a set of gradients, ranks
    /// compare theirs.
    fn order_of_sums(&self, group: &kvstore::Group, agreed: &Agreed, names: &[String]) -> Result<Vec<usize>, Error> {
        let mut orders = agreed.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let positions: BTreeMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let position = |name: &String| positions.get(name.as_str()).copied();
        let of_these = |order: &&Vec<String>| order.len() == names.len() && order.iter().all(|n| position(n).is_some());
        if let Some(order) = orders.iter().find(of_these) {
            return Ok(order.iter().filter_map(position).collect());
        }
        let mut own: Vec<String> = self.executor.gradients_in_order()?.into_iter().map(str::to_owned).collect();
        own.retain(|name| names.contains(name));
        let rest: Vec<String> = names.iter().rev().filter(|name| !own.contains(name)).cloned().collect();
        own.extend(rest);
        let all = kvstore::of_all(group, "gradients", &own)?;
        for (rank, theirs) in all.iter().enumerate() {
            let first = &all[0];
            for (learns, names, lacks, others) in [(0, first, rank, theirs), (rank, theirs, 0, first)] {
                if let Some(name) = names.iter().find(|name| !others.contains(name)) {
                    let why = format!("rank {learns} learns `{name}`, which rank {lacks} does not");
                    return Err(tensorc_nd::Error::Bind(why).into());
                }
            }
        }
        let order = all.into_iter().next().unwrap_or(own);
        let agreed = order.iter().filter_map(position).collect();
        orders.push(order);
        Ok(agreed)
    }

    /// Passes parameters and auxiliary states of the first device on to the others, and rank 0's to all ranks.
    pub(super) fn spread_params(&self) -> Result<(), Error> {
        let Some(parallel) = &self.parallel else { return Ok(()) };
        if let Some(group) = parallel.store.as_ref().and_then(KVStore::group) {
            for (name, array) in self.parameters().chain(self.auxiliaries()) {
                kvstore::adopt(group, name, array)?;
            }
        }
        if let Some(servers) = parallel.servers() {
            self.learned().try_for_each(|(name, array)| servers.set(name, array))?;
        }
        self.pass_on()
    }

    /// Sends gradients to the servers of an asynchronous store, and takes what the parameters are there by then; whether
    /// there is such a store.
    pub(super) fn update_there(&self) -> Result<bool, Error> {
        let Some(servers) = self.parallel.as_ref().and_then(|parallel| parallel.servers()) else { return Ok(false) };
        for (at, (name, array)) in self.learned().enumerate() {
            servers.push(name, &[self.executor.gradient(name)?], -(at as i32))?;
            servers.pull(name, &[array], -(at as i32))?;
        }
        self.pass_on()?;
        Ok(true)
    }

    /// Copies parameters and auxiliary states of the first device to the others.
    pub(super) fn pass_on(&self) -> Result<(), Error> {
        let others = self.parallel.as_ref().map_or(&[][..], |parallel| &parallel.others[..]);
        if others.is_empty() {
            return Ok(());
        }
        for (name, array) in self.parameters().chain(self.auxiliaries()) {
            let to = others.iter().map(|other| other.argument(name).or_else(|_| other.auxiliary(name)));
            let to = to.collect::<Result<Vec<_>, _>>()?;
            match self.joined().filter(|joined| joined.takes(array.dtype())) {
                Some(joined) => joined.broadcast(&[&[array], &to[..]].concat(), 0)?,
                None => copy_to_all(&self.rt, array, &to, Urgency::usual(0))?,
            }
        }
        Ok(())
    }
}

fn scale(rt: &Runtime, array: &NDArray, factor: f64) -> Result<(), Error> {
    if factor == 1.0 {
        return Ok(());
    }
    Ok(rt.op("mul")?.arg(array).arg(factor).into(&[array])?)
}
