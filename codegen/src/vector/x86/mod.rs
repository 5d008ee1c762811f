//! The function of a [`VectorLoop`] for x86-64: its frame, its loops, what stays in registers from one iteration to the
//! next. `select` writes the instructions of the loop's body.
//!
//! Arguments are words at the address in RDI ([`ArgumentWords`]). RAX counts elements or iterations, RCX those that are
//! left, RDX is free, and the others hold pointers.

mod assembler;
mod casts;
mod division;
mod inner;
mod memory;
mod opcode;
mod pool;
mod registers;
mod select;
mod table;
mod transpose;
mod values;
mod wide;

use tensorc_abi::DType;
use tensorc_ir::scalar::Scalar;
use tensorc_schedule::target::VectorLevel;

use self::assembler::{Assembler, Condition, Gpr, Memory, Prefix, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
use self::inner::GeneralRegisters;
use self::pool::ConstantPool;
use self::registers::{Held, Registers};
use self::values::carrier_bits;
use super::{ArgumentWords, LoopForm, Op, ValueId, VectorCode, VectorLoop, carrier_bytes, unroll, vector_lanes};

/// Registers for pointers, then offsets and counters of inner loops. Those from the given one on belong to the caller.
const GENERAL: [Gpr; 11] = [RSI, 8, 9, 10, 11, RBX, RBP, 12, 13, 14, 15];
const FIRST_SAVED: usize = 5;
/// Registers that stay free for what the body computes: beside constants, and at least.
const WORKING: usize = 10;
const FEWEST_WORKING: usize = 6;
/// The mask of the last vector, of AVX-512.
const TAIL_MASK: u8 = 7;
/// Bytes of a slot for a value that has no register.
const SLOT: i32 = 64;

/// Where a value is.
#[derive(Clone, Copy, Debug, Default)]
struct Home {
    register: Option<u8>,
    slot: Option<u32>,
}

/// A function being written.
struct Writer<'l> {
    l: &'l VectorLoop,
    level: VectorLevel,
    general: GeneralRegisters,
    asm: Assembler,
    pool: ConstantPool,
    /// Elements that the body computes at once.
    lanes: u32,
    vectors: Registers,
    /// Of masks, with AVX-512.
    masks: Registers,
    homes: Vec<Home>,
    /// Registers of values that stay for the whole loop.
    pinned: Vec<Option<u8>>,
    /// The first register of each accumulator.
    accumulators: Vec<u8>,
    /// Positions of the instructions that use a value, ascending.
    uses: Vec<Vec<usize>>,
    /// Bytes of the elements of masks that are vectors, with AVX2.
    mask_bytes: Vec<u32>,
    slots: u32,
    /// The instruction being written.
    at: usize,
    /// Which vector of an iteration the body computes, or the first of those that it computes together.
    chunk: u32,
    /// How many vectors of an iteration the body computes.
    together: u32,
    /// Inner loops that are open.
    inner: Vec<inner::OpenLoop>,
    /// The registers of masks that cut off the last vector, for elements of 32 and of 64 bits.
    cut: Option<[u8; 2]>,
    /// With AVX-512: registers with the orders of every second element of two vectors, by bytes of an element.
    orders: Vec<((memory::EverySecond, u32), u8)>,
    /// With AVX-512: pointers to tables of bytes, and the first of the registers that hold each.
    tables: Vec<(u32, u8)>,
}

pub(super) fn compile(l: &VectorLoop, level: VectorLevel) -> Option<VectorCode> {
    if GeneralRegisters::of(l).len() > GENERAL.len() {
        return None;
    }
    let most = vector_lanes(&l.code, level);
    let lanes = if l.form == LoopForm::ElementsTo { most } else { most.min(l.lanes) };
    if lanes < 4 {
        return None;
    }
    let times = unroll::worth(l, lanes);
    // Where registers are too few, fewer vectors at a time.
    [4, 2, 1].into_iter().filter(|n| *n <= times).find_map(|times| function(l, level, lanes, times))
}

/// The function that computes so many vectors at a time as long as there are as many.
fn function(l: &VectorLoop, level: VectorLevel, lanes: u32, times: u32) -> Option<VectorCode> {
    let iterations = l.form == LoopForm::Iterations;
    let together = if iterations { times } else { 1 };
    let body = unroll::unrolled(l, together, lanes);
    let mut writer = Writer::new(&body, level, lanes);
    writer.together = together;
    let frame = writer.open();
    let mut slots = 0;
    if times > 1 && !iterations {
        let several = unroll::unrolled(l, times, lanes);
        let mut first = Writer::new(&several, level, lanes);
        (first.asm, first.pool) = (writer.asm, writer.pool);
        first.load_accumulators()?;
        first.pin();
        first.vectors(times)?;
        slots = first.slots;
        (writer.asm, writer.pool) = (first.asm, first.pool);
    }
    writer.load_accumulators()?;
    writer.pin();
    match l.rows {
        Some(_) => writer.rows()?,
        None => writer.elements()?,
    }
    for join in &l.joins {
        writer = writer.joined(join)?;
    }
    writer.store_accumulators();
    writer.close(frame, slots);
    let (bytes, entry) = writer.pool.before(&writer.asm.code);
    Some(VectorCode { bytes, entry })
}

impl<'l> Writer<'l> {
    fn new(l: &'l VectorLoop, level: VectorLevel, lanes: u32) -> Writer<'l> {
        let n = l.code.len();
        let mut uses = vec![vec![]; n];
        for (at, i) in l.code.iter().enumerate() {
            for v in i.op.operands() {
                uses[v as usize].push(at);
            }
        }
        inner::extend_lives(&l.code, &mut uses);
        let count = if level == VectorLevel::Avx512 { 32 } else { 16 };
        let mut masks = Registers::new(8);
        [0, TAIL_MASK].into_iter().for_each(|k| masks.set(k, Held::Pinned));
        Writer {
            l,
            level,
            general: GeneralRegisters::of(l),
            asm: Assembler::default(),
            pool: ConstantPool::default(),
            lanes,
            vectors: Registers::new(count),
            masks,
            homes: vec![Home::default(); n],
            pinned: vec![None; n],
            accumulators: vec![],
            uses,
            mask_bytes: vec![4; n],
            slots: 0,
            at: 0,
            chunk: 0,
            together: 1,
            inner: vec![],
            cut: None,
            orders: vec![],
            tables: vec![],
        }
    }

    fn prefix(&self) -> Prefix {
        if self.is_512() { Prefix::Evex } else { Prefix::Vex }
    }

    fn is_512(&self) -> bool {
        self.level == VectorLevel::Avx512
    }

    /// Bytes of a vector of a type.
    fn vector_bytes(&self, dtype: DType) -> u32 {
        self.lanes * carrier_bytes(dtype)
    }

    fn argument(&self, word: usize, bytes: u32) -> Memory {
        Memory::at(RDI, 8 * word as i32, bytes)
    }

    /// Registers of the caller's that the function uses.
    fn saved(&self) -> &'static [Gpr] {
        &GENERAL[FIRST_SAVED..self.general.len().max(FIRST_SAVED)]
    }

    /// The beginning of the function; where the size of its frame is to go.
    fn open(&mut self) -> usize {
        self.saved().iter().for_each(|r| self.asm.push(*r));
        self.asm.sub(RSP, 0);
        let frame = self.asm.position() - 4;
        for (i, register) in GENERAL.iter().enumerate().take(self.l.pointers.len()) {
            let word = self.argument(ArgumentWords::pointer(i), 8);
            self.asm.load(*register, &word);
        }
        let count = self.argument(ArgumentWords::COUNT, 8);
        self.asm.load(RCX, &count);
        self.asm.set(RAX, 0);
        frame
    }

    /// The end of the function, of which another part has had so many slots.
    fn close(&mut self, frame: usize, slots: u32) {
        let bytes = self.slots.max(slots) as i32 * SLOT;
        self.asm.put(frame, bytes);
        self.asm.add(RSP, bytes);
        self.saved().iter().rev().for_each(|r| self.asm.pop(*r));
        self.asm.leave();
    }

    fn elements(&mut self) -> Option<()> {
        match self.l.form {
            LoopForm::Iterations => self.iterations(),
            LoopForm::Elements => self.vectors(1),
            LoopForm::ElementsTo => {
                self.vectors(1)?;
                self.rest()
            }
        }
    }

    /// Goes over rows of elements.
    fn rows(&mut self) -> Option<()> {
        let left = GENERAL[self.general.len() - 1];
        let rows = self.argument(ArgumentWords::ROWS, 8);
        self.asm.load(left, &rows);
        self.asm.compare(left, 0);
        let none = self.asm.jump(Condition::LessOrEqual);
        let start = self.asm.position();
        let count = self.argument(ArgumentWords::COUNT, 8);
        self.asm.load(RCX, &count);
        self.asm.set(RAX, 0);
        self.elements()?;
        self.bump(|p| p.per_row)?;
        self.asm.sub(left, 1);
        self.asm.jump_back(Condition::Greater, start);
        self.asm.land(&none);
        Some(())
    }

    /// Goes over elements as long as there are so many vectors of them, which the body computes at a time.
    fn vectors(&mut self, times: u32) -> Option<()> {
        let elements = (self.lanes * times) as i32;
        self.asm.compare(RCX, elements);
        let short = self.asm.jump(Condition::Less);
        let start = self.asm.position();
        self.body(0)?;
        self.asm.add(RAX, elements);
        if self.bumps() {
            self.bump(|p| p.per_lane * i64::from(elements))?;
        }
        self.asm.sub(RCX, elements);
        self.asm.compare(RCX, elements);
        self.asm.jump_back(Condition::GreaterOrEqual, start);
        self.asm.land(&short);
        Some(())
    }

    /// What is left of the elements, less than a vector.
    fn rest(&mut self) -> Option<()> {
        self.asm.compare(RCX, 0);
        let done = self.asm.jump(Condition::LessOrEqual);
        self.cut = Some(self.cut_masks()?);
        self.body(0)?;
        self.asm.land(&done);
        Some(())
    }

    fn iterations(&mut self) -> Option<()> {
        self.asm.compare(RCX, 0);
        let none = self.asm.jump(Condition::LessOrEqual);
        let start = self.asm.position();
        for chunk in (0..self.l.lanes / self.lanes).step_by(self.together as usize) {
            self.body(chunk)?;
        }
        self.bump(|p| p.advance)?;
        self.asm.add(RAX, 1);
        self.asm.sub(RCX, 1);
        self.asm.jump_back(Condition::Greater, start);
        self.asm.land(&none);
        Some(())
    }

    /// Whether pointers move; else RAX says how far the loop is.
    fn bumps(&self) -> bool {
        let far = |p: &super::Pointer| p.per_lane * p.bytes > super::MAX_INDEX_SCALE;
        self.l.form == LoopForm::Iterations || !self.l.loops.is_empty() || self.l.pointers.iter().any(far)
    }

    /// Moves pointers by so many elements.
    fn bump(&mut self, by: impl Fn(&super::Pointer) -> i64) -> Option<()> {
        for (p, register) in self.l.pointers.iter().zip(GENERAL) {
            let advance = i32::try_from(by(p).checked_mul(p.bytes)?).ok()?;
            if advance != 0 {
                self.asm.add(register, advance);
            }
        }
        Some(())
    }

    /// Reads accumulators into registers that they keep.
    fn load_accumulators(&mut self) -> Option<()> {
        let count = self.own_accumulators();
        for (i, a) in self.l.accumulators.iter().enumerate().take(count) {
            if a.dtype == DType::Bool {
                return None;
            }
            let vectors = if a.local { 1 } else { self.l.lanes / self.lanes };
            let first = self.pin_next(vectors, FEWEST_WORKING)?;
            self.accumulators.push(first);
            match a.initial {
                _ if a.local => {}
                Some(c) => self.splat_accumulator(i, c),
                None => self.each_accumulator(i, true),
            }
        }
        // Each vector computed together has the next register of an accumulator.
        for copy in 1..self.together as u8 {
            let beside: Vec<u8> = self.accumulators[..count].iter().map(|first| first + copy).collect();
            self.accumulators.extend(beside);
        }
        Some(())
    }

    /// Number of accumulators of the loop. The copies of the vectors computed together follow them, in registers of these.
    fn own_accumulators(&self) -> usize {
        self.l.accumulators.len() / self.together as usize
    }

    fn store_accumulators(&mut self) {
        for i in 0..self.own_accumulators() {
            let a = &self.l.accumulators[i];
            if !a.local && a.needed > 0 {
                self.each_accumulator(i, false);
            }
        }
    }

    /// Reads or writes the vectors of an accumulator.
    fn each_accumulator(&mut self, i: usize, read: bool) {
        let word = self.argument(ArgumentWords::accumulator(self.l, i), 8);
        self.asm.load(RDX, &word);
        let bytes = self.vector_bytes(self.l.accumulators[i].dtype);
        let lanes = if read { self.l.lanes } else { self.l.accumulators[i].needed.min(self.l.lanes) };
        for chunk in 0..lanes.div_ceil(self.lanes) {
            let register = self.accumulators[i] + chunk as u8;
            let memory = Memory::at(RDX, (chunk * bytes) as i32, bytes);
            if read {
                self.load_pieces(register, memory);
            } else {
                self.write(opcode::STORE, bytes, register, 0, assembler::Source::Memory(memory));
            }
        }
    }

    /// Sets all elements of an accumulator.
    fn splat_accumulator(&mut self, i: usize, c: Scalar) {
        let element = carrier_bytes(c.dtype);
        let from = self.splat(carrier_bits(c), element);
        let first = self.accumulators[i];
        self.load_splat(first, element, from);
        for chunk in 1..self.l.lanes / self.lanes {
            self.copy(self.lanes * element, first + chunk as u8, first);
        }
    }

    /// Computes with accumulators behind the loop.
    fn joined(mut self, join: &VectorLoop) -> Option<Writer<'l>> {
        let mut part = Writer::new(join, self.level, self.lanes);
        for a in &join.accumulators {
            let of = self.l.accumulators.iter().position(|of| of.buf == a.buf && of.first == 0)?;
            part.accumulators.push(self.accumulators[of] + (a.first as u32 / self.lanes) as u8);
        }
        part.vectors = self.vectors.clone();
        (part.asm, part.pool) = (self.asm, self.pool);
        for chunk in 0..join.lanes / self.lanes {
            part.body(chunk)?;
        }
        self.slots = self.slots.max(part.slots);
        (self.asm, self.pool) = (part.asm, part.pool);
        Some(self)
    }

    /// Reads what was written in pieces of 16 bytes just before: only loads of such pieces need not wait until memory has
    /// them.
    fn load_pieces(&mut self, register: u8, memory: Memory) {
        for piece in 0..memory.bytes / 16 {
            let part = Memory { offset: memory.offset + 16 * piece as i32, bytes: 16, ..memory };
            let source = assembler::Source::Memory(part);
            match piece {
                0 => self.write(opcode::LOAD, 16, register, 0, source),
                _ => self.write_with(opcode::INSERT, memory.bytes, register, register, source, Some(piece as u8)),
            }
        }
    }

    /// Sets neighbouring registers apart; `None` if too few would be left.
    fn pin_next(&mut self, count: u32, working: usize) -> Option<u8> {
        let first = self.vectors.free()?;
        if first as usize + count as usize + working > self.vectors.count() {
            return None;
        }
        (first..first + count as u8).for_each(|r| self.vectors.set(r, Held::Pinned));
        Some(first)
    }

    /// Keeps constants and uniform values in registers, those that are used most first.
    fn pin(&mut self) {
        self.pin_orders();
        self.pin_tables();
        let fixed = |op: &Op| matches!(op, Op::Const(_) | Op::Uniform(_));
        let mut values: Vec<ValueId> = (0..self.l.code.len() as ValueId)
            .filter(|v| {
                let i = &self.l.code[*v as usize];
                fixed(&i.op) && i.dtype != DType::Bool && !self.uses[*v as usize].is_empty()
            })
            .collect();
        values.sort_by_key(|v| (std::cmp::Reverse(self.uses[*v as usize].len()), *v));
        for v in values {
            let Some(register) = self.pin_next(1, WORKING) else { break };
            if self.load_fixed(v, register).is_some() {
                self.pinned[v as usize] = Some(register);
            }
        }
    }
}
