//! Whole training steps as one plan.

use tensorc::ir::DenseType;
use tensorc::ir::build::Builder;
use tensorc::ir::diag::Diagnostic;
use tensorc::ir::graph::Value;
use tensorc_nd::executor::{Emission, Executor, GradReq, UpdateRule};

use super::*;

/// v ← µ·v + g; w ← w − η·v, with η given anew for every step.
pub struct Momentum;

const MOMENTUM: f64 = 0.9;

impl UpdateRule for Momentum {
    fn states(&self, weight: &DenseType) -> Vec<(&'static str, DenseType)> {
        vec![("velocity", weight.clone())]
    }

    fn numbers(&self) -> usize {
        1
    }

    fn emit(
        &self,
        b: &mut Builder<'_>,
        weight: Value,
        gradient: Value,
        states: &[Value],
        numbers: &[Value],
    ) -> Result<Emission, Diagnostic> {
        let factor = b.filled(&DenseType::new(DType::F32, []), MOMENTUM)?;
        let kept = b.call("mul", &[states[0], factor])?;
        let velocity = b.call("add", &[kept, gradient])?;
        let moved = b.call("mul", &[velocity, numbers[0]])?;
        Ok(Emission { weight: b.call("sub", &[weight, moved])?, states: vec![velocity] })
    }
}

fn network() -> Symbol {
    let hidden = fully_connected(&var("data"), 16, "fc1");
    let hidden = op("BatchNorm").input(&hidden).param("fix_gamma", false).name("bn").build().unwrap();
    let hidden = op("Activation").input(&hidden).param("act_type", "relu").build().unwrap();
    let hidden = op("Dropout").input(&hidden).param("p", 0.25).build().unwrap();
    let out = fully_connected(&hidden, 5, "fc2");
    op("SoftmaxOutput").inputs([&out, &var("label")]).name("softmax").build().unwrap()
}

fn bind(rt: &Runtime, net: &Symbol) -> Executor {
    let binder = Executor::simple_bind(rt, net).shape("data", &[8, 12]);
    let executor = binder.grad_req_of("data", GradReq::Null).grad_req_of("label", GradReq::Null).build().unwrap();
    for (i, (name, array)) in executor.arguments().iter().enumerate() {
        set(&executor, name, &noise(array.len() as usize, i as u32));
    }
    set(&executor, "label", &[0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
    executor.auxiliary("bn_moving_var").unwrap().fill(1.0).unwrap();
    executor
}

#[test]
fn one_plan_does_what_forward_backward_and_update_do() {
    let (rt, other) = (runtime(), runtime());
    let net = network();
    let (mut fused, mut parts) = (bind(&rt, &net), bind(&other, &net));
    let step = fused.fuse(&Momentum, None).unwrap();
    let rows = step.parameters().len();
    let mut velocity: std::collections::BTreeMap<String, Vec<f32>> = Default::default();
    for round in 0..4 {
        let rate = 0.1 / (1.0 + round as f32);
        fused.step(&step, &vec![rate; rows]).unwrap();
        parts.forward(true).unwrap();
        parts.backward(&[]).unwrap();
        close(&values(&fused.outputs()[0]), &values(&parts.outputs()[0]), 1e-5);
        for (name, gradient) in parts.gradients() {
            let (gradient, array) = (values(gradient), parts.argument(name).unwrap());
            let v = velocity.entry(name.to_owned()).or_insert_with(|| vec![0.0; gradient.len()]);
            let mut weight = values(array);
            for ((v, g), w) in v.iter_mut().zip(&gradient).zip(&mut weight) {
                *v = MOMENTUM as f32 * *v + g;
                *w -= rate * *v;
            }
            set(&parts, name, &weight);
        }
    }
    for (name, array) in parts.arguments() {
        close(&values(fused.argument(name).unwrap()), &values(array), 1e-4);
    }
    for (name, array) in parts.auxiliaries() {
        close(&values(fused.auxiliary(name).unwrap()), &values(array), 1e-4);
    }
    for parameter in step.parameters().iter().filter(|p| !p.states.is_empty()) {
        close(&values(&parameter.states[0].1), &velocity[&parameter.parameter], 1e-4);
    }
}

#[test]
fn steps_keep_states_and_refuse_wrong_tables() {
    let rt = runtime();
    let mut executor = bind(&rt, &network());
    let first = executor.fuse(&Momentum, None).unwrap();
    let second = executor.fuse(&Momentum, Some(&first)).unwrap();
    let state = |step: &tensorc_nd::executor::FusedStep| {
        step.parameters().iter().find(|p| p.parameter == "fc1_weight").unwrap().states[0].1.clone()
    };
    assert!(state(&first).is_same(&state(&second)));
    assert!(executor.step(&first, &[0.1]).unwrap_err().to_string().contains("1 numbers are given"));
    let plain = fully_connected(&var("x"), 4, "fc");
    let executor = Executor::simple_bind(&rt, &plain).shape("x", &[2, 3]).build().unwrap();
    let Err(error) = executor.fuse(&Momentum, None) else { panic!("there is no loss") };
    assert!(error.to_string().contains("make_loss"));
}
