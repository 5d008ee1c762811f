//! A launch: which thread goes on, and what it does alone.

use std::collections::{BTreeMap, VecDeque};

use super::group::Group;
use super::memory::{Memory, address};
use super::op::{FenceKind, Op, Program, Slot, SlotKind, Space, Special, Step, Update};
use super::phases::{Fetch, Phases};
use super::shadow::{Clocks, Visit, WARP};
use super::tensor::TensorMap;
use super::types::low;
use super::{Argument, Fault, Launch, integer};

/// Barriers of a block.
const BARRIERS: u64 = 16;
/// Most threads of a block.
const THREADS: u32 = 1024;
/// Steps of one launch, beyond which it counts as endless.
const MOST_STEPS: u64 = 1 << 36;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// The others of its warp or group.
    Collective,
    Barrier(u64),
    /// The phase of a barrier in shared memory.
    Phase(u64),
    Exited,
}

/// A barrier of the block that some threads have reached.
#[derive(Clone, Debug, Default)]
struct Gathering {
    expected: u64,
    arrived: Vec<usize>,
    aligned: bool,
}

/// An asynchronous copy of a thread: where its bytes go.
#[derive(Clone, Debug)]
struct Copied {
    to: u64,
    bytes: Vec<u8>,
}

pub(super) struct Machine<'a> {
    pub program: &'a Program,
    pub threads: usize,
    pub block: u64,
    pub memory: Memory<'a>,
    pub clocks: Clocks,
    /// Slots of one thread after those of the other.
    pub slots: Vec<u64>,
    pub at: Vec<u32>,
    pub state: Vec<State>,
    pub seed: u64,
    random: u64,
    gatherings: BTreeMap<u64, Gathering>,
    /// Of each thread: groups of copies that are ended, oldest first, then the open one.
    copies: Vec<VecDeque<Vec<Copied>>>,
    /// By address.
    pub phases: BTreeMap<u64, Phases>,
    pub fetches: Vec<Fetch>,
    pub groups: Vec<Group>,
    /// By their place among the parameters.
    pub maps: BTreeMap<u64, TensorMap>,
    steps: u64,
}

pub(super) fn execute(program: &Program, launch: Launch, arguments: &mut [Argument<'_>]) -> Result<u64, Fault> {
    let fail = |why: String| Err(Fault::at(0, why));
    let threads = launch.threads;
    if threads == 0 || threads > THREADS || program.threads.is_some_and(|most| u64::from(threads) > most) {
        return fail(format!("{threads} threads of a block"));
    }
    if program.params.len() != arguments.len() {
        return fail(format!("{} arguments for {} parameters", arguments.len(), program.params.len()));
    }
    let size = program.params.last().map_or(0, |p| p.offset + p.bytes);
    let mut params = vec![0; size as usize];
    let mut maps = BTreeMap::new();
    for (i, (param, argument)) in program.params.iter().zip(arguments.iter()).enumerate() {
        let (value, bytes) = match argument {
            Argument::Buffer { .. } => (address(i), 8),
            Argument::Number(value) => (*value, param.bytes.min(8)),
            Argument::Map(map) => {
                map.check().map_err(|why| Fault::at(0, why))?;
                if param.align < 64 {
                    return fail(format!("parameter {i} holds a tensor map at a multiple of {} bytes", param.align));
                }
                maps.insert(param.offset, map.clone());
                (0, 128)
            }
        };
        if param.bytes != bytes {
            return fail(format!("parameter {i} has {} bytes, its argument {bytes}", param.bytes));
        }
        let own = bytes.min(8) as usize;
        params[param.offset as usize..][..own].copy_from_slice(&value.to_le_bytes()[..own]);
    }
    let buffers = arguments.iter_mut().map(|argument| match argument {
        Argument::Buffer { bytes, writable } => (&mut **bytes, *writable),
        _ => (&mut [][..], false),
    });
    let memory = Memory::new(buffers.collect(), params, program.granules);
    let mut machine = Machine::new(program, launch, memory, maps);
    let mut blocks: Vec<u64> = (0..launch.blocks).collect();
    machine.shuffle(&mut blocks);
    for block in blocks {
        machine.run_block(block, launch)?;
    }
    Ok(machine.steps)
}

impl<'a> Machine<'a> {
    fn new(program: &'a Program, launch: Launch, memory: Memory<'a>, maps: BTreeMap<u64, TensorMap>) -> Machine<'a> {
        let threads = launch.threads as usize;
        Machine {
            program,
            threads,
            block: 0,
            memory,
            clocks: Clocks::new(threads),
            slots: vec![],
            at: vec![],
            state: vec![],
            seed: launch.seed,
            random: launch.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            gatherings: BTreeMap::new(),
            copies: vec![],
            phases: BTreeMap::new(),
            fetches: vec![],
            groups: vec![],
            maps,
            steps: 0,
        }
    }

    /// A number below another.
    pub fn draw(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as usize % below.max(1)
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.draw(i + 1);
            items.swap(i, other);
        }
    }

    /// An error of a thread where it stands.
    pub fn fail<T>(&self, thread: usize, why: impl Into<String>) -> Result<T, Fault> {
        let line = self.program.steps.get(self.at[thread] as usize).map_or(0, |step| step.line);
        Err(Fault { thread: Some((self.block, thread)), ..Fault::at(line, why) })
    }

    pub fn get(&self, thread: usize, slot: Slot) -> u64 {
        self.slots[thread * self.program.slots.len() + slot as usize]
    }

    pub fn set(&mut self, thread: usize, slot: Slot, value: u64) {
        self.slots[thread * self.program.slots.len() + slot as usize] = value;
    }

    fn run_block(&mut self, block: u64, launch: Launch) -> Result<(), Fault> {
        let (program, threads) = (self.program, self.threads);
        self.block = block;
        self.slots.clear();
        for thread in 0..threads {
            self.slots.extend(program.slots.iter().map(|kind| match kind {
                // What nobody wrote has no meaning, and no run may depend on it.
                SlotKind::Register { bits } => low(*bits, 0xa5a5_a5a5_a5a5_a5a5),
                SlotKind::Constant(value) => *value,
                SlotKind::Special(special) => match special {
                    Special::Thread => thread as u64,
                    Special::Threads => threads as u64,
                    Special::Block => block,
                    Special::Blocks => launch.blocks,
                    Special::Lane => (thread % WARP) as u64,
                    Special::Warp => (thread / WARP) as u64,
                },
            }));
        }
        self.at = vec![0; threads];
        self.state = vec![State::Ready; threads];
        self.gatherings.clear();
        self.copies = vec![VecDeque::from([vec![]]); threads];
        self.phases.clear();
        self.fetches.clear();
        self.groups = vec![Group::default(); threads.div_ceil(4 * WARP)];
        self.clocks.begin_block();
        let shared = (program.shared + u64::from(launch.shared_bytes)) as usize;
        self.memory.begin_block(super::decode::SHARED_START as usize, shared, program.local as usize, threads);
        let mut warps: Vec<usize> = (0..threads.div_ceil(WARP)).collect();
        loop {
            self.shuffle(&mut warps);
            let mut goes_on = false;
            for warp in &warps {
                goes_on |= self.run_warp(*warp)?;
            }
            goes_on |= self.finish_fetches(goes_on)?;
            if self.state.iter().all(|state| *state == State::Exited) {
                // What still comes must not be lost without an error.
                while self.finish_fetches(false)? {}
                return Ok(());
            }
            if !goes_on {
                return self.stuck();
            }
        }
    }

    /// The threads of a warp go on as far as they can.
    fn run_warp(&mut self, warp: usize) -> Result<bool, Fault> {
        let first = warp * WARP;
        let lanes = WARP.min(self.threads - first);
        let (start, step) = (self.draw(WARP), 2 * self.draw(WARP / 2) + 1);
        let mut goes_on = false;
        for i in 0..WARP {
            let lane = (start + i * step) % WARP;
            if lane < lanes && self.state[first + lane] == State::Ready {
                self.run(first + lane)?;
                goes_on = true;
            }
        }
        Ok(goes_on | self.collectives(first, lanes)?)
    }

    fn stuck(&self) -> Result<(), Fault> {
        let waits = |t: &usize| self.state[*t] != State::Exited;
        let mut places: BTreeMap<(u32, String), usize> = BTreeMap::new();
        for t in (0..self.threads).filter(waits) {
            let line = self.program.steps.get(self.at[t] as usize).map_or(0, |step| step.line);
            let what = match self.state[t] {
                State::Barrier(number) => format!("barrier {number}"),
                State::Phase(at) => format!("the barrier at {at}"),
                _ => "its warp".into(),
            };
            *places.entry((line, what)).or_default() += 1;
        }
        let thread = (0..self.threads).find(waits).unwrap_or(0);
        let texts: Vec<String> = places
            .iter()
            .map(|((line, what), count)| format!("{count} threads for {what} around line {line}"))
            .collect();
        let exited = self.threads - places.values().sum::<usize>();
        self.fail(thread, format!("threads wait for ever: {}; {exited} have ended", texts.join(", ")))
    }

    /// A thread goes on until it waits.
    fn run(&mut self, t: usize) -> Result<(), Fault> {
        let program = self.program;
        let count = program.slots.len();
        let careful = self.groups[t / (4 * WARP)].is_busy();
        let mut at = self.at[t];
        let mut steps = 0;
        loop {
            let Some(step) = program.steps.get(at as usize) else {
                self.at[t] = at;
                return self.fail(t, "the end of the entry is reached without a return");
            };
            steps += 1;
            let slots = &mut self.slots[t * count..(t + 1) * count];
            if let Some((slot, negated)) = step.guard
                && (slots[slot as usize] != 0) == negated
            {
                at += 1;
                continue;
            }
            if careful {
                self.at[t] = at;
                self.check_sums(t, at as usize)?;
            }
            let slots = &mut self.slots[t * count..(t + 1) * count];
            if compute(program, &step.op, slots) {
                at += 1;
                continue;
            }
            if let Op::Branch { to } = step.op {
                at = to;
                continue;
            }
            self.at[t] = at;
            self.state[t] = self.effect(t, step)?;
            match self.state[t] {
                State::Ready => at += 1,
                State::Collective | State::Exited | State::Phase(_) => break,
                // Where a thread goes on later.
                _ => {
                    self.at[t] = at + 1;
                    break;
                }
            }
        }
        self.steps += steps;
        match self.steps > MOST_STEPS {
            true => self.fail(t, "the launch does not end"),
            false => Ok(()),
        }
    }

    /// What concerns memory and other threads; gives what the thread waits for.
    fn effect(&mut self, t: usize, step: &Step) -> Result<State, Fault> {
        let count = self.program.slots.len();
        let outcome = match &step.op {
            Op::Load(access) => {
                let at = self.get(t, access.at.base).wrapping_add_signed(access.at.offset);
                let (registers, slots) = (self.program.list(access.registers), &mut self.slots[t * count..]);
                self.memory.load(access, at, t, &self.clocks, |i, value| slots[registers[i] as usize] = value)
            }
            Op::Store(access) => {
                let at = self.get(t, access.at.base).wrapping_add_signed(access.at.offset);
                let (registers, slots) = (self.program.list(access.registers), &self.slots[t * count..]);
                self.memory.store(access, at, t, &self.clocks, |i| slots[registers[i] as usize])
            }
            op if op.is_collective() => return Ok(State::Collective),
            Op::Exit => return Ok(State::Exited),
            Op::Partial { f, to, a, b } => match f(self.get(t, *a), self.get(t, *b)) {
                Some(value) => {
                    self.set(t, *to, value);
                    Ok(())
                }
                None => Err("a quotient that has no meaning".into()),
            },
            Op::Atomic { space, at, bytes, update, operand, to } => {
                let at = self.get(t, at.base).wrapping_add_signed(at.offset);
                let operand = self.get(t, *operand);
                let new = |old| match update {
                    Update::Function(f) => f(old, operand),
                    Update::Exchange => operand,
                    Update::CompareExchange(new) if old == operand => self.slots[t * count + *new as usize],
                    Update::CompareExchange(_) => old,
                };
                let old = self.memory.update((*space, at, usize::from(*bytes)), t, &self.clocks, new);
                old.map(|old| self.set(t, *to, old))
            }
            Op::Fence(kind) => {
                self.fence(t, *kind);
                Ok(())
            }
            Op::Barrier { number, count, waits, aligned } => {
                let count = count.map(|slot| self.get(t, slot));
                return self.barrier(t, self.get(t, *number), count, *waits, *aligned);
            }
            Op::CopyAsync { .. } | Op::CommitCopies | Op::AwaitCopies { .. } => self.copy(t, &step.op),
            op => return self.phase(t, op),
        };
        match outcome {
            Ok(()) => Ok(State::Ready),
            Err(why) => self.fail(t, why),
        }
    }

    fn fence(&mut self, t: usize, kind: FenceKind) {
        if kind == FenceKind::Proxy {
            self.clocks.fence(t);
        }
        if kind != FenceKind::Threads {
            self.phases.values_mut().filter(|phases| phases.owner == t).for_each(|phases| phases.shown = true);
        }
    }

    fn barrier(
        &mut self,
        t: usize,
        number: u64,
        count: Option<u64>,
        waits: bool,
        aligned: bool,
    ) -> Result<State, Fault> {
        let expected = count.unwrap_or(self.threads as u64);
        let whole = expected.is_multiple_of(WARP as u64) || expected == self.threads as u64;
        if number >= BARRIERS || expected == 0 || !whole {
            return self.fail(t, format!("barrier {number} for {expected} threads"));
        }
        let gathering = self.gatherings.entry(number).or_default();
        if gathering.arrived.is_empty() {
            (gathering.expected, gathering.aligned) = (expected, true);
        }
        gathering.aligned &= aligned;
        gathering.arrived.push(t);
        if gathering.expected != expected {
            let other = gathering.expected;
            return self.fail(t, format!("barrier {number} for {expected} threads and for {other}"));
        }
        let after = if waits { State::Barrier(number) } else { State::Ready };
        if gathering.arrived.len() as u64 != expected {
            return Ok(after);
        }
        let Gathering { arrived, aligned, .. } = std::mem::take(gathering);
        // Whole warps come to an aligned barrier.
        let lanes = |t: usize| arrived.iter().filter(|other| **other / WARP == t / WARP).count();
        let in_warp = |t: usize| WARP.min(self.threads - t / WARP * WARP);
        if let Some(other) = arrived.iter().find(|other| aligned && lanes(**other) != in_warp(**other)) {
            return self.fail(*other, format!("barrier {number} that some threads of a warp do not reach"));
        }
        self.state[t] = after;
        let waiting: Vec<usize> =
            arrived.iter().copied().filter(|t| self.state[*t] == State::Barrier(number)).collect();
        if waiting.len() == self.threads {
            self.clocks.meet_all();
        } else {
            let mut told = vec![];
            arrived.iter().for_each(|t| self.clocks.release(*t, &mut told));
            waiting.iter().for_each(|t| self.clocks.acquire(*t, &told));
        }
        waiting.iter().for_each(|t| self.state[*t] = State::Ready);
        Ok(State::Ready)
    }

    /// Asynchronous copies (PTX ISA, "Non-bulk copy").
    fn copy(&mut self, t: usize, op: &Op) -> Result<(), String> {
        match op {
            Op::CopyAsync { to, from, bytes, size } => {
                let bytes = usize::from(*bytes);
                let at = |machine: &Self, x: &super::op::At| machine.get(t, x.base).wrapping_add_signed(x.offset);
                let (to, from) = (at(self, to), at(self, from));
                let size = size.map_or(bytes, |slot| self.get(t, slot) as usize);
                if size > bytes {
                    return Err(format!("a copy of {size} of {bytes} bytes"));
                }
                let visit = Visit::of(&self.clocks, t);
                let mut value = vec![0; bytes];
                if size > 0 {
                    let found = self.memory.read(Space::Global, from, bytes, visit, &self.clocks)?;
                    value[..size].copy_from_slice(&found[..size]);
                }
                self.memory.begin_write(to, bytes, visit, true, &self.clocks)?;
                if let Some(open) = self.copies[t].back_mut() {
                    open.push(Copied { to, bytes: value });
                }
            }
            Op::AwaitCopies { pending } => {
                while self.copies[t].len() > *pending as usize + 1 {
                    for copied in self.copies[t].pop_front().unwrap_or_default() {
                        self.memory.end_write(copied.to, &copied.bytes, Visit::of(&self.clocks, t))?;
                    }
                }
            }
            _ => self.copies[t].push_back(vec![]),
        }
        Ok(())
    }
}

/// What a thread computes from its own slots; `false` for all other steps.
#[inline]
fn compute(program: &Program, op: &Op, slots: &mut [u64]) -> bool {
    let halves = |x: u64| [x & 0xffff, x >> 16];
    let joined = |[a, b]: [u64; 2]| a | b << 16;
    match *op {
        Op::One { f, to, a } => slots[to as usize] = f(slots[a as usize]),
        Op::Two { f, to, a, b } => slots[to as usize] = f(slots[a as usize], slots[b as usize]),
        Op::Three { f, to, a, b, c } => {
            slots[to as usize] = f(slots[a as usize], slots[b as usize], slots[c as usize]);
        }
        Op::Move { to, a } => slots[to as usize] = slots[a as usize],
        Op::Convert { conversion, bits, to, a } => slots[to as usize] = conversion.apply(bits, slots[a as usize]),
        Op::Pack { conversion, to, a, b } => {
            slots[to as usize] = conversion.pack(slots[a as usize], slots[b as usize]);
        }
        Op::OneHalves { f, to, a } => slots[to as usize] = joined(halves(slots[a as usize]).map(f)),
        Op::TwoHalves { f, to, a, b } => {
            let (a, b) = (halves(slots[a as usize]), halves(slots[b as usize]));
            slots[to as usize] = joined([f(a[0], b[0]), f(a[1], b[1])]);
        }
        Op::ThreeHalves { f, to, a, b, c } => {
            let [a, b, c] = [a, b, c].map(|slot| halves(slots[slot as usize]));
            slots[to as usize] = joined([f(a[0], b[0], c[0]), f(a[1], b[1], c[1])]);
        }
        Op::Insert { bits, to, args } => {
            let args = program.list(args);
            let arg = |i: usize| slots[args[i] as usize];
            slots[to as usize] = integer::inserted(bits, arg(0), arg(1), arg(2), arg(3));
        }
        Op::Table { table, to, a, b, c } => {
            slots[to as usize] = integer::by_table(table, slots[a as usize], slots[b as usize], slots[c as usize]);
        }
        Op::Join { to, parts, bits } => {
            let parts = program.list(parts).iter().enumerate();
            slots[to as usize] = parts.fold(0, |all, (i, part)| all | slots[*part as usize] << (bits * i as u32));
        }
        Op::Split { parts, a, bits } => {
            let value = slots[a as usize];
            for (i, part) in program.list(parts).iter().enumerate() {
                slots[*part as usize] = low(bits, value >> (bits * i as u32));
            }
        }
        _ => return false,
    }
    true
}
