//! Steps with nested plans: which of them run, how often, and where their tensors lie.

use tensorc_abi::image::{flow, slot};

/// A step with nested plans, as its record says.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'w> {
    head: &'w [u64; flow::WORDS],
    /// Bytes of what is carried.
    carried: &'w [u64],
    /// Bytes of a row, and whether the last one comes first.
    scanned: &'w [u64],
    stacked: &'w [u64],
    /// Words behind the record.
    pub behind: &'w [u64],
}

/// Where the tensors of a nested plan lie: addresses by storage class, as in [`slot`], and position.
pub type Tensors<'t> = &'t dyn Fn(u64, usize) -> *mut u8;

impl<'w> Flow<'w> {
    /// The step of a record; `None` if it is none.
    pub fn read(words: &'w [u64]) -> Option<Flow<'w>> {
        let (head, rest) = words.split_first_chunk::<{ flow::WORDS }>()?;
        let [carried, scanned, stacked] =
            [flow::CARRIED, flow::SCANNED, flow::STACKED].map(|at| usize::try_from(head[at]).unwrap_or(usize::MAX));
        let (carried, rest) = rest.split_at_checked(carried)?;
        let (scanned, rest) = rest.split_at_checked(scanned.checked_mul(2)?)?;
        let (stacked, behind) = rest.split_at_checked(stacked.checked_mul(2)?)?;
        let operands = usize::try_from(head[flow::OPERANDS]).ok()?;
        let own = (head[flow::CONDITIONAL] != 0) as usize + carried.len() + scanned.len() / 2;
        let known = match head[flow::KIND] {
            flow::IF => operands > 0,
            flow::LOOP => operands >= own,
            _ => false,
        };
        known.then_some(Flow { head, carried, scanned, stacked, behind })
    }

    /// The step of words that [`tensorc_abi::FlowPlan::words`] gives; of others one that does nothing.
    pub fn of(words: &'w [u64]) -> Flow<'w> {
        const NOTHING: &[u64; flow::WORDS] = &{
            let mut words = [0; flow::WORDS];
            words[flow::KIND] = flow::LOOP;
            words
        };
        let nothing = Flow { head: NOTHING, carried: &[], scanned: &[], stacked: &[], behind: &[] };
        Flow::read(words).unwrap_or(nothing)
    }

    /// Number of bodies.
    pub fn bodies(&self) -> usize {
        if self.is_loop() { 1 } else { 2 }
    }

    fn is_loop(&self) -> bool {
        self.head[flow::KIND] == flow::LOOP
    }

    fn operands(&self) -> usize {
        self.head[flow::OPERANDS] as usize
    }

    /// Executes the step: calls `body` with the number of each nested plan to run, in order, and where its tensors lie.
    ///
    /// # Errors
    /// The first of `body`.
    ///
    /// # Safety
    /// `args` points to the addresses of the step's operands and results, each as large as the record says; `memory` is
    /// the step's working memory, at least [`flow::HEADER_BYTES`], which `body` leaves alone; none of these overlap.
    pub unsafe fn run<E>(
        &self,
        args: *const *mut u8,
        memory: *mut u8,
        body: &mut dyn FnMut(usize, Tensors<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // SAFETY: passed on from the caller: there are as many arguments as the record says.
        let arg = |i: usize| unsafe { *args.add(i) };
        let result = |i: usize| arg(self.operands() + i);
        if !self.is_loop() {
            // SAFETY: the first operand is a bool.
            let holds = unsafe { *arg(0) } != 0;
            let tensors = |home, i| if home == slot::INPUT { arg(1 + i) } else { result(i) };
            return body(usize::from(!holds), &tensors);
        }
        let conditional = self.head[flow::CONDITIONAL] != 0;
        let (first, scanned) = (usize::from(conditional), self.scanned.as_chunks::<2>().0);
        for (i, bytes) in self.carried.iter().enumerate() {
            // SAFETY: operand and result are as large, and apart.
            unsafe { core::ptr::copy_nonoverlapping(arg(first + i), result(i), *bytes as usize) };
        }
        let (rows, condition) = (first + self.carried.len(), memory.wrapping_add(flow::CONDITION_BYTE));
        let trips = self.head[flow::TRIPS];
        let row = |base: *mut u8, [bytes, back]: [u64; 2], i: u64| {
            let at = if back != 0 { trips - 1 - i } else { i };
            base.wrapping_add((at * bytes) as usize)
        };
        // SAFETY: the first operand of a loop with a condition is a bool.
        let mut goes_on = !conditional || unsafe { *arg(0) } != 0;
        let mut number = 0;
        while goes_on && number < trips {
            // SAFETY: working memory is aligned, and begins with room for both.
            unsafe { memory.cast::<i64>().write(number as i64) };
            body(0, &|home, i| match (home, i) {
                (slot::INPUT, 0) => memory,
                (slot::INPUT, i) if i <= scanned.len() => row(arg(rows + i - 1), scanned[i - 1], number),
                (slot::INPUT, i) => arg(rows + i - 1),
                (slot::STATE, i) => result(i),
                (_, 0) if conditional => condition,
                (_, i) => {
                    let i = i - usize::from(conditional);
                    row(result(self.carried.len() + i), self.stacked.as_chunks::<2>().0[i], number)
                }
            })?;
            // SAFETY: a body with a condition writes it.
            goes_on = !conditional || unsafe { *condition } != 0;
            number += 1;
        }
        if number == trips {
            return Ok(());
        }
        for (i, [bytes, back]) in self.stacked.as_chunks::<2>().0.iter().enumerate() {
            // Rows that no iteration made lie behind the others, or before them.
            let first = if *back != 0 { 0 } else { number * bytes };
            let rest = result(self.carried.len() + i).wrapping_add(first as usize);
            // SAFETY: a stacked result has a row for each of the most iterations.
            unsafe { rest.write_bytes(0, ((trips - number) * bytes) as usize) };
        }
        Ok(())
    }
}
