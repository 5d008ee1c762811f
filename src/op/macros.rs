//! `scalar_op!`: a function that returns an operator, from an expression.

use tensorc_ir::op::OpDef;
use tensorc_ir::params::{FromParam, ParamKind, Params};
use tensorc_ir::scalar::Ex;

/// Defines functions that return element-wise operators: operands, parameters with type, default and
/// documentation, and the value of one element.
///
/// `name(a, b; p: f64 = 1.0, "doc", n: i64 = 2, "doc") = expression` is short for [`crate::op::scalar`] with
/// [`param`](crate::op::Define::param); in the expression operands are [`Ex`](crate::op::Ex) and parameters
/// values of their type. A float parameter called `scalar` that is the only one may be given in calls as a
/// number among the operands.
#[macro_export]
macro_rules! scalar_op {
    ($(
        $(#[doc = $doc:literal])*
        $vis:vis $name:ident($($operand:ident),+ $(; $($param:ident: $ty:ty = $default:expr, $about:literal),+)? $(,)?)
            = $value:expr
    )+) => { $(
        $(#[doc = $doc])*
        $vis fn $name() -> $crate::op::OpDef {
            #[allow(unused_imports, reason = "used if there are parameters")]
            use $crate::op::Define as _;
            let def = $crate::op::scalar(stringify!($name), &[$(stringify!($operand)),+], |_cx, operands| {
                let mut operands = operands.iter();
                $(let $operand = $crate::op::next_operand(&mut operands);)+
                $($(let $param: $ty = $crate::op::parameter(_cx.params, stringify!($param), <$ty>::from($default));)+)?
                $value
            });
            let def = def.doc(concat!($($doc),*).trim_ascii())
                $($(.param(stringify!($param), <$ty>::from($default), $about))+)?;
            $crate::op::with_scalar_form(def)
        }
    )+ };
}

/// The next of the operands that `scalar_op!` names.
#[doc(hidden)]
pub fn next_operand(operands: &mut std::slice::Iter<'_, Ex>) -> Ex {
    match operands.next() {
        Some(operand) => operand.clone(),
        // Calls with an operand missing are refused before any expression is built.
        None => unreachable!("an operand is missing"),
    }
}

/// A parameter in the type that `scalar_op!` declares.
#[doc(hidden)]
pub fn parameter<T: FromParam>(params: &Params, name: &str, default: T) -> T {
    params.read(name).unwrap_or(default)
}

/// Lets calls give a float called `scalar` as a number, if it is the only parameter.
#[doc(hidden)]
pub fn with_scalar_form(mut def: OpDef) -> OpDef {
    if let [spec] = def.params.as_slice()
        && (spec.name, spec.kind) == ("scalar", ParamKind::Float)
    {
        def.scalar = Some(spec.name);
    }
    def
}
