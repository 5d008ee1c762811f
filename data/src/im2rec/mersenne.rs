//! The Mersenne Twister as Python's `random` uses it, so that lists come in the same order.

use rand_mt::Mt;

pub struct Mersenne(Mt);

impl Mersenne {
    /// The generator that `random.seed` makes of a small number: initialised by an array of one word.
    pub fn new(seed: u32) -> Mersenne {
        Mersenne(Mt::new_with_key([seed]))
    }

    /// Uniform in `0..n` for `n` from 1 to 2³²-1: draws of as many bits as `n` has, until one is less.
    fn below(&mut self, n: u32) -> u32 {
        let shift = n.leading_zeros();
        loop {
            let draw = self.0.next_u32() >> shift;
            if draw < n {
                return draw;
            }
        }
    }

    /// Reorders items as `random.shuffle` does.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u32 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_python() {
        let mut items: Vec<u32> = (0..20).collect();
        Mersenne::new(100).shuffle(&mut items);
        assert_eq!(items, SHUFFLED_20);
        let mut many: Vec<u32> = (0..1000).collect();
        Mersenne::new(100).shuffle(&mut many);
        assert_eq!(many[..8], SHUFFLED_1000);
    }

    // random.seed(100); l = list(range(n)); random.shuffle(l)
    const SHUFFLED_20: [u32; 20] = [7, 15, 19, 0, 2, 3, 13, 9, 10, 17, 1, 8, 6, 16, 11, 12, 5, 18, 14, 4];
    const SHUFFLED_1000: [u32; 8] = [342, 471, 929, 100, 543, 231, 154, 450];
}
