//! Training steps: parameters bit-equal to the stored ones of the interpreter, and within a tolerance of the CPU's.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tensorc::runtime::Device;
use tensorc::runtime::gpu::Driver;
use tensorc::schedule::target::Capability;
use tensorc::symbol::{Symbol, SymbolError, name_scope, op};
use tensorc::{Compiler, DType, Options, Tensor};
use tensorc_bench::nets;
use tensorc_data::{Batch, HostTensor};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_tests::compare::data;
use tensorc_train::{Initializer, Module, Optimizer, Params, Sums};

use super::{Case, Ended};
use crate::context::{Context, Fault};
use crate::digest::digest;
use crate::stored::Stored;

const STEPS: u64 = 2;
/// Greatest distance of a parameter from a processor's, of its norm: sums are in another order.
const TOLERANCE: f64 = 2e-3;

/// A network, its data for a batch, and how many labels there are.
struct Network {
    name: &'static str,
    symbol: Symbol,
    dims: Vec<u64>,
    classes: u64,
    vocabulary: Option<u64>,
    /// Whether the interpreter takes seconds for it, not minutes.
    stored: bool,
}

/// A convolution, batch normalisation with its running statistics, dropout and a loss.
fn small() -> Result<Symbol, SymbolError> {
    let _names = name_scope();
    let image = op("Convolution").input(&Symbol::variable("data")).param("kernel", [3, 3]).param("num_filter", 4);
    let image = op("BatchNorm").input(&image.name("conv").build()?).param("fix_gamma", false).name("bn").build()?;
    let image = op("Activation").input(&image).param("act_type", "relu").name("relu").build()?;
    let image = op("Dropout").input(&image).param("p", 0.25).name("drop").build()?;
    let scores = op("FullyConnected").input(&image).param("num_hidden", 5).name("fc").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
}

fn networks() -> Result<Vec<Network>, Fault> {
    let mut all = vec![Network {
        name: "convolution, normalisation and dropout",
        symbol: small()?,
        dims: vec![8, 1, 6, 6],
        classes: 5,
        vocabulary: None,
        stored: true,
    }];
    for (name, batch, classes, stored) in
        [("mlp", 2, 10, true), ("lenet", 1, 10, true), ("transformer", 4, 4, false), ("resnet18-cifar", 8, 10, false)]
    {
        let net = nets::net(name, batch).ok_or_else(|| format!("there is no network `{name}`"))??;
        let dims = net.inputs.into_iter().next().map(|(_, dims)| dims).unwrap_or_default();
        all.push(Network { name, symbol: net.symbol, dims, classes, vocabulary: net.vocabulary, stored });
    }
    Ok(all)
}

impl Network {
    fn batch(&self, step: u64) -> Result<Batch, Fault> {
        let count: u64 = self.dims.iter().product();
        let number = |at: u64| (at * 7919 + step * 104_729) % 1000;
        let value = |at: u64| match self.vocabulary {
            Some(words) => (number(at) % words) as f32,
            None => number(at) as f32 / 500.0 - 1.0,
        };
        let host = |dims: &[u64], values: Vec<f32>| {
            HostTensor::new(DType::F32, dims, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
        };
        let labels = (0..self.dims[0]).map(|row| ((row * 3 + step) % self.classes) as f32).collect();
        let data = vec![host(&self.dims, (0..count).map(value).collect())?];
        Ok(Batch { data, labels: vec![host(&self.dims[..1], labels)?], pad: 0, index: vec![] })
    }

    /// Parameters and running statistics by name after some steps.
    fn train(&self, driver: Option<Arc<dyn Driver>>) -> Result<BTreeMap<String, Tensor>, Fault> {
        let device = driver.as_ref().map_or(Device::cpu(0), |driver| driver.device());
        let compiler = Compiler::new(Options { gpus: driver.into_iter().collect(), ..Options::default() })?;
        let rt = Runtime::with_compiler(compiler, RuntimeOptions { device, ..RuntimeOptions::default() })?;
        rt.seed(3);
        let builder = Module::of(&rt, &self.symbol).data("data", &self.dims).label("softmax_label", &self.dims[..1]);
        self.steps(builder.bind()?)
    }

    fn steps(&self, mut module: Module) -> Result<BTreeMap<String, Tensor>, Fault> {
        module.init_params(&Initializer::xavier(3.0))?;
        module.init_optimizer(Optimizer::sgd(0.05, 0.9).weight_decay(1e-3))?;
        for step in 0..STEPS {
            module.step(&self.batch(step)?)?;
        }
        let Params { arguments, auxiliary } = module.params()?;
        Ok(arguments.into_iter().chain(auxiliary).collect())
    }
}

/// Parameters of the small network after steps whose batches are shared out in four parts.
pub fn shared_out(rt: &Runtime, devices: &[Device], sums: Sums) -> Result<BTreeMap<String, Tensor>, Fault> {
    let network = networks()?.swap_remove(0);
    rt.seed(3);
    let builder = Module::of(rt, &network.symbol).data("data", &network.dims);
    let builder = builder.label("softmax_label", &network.dims[..1]).devices(devices).micro_batches(4).sums(sums);
    network.steps(builder.bind()?)
}

fn section(capability: Capability) -> String {
    format!("training {}", capability.processor())
}

/// The greatest distance of a parameter from another run's, of its norm, with its name.
fn distance(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>) -> Result<(f64, String), Fault> {
    let mut greatest = (0.0, String::new());
    for (name, expected) in expected {
        let found = found.get(name).ok_or_else(|| format!("no parameter `{name}`"))?;
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let (found, expected) = (data(found).to_f64s(), data(expected).to_f64s());
        let apart = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let share = apart / norm(&mut expected.iter().copied()).max(1e-2);
        if share.is_nan() || share > greatest.0 {
            greatest = (share, name.clone());
        }
    }
    Ok(greatest)
}

pub fn cases(cx: &Context) -> Result<Vec<Case>, Fault> {
    let (stored, section) = (Rc::new(Stored::load()?), section(cx.capability()?));
    let case = |network: Network| {
        let (stored, section) = (stored.clone(), section.clone());
        Case::new(network.name, move |cx| {
            if cx.is_interpreted() && !network.stored {
                return Ok(Ended::skipped("takes minutes in the interpreter"));
            }
            let found = network.train(Some(cx.driver()?))?;
            if network.stored {
                let expected = stored.of(&section, network.name)?;
                for ((name, found), expected) in found.iter().zip(expected) {
                    if digest(&data(found)) != *expected {
                        return Err(format!("`{name}` has other bits after {STEPS} steps").into());
                    }
                }
            }
            let (share, name) = distance(&found, &network.train(None)?)?;
            if share.is_nan() || share > TOLERANCE {
                return Err(format!("`{name}` is {share:.1e} of its norm away from a processor's").into());
            }
            Ok(Ended::passed().figure("distance from a processor's", share * 1e6, "10⁻⁶ of the norm"))
        })
    };
    Ok(networks()?.into_iter().map(case).collect())
}

/// The interpreter's results.
pub fn store(capability: Capability, stored: &mut Stored) -> Result<(), Fault> {
    for network in networks()?.into_iter().filter(|network| network.stored) {
        let found = network.train(Some(tensorc_simulator::interpreted_as(Device::accelerator(0), capability)))?;
        let digests = found.values().map(|tensor| digest(&data(tensor))).collect();
        stored.add(&section(capability), network.name, digests);
    }
    Ok(())
}
