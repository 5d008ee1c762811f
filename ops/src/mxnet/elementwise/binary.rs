//! Operators of two operands, in the form that broadcasts and the form that requires equal shapes.

use super::{BinaryFunction, and, hypot, maximum, minimum, modulo, or, power, xor};
use crate::prelude::*;

/// One function under its names: own and MXNet's, in each of the two forms.
struct BinaryEntry {
    doc: &'static str,
    function: BinaryFunction,
    /// Where the form that broadcasts is an entry elsewhere, it is missing here.
    broadcast: Option<(&'static str, &'static [&'static str])>,
    same: (&'static str, &'static [&'static str]),
    ulp: Option<f64>,
}

macro_rules! pair {
    ($doc:literal, $f:expr, $own:literal, [$($name:literal),*] $(, $ulp:expr)?) => {
        BinaryEntry {
            doc: $doc,
            function: $f,
            broadcast: Some((concat!("mx_broadcast_", $own), &[concat!("broadcast_", $own)])),
            same: (concat!("mx_", $own), &[$($name),*]),
            ulp: [$($ulp,)?].first().copied(),
        }
    };
}

/// A function whose form that broadcasts is an entry elsewhere.
const fn equal_shapes(
    doc: &'static str,
    function: BinaryFunction,
    same: (&'static str, &'static [&'static str]),
) -> BinaryEntry {
    BinaryEntry { doc, function, broadcast: None, same, ulp: None }
}

const PAIRS: [BinaryEntry; 12] = [
    pair!("Remainder with the sign of rhs; 0 where rhs is 0.", modulo, "mod", ["_mod", "_Mod"]),
    pair!("lhs to the power rhs.", power, "power", ["_power", "_Power"], 4.0),
    pair!("The greater; the gradient of equal elements is that of lhs.", maximum, "maximum", ["_maximum", "_Maximum"]),
    pair!("The lesser; the gradient of equal elements is that of lhs.", minimum, "minimum", ["_minimum", "_Minimum"]),
    pair!("lhs = rhs.", Ex::eq, "equal", ["_equal", "_Equal"]),
    pair!("lhs ≠ rhs.", Ex::ne, "not_equal", ["_not_equal", "_Not_Equal"]),
    pair!("lhs > rhs.", Ex::gt, "greater", ["_greater", "_Greater"]),
    pair!("lhs ≥ rhs.", Ex::ge, "greater_equal", ["_greater_equal", "_Greater_Equal"]),
    pair!("lhs < rhs.", Ex::lt, "lesser", ["_lesser", "_Lesser"]),
    pair!("lhs ≤ rhs.", Ex::le, "lesser_equal", ["_lesser_equal", "_Lesser_Equal"]),
    pair!("Whether neither is 0.", and, "logical_and", ["_logical_and", "_Logical_And"]),
    pair!("Whether one is not 0.", or, "logical_or", ["_logical_or", "_Logical_Or"]),
];

/// Those whose other form is not named after them.
const OTHERS: [BinaryEntry; 7] = [
    pair!("Whether exactly one is not 0.", xor, "logical_xor", ["_logical_xor", "_Logical_Xor"]),
    BinaryEntry {
        ulp: Some(3.0),
        ..equal_shapes("√(lhs² + rhs²), without overflow.", hypot, ("mx_hypot", &["_hypot", "_Hypot"]))
    },
    equal_shapes(
        "lhs + rhs, of equal shapes.",
        |x, y| x + y,
        ("mx_elemwise_add", &["elemwise_add", "_plus", "_Plus", "_add"]),
    ),
    equal_shapes("lhs + rhs: the sum of two gradients.", |x, y| x + y, ("mx_grad_add", &["_grad_add"])),
    equal_shapes(
        "lhs - rhs, of equal shapes.",
        |x, y| x - y,
        ("mx_elemwise_sub", &["elemwise_sub", "_minus", "_Minus", "_sub"]),
    ),
    equal_shapes("lhs · rhs, of equal shapes.", |x, y| x * y, ("mx_elemwise_mul", &["elemwise_mul", "_mul", "_Mul"])),
    equal_shapes(
        "lhs / rhs, of equal shapes.",
        |x, y| x / y,
        ("mx_elemwise_div", &["elemwise_div", "_div", "_Div", "_scatter_elemwise_div"]),
    ),
];

/// The function in the type of its operands, which truth values are converted to.
fn body(function: BinaryFunction) -> impl Fn(&ScalarCtx<'_>, &[Ex]) -> Ex + Send + Sync + 'static {
    move |cx, a| {
        let out = function(&a[0], &a[1]);
        match cx.inputs.first().copied().flatten() {
            Some(stored) if out.dtype() != a[0].dtype() => out.cast(stored),
            _ => out,
        }
    }
}

pub fn ops() -> Vec<OpDef> {
    let mut found = vec![];
    for pair in PAIRS.iter().chain(&OTHERS) {
        let bounded = |def: OpDef| match pair.ulp {
            Some(n) => def.ulp(n),
            None => def,
        };
        if let Some((own, names)) = pair.broadcast {
            found.push(bounded(elementwise(own, pair.doc, NUMBERS, &["lhs", "rhs"], body(pair.function)).named(names)));
        }
        let (own, names) = pair.same;
        let def = elementwise(own, pair.doc, NUMBERS, &["lhs", "rhs"], body(pair.function)).named(names);
        found.push(bounded(def.edit(|d| d.infer = rule(agree))));
    }
    found
}
