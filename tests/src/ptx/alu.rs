//! What an instruction without memory or other threads computes: a function of the bits of its operands, by its name and type.

use super::types::Type;
use super::{float, integer};

pub(super) type F1 = fn(u64) -> u64;
pub(super) type F2 = fn(u64, u64) -> u64;
pub(super) type F3 = fn(u64, u64, u64) -> u64;
pub(super) type Try2 = fn(u64, u64) -> Option<u64>;

/// A function with the types of its result and operands.
#[derive(Clone, Copy)]
pub(super) enum Function {
    One(F1, Type, [Type; 1]),
    Two(F2, Type, [Type; 2]),
    /// Undefined for some operands.
    Partial(Try2, Type, [Type; 2]),
    Three(F3, Type, [Type; 3]),
}

/// The function of an opcode, given by its parts. Packed types are computed by halves, with the function of one.
pub(super) fn function(parts: &[&str]) -> Option<Function> {
    let (last, name) = parts.split_last()?;
    let (ty, name) = (Type::parse(last)?, name.join("."));
    let name = &*name;
    if let Some(half) = ty.half() {
        // Of packed integers there are few.
        let known = half.is_float() || matches!(name, "add" | "min" | "max");
        return match function_of(name, half).filter(|_| known)? {
            Function::One(f, _, [_]) => Some(Function::One(f, ty, [ty])),
            Function::Two(f, result, _) if result == half => Some(Function::Two(f, ty, [ty; 2])),
            Function::Three(f, _, [_, _, c]) if c == half => Some(Function::Three(f, ty, [ty; 3])),
            _ => None,
        };
    }
    function_of(name, ty)
}

fn function_of(name: &str, ty: Type) -> Option<Function> {
    if let Some(test) = name.strip_prefix("setp.") {
        let test = test.strip_suffix(".ftz").map_or(Some(test), |_| None)?;
        let f = integer::comparison(test, ty).or_else(|| float::comparison(test, ty))?;
        return Some(Function::Two(f, Type::Pred, [ty; 2]));
    }
    if name == "selp" {
        return Some(Function::Three(|a, b, c| if c != 0 { a } else { b }, ty, [ty, ty, Type::Pred]));
    }
    if let Some(f) = integer::divided(name, ty) {
        return Some(Function::Partial(f, ty, [ty; 2]));
    }
    if let Some(f) = float::unary(name, ty).or_else(|| integer::unary(name, ty)) {
        let result = if matches!(name, "popc" | "clz" | "bfind") { Type::U32 } else { ty };
        return Some(Function::One(f, result, [ty]));
    }
    if let Some(f) = float::binary(name, ty).or_else(|| integer::binary(name, ty)) {
        let result = if name == "mul.wide" { twice(ty)? } else { ty };
        let second = if matches!(name, "shl" | "shr") { Type::U32 } else { ty };
        return Some(Function::Two(f, result, [ty, second]));
    }
    let f = float::ternary(name, ty).or_else(|| integer::ternary(name, ty))?;
    Some(match name {
        "mad.wide" => Function::Three(f, twice(ty)?, [ty, ty, twice(ty)?]),
        "bfe" => Function::Three(f, ty, [ty, Type::U32, Type::U32]),
        _ => Function::Three(f, ty, [ty; 3]),
    })
}

fn twice(ty: Type) -> Option<Type> {
    match ty {
        Type::U16 => Some(Type::U32),
        Type::S16 => Some(Type::S32),
        Type::U32 => Some(Type::U64),
        Type::S32 => Some(Type::S64),
        _ => None,
    }
}
