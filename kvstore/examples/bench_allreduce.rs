//! Measures the sum of a long array of f32 over the processes of an MPI job, in pieces as the store of arrays cuts it.
//!
//! Arguments: elements (default 25000000), elements of a piece (default 1048576), rounds (default 7). A round ends when every
//! process has the sum; it includes the copies from the array into messages, and of the results into an array. Prints one
//! line, the median and the shortest time of a round in ms. `bench_mpi_allreduce` measures the library's own sum.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorc_kvstore::transport::Transport;
use tensorc_kvstore::transport::mpi::MpiTransport;
use tensorc_kvstore::{CollectiveCall, Group, GroupError, GroupOptions};
use tensorc_runtime::DType;

type Failure = Box<dyn std::error::Error>;

/// A piece's number, and what came of it.
type Outcome = (usize, Result<Vec<Bytes>, GroupError>);

/// Sums `from` over the ranks to `to`.
fn sum(group: &Group, from: &[u8], to: &mut [u8], piece: usize) -> Result<(), Failure> {
    let (tell, told) = channel::<Outcome>();
    let mut ends = 0;
    let mut unpack = |(number, outcome): Outcome| -> Result<(), Failure> {
        let mut at = number * piece;
        for part in outcome? {
            to[at..at + part.len()].copy_from_slice(&part);
            at += part.len();
        }
        ends += 1;
        Ok(())
    };
    for (number, bytes) in from.chunks(piece).enumerate() {
        let ticket = group.reserve(CollectiveCall::sum("array", DType::F32, bytes.len() as u64 / 4, 1), 0);
        let mut message = group.buffers().take(bytes.len())?;
        message.copy_from_slice(bytes);
        let tell = tell.clone();
        // The receiver lives until every outcome has come.
        ticket.start(vec![message.into()], Box::new(move |outcome| drop(tell.send((number, outcome)))));
        told.try_iter().try_for_each(&mut unpack)?;
    }
    drop(tell);
    told.iter().try_for_each(&mut unpack)?;
    match ends == from.len().div_ceil(piece) {
        true => Ok(()),
        false => Err("a piece has no outcome".into()),
    }
}

/// The longest time of all ranks.
fn longest(group: &Group, own: Duration) -> Result<Duration, Failure> {
    let all = group.gather("time", (own.as_nanos() as u64).to_le_bytes().to_vec())?;
    let nanos = all.iter().filter_map(|bytes| bytes.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
    Ok(Duration::from_nanos(nanos.max().unwrap_or(0)))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse::<usize>());
    let (elements, piece, rounds) = (number(25_000_000)?, number(1 << 20)?.max(1), number(7)?);
    let make = || -> Result<Box<dyn Transport>, _> { Ok(Box::new(MpiTransport::init()?)) };
    let group = Group::join(make, GroupOptions::default())?;
    let (rank, size) = (group.rank(), group.size());
    let value = |rank: usize, i: usize| (i % 1000 + rank) as f32;
    let from: Vec<u8> = (0..elements).flat_map(|i| value(rank, i).to_le_bytes()).collect();
    let mut to = vec![0; 4 * elements];
    let mut times = vec![];
    for _ in 0..=rounds {
        group.barrier("round")?;
        let start = Instant::now();
        sum(&group, &from, &mut to, 4 * piece)?;
        times.push(longest(&group, start.elapsed())?);
    }
    let expected = |i: usize| (0..size).map(|rank| value(rank, i)).sum::<f32>();
    let found = to.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    if let Some((i, found)) = found.enumerate().find(|(i, found)| *found != expected(*i)) {
        return Err(format!("element {i} is {found}").into());
    }
    group.close()?;
    // The first round allocates.
    let mut times = times.split_off(1);
    times.sort();
    let ms = |time: Option<&Duration>| 1e3 * time.map_or(0.0, Duration::as_secs_f64);
    if rank == 0 {
        println!("{:.3} {:.3}", ms(times.get(times.len() / 2)), ms(times.first()));
    }
    Ok(())
}
