//! Support vector machines.

use super::linear::product;
use super::score::{ClassLabels, PostTransform, TRANSFORMS, logistic, row_dims, rows_of, two_scores};
use super::{DOMAIN, NUMBERS_READ, f32s, labelled, rows_with};
use crate::prelude::*;

pub(super) fn ops() -> Vec<OpDef> {
    vec![regressor(), classifier()]
}

/// What rows are compared with support vectors by.
const KERNELS: &[&str] = &["LINEAR", "POLY", "RBF", "SIGMOID"];

/// The kernel function of rows with vectors, [rows, vectors].
fn kernel<'g>(x: Tensor<'g>, vectors: &[f64], count: usize, params: &Params) -> Result<Tensor<'g>> {
    let given = params.floats("kernel_params").unwrap_or(&[]);
    let [gamma, coef, degree] = [0, 1, 2].map(|i| given.get(i).copied().unwrap_or(0.0));
    match params.str("kernel_type").unwrap_or("LINEAR") {
        "RBF" => {
            let (g, features) = (x.graph(), vectors.len() / count.max(1));
            let vectors = f32s(g, &[count, features], vectors)?;
            let (rows, count, features) = (x.dims()?.at(0), Extent::from(count as i64), Extent::from(features as i64));
            let dims = Extents::of([rows, count, features]);
            let [left, right] = [0, 1].map(|own| vec![Index::var(own), Index::var(2)]);
            let difference = x.view(left, None, &dims) - vectors.view(right, None, &dims);
            let squares = (difference * difference).sum(&[2]).reshape(Extents::of([rows, count]));
            Ok(squares.map(|d| (d * d.lit(-gamma)).exp()))
        }
        word => {
            let dots = product(x, vectors, count, &[])?;
            Ok(match word {
                "POLY" => dots.map(|d| (d * d.lit(gamma) + d.lit(coef)).pow(&d.lit(degree))),
                "SIGMOID" => dots.map(|d| (d * d.lit(gamma) + d.lit(coef)).math(MathFn::Tanh)),
                _ => dots,
            })
        }
    }
}

/// A number from a list, or an error that names it.
fn first(params: &Params, name: &str) -> Result<f64, OpError> {
    let list = params.floats(name).unwrap_or(&[]);
    list.first().copied().ok_or_else(|| OpError(format!("parameter `{name}` is empty")))
}

/// A list that is divided among so many things.
fn divided<'p>(params: &'p Params, name: &str, among: usize) -> Result<&'p [f64], OpError> {
    let list = params.floats(name).unwrap_or(&[]);
    reject_if(list.is_empty() || among == 0 || !list.len().is_multiple_of(among), || {
        format!("parameter `{name}` has {} entries for {among}", list.len())
    })?;
    Ok(list)
}

/// The operand has as many features as a list has entries for each of some things.
fn features(cx: &mut InferCtx<'_>, list: usize, among: usize) -> Result<(), OpError> {
    if let Some([_, found]) = row_dims(cx)? {
        cx.unify_dims(Dim::Const((list / among) as u64), found, "operand `X`, features")?;
    }
    Ok(())
}

fn machine(def: OpDef) -> OpDef {
    def.operand("X", NUMBERS_READ)
        .maybe("coefficients", ParamKind::Floats, "factors of kernel functions, or of features without support vectors")
        .maybe("kernel_params", ParamKind::Floats, "gamma, coef0, degree")
        .choice("kernel_type", KERNELS, "LINEAR", "x·v, (γ x·v + c)ᵈ, exp(-γ |x - v|²), or tanh(γ x·v + c)")
        .choice("post_transform", TRANSFORMS, "NONE", "applied to scores at last")
        .maybe("rho", ParamKind::Floats, "added to sums")
        .maybe("support_vectors", ParamKind::Floats, "[vectors, features]")
}

/// The number of support vectors of a regression, and the list that gives the number of features.
fn supports(params: &Params) -> Result<(usize, &[f64]), OpError> {
    first(params, "rho")?;
    match params.int("n_supports").unwrap_or(0) {
        0 => divided(params, "coefficients", 1).map(|list| (0, list)),
        count => {
            let count = usize::try_from(count).map_err(|_| OpError(format!("parameter `n_supports` is {count}")))?;
            let factors = params.floats("coefficients").map_or(0, <[f64]>::len);
            reject_if(factors != count, || format!("parameter `coefficients` has {factors} entries for {count}"))?;
            divided(params, "support_vectors", count).map(|list| (count, list))
        }
    }
}

fn regressor() -> OpDef {
    let compute = formula(|g, cx| {
        let params = cx.params;
        let (count, list) = supports(params).or_fail(&g)?;
        let (factors, rho) = (params.floats("coefficients").unwrap_or(&[]), first(params, "rho").or_fail(&g)?);
        let x = rows_of(g.operand(0))?.convert(DType::F32);
        let compared = if count > 0 { kernel(x, list, count, params)? } else { x };
        let sums = product(compared, factors, 1, &[rho])?;
        Ok(match params.int("one_class").unwrap_or(0) {
            0 => sums,
            _ => sums.map(|x| x.gt(&x.lit(0.0)).select(&x.lit(1.0), &x.lit(-1.0))),
        })
    });
    let infer = rule(|cx| {
        let (count, list) = supports(cx.params).map(|(count, list)| (count, list.len()))?;
        rows_with(cx, 0, 1, Some(DType::F32))?;
        features(cx, list, count.max(1))
    });
    let doc = "Regression by support vectors: kernel functions of rows with them, times coefficients.";
    machine(define("svm_regressor", doc, compute, infer))
        .param("n_supports", 0, "number of support vectors; 0: a linear model")
        .param("one_class", 0, "1: the result is the sign, 1 or -1")
        .onnx_of(DOMAIN, "SVMRegressor", 1)
        .no_gradient()
        .ulp(16.0)
}

/// What a classifier is made of.
struct Machine {
    labels: ClassLabels,
    /// Support vectors of each class; none: a linear model.
    per_class: Vec<usize>,
    probabilities: bool,
}

impl Machine {
    fn of(params: &Params) -> Result<Machine, OpError> {
        let labels = ClassLabels::of(params, "classlabels_ints")?;
        let classes = labels.len();
        let counts = params.ints("vectors_per_class").unwrap_or(&[]).iter().map(|n| usize::try_from(*n));
        let per_class: Vec<usize> =
            counts.collect::<Result<_, _>>().map_err(|_| OpError("a class has a negative number of vectors".into()))?;
        let per_class = if per_class.iter().all(|n| *n == 0) { vec![] } else { per_class };
        let vectors = per_class.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let vectors = vectors.ok_or_else(|| OpError("there are too many vectors".into()))?;
        let of = |name: &str| params.floats(name).map_or(0, <[f64]>::len);
        let (pairs, given) = (classes * (classes - 1) / 2, of("prob_a"));
        reject_if(of("prob_b") != given, || "parameters `prob_a` and `prob_b` differ in length")?;
        if vectors == 0 {
            first(params, "rho")?;
            divided(params, "coefficients", classes)?;
            return Ok(Machine { labels, per_class, probabilities: false });
        }
        reject_if(classes < 2 || per_class.len() != classes, || {
            format!("parameter `vectors_per_class` has {} entries for {classes} classes", per_class.len())
        })?;
        divided(params, "support_vectors", vectors)?;
        let needed = [("coefficients", (classes - 1).checked_mul(vectors)), ("rho", Some(pairs))];
        let needed = needed.into_iter().chain((given > 0).then_some(("prob_a", Some(pairs))));
        for (name, needed) in needed {
            reject_if(needed.is_none_or(|n| of(name) < n), || {
                format!("parameter `{name}` has {} entries for {classes} classes and {vectors} vectors", of(name))
            })?;
        }
        Ok(Machine { labels, per_class, probabilities: given > 0 })
    }

    fn vectors(&self) -> usize {
        self.per_class.iter().sum()
    }

    /// Pairs of classes, the lower one first.
    fn pairs(&self) -> Vec<[usize; 2]> {
        let classes = self.labels.len();
        (0..classes).flat_map(|i| (i + 1..classes).map(move |j| [i, j])).collect()
    }

    /// Columns of the scores.
    fn columns(&self) -> usize {
        match self.labels.len() {
            classes if self.per_class.is_empty() || self.probabilities => classes,
            classes if classes > 2 => self.pairs().len(),
            _ => 2,
        }
    }

    /// The factors of kernel functions in the decision of each pair, [vectors, pairs].
    fn factors(&self, coefficients: &[f64]) -> Vec<f64> {
        let (pairs, vectors) = (self.pairs(), self.vectors());
        let classes = self.per_class.iter().enumerate().flat_map(|(class, n)| std::iter::repeat_n(class, *n));
        let mut all = vec![];
        for (vector, class) in classes.enumerate() {
            for [i, j] in &pairs {
                let row = if class == *i { Some(j - 1) } else { (class == *j).then_some(*i) };
                all.push(row.map_or(0.0, |row| coefficients[row * vectors + vector]));
            }
        }
        all
    }
}

/// How many pairs each class wins, [rows, classes].
fn votes<'g>(decisions: Tensor<'g>, machine: &Machine) -> Result<Tensor<'g>> {
    let (g, rows, pairs) = (decisions.graph(), decisions.dims()?.at(0), machine.pairs());
    let classes = machine.labels.len();
    let wins = decisions.map(|d| d.gt(&d.lit(0.0)).select(&d.lit(1.0), &d.lit(0.0)));
    let [mut won, mut lost] = [vec![0.0; pairs.len() * classes], vec![0.0; pairs.len() * classes]];
    for (pair, [i, j]) in pairs.iter().enumerate() {
        won[pair * classes + i] = 1.0;
        lost[pair * classes + j] = 1.0;
    }
    let table = |numbers: &[f64]| {
        let ty = DenseType::new(DType::F64, [pairs.len() as u64, classes as u64]);
        g.constant(TensorData::from_fn(ty, |i| Scalar::from_f64(DType::F64, numbers[i as usize])))
    };
    let losses = wins.map(|w| w.lit(1.0) - w);
    let all = wins.call("matmul", &[table(&won)]) + losses.call("matmul", &[table(&lost)]);
    Ok(all.reshape(Extents::of([rows, Extent::from(classes as i64)])))
}

/// Probabilities of pairs, with the parameters of their sigmoids.
fn pair_probabilities<'g>(decisions: Tensor<'g>, params: &Params, pairs: usize) -> Result<Tensor<'g>> {
    let g = decisions.graph();
    let [a, b] = ["prob_a", "prob_b"].map(|name| f32s(g, &[1, pairs], &params.floats(name).unwrap_or(&[])[..pairs]));
    Ok(decisions.convert(DType::F32).map_with(&[a?, b?], |_, x| {
        let value = x[0].lit(1.0) - logistic(&(&x[0] * &x[1] + &x[2]));
        value.max(&value.lit(1e-7)).min(&value.lit(f64::from(1.0 - 1e-7f32)))
    }))
}

fn scored<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>, machine: &Machine) -> Result<Vec<Tensor<'g>>> {
    let (params, classes) = (cx.params, machine.labels.len());
    let transform = PostTransform::of(params).or_fail(&g)?;
    let x = rows_of(g.operand(0))?.convert(DType::F32);
    let coefficients = params.floats("coefficients").unwrap_or(&[]);
    if machine.per_class.is_empty() {
        let rho = vec![first(params, "rho").or_fail(&g)?; classes];
        let scores = product(x, coefficients, classes, &rho)?;
        return Ok(vec![linear_label(scores, machine, coefficients)?, transform.apply(scores)]);
    }
    let vectors = params.floats("support_vectors").unwrap_or(&[]);
    let pairs = machine.pairs().len();
    let compared = kernel(x, vectors, machine.vectors(), params)?.convert(DType::F64);
    let wide = |dims: [usize; 2], numbers: &[f64]| {
        let ty = DenseType::new(DType::F64, dims.map(|n| n as u64));
        g.constant(TensorData::from_fn(ty, |i| Scalar::from_f64(DType::F64, numbers[i as usize])))
    };
    let factors = wide([machine.vectors(), pairs], &machine.factors(coefficients));
    let rho = wide([1, pairs], &params.floats("rho").unwrap_or(&[])[..pairs]);
    let decisions = compared.call("matmul", &[factors]) + rho;
    let label = machine.labels.best(votes(decisions, machine)?);
    if machine.probabilities {
        let of_pairs = pair_probabilities(decisions, params, pairs)?;
        let joint = super::coupling::coupled(of_pairs, classes)?;
        return Ok(vec![label, transform.apply(joint)]);
    }
    let scores = decisions.convert(DType::F32);
    Ok(vec![label, if classes > 2 { transform.apply(scores) } else { svc_scores(scores, transform) }])
}

/// The two scores of a machine of two classes from its decision.
fn svc_scores(decision: Tensor<'_>, transform: PostTransform) -> Tensor<'_> {
    match transform {
        PostTransform::None => decision.graph().concat(&[decision.map(|x| -x), decision], 1),
        _ => two_scores(decision, transform),
    }
}

/// The label by scores of classes: with two, the second wins if any score is positive enough.
fn linear_label<'g>(scores: Tensor<'g>, machine: &Machine, coefficients: &[f64]) -> Result<Tensor<'g>> {
    let best = machine.labels.best(scores);
    if machine.labels.len() != 2 {
        return Ok(best);
    }
    let (g, rows) = (scores.graph(), scores.dims()?.at(0));
    let positive = coefficients.iter().all(|x| *x >= 0.0);
    let most = scores.reduce("reduce_max", &[1]).reshape(Extents::of([rows]));
    let second = machine.labels.get(1);
    Ok(g.map(&[best, most], DType::I64, Extents::of([rows]), |s, a| {
        let wins = if positive { a[1].ge(&a[1].lit(0.5)) } else { a[1].gt(&a[1].lit(0.0)) };
        wins.select(&s.constant(Scalar::i64(second)), &a[0])
    }))
}

fn classifier() -> OpDef {
    let compute = formulas(|g, cx| {
        let machine = Machine::of(cx.params).or_fail(&g)?;
        scored(g, cx, &machine)
    });
    let infer = rule(|cx| {
        let machine = Machine::of(cx.params)?;
        labelled(cx, machine.columns())?;
        let (name, among) = match machine.vectors() {
            0 => ("coefficients", machine.labels.len()),
            vectors => ("support_vectors", vectors),
        };
        let list = cx.params.floats(name).map_or(0, <[f64]>::len);
        features(cx, list, among)
    });
    let doc = "Classification by support vectors: the class that wins most pairs, and scores of pairs or probabilities of classes.";
    machine(define("svm_classifier", doc, compute, infer))
        .maybe("classlabels_ints", ParamKind::Ints, "labels of classes")
        .maybe("vectors_per_class", ParamKind::Ints, "support vectors of each class; none: a linear model")
        .maybe("prob_a", ParamKind::Floats, "slopes of the sigmoids of pairs")
        .maybe("prob_b", ParamKind::Floats, "offsets of the sigmoids of pairs")
        .outputs(2, 2)
        .onnx_of(DOMAIN, "SVMClassifier", 1)
        .no_gradient()
        .ulp(64.0)
}
