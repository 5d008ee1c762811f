//! Orders of steps by the memory they need.
//!
//! A step is known by the buffers it reads and writes. Several orders are made, each in time nearly
//! linear in the number of steps, and the one with the lowest peak is taken; the given order is one
//! of them, so that the result is never worse. Nothing but the steps decides: equal programs are
//! ordered equally.

use std::collections::{BTreeMap, BTreeSet};

/// One step.
#[derive(Clone, Debug, Default)]
pub struct StepTask {
    /// Buffers, each once.
    pub reads: Vec<u32>,
    /// Buffers, each once. Several tasks may write parts of one.
    pub writes: Vec<u32>,
    /// Pairs of a buffer read and one written that may take its place.
    pub in_place: Vec<(u32, u32)>,
    /// Whether it belongs to the second of two phases. No task of the first needs one of the second.
    pub second: bool,
    /// Tasks that come before it for other reasons than what it reads.
    pub after: Vec<u32>,
    /// Bytes of working memory while it runs.
    pub scratch: u64,
}

/// A program of tasks, given in an order in which they can run.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    pub tasks: Vec<StepTask>,
    /// What a buffer takes while it is live; zero where memory is not planned.
    pub bytes: Vec<u64>,
    /// The buffers in whose memory parts lie. Only that memory counts, and it is live while one of its
    /// parts is; what a task waits for are the parts it reads.
    pub wholes: BTreeMap<u32, u32>,
}

/// Who writes and who reads every buffer.
struct Links {
    writers: Vec<Vec<u32>>,
    readers: Vec<Vec<u32>>,
    /// Tasks that use each whole or a part of it, each once.
    users: Vec<Vec<u32>>,
    /// Tasks that come after each task, by [`StepTask::after`].
    followers: Vec<Vec<u32>>,
}

/// In which order a task's operands are visited.
#[derive(Clone, Copy)]
enum OperandOrder {
    Given,
    Back,
    /// The one at the end of the longest chain first: in a backward pass that is the gradient, while
    /// what is recomputed can wait.
    DeepestFirst,
}

impl Tasks {
    /// The order with the lowest peak among the given one and a few others, and that peak.
    pub fn best_order(&self) -> (Vec<usize>, u64) {
        let given: Vec<usize> = (0..self.tasks.len()).collect();
        let mut best = (self.peak(&given), given.clone());
        let links = self.links();
        let mut bases = vec![given];
        let depth = self.depths(&links);
        for last_first in [false, true] {
            for operands in [OperandOrder::Given, OperandOrder::Back, OperandOrder::DeepestFirst] {
                bases.push(self.depth_first(&links, &depth, last_first, operands));
            }
        }
        for base in bases {
            for order in [self.freeing_first(&links, &base), base] {
                let peak = self.peak(&order);
                if peak < best.0 {
                    best = (peak, order);
                }
            }
        }
        (best.1, best.0)
    }

    /// The largest number of bytes live at once in an order, working memory among them: a lower bound for any plan of
    /// it. A buffer that takes the place of one that dies is counted once.
    pub fn peak(&self, order: &[usize]) -> u64 {
        self.peak_at(order).0
    }

    /// As [`Tasks::peak`], and the first place in the order where it is; `None` where nothing is live.
    pub(crate) fn peak_at(&self, order: &[usize]) -> (u64, Option<usize>) {
        let (mut first, mut last) = (vec![usize::MAX; self.bytes.len()], vec![0; self.bytes.len()]);
        for (at, task) in order.iter().map(|t| &self.tasks[*t]).enumerate() {
            for b in task.reads.iter().chain(&task.writes).map(|b| self.whole(*b)) {
                first[b] = first[b].min(at);
                last[b] = at;
            }
        }
        let (mut live, mut peak) = (0u64, (0, None));
        let mut taken = BTreeSet::new();
        for (at, task) in order.iter().map(|t| &self.tasks[*t]).enumerate() {
            let all = self.used(task);
            live += all.iter().filter(|b| first[**b] == at).map(|b| self.bytes[*b]).sum::<u64>();
            taken.clear();
            let mut pairs = task.in_place.clone();
            pairs.sort_by_key(|(from, to)| (*to, *from));
            let mut shared = 0;
            for (from, to) in pairs {
                let (f, t) = (from as usize, to as usize);
                let dies_for = last[f] == at && first[f] < at && first[t] == at && self.bytes[f] == self.bytes[t];
                if dies_for && !taken.contains(&f) && !taken.contains(&t) {
                    taken.extend([f, t]);
                    shared += self.bytes[f];
                }
            }
            let bytes = live - shared + task.scratch;
            if bytes > peak.0 {
                peak = (bytes, Some(at));
            }
            live -= all.iter().filter(|b| last[**b] == at).map(|b| self.bytes[*b]).sum::<u64>();
        }
        peak
    }

    fn whole(&self, buffer: u32) -> usize {
        self.wholes.get(&buffer).copied().unwrap_or(buffer) as usize
    }

    /// The memory that a task uses.
    fn used(&self, task: &StepTask) -> BTreeSet<usize> {
        task.reads.iter().chain(&task.writes).map(|b| self.whole(*b)).collect()
    }

    fn links(&self) -> Links {
        let mut links = Links {
            writers: vec![vec![]; self.bytes.len()],
            readers: vec![vec![]; self.bytes.len()],
            users: vec![vec![]; self.bytes.len()],
            followers: vec![vec![]; self.tasks.len()],
        };
        for (t, task) in (0..).zip(&self.tasks) {
            task.writes.iter().for_each(|b| links.writers[*b as usize].push(t));
            task.reads.iter().for_each(|b| links.readers[*b as usize].push(t));
            self.used(task).into_iter().for_each(|b| links.users[b].push(t));
            task.after.iter().for_each(|before| links.followers[*before as usize].push(t));
        }
        links
    }

    /// How many tasks, one needing the other, lead to each.
    fn depths(&self, links: &Links) -> Vec<usize> {
        let mut depth = vec![0; self.tasks.len()];
        for (t, task) in self.tasks.iter().enumerate() {
            let writers = task.reads.iter().flat_map(|b| &links.writers[*b as usize]);
            depth[t] = writers.map(|w| depth[*w as usize] + 1).max().unwrap_or(0);
        }
        depth
    }

    /// Depth first from the tasks nobody reads, from the last of them or from the first; all of the
    /// first phase, then all of the second.
    fn depth_first(&self, links: &Links, depth: &[usize], last_first: bool, operands: OperandOrder) -> Vec<usize> {
        let is_read = |t: usize| {
            let read = |b: &u32| links.readers[*b as usize].iter().any(|r| *r as usize != t);
            self.tasks[t].writes.iter().any(read) || !links.followers[t].is_empty()
        };
        let mut roots: Vec<usize> = (0..self.tasks.len()).filter(|t| !is_read(*t)).collect();
        if last_first {
            roots.reverse();
        }
        let mut seen = vec![false; self.tasks.len()];
        let mut order = Vec::with_capacity(self.tasks.len());
        let mut stack = vec![];
        for root in roots {
            stack.push((root, false));
            while let Some((t, done)) = stack.pop() {
                if done {
                    order.push(t);
                } else if !std::mem::replace(&mut seen[t], true) {
                    stack.push((t, true));
                    let writers = self.tasks[t].reads.iter().flat_map(|b| &links.writers[*b as usize]);
                    let mut before: Vec<usize> = writers.chain(&self.tasks[t].after).map(|w| *w as usize).collect();
                    // What is pushed last is visited first.
                    match operands {
                        OperandOrder::Given => before.reverse(),
                        OperandOrder::Back => {}
                        OperandOrder::DeepestFirst => before.sort_by_key(|w| (depth[*w], usize::MAX - w)),
                    }
                    stack.extend(before.into_iter().filter(|w| !seen[*w]).map(|w| (w, false)));
                }
            }
        }
        order.sort_by_key(|t| self.tasks[*t].second);
        order
    }

    /// The base order, except that a task that frees more than it takes runs as soon as it can.
    fn freeing_first(&self, links: &Links, base: &[usize]) -> Vec<usize> {
        let mut rank = vec![0; base.len()];
        base.iter().enumerate().for_each(|(at, t)| rank[*t] = at);
        let mut list = List::new(self, links, rank);
        let mut order = Vec::with_capacity(base.len());
        while let Some(t) = list.next() {
            order.push(t);
            list.run(t);
        }
        order
    }
}

/// The state of list scheduling.
struct List<'a> {
    program: &'a Tasks,
    links: &'a Links,
    /// Position of every task in the base order.
    rank: Vec<usize>,
    /// Writers of buffers that have not run.
    writers_left: Vec<usize>,
    /// Users of wholes that have not run.
    users_left: Vec<usize>,
    /// Of wholes.
    live: Vec<bool>,
    /// What every task still waits for: buffers and other tasks.
    waiting: Vec<usize>,
    ready: BTreeSet<(usize, usize)>,
    /// Ready tasks that free more than they take: by the bytes that are gained, negated.
    freeing: BTreeSet<(i128, usize, usize)>,
    /// Where each task stands in `freeing`.
    gain: Vec<i128>,
    first_left: usize,
    /// Tasks of the second phase that wait for the end of the first only.
    held: Vec<usize>,
}

impl<'a> List<'a> {
    fn new(program: &'a Tasks, links: &'a Links, rank: Vec<usize>) -> List<'a> {
        let count = program.tasks.len();
        let written = |b: &&u32| !links.writers[**b as usize].is_empty();
        let waiting = program.tasks.iter().map(|t| t.reads.iter().filter(written).count() + t.after.len()).collect();
        let mut list = List {
            program,
            links,
            rank,
            writers_left: links.writers.iter().map(Vec::len).collect(),
            users_left: links.users.iter().map(Vec::len).collect(),
            live: vec![false; program.bytes.len()],
            waiting,
            ready: BTreeSet::new(),
            freeing: BTreeSet::new(),
            gain: vec![0; count],
            first_left: program.tasks.iter().filter(|t| !t.second).count(),
            held: vec![],
        };
        (0..count).filter(|t| list.waiting[*t] == 0).collect::<Vec<_>>().into_iter().for_each(|t| list.enter(t));
        list
    }

    fn next(&self) -> Option<usize> {
        let freeing = self.freeing.first().map(|(_, _, t)| *t);
        freeing.or_else(|| self.ready.first().map(|(_, t)| *t))
    }

    /// Makes a task that waits for nothing ready.
    fn enter(&mut self, t: usize) {
        if self.program.tasks[t].second && self.first_left > 0 {
            self.held.push(t);
            return;
        }
        self.ready.insert((self.rank[t], t));
        self.judge(t);
    }

    /// Bytes a task takes, less those it frees.
    fn net(&self, t: usize) -> i128 {
        let task = &self.program.tasks[t];
        let whole = |b: &u32| self.program.whole(*b);
        let bytes = |b: &usize| i128::from(self.program.bytes[*b]);
        let written: BTreeSet<usize> = task.writes.iter().map(whole).collect();
        let read: BTreeSet<usize> = task.reads.iter().map(whole).filter(|b| !written.contains(b)).collect();
        let takes: i128 = written.iter().filter(|b| !self.live[**b]).map(bytes).sum();
        let frees: i128 = read.iter().filter(|b| self.users_left[**b] == 1).map(bytes).sum();
        takes - frees
    }

    fn judge(&mut self, t: usize) {
        if !self.ready.contains(&(self.rank[t], t)) {
            return;
        }
        self.freeing.remove(&(self.gain[t], self.rank[t], t));
        self.gain[t] = self.net(t);
        if self.gain[t] < 0 {
            self.freeing.insert((self.gain[t], self.rank[t], t));
        }
    }

    fn run(&mut self, t: usize) {
        self.ready.remove(&(self.rank[t], t));
        self.freeing.remove(&(self.gain[t], self.rank[t], t));
        let (program, links) = (self.program, self.links);
        let task = &program.tasks[t];
        let written: BTreeSet<usize> = task.writes.iter().map(|b| program.whole(*b)).collect();
        for b in program.used(task) {
            self.users_left[b] -= 1;
            let born = written.contains(&b) && !std::mem::replace(&mut self.live[b], true);
            // The other writers find the memory there, and the last user may free it.
            if born || self.users_left[b] == 1 {
                links.users[b].iter().for_each(|u| self.judge(*u as usize));
            }
        }
        for b in task.writes.iter().map(|b| *b as usize) {
            self.writers_left[b] -= 1;
            if self.writers_left[b] == 0 {
                links.readers[b].iter().for_each(|r| self.arrive(*r as usize));
            }
        }
        links.followers[t].iter().for_each(|f| self.arrive(*f as usize));
        if !task.second {
            self.first_left -= 1;
            if self.first_left == 0 {
                std::mem::take(&mut self.held).into_iter().for_each(|t| self.enter(t));
            }
        }
    }

    fn arrive(&mut self, t: usize) {
        self.waiting[t] -= 1;
        if self.waiting[t] == 0 {
            self.enter(t);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_random::Rng;

    fn random(rng: &mut Rng, count: usize) -> Tasks {
        let mut tasks = Tasks::default();
        let boundary = rng.below(count as u64 + 1) as usize;
        for t in 0..count {
            let known = tasks.bytes.len() as u64;
            let mut task = StepTask { second: t >= boundary, ..StepTask::default() };
            for _ in 0..rng.below(4) {
                if known > 0 {
                    let b = rng.below(known) as u32;
                    task.reads.extend((!task.reads.contains(&b)).then_some(b));
                }
            }
            for _ in 0..1 + rng.below(2) {
                let id = tasks.bytes.len() as u32;
                let like = task.reads.first().map_or(0, |b| tasks.bytes[*b as usize]);
                tasks.bytes.push(if rng.one_in(3) { like } else { 64 * rng.below(9) });
                task.in_place.extend(task.reads.iter().map(|from| (*from, id)));
                task.writes.push(id);
            }
            if t > 0 && rng.one_in(6) {
                task.after.push(rng.below(t as u64) as u32);
            }
            tasks.tasks.push(task);
        }
        tasks
    }

    /// Every task once, after what it reads and waits for, the first phase first.
    fn is_order(tasks: &Tasks, order: &[usize]) -> bool {
        let mut place = vec![usize::MAX; order.len()];
        order.iter().enumerate().for_each(|(at, t)| place[*t] = at);
        let writers =
            |b: &u32| tasks.tasks.iter().enumerate().filter(|(_, t)| t.writes.contains(b)).map(|(t, _)| t).collect();
        order.len() == tasks.tasks.len()
            && order.windows(2).all(|pair| tasks.tasks[pair[0]].second <= tasks.tasks[pair[1]].second)
            && tasks.tasks.iter().enumerate().all(|(t, task)| {
                let read = task.reads.iter().flat_map(|b| -> Vec<usize> { writers(b) });
                read.chain(task.after.iter().map(|b| *b as usize)).all(|w| place[w] < place[t])
            })
    }

    fn least(tasks: &Tasks, order: &mut Vec<usize>) -> u64 {
        if order.len() == tasks.tasks.len() {
            return if is_order(tasks, order) { tasks.peak(order) } else { u64::MAX };
        }
        let mut best = u64::MAX;
        for t in 0..tasks.tasks.len() {
            if !order.contains(&t) {
                order.push(t);
                best = best.min(least(tasks, order));
                order.pop();
            }
        }
        best
    }

    #[test]
    fn orders_are_valid_and_never_worse_than_the_given() {
        let mut rng = Rng::new(3);
        for round in 0..3000 {
            let count = rng.below(24) as usize;
            let tasks = random(&mut rng, count);
            let given: Vec<usize> = (0..tasks.tasks.len()).collect();
            let (order, peak) = tasks.best_order();
            assert!(is_order(&tasks, &order), "round {round}: {order:?} of {tasks:?}");
            assert!(peak == tasks.peak(&order) && peak <= tasks.peak(&given), "round {round}");
        }
    }

    #[test]
    fn small_programs_are_ordered_almost_as_well_as_can_be() {
        let mut rng = Rng::new(4);
        let (mut best, mut found, mut given) = (0, 0, 0);
        for _ in 0..60 {
            let tasks = random(&mut rng, 6);
            best += least(&tasks, &mut vec![]);
            found += tasks.best_order().1;
            given += tasks.peak(&(0..6).collect::<Vec<_>>());
        }
        assert!(best <= found && found * 100 <= best * 105, "{found} bytes, {best} would do");
        assert!(found < given);
    }

    /// A chain of layers and its backward pass, whose results are asked for from the first layer on:
    /// each gradient of filters reads what the layer read, and the gradient of what it returned.
    #[test]
    fn gradients_are_taken_as_soon_as_their_operands_are_there() {
        const LAYERS: u32 = 20;
        let mut tasks = Tasks { bytes: vec![64; 2 * LAYERS as usize + 1], ..Tasks::default() };
        tasks.bytes.extend(vec![0; LAYERS as usize]);
        let mut add = |reads: &[u32], write: u32| {
            tasks.tasks.push(StepTask { reads: reads.to_vec(), writes: vec![write], ..StepTask::default() });
        };
        (0..LAYERS).for_each(|i| add(&[i], i + 1));
        let gradient = |i: u32| if i == LAYERS { LAYERS } else { 2 * LAYERS - i };
        (1..LAYERS).rev().for_each(|i| add(&[gradient(i + 1), i], gradient(i)));
        (0..LAYERS).for_each(|i| add(&[gradient(i + 1), i], 2 * LAYERS + 1 + i));
        let given = tasks.peak(&(0..tasks.tasks.len()).collect::<Vec<_>>());
        let (_, peak) = tasks.best_order();
        assert!(given >= 64 * (2 * u64::from(LAYERS) - 1), "{given}");
        assert!(peak <= 64 * (u64::from(LAYERS) + 3), "{peak}");
    }
}
