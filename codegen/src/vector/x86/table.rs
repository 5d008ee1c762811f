//! Tables of 256 bytes in registers of AVX-512, each word of four bytes an element: a permutation finds the word, a shift the
//! byte.

use tensorc_abi::DType;

use super::super::{Op, ValueId};
use super::assembler::{Base, Memory, Source};
use super::opcode as op;
use super::{GENERAL, WORKING, Writer};

/// Bytes of a vector register.
const VECTOR: u32 = 64;
/// Registers of a table.
const REGISTERS: u32 = 4;

impl Writer<'_> {
    /// Keeps tables in registers.
    pub(super) fn pin_tables(&mut self) {
        for at in 0..self.l.code.len() {
            let Op::Lookup { pointer, .. } = self.l.code[at].op else { continue };
            if !self.is_512() || self.tables.iter().any(|(known, _)| *known == pointer) {
                continue;
            }
            let Some(first) = self.pin_next(REGISTERS, WORKING) else { return };
            for part in 0..REGISTERS {
                let memory = Memory {
                    base: Base::Register(GENERAL[pointer as usize]),
                    index: None,
                    offset: (part * VECTOR) as i32,
                    bytes: VECTOR,
                    splat: false,
                };
                self.write(op::LOAD, VECTOR, first + part as u8, 0, Source::Memory(memory));
            }
            self.tables.push((pointer, first));
        }
    }

    /// Elements of a table at the positions that a vector of u8 says.
    pub(super) fn look_up(&mut self, v: ValueId, pointer: u32, from: DType, position: ValueId) -> Option<()> {
        let (_, first) = *self.tables.iter().find(|(known, _)| *known == pointer)?;
        let bytes = self.lanes * 4;
        if bytes != VECTOR {
            return None;
        }
        let at = self.register(position)?;
        let (word, other, upper) = (self.define(v)?, self.temporary()?, self.temporary_mask()?);
        // Each pair of registers has half of the words.
        let half = self.splat(0x80, 4);
        self.write(op::TEST, bytes, upper, at, half);
        for (half, target) in [word, other].into_iter().enumerate() {
            self.write_with(op::SHIFT, bytes, op::SHIFT_RIGHT, target, Source::Register(at), Some(2));
            let table = first + 2 * half as u8;
            self.write(op::PERMUTE_AT, bytes, target, table, Source::Register(table + 1));
        }
        self.write_masked(op::BLEND_MASKED, bytes, (word, word, Source::Register(other)), (upper, false));
        let within = self.splat(24, 4);
        self.write_with(op::SHIFT, bytes, op::SHIFT_LEFT, other, Source::Register(at), Some(3));
        self.write(op::AND, bytes, other, other, within);
        self.write(op::SHIFT_RIGHT_BY, bytes, word, word, Source::Register(other));
        match from {
            DType::I8 => {
                self.shift(bytes, word, op::SHIFT_LEFT, 24);
                self.shift(bytes, word, op::SHIFT_ARITHMETIC, 24);
            }
            _ => {
                let low = self.splat(0xff, 4);
                self.write(op::AND, bytes, word, word, low);
            }
        }
        Some(())
    }
}
