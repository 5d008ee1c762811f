//! Placement of values on servers: small ones whole, large ones split evenly, by MXNet's rule.

use std::num::NonZeroU32;
use std::ops::Range;

/// Elements from which on MXNet splits a value.
pub(crate) const MIN_SPLIT_ELEMENTS: u64 = 1_000_000;

/// MXNet's multiplier of keys, a prime, which spreads neighbouring keys over the servers.
const SPREAD: i128 = 9973;

/// How values are placed on a group of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Number of servers.
    pub servers: NonZeroU32,
    /// Elements from which on a value is split over all servers.
    pub split_from: u64,
}

/// Elements of a value that one server keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueShard {
    /// The server.
    pub server: u32,
    /// The elements it keeps.
    pub elements: Range<u64>,
}

impl Placement {
    /// MXNet's placement on so many servers.
    pub fn new(servers: NonZeroU32) -> Placement {
        Placement { servers, split_from: MIN_SPLIT_ELEMENTS }
    }

    /// Where the elements of the value of a key lie, in order; no part is empty but that of an empty value.
    ///
    /// A value of fewer than `split_from` elements lies on the server `(key * 9973) mod servers`. Of a larger one, server
    /// `i` keeps the elements from `round(i * size / servers)` to `round((i + 1) * size / servers)`, where halves are
    /// rounded up. `key` is the integer of a number key itself, for a text key its position in the order of `init`.
    pub fn parts(&self, key: i64, size: u64) -> Vec<ValueShard> {
        if size == 0 || size < self.split_from {
            let server = (i128::from(key) * SPREAD).rem_euclid(self.servers.get().into());
            return vec![ValueShard { server: server as u32, elements: 0..size }];
        }
        let parts = (0..self.servers.get()).map(|server| ValueShard { server, elements: self.range(server, size) });
        parts.filter(|part| !part.elements.is_empty()).collect()
    }

    /// The elements that a server keeps of a value which is split.
    fn range(&self, server: u32, size: u64) -> Range<u64> {
        let servers = u128::from(self.servers.get());
        let border = |i: u32| ((2 * u128::from(i) * u128::from(size) + servers) / (2 * servers)) as u64;
        border(server)..border(server + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placement(servers: u32) -> Placement {
        Placement::new(NonZeroU32::new(servers).unwrap())
    }

    #[test]
    fn small_values_stay_whole() {
        for (key, servers, server) in
            [(0, 4, 0), (3, 1, 0), (3, 2, 1), (3, 4, 3), (7, 3, 1), (i64::MAX, 5, 1), (-1, 4, 3)]
        {
            assert_eq!(placement(servers).parts(key, 999_999), [ValueShard { server, elements: 0..999_999 }]);
        }
        assert_eq!(placement(4).parts(5, 0), [ValueShard { server: 1, elements: 0..0 }]);
    }

    #[test]
    fn large_values_are_split_evenly() {
        let ends = |servers| -> Vec<u64> {
            placement(servers).parts(99, 1200 * 1200).iter().map(|part| part.elements.end).collect()
        };
        assert_eq!(ends(1), [1_440_000]);
        assert_eq!(ends(2), [720_000, 1_440_000]);
        assert_eq!(ends(3), [480_000, 960_000, 1_440_000]);
        assert_eq!(ends(4), [360_000, 720_000, 1_080_000, 1_440_000]);
        assert_eq!(ends(5), [288_000, 576_000, 864_000, 1_152_000, 1_440_000]);
        assert_eq!(ends(6), [240_000, 480_000, 720_000, 960_000, 1_200_000, 1_440_000]);
        assert_eq!(ends(7), [205_714, 411_429, 617_143, 822_857, 1_028_571, 1_234_286, 1_440_000]);
        assert_eq!(ends(8), [180_000, 360_000, 540_000, 720_000, 900_000, 1_080_000, 1_260_000, 1_440_000]);
        assert_eq!(placement(2).parts(0, 1_000_001)[0].elements, 0..500_001);
    }

    #[test]
    fn more_servers_than_elements() {
        let few = Placement { split_from: 0, ..placement(5) };
        let parts = few.parts(0, 2);
        assert_eq!(parts, [ValueShard { server: 1, elements: 0..1 }, ValueShard { server: 3, elements: 1..2 }]);
    }

    proptest! {
        #[test]
        fn parts_cover_every_element_once(
            servers in 1_u32..300, key: i64, size in prop_oneof![0_u64..3_000_000, any::<u64>()], split_from in 0_u64..2_000_000,
        ) {
            let parts = Placement { split_from, ..placement(servers) }.parts(key, size);
            let mut end = 0;
            for part in &parts {
                prop_assert_eq!(part.elements.start, end);
                prop_assert!(part.server < servers);
                end = part.elements.end;
            }
            prop_assert_eq!(end, size);
            if parts.len() > 1 && size >= u64::from(servers) {
                let sizes = parts.iter().map(|part| part.elements.end - part.elements.start);
                let mean = size / u64::from(servers);
                prop_assert!(sizes.clone().min().unwrap() >= mean.saturating_sub(1));
                prop_assert!(sizes.max().unwrap() <= mean + 2);
                prop_assert!(parts.is_sorted_by_key(|part| part.server));
            }
        }
    }
}
