//! Einstein summation: any number of operands, by pairwise contraction.

use crate::prelude::*;

/// A subscript: a letter, or an axis that the ellipsis stands for, counted from its right end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// The labels of one term; the ellipsis stands for `hidden` axes.
fn term(text: &str, hidden: usize) -> Result<Vec<Label>, OpError> {
    let mut labels = vec![];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            labels.extend((0..hidden).rev().map(Label::Ellipsis));
            rest = after;
        } else if c.is_ascii_alphabetic() {
            labels.push(Label::Letter(c));
            rest = &rest[1..];
        } else {
            return Err(OpError(format!("parameter `equation`: unexpected `{c}`")));
        }
    }
    Ok(labels)
}

/// An equation for operands of known rank.
struct Equation {
    inputs: Vec<Vec<Label>>,
    output: Vec<Label>,
}

fn parse(equation: &str, ranks: &[usize]) -> Result<Equation, OpError> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(OpError(format!("parameter `equation`: {} terms for {} operands", terms.len(), ranks.len())));
    }
    let mut inputs = vec![];
    let mut widest = 0;
    for (i, (text, &rank)) in terms.iter().zip(ranks).enumerate() {
        let letters = text.chars().filter(|c| *c != '.').count();
        let hidden = if text.contains("...") { rank.checked_sub(letters) } else { Some(0) };
        let labels = term(text, hidden.unwrap_or(0))?;
        if hidden.is_none() || labels.len() != rank {
            return Err(OpError(format!("operand `Inputs` ({i}): `{text}` does not fit rank {rank}")));
        }
        widest = widest.max(hidden.unwrap_or(0));
        inputs.push(labels);
    }
    let output = match right {
        Some(right) => term(right, widest)?,
        None => {
            let all: Vec<Label> = inputs.iter().flatten().copied().collect();
            let mut once: Vec<Label> = all
                .iter()
                .copied()
                .filter(|l| matches!(l, Label::Letter(_)) && all.iter().filter(|m| *m == l).count() == 1)
                .collect();
            once.sort();
            (0..widest).rev().map(Label::Ellipsis).chain(once).collect()
        }
    };
    for (i, l) in output.iter().enumerate() {
        if output[..i].contains(l) || !inputs.iter().any(|t| t.contains(l)) {
            return Err(OpError(format!("parameter `equation`: {l:?} of the result is repeated or not an operand's")));
        }
    }
    Ok(Equation { inputs, output })
}

/// A tensor whose axes carry distinct labels.
#[derive(Clone)]
struct Labelled<'g> {
    value: Tensor<'g>,
    labels: Vec<Label>,
    dims: Vec<Extent>,
}

impl Labelled<'_> {
    fn extent(&self, label: Label) -> Option<Extent> {
        self.labels.iter().position(|l| *l == label).map(|i| self.dims[i])
    }
}

/// Repeated labels become one axis along the diagonal.
fn diagonal<'g>(value: Tensor<'g>, labels: &[Label]) -> Result<Labelled<'g>> {
    let from = value.dims()?;
    let mut unique: Vec<Label> = vec![];
    let (mut dims, mut axes): (Vec<Extent>, _) = (vec![], vec![]);
    for (l, n) in labels.iter().zip(from.all()) {
        let axis = unique.iter().position(|u| u == l).unwrap_or(unique.len());
        if axis == unique.len() {
            unique.push(*l);
            dims.push(n);
        }
        // One of them is 1 if they differ.
        dims[axis] = if n == 1 { dims[axis] } else { n };
        axes.push(axis as u32);
    }
    if unique.len() == labels.len() {
        return Ok(Labelled { value, labels: unique, dims });
    }
    let map = axes.iter().zip(from.all()).map(|(axis, n)| if n == 1 { Index::default() } else { Index::var(*axis) });
    let shape = dims.iter().copied().collect::<Extents>();
    Ok(Labelled { value: value.view(map.collect(), None, shape), labels: unique, dims })
}

/// Sums out every label that `keep` does not hold.
fn summed<'g>(x: Labelled<'g>, keep: &dyn Fn(Label) -> bool) -> Result<Labelled<'g>> {
    let axes: Vec<usize> = (0..x.labels.len()).filter(|&i| !keep(x.labels[i])).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let dtype = x.value.ty()?.dtype;
    let value = x.value.reduced(sum_of(dtype, &axes, false, Ex::clone, |s| s.cast(dtype)))?;
    let kept = |i: &usize| !axes.contains(i);
    let labels = (0..x.labels.len()).filter(kept).map(|i| x.labels[i]).collect();
    let dims = (0..x.dims.len()).filter(kept).map(|i| x.dims[i]).collect();
    Ok(Labelled { value, labels, dims })
}

/// The product of two tensors, keeping the labels that `keep` holds: shared ones first, then those
/// of the left, then those of the right operand.
fn contracted<'g>(x: Labelled<'g>, y: Labelled<'g>, keep: &dyn Fn(Label) -> bool) -> Result<Labelled<'g>> {
    let x = summed(x, &|l| keep(l) || y.labels.contains(&l))?;
    let y = summed(y, &|l| keep(l) || x.labels.contains(&l))?;
    let shared = |l: &&Label| y.labels.contains(l);
    let batch = x.labels.iter().filter(|l| keep(**l)).filter(shared);
    let left = x.labels.iter().filter(|l| !y.labels.contains(l));
    let right = y.labels.iter().filter(|l| !x.labels.contains(l));
    let out: Vec<Label> = batch.chain(left).chain(right).copied().collect();
    let inner: Vec<Label> = x.labels.iter().filter(|l| !keep(**l)).filter(shared).copied().collect();
    let all = [&out[..], &inner].concat();
    let wider = |a: Extent, b: Extent| if a.is_surely(b) || b == 1 { a } else { b };
    let both = |l: &Label| wider(x.extent(*l).unwrap_or(Extent::ONE), y.extent(*l).unwrap_or(Extent::ONE));
    let extents: Vec<Extent> = all.iter().map(both).collect();
    let map = |t: &Labelled<'g>| -> Result<Vec<Index>> {
        let index = |(label, &n): (&Label, &Extent)| {
            let axis = position(x.value.graph(), &all, label)?;
            Ok(if n == extents[axis] { Index::var(axis as u32) } else { Index::default() })
        };
        t.labels.iter().zip(&t.dims).map(index).collect()
    };
    let (lhs, rhs, out_rank) = (map(&x)?, map(&y)?, out.len());
    let dims = extents[..out_rank].to_vec();
    let extents = extents.into_iter().collect::<Extents>();
    let value = x.value.contract(y.value, Contraction::new(extents, out_rank, lhs, rhs));
    Ok(Labelled { value, labels: out, dims })
}

fn position(g: GraphScope<'_>, labels: &[Label], label: &Label) -> Result<usize> {
    labels.iter().position(|l| l == label).ok_or_else(|| g.fail("a label of the equation has no axis"))
}

fn einsum_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let values = g.given();
    let ranks = values.iter().map(|v| v.dims().map(|d| d.len())).collect::<Result<Vec<_>>>()?;
    let equation = parse(cx.params.str("equation").unwrap_or(""), &ranks).or_fail(&g)?;
    let terms = values.iter().zip(&equation.inputs).map(|(v, labels)| diagonal(*v, labels));
    let mut terms = terms.collect::<Result<Vec<_>>>()?;
    let mut rest = terms.split_off(1);
    let Some(mut whole) = terms.pop() else { return Err(g.fail("no operands")) };
    while !rest.is_empty() {
        let next = rest.remove(0);
        let later: Vec<Label> = rest.iter().flat_map(|t| t.labels.iter().copied()).collect();
        whole = contracted(whole, next, &|l| equation.output.contains(&l) || later.contains(&l))?;
    }
    let whole = summed(whole, &|l| equation.output.contains(&l))?;
    let perm = equation.output.iter().map(|l| position(g, &whole.labels, l)).collect::<Result<Vec<_>>>()?;
    Ok(whole.value.permute(&perm))
}

fn einsum_rule(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    let shapes: Option<Vec<_>> = (0..cx.input_count()).map(|i| cx.open_dims(i)).collect();
    let Some(shapes) = shapes else { return Ok(()) };
    let ranks: Vec<usize> = shapes.iter().map(|s| s.len()).collect();
    let text = cx.params.str("equation").unwrap_or("").to_owned();
    let equation = parse(&text, &ranks)?;
    let mut known: Vec<(Label, Dim)> = vec![];
    for (i, (labels, dims)) in equation.inputs.iter().zip(&shapes).enumerate() {
        for (axis, (l, d)) in labels.iter().zip(dims).enumerate() {
            match known.iter_mut().find(|(k, _)| k == l) {
                None => known.push((*l, *d)),
                Some((_, old)) => match (cx.resolve(*old), cx.resolve(*d)) {
                    (Dim::Const(1), d) => *old = d,
                    (_, Dim::Const(1)) => {}
                    (a, b) => cx.unify_dims(a, b, &format!("operand `Inputs` ({i}), axis {axis}"))?,
                },
            }
        }
    }
    let dims: Vec<Option<Dim>> =
        equation.output.iter().map(|l| known.iter().find(|(k, _)| k == l).map(|(_, d)| *d)).collect();
    partial(cx, 0, &dims)
}

pub fn einsum() -> OpDef {
    let doc = "Products summed over repeated subscripts, as in numpy.";
    define("einsum", doc, formula(einsum_body), shape_rule(einsum_rule))
        .group("Inputs", NUMBERS)
        .variadic()
        .required("equation", ParamKind::Str, "Subscripts of the operands, and of the result after `->`.")
        .onnx("Einsum", 12)
        .ulp(1.0)
}
