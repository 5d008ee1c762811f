//! Sequences whose length a run decides: results by hand, and by the reference interpreter.

use tensorc::{DType, Options, Tensor};
use tensorc_frontend::onnx::proto::*;

use crate::flow::{agrees, load};
use crate::hosted::{mixed, open, results};
use crate::support::backend::options;
use crate::support::onnx_models::{branch, f32s, graph, i64s, int, node, untyped, with};

/// A branch of an `If` that gives a value of the graph around it after one node.
fn branch_of(name: &str, node: NodeProto, result: &str) -> AttributeProto {
    branch(name, graph(vec![], vec![node], &[result]))
}

/// Divides the rows of `x` into those with a positive sum and the others, in two sequences; joins the ones along a new axis and the
/// others along the first; gives the third row of the first, and how many there are.
fn partition() -> GraphProto {
    let keep = |name, list: &str, result: &str| branch_of(name, node("Identity", &[list], &[result]), result);
    let insert =
        |name, list: &str, result: &str| branch_of(name, node("SequenceInsert", &[list, "row"], &[result]), result);
    let body = vec![
        with(node("Gather", &["x", "i"], &["row"]), vec![int("axis", 0)]),
        with(node("ReduceSum", &["row"], &["sum"]), vec![int("keepdims", 0)]),
        node("Greater", &["sum", "nought"], &["is_positive"]),
        with(
            node("If", &["is_positive"], &["ones"]),
            vec![insert("then_branch", "s", "s1"), keep("else_branch", "s", "s2")],
        ),
        with(
            node("If", &["is_positive"], &["others"]),
            vec![keep("then_branch", "t", "t1"), insert("else_branch", "t", "t2")],
        ),
        node("Identity", &["condition"], &["on"]),
    ];
    let body = graph(["i", "condition", "s", "t"].map(untyped).to_vec(), body, &["on", "ones", "others"]);
    let nodes = vec![
        with(node("Shape", &["x"], &["rows"]), vec![int("end", 1)]),
        with(node("SequenceEmpty", &[], &["none"]), vec![int("dtype", 1)]),
        with(node("Loop", &["rows", "", "none", "none"], &["above", "below"]), vec![branch("body", body)]),
        with(node("ConcatFromSequence", &["above"], &["a"]), vec![int("axis", 1), int("new_axis", 1)]),
        with(node("ConcatFromSequence", &["below"], &["b"]), vec![int("axis", 0)]),
        node("SequenceAt", &["above", "two"], &["third"]),
        node("SequenceLength", &["above"], &["count"]),
        with(node("Cast", &["count"], &["n"]), vec![int("to", 1)]),
        node("SequenceErase", &["below", "two"], &["rest"]),
        with(node("ConcatFromSequence", &["rest"], &["c"]), vec![int("axis", 0)]),
    ];
    let mut g = graph(vec![open("x", &["rows", "m"])], nodes, &["a", "b", "third", "n", "c"]);
    g.initializer = vec![i64s("two", &[], &[2]), f32s("nought", &[], &[0.0])];
    g
}

#[test]
fn sequences_grow_in_branches_of_loops() {
    let (_file, model) = load(partition(), Options { poison: true, ..options() });
    let model = model.unwrap();
    for (n, m) in [(9, 5), (600, 2), (33, 7)] {
        let x = mixed(&[n, m]);
        let rows: Vec<Vec<f32>> = x.to_f32().unwrap().chunks(m as usize).map(<[f32]>::to_vec).collect();
        let (above, below): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.iter().sum::<f32>() > 0.0);
        let found = results(&model, &[("x", x.clone())]);
        let columns = (0..m as usize).flat_map(|i| above.iter().map(move |row| row[i]));
        assert_eq!(found[0], (vec![m, above.len() as u64], columns.collect()));
        assert_eq!(found[1], (vec![m * below.len() as u64], below.concat()));
        assert_eq!(found[2], (vec![m], above[2].clone()));
        assert_eq!(found[3], (vec![], vec![above.len() as f32]));
        let rest: Vec<f32> =
            below.iter().enumerate().filter(|(i, _)| *i != 2).flat_map(|(_, row)| row.clone()).collect();
        assert_eq!(found[4], (vec![rest.len() as u64], rest));
        agrees(&model, &[("x", x)]);
    }
}

#[test]
fn a_position_outside_of_a_sequence_is_an_error_of_the_run() {
    let (_file, model) = load(partition(), options());
    let model = model.unwrap();
    let few: Vec<f32> = (0..30).map(|i| if i < 2 { 1.0 } else { -1.0 }).collect();
    let few = Tensor::from_f32(&[30, 1], &few).unwrap();
    let error = model.run(&[("x", few)]).unwrap_err().to_string();
    assert!(error.contains("is outside of"), "{error}");
}

#[test]
fn an_output_is_given_as_its_elements_and_shapes() {
    let mut g = partition();
    g.output = vec![untyped("below")];
    let (_file, model) = load(g, options());
    let x = mixed(&[40, 3]);
    let below = x.to_f32().unwrap().chunks(3).filter(|row| row.iter().sum::<f32>() <= 0.0).flatten().copied().collect();
    let elements: Vec<f32> = below;
    let outputs = model.unwrap().run(&[("x", x)]).unwrap();
    let names: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["below.elements", "below.shapes"]);
    assert_eq!(outputs[0].1.to_f32().unwrap(), elements);
    let shapes = &outputs[1].1;
    assert_eq!((shapes.dtype(), shapes.dims()), (DType::I64, &[elements.len() as u64 / 3, 1][..]));
}

/// Divides `x` along its first axis by sizes that it computes from `q`; joins the parts along the second axis, with the last part
/// first.
fn divided() -> GraphProto {
    let nodes = vec![
        with(node("Cast", &["q"], &["sizes"]), vec![int("to", 7)]),
        with(node("SplitToSequence", &["x", "sizes"], &["parts"]), vec![int("axis", 0)]),
        node("SequenceAt", &["parts", "last"], &["end"]),
        node("SequenceErase", &["parts"], &["rest"]),
        node("SequenceInsert", &["rest", "end", "first"], &["all"]),
        with(node("ConcatFromSequence", &["all"], &["y"]), vec![int("axis", 0)]),
        with(node("SequenceMap", &["all"], &["turned"]), vec![branch("body", turned())]),
        with(node("ConcatFromSequence", &["turned"], &["z"]), vec![int("axis", 1)]),
    ];
    let mut g = graph(vec![open("x", &["n", "m"]), open("q", &["parts"])], nodes, &["y", "z"]);
    g.initializer = vec![i64s("last", &[], &[-1]), i64s("first", &[], &[0])];
    g
}

/// The transpose of a tensor.
fn turned() -> GraphProto {
    graph(vec![untyped("part")], vec![node("Transpose", &["part"], &["t"])], &["t"])
}

#[test]
fn parts_of_computed_sizes_are_joined_along_any_axis() {
    let (_file, model) = load(divided(), Options { poison: true, ..options() });
    let model = model.unwrap();
    for (sizes, m) in [(vec![2.0; 20], 3), (vec![3.0; 17], 2), ((0..25).map(|i| (i % 4) as f32).collect(), 5)] {
        let n = sizes.iter().sum::<f32>() as u64;
        let (x, q) = (mixed(&[n, m]), Tensor::from_f32(&[sizes.len() as u64], &sizes).unwrap());
        let rows: Vec<Vec<f32>> = x.to_f32().unwrap().chunks(m as usize).map(<[f32]>::to_vec).collect();
        let (front, end) = rows.split_at(rows.len() - sizes[sizes.len() - 1] as usize);
        let turned: Vec<Vec<f32>> = end.iter().chain(front).cloned().collect();
        let found = results(&model, &[("x", x.clone()), ("q", q.clone())]);
        assert_eq!(found[0], (vec![n, m], turned.concat()));
        let columns = (0..m as usize).flat_map(|i| turned.iter().map(move |row| row[i]));
        assert_eq!(found[1], (vec![m, n], columns.collect()));
        agrees(&model, &[("x", x), ("q", q)]);
    }
    let (x, q) = (mixed(&[50, 2]), Tensor::from_f32(&[20], &[2.0; 20]).unwrap());
    let error = model.run(&[("x", x), ("q", q)]).unwrap_err().to_string();
    assert!(error.contains("is outside of"), "the sizes are those of other rows: {error}");
}
