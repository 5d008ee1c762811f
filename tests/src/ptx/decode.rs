//! Statements as steps: names become slots, labels positions. What moves memory or threads is decoded in `decode_memory` and
//! `decode_warp`.

use std::collections::BTreeMap;

use super::Fault;
use super::alu::{Function, function};
use super::convert::Conversion;
use super::op::{At, List, Op, Param, Program, Slot, SlotKind, Space, Special, Step};
use super::text::{EntryText, Instruction, Item, ModuleText, Operand, Variable};
use super::types::{Type, low};

/// Where variables of shared memory begin: not at 0, which no address may be taken for.
pub(super) const SHARED_START: u64 = 1024;

pub(super) struct Decoder {
    pub program: Program,
    scopes: Vec<Scope>,
    labels: BTreeMap<(usize, String), u32>,
    constants: BTreeMap<u64, Slot>,
    variables: BTreeMap<String, u64>,
    opened: usize,
    line: u32,
    used: Vec<Slot>,
}

#[derive(Default)]
struct Scope {
    number: usize,
    registers: BTreeMap<String, Slot>,
}

pub(super) fn decode(module: &ModuleText, entry: &EntryText) -> Result<Program, Fault> {
    let program = Program {
        params: vec![],
        slots: vec![],
        lists: vec![],
        steps: vec![],
        uses: vec![],
        shared: SHARED_START,
        local: 0,
        granules: [16; 2],
        threads: entry.threads,
    };
    let mut decoder = Decoder {
        program,
        scopes: vec![Scope::default()],
        labels: BTreeMap::new(),
        constants: BTreeMap::new(),
        variables: BTreeMap::new(),
        opened: 0,
        line: 0,
        used: vec![],
    };
    decoder.parameters(&entry.params);
    let own = entry.body.iter().filter_map(|item| if let Item::Variable(v) = item { Some(v) } else { None });
    // Dynamic memory stands last.
    let (fixed, dynamic): (Vec<_>, Vec<_>) = module.variables.iter().chain(own).partition(|v| v.bytes > 0);
    fixed.into_iter().chain(dynamic).for_each(|v| decoder.variable(v));
    decoder.find_labels(&entry.body);
    for item in &entry.body {
        decoder.item(item)?;
    }
    Ok(decoder.program)
}

impl Decoder {
    fn parameters(&mut self, params: &[Variable]) {
        let mut end = 0u64;
        for v in params {
            let offset = end.next_multiple_of(v.align);
            self.variables.insert(v.name.clone(), offset);
            self.program.params.push(Param { offset, bytes: v.bytes, align: v.align });
            end = offset + v.bytes;
        }
    }

    fn variable(&mut self, v: &Variable) {
        let end = if v.space == "shared" { &mut self.program.shared } else { &mut self.program.local };
        *end = end.next_multiple_of(v.align);
        self.variables.insert(v.name.clone(), *end);
        *end += v.bytes;
    }

    /// Labels belong to the braces they stand in; those are numbered as they open.
    fn find_labels(&mut self, body: &[Item]) {
        let (mut open, mut opened, mut at) = (vec![0], 0, 0);
        for item in body {
            match item {
                Item::Open => {
                    opened += 1;
                    open.push(opened);
                }
                Item::Close => drop(open.pop()),
                Item::Label(name) => {
                    self.labels.insert((open.last().copied().unwrap_or(0), name.clone()), at);
                }
                Item::Instruction(_) => at += 1,
                _ => {}
            }
        }
    }

    fn item(&mut self, item: &Item) -> Result<(), Fault> {
        match item {
            Item::Open => {
                self.opened += 1;
                self.scopes.push(Scope { number: self.opened, ..Scope::default() });
            }
            Item::Close => drop(self.scopes.pop()),
            Item::Registers(class, name, count) => self.declare(class, name, *count)?,
            Item::Label(_) | Item::Variable(_) => {}
            Item::Instruction(instruction) => {
                self.line = instruction.line;
                self.used.clear();
                let guard = match &instruction.guard {
                    Some((name, negated)) => Some((self.source(&Operand::Name(name.clone()), Type::Pred)?, *negated)),
                    None => None,
                };
                let op = self.op(instruction)?;
                let used = std::mem::take(&mut self.used);
                let uses = self.list(&used);
                self.program.uses.push(uses);
                self.program.steps.push(Step { op, guard, line: instruction.line });
            }
        }
        Ok(())
    }

    fn declare(&mut self, class: &str, name: &str, count: Option<u32>) -> Result<(), Fault> {
        let Some(ty) = Type::parse(class) else { return self.fail(format!("registers of `.{class}` are not known")) };
        let names = match count {
            Some(count) => (0..count).map(|i| format!("{name}{i}")).collect(),
            None => vec![name.to_owned()],
        };
        for name in names {
            let slot = self.slot(SlotKind::Register { bits: ty.bits() });
            if let Some(scope) = self.scopes.last_mut() {
                scope.registers.insert(name, slot);
            }
        }
        Ok(())
    }

    pub fn fail<T>(&self, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::at(self.line, why))
    }

    /// For operands that do not fit their instruction.
    pub fn misfit<T>(&self) -> Result<T, Fault> {
        self.fail("the operands are not those of the instruction")
    }

    pub fn unknown<T>(&self) -> Result<T, Fault> {
        self.fail("the instruction is not known")
    }

    fn slot(&mut self, kind: SlotKind) -> Slot {
        self.program.slots.push(kind);
        self.program.slots.len() as Slot - 1
    }

    pub fn list(&mut self, slots: &[Slot]) -> List {
        let first = self.program.lists.len() as u32;
        self.program.lists.extend_from_slice(slots);
        List { first, count: slots.len() as u32 }
    }

    pub fn constant(&mut self, value: u64) -> Slot {
        if let Some(slot) = self.constants.get(&value) {
            return *slot;
        }
        let slot = self.slot(SlotKind::Constant(value));
        self.constants.insert(value, slot);
        slot
    }

    fn register(&self, name: &str) -> Option<(Slot, u32)> {
        let slot = *self.scopes.iter().rev().find_map(|scope| scope.registers.get(name))?;
        match self.program.slots[slot as usize] {
            SlotKind::Register { bits } => Some((slot, bits)),
            _ => None,
        }
    }

    fn special(&mut self, name: &str) -> Option<Slot> {
        let special = match name {
            "%tid.x" => Special::Thread,
            "%ntid.x" => Special::Threads,
            "%ctaid.x" => Special::Block,
            "%nctaid.x" => Special::Blocks,
            "%laneid" => Special::Lane,
            "%warpid" => Special::Warp,
            "%tid.y" | "%tid.z" | "%ctaid.y" | "%ctaid.z" => return Some(self.constant(0)),
            "%ntid.y" | "%ntid.z" | "%nctaid.y" | "%nctaid.z" => return Some(self.constant(1)),
            _ => return None,
        };
        Some(self.slot(SlotKind::Special(special)))
    }

    /// An operand that is read, and the bits of its register; of anything else those asked for.
    pub fn source_of(&mut self, operand: &Operand, bits: u32) -> Result<(Slot, u32), Fault> {
        match operand {
            Operand::Number(value) => Ok((self.constant(low(bits, *value)), bits)),
            Operand::Name(name) => {
                if let Some((slot, own)) = self.register(name) {
                    self.used.push(slot);
                    return Ok((slot, own));
                }
                if let Some(slot) = self.special(name) {
                    return Ok((slot, bits));
                }
                match self.variables.get(name).copied() {
                    Some(address) => Ok((self.constant(address), bits)),
                    None => self.fail(format!("`{name}` is not declared")),
                }
            }
            _ => self.misfit(),
        }
    }

    /// An operand of the size of a type.
    pub fn source(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Fault> {
        let bits = ty.bits().max(if ty == Type::Pred { 1 } else { 16 });
        match self.source_of(operand, bits)? {
            (slot, own) if own == bits => Ok(slot),
            (_, own) => self.fail(format!("a register of {own} bits for one of {bits}")),
        }
    }

    /// A register that is written, and its bits; `_` is one that nobody reads.
    pub fn target_of(&mut self, operand: &Operand, bits: u32) -> Result<(Slot, u32), Fault> {
        match operand {
            Operand::Name(name) if name == "_" => Ok((self.slot(SlotKind::Register { bits }), bits)),
            Operand::Name(name) => match self.register(name) {
                Some((slot, own)) => {
                    self.used.push(slot);
                    Ok((slot, own))
                }
                None => self.fail(format!("`{name}` is not a declared register")),
            },
            _ => self.misfit(),
        }
    }

    pub fn target(&mut self, operand: &Operand, ty: Type) -> Result<Slot, Fault> {
        let bits = ty.bits().max(if ty == Type::Pred { 1 } else { 16 });
        match self.target_of(operand, bits)? {
            (slot, own) if own == bits => Ok(slot),
            (_, own) => self.fail(format!("a register of {own} bits for one of {bits}")),
        }
    }

    /// An address, with the coordinates that stand behind it.
    pub fn address<'o>(&mut self, operand: &'o Operand) -> Result<(At, &'o [Operand]), Fault> {
        let Operand::Address { base, offset, coordinates } = operand else { return self.misfit() };
        let base = match base {
            Some(name) => match self.source_of(&Operand::Name(name.clone()), 64)? {
                (slot, 32 | 64) => slot,
                (_, bits) => return self.fail(format!("an address of {bits} bits")),
            },
            None => self.constant(0),
        };
        Ok((At { base, offset: *offset }, coordinates))
    }

    pub fn plain_address(&mut self, operand: &Operand) -> Result<At, Fault> {
        match self.address(operand)? {
            (at, []) => Ok(at),
            _ => self.misfit(),
        }
    }

    /// A number that the instruction itself holds.
    pub fn immediate(&self, operand: &Operand) -> Result<u64, Fault> {
        if let Operand::Number(value) = operand { Ok(*value) } else { self.misfit() }
    }

    fn op(&mut self, instruction: &Instruction) -> Result<Op, Fault> {
        let parts: Vec<&str> = instruction.opcode.split('.').collect();
        let operands = &instruction.operands[..];
        match (parts[0], operands) {
            ("bra", [label]) => self.branch(label),
            ("ret" | "exit", []) => Ok(Op::Exit),
            ("mov", [to, from]) => self.mov(&parts, to, from),
            ("cvt", _) => self.conversion(&parts[1..], operands),
            ("cvta", [to, from]) => self.cvta(&parts[1..], to, from),
            ("lop3", [to, a, b, c, table]) if parts == ["lop3", "b32"] => {
                let ty = Type::B32;
                let (to, a) = (self.target(to, ty)?, self.source(a, ty)?);
                let (b, c) = (self.source(b, ty)?, self.source(c, ty)?);
                Ok(Op::Table { table: self.immediate(table)? as u8, to, a, b, c })
            }
            ("bfi", [to, a, b, c, d]) => {
                let Some(ty @ (Type::B32 | Type::B64)) = Type::parse(parts[1]) else { return self.unknown() };
                let to = self.target(to, ty)?;
                let [a, b] = [self.source(a, ty)?, self.source(b, ty)?];
                let [c, d] = [self.source(c, Type::U32)?, self.source(d, Type::U32)?];
                Ok(Op::Insert { bits: ty.bits(), to, args: self.list(&[a, b, c, d]) })
            }
            _ => match function(&parts) {
                Some(f) => self.function(f, operands),
                None => self.memory(&parts, operands),
            },
        }
    }

    fn function(&mut self, function: Function, operands: &[Operand]) -> Result<Op, Fault> {
        let halves = |ty: Type| ty.half().is_some();
        Ok(match (function, operands) {
            (Function::One(f, ty, [a]), [to, x]) => {
                let (to, a) = (self.target(to, ty)?, self.source(x, a)?);
                if halves(ty) { Op::OneHalves { f, to, a } } else { Op::One { f, to, a } }
            }
            (Function::Two(f, ty, [a, b]), [to, x, y]) => {
                let (to, a, b) = (self.target(to, ty)?, self.source(x, a)?, self.source(y, b)?);
                if halves(ty) { Op::TwoHalves { f, to, a, b } } else { Op::Two { f, to, a, b } }
            }
            (Function::Partial(f, ty, [a, b]), [to, x, y]) => {
                let (to, a, b) = (self.target(to, ty)?, self.source(x, a)?, self.source(y, b)?);
                Op::Partial { f, to, a, b }
            }
            (Function::Three(f, ty, [a, b, c]), [to, x, y, z]) => {
                let (to, a) = (self.target(to, ty)?, self.source(x, a)?);
                let (b, packed) = (self.source(y, b)?, halves(ty));
                let c = self.source(z, c)?;
                if packed { Op::ThreeHalves { f, to, a, b, c } } else { Op::Three { f, to, a, b, c } }
            }
            _ => return self.misfit(),
        })
    }

    fn branch(&mut self, label: &Operand) -> Result<Op, Fault> {
        let Operand::Name(name) = label else { return self.misfit() };
        let found = self.scopes.iter().rev().find_map(|scope| self.labels.get(&(scope.number, name.clone())));
        match found {
            Some(to) => Ok(Op::Branch { to: *to }),
            None => self.fail(format!("there is no label `{name}`")),
        }
    }

    fn mov(&mut self, parts: &[&str], to: &Operand, from: &Operand) -> Result<Op, Fault> {
        let &[_, ty] = parts else { return self.unknown() };
        let Some(ty) = Type::parse(ty) else { return self.unknown() };
        match (to, from) {
            (Operand::Vector(all), _) => {
                let bits = ty.bits() / all.len() as u32;
                let a = self.source(from, ty)?;
                let parts = self.parts(all, bits, true)?;
                Ok(Op::Split { parts, a, bits })
            }
            (_, Operand::Vector(all)) => {
                let bits = ty.bits() / all.len() as u32;
                let parts = self.parts(all, bits, false)?;
                Ok(Op::Join { to: self.target(to, ty)?, parts, bits })
            }
            _ => Ok(Op::Move { to: self.target(to, ty)?, a: self.source(from, ty)? }),
        }
    }

    fn parts(&mut self, all: &[Operand], bits: u32, written: bool) -> Result<List, Fault> {
        let mut slots = Vec::with_capacity(all.len());
        for part in all {
            let (slot, own) = if written { self.target_of(part, bits)? } else { self.source_of(part, bits)? };
            if own != bits {
                return self.fail(format!("a register of {own} bits for one of {bits}"));
            }
            slots.push(slot);
        }
        Ok(self.list(&slots))
    }

    fn conversion(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        let Some(conversion) = Conversion::parse(parts) else { return self.unknown() };
        // Registers may be wider than what is converted.
        let wide = |decoder: &mut Self, operand: &Operand, ty: Type, written: bool| {
            let bits = ty.bits();
            let (slot, own) =
                if written { decoder.target_of(operand, bits)? } else { decoder.source_of(operand, bits)? };
            if own < bits { decoder.misfit() } else { Ok((slot, own)) }
        };
        match operands {
            [to, a] if !conversion.packs() => {
                let (to, bits) = wide(self, to, conversion.to, true)?;
                let (a, _) = wide(self, a, conversion.from, false)?;
                Ok(Op::Convert { conversion, bits, to, a })
            }
            [to, a, b] if conversion.packs() => {
                let to = self.target(to, conversion.to)?;
                let (a, b) = (self.source(a, conversion.from)?, self.source(b, conversion.from)?);
                Ok(Op::Pack { conversion, to, a, b })
            }
            _ => self.misfit(),
        }
    }

    /// Addresses of a space as generic ones, and back.
    fn cvta(&mut self, parts: &[&str], to: &Operand, from: &Operand) -> Result<Op, Fault> {
        let (back, space) = match parts {
            ["to", space, "u64"] => (true, *space),
            [space, "u64"] => (false, *space),
            _ => return self.unknown(),
        };
        let window = match space {
            "global" => Space::Global,
            "shared" => Space::Shared,
            "local" => Space::Local,
            "param" => Space::Param,
            _ => return self.unknown(),
        };
        let (to, a) = (self.target(to, Type::U64)?, self.source(from, Type::U64)?);
        let distance = super::memory::window(window);
        let b = self.constant(if back { distance.wrapping_neg() } else { distance });
        Ok(Op::Two { f: u64::wrapping_add, to, a, b })
    }
}
