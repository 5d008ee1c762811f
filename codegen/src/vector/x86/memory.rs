//! Vectors read from memory and written to it, in types narrower than a register's too, and cut off at the end of a
//! loop.

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;

use super::super::{LoopForm, Op, Place, ValueId, carrier_bytes};
use super::assembler::{Base, Memory, RAX, RCX, RDX, Source};
use super::opcode::{self as op, Opcode};
use super::values::carrier_bits;
use super::{GENERAL, TAIL_MASK, Writer};

/// Which elements of two vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EverySecond {
    /// From the first one on, where the second vector begins with the last element of the first one.
    Overlapping,
    /// From the first one on, or the second, where the second vector follows the first one.
    Even,
    Odd,
}

impl Writer<'_> {
    /// Where the elements of a place are.
    pub(super) fn memory(&self, place: &Place) -> Option<Memory> {
        let size = place.dtype.size() as i64;
        let per_lane = self.per_lane(place);
        let elements = if per_lane != 0 { self.lanes } else { 1 };
        let ahead = match self.l.form {
            LoopForm::Iterations => i64::from(self.chunk * self.lanes) * per_lane,
            _ => 0,
        };
        let moving = per_lane != 0 && !self.bumps();
        let inner = place.moving.map(|offset| (self.offset_register(offset), 1));
        Some(Memory {
            base: Base::Register(GENERAL[place.pointer as usize]),
            index: inner.or(moving.then_some((RAX, (size * per_lane) as u8))),
            offset: i32::try_from((place.offset + ahead) * size).ok()?,
            bytes: elements * size as u32,
            splat: false,
        })
    }

    /// How far the elements of neighbouring lanes lie apart.
    pub(super) fn per_lane(&self, place: &Place) -> i64 {
        self.l.pointers[place.pointer as usize].per_lane
    }

    /// Masks that hold for the elements that are left.
    pub(super) fn cut_masks(&mut self) -> Option<[u8; 2]> {
        let masks = if self.is_512() {
            self.low_bits(TAIL_MASK, 0);
            [TAIL_MASK; 2]
        } else {
            let wide = self.l.code.iter().any(|i| i.dtype != DType::Bool && carrier_bytes(i.dtype) == 8);
            let [narrow, other] =
                [true, wide].map(|is| if is { self.pin_next(1, super::FEWEST_WORKING) } else { None });
            self.first_lanes(narrow?, 4, 0);
            if let Some(other) = other {
                self.first_lanes(other, 8, 0);
            }
            [narrow?, if wide { other? } else { narrow? }]
        };
        if self.is_strided() {
            // How many elements the lanes that are left reach over.
            self.asm.copy(RDX, RCX);
            self.asm.add_register(RCX, RDX);
            self.asm.sub(RCX, 1);
        }
        Some(masks)
    }

    /// With AVX-512: a mask of as many elements as RCX says, less the first ones.
    fn low_bits(&mut self, mask: u8, first: u8) {
        self.asm.set(RDX, -1);
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
        if first > 0 {
            self.asm.shift_right(RDX, first);
        }
        self.write_mask(op::MASK_OF_GENERAL, mask, 0, RDX);
    }

    /// With AVX2, such a mask for elements of so many bytes, in a vector register.
    fn first_lanes(&mut self, register: u8, element: u32, first: u32) {
        let positions = self.by_lane(element, |lane| i64::from(first + lane));
        let bytes = self.lanes * element;
        self.write(op::MOVE_GENERAL.wide(true), 16, register, 0, Source::Register(RCX));
        let (splat, greater) = match element {
            8 => (op::SPLAT_INT_WIDE, op::GREATER_WIDE),
            _ => (op::SPLAT_INT, op::GREATER),
        };
        self.write(splat, bytes, register, 0, Source::Register(register));
        self.write(greater, bytes, register, register, positions);
    }

    /// Whether lanes read every second element somewhere.
    fn is_strided(&self) -> bool {
        self.l.pointers.iter().any(|p| p.per_lane > 1)
    }

    /// With AVX-512: keeps the orders in registers by which every second element is chosen.
    pub(super) fn pin_orders(&mut self) {
        for at in 0..self.l.code.len() {
            let Op::Load { place, .. } = self.l.code[at].op else { continue };
            if self.per_lane(&place) != 2 || !self.is_512() {
                continue;
            }
            let pair = self.other_half(at, &place).is_some();
            let all = if pair { &[EverySecond::Even, EverySecond::Odd][..] } else { &[EverySecond::Overlapping] };
            for which in all {
                let key = (*which, carrier_bytes(place.dtype));
                if self.orders.iter().all(|(known, _)| *known != key)
                    && let Some(register) = self.pin_next(1, super::WORKING)
                {
                    self.load_order(key, register);
                    self.orders.push((key, register));
                }
            }
        }
    }

    fn load_order(&mut self, (which, element): (EverySecond, u32), register: u8) {
        let lanes = self.lanes;
        let from = |lane: u32| match which {
            EverySecond::Overlapping if 2 * lane < lanes => 2 * lane,
            EverySecond::Even => 2 * lane,
            _ => 2 * lane + 1,
        };
        let order = self.by_lane(element, |lane| i64::from(from(lane)));
        self.write(op::LOAD, lanes * element, register, 0, order);
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
        match self.per_lane(place) {
            0 => return self.load_one(v, place),
            1 => {}
            2 => return self.load_strided(v, place),
            _ => return self.load_four(v, place),
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

    /// Reads every second element of two vectors; together with what a later instruction reads of them.
    fn load_strided(&mut self, v: ValueId, place: &Place) -> Option<()> {
        if place.dtype == DType::Bool {
            return None;
        }
        let home = self.homes[v as usize];
        if home.register.is_some() || home.slot.is_some() {
            // An earlier instruction has read it.
            return Some(());
        }
        let other = self.other_half(self.at, place).filter(|_| self.cut.is_none());
        let target = self.define(v)?;
        let Some(other) = other else {
            // The second vector begins with the last element of the first one: nothing is read behind the last lane's.
            let mask = self.strided_mask(place.dtype, 0)?;
            self.read(target, place, mask)?;
            let high = self.vector_behind(place, self.lanes - 1)?;
            return self.every_second(target, high, place.dtype, EverySecond::Overlapping);
        };
        self.read(target, place, None)?;
        let high = self.vector_behind(place, self.lanes)?;
        let odd = self.define(other)?;
        self.copy(self.vector_bytes(place.dtype), odd, target);
        self.every_second(target, high, place.dtype, EverySecond::Even)?;
        self.every_second(odd, high, place.dtype, EverySecond::Odd)
    }

    /// The later instruction that reads the elements that lie between those which the instruction at a position reads.
    fn other_half(&self, at: usize, place: &Place) -> Option<ValueId> {
        let next = Op::Load { place: Place { offset: place.offset + 1, ..*place }, guard: None };
        let later = self.l.code.iter().enumerate().skip(at + 1).take_while(|(_, i)| !i.op.acts());
        let other = later.into_iter().find(|(_, i)| i.op == next).map(|(other, _)| other as ValueId)?;
        // The instruction before may have read it already.
        self.homes[other as usize].register.is_none().then_some(other)
    }

    /// The vector so many elements behind a place.
    fn vector_behind(&mut self, place: &Place, elements: u32) -> Option<u8> {
        let place = Place { offset: place.offset + i64::from(elements), ..*place };
        let mask = self.strided_mask(place.dtype, elements)?;
        let high = self.temporary()?;
        self.read(high, &place, mask)?;
        Some(high)
    }

    /// Every second element of the target and of another vector, in the target.
    fn every_second(&mut self, target: u8, high: u8, dtype: DType, which: EverySecond) -> Option<()> {
        let (element, bytes, high) = (carrier_bytes(dtype), self.vector_bytes(dtype), Source::Register(high));
        let wide = element == 8;
        if self.is_512() {
            let key = (which, element);
            let order = match self.orders.iter().find(|(known, _)| *known == key) {
                Some((_, register)) => *register,
                None => {
                    let register = self.temporary()?;
                    self.load_order(key, register);
                    register
                }
            };
            self.write(op::PERMUTE_TWO.wide(wide), bytes, target, order, high);
            return Some(());
        }
        let order = match (which, wide) {
            (EverySecond::Overlapping, false) => 0b11_01_10_00,
            (EverySecond::Overlapping, true) => 0b1010,
            (EverySecond::Even, false) => 0b10_00_10_00,
            (EverySecond::Even, true) => 0,
            (EverySecond::Odd, false) => 0b11_01_11_01,
            (EverySecond::Odd, true) => 0b1111,
        };
        self.write_with(op::SHUFFLE.double(wide), bytes, target, target, high, Some(order));
        if bytes == 32 {
            // Each half was shuffled by itself.
            self.write_with(op::PERMUTE_WIDE, bytes, target, 0, Source::Register(target), Some(0b11_01_10_00));
        }
        Some(())
    }

    /// The mask of the elements that are read from the given one on where the last vector is cut off.
    fn strided_mask(&mut self, dtype: DType, first: u32) -> Option<Option<u8>> {
        if self.cut.is_none() {
            return Some(None);
        }
        let mask = if self.is_512() { self.temporary_mask()? } else { self.temporary()? };
        match self.is_512() {
            true => self.low_bits(mask, first as u8),
            false => self.first_lanes(mask, carrier_bytes(dtype), first),
        }
        Some(Some(mask))
    }

    pub(super) fn load_half(&mut self, v: ValueId, place: &Place, from: DType) -> Option<()> {
        if self.per_lane(place) != 1 {
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
