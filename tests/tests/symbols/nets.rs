//! The networks that measurements use are those of MXNet's model zoo, and of the sizes known for them.

use serde_json::Value as Json;
use tensorc::symbol::{Infer, Symbol, SymbolTypes};
use tensorc_bench::nets::{Net, names, net};

/// Shapes and operators of the networks in MXNet's model zoo, from `mxnet/make_nets.py`.
const ZOO: &str = include_str!("../../mxnet/nets.json");

fn shapes(net: &Net) -> SymbolTypes<Vec<u64>> {
    let given: Vec<(&str, &[u64])> = net.inputs.iter().map(|(n, d)| (*n, d.as_slice())).collect();
    let inferred = net.symbol.infer_shape(&given).unwrap();
    assert!(!matches!(inferred, tensorc::symbol::Inferred::Incomplete { .. }), "{inferred:?}");
    inferred.all().unwrap()
}

fn list(json: &Json) -> Vec<Vec<u64>> {
    let dims = |shape: &Json| shape.as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
    json.as_array().unwrap().iter().map(dims).collect()
}

fn count(symbol: &Symbol, op: &str) -> u64 {
    symbol.to_json().matches(&format!("\"op\": \"{op}\"")).count() as u64
}

#[test]
fn zoo_networks_are_those_of_mxnet() {
    let zoo: Json = serde_json::from_str(ZOO).unwrap();
    for (name, expected) in zoo.as_object().unwrap() {
        let net = net(name, 2).unwrap().unwrap();
        let mut found = shapes(&net);
        // The zoo's networks end before the loss.
        assert_eq!(found.arguments.pop(), Some(vec![2]), "{name}");
        assert_eq!(found.arguments, list(&expected["arguments"]), "{name}");
        assert_eq!(found.auxiliary, list(&expected["auxiliary"]), "{name}");
        assert_eq!(found.outputs, [[2, 1000]], "{name}");
        for (op, n) in expected["operators"].as_object().unwrap() {
            assert_eq!(count(&net.symbol, op), n.as_u64().unwrap(), "{name}: {op}");
        }
    }
}

/// Numbers of parameters, data and labels left out.
#[test]
fn other_networks_have_their_known_sizes() {
    let known = [
        ("mlp", 669_706),
        ("lenet", 431_080),
        ("resnet18-cifar", 11_173_962),
        ("transformer", 525_060),
        ("lstm", 4_653_200),
    ];
    for (name, expected) in known {
        let net = net(name, 3).unwrap().unwrap();
        let types = shapes(&net);
        let arguments = net.symbol.list_arguments().into_iter().zip(&types.arguments);
        let given = |n: &str| n == "softmax_label" || net.inputs.iter().any(|(i, _)| *i == n);
        let sum: u64 = arguments.filter(|(n, _)| !given(n)).map(|(_, d)| d.iter().product::<u64>()).sum();
        assert_eq!(sum, expected, "{name}");
    }
    assert!(names().all(|n| net(n, 1).unwrap().is_ok()));
}
