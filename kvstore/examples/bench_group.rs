//! Measures sums over the ranks of an MPI job: time, what travels, and what a short collective costs.
//!
//! ```text
//! cargo build --release -p tensorc-kvstore --features mpi --example bench_group
//! mpirun -n 2 target/release/examples/bench_group [MEGABYTES [ROUNDS]]
//! ```
//!
//! MEGABYTES (100) of f32 are summed in collectives of 4 MiB at most, as the gradients of a step are, with all of them under
//! way at once. Rank 0 prints the median of ROUNDS (11); every rank checks the sums.

use std::sync::mpsc::sync_channel;
use std::time::Instant;

use bytes::Bytes;
use tensorc_kvstore::transport::Transport;
use tensorc_kvstore::transport::mpi::MpiTransport;
use tensorc_kvstore::{Call, Group, GroupError, GroupOptions};
use tensorc_runtime::DType;

type Failure = Box<dyn std::error::Error>;

/// Most bytes of a collective.
const PIECE: usize = 4 << 20;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let megabytes: usize = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(11), |text| text.parse())?;
    let group = Group::join(
        || -> Result<Box<dyn Transport>, _> { Ok(Box::new(MpiTransport::init()?)) },
        GroupOptions::default(),
    )?;
    let mut long = vec![];
    let mut short = vec![];
    for _ in 0..rounds.max(1) {
        long.push(sum(&group, megabytes * 1_000_000)?);
        let several = (0..100).map(|_| sum(&group, 64)).collect::<Result<Vec<f64>, _>>()?;
        short.push(several.iter().sum::<f64>() / 100.0);
    }
    group.close()?;
    if group.rank() == 0 {
        let (long, short, ranks) = (median(long), median(short), group.size() as f64);
        let travels = 2.0 * (ranks - 1.0) / ranks * megabytes as f64 * 1e6;
        println!(
            "{ranks} ranks: {megabytes} MB summed in {:.1} ms, of which each rank sends and receives {:.1} MB: {:.2} GB/s",
            1e3 * long,
            travels / 1e6,
            travels / long / 1e9
        );
        println!("a sum of 64 bytes: {:.1} µs", 1e6 * short);
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Sums so many bytes of ones over the ranks; returns the seconds from the first contribution to the last result.
fn sum(group: &Group, bytes: usize) -> Result<f64, Failure> {
    let ones = |begin: usize| {
        let mut piece = group.buffers().take(PIECE.min(bytes - begin) / 4 * 4)?;
        piece.as_chunks_mut::<4>().0.fill(1.0f32.to_le_bytes());
        Ok(Bytes::from(piece))
    };
    let pieces = (0..bytes).step_by(PIECE).map(ones).collect::<Result<Vec<_>, Failure>>()?;
    group.barrier("round")?;
    let (start, mut answers, mut results) = (Instant::now(), vec![], vec![]);
    for (number, piece) in pieces.into_iter().enumerate() {
        let (tell, told) = sync_channel::<Result<Vec<Bytes>, GroupError>>(1);
        let call = Call::sum(format!("piece {number}"), DType::F32, piece.len() as u64 / 4, 1);
        // The receiver waits below, unless a piece before has failed.
        group.reserve(call, 0).start(vec![piece], Box::new(move |result| drop(tell.send(result))));
        answers.push(told);
    }
    for answer in answers {
        results.extend(answer.recv()??);
    }
    let seconds = start.elapsed().as_secs_f64();
    let expected = (group.size() as f32).to_le_bytes();
    match results.iter().any(|bytes| bytes.as_chunks::<4>().0.iter().any(|value| *value != expected)) {
        true => Err("a wrong sum".into()),
        false => Ok(seconds),
    }
}
