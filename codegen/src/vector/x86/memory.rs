//! Vectors read from memory and written to it, in types narrower than a register's too, and cut off at the end of a
//! loop.

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;

use super::super::{LoopForm, Place, ValueId, carrier_bytes};
use super::assembler::{Base, Memory, RAX, RCX, RDX, Source};
use super::opcode::{self as op, Opcode};
use super::values::carrier_bits;
use super::{GENERAL, TAIL_MASK, Writer};

impl Writer<'_> {
    /// Where the elements of a place are.
    fn memory(&self, place: &Place) -> Option<Memory> {
        let size = place.dtype.size() as i64;
        let by_lane = self.l.pointers[place.pointer as usize].by_lane;
        let elements = if by_lane { self.lanes } else { 1 };
        let ahead = match self.l.form {
            LoopForm::Iterations if by_lane => i64::from(self.chunk * self.lanes),
            _ => 0,
        };
        let moving = by_lane && !self.bumps();
        let inner = place.moving.map(|offset| (self.offset_register(offset), 1));
        Some(Memory {
            base: Base::Register(GENERAL[place.pointer as usize]),
            index: inner.or(moving.then_some((RAX, size as u8))),
            offset: i32::try_from((place.offset + ahead) * size).ok()?,
            bytes: elements * size as u32,
            splat: false,
        })
    }

    /// Masks that hold for the elements that are left.
    pub(super) fn cut_masks(&mut self) -> Option<[u8; 2]> {
        if self.is_512() {
            self.asm.set(RDX, -1);
            // The low bits of RDX, as many as RCX says.
            let i = super::assembler::Instruction {
                opcode: op::LOW_BITS,
                bytes: 16,
                target: RDX,
                second: RCX,
                source: Source::Register(RDX),
                immediate: None,
                mask: 0,
                zero: false,
            };
            self.asm.vector(super::Prefix::Vex, &i);
            self.write_mask(op::MASK_OF_GENERAL, TAIL_MASK, 0, RDX);
            return Some([TAIL_MASK; 2]);
        }
        let wide = self.l.code.iter().any(|i| i.dtype != DType::Bool && carrier_bytes(i.dtype) == 8);
        let narrow = self.cut_vector(4)?;
        Some([narrow, if wide { self.cut_vector(8)? } else { narrow }])
    }

    /// With AVX2, such a mask for elements of so many bytes.
    fn cut_vector(&mut self, element: u32) -> Option<u8> {
        let register = self.pin_next(1, super::FEWEST_WORKING)?;
        let positions = (0..u64::from(self.lanes)).flat_map(|i| i.to_le_bytes()[..element as usize].to_vec());
        let positions: Vec<u8> = positions.collect();
        let (offset, bytes) = (self.pool.offset(&positions), positions.len() as u32);
        let positions = Source::Memory(Memory { base: Base::Code, index: None, offset, bytes, splat: false });
        self.write(op::MOVE_GENERAL.wide(true), 16, register, 0, Source::Register(RCX));
        let (splat, greater) = match element {
            8 => (op::SPLAT_INT_WIDE, op::GREATER_WIDE),
            _ => (op::SPLAT_INT, op::GREATER),
        };
        self.write(splat, bytes, register, 0, Source::Register(register));
        self.write(greater, bytes, register, register, positions);
        Some(register)
    }

    /// The mask that cuts off the last vector of a type.
    fn cut(&self, dtype: DType) -> Option<u8> {
        self.cut.map(|cut| cut[usize::from(carrier_bytes(dtype) == 8)])
    }

    /// Reads a vector, a narrower type into lanes of 32 bits. `mask`: which elements are read; the others are 0.
    fn read(&mut self, target: u8, place: &Place, mask: Option<u8>) -> Option<()> {
        let memory = self.memory(place)?;
        let (bytes, wide) = (self.vector_bytes(place.dtype), place.dtype.size() == 8);
        let opcode = match place.dtype {
            DType::Bool | DType::U8 => op::EXTEND_U8,
            DType::I8 => op::EXTEND_I8,
            DType::U16 | DType::F16 | DType::BF16 => op::EXTEND_U16,
            DType::I16 => op::EXTEND_I16,
            _ => op::LOAD,
        };
        match mask {
            None => self.write(opcode, bytes, target, 0, Source::Memory(memory)),
            Some(k) if self.is_512() => {
                let opcode = if opcode == op::LOAD { opcode.double(wide) } else { opcode };
                self.write_masked(opcode, bytes, (target, 0, Source::Memory(memory)), (k, true));
            }
            Some(mask) if opcode == op::LOAD => {
                let opcode = Opcode { byte: if wide { 0x2d } else { 0x2c }, ..op::LOAD_MASKED };
                self.write(opcode, bytes, target, mask, Source::Memory(memory));
            }
            Some(_) => return None,
        }
        Some(())
    }

    pub(super) fn load(&mut self, v: ValueId, place: &Place, guard: Option<(ValueId, Scalar)>) -> Option<()> {
        if !self.l.pointers[place.pointer as usize].by_lane {
            return self.load_one(v, place);
        }
        let (mut mask, mut fill) = (self.cut(place.dtype), None);
        if let Some((condition, value)) = guard {
            mask = Some(self.guard(condition, place.dtype)?);
            fill = Some(value).filter(|value| value.bits != 0);
        }
        if place.dtype == DType::Bool {
            // Where nothing is read it is false.
            if fill.is_some() {
                return None;
            }
            let target = self.temporary()?;
            self.read(target, place, mask)?;
            return self.nonzero(v, target, self.lanes * 4);
        }
        let target = self.define(v)?;
        self.read(target, place, mask)?;
        if let Some(fill) = fill {
            let mask = mask?;
            let (bytes, wide) = (self.vector_bytes(place.dtype), carrier_bytes(place.dtype) == 8);
            let filled = self.splat(carrier_bits(fill), carrier_bytes(place.dtype));
            if self.is_512() {
                let inverse = self.temporary_mask()?;
                self.write_mask(op::MASK_NOT, inverse, 0, mask);
                let blend = op::BLEND_MASKED.wide(wide);
                self.write_masked(blend, bytes, (target, target, filled), (inverse, false));
            } else {
                let other = self.temporary()?;
                self.write(op::LOAD, bytes, other, 0, filled);
                let opcode = Opcode { byte: if wide { 0x4b } else { 0x4a }, ..op::BLEND };
                let source = Source::Register(target);
                self.write_with(opcode, bytes, target, other, source, Some(mask << 4));
            }
        }
        Some(())
    }

    /// The mask of a guard, cut off at the end of the loop.
    fn guard(&mut self, condition: ValueId, dtype: DType) -> Option<u8> {
        if self.is_512() {
            let k = self.mask(condition)?;
            let Some(cut) = self.cut(dtype) else { return Some(k) };
            let both = self.temporary_mask()?;
            self.write_mask(op::MASK_AND, both, k, cut);
            return Some(both);
        }
        if dtype.size() < 4 || self.mask_bytes[condition as usize] != carrier_bytes(dtype) {
            return None;
        }
        let mask = self.register(condition)?;
        let Some(cut) = self.cut(dtype) else { return Some(mask) };
        let both = self.temporary()?;
        self.write(op::AND, self.vector_bytes(dtype), both, mask, Source::Register(cut));
        Some(both)
    }

    /// Reads one element for all lanes.
    fn load_one(&mut self, v: ValueId, place: &Place) -> Option<()> {
        let memory = self.memory(place)?;
        let opcode = match (place.dtype.size(), self.is_512()) {
            (4, _) => op::SPLAT,
            (8, true) => op::SPLAT_WIDE.wide(true),
            (8, false) => op::SPLAT_WIDE,
            _ => return None,
        };
        let target = self.define(v)?;
        self.write(opcode, self.vector_bytes(place.dtype), target, 0, Source::Memory(memory));
        Some(())
    }

    pub(super) fn load_half(&mut self, v: ValueId, place: &Place, from: DType) -> Option<()> {
        if !self.l.pointers[place.pointer as usize].by_lane {
            return None;
        }
        let (bytes, cut) = (self.lanes * 4, self.cut(from));
        let target = self.define(v)?;
        if from == DType::BF16 {
            self.read(target, place, cut)?;
            self.shift(bytes, target, op::SHIFT_LEFT, 16);
            return Some(());
        }
        let memory = Source::Memory(self.memory(place)?);
        match cut {
            None => self.write(op::F32_OF_F16, bytes, target, 0, memory),
            Some(k) if self.is_512() => {
                self.write_masked(op::F32_OF_F16, bytes, (target, 0, memory), (k, true));
            }
            Some(_) => return None,
        }
        Some(())
    }

    pub(super) fn store(&mut self, place: &Place, value: ValueId) -> Option<()> {
        let dtype = place.dtype;
        let (memory, bytes) = (Source::Memory(self.memory(place)?), self.vector_bytes(dtype));
        if dtype == DType::Bool {
            let ones = self.temporary()?;
            self.ones(ones, value, 1, 4)?;
            return self.store_narrow(place, ones);
        }
        let from = self.register(value)?;
        let wide = dtype.size() == 8;
        match self.cut(dtype) {
            _ if dtype.size() < 4 => return self.store_narrow(place, from),
            None => self.write(op::STORE, bytes, from, 0, memory),
            Some(k) if self.is_512() => {
                self.write_masked(op::STORE.double(wide), bytes, (from, 0, memory), (k, false));
            }
            Some(mask) => {
                let opcode = Opcode { byte: if wide { 0x2f } else { 0x2e }, ..op::STORE_MASKED };
                self.write(opcode, bytes, from, mask, memory);
            }
        }
        Some(())
    }

    /// Writes the low bits of lanes of 32 bits.
    fn store_narrow(&mut self, place: &Place, from: u8) -> Option<()> {
        let (memory, bytes) = (Source::Memory(self.memory(place)?), self.lanes * 4);
        let short = place.dtype.size() == 2;
        if self.is_512() {
            let opcode = if short { op::TRUNCATE_TO_16 } else { op::TRUNCATE_TO_8 };
            self.write_masked(opcode, bytes, (from, 0, memory), (self.cut(place.dtype).unwrap_or(0), false));
            return Some(());
        }
        if self.cut.is_some() {
            return None;
        }
        let packed = self.packed(from, if short { 0xffff } else { 0xff })?;
        if short {
            self.write(op::STORE, 16, packed, 0, memory);
        } else {
            self.write(op::PACK_U8, 16, packed, packed, Source::Register(packed));
            self.write(op::STORE_LOW, 16, packed, 0, memory);
        }
        Some(())
    }

    /// With AVX2: the low bits of eight lanes of 32 bits, 16 bits each.
    pub(super) fn packed(&mut self, from: u8, mask: u64) -> Option<u8> {
        if self.lanes != 8 {
            return None;
        }
        let packed = self.temporary()?;
        let mask = self.splat(mask, 4);
        self.write(op::AND, 32, packed, from, mask);
        self.write(op::PACK_U16, 32, packed, packed, Source::Register(packed));
        // Each half was packed by itself.
        self.write_with(op::PERMUTE_WIDE, 32, packed, 0, Source::Register(packed), Some(0b1000));
        Some(packed)
    }

    pub(super) fn store_half(&mut self, place: &Place, value: ValueId) -> Option<()> {
        let (memory, bytes) = (Source::Memory(self.memory(place)?), self.lanes * 4);
        let from = self.register(value)?;
        if self.cut.is_some() && !self.is_512() {
            return None;
        }
        let i = super::assembler::Instruction {
            opcode: op::F16_OF_F32,
            bytes,
            target: from,
            second: 0,
            source: memory,
            // To nearest, halves to even.
            immediate: Some(0),
            mask: self.cut(DType::F16).unwrap_or(0),
            zero: false,
        };
        let prefix = self.prefix();
        self.asm.vector(prefix, &i);
        Some(())
    }
}
