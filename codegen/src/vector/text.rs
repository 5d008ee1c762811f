//! Loops as text, for people and text tests.

use std::fmt::{self, Display, Formatter};

use super::{Count, LoopForm, Op, Place, UniformValue, ValueId, VectorLoop};

impl Display for VectorLoop {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            LoopForm::Elements => "whole vectors of elements",
            LoopForm::ElementsTo => "elements, the last vector cut off",
            LoopForm::Iterations => "iterations",
        };
        let rows = if self.rows.is_some() { "rows of " } else { "" };
        writeln!(f, "  {rows}{form}")?;
        for (i, uniform) in self.uniforms.iter().enumerate() {
            let dtype = match uniform {
                UniformValue::Operand(_, dtype) => dtype.name(),
                UniformValue::Index(_) => "index",
            };
            writeln!(f, "  u{i}: {dtype}")?;
        }
        for (i, a) in self.accumulators.iter().enumerate() {
            match a.initial {
                _ if a.local => writeln!(f, "  a{i}: {}", a.dtype)?,
                Some(c) => writeln!(f, "  a{i}: {} of {}", a.dtype, c.as_f64())?,
                None => writeln!(f, "  a{i}: {} in memory", a.dtype)?,
            }
        }
        self.instructions(f, "  ")?;
        for join in &self.joins {
            writeln!(f, "  join {} lanes", join.lanes)?;
            join.instructions(f, "    ")?;
        }
        Ok(())
    }
}

impl VectorLoop {
    fn instructions(&self, f: &mut Formatter<'_>, indent: &str) -> fmt::Result {
        for (at, i) in self.code.iter().enumerate() {
            let result = if i.op.acts() { String::new() } else { format!("v{at}: {} = ", i.dtype) };
            writeln!(f, "{indent}{result}{}", self.operation(&i.op))?;
        }
        Ok(())
    }

    fn operation(&self, op: &Op) -> String {
        let values = |values: &[ValueId]| {
            let names: Vec<String> = values.iter().map(|v| format!("v{v}")).collect();
            names.join(", ")
        };
        match op {
            Op::Const(c) if c.dtype.is_float() => format!("{}", c.as_f64()),
            Op::Const(c) => format!("{}", c.as_i64()),
            Op::Uniform(i) => format!("u{i}"),
            Op::Positions { uniform, per_lane, turns, .. } => {
                let turns = turns.map(|(_, by)| format!(" + {by} a turn")).unwrap_or_default();
                format!("positions u{uniform} + {per_lane} a lane{turns}")
            }
            Op::Load { place, guard: None } => format!("load {}", self.place(place)),
            Op::Load { place, guard: Some((v, fill)) } => {
                format!("load {} where v{v} else {}", self.place(place), fill.as_f64())
            }
            Op::LoadHalf { place, from } => format!("load {} from {from}", self.place(place)),
            Op::Lookup { pointer, from, position } => format!("look up v{position} in 256 {from} at p{pointer}"),
            Op::Store { place, value } => format!("store {}, v{value}", self.place(place)),
            Op::StoreHalf { place, value } => format!("store {}, v{value} as f16", self.place(place)),
            Op::Accumulator(i) => format!("a{i}"),
            Op::SetAccumulator(i, v) => format!("a{i} = v{v}"),
            Op::Apply(op, args) => format!("{} {}", op.name(), values(args)),
            Op::Lesser(a, b) => format!("lesser {}", values(&[*a, *b])),
            Op::Greater(a, b) => format!("greater {}", values(&[*a, *b])),
            Op::Begin(i) => match self.loops[*i as usize].count {
                Count::Known(n) => format!("repeat {n} times"),
                Count::Uniform(u) => format!("repeat u{u} times"),
            },
            Op::End(_) => "end".to_owned(),
        }
    }

    fn place(&self, place: &Place) -> String {
        let p = &self.pointers[place.pointer as usize];
        let moving = place.moving.map(|i| format!(" + o{i}")).unwrap_or_default();
        let offset = if place.offset == 0 { String::new() } else { format!(" + {}", place.offset) };
        let lanes = match p.per_lane {
            0 => " splat".to_owned(),
            1 => String::new(),
            n => format!(" by {n}"),
        };
        format!("p{}{offset}{moving}{lanes}", place.pointer)
    }
}
