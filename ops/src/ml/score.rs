//! What becomes of the scores of a model: transformations, and the label of the best class.

use crate::prelude::*;

/// What the parameter `post_transform` may be.
pub(super) const TRANSFORMS: &[&str] = &["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"];

/// What is done with scores at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostTransform {
    None,
    /// Softmax over a row.
    Softmax,
    /// 1 / (1 + e⁻ˣ).
    Logistic,
    /// As softmax, but for zeros, which stay.
    SoftmaxZero,
    /// √2 · erf⁻¹(2x - 1), by an approximation.
    Probit,
}

impl PostTransform {
    /// By the position among [`TRANSFORMS`], which numbers of newer operators are, too.
    pub fn of_number(number: i64) -> Result<PostTransform, OpError> {
        use PostTransform as P;
        let all = [P::None, P::Softmax, P::Logistic, P::SoftmaxZero, P::Probit];
        let found = usize::try_from(number).ok().and_then(|number| all.get(number));
        found.copied().ok_or_else(|| OpError(format!("parameter `post_transform` is {number}")))
    }

    pub fn of(params: &Params) -> Result<PostTransform, OpError> {
        let word = params.str("post_transform").unwrap_or("NONE");
        let number = TRANSFORMS.iter().position(|transform| *transform == word).map_or(-1, |number| number as i64);
        PostTransform::of_number(number)
    }

    /// The transformed scores of rows.
    pub fn apply(self, scores: Tensor<'_>) -> Tensor<'_> {
        match self {
            PostTransform::None => scores,
            PostTransform::Softmax => {
                let raised = (scores - scores.reduce("reduce_max", &[1])).exp();
                raised / raised.sum(&[1])
            }
            PostTransform::Logistic => scores.map(logistic),
            PostTransform::SoftmaxZero => {
                let most = scores.reduce("reduce_max", &[1]);
                let is_zero = |x: &Ex| x.abs().le(&x.lit(1e-7));
                let raised = scores
                    .map_with(&[most], |_, a| is_zero(&a[0]).select(&(&a[0] * (-&a[1]).exp()), &(&a[0] - &a[1]).exp()));
                let total = raised.map_with(&[scores], |_, a| is_zero(&a[1]).select(&a[0].lit(0.0), &a[0])).sum(&[1]);
                raised / total
            }
            PostTransform::Probit => scores.map(probit),
        }
    }
}

/// 1 / (1 + e⁻ˣ), without overflow.
pub(super) fn logistic(x: &Ex) -> Ex {
    let one = x.lit(1.0);
    let share = &one / (&one + (-x.abs()).exp());
    x.lt(&x.lit(0.0)).select(&(&one - &share), &share)
}

/// √2 · erf⁻¹(2x - 1) with Winitzki's approximation of erf⁻¹, in f32.
pub(super) fn probit(x: &Ex) -> Ex {
    const A: f32 = 0.147;
    let y = x.cast(DType::F32) * x.builder().number(DType::F32, 2.0);
    let y = &y - y.lit(1.0);
    let log = ((y.lit(1.0) - &y) * (y.lit(1.0) + &y)).math(MathFn::Log);
    let v = y.lit(f64::from(2.0 / (std::f32::consts::PI * A))) + y.lit(0.5) * &log;
    let w = y.lit(f64::from(1.0 / A)) * &log;
    let root = (-&v + (&v * &v - w).sqrt()).sqrt();
    let signed = y.lt(&y.lit(0.0)).select(&-&root, &root);
    (signed * y.lit(f64::from(std::f32::consts::SQRT_2))).cast(x.dtype())
}

/// The scores of two classes from that of the second one: [1 - x, x] of what it is transformed to.
pub(super) fn two_scores(score: Tensor<'_>, transform: PostTransform) -> Tensor<'_> {
    let second = match transform {
        PostTransform::Logistic => score.map(logistic),
        PostTransform::Probit => score.map(probit),
        _ => score,
    };
    score.graph().concat(&[second.map(|x| x.lit(1.0) - x), second], 1)
}

/// The labels of classes.
pub(super) struct ClassLabels(Vec<i64>);

impl ClassLabels {
    /// The labels of a list.
    pub fn of(params: &Params, name: &str) -> Result<ClassLabels, OpError> {
        let labels = params.ints(name).unwrap_or(&[]);
        reject_if(labels.is_empty(), || format!("parameter `{name}` is empty"))?;
        Ok(ClassLabels(labels.to_vec()))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The label of a class, by a rule for labels of fewer classes.
    pub fn get(&self, class: usize) -> i64 {
        self.0.get(class).copied().unwrap_or(class as i64)
    }

    /// Labels of positions, i64 both.
    pub fn at<'g>(&self, positions: Tensor<'g>) -> Tensor<'g> {
        let g = positions.graph();
        match self.0.iter().enumerate().all(|(i, label)| i as i64 == *label) {
            true => positions,
            false => g.i64s(&self.0).gather(positions, 0),
        }
    }

    /// The labels of the classes with the greatest scores of each row, the first of equals.
    pub fn best<'g>(&self, scores: Tensor<'g>) -> Tensor<'g> {
        let along = Params::new().with("axis", 1).with("keepdims", false);
        self.at(scores.graph().op("argmax", &[scores], along))
    }
}

/// The rows of the first operand, [rows, features]; a vector is one row.
pub(super) fn rows_of(x: Tensor<'_>) -> Result<Tensor<'_>> {
    let dims = x.dims()?;
    Ok(if dims.len() == 1 { x.reshape(Extents::of([Extent::ONE, dims.at(0)])) } else { x })
}

/// What inference knows of the rows of the first operand.
pub(super) fn row_dims(cx: &InferCtx<'_>) -> Result<Option<[Dim; 2]>, OpError> {
    let dims = crate::rules::open_rank_in(cx, 0, 1..=2)?;
    Ok(dims.map(|dims| match dims[..] {
        [rows, features] => [rows, features],
        _ => [Dim::Const(1), dims[0]],
    }))
}
