//! The rules of the engine by themselves, against a simple statement of them.

use tensorc_runtime::engine::state::AccessKind::{Barrier, Delete, Read, Update, Write};
use tensorc_runtime::engine::state::*;

type Machine = State<usize, u32>;
type Log = Ready<usize, u32>;

fn access(var: u32, kind: AccessKind) -> VarAccess {
    VarAccess::new(VarId(var), kind)
}

#[test]
fn a_trace_of_reads_and_writes_runs_in_batches() {
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let kinds = [Write, Read, Read, Write, Read];
    let ops = kinds.map(|kind| state.push(&[access(0, kind)], 0, &mut ready));
    let mut batches = Vec::new();
    while !ready.run.is_empty() {
        let batch = std::mem::take(&mut ready.run);
        batch.iter().for_each(|&op| _ = state.finish(op, Ok(()), &mut ready));
        batches.push(batch);
    }
    assert_eq!(batches, [vec![ops[0]], vec![ops[1], ops[2]], vec![ops[3]], vec![ops[4]]]);
    assert_eq!((state.live(), state.version(VarId(0))), (0, 2));
}

#[test]
fn several_accesses_of_one_operation_are_one() {
    let mut ready = Log::new();
    for (list, stopped) in [
        (vec![Read, Read], true),
        (vec![Write, Write], false),
        (vec![Read, Write], true),
        (vec![Write, Read, Read], true),
        (vec![Update, Write], true),
        (vec![Delete, Read], false),
        (vec![Barrier, Read], true),
    ] {
        let mut state = Machine::new();
        let bad = state.push(&[access(3, Write)], 0, &mut ready);
        let accesses: Vec<VarAccess> = list.iter().map(|&kind| access(3, kind)).collect();
        let op = state.push(&accesses, 1, &mut ready);
        let after = state.push(&[access(3, Write)], 2, &mut ready);
        assert_eq!(std::mem::take(&mut ready.run), [bad]);
        state.finish(bad, Err(7), &mut ready);
        if stopped {
            assert_eq!(std::mem::take(&mut ready.skipped), [(1, 7)], "{list:?}");
        } else {
            assert_eq!(std::mem::take(&mut ready.run), [op], "{list:?}");
            state.finish(op, Ok(()), &mut ready);
        }
        assert_eq!(std::mem::take(&mut ready.run), [after]);
        state.finish(after, Ok(()), &mut ready);
        assert_eq!(state.live(), 0);
    }
}

#[test]
fn a_long_chain_of_errors_needs_no_stack() {
    const LENGTH: usize = 200_000;
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let first = state.push(&[access(0, Write)], 0, &mut ready);
    for i in 1..LENGTH as u32 {
        state.push(&[access(i - 1, Read), access(i, Write)], i as usize, &mut ready);
    }
    state.finish(first, Err(5), &mut ready);
    assert_eq!((state.live(), ready.skipped.len()), (0, LENGTH - 1));
    assert!(ready.skipped.iter().enumerate().all(|(i, &skipped)| skipped == (i + 1, 5)));
    assert!((0..LENGTH as u32).all(|var| state.error(VarId(var)) == Some(&5)));
}

#[test]
fn deleting_frees_a_number_after_all_uses() {
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let write = state.push(&[access(0, Write)], 0, &mut ready);
    let read = state.push(&[access(0, Read)], 1, &mut ready);
    let delete = state.push(&[access(0, Delete)], 2, &mut ready);
    state.finish(write, Err(1), &mut ready);
    assert_eq!((ready.skipped.len(), ready.run.clone(), ready.freed.len()), (1, vec![write, delete], 0));
    let _ = read;
    assert!(state.in_use(VarId(0)) && state.write_pending(VarId(0)));
    state.finish(delete, Ok(()), &mut ready);
    assert_eq!(ready.freed, [VarId(0)]);
    assert_eq!((state.version(VarId(0)), state.error(VarId(0)), state.in_use(VarId(0))), (0, None, false));
}

#[test]
fn what_is_given_up_early_keeps_its_outcome() {
    for fails in [false, true] {
        let (mut state, mut ready) = (Machine::new(), Log::new());
        let [given, kept] = [VarId(0), VarId(1)];
        let bad = state.push(&[access(0, Write)], 0, &mut ready);
        state.finish(bad, Err(3), &mut ready);
        let op = state.push(&[access(0, Write), access(1, Write), access(2, Read)], 1, &mut ready);
        let readers = [0, 0, 1].map(|var| state.push(&[access(var, Read)], 2, &mut ready));
        ready.run.clear();
        assert!(state.release_early(op, given, &mut ready));
        assert_eq!(
            (state.error(given), state.version(given), std::mem::take(&mut ready.run)),
            (None, 2, readers[..2].into())
        );
        assert!(!state.write_pending(given) && state.in_use(given) && state.write_pending(kept));
        for var in [given, VarId(2), VarId(3), VarId(9)] {
            assert!(!state.release_early(op, var, &mut ready), "{var:?}");
        }
        // What follows may fail, and be over, before the operation is.
        let next = state.push(&[access(0, Write)], 3, &mut ready);
        readers[..2].iter().for_each(|&reader| _ = state.finish(reader, Ok(()), &mut ready));
        assert_eq!(std::mem::take(&mut ready.run), [next]);
        state.finish(next, Err(5), &mut ready);
        assert!(state.finish(op, if fails { Err(4) } else { Ok(()) }, &mut ready));
        assert_eq!((state.error(given), state.version(given)), (Some(&5), 3));
        assert_eq!((state.error(kept), state.version(kept)), (fails.then_some(&4), 1));
        assert_eq!((ready.run.len(), ready.skipped.len()), if fails { (0, 1) } else { (1, 0) });
        assert!(!state.release_early(op, kept, &mut ready), "it is over");
    }
}

#[test]
fn a_variable_given_up_early_may_be_deleted_and_used_again() {
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let op = state.push(&[access(0, Write), access(1, Write)], 0, &mut ready);
    let delete = state.push(&[access(0, Delete)], 1, &mut ready);
    assert!(state.release_early(op, VarId(0), &mut ready));
    assert_eq!(std::mem::take(&mut ready.run), [op, delete]);
    state.finish(delete, Ok(()), &mut ready);
    assert_eq!(std::mem::take(&mut ready.freed), [VarId(0)]);
    let again = state.push(&[access(0, Write)], 2, &mut ready);
    assert!(state.finish(op, Err(1), &mut ready) && state.write_pending(VarId(0)));
    state.finish(again, Ok(()), &mut ready);
    assert_eq!((state.live(), state.error(VarId(0)), state.version(VarId(0))), (0, None, 1));
}

/// What is ordered on streams counts as issued when it is given up; what runs ahead may not give up anything.
#[test]
fn streams_follow_what_is_given_up() {
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let ahead = |var, kind| VarAccess { ahead: true, ..access(var, kind) };
    let first = state.push(&[ahead(0, Write), ahead(1, Write)], 0, &mut ready);
    let second = state.push(&[ahead(0, Read), ahead(2, Write)], 1, &mut ready);
    assert_eq!(std::mem::take(&mut ready.run), [first]);
    state.issue(first, &mut ready);
    assert_eq!(std::mem::take(&mut ready.run), [second]);
    assert!(!state.release_early(second, VarId(2), &mut ready), "the first may fail");
    assert!(state.release_early(first, VarId(0), &mut ready));
    let third = state.push(&[ahead(2, Read)], 2, &mut ready);
    assert!(state.release_early(second, VarId(2), &mut ready), "not issued, but granted");
    assert_eq!(std::mem::take(&mut ready.run), [third]);
    state.issue(second, &mut ready);
    [first, second, third].iter().for_each(|&op| assert!(state.finish(op, Ok(()), &mut ready)));
    assert_eq!((state.live(), [0, 1, 2].map(|var| state.version(VarId(var)))), (0, [1, 1, 1]));
}

/// What is known about an operation of a random program.
struct Pushed {
    op: OpId,
    accesses: Vec<VarAccess>,
    released: Vec<VarId>,
    fails: bool,
    finished: bool,
    running: bool,
}

/// Whether an operation must wait for an earlier one.
fn conflict(earlier: &Pushed, later: &Pushed) -> bool {
    let held = |x: &&VarAccess| !earlier.released.contains(&x.var);
    let orders = |x: &VarAccess| later.accesses.iter().any(|y| x.var == y.var && (x.kind != Read || y.kind != Read));
    earlier.accesses.iter().filter(held).any(orders)
}

impl Pushed {
    fn overwrites(&self, var: VarId) -> bool {
        let mut of = self.accesses.iter().filter(|access| access.var == var).peekable();
        of.peek().is_some() && of.all(|access| access.kind == Write)
    }
}

fn below(seed: &mut u64, bound: usize) -> usize {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 33) as usize % bound
}

/// The error that a serial run would leave in each variable, and which operations it would run.
fn serial(program: &[Pushed], vars: usize) -> (Vec<Option<u32>>, Vec<bool>) {
    let mut errors: Vec<Option<u32>> = vec![None; vars];
    let runs = program.iter().enumerate().map(|(i, pushed)| {
        let of = |var: VarId| pushed.accesses.iter().filter(move |access| access.var == var);
        let reads = |var| of(var).any(|access| access.kind != Write);
        let met = pushed.accesses.iter().filter(|access| reads(access.var)).find_map(|a| errors[a.var.0 as usize]);
        let outcome = met.or(pushed.fails.then_some(i as u32));
        for access in pushed.accesses.iter().filter(|access| matches!(access.kind, Write | Update)) {
            errors[access.var.0 as usize] = outcome.filter(|_| !pushed.released.contains(&access.var));
        }
        met.is_none()
    });
    let runs = runs.collect();
    (errors, runs)
}

/// Pushes and finishes in a random order, checking after each step that exactly those operations
/// run whose conflicting predecessors have finished.
fn random_program(seed: u64, vars: usize, ops: usize, errors: bool) {
    let mut seed = seed;
    let (mut state, mut ready) = (Machine::new(), Log::new());
    let mut program: Vec<Pushed> = Vec::new();
    let mut skipped = vec![false; ops];
    while program.len() < ops || state.live() > 0 {
        let running: Vec<usize> = (0..program.len()).filter(|&i| program[i].running).collect();
        if program.len() < ops && (running.is_empty() || below(&mut seed, 2) == 0) {
            let kinds = [Read, Read, Read, Write, Update];
            let count = below(&mut seed, 4);
            let accesses: Vec<VarAccess> =
                (0..count).map(|_| access(below(&mut seed, vars) as u32, kinds[below(&mut seed, 5)])).collect();
            let fails = errors && below(&mut seed, 8) == 0;
            let op = state.push(&accesses, program.len(), &mut ready);
            program.push(Pushed { op, accesses, released: vec![], fails, finished: false, running: false });
        } else if below(&mut seed, 3) == 0 {
            let i = running[below(&mut seed, running.len())];
            let var = VarId(below(&mut seed, vars) as u32);
            let gives = program[i].overwrites(var) && !program[i].released.contains(&var);
            assert_eq!(state.release_early(program[i].op, var, &mut ready), gives, "{var:?} of operation {i}");
            program[i].released.extend(gives.then_some(var));
        } else {
            let i = running[below(&mut seed, running.len())];
            (program[i].running, program[i].finished) = (false, true);
            let outcome = if program[i].fails { Err(i as u32) } else { Ok(()) };
            state.finish(program[i].op, outcome, &mut ready);
        }
        for (i, _) in ready.skipped.drain(..) {
            (program[i].finished, skipped[i]) = (true, true);
        }
        for op in ready.run.drain(..) {
            let i = *state.payload(op).unwrap();
            assert_eq!(program[i].op, op);
            assert!(!program[i].running && !program[i].finished);
            program[i].running = true;
        }
        for (i, pushed) in program.iter().enumerate() {
            let free = (0..i).all(|j| program[j].finished || !conflict(&program[j], pushed));
            assert_eq!(pushed.running || pushed.finished, free, "operation {i}");
        }
    }
    let (errors, runs) = serial(&program, vars);
    // Where an operation could meet several errors, which one depends on nothing but the program.
    for (var, error) in errors.iter().enumerate() {
        assert_eq!(state.error(VarId(var as u32)).is_some(), error.is_some());
    }
    assert_eq!(runs, skipped.iter().map(|skipped| !skipped).collect::<Vec<_>>());
}

#[test]
fn random_programs_follow_the_rules() {
    for seed in 0..300 {
        random_program(seed, 1 + seed as usize % 9, 60, seed % 2 == 0);
    }
}
