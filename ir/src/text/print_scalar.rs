//! Printing of scalar functions and of the instruction form they share with kernels.

use tensorc_abi::DType;

use super::literal;
use super::out::{Out, join};
use crate::scalar::{Scalar, ScalarFn, ScalarId, ScalarNode, ScalarOp};

/// The type that gives an instruction its suffix.
pub(super) fn suffix(op: ScalarOp, args: &[DType]) -> Option<DType> {
    match op {
        ScalarOp::Cast(to) | ScalarOp::Bitcast(to) => Some(to),
        ScalarOp::Select => args.get(1).copied(),
        _ => args.first().copied(),
    }
}

/// The type a literal has at an operand position if it does not name one.
pub(super) fn literal_type(op: ScalarOp, position: usize, suffix: Option<DType>) -> Option<DType> {
    match (op, position) {
        (ScalarOp::Cast(_) | ScalarOp::Bitcast(_), _) => None,
        (ScalarOp::Select, 0) => Some(DType::Bool),
        _ => suffix,
    }
}

/// A constant operand, with its type unless that is the expected one.
pub(super) fn constant(value: Scalar, expected: Option<DType>) -> String {
    match expected == Some(value.dtype) {
        true => literal::print(value),
        false => format!("{} {}", value.dtype, literal::print(value)),
    }
}

/// `op.type a, b`, where each operand is a name or a constant.
pub(super) fn instruction(op: ScalarOp, args: &[(Result<String, Scalar>, DType)]) -> String {
    let dtypes: Vec<DType> = args.iter().map(|(_, d)| *d).collect();
    let suffix = suffix(op, &dtypes);
    let operands = args.iter().enumerate().map(|(i, (arg, _))| match arg {
        Ok(name) => name.clone(),
        Err(c) => constant(*c, literal_type(op, i, suffix)),
    });
    let suffix = suffix.map_or(String::new(), |d| format!(".{d}"));
    format!("{}{suffix} {}", op.name(), join(operands))
}

/// How a node of the function is written where it is used.
enum Use {
    Name(String),
    Literal(Scalar),
}

/// `(%x0: f32) {`, one line for each node, `yield …`; the caller closes the brace.
///
/// Constants appear in place where that keeps the order of nodes: directly before their first user.
pub(super) fn function(out: &mut Out<'_>, head: &str, f: &ScalarFn) {
    let params = f.inputs.iter().enumerate().map(|(i, d)| format!("%x{i}: {d}"));
    out.open(&format!("{head}({}) {{", join(params)));
    let leading = leading_inputs(f);
    let inlined = inlined_constants(f, leading);
    let mut uses: Vec<Use> = Vec::with_capacity(f.nodes.len());
    let mut lines = 0;
    for (i, node) in f.nodes.iter().enumerate() {
        let text = match node {
            ScalarNode::Input(n) if i < leading => {
                uses.push(Use::Name(format!("%x{n}")));
                continue;
            }
            ScalarNode::Const(c) if inlined[i] => {
                uses.push(Use::Literal(*c));
                continue;
            }
            ScalarNode::Input(n) => format!("input {n}"),
            ScalarNode::Const(c) => format!("const {} {}", c.dtype, literal::print(*c)),
            ScalarNode::Coord(axis) => format!("coord {axis}"),
            ScalarNode::Op(op, ids) => {
                let args: Vec<_> = ids
                    .iter()
                    .map(|id| match uses.get(id.0 as usize) {
                        Some(Use::Name(n)) => (Ok(n.clone()), f.dtype(*id)),
                        Some(Use::Literal(c)) => (Err(*c), c.dtype),
                        None => (Ok(format!("%undefined{}", id.0)), f.dtypes.first().copied().unwrap_or(DType::F32)),
                    })
                    .collect();
                instruction(*op, &args)
            }
        };
        out.line(&format!("%{lines} = {text}"));
        uses.push(Use::Name(format!("%{lines}")));
        lines += 1;
    }
    let yields = f.outputs.iter().map(|o| match uses.get(o.0 as usize) {
        Some(Use::Name(n)) => n.clone(),
        Some(Use::Literal(c)) => constant(*c, None),
        None => format!("%undefined{}", o.0),
    });
    out.line(format!("yield {}", join(yields)).trim_end());
}

/// Number of nodes at the front that are operands in ascending order; these need no line.
fn leading_inputs(f: &ScalarFn) -> usize {
    let mut least = 0;
    f.nodes
        .iter()
        .take_while(|n| match n {
            ScalarNode::Input(i) if *i >= least => {
                least = i + 1;
                true
            }
            _ => false,
        })
        .count()
}

/// Which constants a reader recreates at the same position from the text of their first user.
fn inlined_constants(f: &ScalarFn, leading: usize) -> Vec<bool> {
    let mut inlined = vec![false; f.nodes.len()];
    let mut run = leading;
    for (i, node) in f.nodes.iter().enumerate().skip(leading) {
        let ScalarNode::Op(_, args) = node else {
            run = if matches!(node, ScalarNode::Const(_)) { run } else { i + 1 };
            continue;
        };
        let mut expected: Vec<usize> = vec![];
        for ScalarId(a) in args {
            let a = *a as usize;
            if (run..i).contains(&a) && !expected.contains(&a) {
                expected.push(a);
            }
        }
        let contiguous = expected.iter().enumerate().all(|(k, a)| *a == i - expected.len() + k);
        let first = expected.iter().all(|a| f.nodes.iter().position(|n| *n == f.nodes[*a]) == Some(*a));
        if contiguous && first {
            expected.iter().for_each(|a| inlined[*a] = true);
        }
        run = i + 1;
    }
    inlined
}
