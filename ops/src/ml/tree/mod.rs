//! Ensembles of decision trees.

mod classifier;
mod forest;
mod indexed;
mod listed;
mod lists;
mod table;
mod walk;

use self::forest::{Forest, Reached, Walked};
use self::listed::Listing;
use self::table::Table;
pub(super) use self::table::Width;
use self::walk::{Combine, LeafForm, TREE_WORDS, Walk};
use super::score::{PostTransform, TRANSFORMS, rows_of};
use super::{DOMAIN, NUMBERS_READ, rows_with};
use crate::prelude::*;

pub(super) fn ops() -> Vec<OpDef> {
    vec![classifier::classifier(), regressor(), ensemble()]
}

/// Scores of rows.
struct Scores<'g> {
    /// What leaves give to each target, combined, [rows, targets].
    sums: Tensor<'g>,
    /// How many leaves gave something to each target, if that differs between rows.
    counts: Option<Tensor<'g>>,
    /// On which rows each target is given something.
    reached: Vec<Reached>,
}

/// The tables of leaves of a forest.
struct Leaves {
    form: LeafForm,
    /// Whether the forest's targets are followed by as many counters, each the number of leaves that add to a target.
    counted: bool,
    offsets: Vec<i64>,
    targets: Vec<i64>,
    numbers: Vec<f64>,
}

impl Leaves {
    fn new(forest: &Forest, trees: &[Walked], counted: bool, combine: Combine) -> Leaves {
        let all = || trees.iter().map(|tree| forest.leaves(tree));
        let is_row = |leaf: &[forest::LeafWeight]| {
            leaf.len() == forest.targets && leaf.iter().enumerate().all(|(i, weight)| i == weight.target as usize)
        };
        let alone = |leaf: &[forest::LeafWeight]| leaf.len() == 1 || leaf.is_empty() && combine == Combine::Sum;
        let one_target = |mut tree: Box<dyn Iterator<Item = &[forest::LeafWeight]> + '_>| {
            let mut target = None;
            tree.all(|leaf| alone(leaf) && leaf.iter().all(|w| *target.get_or_insert(w.target) == w.target))
        };
        let form = match counted {
            false if all().all(|tree| one_target(Box::new(tree))) => LeafForm::One,
            false if all().flatten().all(is_row) => LeafForm::Row,
            _ => LeafForm::List,
        };
        Leaves { form, counted, offsets: vec![0], targets: vec![], numbers: vec![] }
    }

    /// The word of a leaf, whose weights are noted.
    fn word(&mut self, forest: &Forest, node: u32, width: Width) -> i64 {
        let weights = forest.leaf(node);
        match self.form {
            LeafForm::One => width.bits(weights.first().map_or(0.0, |weight| weight.value)),
            LeafForm::Row => {
                self.numbers.extend(weights.iter().map(|weight| weight.value));
                (self.numbers.len() / forest.targets.max(1)) as i64 - 1
            }
            LeafForm::List => {
                for weight in weights {
                    self.targets.push(weight.target.into());
                    self.numbers.push(weight.value);
                    if self.counted {
                        self.targets.push(i64::from(weight.target) + forest.targets as i64);
                        self.numbers.push(1.0);
                    }
                }
                self.offsets.push(self.numbers.len() as i64);
                self.offsets.len() as i64 - 2
            }
        }
    }

    /// The operands of the kernel behind nodes and trees.
    fn tensors(&self, forest: &Forest, width: Width) -> Vec<Option<TensorData>> {
        let numbers = |columns: usize| {
            let dims = [(self.numbers.len() / columns.max(1)) as u64, columns as u64];
            let bytes: Vec<u8> = match width {
                Width::F32 => self.numbers.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
                Width::F64 => self.numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            TensorData::new(DenseType::new(width.number(), dims), bytes.into())
        };
        match self.form {
            LeafForm::One => vec![],
            LeafForm::Row => vec![numbers(forest.targets)],
            LeafForm::List => {
                let list = |words: &[i64]| table::words(width, words, 1);
                vec![list(&self.offsets), list(&self.targets), numbers(1)]
            }
        }
    }
}

/// Keys of the features of rows: integers in the order of the numbers.
fn keys<'g>(x: Tensor<'g>, width: Width, sided: bool) -> Result<Tensor<'g>> {
    let (g, dims, [least, greatest]) = (x.graph(), x.dims()?, width.ends());
    let number = |s: &ScalarBuilder, n: i64| s.constant(Scalar::from_i64(width.word(), n));
    if !sided {
        return Ok(g.map(&[x], width.word(), &dims, |s, a| width.key_of(s, &a[0], &number(s, greatest))));
    }
    let (rows, features) = (dims.at(0), dims.at(1));
    let x = x.reshape(Extents::of([rows, features, Extent::ONE]));
    let both = g.map(&[x], width.word(), Extents::of([rows, features, Extent::from(2)]), |s, a| {
        let nan = s.coord(2).eq(&s.coord(2).lit(0.0)).select(&number(s, greatest), &number(s, least));
        width.key_of(s, &a[0], &nan)
    });
    Ok(both.reshape(Extents::of([rows, features * 2])))
}

/// The rows of the first operand in the type of thresholds.
fn input(g: GraphScope<'_>) -> Result<(Tensor<'_>, Width)> {
    let x = rows_of(g.operand(0))?;
    let width = if x.ty()?.dtype == DType::F64 { Width::F64 } else { Width::F32 };
    Ok((x.convert(width.number()), width))
}

/// What the leaves of a forest give to rows. `counted`: it matters whether a target is given anything.
fn scores<'g>(
    (x, width): (Tensor<'g>, Width),
    forest: &Forest,
    combine: Combine,
    counted: bool,
    grain: Grain,
) -> Result<Scores<'g>> {
    let (g, dims) = (x.graph(), x.dims()?);
    let trees = forest.walk().or_fail(&g)?;
    let reached = forest.reached_targets(&trees);
    let counted = counted && reached.contains(&Reached::Sometimes);
    if combine != Combine::Sum && forest.weights.iter().any(|weight| !weight.value.is_finite()) {
        return Err(g.fail("weights of leaves must be finite where the least or greatest is taken"));
    }
    let (mut table, mut leaves) = (Table::new(forest, &trees, width), Leaves::new(forest, &trees, counted, combine));
    if let Some(last) = table.last_feature
        && !dims.at(1).is_surely_from(last as i64 + 1)
    {
        return Err(g.fail(format!("feature {last} is tested, of {}", dims.example()[1])));
    }
    let mut placed = vec![];
    for tree in &trees {
        let tree_at = table.add(tree, &mut |node| leaves.word(forest, node, width));
        let target = forest.leaves(tree).flatten().next().map_or(0, |weight| weight.target);
        placed.extend([tree_at.root, tree_at.depth, target.into()]);
    }
    let too_large = |_: std::num::TryFromIntError| OpError("the trees have too many nodes".into());
    i32::try_from(table.words.len().max(leaves.numbers.len())).map_err(too_large).or_fail(&g)?;
    let mut tables = vec![table::words(width, &table.words, 4), table::words(width, &placed, TREE_WORDS)];
    tables.extend(leaves.tensors(forest, width));
    let mut operands = vec![keys(x, width, table.sided)?];
    for data in tables {
        operands.push(g.constant(data.ok_or_else(|| g.fail("a table does not fill its shape"))?));
    }
    let targets = forest.targets as i64 * if counted { 2 } else { 1 };
    let made = DenseType::new(width.number(), Extents::of([dims.at(0), Extent::from(targets)]));
    let types = operands.iter().map(|tensor| tensor.ty()).collect::<Result<Vec<_>>>()?;
    let walk = Walk { width, form: leaves.form, combine, trees: trees.len() as u64, grain };
    let results = g.kernel(walk.kernel(&types, &made), &operands, &[made])?;
    let part = |at: usize| results[0].slice(1, at as i64, forest.targets as i64);
    match counted {
        true => Ok(Scores { sums: part(0), counts: Some(part(forest.targets)), reached }),
        false => Ok(Scores { sums: results[0], counts: None, reached }),
    }
}

/// How trees of a regression make one result.
#[derive(Clone, Copy)]
struct Aggregate {
    combine: Combine,
    /// The sum is divided by the number of trees.
    mean: bool,
    transform: PostTransform,
}

impl Aggregate {
    fn of(function: &str, transform: PostTransform) -> Aggregate {
        let (combine, mean) = match function {
            "AVERAGE" => (Combine::Sum, true),
            "MIN" => (Combine::Min, false),
            "MAX" => (Combine::Max, false),
            _ => (Combine::Sum, false),
        };
        Aggregate { combine, mean, transform }
    }

    /// The results of rows, in the type of thresholds.
    fn results<'g>(self, g: GraphScope<'g>, forest: &Forest, base: &[f64], grain: Grain) -> Result<Tensor<'g>> {
        let input = input(g)?;
        let scores = scores(input, forest, self.combine, self.combine != Combine::Sum, grain)?;
        let mut sums = scores.sums;
        if self.combine != Combine::Sum {
            sums = given_or_zero(&scores)?;
        }
        if self.mean {
            sums = sums / forest.roots.len() as f64;
        }
        if base.len() == forest.targets {
            let base = TensorData::from_fn(DenseType::new(input.1.number(), [base.len() as u64]), |i| {
                Scalar::from_f64(input.1.number(), base[i as usize])
            });
            sums = sums + g.constant(base);
        }
        // One score has no others to be compared with, and is no probability.
        let transform = match (forest.targets, self.transform) {
            (1, PostTransform::Probit) | (2.., _) => self.transform,
            _ => PostTransform::None,
        };
        Ok(transform.apply(sums))
    }
}

/// Combined numbers, 0 where there is none.
fn given_or_zero<'g>(scores: &Scores<'g>) -> Result<Tensor<'g>> {
    let (g, dims) = (scores.sums.graph(), scores.sums.dims()?);
    // Least and greatest of ones are one.
    match scores.counts {
        Some(counts) => {
            Ok(scores.sums.map_with(&[counts], |_, a| a[1].eq(&a[1].lit(1.0)).select(&a[0], &a[0].lit(0.0))))
        }
        None => {
            let reached: Vec<i64> = scores.reached.iter().map(|r| i64::from(*r != Reached::Never)).collect();
            let reached = g.i64s(&reached).reshape([1, dims.example()[1]]);
            Ok(scores.sums.map_with(&[reached], |_, a| a[1].ne(&a[1].lit(0.0)).select(&a[0], &a[0].lit(0.0))))
        }
    }
}

/// Parameters of both operators that list nodes.
fn node_params(def: OpDef) -> OpDef {
    def.operand("X", NUMBERS_READ)
        .maybe("nodes_treeids", ParamKind::Ints, "tree of each node; the first node of a tree is its root")
        .maybe("nodes_nodeids", ParamKind::Ints, "number of each node in its tree")
        .maybe("nodes_featureids", ParamKind::Ints, "feature that each node tests")
        .maybe("nodes_modes", ParamKind::Strs, "LEAF, or BRANCH_ with LEQ, LT, GTE, GT, EQ or NEQ")
        .maybe("nodes_values", ParamKind::Floats, "number that each node compares with")
        .maybe("nodes_values_as_tensor", ParamKind::Tensor, "the same as a tensor")
        .maybe("nodes_truenodeids", ParamKind::Ints, "where to go if the test holds")
        .maybe("nodes_falsenodeids", ParamKind::Ints, "where to go if it does not")
        .maybe("nodes_missing_value_tracks_true", ParamKind::Ints, "1: NaN passes the test")
        .maybe("nodes_hitrates", ParamKind::Floats, "No effect.")
        .maybe("nodes_hitrates_as_tensor", ParamKind::Tensor, "No effect.")
        .maybe("base_values", ParamKind::Floats, "added to scores")
        .maybe("base_values_as_tensor", ParamKind::Tensor, "the same as a tensor")
        .choice("post_transform", TRANSFORMS, "NONE", "applied to scores at last")
}

/// The numbers that are added to scores.
fn base_values(params: &Params) -> Result<Vec<f64>, OpError> {
    Ok(lists::numbers(params, "base_values", "base_values_as_tensor")?.unwrap_or_default())
}

fn regressor() -> OpDef {
    let compute = formula(|g, cx| {
        let targets = cx.outputs[0].dims[1] as usize;
        let forest = Listing { prefix: "target", targets }.forest(cx.params).or_fail(&g)?;
        let transform = PostTransform::of(cx.params).or_fail(&g)?;
        let aggregate = Aggregate::of(cx.params.str("aggregate_function").unwrap_or("SUM"), transform);
        let base = base_values(cx.params).or_fail(&g)?;
        Ok(aggregate.results(g, &forest, &base, cx.grain)?.convert(DType::F32))
    });
    let infer = rule(|cx| rows_with(cx, 0, cx.params.int("n_targets").unwrap_or(1), Some(DType::F32)));
    let doc = "Regression by trees: what the leaves give that a row reaches, combined for each target.";
    node_params(define("tree_ensemble_regressor", doc, compute, infer))
        .maybe("target_treeids", ParamKind::Ints, "tree of each weight")
        .maybe("target_nodeids", ParamKind::Ints, "leaf of each weight")
        .maybe("target_ids", ParamKind::Ints, "target of each weight")
        .maybe("target_weights", ParamKind::Floats, "weights of leaves")
        .maybe("target_weights_as_tensor", ParamKind::Tensor, "the same as a tensor")
        .param("n_targets", 1, "number of targets")
        .choice("aggregate_function", &["SUM", "AVERAGE", "MIN", "MAX"], "SUM", "how weights are combined")
        .onnx_of(DOMAIN, "TreeEnsembleRegressor", 1)
        .no_gradient()
        .ulp(4.0)
}

fn ensemble() -> OpDef {
    let compute = formula(|g, cx| {
        let forest = indexed::forest(cx.params, cx.outputs[0].dims[1] as usize).or_fail(&g)?;
        let transform = PostTransform::of_number(cx.params.int("post_transform").unwrap_or(0)).or_fail(&g)?;
        let function = match cx.params.int("aggregate_function").unwrap_or(1) {
            0 => "AVERAGE",
            1 => "SUM",
            2 => "MIN",
            3 => "MAX",
            other => return Err(g.fail(format!("parameter `aggregate_function` is {other}"))),
        };
        Aggregate::of(function, transform).results(g, &forest, &[], cx.grain)
    });
    let infer = rule(|cx| rows_with(cx, 0, cx.params.int("n_targets").unwrap_or(1), None));
    let doc = "Regression by trees whose branches and leaves have positions of their own.";
    define("tree_ensemble", doc, compute, infer)
        .operand("X", &[DType::F32, DType::F64])
        .maybe("tree_roots", ParamKind::Ints, "first node of each tree")
        .maybe("nodes_featureids", ParamKind::Ints, "feature that each node tests")
        .maybe("nodes_modes", ParamKind::Tensor, "0: ≤, 1: <, 2: ≥, 3: >, 4: =, 5: ≠, 6: is a member")
        .maybe("nodes_splits", ParamKind::Tensor, "number that each node compares with")
        .maybe("nodes_truenodeids", ParamKind::Ints, "where to go if the test holds")
        .maybe("nodes_trueleafs", ParamKind::Ints, "whether that is a leaf")
        .maybe("nodes_falsenodeids", ParamKind::Ints, "where to go if it does not")
        .maybe("nodes_falseleafs", ParamKind::Ints, "whether that is a leaf")
        .maybe("nodes_missing_value_tracks_true", ParamKind::Ints, "1: NaN passes the test")
        .maybe("nodes_hitrates", ParamKind::Tensor, "No effect.")
        .maybe("membership_values", ParamKind::Tensor, "sets of members, NaN behind each")
        .maybe("leaf_targetids", ParamKind::Ints, "target of each leaf")
        .maybe("leaf_weights", ParamKind::Tensor, "weight of each leaf")
        .param("n_targets", 1, "number of targets")
        .param("aggregate_function", 1, "0: mean, 1: sum, 2: least, 3: greatest")
        .param("post_transform", 0, "0: none, 1: softmax, 2: logistic, 3: softmax but for zeros, 4: probit")
        .onnx_of(DOMAIN, "TreeEnsemble", 5)
        .no_gradient()
        .ulp(4.0)
}
