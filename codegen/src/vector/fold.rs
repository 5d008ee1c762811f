//! Instructions of a loop that become one, and those that nothing needs.

use tensorc_abi::DType;
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};

use super::{Instruction, Op, Pointer, ValueId};

pub(super) fn fold(code: Vec<Instruction>, pointers: &[Pointer]) -> Vec<Instruction> {
    let mut code = clamped(code);
    let uses = uses(&code);
    for at in 0..code.len() {
        if let Some(op) = extremum(&code, &code[at].op) {
            code[at].op = op;
        }
        if let Some(op) = narrow_positions(&code, &code[at]) {
            code[at].op = op;
        }
        half(&mut code, at, &uses, pointers);
    }
    without_unused(code)
}

/// How often each value is an operand.
fn uses(code: &[Instruction]) -> Vec<u32> {
    let mut uses = vec![0; code.len()];
    for i in code {
        i.op.operands().iter().for_each(|v| uses[*v as usize] += 1);
    }
    uses
}

/// An integral f32 that becomes an unsigned integer and f32 again is one between the limits of the type, or 0 if it is NaN.
fn clamped(code: Vec<Instruction>) -> Vec<Instruction> {
    let (uses, integral) = (uses(&code), integral(&code));
    let limited = |i: &Instruction| -> Option<(ValueId, f32)> {
        let Op::Apply(ScalarOp::Cast(DType::F32), args) = &i.op else { return None };
        let from = &code[args[0] as usize];
        let most = match from.op {
            Op::Apply(ScalarOp::Cast(DType::U8), _) => f32::from(u8::MAX),
            Op::Apply(ScalarOp::Cast(DType::U16), _) => f32::from(u16::MAX),
            _ => return None,
        };
        let x = from.op.operands()[0];
        let fits = code[x as usize].dtype == DType::F32 && integral[x as usize] && uses[args[0] as usize] == 1;
        fits.then_some((x, most))
    };
    if code.iter().all(|i| limited(i).is_none()) {
        return code;
    }
    let mut number = vec![0 as ValueId; code.len()];
    let mut made: Vec<Instruction> = vec![];
    for (at, i) in code.iter().enumerate() {
        let mut i = i.clone();
        match limited(&i) {
            None => i.op.operands_mut().into_iter().for_each(|v| *v = number[*v as usize]),
            Some((x, most)) => {
                let mut push = |op: Op| {
                    made.push(Instruction { op, dtype: DType::F32 });
                    made.len() as ValueId - 1
                };
                let [least, most] = [0.0, most].map(|limit| push(Op::Const(Scalar::f32(limit))));
                let above = push(Op::Greater(number[x as usize], least));
                i.op = Op::Lesser(above, most);
            }
        }
        number[at] = made.len() as ValueId;
        made.push(i);
    }
    made
}

/// Which values are surely whole numbers, infinite or NaN.
fn integral(code: &[Instruction]) -> Vec<bool> {
    let mut known: Vec<bool> = Vec::with_capacity(code.len());
    for i in code {
        known.push(match &i.op {
            Op::Const(c) => c.as_f64().fract() == 0.0,
            Op::Apply(ScalarOp::Round | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc, _) => true,
            Op::Apply(ScalarOp::Add | ScalarOp::Sub, args) => args.iter().all(|v| known[*v as usize]),
            Op::Apply(ScalarOp::Cast(_), args) => code[args[0] as usize].dtype.is_int(),
            _ => false,
        });
    }
    known
}

/// Comparing two values and choosing between them is an instruction of its own.
fn extremum(code: &[Instruction], op: &Op) -> Option<Op> {
    let Op::Apply(ScalarOp::Select, args) = op else { return None };
    let Op::Apply(ScalarOp::Cmp(cmp), compared) = &code[args[0] as usize].op else { return None };
    let same = compared[..] == args[1..];
    let turned = compared[0] == args[2] && compared[1] == args[1];
    match cmp {
        CmpOp::Lt if same => Some(Op::Lesser(args[1], args[2])),
        CmpOp::Gt if same => Some(Op::Greater(args[1], args[2])),
        // The second where the first is less is the second where it is greater.
        CmpOp::Lt if turned => Some(Op::Greater(args[1], args[2])),
        CmpOp::Gt if turned => Some(Op::Lesser(args[1], args[2])),
        _ => None,
    }
}

/// The low halves of positions are counted as such.
fn narrow_positions(code: &[Instruction], i: &Instruction) -> Option<Op> {
    let Op::Apply(ScalarOp::Cast(DType::I32), args) = &i.op else { return None };
    let from = &code[args[0] as usize].op;
    matches!(from, Op::Positions { .. }).then(|| from.clone())
}

/// Memory of f16 and bf16 is converted as it is read and written.
fn half(code: &mut [Instruction], at: usize, uses: &[u32], pointers: &[Pointer]) {
    match &code[at].op {
        Op::Apply(ScalarOp::Cast(DType::F32), args) => {
            let from = &code[args[0] as usize];
            if let (Op::Load { place, guard: None }, DType::F16 | DType::BF16) = (&from.op, from.dtype) {
                let single = uses[args[0] as usize] == 1 && pointers[place.pointer as usize].per_lane < 2;
                if single {
                    let (place, dtype) = (*place, from.dtype);
                    // What stands between may write to the same memory.
                    if code[args[0] as usize + 1..at].iter().all(|i| !i.op.acts()) {
                        code[at].op = Op::LoadHalf { place, from: dtype };
                    }
                }
            }
        }
        Op::Store { place, value } if place.dtype == DType::F16 => {
            if let Op::Apply(ScalarOp::Cast(DType::F16), args) = &code[*value as usize].op
                && code[args[0] as usize].dtype == DType::F32
            {
                code[at].op = Op::StoreHalf { place: *place, value: args[0] };
            }
        }
        _ => {}
    }
}

fn without_unused(code: Vec<Instruction>) -> Vec<Instruction> {
    let mut needed = vec![false; code.len()];
    for (at, i) in code.iter().enumerate().rev() {
        needed[at] |= i.op.acts();
        if needed[at] {
            i.op.operands().iter().for_each(|v| needed[*v as usize] = true);
        }
    }
    let mut number = vec![0 as ValueId; code.len()];
    let mut kept = vec![];
    for (at, mut i) in code.into_iter().enumerate() {
        if needed[at] {
            i.op.operands_mut().into_iter().for_each(|v| *v = number[*v as usize]);
            number[at] = kept.len() as ValueId;
            kept.push(i);
        }
    }
    kept
}
