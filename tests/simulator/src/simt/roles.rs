//! Warps that part: groups of them go on one after the other until they wait, and barriers on which they wait.

use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, BufferPlace, GROUP, Stmt, Var, WARP, WarpRole};
use tensorc_ir::scalar::Scalar;

use super::machine::{Coming, Phases, SimtMachine};
use super::shadow::{Cell, Times, join};
use super::values::{Mask, ThreadIndices, ThreadValues};

impl Phases {
    /// Ends the phase if nothing is due.
    fn settle(&mut self) {
        if self.due == 0 && self.bytes == 0 {
            join(&mut self.told, &self.gathered);
            (self.over, self.due) = (self.over + 1, self.arrivals);
            self.gathered.fill(0);
        }
    }
}

/// A group of warps on its way through the program of its role.
struct Way<'k> {
    frames: Vec<Frame<'k>>,
    /// Its values of variables, while others go.
    vars: Vec<ThreadValues>,
    first_warp: usize,
}

/// Statements under way.
struct Frame<'k> {
    body: &'k [Stmt],
    next: usize,
    mask: Mask,
    /// Of a loop: its variable, where it is, its end and step.
    again: Option<(Var, i64, i64, i64)>,
}

/// Whether something in a block may wait.
fn waits(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::AwaitBarrier { .. } => true,
        Stmt::For { body, .. } => waits(body),
        Stmt::If { then, otherwise, .. } => waits(then) || waits(otherwise),
        _ => false,
    })
}

impl SimtMachine<'_> {
    /// Runs roles until all end; an error if all that have not wait.
    pub(super) fn roles(&mut self, roles: &[WarpRole], mask: &Mask) -> Result<()> {
        if !mask.is_full() {
            return self.fail("warps part where not all threads are".into());
        }
        let mut ways = vec![];
        for role in roles {
            for group in (role.warps.0 as usize * WARP..role.warps.1 as usize * WARP).step_by(GROUP) {
                let mask = mask.only(|t| t / GROUP * GROUP == group);
                let frames = vec![Frame { body: &role.body, next: 0, mask, again: None }];
                ways.push(Way { frames, vars: self.vars.clone(), first_warp: group / WARP });
            }
        }
        while ways.iter().any(|way| !way.frames.is_empty()) {
            let mut moved = false;
            for way in &mut ways {
                std::mem::swap(&mut self.vars, &mut way.vars);
                let outcome = self.go(way);
                std::mem::swap(&mut self.vars, &mut way.vars);
                moved |= outcome?;
            }
            if !moved {
                return self.stuck(&mut ways);
            }
        }
        match self.products.iter().any(|products| !products.is_empty()) {
            true => self.fail("products are not awaited".into()),
            false => self.nothing_comes(),
        }
    }

    fn nothing_comes(&self) -> Result<()> {
        let coming = self.barriers.iter().flatten().flat_map(|phases| &phases.coming).next();
        match coming {
            Some(coming) => self.fail(format!("a copy to `{}` is not awaited", self.kernel.buf(coming.buf).name)),
            None => Ok(()),
        }
    }

    fn stuck(&mut self, ways: &mut [Way<'_>]) -> Result<()> {
        let mut waiting = vec![];
        for way in ways {
            let Some(frame) = way.frames.last() else { continue };
            let Some(Stmt::AwaitBarrier { barrier, phase }) = frame.body.get(frame.next) else { continue };
            std::mem::swap(&mut self.vars, &mut way.vars);
            let thread = frame.mask.threads().next().unwrap_or(0);
            let [at, phase] = [&barrier.index, phase].map(|i| self.places(i).of(thread));
            let name = &self.kernel.buf(barrier.buf).name;
            waiting.push(format!("warp {} for phase {phase} of `{name}[{at}]`", way.first_warp));
            std::mem::swap(&mut self.vars, &mut way.vars);
        }
        self.fail(format!("warps of block {} wait for ever: {}", self.block, waiting.join(", ")))
    }

    /// Goes on until the way ends or waits; whether it moved.
    fn go(&mut self, way: &mut Way<'_>) -> Result<bool> {
        let mut moved = false;
        while let Some(frame) = way.frames.last_mut() {
            let Some(stmt) = frame.body.get(frame.next) else {
                match &mut frame.again {
                    Some((var, i, hi, step)) if *i + *step < *hi => {
                        *i += *step;
                        frame.next = 0;
                        self.vars[var.0 as usize] = ThreadValues::One(Scalar::i64(*i));
                    }
                    _ => drop(way.frames.pop()),
                }
                continue;
            };
            if let Stmt::AwaitBarrier { barrier, phase } = stmt
                && !self.is_over(barrier, phase, &frame.mask)?
            {
                return Ok(moved);
            }
            (moved, frame.next) = (true, frame.next + 1);
            let mask = frame.mask.clone();
            match stmt {
                Stmt::AwaitBarrier { .. } => {}
                Stmt::For { var, lo, hi, step, body, .. } if waits(body) => {
                    let (ThreadIndices::One(lo), ThreadIndices::One(hi)) = (self.places(lo), self.places(hi)) else {
                        return self.fail("threads wait in a loop of different lengths".into());
                    };
                    if lo < hi && !mask.is_empty() {
                        self.vars[var.0 as usize] = ThreadValues::One(Scalar::i64(lo));
                        way.frames.push(Frame { body, next: 0, mask, again: Some((*var, lo, hi, *step)) });
                    }
                }
                Stmt::If { cond, then, otherwise } if waits(then) || waits(otherwise) => {
                    let yes = mask.only(|t| self.operand(*cond, t).as_bool());
                    let no = mask.only(|t| !self.operand(*cond, t).as_bool());
                    for (body, mask) in [(otherwise, no), (then, yes)] {
                        if !mask.is_empty() {
                            way.frames.push(Frame { body, next: 0, mask, again: None });
                        }
                    }
                }
                stmt => self.stmt(stmt, &mask)?,
            }
        }
        Ok(moved)
    }

    pub(super) fn init_barriers(&mut self, buf: Buf, arrivals: u32, mask: &Mask) -> Result<()> {
        if !mask.is_full() {
            return self.fail("barriers are initialised where not all threads are".into());
        }
        let mut begun = Cell::default();
        begun.write(self.clocks.moment(self.block, 0));
        let empty = [0; 64];
        let phases =
            Phases { arrivals, over: 0, due: arrivals, bytes: 0, gathered: empty, told: empty, coming: vec![], begun };
        self.barriers[buf.0 as usize] = vec![phases; self.kernel.buf(buf).elements() as usize];
        Ok(())
    }

    /// A barrier as a warp uses it.
    pub(super) fn phases(&mut self, barrier: &BufferPlace, places: &ThreadIndices, warp: usize) -> Result<&mut Phases> {
        let thread = warp * WARP;
        let at = self.element(barrier.buf, places.of(thread), 1, thread)?;
        let moment = self.clocks.moment(self.block, thread);
        let known = self.barriers[barrier.buf.0 as usize].get(at).is_some_and(|p| p.begun.is_visible(moment));
        if !known {
            let name = &self.kernel.buf(barrier.buf).name;
            return self.fail(format!("warp {warp} uses `{name}[{at}]` before it is initialised for it"));
        }
        Ok(&mut self.barriers[barrier.buf.0 as usize][at])
    }

    pub(super) fn arrive(&mut self, barrier: &BufferPlace, bytes: u32, mask: &Mask) -> Result<()> {
        let places = self.places(&barrier.index);
        for first in self.warps("an arrival", mask)? {
            let warp = first / WARP;
            let told = self.clocks.release(warp);
            let phases = self.phases(barrier, &places, warp)?;
            if phases.due == 0 {
                let name = &self.kernel.buf(barrier.buf).name;
                return self.fail(format!("warp {warp} arrives at `{name}[{}]` once too often", places.of(first)));
            }
            phases.due -= 1;
            phases.bytes += i64::from(bytes);
            join(&mut phases.gathered, &told);
            phases.settle();
        }
        Ok(())
    }

    /// A copy begins whose bytes a barrier counts.
    pub(super) fn expect(
        &mut self,
        barrier: &BufferPlace,
        places: &ThreadIndices,
        warp: usize,
        coming: Coming,
    ) -> Result<()> {
        self.phases(barrier, places, warp)?.coming.push(coming);
        Ok(())
    }

    /// Whether a phase is over for all warps of a mask, of which they are told then. What is on its way comes now.
    fn is_over(&mut self, barrier: &BufferPlace, phase: &Index, mask: &Mask) -> Result<bool> {
        let (places, wanted) = (self.places(&barrier.index), self.places(phase));
        let warps = self.warps("a wait for a barrier", mask)?;
        for first in &warps {
            let coming = std::mem::take(&mut self.phases(barrier, &places, first / WARP)?.coming);
            let mut landed: Vec<(i64, Times)> = vec![];
            for Coming { buf, values, told } in coming {
                let shared = &mut self.shared[buf.0 as usize];
                landed.push((values.len() as i64 * self.kernel.buf(buf).dtype.size() as i64, told));
                for (at, value) in values {
                    (shared.values[at], shared.pending[at]) = (value, false);
                }
            }
            let phases = self.phases(barrier, &places, first / WARP)?;
            if !landed.is_empty() {
                landed.iter().for_each(|(bytes, told)| {
                    phases.bytes -= bytes;
                    join(&mut phases.gathered, told);
                });
                phases.settle();
            }
            let (over, wanted) = (phases.over, wanted.of(*first));
            if wanted < -1 || over > wanted + 1 {
                let name = &self.kernel.buf(barrier.buf).name;
                let (warp, at) = (first / WARP, places.of(*first));
                return self.fail(format!("warp {warp} waits for phase {wanted} of `{name}[{at}]`, {over} are over"));
            }
            if over <= wanted {
                return Ok(false);
            }
        }
        for first in warps {
            let told = self.phases(barrier, &places, first / WARP)?.told;
            self.clocks.acquire(first / WARP, &told);
        }
        Ok(true)
    }
}
