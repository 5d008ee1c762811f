//! Measures messages between two processes: bandwidth both ways against `MPI_Sendrecv`, and latency by polling.
//!
//! `mpirun -n 2 target/release/examples/mpi_bandwidth`
#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]

use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mpi::point_to_point::send_receive_into;
use mpi::topology::{Communicator, SimpleCommunicator};
use tensorc_kvstore::transport::mpi::{MpiTransport, library_version};
use tensorc_kvstore::transport::{Received, Transport};

fn main() {
    let mut t = MpiTransport::init().unwrap();
    assert_eq!(t.size(), 2, "start two processes");
    if t.rank() == 0 {
        println!("{}", library_version().unwrap());
    }
    for (size, rounds) in [(4_000_000, 60), (50_000_000, 12)] {
        let (ours, library) = (exchange(&mut t, size, rounds), sendrecv(&t, size, rounds));
        if t.rank() == 0 {
            let each = |seconds: f64| size as f64 / seconds / 1e9;
            let (ours, library) = (each(ours), each(library));
            println!("{size:9} bytes both ways: {ours:.2} GB/s each way, MPI_Sendrecv {library:.2} GB/s");
        }
    }
    for (name, pause) in [("spinning", None), ("sleeps of 20 us", Some(Duration::from_micros(20)))] {
        let seconds = ping_pong(&mut t, 2000, pause);
        if t.rank() == 0 {
            println!("64 bytes there and back, {name}: {:.1} us", seconds * 1e6);
        }
    }
    t.close(true);
}

/// Polls until a message has come and everything is sent.
fn next(t: &mut MpiTransport, received: &mut Vec<Received>, pause: Option<Duration>) -> Vec<u8> {
    while received.is_empty() || t.unsent() > 0 {
        t.poll(received).unwrap();
        if let (Some(pause), true) = (pause, received.is_empty()) {
            sleep(pause);
        }
    }
    received.pop().unwrap().bytes
}

/// The least seconds of several rounds.
fn least(rounds: usize, mut round: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    };
    (0..rounds).map(time).fold(f64::INFINITY, f64::min)
}

fn exchange(t: &mut MpiTransport, size: usize, rounds: usize) -> f64 {
    let (other, message) = (1 - t.rank(), Bytes::from(vec![1; size]));
    let (mut room, mut received) = (vec![0; size], vec![]);
    least(rounds, || {
        t.receive(other, 1, std::mem::take(&mut room)).unwrap();
        t.send(other, 1, message.clone()).unwrap();
        room = next(t, &mut received, None);
    })
}

fn sendrecv(t: &MpiTransport, size: usize, rounds: usize) -> f64 {
    let world = SimpleCommunicator::world();
    let other = world.process_at_rank(1 - t.rank() as i32);
    let (message, mut room) = (vec![1_u8; size], vec![0_u8; size]);
    least(rounds, || {
        send_receive_into(&message[..], &other, &mut room[..], &other);
    })
}

/// The mean seconds of a message there and back.
fn ping_pong(t: &mut MpiTransport, rounds: usize, pause: Option<Duration>) -> f64 {
    let (first, other) = (t.rank() == 0, 1 - t.rank());
    let (mut room, mut received, start) = (vec![0; 64], vec![], Instant::now());
    for _ in 0..rounds {
        if first {
            t.send(other, 2, Bytes::from_static(&[0; 64])).unwrap();
        }
        t.receive(other, 2, std::mem::take(&mut room)).unwrap();
        room = next(t, &mut received, pause);
        if !first {
            t.send(other, 2, Bytes::from_static(&[0; 64])).unwrap();
        }
    }
    while t.unsent() > 0 {
        t.poll(&mut received).unwrap();
    }
    start.elapsed().as_secs_f64() / rounds as f64
}
