//! Rows of a weight by number.

use crate::prelude::*;

pub fn embedding() -> OpDef {
    let compute = formula(|g, _| {
        let [data, weight] = g.operands();
        let rows = weight.dims()?[0];
        let rows = g.map(&[data], DType::I64, &data.dims()?, |_, a| {
            let at = a[0].cast(DType::I64);
            at.max(&at.lit(0.0)).min(&at.lit(rows as f64 - 1.0))
        });
        Ok(weight.gather(rows, 0))
    });
    let infer = rule(|cx| {
        let count = |name: &str| extent(cx.params.int(name).unwrap_or(0), name);
        let (rows, columns) = (count("input_dim")?, count("output_dim")?);
        if cx.input_dtype(1).is_none() {
            let dtype = cx.output_dtype(0).or(cx.params.dtype("dtype")).unwrap_or(DType::F32);
            cx.set_input_dtype(1, dtype)?;
        }
        cx.same_dtype(0, 1)?;
        cx.set_input_dims(1, [rows, columns])?;
        match (cx.open_dims(0), cx.output_shape(0)) {
            (Some(data), _) => {
                let dims: Vec<Option<Dim>> = data.iter().copied().chain([columns]).map(Some).collect();
                partial(cx, 0, &dims)
            }
            (None, Shape::Ranked(mut out)) => match out.pop() {
                Some(last) => {
                    cx.unify_dims(columns, last, "output, last axis")?;
                    cx.set_input_dims(0, out)
                }
                None => Err(OpError::from("output: expected rank at least 1, found rank 0")),
            },
            _ => Ok(()),
        }
    });
    let doc = "The row of `weight` at each element of `data`; positions outside are clipped.";
    define("mx_embedding", doc, compute, infer)
        .operands(&["data", "weight"], NUMBERS)
        .count("input_dim", "Rows of the weight.")
        .count("output_dim", "Columns of the weight.")
        .param("dtype", DType::F32, "The weight's type, if nothing else tells it.")
        .ignored(&[("sparse_grad", ParamValue::Bool(false))])
        .named(&["Embedding", "_contrib_SparseEmbedding"])
}
