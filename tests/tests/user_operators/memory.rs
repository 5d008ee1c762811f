//! What gradients keep: the bytes planned for forward and backward together, against the least that values which
//! take memory of their own need.

use tensorc::DType;
use tensorc::op::{Define, Keep, OpDef, closure, like};
use tensorc::symbol::{Symbol, op, op_in};
use tensorc_nd::Runtime;
use tensorc_nd::executor::{Executor, GradReq, PlannedMemory};

use super::runtime;

/// Elements of every value, and their bytes.
const DIMS: [u64; 2] = [32, 128];
const N: u64 = 32 * 128 * 4;
/// Operators in a row.
const LENGTH: u64 = 6;

/// An opaque operator of some operands: their sum. What its gradient keeps is stated; it is the head.
fn sum(name: &'static str, operands: &'static [&'static str], keep: Keep) -> OpDef {
    closure(name, operands, like(0), |call| {
        for i in 0..operands.len() {
            let x = call.read::<f32>(i)?;
            let first = i == 0;
            call.write::<f32>(0)?.iter_mut().zip(x).for_each(|(y, x)| *y = if first { *x } else { *y + x });
        }
        Ok(())
    })
    .backward(keep, |call| {
        let head = call.head::<f32>(0)?.to_vec();
        (0..operands.len()).try_for_each(|i| {
            call.grad::<f32>(i)?.copy_from_slice(&head);
            Ok(())
        })
    })
    .types(&[DType::F32])
    .build()
}

/// Binds a net, runs it forward and backward once, and returns its plan and the gradient of `x`.
fn trained(rt: &Runtime, net: &Symbol, fixed: &[&str]) -> (PlannedMemory, Vec<f32>) {
    let mut binder = Executor::simple_bind(rt, net).shape("x", &DIMS).grad_req(GradReq::Write);
    for name in net.list_arguments().iter().filter(|name| name.starts_with('y')) {
        binder = binder.shape(name, &DIMS);
    }
    for name in fixed {
        binder = binder.grad_req_of(name, GradReq::Null);
    }
    let mut executor = binder.build().unwrap();
    executor.argument("x").unwrap().fill(1.0).unwrap();
    executor.forward(true).unwrap();
    executor.backward(&[&rt.ones(executor.outputs()[0].dims(), DType::F32).unwrap()]).unwrap();
    let gradient = executor.gradient("x").unwrap().to_vec::<f32>().unwrap();
    (executor.planned_memory().unwrap(), gradient)
}

/// A row of `LENGTH` opaque operators between an argument and an output, which are no intermediate values.
///
/// The values v1 … v5 between them need memory. If gradients use the head alone, two values live at a time. If they
/// use operands, the first step back finds v1 … v5 and makes one more; if they use results as well, v5 is also
/// needed by the next step, which makes another.
#[test]
fn only_what_gradients_declare_is_kept() {
    let kinds: [(&str, &[&str], Keep, u64); 6] = [
        ("of_head", &["x"], Keep::heads(), 2),
        ("of_result", &["x"], Keep::heads().results(&[0]), LENGTH + 1),
        ("of_operand", &["x"], Keep::heads().inputs(&[0]), LENGTH),
        ("of_all", &["x"], Keep::heads().inputs(&[0]).results(&[0]), LENGTH + 1),
        ("binary_of_head", &["x", "y"], Keep::heads(), 2),
        ("binary_of_operands", &["x", "y"], Keep::heads().inputs(&[0, 1]), LENGTH),
    ];
    let operators = kinds.clone().map(|(name, operands, keep, _)| {
        let operands: &'static [&'static str] = if operands.len() == 1 { &["x"] } else { &["x", "y"] };
        let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
        sum(name, operands, keep)
    });
    let rt = runtime(operators.into());
    let registry = rt.compiler().registry();
    for (name, operands, _, values) in kinds {
        let mut net = Symbol::variable("x");
        for i in 0..LENGTH {
            let mut call = op_in(registry, name).input(&net);
            if operands.len() > 1 {
                call = call.input(&Symbol::variable(&format!("y{i}")));
            }
            net = call.build().unwrap();
        }
        let (plan, gradient) = trained(&rt, &net, &[]);
        println!("{name}: {} bytes, {} stated", plan.arena_bytes, values * N);
        assert!(plan.arena_bytes <= values * N, "{name}: {} bytes, expected {}", plan.arena_bytes, values * N);
        assert_eq!(gradient, vec![1.0; (N / 4) as usize], "{name}");
    }
}

/// A row of fully connected layers: the gradient of a weight needs the data of its layer, that of the data the
/// weight, and neither the result. Where weights are fixed nothing is kept.
#[test]
fn layers_keep_their_data_for_the_gradient_of_weights_only() {
    let rt = runtime(vec![]);
    let mut net = Symbol::variable("x");
    let names: Vec<String> = (0..LENGTH).map(|i| format!("fc{i}")).collect();
    for name in &names {
        let layer = op("FullyConnected").input(&net).param("num_hidden", DIMS[1]).param("no_bias", true);
        net = layer.name(name).build().unwrap();
    }
    let weights: Vec<String> = names.iter().map(|name| format!("{name}_weight")).collect();
    let fixed: Vec<&str> = weights.iter().map(String::as_str).collect();
    for (fixed, values) in [(&[][..], LENGTH), (&fixed[..], 2)] {
        let (plan, _) = trained(&rt, &net, fixed);
        println!("{} fixed: {} bytes, {} stated", fixed.len(), plan.arena_bytes, values * N);
        assert!(plan.arena_bytes <= values * N, "{} bytes, expected {}", plan.arena_bytes, values * N);
    }
}

/// Data, pooling, activation: pooling keeps its data, the activation its result, which is that of the net here.
#[test]
fn pooling_keeps_its_data() {
    let rt = runtime(vec![]);
    let dims = [2u64, 4, 32, 32];
    let whole: u64 = dims.iter().product::<u64>() * 4;
    let filter = op("Convolution").param("kernel", [1, 1]).param("num_filter", 4).param("no_bias", true);
    let x = filter.input(&Symbol::variable("x")).name("conv").build().unwrap();
    let x = op("Pooling").input(&x).param("kernel", [2, 2]).param("stride", [2, 2]).param("pool_type", "max");
    let net = op("Activation").input(&x.build().unwrap()).param("act_type", "tanh").build().unwrap();
    let mut executor = Executor::simple_bind(&rt, &net).shape("x", &dims).grad_req(GradReq::Write).build().unwrap();
    executor.forward(true).unwrap();
    let plan = executor.planned_memory().unwrap();
    // The convolution's result is kept; its gradient is as large; that of the pooled data is a quarter.
    let stated = 2 * whole + whole / 4;
    println!("pooling: {} bytes, {stated} stated", plan.arena_bytes);
    assert!(plan.arena_bytes <= stated, "{} bytes, expected {stated}", plan.arena_bytes);
}

/// One kernel for each operator: a row of element-wise ones runs in the memory of one value; where a value has
/// another reader, a second is needed.
#[test]
fn element_wise_operators_share_memory_unless_a_value_is_read_again() {
    let options = {
        let mut options = tensorc::Options::default();
        options.passes.fuse = tensorc::passes::FusionStrategy::Off;
        options
    };
    let compiler = tensorc::Compiler::new(options).unwrap();
    let rt = Runtime::with_compiler(compiler, tensorc_nd::RuntimeOptions::default()).unwrap();
    let unary = |name: &str, x: &Symbol| op(name).input(x).build().unwrap();
    let planned = |net: &Symbol| {
        let mut executor = Executor::simple_bind(&rt, net).shape("x", &DIMS).grad_req(GradReq::Null).build().unwrap();
        executor.forward(false).unwrap();
        executor.outputs()[0].wait_to_read().unwrap();
        executor.intermediate_bytes() as u64
    };
    let mut row = Symbol::variable("x");
    for name in ["sin", "tanh", "sigmoid", "cos", "abs", "exp"] {
        row = unary(name, &row);
    }
    let a = unary("sin", &Symbol::variable("x"));
    let b = unary("tanh", &unary("sigmoid", &a));
    let read_again = (&a * &b).unwrap();
    assert!(planned(&row) <= N, "{} bytes, expected {N}", planned(&row));
    let found = planned(&read_again);
    assert!(found <= 2 * N, "{found} bytes, expected {}", 2 * N);
}
