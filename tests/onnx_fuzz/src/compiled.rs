//! A model compiled and run, against what the interpreter made of its nodes.

use bytes::Bytes;
use prost::Message;
use tensorc::ir::interp::eval_graph;
use tensorc::ir::op::Compute;
use tensorc::ir::text::{PrintOptions, parse_module, print_graph};
use tensorc::ir::{DenseType, TensorData};
use tensorc::{Compiler, Options, Tensor};
use tensorc_frontend::onnx::{ImportOptions, OnnxModel, import};

use crate::compare::model_agrees;
use crate::model::{Model, Stated, Value};
use crate::operators::standard;
use crate::trial::caught;

/// Compilers whose results are compared with the interpreter's.
pub struct Compilers {
    /// As users have it.
    pub ordinary: Compiler,
    /// Without rewrites that round differently.
    pub exact: Compiler,
}

impl Compilers {
    /// On one thread.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn new() -> Result<Compilers, tensorc::Error> {
        let options = |reassociate| {
            let mut options = Options { threads: Some(1), poison: true, ..Options::default() };
            options.passes.reassociate = reassociate;
            options
        };
        Ok(Compilers { ordinary: Compiler::new(options(true))?, exact: Compiler::new(options(false))? })
    }
}

fn data(tensor: &Tensor) -> Result<TensorData, String> {
    let ty = DenseType::new(tensor.dtype(), tensor.dims());
    TensorData::new(ty, tensor.bytes().to_vec().into()).ok_or_else(|| "a tensor does not fill its shape".to_owned())
}

/// Compiles and runs a model in each way, and interprets the whole graph, printed and parsed where that is possible.
///
/// # Errors
/// Which of these differs or fails, the output, and how.
pub fn compiled_agrees(compilers: &Compilers, model: &Model) -> Result<(), String> {
    let registry = compilers.ordinary.registry();
    let graph = |stated| {
        let bytes = Bytes::from(model.proto(false, stated).encode_to_vec());
        let decoded = OnnxModel::decode(bytes, None).map_err(|e| e.to_string())?;
        let imported = import(decoded, registry, &ImportOptions::default()).map_err(|e| e.to_string())?;
        Ok::<_, String>(imported.graph)
    };
    let inputs: Vec<TensorData> = model.inputs.iter().map(|v| v.data.clone()).collect();
    let whole = || {
        let graph = graph(Stated::Numbers)?;
        let outputs = eval_graph(&graph, registry, &inputs).map_err(|e| e.to_string())?;
        let text = print_graph(&graph, &PrintOptions::exact());
        let parsed = parse_module(&text, registry).map_err(|e| format!("printed text does not parse: {e}"))?;
        let again = parsed.graphs.first().map(|g| eval_graph(g, registry, &inputs));
        match again {
            Some(Ok(again)) if again == outputs => {}
            Some(Ok(_)) => return Err("printed and parsed, it computes something else".to_owned()),
            Some(Err(e)) => return Err(format!("printed and parsed: {e}")),
            None => return Err("printed and parsed, nothing is left".to_owned()),
        }
        let names = graph.outputs().iter().map(|(name, _)| name.to_string());
        Ok(names.zip(outputs).collect::<Vec<_>>())
    };
    let got = caught(whole).unwrap_or_else(Err).map_err(|why| format!("interpreter\t-\t{why}"))?;
    model_agrees(registry, model, true, &got).map_err(|(name, why)| format!("interpreter\t{name}\t{why}"))?;
    let elementwise = model.nodes.iter().all(|n| {
        let op = standard(registry, n.op_type(), model.opset);
        op.is_some_and(|op| matches!(op.compute, Compute::Scalar(_)))
    });
    // Rewrites that are exact in real arithmetic may make another NaN or infinity of one.
    let finite = |v: &Value| v.data.iter().all(|x| !v.dtype().is_float() || x.as_f64().is_finite());
    let real = model.inputs.iter().chain(&model.initializers).chain(&model.computed).all(finite);
    let ways = [
        ("compiled", &compilers.ordinary, Stated::Numbers, false),
        ("compiled for all extents", &compilers.ordinary, Stated::Names, false),
        ("compiled exactly", &compilers.exact, Stated::Numbers, elementwise),
    ];
    for (way, compiler, stated, bits) in ways {
        let run = || {
            let named: Vec<(&str, Tensor)> = model
                .inputs
                .iter()
                .map(|v| {
                    let tensor = Tensor::from_bytes(v.dtype(), v.dims(), v.data.bytes().to_vec());
                    Ok((v.name.as_str(), tensor.map_err(|e| e.to_string())?))
                })
                .collect::<Result<_, String>>()?;
            let outputs = compiler.model(graph(stated)?).run(&named).map_err(|e| e.to_string())?;
            outputs.into_iter().map(|(name, t)| Ok((name, data(&t)?))).collect::<Result<Vec<_>, String>>()
        };
        let got = caught(run).unwrap_or_else(Err).map_err(|why| format!("{way}\t-\t{why}"))?;
        // A convolution multiplies fills by weights, which makes NaN of an infinite one; the order of factors decides
        // whether a product that overflows meets a 0.
        let ordered = !model.nodes.iter().any(|n| n.op_type().contains("Conv") || n.op_type() == "ReduceProd");
        if bits || real || way == "compiled exactly" && ordered {
            model_agrees(registry, model, bits, &got).map_err(|(name, why)| format!("{way}\t{name}\t{why}"))?;
        }
    }
    Ok(())
}
