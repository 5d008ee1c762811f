//! The Mersenne Twister as Python's `random` uses it, so that lists come in the same order.
//!
//! Matsumoto and Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform pseudorandom number
//! generator", 1998.

const WORDS: usize = 624;
const MIDDLE: usize = 397;

pub struct Mersenne {
    state: [u32; WORDS],
    at: usize,
}

impl Mersenne {
    /// The generator that `random.seed` makes of a small number: initialised by an array of one word.
    pub fn new(seed: u32) -> Mersenne {
        let mut state = [0u32; WORDS];
        state[0] = 19_650_218;
        for i in 1..WORDS {
            let last = state[i - 1];
            state[i] = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        let mut i = 1;
        let mut step = |state: &mut [u32; WORDS], factor: u32, add: &dyn Fn(usize) -> u32| {
            let last = state[i - 1];
            state[i] = (state[i] ^ (last ^ last >> 30).wrapping_mul(factor)).wrapping_add(add(i));
            i += 1;
            if i == WORDS {
                state[0] = state[WORDS - 1];
                i = 1;
            }
        };
        (0..WORDS).for_each(|_| step(&mut state, 1_664_525, &|_| seed));
        (1..WORDS).for_each(|_| step(&mut state, 1_566_083_941, &|i| (i as u32).wrapping_neg()));
        state[0] = 1 << 31;
        Mersenne { state, at: WORDS }
    }

    fn word(&mut self) -> u32 {
        if self.at == WORDS {
            for i in 0..WORDS {
                let both = self.state[i] & 1 << 31 | self.state[(i + 1) % WORDS] & 0x7FFF_FFFF;
                let twist = if both & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.state[i] = self.state[(i + MIDDLE) % WORDS] ^ both >> 1 ^ twist;
            }
            self.at = 0;
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9D2C_5680;
        word ^= word << 15 & 0xEFC6_0000;
        word ^ word >> 18
    }

    /// Uniform in `0..n` for `n` from 1 to 2³²-1: draws of as many bits as `n` has, until one is less.
    fn below(&mut self, n: u32) -> u32 {
        let shift = n.leading_zeros();
        loop {
            let draw = self.word() >> shift;
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
