//! Keys of random operators: a stream of them for each device.
//!
//! Draw `n` of a stream has the key Threefry(key = the stream's seed, counter = n), and element `i`
//! of that draw is Threefry(key = the draw's key, counter = i). A stream is two numbers, and no
//! element depends on the order of work. Keys are taken while operations are pushed, in program
//! order, so that a new seed takes effect between two operations whatever is still queued.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::Device;

/// Threefry with two words of 32 bits and 20 rounds: a random function of key and counter.
///
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let mut a = counter[0].wrapping_add(keys[0]);
    let mut b = counter[1].wrapping_add(keys[1]);
    for block in 0..5u8 {
        let at = usize::from(block);
        for rotation in ROTATIONS[at % 2] {
            a = a.wrapping_add(b);
            b = b.rotate_left(rotation) ^ a;
        }
        a = a.wrapping_add(keys[(at + 1) % 3]);
        b = b.wrapping_add(keys[(at + 2) % 3]).wrapping_add(u32::from(block) + 1);
    }
    [a, b]
}

/// Low word first.
fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("cannot take a seed from the system's entropy")]
pub struct EntropyError(#[from] getrandom::Error);

/// The state of one device's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// The key of Threefry: two words of 32 bits, the low one first.
    pub seed: u64,
    /// Keys taken since the stream was seeded.
    pub draws: u64,
}

impl StreamState {
    fn new(seed: u64) -> StreamState {
        StreamState { seed, draws: 0 }
    }

    /// The stream of a device after `seed` was set for all. Number 0 of each kind has that seed, so
    /// that a program draws the same values wherever it runs; other numbers have seeds derived from
    /// it, so that devices that share the work draw different ones.
    fn initial(seed: u64, device: Device) -> StreamState {
        if device.id == 0 {
            return StreamState::new(seed);
        }
        // A counter that no draw reaches.
        let [low, high] = threefry2x32(words(seed), [u32::from(device.id), u32::MAX]);
        StreamState::new(u64::from(high) << 32 | u64::from(low))
    }
}

/// The state of [`RandomStreams`], to be stored with a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RandomState {
    /// Seeds the streams of devices that are not in `streams`.
    pub seed: u64,
    /// The streams that were seeded on their own, or drawn from.
    pub streams: BTreeMap<Device, StreamState>,
}

/// The random streams of all devices. A handle: clones share the streams.
///
/// The seed is 0 until one is set, so that every run of a program draws the same values.
#[derive(Clone, Debug, Default)]
pub struct RandomStreams {
    state: Arc<Mutex<RandomState>>,
}

impl RandomStreams {
    /// Streams seeded with 0.
    pub fn new() -> RandomStreams {
        RandomStreams::default()
    }

    /// Starts every device's stream afresh; see [`RandomStreams::seed_device`] for equal streams.
    pub fn seed(&self, seed: u64) {
        self.with(|state| *state = RandomState { seed, streams: BTreeMap::new() });
    }

    /// Starts the stream of one device afresh. Devices with equal seeds draw equal values.
    pub fn seed_device(&self, device: Device, seed: u64) {
        self.with(|state| state.streams.insert(device, StreamState::new(seed)));
    }

    /// [`RandomStreams::seed`] with a number from the operating system, which is returned so that the
    /// run can be repeated.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn seed_from_entropy(&self) -> Result<u64, EntropyError> {
        let seed = getrandom::u64()?;
        self.seed(seed);
        Ok(seed)
    }

    /// The key of the device's next draw.
    pub fn next_key(&self, device: Device) -> [u32; 2] {
        self.with(|state| {
            let seed = state.seed;
            let stream = state.streams.entry(device).or_insert_with(|| StreamState::initial(seed, device));
            let key = threefry2x32(words(stream.seed), words(stream.draws));
            stream.draws = stream.draws.wrapping_add(1);
            key
        })
    }

    /// The state of all streams.
    pub fn state(&self) -> RandomState {
        self.with(|state| state.clone())
    }

    /// Goes on as the streams did that `state` was taken from.
    pub fn set_state(&self, state: RandomState) {
        self.with(|current| *current = state);
    }

    fn with<R>(&self, f: impl FnOnce(&mut RandomState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(streams: &RandomStreams, device: Device) -> Vec<[u32; 2]> {
        (0..8).map(|_| streams.next_key(device)).collect()
    }

    /// The known answers that the authors publish with their implementation, Random123.
    #[test]
    fn known_answers() {
        for (counter, key, answer) in [
            ([0, 0], [0, 0], [0x6b20_0159, 0x99ba_4efe]),
            ([u32::MAX; 2], [u32::MAX; 2], [0x1cb9_96fc, 0xbb00_2be7]),
            ([0x243f_6a88, 0x85a3_08d3], [0x1319_8a2e, 0x0370_7344], [0xc492_3a9c, 0x483d_f7a0]),
        ] {
            assert_eq!(threefry2x32(key, counter), answer);
        }
    }

    #[test]
    fn keys_are_a_function_of_seed_and_number_of_draws() {
        let streams = RandomStreams::new();
        streams.seed(0x0123_4567_89ab_cdef);
        for n in 0..100 {
            assert_eq!(streams.next_key(Device::cpu(0)), threefry2x32([0x89ab_cdef, 0x0123_4567], [n, 0]));
        }
        let late = StreamState { seed: 5, draws: 7 << 32 | 9 };
        streams.set_state(RandomState { seed: 0, streams: BTreeMap::from([(Device::cpu(0), late)]) });
        assert_eq!(streams.next_key(Device::cpu(0)), threefry2x32([5, 0], [9, 7]));
    }

    #[test]
    fn the_same_seed_gives_the_same_keys() {
        let (a, b) = (RandomStreams::new(), RandomStreams::new());
        let zero = keys(&a, Device::cpu(0));
        b.seed(0);
        assert_eq!(keys(&b, Device::cpu(0)), zero, "0 is the seed at the start");
        a.seed(1);
        assert_ne!(keys(&a, Device::cpu(0)), zero);
        a.seed(0);
        assert_eq!(keys(&a, Device::cpu(0)), zero);
        assert_ne!(keys(&a, Device::cpu(0)), zero, "the stream goes on");
        keys(&b, Device::cpu(0));
        assert_eq!(keys(&a.clone(), Device::cpu(0)), keys(&b, Device::cpu(0)), "clones share the stream");
    }

    #[test]
    fn devices_differ_unless_they_are_the_first_of_their_kind_or_seeded_alike() {
        let streams = RandomStreams::new();
        streams.seed(3);
        let first = keys(&streams, Device::cpu(0));
        assert_eq!(keys(&streams, Device::accelerator(0)), first);
        let (second, third) = (keys(&streams, Device::cpu(1)), keys(&streams, Device::cpu(2)));
        assert!(first != second && second != third && first != third);
        assert_eq!(keys(&streams, Device::accelerator(1)), second);
        for device in [Device::cpu(0), Device::cpu(1), Device::accelerator(7)] {
            streams.seed_device(device, 3);
            assert_eq!(keys(&streams, device), first);
        }
        streams.seed(4);
        assert_ne!(keys(&streams, Device::cpu(1)), first, "one seed for all replaces each device's");
    }

    #[test]
    fn a_restored_state_goes_on_where_it_was() {
        let streams = RandomStreams::new();
        streams.seed(9);
        streams.seed_device(Device::accelerator(1), 2);
        let devices = [Device::cpu(0), Device::cpu(1), Device::accelerator(1), Device::pinned(4)];
        devices[..3].iter().for_each(|&device| drop(keys(&streams, device)));
        let saved = streams.state();
        let next = devices.map(|device| keys(&streams, device));
        let restored = RandomStreams::new();
        restored.seed(77);
        restored.set_state(saved.clone());
        assert_eq!(restored.state(), saved);
        assert_eq!(devices.map(|device| keys(&restored, device)), next);
    }

    #[test]
    fn entropy_gives_seeds_that_repeat_the_run() {
        let streams = RandomStreams::new();
        let seeds: Vec<u64> = (0..4).map(|_| streams.seed_from_entropy().unwrap()).collect();
        assert!(seeds.windows(2).all(|pair| pair[0] != pair[1]), "{seeds:?}");
        let drawn = keys(&streams, Device::cpu(3));
        streams.seed(seeds[3]);
        assert_eq!(keys(&streams, Device::cpu(3)), drawn);
    }

    #[test]
    fn threads_share_a_stream_without_repeating_a_key() {
        let streams = RandomStreams::new();
        let drawn = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| keys(&streams, Device::cpu(0)))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<std::collections::BTreeSet<_>>()
        });
        let expected = (0..32).map(|n| threefry2x32([0, 0], [n, 0])).collect();
        assert_eq!(drawn, expected);
    }
}
