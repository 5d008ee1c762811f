//! Which register holds which value while straight-line code is written: a value stays in a register until the one is
//! needed whose value is used furthest ahead (Belady 1966).

use super::super::ValueId;

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    /// For the whole loop.
    Pinned,
    Value(ValueId),
    /// Within one instruction of the loop.
    Temporary,
}

/// A file of registers.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    held: Vec<Held>,
    /// Registers that the current instruction uses.
    locked: u64,
}

impl Registers {
    pub fn new(count: usize) -> Registers {
        Registers { held: vec![Held::Nothing; count], locked: 0 }
    }

    pub fn count(&self) -> usize {
        self.held.len()
    }

    pub fn set(&mut self, register: u8, held: Held) {
        self.held[register as usize] = held;
    }

    pub fn held(&self, register: u8) -> Held {
        self.held[register as usize]
    }

    pub fn lock(&mut self, register: u8) {
        self.locked |= 1 << register;
    }

    fn is_locked(&self, register: usize) -> bool {
        self.locked >> register & 1 == 1
    }

    pub fn free(&self) -> Option<u8> {
        (0..self.held.len()).find(|r| self.held[*r] == Held::Nothing && !self.is_locked(*r)).map(|r| r as u8)
    }

    /// The value that is best put elsewhere, and its register.
    pub fn victim(&self, next_use: impl Fn(ValueId) -> usize) -> Option<(u8, ValueId)> {
        let of = |(r, held): (usize, &Held)| match held {
            Held::Value(v) if !self.is_locked(r) => Some((r as u8, *v)),
            _ => None,
        };
        self.held.iter().enumerate().filter_map(of).max_by_key(|(r, v)| (next_use(*v), *r))
    }

    /// The end of an instruction.
    pub fn end(&mut self) {
        self.locked = 0;
        self.held.iter_mut().filter(|h| **h == Held::Temporary).for_each(|h| *h = Held::Nothing);
    }

    /// The end of straight-line code.
    pub fn clear(&mut self) {
        self.end();
        self.held.iter_mut().filter(|h| **h != Held::Pinned).for_each(|h| *h = Held::Nothing);
    }
}
