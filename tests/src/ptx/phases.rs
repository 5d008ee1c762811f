//! Barriers in shared memory, and what the copy engine does (PTX ISA, "mbarrier", "cp.async.bulk.tensor").

use super::Fault;
use super::machine::{Machine, State};
use super::memory::window;
use super::op::{At, Op, Space};
use super::shadow::{Times, Visit, WARP};

/// Most that a barrier counts: arrivals, and bytes under way.
const MOST_ARRIVALS: u64 = (1 << 20) - 1;
/// Bytes of shared memory at whose multiples a copy begins.
const ALIGNMENT: u64 = 128;

/// A barrier in shared memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    count: u64,
    /// Arrivals of the current phase that are missing, and bytes.
    missing: u64,
    bytes: i64,
    /// The number of the current phase.
    phase: u64,
    /// What those know that came to the current phase, and to the one before.
    told: Times,
    done: Times,
    /// Who set it up, and whether the copy engine has been shown.
    pub owner: usize,
    pub shown: bool,
}

/// A copy of a box under way: its pieces, and the barrier that is told of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pieces: Vec<(u64, Vec<u8>)>,
    barrier: u64,
    bytes: i64,
    thread: usize,
    at: u32,
}

impl Machine<'_> {
    pub fn phase(&mut self, t: usize, op: &Op) -> Result<State, Fault> {
        let outcome = match op {
            Op::PhaseInit { at, count } => {
                let (at, count) = (self.address(t, at), self.get(t, *count));
                if !(1..=MOST_ARRIVALS).contains(&count) {
                    return self.fail(t, format!("a barrier for {count} arrivals"));
                }
                let phases = Phases { count, missing: count, owner: t, ..Phases::default() };
                let outcome = self.memory.set_barrier(at, t, true, &self.clocks);
                outcome.map(|()| drop(self.phases.insert(at, phases)))
            }
            Op::PhaseInvalidate { at } => {
                let at = self.address(t, at);
                self.phases.remove(&at);
                self.memory
                    .use_barrier(at, t, &self.clocks)
                    .and_then(|()| self.memory.set_barrier(at, t, false, &self.clocks))
            }
            Op::PhaseArrive { at, bytes, count } => {
                let (at, bytes, count) = (self.address(t, at), self.get(t, *bytes), self.get(t, *count));
                return self.arrive(t, at, bytes, count);
            }
            Op::PhaseTest { at, parity, done, waits } => {
                let (at, parity) = (self.address(t, at), self.get(t, *parity));
                if let Err(why) = self.memory.use_barrier(at, t, &self.clocks) {
                    return self.fail(t, why);
                }
                let Some(phases) = self.phases.get(&at).filter(|_| parity < 2) else {
                    return self.fail(t, format!("a wait for parity {parity} of a barrier"));
                };
                // The phase of that parity is over: the one before the current.
                let over = phases.phase % 2 != parity;
                if over {
                    let told = phases.done.clone();
                    self.clocks.acquire(t, &told);
                }
                // A wait may be suspended, or end before its time.
                if !over && *waits && self.draw(4) > 0 {
                    return Ok(State::Phase(at));
                }
                self.set(t, *done, over.into());
                Ok(())
            }
            Op::CopyTile { to, map, coordinates, barrier } => {
                let coordinates = self.program.list(*coordinates).iter().map(|c| self.get(t, *c) as i32);
                let coordinates: Vec<i64> = coordinates.map(i64::from).collect();
                let [to, map, barrier] = [to, map, barrier].map(|x| self.address(t, x));
                self.fetch(t, to, map, &coordinates, barrier)
            }
            _ => Err("a step that a thread does not execute".into()),
        };
        match outcome {
            Ok(()) => Ok(State::Ready),
            Err(why) => self.fail(t, why),
        }
    }

    fn address(&self, t: usize, at: &At) -> u64 {
        self.get(t, at.base).wrapping_add_signed(at.offset)
    }

    fn arrive(&mut self, t: usize, at: u64, bytes: u64, count: u64) -> Result<State, Fault> {
        if let Err(why) = self.memory.use_barrier(at, t, &self.clocks) {
            return self.fail(t, why);
        }
        let Some(phases) = self.phases.get_mut(&at) else { return self.fail(t, "no barrier was set up here") };
        phases.bytes += bytes as i64;
        if count == 0 || count > phases.missing || phases.bytes > MOST_ARRIVALS as i64 {
            let (missing, bytes) = (phases.missing, phases.bytes);
            return self.fail(t, format!("{count} arrivals where {missing} are missing, with {bytes} bytes under way"));
        }
        phases.missing -= count;
        self.clocks.release(t, &mut phases.told);
        match self.end_phase(at) {
            Ok(()) => Ok(State::Ready),
            Err(why) => self.fail(t, why),
        }
    }

    /// The phase is over if nothing is missing: those that wait for it go on.
    fn end_phase(&mut self, at: u64) -> Result<(), String> {
        let Some(phases) = self.phases.get_mut(&at).filter(|p| p.missing == 0 && p.bytes == 0) else { return Ok(()) };
        // Their bytes would count for the next one, and nobody waits for them.
        if self.fetches.iter().any(|fetch| fetch.barrier == at) {
            return Err("the phase of the barrier ends while copies for it are under way".into());
        }
        phases.phase += 1;
        phases.missing = phases.count;
        phases.done = std::mem::take(&mut phases.told);
        self.state.iter_mut().filter(|state| **state == State::Phase(at)).for_each(|state| *state = State::Ready);
        Ok(())
    }

    /// The copy engine begins to fetch a box.
    fn fetch(&mut self, t: usize, to: u64, map: u64, at: &[i64], barrier: u64) -> Result<(), String> {
        let offset = map.wrapping_sub(window(Space::Param));
        let Some(map) = self.maps.get(&offset).cloned() else { return Err("there is no tensor map".into()) };
        if map.extents.len() != at.len() {
            return Err(format!("{} coordinates in {} dimensions", at.len(), map.extents.len()));
        }
        if !to.is_multiple_of(ALIGNMENT) {
            return Err(format!("a copy to the address {to}, which is no multiple of {ALIGNMENT}"));
        }
        self.memory.use_barrier(barrier, t, &self.clocks)?;
        let engine = self.clocks.engine(t);
        let time = self.clocks.now(engine);
        let mut pieces = vec![];
        for (offset, elements) in map.pieces(at) {
            let place = map.swizzle.apply(to + offset as u64);
            let visit = Visit::by(&self.clocks, engine, t, time);
            let mut value = vec![];
            for element in elements {
                match element {
                    Some(at) => {
                        let size = map.element_bytes;
                        let bytes = self.memory.fetch(map.argument, at as usize, size, visit, &self.clocks)?;
                        value.extend(map.converted(bytes));
                    }
                    None => value.extend(vec![0; map.element_bytes]),
                }
            }
            self.memory.begin_write(place, value.len(), visit, false, &self.clocks)?;
            pieces.push((place, value));
        }
        let time = self.clocks.finish(engine);
        let Some(phases) = self.phases.get_mut(&barrier) else { return Err("no barrier was set up here".into()) };
        if !phases.shown {
            return Err("no fence shows the barrier to the copy engine".into());
        }
        phases.told.resize(self.threads + 2 * self.threads.div_ceil(WARP), 0);
        phases.told[engine] = phases.told[engine].max(time);
        let bytes = map.box_bytes() as i64;
        self.fetches.push(Fetch { pieces, barrier, bytes, thread: t, at: self.at[t] });
        Ok(())
    }

    /// Some copies come, in any order; all of them if nobody else goes on.
    pub fn finish_fetches(&mut self, others: bool) -> Result<bool, Fault> {
        if self.fetches.is_empty() || (others && self.draw(4) > 0) {
            return Ok(false);
        }
        let which = self.draw(self.fetches.len());
        let fetch = self.fetches.swap_remove(which);
        for (at, value) in &fetch.pieces {
            self.memory.put_shared(*at as usize, value);
        }
        let Some(phases) = self.phases.get_mut(&fetch.barrier) else {
            self.at[fetch.thread] = fetch.at;
            return self.fail(fetch.thread, "the barrier of a copy is no more when its bytes come");
        };
        phases.bytes -= fetch.bytes;
        if let Err(why) = self.end_phase(fetch.barrier) {
            self.at[fetch.thread] = fetch.at;
            return self.fail(fetch.thread, why);
        }
        Ok(true)
    }
}
