//! One fork and join of tasks through the pool of plans and through rayon.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Args;
use rayon::ThreadPool;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};
use tensorc_runtime::Pool;

use tensorc_bench::summary::summarize;

/// Times a fork and join of equal tasks: smallest value and median in µs.
#[derive(Args)]
pub struct ForkJoinArgs {
    /// Threads of each pool, the calling one among them
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Tasks of one fork and join
    #[arg(long, value_delimiter = ',', default_values_t = [2, 8, 64])]
    tasks: Vec<usize>,
    /// Work of a task
    #[arg(long, value_name = "NS", value_delimiter = ',', default_values_t = [0, 2_000, 20_000])]
    work: Vec<u64>,
    /// Time between two calls
    #[arg(long, value_name = "US", value_delimiter = ',', default_values_t = [0, 1_000])]
    idle: Vec<u64>,
    /// Turns of each form
    #[arg(long, default_value_t = 20)]
    turns: usize,
    /// Timed calls of a turn
    #[arg(long, default_value_t = 50)]
    calls: usize,
}

/// Calls of a turn that are not timed: they wake the threads, which slept while other forms were timed.
const WARM_UP: usize = 5;

/// What all forms are given.
struct ForkJoinRegion {
    own: Pool,
    rayon: ThreadPool,
    tasks: usize,
    /// Additions of a task.
    rounds: u64,
}

impl ForkJoinRegion {
    fn task(&self) {
        count(self.rounds);
    }
}

/// A way to call all tasks of a region and to wait for them.
struct ForkJoinForm {
    name: &'static str,
    /// Whether the caller is one of rayon's threads: rayon lets it take part only then.
    within: bool,
    call: fn(&ForkJoinRegion),
}

const FORMS: [ForkJoinForm; 5] = [
    ForkJoinForm { name: "`Pool::run`", within: false, call: own },
    ForkJoinForm { name: "`par_iter`", within: true, call: par_iter },
    ForkJoinForm { name: "`scope`", within: true, call: scope },
    ForkJoinForm { name: "`broadcast`", within: true, call: broadcast },
    ForkJoinForm {
        name: "`install`, `par_iter`",
        within: false,
        call: |region| region.rayon.install(|| par_iter(region)),
    },
];

fn own(region: &ForkJoinRegion) {
    // A panic of the task is the only error, and it does not panic.
    let _ = region.own.run(region.tasks as u64, 1, &|_, range| range.for_each(|_| region.task()));
}

fn par_iter(region: &ForkJoinRegion) {
    (0..region.tasks).into_par_iter().with_max_len(1).for_each(|_| region.task());
}

fn scope(region: &ForkJoinRegion) {
    rayon::scope(|scope| {
        (1..region.tasks).for_each(|_| scope.spawn(|_| region.task()));
        region.task();
    });
}

/// One job for each thread, which has a fixed part of the tasks.
fn broadcast(region: &ForkJoinRegion) {
    rayon::broadcast(|place| {
        (place.index()..region.tasks).step_by(place.num_threads()).for_each(|_| region.task());
    });
}

fn count(rounds: u64) {
    (0..rounds).for_each(|i| {
        black_box(i);
    });
}

/// Additions in a microsecond, mostly.
fn rounds_per_us() -> f64 {
    const ROUNDS: u64 = 20_000;
    let times = (0..2000).map(|_| {
        let start = Instant::now();
        count(ROUNDS);
        start.elapsed().as_secs_f64() * 1e6
    });
    ROUNDS as f64 / summarize(times.collect()).median
}

/// Times of calls in µs, some time apart.
fn turn(region: &ForkJoinRegion, form: &ForkJoinForm, idle: Duration, calls: usize) -> Vec<f64> {
    let one = |_| {
        if !idle.is_zero() {
            std::thread::sleep(idle);
        }
        let start = Instant::now();
        (form.call)(region);
        start.elapsed().as_secs_f64() * 1e6
    };
    let all = || (0..WARM_UP + calls).map(one).skip(WARM_UP).collect();
    if form.within { region.rayon.install(all) } else { all() }
}

pub fn run(arguments: &ForkJoinArgs) -> Result<(), Box<dyn Error>> {
    let per_us = rounds_per_us();
    let names = FORMS.map(|form| form.name).join(" | ");
    println!("| threads | tasks | work, µs | idle, µs | {names} |");
    println!("|{}", "---|".repeat(4 + FORMS.len()));
    for &threads in &arguments.threads {
        let rayon = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let mut region = ForkJoinRegion { own: Pool::new(threads)?, rayon, tasks: 0, rounds: 0 };
        for &idle in &arguments.idle {
            for &work in &arguments.work {
                region.rounds = (per_us * work as f64 / 1e3) as u64;
                for &tasks in &arguments.tasks {
                    region.tasks = tasks;
                    let cells = compare(&region, Duration::from_micros(idle), arguments).join(" | ");
                    println!("| {threads} | {tasks} | {} | {idle} | {cells} |", work as f64 / 1e3);
                }
            }
        }
    }
    Ok(())
}

/// Smallest time and median of each form, whose turns alternate.
fn compare(region: &ForkJoinRegion, idle: Duration, arguments: &ForkJoinArgs) -> [String; FORMS.len()] {
    let mut times = FORMS.map(|_| vec![]);
    for _ in 0..arguments.turns.max(1) {
        for (times, form) in times.iter_mut().zip(&FORMS) {
            times.extend(turn(region, form, idle, arguments.calls.max(1)));
        }
    }
    times.map(|times| {
        let time = summarize(times);
        format!("{:.2} / {:.2}", time.best, time.median)
    })
}
