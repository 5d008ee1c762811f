//! Values of a loop: how instructions are written, and in which registers and slots the values are.

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;

use super::super::{ArgumentWords, Op, ValueId, carrier_bytes};
use super::assembler::{Base, Instruction, Memory, RSP, Source};
use super::opcode::{self as op, Opcode};
use super::registers::Held;
use super::{SLOT, Writer};

/// The bits of a constant in its carrier.
pub(super) fn carrier_bits(c: Scalar) -> u64 {
    if c.dtype.is_signed_int() { c.as_i64() as u64 } else { c.bits }
}

/// Slots of a frame, which must not be larger than the part of the stack that is known to be there.
const MAX_SLOTS: u32 = 48;

impl Writer<'_> {
    pub(super) fn is_used_later(&self, v: ValueId) -> bool {
        self.uses[v as usize].last().is_some_and(|last| *last > self.at)
    }

    fn next_use(&self, v: ValueId) -> usize {
        self.uses[v as usize].iter().copied().find(|at| *at >= self.at).unwrap_or(usize::MAX)
    }

    pub(super) fn dtype(&self, v: ValueId) -> DType {
        self.l.code[v as usize].dtype
    }

    /// The constant that a value is.
    pub(super) fn constant(&self, v: ValueId) -> Option<Scalar> {
        match &self.l.code[v as usize].op {
            Op::Const(c) => Some(*c),
            _ => None,
        }
    }

    pub(super) fn is_fixed(&self, v: ValueId) -> bool {
        matches!(self.l.code[v as usize].op, Op::Const(_) | Op::Uniform(_))
    }

    pub(super) fn write(&mut self, opcode: Opcode, bytes: u32, target: u8, second: u8, source: Source) {
        self.write_with(opcode, bytes, target, second, source, None);
    }

    pub(super) fn write_with(
        &mut self,
        opcode: Opcode,
        bytes: u32,
        target: u8,
        second: u8,
        source: Source,
        immediate: Option<u8>,
    ) {
        let i = Instruction { opcode, bytes, target, second, source, immediate, mask: 0, zero: false };
        self.asm.vector(self.prefix(), &i);
    }

    /// With AVX-512: writes elements where the mask holds; the others become 0 or stay.
    pub(super) fn write_masked(
        &mut self,
        opcode: Opcode,
        bytes: u32,
        (target, second, source): (u8, u8, Source),
        (mask, zero): (u8, bool),
    ) {
        let i = Instruction { opcode, bytes, target, second, source, immediate: None, mask, zero };
        self.asm.vector(self.prefix(), &i);
    }

    /// An operation of masks of AVX-512, on 16 of their bits.
    pub(super) fn write_mask(&mut self, opcode: Opcode, target: u8, second: u8, source: u8) {
        let bytes = if opcode == op::MASK_NOT || opcode == op::MASK_OF_GENERAL { 16 } else { 32 };
        let source = Source::Register(source);
        let i = Instruction { opcode, bytes, target, second, source, immediate: None, mask: 0, zero: false };
        self.asm.vector(super::Prefix::Vex, &i);
    }

    pub(super) fn copy(&mut self, bytes: u32, target: u8, from: u8) {
        if target != from {
            self.write(op::LOAD, bytes, target, 0, Source::Register(from));
        }
    }

    /// An element with the given bits as an operand that stands for all lanes.
    pub(super) fn splat(&mut self, bits: u64, element: u32) -> Source {
        let one = &bits.to_le_bytes()[..element as usize];
        let lanes = if self.is_512() { 1 } else { 32 / element as usize };
        let offset = self.pool.offset(&one.repeat(lanes));
        let (bytes, splat) = if self.is_512() { (element, true) } else { (self.lanes * element, false) };
        Source::Memory(Memory { base: Base::Code, index: None, offset, bytes, splat })
    }

    /// A vector with an element for each lane.
    pub(super) fn by_lane(&mut self, bytes: u32, element: impl Fn(u32) -> i64) -> Source {
        let of = |lane| element(lane).to_le_bytes().into_iter().take(bytes as usize);
        let mut bytes: Vec<u8> = (0..self.lanes).flat_map(of).collect();
        bytes.resize(bytes.len().next_power_of_two(), 0);
        let offset = self.pool.offset(&bytes);
        Source::Memory(Memory { base: Base::Code, index: None, offset, bytes: bytes.len() as u32, splat: false })
    }

    /// Loads one element into all lanes.
    pub(super) fn load_splat(&mut self, target: u8, element: u32, from: Source) {
        let from = match from {
            Source::Memory(m) => Source::Memory(Memory { bytes: element, splat: false, ..m }),
            register => register,
        };
        let opcode = match (element, self.is_512()) {
            (4, _) => op::SPLAT,
            (_, true) => op::SPLAT_WIDE.wide(true),
            (_, false) => op::SPLAT_WIDE,
        };
        self.write(opcode, self.lanes * element, target, 0, from);
    }

    /// A free register; the value that is used furthest ahead makes room.
    fn acquire(&mut self) -> Option<u8> {
        let register = match self.vectors.free() {
            Some(register) => register,
            None => self.spill_one()?,
        };
        self.vectors.lock(register);
        Some(register)
    }

    /// Puts the value that is used furthest ahead elsewhere; its register.
    pub(super) fn spill_one(&mut self) -> Option<u8> {
        let (register, v) = self.vectors.victim(|v| self.next_use(v))?;
        if !self.is_fixed(v) && self.is_needed(v) && self.homes[v as usize].slot.is_none() {
            let slot = self.slots_in_use();
            if slot == MAX_SLOTS {
                return None;
            }
            self.homes[v as usize].slot = Some(slot);
            self.slots = self.slots.max(slot + 1);
            let bytes = self.bytes_of(v);
            self.write(op::STORE, bytes, register, 0, Source::Memory(slot_memory(slot, bytes)));
        }
        self.drop_value(register);
        Some(register)
    }

    /// Empties a register.
    pub(super) fn drop_value(&mut self, register: u8) {
        if let Held::Value(v) = self.vectors.held(register) {
            self.homes[v as usize].register = None;
        }
        self.vectors.set(register, Held::Nothing);
    }

    fn is_needed(&self, v: ValueId) -> bool {
        self.next_use(v) != usize::MAX
    }

    /// The first slot that no value has.
    fn slots_in_use(&self) -> u32 {
        self.homes.iter().filter_map(|h| h.slot).max().map_or(0, |slot| slot + 1)
    }

    /// Bytes of the register of a value; with AVX2, a mask has elements of some width.
    pub(super) fn bytes_of(&self, v: ValueId) -> u32 {
        match self.dtype(v) {
            DType::Bool => self.lanes * self.mask_bytes[v as usize],
            dtype => self.vector_bytes(dtype),
        }
    }

    pub(super) fn temporary(&mut self) -> Option<u8> {
        let register = self.acquire()?;
        self.vectors.set(register, Held::Temporary);
        Some(register)
    }

    /// A register for a result.
    pub(super) fn define(&mut self, v: ValueId) -> Option<u8> {
        let register = self.acquire()?;
        self.own(v, register);
        Some(register)
    }

    fn own(&mut self, v: ValueId, register: u8) {
        self.vectors.set(register, Held::Value(v));
        self.vectors.lock(register);
        self.homes[v as usize].register = Some(register);
    }

    /// The register of a value.
    pub(super) fn register(&mut self, v: ValueId) -> Option<u8> {
        if let Some(register) = self.homes[v as usize].register {
            self.vectors.lock(register);
            return Some(register);
        }
        let register = self.acquire()?;
        match self.homes[v as usize].slot {
            Some(slot) => {
                let bytes = self.bytes_of(v);
                self.write(op::LOAD, bytes, register, 0, Source::Memory(slot_memory(slot, bytes)));
            }
            None if self.is_fixed(v) => self.load_fixed(v, register)?,
            None => return None,
        }
        self.own(v, register);
        Some(register)
    }

    /// A value as the last operand of an instruction.
    pub(super) fn source(&mut self, v: ValueId) -> Option<Source> {
        let home = self.homes[v as usize];
        match (&self.l.code[v as usize].op, home.register, home.slot) {
            (_, None, Some(slot)) => Some(Source::Memory(slot_memory(slot, self.bytes_of(v)))),
            (Op::Const(c), None, None) if c.dtype != DType::Bool => {
                Some(self.splat(carrier_bits(*c), carrier_bytes(c.dtype)))
            }
            _ => self.register(v).map(Source::Register),
        }
    }

    /// The value in a register that the instruction may overwrite, and that becomes that of the result.
    pub(super) fn take(&mut self, v: ValueId, result: ValueId) -> Option<u8> {
        let from = self.register(v)?;
        if self.is_takable(v) {
            self.homes[v as usize].register = None;
            self.own(result, from);
            return Some(from);
        }
        let register = self.define(result)?;
        self.copy(self.bytes_of(v), register, from);
        Some(register)
    }

    /// Whether nothing needs a value behind this instruction.
    pub(super) fn is_takable(&self, v: ValueId) -> bool {
        let register = self.homes[v as usize].register;
        let own = register.is_some_and(|r| self.vectors.held(r) == Held::Value(v));
        own && !self.is_used_later(v) && self.uses[v as usize].iter().filter(|at| **at == self.at).count() == 1
    }

    /// Loads a constant or a uniform value into a register.
    pub(super) fn load_fixed(&mut self, v: ValueId, register: u8) -> Option<()> {
        let dtype = self.dtype(v);
        let element = carrier_bytes(dtype);
        match self.l.code[v as usize].op {
            Op::Const(c) if dtype == DType::Bool => {
                let bits = if c.as_bool() { u64::MAX } else { 0 };
                let bytes = self.lanes * 4;
                let from = self.splat(bits, 4);
                self.write(op::LOAD, bytes, register, 0, from);
            }
            Op::Const(c) => {
                let from = self.splat(carrier_bits(c), element);
                self.load_splat(register, element, from);
            }
            Op::Uniform(i) => {
                let word = self.argument(ArgumentWords::uniform(self.l, i as usize), element);
                self.load_splat(register, element, Source::Memory(word));
                if dtype == DType::Bool {
                    let from = self.splat(0, 4);
                    self.write(op::GREATER, self.lanes * 4, register, register, from);
                }
            }
            _ => return None,
        }
        Some(())
    }

    pub(super) fn define_mask(&mut self, v: ValueId) -> Option<u8> {
        let k = self.masks.free()?;
        self.masks.set(k, Held::Value(v));
        self.masks.lock(k);
        self.homes[v as usize].register = Some(k);
        Some(k)
    }

    pub(super) fn temporary_mask(&mut self) -> Option<u8> {
        let k = self.masks.free()?;
        self.masks.set(k, Held::Temporary);
        self.masks.lock(k);
        Some(k)
    }

    pub(super) fn mask(&mut self, v: ValueId) -> Option<u8> {
        if let Some(k) = self.homes[v as usize].register {
            self.masks.lock(k);
            return Some(k);
        }
        match self.l.code[v as usize].op {
            Op::Const(c) => {
                let k = self.define_mask(v)?;
                self.write_mask(if c.as_bool() { op::MASK_XNOR } else { op::MASK_XOR }, k, k, k);
                Some(k)
            }
            Op::Uniform(i) => {
                let k = self.define_mask(v)?;
                let register = self.temporary()?;
                let word = self.argument(ArgumentWords::uniform(self.l, i as usize), 4);
                self.load_splat(register, 4, Source::Memory(word));
                self.write(op::TEST, self.lanes * 4, k, register, Source::Register(register));
                Some(k)
            }
            _ => None,
        }
    }
}

fn slot_memory(slot: u32, bytes: u32) -> Memory {
    Memory::at(RSP, slot as i32 * SLOT, bytes)
}
