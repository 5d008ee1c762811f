//! Differences between random models as tensorc and another implementation compute them, each with the smallest model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use std::path::Path;

use prost::Message;
use tensorc::Compiler;
use tensorc::ir::TensorData;
use tensorc::ir::op::Registry;
use tensorc_onnx_fuzz::compare::node_agrees;
use tensorc_onnx_fuzz::compiled::{Compilers, compiled_agrees};
use tensorc_onnx_fuzz::exchange::{Answer, read_answer};
use tensorc_onnx_fuzz::generate;
use tensorc_onnx_fuzz::generate::{alone, each_alone, needed};
use tensorc_onnx_fuzz::known::known;
use tensorc_onnx_fuzz::model::{Model, Stated, Value};

use crate::Failed;

/// What knows every operator.
pub(crate) fn compiler() -> Result<Compiler, Failed> {
    Ok(Compiler::new(tensorc::Options { threads: Some(1), ..tensorc::Options::default() })?)
}

/// Writes the models of some seeds as files.
pub(crate) fn corpus(seeds: Range<u64>, folder: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(folder)?;
    let compiler = compiler()?;
    for seed in seeds {
        if let (Some(model), _) = generate(seed, compiler.registry()) {
            std::fs::write(
                folder.join(format!("random_{seed}.onnx")),
                model.proto(false, Stated::Numbers).encode_to_vec(),
            )?;
        }
    }
    Ok(())
}

/// What was compared, and how often it agreed.
#[derive(Default)]
struct Tally {
    models: u64,
    nodes: u64,
    refused_there: BTreeMap<String, u64>,
    known: BTreeMap<(String, &'static str), u64>,
    differ: u64,
}

struct Comparison<'a> {
    registry: &'a Registry,
    folder: &'a Path,
    tally: Tally,
}

impl Comparison<'_> {
    fn report(&mut self, kind: &str, seed: u64, op: &str, model: &Model, why: &str) -> Result<(), Failed> {
        self.tally.differ += 1;
        let count = model.nodes.len();
        println!("{kind}\t{seed}\t{op}\t{count} nodes\t{}", why.replace('\n', " | "));
        let name = format!("{}_{seed}.onnx", kind.replace(' ', "_"));
        // Inputs are written as default values, so that the file can be run as it is.
        let mut filled = model.clone();
        filled.initializers.extend(model.inputs.iter().cloned());
        std::fs::write(self.folder.join(name), filled.proto(false, Stated::Numbers).encode_to_vec())?;
        let describe = |v: &Value| format!("{} {} {:?}", v.name, v.data.ty, v.data.to_f64s());
        let mut text = format!("{why}\n");
        for node in &model.nodes {
            text += &format!("{:?} = {}({:?}) {:?}\n", node.output, node.op_type(), node.input, node.attribute);
        }
        for value in model.inputs.iter().chain(&model.initializers).chain(&model.computed) {
            text += &format!("{}\n", describe(value).chars().take(4000).collect::<String>());
        }
        std::fs::write(self.folder.join(format!("{}_{seed}.txt", kind.replace(' ', "_"))), text)?;
        Ok(())
    }

    /// A node on the operands that the other implementation got.
    fn node(&mut self, seed: u64, model: &Model, results: &[(String, TensorData)]) -> Result<(), Failed> {
        let node = &model.nodes[0];
        let got: Vec<_> =
            node.output.iter().map(|o| results.iter().find(|(n, _)| n == o).map(|r| r.1.clone())).collect();
        self.tally.nodes += 1;
        let operands: Vec<Value> = model.inputs.iter().chain(&model.initializers).cloned().collect();
        let Err(why) = node_agrees(self.registry, node, model.opset, &operands, &got) else { return Ok(()) };
        if let Some(reason) = known(node, &operands) {
            *self.tally.known.entry((node.op_type().to_owned(), reason)).or_default() += 1;
            return Ok(());
        }
        self.report("differs", seed, node.op_type(), model, &why)
    }

    fn answer(&mut self, seed: u64, model: &Model, refused_here: Option<&str>, answer: &Answer) -> Result<(), Failed> {
        let op = model.nodes[0].op_type();
        match (answer, refused_here) {
            (Answer::Results(results), None) => self.node(seed, model, results),
            (Answer::Results(_), Some(why)) => self.report("refused here", seed, op, model, why),
            (Answer::Refused(why), None) => {
                *self.tally.refused_there.entry(op.to_owned()).or_default() += 1;
                if !why.contains("Could not find an implementation") {
                    println!("refused there\t{seed}\t{op}\t{}", why.replace(['\n', '\t'], " "));
                }
                Ok(())
            }
            (Answer::Refused(_), Some(_)) => Ok(()),
        }
    }
}

/// The smallest part of a model that still fails, by the output that differs.
fn shrunk(compilers: &Compilers, model: &Model, why: String) -> (Model, String) {
    let (mut best, mut why) = (model.clone(), why);
    for value in &model.computed {
        let part = needed(model, &value.name);
        if part.nodes.len() < best.nodes.len()
            && let Err(w) = compiled_agrees(compilers, &part)
        {
            (best, why) = (part, w);
        }
    }
    // A later part on what the earlier one computed.
    for at in 0..best.nodes.len() {
        let stored = |name: &str| best.initializers.iter().any(|v| v.name == name);
        let part = alone(&best, at, stored);
        if best.nodes.len() > 1
            && let Err(w) = compiled_agrees(compilers, &part)
        {
            return (part, w);
        }
    }
    (best, why)
}

/// Compares the models of some seeds.
pub(crate) fn compare(seeds: Range<u64>, results: Option<&Path>, folder: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(folder)?;
    let compilers = Compilers::new()?;
    let registry = compilers.ordinary.registry();
    let mut answers = results.map(File::open).transpose()?.map(BufReader::new);
    let mut c = Comparison { registry, folder, tally: Tally::default() };
    for seed in seeds {
        let (model, refused) = generate(seed, registry);
        if let Some(model) = &model {
            c.tally.models += 1;
            if let Err(why) = compiled_agrees(&compilers, model) {
                let (part, why) = shrunk(&compilers, model, why);
                let ops: Vec<&str> = part.nodes.iter().map(|n| n.op_type()).collect();
                let mut words = why.splitn(3, '\t');
                let way = words.next().unwrap_or_default().to_owned();
                c.report(&way, seed, &ops.join(","), &part, &words.collect::<Vec<_>>().join(": "))?;
            }
        }
        let Some(from) = &mut answers else { continue };
        let alone: Vec<Model> = model.iter().flat_map(each_alone).collect();
        let all = alone.iter().map(|m| (m, None)).chain(refused.iter().map(|(m, why)| (m, Some(why.as_str()))));
        for (model, why) in all {
            let Some(answer) = read_answer(from)? else { return Err("there are fewer results than models".into()) };
            c.answer(seed, model, why, &answer)?;
        }
    }
    let Tally { models, nodes, refused_there, known, differ } = c.tally;
    let there: u64 = refused_there.values().sum();
    println!(
        "{models} models, {nodes} nodes compared with another implementation, which refused {there}; {differ} differences"
    );
    for (op, n) in refused_there {
        println!("refused there in all\t{op}\t{n}");
    }
    for ((op, reason), n) in known {
        println!("known\t{op}\t{n}\t{reason}");
    }
    Ok(())
}
