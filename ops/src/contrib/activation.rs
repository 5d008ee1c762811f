//! Activations with a bias, and activations that other operators name.

use super::rows_of_first;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let bias_gelu = formula(|g, _| Ok((g.operand(0) + g.operand(1)).call("gelu", &[])));
    let fast_gelu = formula(|g, _| {
        let x = g.maybe(1).map_or(g.operand(0), |bias| g.operand(0) + bias);
        Ok(g.op("gelu", &[x], Params::new().with("approximate", "tanh")))
    });
    vec![
        define("bias_gelu", "`gelu` of data and bias, a row.", bias_gelu, biased())
            .groups(&["A", "B"], FLOATS)
            .contrib("BiasGelu")
            .ulp(8.0),
        define("fast_gelu", "`gelu` by tanh, of data and perhaps bias, a row.", fast_gelu, biased())
            .group("X", FLOATS)
            .optional("bias", TypeRule::Group(0, FLOATS))
            .contrib("FastGelu")
            .ulp(8.0),
    ]
}

fn biased() -> Infer {
    rule(|cx| {
        same(cx, 0, 0)?;
        rows_of_first(cx, &[1])
    })
}

/// The names and defaults of the numbers that an activation takes, in order.
pub(super) fn numbers_of(activation: &str) -> Option<&'static [(&'static str, f64)]> {
    Some(match activation {
        "" | "Relu" | "Sigmoid" | "Tanh" | "Softplus" | "Softsign" => &[],
        "LeakyRelu" => &[("alpha", 0.01)],
        "Elu" | "ThresholdedRelu" => &[("alpha", 1.0)],
        "HardSigmoid" => &[("alpha", 0.2), ("beta", 0.5)],
        "Selu" => &[("alpha", 1.673_263_192_176_818_8), ("gamma", 1.050_700_902_938_842_8)],
        "Clip" => &[("min", f64::NEG_INFINITY), ("max", f64::INFINITY)],
        _ => return None,
    })
}

/// An activation by its name, with numbers in the order of [`numbers_of`].
pub(super) fn activated<'g>(x: Tensor<'g>, name: &str, given: &[Option<f64>]) -> Result<Tensor<'g>> {
    let Some(numbers) = numbers_of(name) else {
        return Err(x.graph().fail(format!("activation `{name}` is not supported")));
    };
    let number = |i: usize| given.get(i).copied().flatten().unwrap_or(numbers[i].1);
    let op = match name {
        "" => return Ok(x),
        "Clip" => return Ok(x.with_number("max", number(0)).with_number("min", number(1))),
        "Relu" => "relu",
        "Sigmoid" => "sigmoid",
        "Tanh" => "tanh",
        "Softplus" => "softplus",
        "Softsign" => "softsign",
        "LeakyRelu" => "leaky_relu",
        "Elu" => "elu",
        "ThresholdedRelu" => "thresholded_relu",
        "HardSigmoid" => "hard_sigmoid",
        _ => "selu",
    };
    let params = numbers.iter().enumerate().fold(Params::new(), |all, (i, (name, _))| all.with(name, number(i)));
    Ok(x.graph().op(op, &[x], params))
}
