//! Composing symbols: operands by position and name, networks in networks, listings, attributes, errors.

use tensorc_frontend::symbol::{Symbol, SymbolError, name_scope, op, variable};

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

fn fc(x: &Symbol, hidden: usize, name: &str) -> Symbol {
    op("FullyConnected").input(x).param("num_hidden", hidden).name(name).build().unwrap()
}

fn two_layers() -> Symbol {
    fc(&fc(&var("data"), 10, "fc1"), 100, "fc2")
}

/// A032.
#[test]
fn a032_internals_are_nets_of_their_own() {
    let net = two_layers();
    assert_eq!(net.list_arguments(), ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"]);
    assert_eq!(net.list_outputs(), ["fc2_output"]);
    let first = net.internals().get("fc1_output").unwrap();
    assert_eq!(first.list_arguments(), fc(&var("data"), 10, "fc1").list_arguments());
    assert_eq!(
        net.internals().list_outputs(),
        ["data", "fc1_weight", "fc1_bias", "fc1_output", "fc2_weight", "fc2_bias", "fc2_output"]
    );
    assert!(matches!(net.get("fc1_output"), Err(SymbolError::UnknownOutput { .. })));
    assert!(matches!(net.output(1), Err(SymbolError::OutputRange { outputs: 1, .. })));
    let twice = Symbol::group([&net, &net]);
    assert!(matches!(twice.get("fc2_output"), Err(SymbolError::AmbiguousOutput { .. })));
}

/// A033.
#[test]
fn a033_children_are_direct_operands() {
    let net = two_layers();
    let children = net.children().unwrap();
    assert_eq!(children.list_outputs(), ["fc1_output", "fc2_weight", "fc2_bias"]);
    assert_eq!(children.children().unwrap().list_outputs(), ["data", "fc1_weight", "fc1_bias"]);
    assert!(var("x").children().is_none());
}

/// A034.
#[test]
fn a034_a_net_takes_the_place_of_a_variable() {
    let net1 = two_layers();
    let fc3 = op("FullyConnected").param("num_hidden", 10).name("fc3").build().unwrap();
    assert_eq!(fc3.list_arguments(), ["fc3_data", "fc3_weight", "fc3_bias"]);
    let relu = op("Activation").input(&fc3).param("act_type", "relu").build().unwrap();
    let net2 = fc(&relu, 20, "fc4");
    let composed = net2.compose_as("composed", &[("fc3_data", &net1)]).unwrap();
    assert_eq!(
        composed.list_arguments(),
        [
            "data",
            "fc1_weight",
            "fc1_bias",
            "fc2_weight",
            "fc2_bias",
            "fc3_weight",
            "fc3_bias",
            "fc4_weight",
            "fc4_bias"
        ]
    );
    assert_eq!(composed.list_outputs(), ["composed_output"]);
    // The net that was composed is as it was.
    assert_eq!(net2.list_arguments()[0], "fc3_data");
    assert_eq!(net2.list_outputs(), ["fc4_output"]);
    let both = Symbol::group([&composed, &net1]);
    assert_eq!((both.len(), both.list_outputs().len()), (2, 2));
    assert_eq!(both.name(), None);
}

/// A035.
#[test]
fn a035_unknown_operands_are_refused_with_candidates() {
    let x = var("x");
    let error = op("FullyConnected").arg("q", &x).param("num_hidden", 3).name("fc").build().unwrap_err();
    assert_eq!(error.to_string(), "`fc` has no argument `q`; its arguments are: data, weight, bias");
    let net = fc(&var("data"), 3, "fc");
    let error = net.compose(&[("q", &x)]).unwrap_err();
    assert_eq!(error.to_string(), "`fc` has no argument `q`; its arguments are: data, fc_weight, fc_bias");
    assert_eq!(net.compose(&[("data", &var("q"))]).unwrap().list_arguments(), ["q", "fc_weight", "fc_bias"]);
    let many = [&x, &x, &x, &x];
    let error = op("FullyConnected").inputs(many).param("num_hidden", 3).build().unwrap_err();
    assert!(matches!(error, SymbolError::TooManyOperands { most: 3, given: 4, .. }), "{error}");
    let error = op("relu").input(&Symbol::group([&x, &x])).build().unwrap_err();
    assert!(matches!(error, SymbolError::NotSingle { outputs: 2, .. }), "{error}");
    let error = op("relu").input(&x).arg("data", &x).build().unwrap_err();
    assert!(error.to_string().contains("data"), "{error}");
    let error = op("no_such_op").input(&x).build().unwrap_err();
    assert!(matches!(error, SymbolError::UnknownOperator { .. }), "{error}");
}

/// A036.
#[test]
fn a036_states_are_no_arguments_and_statistics_no_outputs() {
    let bn = op("BatchNorm").input(&var("data")).name("bn").build().unwrap();
    assert_eq!(bn.list_arguments(), ["data", "bn_gamma", "bn_beta"]);
    assert_eq!(bn.list_auxiliary_states(), ["bn_moving_mean", "bn_moving_var"]);
    assert_eq!(bn.list_inputs(), ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]);
    assert_eq!(bn.list_outputs(), ["bn_output"]);
    let relu = op("relu").input(&var("x")).build().unwrap();
    let error = op("BatchNorm").input(&relu).arg("moving_mean", &relu).build().unwrap_err();
    assert!(matches!(error, SymbolError::StateNotVariable { .. }), "{error}");
    let error = bn.compose(&[("bn_moving_mean", &relu)]).unwrap_err();
    assert!(matches!(error, SymbolError::StateNotVariable { .. }), "{error}");
}

/// A037.
#[test]
fn a037_operands_that_are_not_given_become_variables() {
    let _names = name_scope();
    let quadratic = || op("_contrib_quadratic").build().unwrap();
    assert_eq!(quadratic().list_arguments(), ["quadratic0_data"]);
    assert_eq!(quadratic().list_outputs(), ["quadratic1_output"]);
    let joined = op("Concat").param("num_args", 2).name("c").build().unwrap();
    assert_eq!(joined.list_arguments(), ["c_arg0", "c_arg1"]);
}

#[test]
fn results_have_names() {
    let _names = name_scope();
    let x = var("x");
    let cut = op("SliceChannel").input(&x).param("num_outputs", 2).build().unwrap();
    assert_eq!(cut.list_outputs(), ["slicechannel0_output0", "slicechannel0_output1"]);
    let drop = op("Dropout").input(&x).build().unwrap();
    assert_eq!(drop.internals().list_outputs(), ["x", "dropout0_output"]);
    let top = op("topk").input(&x).param("ret_typ", "both").build().unwrap();
    assert_eq!(top.list_outputs(), ["topk0_output0", "topk0_output1"]);
    let rnn = op("RNN").input(&x).param("state_size", 3).param("num_layers", 1).param("mode", "lstm");
    let rnn = rnn.param("state_outputs", true).build().unwrap();
    assert_eq!(rnn.list_outputs(), ["rnn0_output", "rnn0_state_output", "rnn0_statecell_output"]);
    assert_eq!(rnn.list_inputs(), ["x", "rnn0_parameters", "rnn0_state", "rnn0_state_cell"]);
}

#[test]
fn arithmetic_names_its_nodes_as_mxnet_does() {
    let _names = name_scope();
    let (a, b) = (var("a"), var("b"));
    let made = [
        &a + &b,
        &a + 1,
        1 + &a,
        1 - &a,
        &a - 1,
        2 * &a,
        &a / 2,
        2 / &a,
        a.pow(2),
        &a % 2,
        a.equal(1),
        a.greater(&b),
        a.lesser_equal(2),
        a.not_equal(&b),
    ];
    let names: Vec<String> = made.into_iter().map(|s| s.unwrap().name().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "_plus0",
            "_plusscalar0",
            "_plusscalar1",
            "_rminusscalar0",
            "_minusscalar0",
            "_mulscalar0",
            "_divscalar0",
            "_rdivscalar0",
            "_powerscalar0",
            "_modscalar0",
            "_equal_scalar0",
            "_greater0",
            "_lesser_equal_scalar0",
            "_not_equal0"
        ]
    );
}

#[test]
fn attributes_reach_the_variables_of_a_node() {
    let data = variable("data").attr("__mood__", "angry").build().unwrap();
    let conv = op("Convolution").input(&data).param("kernel", [1, 1]).param("num_filter", 1).attr("__mood__", "so so");
    let conv = conv.attr("lr_mult", 1).attr("weight_wd_mult", 3).name("conv").build().unwrap();
    let all = conv.attr_dict();
    let of = |node: &str, key: &str| all[node].get(key).map(String::as_str);
    assert_eq!(of("data", "__mood__"), Some("angry"));
    for node in ["conv", "conv_weight", "conv_bias"] {
        assert_eq!(of(node, "kernel"), Some("(1, 1)"));
        assert_eq!(of(node, "lr_mult"), Some("1"));
        assert_eq!(of(node, "__lr_mult__"), Some("1"));
    }
    assert_eq!(of("conv_weight", "wd_mult"), Some("3"));
    assert_eq!(of("conv", "wd_mult"), None);
    assert_eq!(conv.attr("weight_wd_mult").as_deref(), Some("3"));
    assert_eq!(conv.attr("weight_lr_mult").as_deref(), Some("1"));
    let given =
        op("FullyConnected").input(&data).arg("weight", &var("w")).attr("weight_lr_mult", 2).param("num_hidden", 1);
    assert!(matches!(given.build(), Err(SymbolError::AttributeOfGiven { .. })));
}

/// The messages name operator, node and parameter, and say what is possible.
#[test]
fn wrong_parameters_are_refused() {
    let layer = |params: &[(&str, &str)]| {
        let x = var("data");
        let all = params.iter().fold(op("FullyConnected").input(&x).name("fc"), |op, (key, text)| op.param(key, *text));
        all.build().unwrap_err().to_string()
    };
    let has = |text: String, parts: &[&str]| {
        for part in ["FullyConnected", "`fc`"].iter().chain(parts) {
            assert!(text.contains(part), "`{text}` does not contain `{part}`");
        }
    };
    has(layer(&[("num_hidden", "3"), ("foo", "2")]), &["`foo`", "num_hidden", "no_bias", "flatten"]);
    has(layer(&[]), &["`num_hidden`", "required"]);
    has(layer(&[("num_hidden", "x")]), &["`num_hidden`", "`x`", "integer"]);
    has(layer(&[("num_hidden", "1.5")]), &["`num_hidden`", "`1.5`", "integer"]);
    has(layer(&[("num_hidden", "0")]), &["`num_hidden`", "[1, "]);
    has(layer(&[("num_hidden", "3"), ("no_bias", "maybe")]), &["`no_bias`", "`maybe`", "True, False"]);
    has(layer(&[("num_hidden", "3"), ("training", "1")]), &["no parameter `training`"]);
    let x = var("data");
    let error = |op: tensorc_frontend::symbol::OpBuilder<'_>| op.input(&x).build().unwrap_err().to_string();
    assert!(
        error(op("Activation").param("act_type", "foo")).contains("one of relu, sigmoid, softrelu, softsign, tanh")
    );
    assert!(
        error(op("Convolution").param("kernel", "(1,x)").param("num_filter", 1)).contains("integers such as (3, 3)")
    );
    assert!(error(op("Cast").param("dtype", "float17")).contains("an element type"));
    // Keys of one's own are skipped.
    assert_eq!(
        op("relu").input(&x).attr("__mood__", "fine").build().unwrap().attr("__mood__").as_deref(),
        Some("fine")
    );
}

#[test]
fn symbols_are_shared_between_threads() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    let net = two_layers();
    shared(&net);
    let listed = std::thread::scope(|s| s.spawn(|| net.list_arguments()).join().unwrap());
    assert_eq!(listed, net.list_arguments());
}
