//! Encodings of x86-64: vector instructions with the prefixes VEX and EVEX, and the few others that loops need.

use super::opcode::Opcode;

/// A general register, by its number.
pub(super) type Gpr = u8;

pub(super) const RAX: Gpr = 0;
pub(super) const RCX: Gpr = 1;
pub(super) const RDX: Gpr = 2;
pub(super) const RBX: Gpr = 3;
pub(super) const RSP: Gpr = 4;
pub(super) const RBP: Gpr = 5;
pub(super) const RSI: Gpr = 6;
pub(super) const RDI: Gpr = 7;

/// What an address counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    Register(Gpr),
    /// The beginning of the code.
    Code,
}

/// An operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub base: Base,
    /// A register and what it is multiplied by: 1, 2, 4 or 8.
    pub index: Option<(Gpr, u8)>,
    pub offset: i32,
    /// How many bytes are read or written.
    pub bytes: u32,
    /// One element stands for all.
    pub splat: bool,
}

impl Memory {
    pub fn at(base: Gpr, offset: i32, bytes: u32) -> Memory {
        Memory { base: Base::Register(base), index: None, offset, bytes, splat: false }
    }
}

/// The last operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Register(u8),
    Memory(Memory),
}

/// A vector instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub opcode: Opcode,
    /// Bytes of the vectors: 16, 32 or 64.
    pub bytes: u32,
    /// The target, or what a store writes.
    pub target: u8,
    /// The operand between target and source; 0 if there is none.
    pub second: u8,
    pub source: Source,
    pub immediate: Option<u8>,
    /// The mask by which elements are written; 0: all are.
    pub mask: u8,
    /// Whether the others become 0.
    pub zero: bool,
}

/// How vector instructions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Vex,
    Evex,
}

/// A jump whose target is not known yet.
#[derive(Debug)]
pub(super) struct Jump(usize);

/// Conditions of jumps: signed, after a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    Less = 0xc,
    GreaterOrEqual = 0xd,
    LessOrEqual = 0xe,
    Greater = 0xf,
}

/// Code being written.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pub code: Vec<u8>,
}

impl Assembler {
    fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    pub fn position(&self) -> usize {
        self.code.len()
    }

    pub fn vector(&mut self, prefix: Prefix, i: &Instruction) {
        let (x, b) = match i.source {
            // A fifth bit of a register is where the index register's fourth one is else.
            Source::Register(r) => (r >> 4 & 1, r >> 3 & 1),
            Source::Memory(m) => {
                let base = if let Base::Register(base) = m.base { base } else { 0 };
                (m.index.map_or(0, |(index, _)| index) >> 3 & 1, base >> 3 & 1)
            }
        };
        let (r, op) = (i.target >> 3 & 1, i.opcode);
        match prefix {
            Prefix::Vex => self.vex(i, (r, x, b)),
            Prefix::Evex => {
                let length = match i.bytes {
                    16 => 0,
                    32 => 1,
                    _ => 2,
                };
                let splat = matches!(i.source, Source::Memory(m) if m.splat);
                self.bytes(&[
                    0x62,
                    (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (i.target >> 4 & 1 ^ 1) << 4 | op.map,
                    u8::from(op.wide) << 7 | (!i.second & 15) << 3 | 1 << 2 | op.prefix,
                    u8::from(i.zero) << 7 | length << 5 | u8::from(splat) << 4 | (i.second >> 4 & 1 ^ 1) << 3 | i.mask,
                ]);
                self.bytes(&[op.byte]);
            }
        }
        match i.source {
            Source::Register(source) => self.bytes(&[0xc0 | (i.target & 7) << 3 | source & 7]),
            Source::Memory(m) => {
                let unit = if prefix == Prefix::Evex { m.bytes.max(1) as i32 } else { 1 };
                self.memory(i.target, &m, unit, u32::from(i.immediate.is_some()));
            }
        }
        self.code.extend(i.immediate);
    }

    fn vex(&mut self, i: &Instruction, (r, x, b): (u8, u8, u8)) {
        let op = i.opcode;
        let last = (!i.second & 15) << 3 | u8::from(i.bytes == 32) << 2 | op.prefix;
        // The short form has no room for these.
        if x | b == 0 && !op.wide && op.map == 1 {
            self.bytes(&[0xc5, (r ^ 1) << 7 | last, op.byte]);
        } else {
            let first = (r ^ 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | op.map;
            self.bytes(&[0xc4, first, u8::from(op.wide) << 7 | last, op.byte]);
        }
    }

    /// Register field and address. Short offsets count in units; `behind` bytes follow.
    fn memory(&mut self, register: u8, m: &Memory, unit: i32, behind: u32) {
        let register = (register & 7) << 3;
        let Base::Register(base) = m.base else {
            let end = self.code.len() as i64 + 5 + i64::from(behind);
            self.bytes(&[register | 5]);
            self.bytes(&((i64::from(m.offset) - end) as i32).to_le_bytes());
            return;
        };
        let short = i8::try_from(m.offset / unit).ok().filter(|_| m.offset % unit == 0);
        // Without an offset, register 5 would mean another form.
        let mode = match short {
            Some(0) if base & 7 != 5 => 0,
            Some(_) => 0x40,
            None => 0x80,
        };
        match m.index {
            None if base & 7 != 4 => self.bytes(&[mode | register | base & 7]),
            None => self.bytes(&[mode | register | 4, 4 << 3 | base & 7]),
            Some((index, scale)) => {
                let scale = scale.trailing_zeros() as u8;
                self.bytes(&[mode | register | 4, scale << 6 | (index & 7) << 3 | base & 7]);
            }
        }
        match (mode, short) {
            (0x40, Some(short)) => self.bytes(&[short as u8]),
            (0x80, _) => self.bytes(&m.offset.to_le_bytes()),
            _ => {}
        }
    }

    /// An instruction on 64 bits of a general register and memory.
    fn general(&mut self, byte: u8, register: Gpr, m: &Memory) {
        let base = if let Base::Register(base) = m.base { base } else { 0 };
        self.bytes(&[0x48 | (register >> 3 & 1) << 2 | base >> 3 & 1, byte]);
        self.memory(register, m, 1, 0);
    }

    pub fn load(&mut self, register: Gpr, m: &Memory) {
        self.general(0x8b, register, m);
    }

    /// Copies 64 bits.
    pub fn copy(&mut self, to: Gpr, from: Gpr) {
        self.bytes(&[0x48 | (from >> 3 & 1) << 2 | to >> 3 & 1, 0x89, 0xc0 | (from & 7) << 3 | to & 7]);
    }

    pub fn add_register(&mut self, to: Gpr, from: Gpr) {
        self.bytes(&[0x48 | (from >> 3 & 1) << 2 | to >> 3 & 1, 0x01, 0xc0 | (from & 7) << 3 | to & 7]);
    }

    /// Shifts 64 bits, in zeros.
    pub fn shift_right(&mut self, register: Gpr, by: u8) {
        self.bytes(&[0x48 | register >> 3 & 1, 0xc1, 0xe8 | register & 7, by]);
    }

    fn immediate(&mut self, field: u8, register: Gpr, value: i32) {
        self.bytes(&[0x48 | register >> 3 & 1, 0x81, 0xc0 | field << 3 | register & 7]);
        self.bytes(&value.to_le_bytes());
    }

    pub fn add(&mut self, register: Gpr, value: i32) {
        self.immediate(0, register, value);
    }

    pub fn sub(&mut self, register: Gpr, value: i32) {
        self.immediate(5, register, value);
    }

    pub fn compare(&mut self, register: Gpr, value: i32) {
        self.immediate(7, register, value);
    }

    /// Sets 32 bits, and clears the others.
    pub fn set(&mut self, register: Gpr, value: i32) {
        if register > 7 {
            self.bytes(&[0x41]);
        }
        self.bytes(&[0xb8 | register & 7]);
        self.bytes(&value.to_le_bytes());
    }

    pub fn push(&mut self, register: Gpr) {
        if register > 7 {
            self.bytes(&[0x41]);
        }
        self.bytes(&[0x50 | register & 7]);
    }

    pub fn pop(&mut self, register: Gpr) {
        if register > 7 {
            self.bytes(&[0x41]);
        }
        self.bytes(&[0x58 | register & 7]);
    }

    /// Clears the upper halves of vector registers, without which older instructions are slow, and returns.
    pub fn leave(&mut self) {
        self.bytes(&[0xc5, 0xf8, 0x77, 0xc3]);
    }

    pub fn jump(&mut self, condition: Condition) -> Jump {
        self.bytes(&[0x0f, 0x80 | condition as u8, 0, 0, 0, 0]);
        Jump(self.code.len())
    }

    pub fn jump_back(&mut self, condition: Condition, to: usize) {
        let jump = self.jump(condition);
        self.patch(&jump, to);
    }

    /// Lets a jump lead to here.
    pub fn land(&mut self, jump: &Jump) {
        let here = self.code.len();
        self.patch(jump, here);
    }

    fn patch(&mut self, jump: &Jump, to: usize) {
        let distance = to as i64 - jump.0 as i64;
        self.put(jump.0 - 4, distance as i32);
    }

    /// Overwrites four bytes.
    pub fn put(&mut self, at: usize, value: i32) {
        self.code[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}
