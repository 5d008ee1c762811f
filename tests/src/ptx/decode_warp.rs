//! What threads do together as steps: barriers, exchanges, and products of matrices (PTX ISA, "Parallel synchronization and
//! communication instructions", "Warp level matrix instructions", "Asynchronous warpgroup level matrix instructions").

use super::Fault;
use super::decode::Decoder;
use super::op::{Direction, Factor, GroupProduct, List, Op, Vote, WarpProduct};
use super::text::Operand;
use super::types::Type;

/// Registers of a thread that a group may ask for.
const LEAST_REGISTERS: u64 = 24;
const MOST_REGISTERS: u64 = 256;

impl Decoder {
    pub fn warp(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        match (parts, operands) {
            (["bar", "warp", "sync"], [members]) => Ok(Op::WarpBarrier { members: self.source(members, Type::B32)? }),
            (["bar" | "barrier", rest @ ..], [number, count @ ..]) => {
                let own = parts[0] == "bar";
                let rest = if let ["cta", rest @ ..] = rest { rest } else { rest };
                let (waits, aligned) = match rest {
                    ["sync"] => (true, own),
                    ["arrive"] => (false, own),
                    ["sync", "aligned"] if !own => (true, true),
                    ["arrive", "aligned"] if !own => (false, true),
                    _ => return self.unknown(),
                };
                let number = self.source(number, Type::U32)?;
                let count = match count {
                    [] if waits => None,
                    [count] => Some(self.source(count, Type::U32)?),
                    _ => return self.misfit(),
                };
                Ok(Op::Barrier { number, count, waits, aligned })
            }
            (["shfl", "sync", direction, "b32"], [to, a, b, c, members]) => {
                self.shuffle(direction, to, [a, b, c, members])
            }
            (["vote", "sync", vote, ty], [to, a, members]) => self.vote(vote, ty, to, [a, members]),
            (["elect", "sync"], [Operand::Pair(pair), members]) => {
                let leader = self.target(&pair[0], Type::B32)?;
                let is_leader = self.target(&pair[1], Type::Pred)?;
                Ok(Op::Elect { leader, is_leader, members: self.source(members, Type::B32)? })
            }
            (["ldmatrix", "sync", "aligned", "m8n8", rest @ ..], [registers, at]) => {
                self.load_matrix(rest, registers, at)
            }
            (["mma", "sync", "aligned", rest @ ..], [d, a, b, c]) => self.mma(rest, [d, a, b, c]),
            (["wgmma", rest @ ..], _) => self.group(rest, operands),
            (["setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"], [count]) => {
                let count = self.immediate(count)?;
                if !(LEAST_REGISTERS..=MOST_REGISTERS).contains(&count) || !count.is_multiple_of(8) {
                    return self.misfit();
                }
                Ok(Op::Registers)
            }
            _ => self.unknown(),
        }
    }

    fn shuffle(&mut self, direction: &str, to: &Operand, sources: [&Operand; 4]) -> Result<Op, Fault> {
        let direction = match direction {
            "up" => Direction::Up,
            "down" => Direction::Down,
            "bfly" => Direction::Butterfly,
            "idx" => Direction::Index,
            _ => return self.unknown(),
        };
        let (to, inside) = match to {
            Operand::Pair(pair) => (self.target(&pair[0], Type::B32)?, self.target(&pair[1], Type::Pred)?),
            to => (self.target(to, Type::B32)?, self.target(&Operand::Name("_".into()), Type::Pred)?),
        };
        let [a, b, c, members] = sources;
        let (a, b) = (self.source(a, Type::B32)?, self.source(b, Type::B32)?);
        let (c, members) = (self.source(c, Type::B32)?, self.source(members, Type::B32)?);
        Ok(Op::Shuffle { direction, to, inside, a, b, c, members })
    }

    fn vote(&mut self, vote: &str, ty: &str, to: &Operand, [a, members]: [&Operand; 2]) -> Result<Op, Fault> {
        let (vote, result) = match (vote, ty) {
            ("all", "pred") => (Vote::All, Type::Pred),
            ("any", "pred") => (Vote::Any, Type::Pred),
            ("uni", "pred") => (Vote::Uniform, Type::Pred),
            ("ballot", "b32") => (Vote::Ballot, Type::B32),
            _ => return self.unknown(),
        };
        let (to, a) = (self.target(to, result)?, self.source(a, Type::Pred)?);
        Ok(Op::Vote { vote, to, a, members: self.source(members, Type::B32)? })
    }

    /// So many registers in braces.
    fn registers(&mut self, operand: &Operand, count: usize, written: bool) -> Result<Vec<u32>, Fault> {
        let Operand::Vector(all) = operand else { return self.misfit() };
        if all.len() != count {
            return self.misfit();
        }
        let one = |operand| if written { self.target(operand, Type::B32) } else { self.source(operand, Type::B32) };
        all.iter().map(one).collect()
    }

    fn load_matrix(&mut self, parts: &[&str], registers: &Operand, at: &Operand) -> Result<Op, Fault> {
        let (count, transposed) = match parts {
            [count, "trans", "shared" | "shared::cta", "b16"] => (*count, true),
            [count, "shared" | "shared::cta", "b16"] => (*count, false),
            _ => return self.unknown(),
        };
        let count = match count {
            "x1" => 1,
            "x2" => 2,
            "x4" => 4,
            _ => return self.unknown(),
        };
        let slots = self.registers(registers, count, true)?;
        let at = self.plain_address(at)?;
        Ok(Op::LoadMatrix { at, registers: self.list(&slots), transposed })
    }

    fn mma(&mut self, parts: &[&str], operands: [&Operand; 4]) -> Result<Op, Fault> {
        let (factor, terms) = match parts {
            ["m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => (Factor::F16, 16),
            ["m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"] => (Factor::BF16, 16),
            ["m16n8k8", "row", "col", "f32", "f16", "f16", "f32"] => (Factor::F16, 8),
            ["m16n8k8", "row", "col", "f32", "bf16", "bf16", "f32"] => (Factor::BF16, 8),
            ["m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] => (Factor::TF32, 8),
            ["m16n8k4", "row", "col", "f32", "tf32", "tf32", "f32"] => (Factor::TF32, 4),
            _ => return self.unknown(),
        };
        let in_b = if factor == Factor::TF32 { terms / 4 } else { terms / 8 };
        let mut slots = self.registers(operands[0], 4, true)?;
        slots.extend(self.registers(operands[1], 2 * in_b, false)?);
        slots.extend(self.registers(operands[2], in_b, false)?);
        slots.extend(self.registers(operands[3], 4, false)?);
        Ok(Op::Mma(WarpProduct { factor, terms, registers: self.list(&slots) }))
    }

    fn group(&mut self, parts: &[&str], operands: &[Operand]) -> Result<Op, Fault> {
        match (parts, operands) {
            (["fence", "sync", "aligned"], []) => Ok(Op::GroupFence),
            (["commit_group", "sync", "aligned"], []) => Ok(Op::GroupCommit),
            (["wait_group", "sync", "aligned"], [n]) => Ok(Op::GroupWait { pending: self.immediate(n)? as u32 }),
            (["mma_async", "sync", "aligned", shape, "f32", a, b], _) if a == b => {
                let factor = match *a {
                    "f16" => Factor::F16,
                    "bf16" => Factor::BF16,
                    "tf32" => Factor::TF32,
                    _ => return self.unknown(),
                };
                let terms = format!("k{}", factor.group_terms());
                let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix(terms.as_str()));
                let columns = columns.and_then(|n| n.parse::<usize>().ok());
                match columns.filter(|n| n.is_multiple_of(8) && (8..=256).contains(n)) {
                    Some(columns) => self.group_mma(factor, columns, operands),
                    None => self.unknown(),
                }
            }
            _ => self.unknown(),
        }
    }

    fn group_mma(&mut self, factor: Factor, columns: usize, operands: &[Operand]) -> Result<Op, Fault> {
        let [sums, a, b, adds, scale_a, scale_b, turned @ ..] = operands else { return self.misfit() };
        // Only of 16 bits operands may lie with rows as neighbours.
        if turned.len() != if factor == Factor::TF32 { 0 } else { 2 } {
            return self.misfit();
        }
        let slots = self.registers(sums, columns / 2, true)?;
        let sums: List = self.list(&slots);
        let (a, b) = (self.source(a, Type::B64)?, self.source(b, Type::B64)?);
        let adds = self.source(adds, Type::Pred)?;
        let mut negated = [false; 2];
        for (negated, scale) in negated.iter_mut().zip([scale_a, scale_b]) {
            *negated = match self.immediate(scale)? as i64 {
                1 => false,
                -1 => true,
                _ => return self.misfit(),
            };
        }
        let mut transposed = [false; 2];
        for (transposed, flag) in transposed.iter_mut().zip(turned) {
            *transposed = match self.immediate(flag)? {
                0 => false,
                1 => true,
                _ => return self.misfit(),
            };
        }
        Ok(Op::GroupMma(GroupProduct { factor, columns, sums, a, b, adds, negated, transposed }))
    }
}
