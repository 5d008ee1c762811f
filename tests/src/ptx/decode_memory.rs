//! Loads, stores, atomic operations, fences, asynchronous copies and barriers with phases as steps (PTX ISA, "Data movement and
//! conversion instructions", "Parallel synchronization and communication instructions").

use super::Fault;
use super::alu::F2;
use super::decode::Decoder;
use super::integer;
use super::op::{Access, FenceKind, Op, Space, Update};
use super::text::Operand;
use super::types::Type;

fn space(name: &str) -> Option<Space> {
    match name {
        "global" => Some(Space::Global),
        "shared" | "shared::cta" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "param" => Some(Space::Param),
        _ => None,
    }
}

impl Decoder {
    pub fn memory(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        match (parts, operands) {
            (["ld", rest @ .., ty], [registers, at]) => self.access(rest, ty, registers, at, true),
            (["st", rest @ .., ty], [at, registers]) => self.access(rest, ty, registers, at, false),
            (["atom", rest @ .., ty], [to, at, operand, new @ ..]) => {
                self.atomic(rest, ty, Some(to), at, (operand, new))
            }
            (["red", rest @ .., ty], [at, operand]) => self.atomic(rest, ty, None, at, (operand, &[])),
            (["cp", "async", rest @ ..], _) => self.copy(rest, operands),
            (["mbarrier", rest @ ..], _) => self.phases(rest, operands),
            (["membar", "cta" | "gl" | "sys"], []) => Ok(Op::Fence(FenceKind::Threads)),
            (["fence", "sc" | "acq_rel", "cta" | "cluster" | "gpu" | "sys"], []) => Ok(Op::Fence(FenceKind::Threads)),
            (["fence", "proxy", "async"] | ["fence", "proxy", "async", "shared::cta"], []) => {
                Ok(Op::Fence(FenceKind::Proxy))
            }
            (["fence", "mbarrier_init", "release", "cluster"], []) => Ok(Op::Fence(FenceKind::BarrierInit)),
            _ => self.warp(parts, operands),
        }
    }

    fn remember(&mut self, space: Space, bytes: usize) {
        let granules = &mut self.program.granules;
        match space {
            Space::Shared => granules[0] = granules[0].min(bytes),
            Space::Global => granules[1] = granules[1].min(bytes),
            Space::Generic => *granules = granules.map(|g| g.min(bytes)),
            _ => {}
        }
    }

    fn access(
        &mut self,
        qualifiers: &[&str],
        ty: &str,
        registers: &Operand,
        at: &Operand,
        load: bool,
    ) -> Result<Op, Fault> {
        let Some(ty) = Type::parse(ty) else { return self.unknown() };
        let (mut found, mut constant, mut count) = (Space::Generic, false, 1);
        for qualifier in qualifiers {
            match *qualifier {
                "nc" if load => constant = true,
                "v2" => count = 2,
                "v4" => count = 4,
                name => match space(name) {
                    Some(space) if found == Space::Generic => found = space,
                    _ => return self.unknown(),
                },
            }
        }
        let operands = match registers {
            Operand::Vector(all) => &all[..],
            one => std::slice::from_ref(one),
        };
        if operands.len() != count || ty == Type::Pred || (found == Space::Param && !load) {
            return self.misfit();
        }
        let mut slots = vec![];
        let mut bits = 0;
        for operand in operands {
            let (slot, own) = match load {
                true => self.target_of(operand, ty.bits())?,
                false => self.source_of(operand, ty.bits())?,
            };
            if own < ty.bits() {
                return self.misfit();
            }
            bits = own;
            slots.push(slot);
        }
        let at = self.plain_address(at)?;
        let bytes = (ty.bits() / 8) as u8;
        self.remember(found, bytes.into());
        let registers = self.list(&slots);
        let access = Access { space: found, at, bytes, signed: ty.is_signed(), bits: bits as u8, constant, registers };
        Ok(if load { Op::Load(access) } else { Op::Store(access) })
    }

    fn atomic(
        &mut self,
        qualifiers: &[&str],
        ty: &str,
        to: Option<&Operand>,
        at: &Operand,
        (operand, new): (&Operand, &[Operand]),
    ) -> Result<Op, Fault> {
        let Some(ty) = Type::parse(ty) else { return self.unknown() };
        let (mut found, mut name) = (Space::Generic, None);
        for qualifier in qualifiers {
            match *qualifier {
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" => {}
                part => match space(part) {
                    Some(space @ (Space::Global | Space::Shared)) => found = space,
                    Some(_) => return self.unknown(),
                    None => name = Some(part),
                },
            }
        }
        let update = match (name, new) {
            (Some("exch"), []) => Update::Exchange,
            (Some("cas"), [new]) => Update::CompareExchange(self.source(new, ty)?),
            (Some(name), []) => match atomic_function(name, ty) {
                Some(f) => Update::Function(f),
                None => return self.unknown(),
            },
            _ => return self.unknown(),
        };
        let to = match to {
            Some(to) => self.target(to, ty)?,
            None => self.target(&Operand::Name("_".into()), ty)?,
        };
        let bytes = (ty.bits() / 8) as u8;
        self.remember(found, bytes.into());
        let (at, operand) = (self.plain_address(at)?, self.source(operand, ty)?);
        Ok(Op::Atomic { space: found, at, bytes, update, operand, to })
    }

    fn copy(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        match (parts, operands) {
            (["commit_group"], []) => Ok(Op::CommitCopies),
            (["wait_group"], [pending]) => Ok(Op::AwaitCopies { pending: self.immediate(pending)? as u32 }),
            ([cache @ ("ca" | "cg"), "shared" | "shared::cta", "global"], [to, from, bytes, size @ ..]) => {
                let (to, from) = (self.plain_address(to)?, self.plain_address(from)?);
                let bytes = self.immediate(bytes)? as u8;
                // Only the nearest cache takes fewer than 16 bytes.
                if !matches!((*cache, bytes), ("ca", 4 | 8 | 16) | ("cg", 16)) {
                    return self.misfit();
                }
                let size = match size {
                    [] => None,
                    [size] => Some(self.source(size, Type::U32)?),
                    _ => return self.misfit(),
                };
                self.remember(Space::Shared, bytes.into());
                self.remember(Space::Global, bytes.into());
                Ok(Op::CopyAsync { to, from, bytes, size })
            }
            (
                ["bulk", "tensor", dimensions, "shared::cluster", "global", "mbarrier::complete_tx::bytes"],
                [to, from, barrier],
            ) => {
                let to = self.plain_address(to)?;
                let (map, coordinates) = self.address(from)?;
                let barrier = self.plain_address(barrier)?;
                let rank = dimensions.strip_suffix('d').and_then(|n| n.parse::<usize>().ok());
                if rank != Some(coordinates.len()) {
                    return self.misfit();
                }
                let mut slots = vec![];
                for coordinate in coordinates {
                    slots.push(self.source(coordinate, Type::S32)?);
                }
                Ok(Op::CopyTile { to, map, coordinates: self.list(&slots), barrier })
            }
            _ => self.unknown(),
        }
    }

    fn phases(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        let Some((kind, rest)) = parts.split_first() else { return self.unknown() };
        let rest: Vec<&str> = rest.iter().copied().filter(|part| !matches!(*part, "shared" | "shared::cta")).collect();
        if rest.last() != Some(&"b64") || rest.len() + 1 >= parts.len() {
            return self.unknown();
        }
        match (*kind, &rest[..rest.len() - 1], operands) {
            ("init", [], [at, count]) => {
                let at = self.plain_address(at)?;
                self.remember(Space::Shared, 8);
                Ok(Op::PhaseInit { at, count: self.source(count, Type::U32)? })
            }
            ("inval", [], [at]) => Ok(Op::PhaseInvalidate { at: self.plain_address(at)? }),
            ("arrive", [], [Operand::Name(sink), at, count @ ..]) if sink == "_" && count.len() <= 1 => {
                let (at, bytes) = (self.plain_address(at)?, self.constant(0));
                let count = match count {
                    [count] => self.source(count, Type::U32)?,
                    _ => self.constant(1),
                };
                Ok(Op::PhaseArrive { at, bytes, count })
            }
            ("arrive", ["expect_tx"], [Operand::Name(sink), at, bytes]) if sink == "_" => {
                let (at, bytes) = (self.plain_address(at)?, self.source(bytes, Type::U32)?);
                Ok(Op::PhaseArrive { at, bytes, count: self.constant(1) })
            }
            ("try_wait" | "test_wait", ["parity"], [done, at, parity]) => {
                let done = self.target(done, Type::Pred)?;
                let (at, parity) = (self.plain_address(at)?, self.source(parity, Type::U32)?);
                Ok(Op::PhaseTest { at, parity, done, waits: *kind == "try_wait" })
            }
            _ => self.unknown(),
        }
    }
}

/// What an atomic operation makes of the old value and its operand.
fn atomic_function(name: &str, ty: Type) -> Option<F2> {
    match (name, ty) {
        ("add", Type::F32 | Type::F64) => super::float::binary("add.rn", ty),
        ("add", Type::U32 | Type::S32 | Type::U64) => integer::binary("add", ty),
        ("min" | "max", Type::U32 | Type::S32 | Type::U64 | Type::S64) => integer::binary(name, ty),
        ("and" | "or" | "xor", Type::B32 | Type::B64) => integer::binary(name, ty),
        _ => None,
    }
}
