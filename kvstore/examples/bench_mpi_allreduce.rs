//! Measures MPI's own sum of a long array of f32 over the processes of a job, to compare `bench_allreduce` with.
//!
//! Arguments: elements (default 25000000), rounds (default 7). Prints one line, the median and the shortest time of a round
//! in ms; a round ends when every process has the sum.

use std::time::Instant;

use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (elements, rounds) = (number(25_000_000)?, number(7)?);
    let universe = mpi::initialize().ok_or("MPI is in use already")?;
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let value = |rank: i32, i: usize| (i % 1000) as f32 + rank as f32;
    let from: Vec<f32> = (0..elements).map(|i| value(rank, i)).collect();
    let mut to = vec![0f32; elements];
    let mut times = vec![];
    for _ in 0..=rounds {
        world.barrier();
        let start = Instant::now();
        world.all_reduce_into(&from[..], &mut to[..], SystemOperation::sum());
        let (own, mut longest) = (1e3 * start.elapsed().as_secs_f64(), 0.0);
        world.all_reduce_into(&own, &mut longest, SystemOperation::max());
        times.push(longest);
    }
    let expected = |i: usize| (0..size).map(|rank| value(rank, i)).sum::<f32>();
    if let Some((i, found)) = to.iter().enumerate().find(|(i, found)| **found != expected(*i)) {
        return Err(format!("element {i} is {found}").into());
    }
    // The first round allocates.
    let mut times: Vec<f64> = times.split_off(1);
    times.sort_by(f64::total_cmp);
    if rank == 0 {
        let at = |i: usize| times.get(i).copied().unwrap_or_default();
        println!("{:.3} {:.3}", at(times.len() / 2), at(0));
    }
    Ok(())
}
