//! Training steps of networks with random weights and data: forward, backward and SGD with momentum as one plan.

use std::error::Error;

use tensorc_nd::Runtime;
use tensorc_nd::executor::{Executor, FusedStep, GradReq};
use tensorc_train::{FusedUpdate, Optimizer};

use crate::nets::Net;

const RATE: f64 = 0.01;
const MOMENTUM: f64 = 0.9;

/// A network with random weights and data, and its training step.
pub struct Training {
    rt: Runtime,
    /// The executor of the network.
    pub executor: Executor,
    /// The fused step of forward, backward and update.
    pub step: FusedStep,
    numbers: Vec<f32>,
    labels: Vec<usize>,
}

/// Uniform numbers, always the same.
pub(crate) struct Noise(u64);

impl Default for Noise {
    fn default() -> Noise {
        Noise(1)
    }
}

impl Noise {
    /// In [-1, 1).
    pub fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    /// An integer less than the limit, or 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((f64::from(self.number()) + 1.0) / 2.0 * limit as f64) as u64 % limit.max(1)
    }
}

impl Training {
    /// Binds a network whose labels are less than `classes`.
    ///
    /// # Errors
    /// The network cannot be bound, or memory is short.
    pub fn new(rt: Runtime, net: &Net, classes: u64) -> Result<Training, Box<dyn Error>> {
        let mut binder = Executor::simple_bind(&rt, &net.symbol);
        for (name, dims) in &net.inputs {
            binder = binder.shape(name, dims).grad_req_of(name, GradReq::Null);
        }
        let executor = binder.grad_req_of("softmax_label", GradReq::Null).build()?;
        let mut noise = Noise::default();
        let mut labels = vec![];
        for (name, array) in executor.arguments().iter().chain(executor.auxiliaries()) {
            let count = array.len() as usize;
            let values: Vec<f32> = match name.as_str() {
                "softmax_label" => {
                    labels = (0..count).map(|_| noise.below(classes) as usize).collect();
                    labels.iter().map(|l| *l as f32).collect()
                }
                "data" => match net.vocabulary {
                    Some(words) => (0..count).map(|_| noise.below(words) as f32).collect(),
                    None => (0..count).map(|_| 1.7 * noise.number()).collect(),
                },
                n if n.ends_with("gamma") || n.ends_with("var") => vec![1.0; count],
                n if n.ends_with("weight") => {
                    let fan = array.dims()[1..].iter().product::<u64>().max(1) as f32;
                    (0..count).map(|_| noise.number() / fan.sqrt()).collect()
                }
                _ => vec![0.0; count],
            };
            rt.array(array.dims(), &values)?.copy_into(array)?;
        }
        // The gradient of the mean over the samples, as the peers compute it.
        let samples = net.inputs.first().map_or(1, |(_, dims)| dims[0]);
        let optimizer = Optimizer::sgd(RATE, MOMENTUM).rescale_grad(1.0 / samples as f64);
        let parameters = executor.arguments().iter().map(|(name, array)| (name.as_str(), array.dtype()));
        let rule = FusedUpdate::new(&optimizer, rt.compiler().registry(), parameters)?;
        let step = executor.fuse(&rule, None)?;
        // Learning rate and weight decay of every parameter.
        let numbers = [RATE as f32, 0.0].repeat(step.parameters().len());
        rt.wait_all()?;
        Ok(Training { rt, executor, step, numbers, labels })
    }

    /// Begins a step and returns while it goes on.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn begin(&mut self) -> Result<(), Box<dyn Error>> {
        self.executor.step(&self.step, &self.numbers)?;
        Ok(())
    }

    /// Waits for the steps that were begun.
    ///
    /// # Errors
    /// What went wrong with them.
    pub fn wait(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.rt.wait_all()?)
    }

    /// A whole step.
    ///
    /// # Errors
    /// What went wrong with it.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        self.begin()?;
        self.wait()
    }

    /// Mean cross-entropy of the last step's outputs.
    ///
    /// # Errors
    /// What went wrong with the step.
    pub fn loss(&self) -> Result<f64, Box<dyn Error>> {
        let probabilities = self.executor.outputs()[0].to_vec::<f32>()?;
        let classes = probabilities.len() / self.labels.len();
        let of = |(i, label): (usize, &usize)| -f64::from(probabilities[i * classes + label].max(1e-12)).ln();
        Ok(self.labels.iter().enumerate().map(of).sum::<f64>() / self.labels.len() as f64)
    }
}
