//! Writes the math library's expressions as Rust.

use tensorc_abi::DType;
use tensorc_ir::scalar::{CmpOp, MathFn, MathLibrary, Scalar, ScalarFn, ScalarNode, ScalarOp};

const HEADER: &str = "\
//! The f32 functions of the math library as straight-line code. Written by `tests/integration/vmath.rs` from the
//! library's expressions: set `TENSORC_GENERATE` and run that test to write it again.
#![allow(clippy::all, reason = \"generated\")]
#![cfg_attr(rustfmt, rustfmt::skip)]

use crate::fused::{FusedMultiplyAdd, sqrt};
";

/// The functions of one argument whose every value has 32 bits.
pub fn functions(library: &dyn MathLibrary) -> impl Iterator<Item = (MathFn, &ScalarFn)> {
    MathFn::ALL.into_iter().map(|f| (f, library.body(f))).filter(|(_, body)| body.is_strip())
}

/// Columns of a line.
const WIDTH: usize = 116;

/// The whole file.
pub fn file(library: &dyn MathLibrary) -> String {
    let mut out = String::from(HEADER);
    for (f, body) in functions(library) {
        out += &format!(
            "\n#[inline(always)]\npub(super) fn {}(fused: impl FusedMultiplyAdd, x: f32) -> f32 {{\n",
            f.name()
        );
        let mut line = String::from("   ");
        for (i, node) in body.nodes.iter().enumerate() {
            let ScalarNode::Op(op, args) = node else { continue };
            let from = body.dtypes[args[0].0 as usize];
            let args: Vec<String> = args.iter().map(|a| operand(body, a.0 as usize)).collect();
            let statement = format!(" let v{i} = {};", expression(*op, from, &args));
            if line.len() + statement.len() > WIDTH {
                out += &(line + "\n");
                line = "   ".into();
            }
            line += &statement;
        }
        out += &format!("{line}\n    {}\n}}\n", operand(body, body.outputs[0].0 as usize));
    }
    out
}

fn operand(f: &ScalarFn, i: usize) -> String {
    match &f.nodes[i] {
        ScalarNode::Input(_) => "x".into(),
        ScalarNode::Const(c) => literal(*c),
        ScalarNode::Coord(_) => panic!("a function of the position"),
        ScalarNode::Op(..) => format!("v{i}"),
    }
}

fn literal(c: Scalar) -> String {
    match c.dtype {
        DType::F32 => format!("f32::from_bits({:#010x})", c.bits),
        DType::F64 => format!("f64::from_bits({:#018x})", c.bits),
        DType::I32 => format!("{}_i32", c.bits as u32 as i32),
        DType::Bool => format!("{}", c.bits != 0),
        d => panic!("a constant of type {d}"),
    }
}

fn expression(op: ScalarOp, from: DType, args: &[String]) -> String {
    let (float, int) = (from.is_float(), from == DType::I32);
    let infix = |sign: &str| format!("{} {sign} {}", args[0], args[1]);
    let call = |name: &str| format!("{}.{name}({})", args[0], args[1..].join(", "));
    match op {
        ScalarOp::Neg if float => format!("-{}", args[0]),
        ScalarOp::Not => format!("!{}", args[0]),
        ScalarOp::Abs if float => call("abs"),
        ScalarOp::Sqrt => format!("sqrt({})", args[0]),
        ScalarOp::Fma => format!("fused.mul_add({})", args.join(", ")),
        ScalarOp::Add if float => infix("+"),
        ScalarOp::Sub if float => infix("-"),
        ScalarOp::Mul if float => infix("*"),
        ScalarOp::Div if float => infix("/"),
        ScalarOp::Add if int => call("wrapping_add"),
        ScalarOp::Sub if int => call("wrapping_sub"),
        ScalarOp::Mul if int => call("wrapping_mul"),
        ScalarOp::And => infix("&"),
        ScalarOp::Or => infix("|"),
        ScalarOp::Xor => infix("^"),
        ScalarOp::Shl if int => infix("<<"),
        ScalarOp::Shr if int => infix(">>"),
        ScalarOp::Cmp(c) => infix(match c {
            CmpOp::Eq => "==",
            CmpOp::Ne => "!=",
            CmpOp::Lt => "<",
            CmpOp::Le => "<=",
            CmpOp::Gt => ">",
            CmpOp::Ge => ">=",
        }),
        ScalarOp::Select => format!("if {} {{ {} }} else {{ {} }}", args[0], args[1], args[2]),
        ScalarOp::Cast(to) => format!("{} as {to}", args[0]),
        ScalarOp::Bitcast(DType::I32) if float => format!("{}.to_bits() as i32", args[0]),
        ScalarOp::Bitcast(DType::F32) if int => format!("f32::from_bits({} as u32)", args[0]),
        _ => panic!("no Rust for {op:?} on {from}"),
    }
}
