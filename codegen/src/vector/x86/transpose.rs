//! Lanes that lie far apart, of which four neighbours are read each: blocks of four by four are transposed in registers.

use tensorc_abi::DType;

use super::super::{Op, Place, ValueId, carrier_bytes};
use super::Writer;
use super::assembler::{Memory, Source};
use super::opcode as op;

/// Neighbours that are read together, and lanes in 128 bits.
const FOUR: usize = 4;

impl Writer<'_> {
    /// Reads four neighbours of each lane, of which there are a multiple of four: what an instruction reads, and three later ones.
    pub(super) fn load_four(&mut self, v: ValueId, place: &Place) -> Option<()> {
        let home = self.homes[v as usize];
        if home.register.is_some() || home.slot.is_some() {
            // An earlier instruction has read it.
            return Some(());
        }
        if self.cut.is_some() || place.dtype == DType::Bool || place.dtype.size() != 4 {
            return None;
        }
        let mut values = [v; FOUR];
        for (ahead, value) in values.iter_mut().enumerate().skip(1) {
            *value = self.neighbour(place, ahead as i64)?;
        }
        let mut four = [0; FOUR];
        for (register, value) in four.iter_mut().zip(values) {
            *register = self.define(value)?;
        }
        let per_lane = self.per_lane(place);
        let bytes = self.lanes * carrier_bytes(place.dtype);
        // Lane 4·i + j is the i-th quarter of the register j.
        for lane in 0..self.lanes as usize {
            let (part, register) = (lane / FOUR, four[lane % FOUR]);
            let at = Place { offset: place.offset + lane as i64 * per_lane, ..*place };
            let source = Source::Memory(Memory { bytes: 16, ..self.memory(&at)? });
            match part {
                0 => self.write(op::LOAD, 16, register, 0, source),
                _ => self.write_with(op::INSERT, bytes, register, register, source, Some(part as u8)),
            }
        }
        self.transpose(bytes, four)
    }

    /// The later instruction that reads the elements so many behind a place, if nothing is written between.
    fn neighbour(&self, place: &Place, ahead: i64) -> Option<ValueId> {
        let buf = |p: &Place| self.l.pointers[p.pointer as usize].buf;
        let writes =
            |o: &Op| matches!(o, Op::Store { place: p, .. } | Op::StoreHalf { place: p, .. } if buf(p) == buf(place));
        let wanted = Op::Load { place: Place { offset: place.offset + ahead, ..*place }, guard: None };
        let later = self.l.code.iter().enumerate().skip(self.at + 1).take_while(|(_, i)| !writes(&i.op));
        later.into_iter().find(|(_, i)| i.op == wanted).map(|(at, _)| at as ValueId)
    }

    /// Transposes the block of four by four elements in each 128 bits of four registers.
    fn transpose(&mut self, bytes: u32, [a, b, c, d]: [u8; FOUR]) -> Option<()> {
        let (low, high) = (self.temporary()?, self.temporary()?);
        let pairs = [op::UNPACK_LOW, op::UNPACK_HIGH];
        let [by_low, by_high] = pairs.map(|opcode| opcode.double(true));
        self.write(pairs[0], bytes, low, a, Source::Register(b));
        self.write(pairs[1], bytes, b, a, Source::Register(b));
        self.write(pairs[0], bytes, high, c, Source::Register(d));
        self.write(pairs[1], bytes, d, c, Source::Register(d));
        self.write(by_low, bytes, a, low, Source::Register(high));
        self.write(by_low, bytes, c, b, Source::Register(d));
        self.write(by_high, bytes, d, b, Source::Register(d));
        self.write(by_high, bytes, b, low, Source::Register(high));
        Some(())
    }
}
