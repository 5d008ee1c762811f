//! MXNet's operators against results stored from MXNet 1.9.1 (`data/mxnet.txt`), in the reference interpreter.

use crate::stored::{Case, cases};
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::interp::eval_graph;
use tensorc_ir::op::Registry;

fn evaluate(case: &Case, registry: &Registry) -> Result<Vec<tensorc_ir::TensorData>, String> {
    let def = registry.mxnet(&case.op).ok_or("no such operator")?;
    let mut graph = Graph::new("case");
    let args: Vec<Option<Value>> = case.operands(def, |name, t| graph.add_input(name, t.ty.clone().into()));
    let params = case.params(def);
    let results = def.result_count(&params).listed.max(def.outputs.0);
    let node = graph.add_op("n", def, &args, params, results).map_err(|d| d.to_string())?;
    for port in 0..case.outputs.len() as u16 {
        graph.add_output(format!("{port}"), Value { node, port });
    }
    let inputs: Vec<_> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
    eval_graph(&graph, registry, &inputs).map_err(|d| d.to_string())
}

/// Among them A076 (a fused LSTM) and A078 (top-k).
#[test]
fn results_agree_with_mxnet() {
    let registry = tensorc_ops::registry().unwrap();
    let mut wrong = vec![];
    let all = cases();
    assert!(all.len() > 40, "only {} cases", all.len());
    for case in all {
        match evaluate(&case, &registry) {
            Err(why) => wrong.push(format!("{}: {why}", case.title())),
            Ok(found) => wrong.extend(case.differences(&found)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
