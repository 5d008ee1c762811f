//! Operators of a crate outside of the workspace (`examples/user-operator`), as its users see them.

#[path = "../../examples/user-operator/src/lib.rs"]
mod user_operator;

mod closures;
mod memory;

use tensorc::ir::graph::Graph;
use tensorc::op::{
    Define, GradientError, OpDef, ParamKind, Params, check_gradient, composite, like, reference, scalar, types,
};
use tensorc::{Compiler, DType, Tensor, scalar_op};
use tensorc_nd::autograd::{self, GradReq};
use tensorc_nd::{NDArray, Runtime, RuntimeOptions};

use user_operator::{quadratic, rms_norm};

use crate::support::backend::options;

fn runtime(operators: Vec<OpDef>) -> Runtime {
    let compiler = Compiler::with_operators(options(), operators).unwrap();
    Runtime::with_compiler(compiler, RuntimeOptions::default()).unwrap()
}

fn values(array: &NDArray) -> Vec<f64> {
    array.cast(DType::F64).unwrap().to_vec().unwrap()
}

/// Of the sum of the results.
fn gradient(x: &NDArray, call: impl FnOnce(&NDArray) -> NDArray) -> NDArray {
    let mut x = x.detach();
    x.attach_grad(GradReq::Write).unwrap();
    let y = {
        let _scope = autograd::record();
        call(&x)
    };
    y.backward().unwrap();
    x.grad().unwrap()
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(1.0);
    assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?}, not {expected:?}");
}

/// Case A055: MXNet's values.
#[test]
fn a055_smooth_l1() {
    let rt = runtime(user_operator::all());
    let near = rt.array(&[7], &[-2f32, -0.2, 0.0, 0.1, 0.25, 0.3, 3.0]).unwrap();
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-7), (DType::F16, 1e-3), (DType::BF16, 1e-2)] {
        let far = rt.array(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap().cast(dtype).unwrap();
        let x = near.cast(dtype).unwrap();
        assert_near(&values(&rt.op("smooth_l1").unwrap().arg(&far).invoke().unwrap()), &[0.5, 1.5, 2.5, 3.5], 0.0);
        let expected = [1.875, 0.08, 0.0, 0.02, 0.125, 0.175, 2.875];
        let forms = [
            rt.op("smooth_l1").unwrap().arg(&x).param("scalar", 2.0),
            rt.op("smooth_l1").unwrap().arg(&x).arg(2.0),
            rt.op("smooth_l1").unwrap().arg(2.0).arg(&x),
        ];
        for form in forms {
            let y = form.invoke().unwrap();
            assert_eq!(y.dtype(), dtype);
            assert_near(&values(&y), &expected, tolerance);
        }
        let slopes = gradient(&x, |x| rt.op("smooth_l1").unwrap().arg(x).arg(2.0).invoke().unwrap());
        let expected: Vec<f64> = values(&x).iter().map(|x| (4.0 * x).clamp(-1.0, 1.0)).collect();
        assert_near(&values(&slopes), &expected, tolerance);
        let twice = rt.op("smooth_l1").unwrap().arg(&x).arg(2.0).param("scalar", 2.0).invoke().unwrap_err().to_string();
        assert!(twice.contains("smooth_l1") && twice.contains("scalar"), "{twice}");
    }
}

/// Case A054: every rank and float type.
#[test]
fn a054_quadratic() {
    let rt = runtime(user_operator::all());

    let x = rt.array(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let y = rt.op("quadratic").unwrap().arg(&x).param("a", 1.0).param("b", 2.0).param("c", 3.0).invoke().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [6.0, 11.0, 18.0, 27.0]);
    let (a, b, c) = (1.5, -0.75, 0.3);
    for rank in 1..=5 {
        let dims = &[3, 1, 2, 4, 2][..rank];
        let data: Vec<f32> = (0..dims.iter().product::<u64>()).map(|i| (i as f32 * 0.37).sin() * 2.0).collect();
        for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-15), (DType::F16, 2e-3)] {
            let x = rt.array(dims, &data).unwrap().cast(dtype).unwrap();
            let y = rt.op("quadratic").unwrap().arg(&x).param("a", a).param("b", b).param("c", c).invoke().unwrap();
            let expected: Vec<f64> = values(&x).iter().map(|x| a * x * x + b * x + c).collect();
            assert_eq!((y.dims(), y.dtype()), (dims, dtype));
            assert_near(&values(&y), &expected, tolerance);
            let expected: Vec<f64> = values(&x).iter().map(|x| 2.0 * a * x + b).collect();
            let call = |x: &NDArray| {
                rt.op("quadratic").unwrap().arg(x).param("a", a).param("b", b).param("c", c).invoke().unwrap()
            };
            assert_near(&values(&gradient(&x, call)), &expected, tolerance);
        }
    }
}

#[test]
fn gradients_are_derivatives() {
    scalar_op! { soft_min(a, b) = -((-&a).exp() + (-&b).exp()).log() }
    // A rule that forgets the factor.
    let wrong = scalar("wrong", &["x"], |_, x| &x[0] * &x[0]).gradient(|b, cx| {
        let (x, head) = (cx.input(0)?, cx.head(b, 0)?);
        Ok(vec![Some(b.call("mul", &[x, head])?)])
    });
    let operators = user_operator::all().into_iter().chain([soft_min(), wrong]);
    let compiler = Compiler::with_operators(options(), operators).unwrap();
    let check = |op, params: Params, operands: &[Tensor]| check_gradient(&compiler, op, &params, operands);
    for sigma in [0.5, 1.0, 2.0] {
        let checked = check("smooth_l1", Params::new().with("scalar", sigma), &[]).unwrap();
        assert_eq!(checked.compared, 10);
    }
    let quadratic = |name| Params::new().with(name, 2.0).with("b", -1.0);
    assert!(check("quadratic", quadratic("a"), &[]).is_ok());
    assert_eq!(check("soft_min", Params::new(), &[]).unwrap().compared, 200);
    let refused = check("quadratic", quadratic("d"), &[]).unwrap_err().to_string();
    assert!(refused.contains("quadratic") && refused.contains("`d`") && refused.contains("a, b, c"), "{refused}");
    let error = check("wrong", Params::new(), &[]).unwrap_err();
    assert!(matches!(error, GradientError::Differs { .. }) && error.to_string().contains("`wrong`"), "{error}");

    let x = Tensor::from_slice(&[2, 3], &[0.3f64, -1.2, 0.7, 2.0, 0.1, -0.4]).unwrap();
    let gamma = Tensor::from_slice(&[3], &[1.0f64, -0.5, 2.0]).unwrap();
    assert_eq!(check("scaled_by_rms", Params::new(), &[x, gamma]).unwrap().compared, 9);
    let x = Tensor::from_f32(&[2, 3], &[0.3, -1.2, 0.7, -2.0, 0.1, 0.4]).unwrap();
    assert_eq!(check("running_max", Params::new(), &[x]).unwrap().compared, 6);
}

#[test]
fn composites_compute_and_fuse() {
    let rt = runtime(user_operator::all());
    let x = rt.array(&[2, 3], &[1f32, 2.0, 3.0, -4.0, 0.0, 4.0]).unwrap();
    let gamma = rt.array(&[3], &[1f32, 2.0, 0.5]).unwrap();
    let y = rt.op("scaled_by_rms").unwrap().arg(&x).arg(&gamma).invoke().unwrap();
    let expected = |row: [f64; 3]| {
        let root = (row.iter().map(|v| v * v).sum::<f64>() / 3.0 + 1e-6).sqrt();
        [row[0] / root, 2.0 * row[1] / root, 0.5 * row[2] / root]
    };
    let expected = [expected([1.0, 2.0, 3.0]), expected([-4.0, 0.0, 4.0])].concat();
    assert_near(&values(&y), &expected, 1e-6);
}

/// A user's expression, composite and built-in operators around them become one kernel.
#[test]
fn users_operators_fuse_with_others() {
    let compiler = Compiler::with_operators(options(), user_operator::all()).unwrap();
    let text = "graph @g(%x: f32[4, 8], %g: f32[8]) {
        %a = exp(%x)
        %b = smooth_l1(%a) {scalar = 2.0}
        %c = scaled_by_rms(%b, %g) {eps = 1e-3}
        %d = quadratic(%c) {a = 2.0}
        return %d
    }";
    let module = tensorc::ir::text::parse_module(text, compiler.registry()).unwrap();
    let graph: Graph = module.graphs.into_iter().next().unwrap();
    let printed = tensorc::ir::text::print_graph(&graph, &tensorc::ir::text::PrintOptions::default());
    assert!(printed.contains("smooth_l1(%a) {scalar = 2.0}"), "{printed}");
    let model = compiler.model(graph);
    let types: Vec<_> = model.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    let session = model.compile(&types).unwrap();
    assert_eq!(session.plan().steps.len(), 1, "{:?}", session.plan().steps);
}

#[test]
fn names_that_are_taken_and_wrong_entries_are_errors() {
    let refused = |op: OpDef| {
        let what = format!("{:?}, {:?}, {:?}", op, op.names, op.params);
        match Compiler::with_operators(options(), [op]) {
            Ok(_) => panic!("{what} is taken"),
            Err(error) => error.to_string(),
        }
    };
    let own = |name| scalar(name, &["x"], |_, x| x[0].clone());
    for (op, words) in [
        (own("exp"), &["exp", "twice"][..]),
        (own("my op"), &["my op", "name"]),
        (own("my_op").mxnet("Convolution").mxnet("my_op"), &["my_op", "Convolution"]),
        (own("my_op").param("p", 1.0, "").param("p", 2.0, ""), &["my_op", "two parameters", "`p`"]),
        (own("my_op").param("p", 3.0, "").within(0.0, 1.0), &["my_op", "default", "[0, 1]"]),
        (own("my_op").scalar("s", 1.0, "").param("p", 2.0, ""), &["my_op", "`s`"]),
        (scalar("my_op", &["x", "x"], |_, x| x[0].clone()), &["my_op", "two operands", "`x`"]),
    ] {
        let message = refused(op);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

/// Row O9: what is wrong with a parameter is said by operator and parameter, each in its own words.
#[test]
fn o9_messages_about_parameters() {
    let op = || {
        let def = composite("pick", &["x"], like(0), |_, _, x| Ok(x[0]));
        let def = def.required("n", ParamKind::Int, "how many").within(0.0, 9.0);
        def.choice("mode", &["up", "down"], "up", "where").param("p", 0.5, "how often").within(0.0, 1.0)
    };
    let rt = runtime(vec![op()]);
    let x = rt.array(&[1], &[1f32]).unwrap();
    let call = || rt.op("pick").unwrap().arg(&x);
    assert!(call().param("n", 3).param("mode", "down").invoke().is_ok());
    for (call, words) in [
        (call(), &["`n`", "missing", "int, required"][..]),
        (call().param("n", 1).param("q", 1), &["`q`", "n, mode, p"]),
        (call().param("n", 1.5), &["`n`", "1.5", "expected int"]),
        (call().param("n", 10), &["`n`", "10", "[0, 9]"]),
        (call().param("n", 1).param("p", 1.5), &["`p`", "1.5", "[0, 1]"]),
        (call().param("n", 1).param("mode", "left"), &["`mode`", "left", "up, down"]),
    ] {
        let message = call.invoke().unwrap_err().to_string();
        assert!(message.contains("pick") && words.iter().all(|word| message.contains(word)), "{message}");
    }
}

/// Row P2: operands of equal shape by choice, and types by a rule.
#[test]
fn shapes_follow_the_rule_of_the_operator() {
    let strict = scalar("strict_add", &["lhs", "rhs"], |_, x| &x[0] + &x[1]).equal_shapes();
    let pairs = composite(
        "pairs",
        &["x"],
        types(|_, given| match given[0].dims.as_slice() {
            [n] if n % 2 == 0 => Ok(vec![tensorc::op::DenseType::new(given[0].dtype, [n / 2, 2])]),
            dims => Err(format!("{dims:?} cannot be paired").into()),
        }),
        |b, cx, x| {
            let shape = b.i64s(&cx.outputs[0].dims.iter().map(|d| *d as i64).collect::<Vec<_>>());
            b.call("reshape", &[x[0], shape])
        },
    );
    let rt = runtime(vec![strict, pairs]);
    let (x, y) = (rt.ones(&[2, 3], DType::F32).unwrap(), rt.ones(&[3], DType::F32).unwrap());
    let call = |a, b| rt.op("strict_add").unwrap().arg(a).arg(b).invoke();
    assert_eq!(call(&x, &x).unwrap().to_vec::<f32>().unwrap(), [2.0; 6]);
    let error = call(&x, &y).unwrap_err().to_string();
    assert!(error.contains("strict_add") && error.contains("shapes of the operands differ"), "{error}");
    let even = rt.array(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap().apply("pairs").unwrap();
    assert_eq!((even.dims(), even.to_vec::<f32>().unwrap()), (&[2, 2][..], vec![1.0, 2.0, 3.0, 4.0]));
    let error = y.apply("pairs").unwrap_err().to_string();
    assert!(error.contains("pairs") && error.contains("[3] cannot be paired"), "{error}");
}

/// Row G1: the reference says of every operator what its entry says, in MXNet's words.
#[test]
fn g1_reference_and_registry_agree() {
    let text = reference(&quadratic());
    assert!(text.starts_with("quadratic(data, a=0, b=0, c=0)\n    a·x² + b·x + c.\n"), "{text}");
    assert!(text.contains("data : NDArray-or-Symbol\n    a : float, optional, default=0\n        Coefficient of x²"));
    assert!(reference(&rms_norm()).contains("In [0, 1]"));
    let registry = tensorc::ops::registry().unwrap();
    for op in registry.iter() {
        let text = reference(op);
        assert!(text.starts_with(&format!("{}(", op.name)) && text.contains(op.doc), "{text}");
        let parameters: Vec<&str> =
            text.lines().filter_map(|l| l.strip_prefix("    ")?.split_once(" : ")).map(|(name, _)| name).collect();
        let declared = op.inputs.iter().map(|i| i.name).chain(op.params.iter().map(|p| p.name));
        assert!(declared.eq(parameters.iter().copied()), "{text}");
        assert!(op.params.iter().all(|p| text.contains(&p.type_text())), "{text}");
    }
    let kinds = composite("kinds", &["x"], like(0), |_, _, x| Ok(x[0]))
        .required("num_hidden", ParamKind::Int, "")
        .param("no_bias", false, "")
        .choice("pool_type", &["avg", "max"], "max", "")
        .param("kernel", Vec::<i64>::new(), "");
    let found: Vec<String> = kinds.params.iter().map(|p| p.type_text()).collect();
    let of_mxnet = [
        "int, required",
        "boolean, optional, default=0",
        "{'avg', 'max'},optional, default='max'",
        "Shape(tuple), optional, default=[]",
    ];
    assert_eq!(found, of_mxnet);
}
