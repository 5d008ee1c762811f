//! Classification by trees.
//!
//! ONNX leaves open what a model with two classes and weights for one of them gives. ONNX Runtime's answers, by whether there are
//! weights for the second class and whether all weights are positive, are the rules here.

use super::forest::{Forest, Reached};
use super::listed::Listing;
use super::walk::Combine;
use super::{Scores, base_values, input, node_params, scores};
use crate::ml::score::{ClassLabels, PostTransform, logistic, probit};
use crate::ml::{DOMAIN, labelled};
use crate::prelude::*;

/// A model with its scores.
struct Classified<'g, 'f> {
    g: GraphScope<'g>,
    labels: ClassLabels,
    forest: &'f Forest,
    scores: Scores<'g>,
    base: Vec<f64>,
    transform: PostTransform,
}

impl<'g> Classified<'g, '_> {
    /// The scores of a class, [rows, 1].
    fn class(&self, class: usize) -> Tensor<'g> {
        self.scores.sums.slice(1, class as i64, 1i64)
    }

    /// Whether a class is given anything, as a number of each row that is not 0 then, [rows, 1].
    fn given(&self, class: usize) -> Result<Tensor<'g>> {
        match self.scores.counts {
            Some(counts) => Ok(counts.slice(1, class as i64, 1i64)),
            None => {
                let always = self.scores.reached[class] != Reached::Never;
                Ok(self.class(class).map(|x| x.lit(if always { 1.0 } else { 0.0 })))
            }
        }
    }

    /// Labels and scores of more than two classes: the greatest score wins among classes that are given any.
    fn of_many(&self) -> Result<[Tensor<'g>; 2]> {
        let mut columns = vec![];
        let mut candidates = vec![];
        for class in 0..self.labels.len() {
            let base = self.base.get(class).copied();
            let column = base.map_or(self.class(class), |base| self.class(class) + base);
            let given = self.given(class)?;
            candidates.push(match base {
                Some(_) => column,
                None => column
                    .map_with(&[given], |_, a| a[1].gt(&a[1].lit(0.0)).select(&a[0], &a[0].lit(f64::NEG_INFINITY))),
            });
            columns.push(column);
        }
        let scores = self.g.concat(&columns, 1);
        let all = self.base.len() >= self.labels.len() || self.scores.reached.iter().all(|r| *r == Reached::Always);
        let best = self.labels.best(if all { scores } else { self.g.concat(&candidates, 1) });
        Ok([best, self.transform.apply(scores)])
    }

    /// Whether all weights are of one class, and none is negative.
    fn weights(&self) -> (bool, bool) {
        let weights = &self.forest.weights;
        let one = weights.first().is_some_and(|first| weights.iter().all(|w| w.target == first.target));
        (one, weights.iter().all(|w| w.value >= 0.0))
    }

    /// The label by the score that decides, [rows].
    fn label(&self, decides: Tensor<'g>) -> Result<Tensor<'g>> {
        let (one, positive) = self.weights();
        let [negative, chosen] = match one && self.labels.len() == 2 {
            true => [self.labels.get(0), self.labels.get(1)],
            false => [0, 1],
        };
        let threshold = if one && positive && self.labels.len() == 2 { 0.5 } else { 0.0 };
        let dims = decides.dims()?;
        let label = self.g.map(&[decides], DType::I64, &dims, |s, a| {
            let [negative, chosen] = [negative, chosen].map(|label| s.constant(Scalar::i64(label)));
            a[0].gt(&a[0].lit(threshold)).select(&chosen, &negative)
        });
        Ok(label.reshape(Extents::of([dims.at(0)])))
    }

    /// Scores of two classes from the only one, [rows, 2].
    fn two_of_one(&self, score: Tensor<'g>) -> Tensor<'g> {
        let (one, positive) = self.weights();
        let both = |first: &dyn Fn(&Ex) -> Ex, second: &dyn Fn(&Ex) -> Ex| {
            self.g.concat(&[score.map(|x| first(x)), score.map(|x| second(x))], 1)
        };
        match self.transform {
            PostTransform::Probit => both(&probit, &|x| x.lit(0.0)),
            PostTransform::Logistic => both(&|x| logistic(&-x), &logistic),
            _ if one && positive => both(&|x| x.lit(1.0) - x, &Ex::clone),
            _ => both(&|x| -x, &Ex::clone),
        }
    }

    /// Labels and scores of two classes.
    fn of_two(&self) -> Result<[Tensor<'g>; 2]> {
        let (mut first, mut second, given) = (self.class(0), self.class(1), self.given(1)?);
        let is_given = |x: &Ex| x.gt(&x.lit(0.0));
        if let [a, b] = self.base[..] {
            let chosen = second.map_with(&[first, given], |_, x| {
                is_given(&x[2]).select(&(x[1].lit(b) + &x[1]), &(&x[0] + x[0].lit(b)))
            });
            first = first.map_with(&[chosen, given], |_, x| is_given(&x[2]).select(&-&x[1], &(&x[0] + x[0].lit(a))));
            second = chosen;
            let decides = second.map_with(&[first, given], |_, x| is_given(&x[2]).select(&x[0], &x[1]));
            return Ok([self.label(decides)?, self.transform.apply(self.g.concat(&[first, second], 1))]);
        }
        if let [base] = self.base[..] {
            first = first + base;
        }
        let decides = second.map_with(&[first, given], |_, x| is_given(&x[2]).select(&x[0], &x[1]));
        let label = self.label(decides)?;
        let both = || self.transform.apply(self.g.concat(&[first, second], 1));
        let scores = match self.scores.reached[1] {
            Reached::Always => both(),
            Reached::Never => self.two_of_one(first),
            Reached::Sometimes => {
                both().map_with(&[self.two_of_one(first), given], |_, x| is_given(&x[2]).select(&x[0], &x[1]))
            }
        };
        Ok([label, scores])
    }

    /// The label and the score of the only class.
    fn of_one(&self) -> Result<[Tensor<'g>; 2]> {
        let score = self.base.first().map_or(self.class(0), |base| self.class(0) + *base);
        let probability = self.transform == PostTransform::Probit;
        Ok([self.label(score)?, if probability { score.map(probit) } else { score }])
    }
}

pub(super) fn classifier() -> OpDef {
    let compute = formulas(|g, cx| {
        let labels = ClassLabels::of(cx.params, "classlabels_int64s").or_fail(&g)?;
        let forest = Listing { prefix: "class", targets: labels.len() }.forest(cx.params).or_fail(&g)?;
        let transform = PostTransform::of(cx.params).or_fail(&g)?;
        let base = base_values(cx.params).or_fail(&g)?;
        let scores = scores(input(g)?, &forest, Combine::Sum, labels.len() > 1, cx.grain)?;
        let classes = labels.len();
        let made = Classified { g, labels, forest: &forest, scores, base, transform };
        let [label, scores] = match classes {
            1 => made.of_one(),
            2 => made.of_two(),
            _ => made.of_many(),
        }?;
        Ok(vec![label, scores.convert(DType::F32)])
    });
    let infer = rule(|cx| {
        let labels = ClassLabels::of(cx.params, "classlabels_int64s")?;
        labelled(cx, labels.len())
    });
    let doc = "Classification by trees: the label of the best class, and the scores of all.";
    node_params(define("tree_ensemble_classifier", doc, compute, infer))
        .maybe("class_treeids", ParamKind::Ints, "tree of each weight")
        .maybe("class_nodeids", ParamKind::Ints, "leaf of each weight")
        .maybe("class_ids", ParamKind::Ints, "class of each weight")
        .maybe("class_weights", ParamKind::Floats, "weights of leaves")
        .maybe("class_weights_as_tensor", ParamKind::Tensor, "the same as a tensor")
        .maybe("classlabels_int64s", ParamKind::Ints, "labels of classes")
        .outputs(2, 2)
        .onnx_of(DOMAIN, "TreeEnsembleClassifier", 1)
        .no_gradient()
        .ulp(4.0)
}
