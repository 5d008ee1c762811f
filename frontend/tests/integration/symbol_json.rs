//! Symbol files: the text MXNet 1.9.1 writes for the same nets (`data/symbols/make.py`), files of older
//! versions, damaged files.

use proptest::prelude::*;
use tensorc_abi::DType;
use tensorc_frontend::symbol::{Symbol, SymbolError, attr_scope, name_scope, op, variable};

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

fn residual() -> Symbol {
    let x = variable("data").shape([0, 3, 8, 8]).build().unwrap();
    let conv = op("Convolution").input(&x).param("kernel", [3, 3]).param("pad", [1, 1]).param("num_filter", 3);
    let conv = conv.param("no_bias", true).name("conv").build().unwrap();
    let norm = op("BatchNorm").input(&conv).param("fix_gamma", false).param("eps", 2e-5).name("bn").build().unwrap();
    let y = op("Activation").input(&norm).param("act_type", "relu").build().unwrap();
    let pool = op("Pooling").input(&(&y + &x).unwrap()).param("global_pool", true).param("kernel", [7, 7]);
    let pool = pool.param("pool_type", "avg").build().unwrap();
    let flat = op("Flatten").input(&pool).build().unwrap();
    let fc = op("FullyConnected").input(&flat).param("num_hidden", 10).name("fc").build().unwrap();
    op("SoftmaxOutput").input(&fc).name("softmax").build().unwrap()
}

fn attributes() -> Symbol {
    let fc = {
        let _scope = attr_scope([("ctx_group", "dev1"), ("__mood__", "odd")]);
        let w =
            variable("w").lr_mult(2).wd_mult(0.5).dtype(DType::F16).init("[\"zero\", {}]").storage_type("row_sparse");
        let x = variable("x").shape([2, 0]).build().unwrap();
        let fc = op("FullyConnected").input(&x).arg("weight", &w.build().unwrap()).param("num_hidden", 3);
        fc.param("no_bias", true).attr("lr_mult", 1).name("fc").build().unwrap()
    };
    op("LeakyReLU").input(&fc).param("act_type", "prelu").attr("__quote__", "a \"b\"\\c\n\td").build().unwrap()
}

fn lists() -> Symbol {
    let cut = op("SliceChannel").input(&var("x")).param("num_outputs", 12).name("cut").build().unwrap();
    let parts: Vec<Symbol> = cut.outputs().collect();
    let joined = op("Concat").inputs(&parts).param("dim", 1).name("join").build().unwrap();
    let drop = op("Dropout").input(&joined).param("p", 0.25).build().unwrap();
    let sum = op("add_n").inputs(&parts[..3]).build().unwrap();
    let (rest, half) = ((1 - &joined).unwrap(), (&joined / 2.5).unwrap());
    Symbol::group([&drop, &parts[3], &sum, &rest, &half, &(&drop * &drop).unwrap()])
}

fn shared_state() -> Symbol {
    let (mean, var_) = (var("mean"), var("var"));
    let norm = |x: &Symbol, name: &str| {
        op("BatchNorm").input(x).arg("moving_mean", &mean).arg("moving_var", &var_).name(name).build().unwrap()
    };
    let b = norm(&norm(&var("x"), "a"), "b");
    Symbol::group([&b, &(&mean * 1).unwrap()])
}

/// A038: what is built here is written as MXNet writes it, and stays the same through loading, cloning and
/// saving.
#[test]
fn a038_texts_are_those_of_mxnet() {
    type Make = fn() -> Symbol;
    let nets: [(Make, &str); 4] = [
        (residual, include_str!("data/symbols/residual.json")),
        (attributes, include_str!("data/symbols/attributes.json")),
        (lists, include_str!("data/symbols/lists.json")),
        (shared_state, include_str!("data/symbols/shared_state.json")),
    ];
    for (net, text) in nets {
        let symbol = {
            let _names = name_scope();
            net()
        };
        assert_eq!(symbol.to_json(), text);
        let loaded = Symbol::from_json(text).unwrap();
        assert_eq!(loaded.to_json(), text);
        assert_eq!(loaded.clone().to_json(), text);
        assert_eq!(loaded.list_arguments(), symbol.list_arguments());
        assert_eq!(loaded.attr_dict(), symbol.attr_dict());
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, symbol) = (folder.path().join("net-symbol.json"), residual());
    symbol.save(&path).unwrap();
    assert_eq!(Symbol::load(&path).unwrap().to_json(), symbol.to_json());
}

/// A file of MXNet 0.8: parameters and attributes apart, no auxiliary operands, entries of two numbers.
const OLD: &str = r#"{"nodes": [
    {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
    {"op": "null", "param": {}, "name": "fc_weight", "inputs": [], "backward_source_id": -1},
    {"op": "null", "param": {}, "name": "fc_bias", "inputs": [], "backward_source_id": -1},
    {"op": "FullyConnected", "param": {"no_bias": "False", "num_hidden": "7"}, "name": "fc",
     "inputs": [[0, 0], [1, 0], [2, 0]], "backward_source_id": -1,
     "attr": {"ctx_group": "a", "weight_lr_mult": "1.2", "foo_wd_mult": "3"}},
    {"op": "null", "param": {}, "name": "bn_gamma", "inputs": [], "backward_source_id": -1},
    {"op": "null", "param": {}, "name": "bn_beta", "inputs": [], "backward_source_id": -1},
    {"op": "BatchNorm", "param": {"eps": "0.001", "momentum": "0.9", "fix_gamma": "True"}, "name": "bn",
     "inputs": [[3, 0], [4, 0], [5, 0]], "backward_source_id": -1},
    {"op": "argmax", "param": {"axis": "-1"}, "name": "best", "inputs": [[6, 0]], "backward_source_id": -1}
  ], "arg_nodes": [0, 1, 2, 4, 5], "heads": [[7, 0]]}"#;

#[test]
fn files_of_mxnet_0_8_are_upgraded() {
    let symbol = Symbol::from_json(OLD).unwrap();
    assert_eq!(symbol.list_arguments(), ["data", "fc_weight", "fc_bias", "bn_gamma", "bn_beta"]);
    assert_eq!(symbol.list_auxiliary_states(), ["bn_moving_mean", "bn_moving_var"]);
    let internals = symbol.internals();
    let attr = |output: &str, key: &str| internals.get(output).unwrap().attr(key);
    assert_eq!(attr("fc_output", "ctx_group").as_deref(), Some("a"));
    assert_eq!(attr("fc_output", "num_hidden").as_deref(), Some("7"));
    assert_eq!(attr("fc_weight", "__lr_mult__").as_deref(), Some("1.2"));
    assert_eq!(attr("fc_output", "weight_lr_mult").as_deref(), Some("1.2"));
    assert_eq!(attr("bn_moving_mean", "__init__").as_deref(), Some("[\"zero\", {}]"));
    assert_eq!(attr("bn_moving_var", "__init__").as_deref(), Some("[\"one\", {}]"));
    assert_eq!(attr("best_output", "axis"), None);
    let text = symbol.to_json();
    assert!(text.contains("[[3, 0, 0], [4, 0, 0], [5, 0, 0], [6, 0, 1], [7, 0, 1]]"), "{text}");
    assert_eq!(Symbol::from_json(&text).unwrap().to_json(), text);
    // From 0.9.5 on, -1 is the last axis.
    let newer = OLD.replace("\"heads\"", "\"attrs\": {\"mxnet_version\": [\"int\", 905]}, \"heads\"");
    let error = Symbol::from_json(&newer).unwrap_err();
    assert!(matches!(error, SymbolError::MissingOperands { needed: 5, given: 3, .. }), "{error}");
}

fn fails(text: &str, expected: &str) {
    let error = Symbol::from_json(text).unwrap_err().to_string();
    assert!(error.contains(expected), "`{error}` does not contain `{expected}`");
}

fn file(nodes: &str, rest: &str) -> String {
    format!("{{\"nodes\": [{nodes}], {rest}, \"attrs\": {{\"mxnet_version\": [\"int\", 10901]}}}}")
}

#[test]
fn wrong_files_are_refused_with_the_place() {
    let x = r#"{"op": "null", "name": "x", "inputs": []}"#;
    let relu = r#"{"op": "relu", "name": "y", "inputs": [[0, 0, 0]]}"#;
    let rest = r#""arg_nodes": [0], "heads": [[1, 0, 0]]"#;
    Symbol::from_json(&file(&format!("{x}, {relu}"), rest)).unwrap();
    fails("[1, 2", "not a symbol file");
    fails("[]", "not an object");
    fails(&file(&format!("{x}, {}", relu.replace("relu", "no_such_op")), rest), "node `y`: operator `no_such_op`");
    fails(&file(&format!("{x}, {}", relu.replace("\"name\"", "\"color\": 1, \"name\"")), rest), "field `color`");
    fails(
        &file(&format!("{x}, {relu}"), &rest.replace("\"arg_nodes\": [0]", "\"arg_nodes\": [1]")),
        "node 1 is not a variable",
    );
    fails(&file(&format!("{x}, {relu}"), &rest.replace("[[1, 0, 0]]", "[[2, 0, 0]]")), "heads: there is no node 2");
    fails(&file(&format!("{x}, {relu}"), &rest.replace("[[1, 0, 0]]", "[[1, 1, 0]]")), "no output 1");
    fails(&file(&format!("{x}, {}", relu.replace("[0, 0, 0]", "[1, 0, 0]")), rest), "depends on itself");
    fails(&file(&format!("{x}, {}", relu.replace("[0, 0, 0]", "[7, 0, 0]")), rest), "there is no node 7");
    fails(&file(&format!("{x}, {}", relu.replace("[[0, 0, 0]]", "[]")), rest), "has 0 operands, needs 1: ");
    // References forward are fine.
    let forward =
        file(&format!("{}, {x}", relu.replace("[0, 0, 0]", "[1, 0, 0]")), r#""arg_nodes": [1], "heads": [[0, 0, 0]]"#);
    assert_eq!(Symbol::from_json(&forward).unwrap().list_arguments(), ["x"]);
    // Graphs in nodes of other operators than those for control flow are read, and refused with the node's name.
    let foreach = r#"{"op": "_CachedOp", "name": "loop", "inputs": [[0, 0, 0]], "subgraphs": [
        {"nodes": [{"op": "null", "name": "z", "inputs": []}], "arg_nodes": [0], "heads": [[0, 0, 0]]}]}"#;
    fails(&file(&format!("{x}, {foreach}"), rest), "node `loop`: unsupported operator with subgraphs: `_CachedOp`");
}

#[test]
fn numpy_shapes_keep_their_meaning() {
    let text = |shape: &str| {
        let x = format!(r#"{{"op": "null", "name": "x", "attrs": {{"__shape__": "{shape}"}}, "inputs": []}}"#);
        file(&x, r#""arg_nodes": [0], "heads": [[0, 0, 0]]"#).replace("10901]", "10901], \"is_np_shape\": [\"int\", 1]")
    };
    let symbol = Symbol::from_json(&text("(-1, 3)")).unwrap();
    assert_eq!(symbol.attr("__shape__").as_deref(), Some("(0, 3)"));
    fails(&text("(0, 3)"), "an extent of 0");
}

/// Every `model-symbol.json` of MXNet 1.9.1 below the folder `TENSORC_MXNET_MODELS`, byte for byte.
#[test]
fn files_written_by_mxnet_stay_the_same() {
    let Some(folder) = std::env::var_os("TENSORC_MXNET_MODELS") else {
        return println!("skipped: TENSORC_MXNET_MODELS names no folder with networks of MXNet");
    };
    let (mut same, mut refused) = (0, vec![]);
    let mut open = vec![std::path::PathBuf::from(folder)];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if path.ends_with("model-symbol.json") {
            let text = std::fs::read_to_string(&path).unwrap();
            match Symbol::from_json(&text) {
                Ok(symbol) => {
                    let written = symbol.to_json();
                    let differs = written.lines().zip(text.lines()).find(|(a, b)| a != b);
                    match written == text {
                        true => same += 1,
                        false => refused.push(format!("{}: {differs:?}", path.display())),
                    }
                }
                Err(error) => refused.push(format!("{}: {error}", path.display())),
            }
        }
    }
    assert!(same > 0 && refused.is_empty(), "{same} files are the same; not:\n{}", refused.join("\n"));
    println!("{same} files");
}

/// What random nets are made of: an operator and its number of operands.
const PARTS: [(&str, usize); 6] =
    [("relu", 1), ("_Plus", 2), ("_copy", 1), ("broadcast_mul", 2), ("Concat", 3), ("BatchNorm", 1)];

fn random_net(choices: &[(usize, [usize; 3], bool)]) -> Symbol {
    let mut values = vec![var("x"), variable("w").lr_mult(0.5).build().unwrap()];
    for (i, (part, operands, named)) in choices.iter().enumerate() {
        let (name, count) = PARTS[part % PARTS.len()];
        let operands = operands[..count].iter().map(|o| &values[o % values.len()]);
        let mut builder = op(name).inputs(operands).attr("__i__", i);
        if *named {
            builder = builder.name(&format!("n{i}"));
        }
        values.push(builder.build().unwrap());
    }
    Symbol::group(&values[values.len().saturating_sub(2)..])
}

#[test]
fn names_with_control_characters_survive() {
    let text = op("relu").input(&Symbol::variable("x\u{8}\u{1f}\n\"")).name("y").build().unwrap().to_json();
    assert_eq!(Symbol::from_json(&text).unwrap().to_json(), text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_nets_survive_saving(choices in prop::collection::vec((0usize..6, [0usize..99, 0usize..99, 0usize..99], any::<bool>()), 1..40)) {
        let net = random_net(&choices);
        let text = net.to_json();
        let loaded = Symbol::from_json(&text).unwrap();
        prop_assert_eq!(loaded.to_json(), text);
        prop_assert_eq!(loaded.list_inputs(), net.list_inputs());
        prop_assert_eq!(loaded.list_auxiliary_states(), net.list_auxiliary_states());
        prop_assert_eq!(loaded.list_outputs(), net.list_outputs());
        prop_assert_eq!(loaded.internals().list_outputs(), net.internals().list_outputs());
        prop_assert_eq!(loaded.attr_dict(), net.attr_dict());
    }

    #[test]
    fn damaged_files_give_errors(at in 0usize..2900, byte in 32u8..127, cut in any::<bool>()) {
        let text = include_str!("data/symbols/residual.json");
        let damaged = if cut { text[..at].to_owned() } else {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = byte;
            String::from_utf8(bytes).unwrap()
        };
        // Some changes leave a valid file; none may panic.
        if let Ok(symbol) = Symbol::from_json(&damaged) {
            prop_assert!(!cut);
            prop_assert_eq!(Symbol::from_json(&symbol.to_json()).unwrap().to_json(), symbol.to_json());
        }
    }
}
