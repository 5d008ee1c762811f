//! Names, listings and attributes of symbols that need no layer.

use tensorc_frontend::symbol::{Lowering, Symbol, SymbolError, attr_scope, name_scope, op, prefix_scope, variable};

fn relu(x: &Symbol) -> Symbol {
    op("relu").input(x).build().unwrap()
}

/// A040.
#[test]
fn a040_scopes_add_attributes_and_explicit_ones_win() {
    let _scope = attr_scope([("__group__", "4"), ("__data__", "great")]);
    let data = variable("data").attr("__group__", "1").attr("lr_mult", 1).build().unwrap();
    let other = Symbol::variable("data2");
    assert_eq!(other.attr("__group__").as_deref(), Some("4"));
    assert_eq!(data.attr("__group__").as_deref(), Some("1"));
    assert_eq!(data.attr("__data__").as_deref(), Some("great"));
    assert_eq!(data.attr("lr_mult").as_deref(), Some("1"));
    assert_eq!(data.attr("__lr_mult__").as_deref(), Some("1"));
    {
        let _inner = attr_scope([("ctx_group", "dev1")]);
        assert_eq!(relu(&data).attr("ctx_group").as_deref(), Some("dev1"));
        assert_eq!(relu(&data).attr("__group__").as_deref(), Some("4"));
    }
    assert_eq!(relu(&data).attr("ctx_group"), None);
    assert!(matches!(variable("x").attr("foo", 3).build(), Err(SymbolError::VariableAttribute { .. })));
}

#[test]
fn names_count_in_their_scope_and_take_its_prefix() {
    let x = Symbol::variable("x");
    let _scope = name_scope();
    assert_eq!(relu(&x).name(), Some("relu0"));
    assert_eq!(relu(&x).name(), Some("relu1"));
    {
        let _prefix = prefix_scope("p_");
        assert_eq!(relu(&x).name(), Some("p_relu0"));
        assert_eq!(op("relu").input(&x).name("n").build().unwrap().name(), Some("p_n"));
    }
    assert_eq!(relu(&x).name(), Some("relu2"));
}

#[test]
fn a_long_chain_is_listed_saved_lowered_and_dropped_without_recursion() {
    let mut x = Symbol::variable("x");
    for _ in 0..100_000 {
        x = relu(&x);
    }
    assert_eq!(x.list_arguments(), ["x"]);
    let text = x.to_json();
    let copy = Symbol::from_json(&text).unwrap();
    assert!(copy.to_json() == text);
    drop((x, copy));
}

#[test]
fn random_nodes_share_an_input_of_keys() {
    let draw = |name| op("_random_uniform").param("shape", [2, 3]).name(name).build().unwrap();
    let both = Symbol::group([&draw("a"), &draw("b")]);
    let registry = tensorc_frontend::symbol::operators().unwrap();
    let lowered = both.to_graph(registry, &Lowering::default()).unwrap();
    assert_eq!(lowered.random_nodes, 2);
    let inputs: Vec<&str> = lowered.graph.inputs().iter().map(|n| &*lowered.graph.node(*n).name).collect();
    assert_eq!(inputs, ["random_key"]);
    tensorc_ir::verify::verify_graph(&lowered.graph, tensorc_ir::verify::Stage::Imported).unwrap();
}
