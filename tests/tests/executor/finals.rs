//! Gradients and outputs are available as soon as nothing in the plan writes them any more.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorc::Compiler;
use tensorc::op::{Closure, Define, Keep, closure, like};
use tensorc::runtime::engine::{EngineConfig, EngineKind};
use tensorc::symbol::op_in;
use tensorc_nd::executor::GradReq;

use super::*;
use crate::support::backend::options;

const PATIENCE: Duration = Duration::from_secs(30);
const BATCH: u64 = 8;

/// A result for somebody who waits for it.
type Word = Result<(), String>;

/// Where a call waits for its result, if it does.
#[derive(Clone, Default)]
struct Barrier(Arc<Mutex<Option<Receiver<Word>>>>);

impl Barrier {
    /// Lets the next call wait.
    fn shut(&self) -> Sender<Word> {
        let (sender, receiver) = channel();
        *self.0.lock().unwrap() = Some(receiver);
        sender
    }

    fn pass(&self) -> Word {
        match self.0.lock().unwrap().take() {
            None => Ok(()),
            Some(word) => word.recv_timeout(PATIENCE).map_err(|_| "nobody came to open".to_owned())?,
        }
    }
}

/// The identity, which waits before it computes.
fn gate(forward: &Barrier, backward: &Barrier) -> Closure {
    let (forward, backward) = (forward.clone(), backward.clone());
    let compute = closure("gate", &["x"], like(0), move |call| {
        forward.pass()?;
        let x = call.read::<f32>(0)?;
        call.write::<f32>(0)?.copy_from_slice(x);
        Ok(())
    });
    let compute = compute.backward(Keep::heads(), move |call| {
        backward.pass()?;
        let head = call.head::<f32>(0)?;
        call.grad::<f32>(0)?.copy_from_slice(head);
        Ok(())
    });
    compute.types(&[DType::F32])
}

struct Bound {
    forward: Barrier,
    backward: Barrier,
    executor: Executor,
}

/// Four layers, with a gate behind the second; the outputs are the first layer's and the softmax.
fn bound(kind: EngineKind, request: GradReq) -> Bound {
    let (forward, backward) = (Barrier::default(), Barrier::default());
    let compiler = Compiler::with_operators(options(), [gate(&forward, &backward)]).unwrap();
    let engine = EngineConfig { kind, cpu_workers: 2, ..EngineConfig::default() };
    let rt = Runtime::with_compiler(compiler.clone(), RuntimeOptions { engine, ..RuntimeOptions::default() }).unwrap();
    let relu = |x: &Symbol| op("Activation").input(x).param("act_type", "relu").build().unwrap();
    let first = relu(&fully_connected(&var("data"), 16, "fc0"));
    let second =
        op_in(compiler.registry(), "gate").input(&fully_connected(&first, 12, "fc1")).name("gate").build().unwrap();
    let third = relu(&fully_connected(&relu(&second), 10, "fc2"));
    let fourth = fully_connected(&third, 5, "fc3");
    let loss = op("SoftmaxOutput").inputs([&fourth, &var("label")]).name("softmax").build().unwrap();
    let net = Symbol::group([&op("BlockGrad").input(&first).build().unwrap(), &loss]);
    let binder = Executor::simple_bind(&rt, &net).shape("data", &[BATCH, 12]).grad_req(request);
    let executor = binder.grad_req_of("data", GradReq::Null).grad_req_of("label", GradReq::Null).build().unwrap();
    for (i, (name, array)) in executor.arguments().iter().enumerate() {
        set(&executor, name, &noise(array.len() as usize, i as u32));
    }
    set(&executor, "label", &[0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
    Bound { forward, backward, executor }
}

fn pass(bound: &mut Bound) {
    bound.executor.forward(true).unwrap();
    bound.executor.backward(&[]).unwrap();
}

/// Names and bits of the gradients, or why they are not there.
fn gradients(executor: &Executor) -> Vec<(String, Result<Vec<u32>, String>)> {
    let bits = |array: &NDArray| -> Result<Vec<u32>, String> {
        let values = array.to_vec::<f32>().map_err(|error| error.to_string())?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    executor.gradients().map(|(name, array)| (name.to_owned(), bits(array))).collect()
}

/// What the layers behind the gate are called.
fn is_behind(name: &str) -> bool {
    name.starts_with("fc2") || name.starts_with("fc3")
}

/// The backward pass waits in the middle for an operation on the gradients of the layers behind: it does not come to an end
/// unless that runs meanwhile.
#[test]
fn gradients_are_read_while_the_backward_pass_runs() {
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        let mut plain = bound(kind, GradReq::Write);
        pass(&mut plain);
        let expected = gradients(&plain.executor);
        assert!(expected.iter().all(|(_, found)| found.is_ok()));
        for _ in 0..2 {
            let mut gated = bound(kind, GradReq::Write);
            let open = gated.backward.shut();
            pass(&mut gated);
            for layer in ["fc3_weight", "fc3_bias", "fc2_weight", "fc2_bias"] {
                let gradient = gated.executor.gradient(layer).unwrap();
                let doubled = values(&(gradient * 2.0).unwrap());
                let (_, bits) = expected.iter().find(|(name, _)| name == layer).unwrap();
                let bits = bits.as_ref().unwrap();
                assert!(doubled.iter().zip(bits).all(|(d, b)| *d == 2.0 * f32::from_bits(*b)), "{layer}");
            }
            open.send(Ok(())).unwrap();
            assert_eq!(gradients(&gated.executor), expected);
        }
    }
}

/// What is complete before a failure stays, bit by bit; all else has the error.
#[test]
fn a_late_failure_leaves_earlier_gradients_alone() {
    for kind in EngineKind::ALL {
        let mut bound = bound(kind, GradReq::Write);
        pass(&mut bound);
        let expected = gradients(&bound.executor);
        for (_, array) in bound.executor.gradients() {
            array.fill(0.5).unwrap();
        }
        bound.backward.shut().send(Err("out of paper".into())).unwrap();
        pass(&mut bound);
        for ((name, found), (_, expected)) in gradients(&bound.executor).iter().zip(&expected) {
            match is_behind(name) {
                true => assert_eq!(found, expected, "{name}"),
                false => assert!(found.as_ref().unwrap_err().contains("out of paper"), "{name}: {found:?}"),
            }
        }
        assert!(bound.executor.runtime().wait_all().is_err());
    }
}

/// What a pass adds to is not final before its end.
#[test]
fn gradients_that_are_added_to_are_not_given_up() {
    for kind in EngineKind::ALL {
        let mut bound = bound(kind, GradReq::Add);
        bound.backward.shut().send(Err("out of paper".into())).unwrap();
        pass(&mut bound);
        assert!(gradients(&bound.executor).iter().all(|(_, found)| found.is_err()));
        bound.executor.runtime().wait_all().unwrap_err();
    }
}

#[test]
fn outputs_are_read_while_the_forward_pass_runs() {
    for training in [true, false] {
        let mut bound = bound(EngineKind::PerDevice, GradReq::Write);
        let open = bound.forward.shut();
        let [early, late] = bound.executor.forward(training).unwrap() else { panic!("two outputs") };
        assert_eq!(values(early).len() as u64, BATCH * 16);
        open.send(Err("out of paper".into())).unwrap();
        assert!(late.to_vec::<f32>().unwrap_err().to_string().contains("out of paper"));
        assert_eq!(values(early).len() as u64, BATCH * 16);
    }
}
