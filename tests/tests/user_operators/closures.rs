//! Operators that are closures: what they compute, where they stand in plans, and how they fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorc::abi::StepOp;
use tensorc::op::{Closure, Define, OpDef, ParamKind, closure, like, types};
use tensorc::runtime::engine::{EngineConfig, EngineKind};
use tensorc::{Compiler, DType, Tensor};
use tensorc_nd::Error;
use tensorc_nd::{Runtime, RuntimeOptions};

use super::user_operator::running_max;
use super::{runtime, values};
use crate::support::backend::options;

/// `x + by`, or what the parameter asks for.
fn fragile() -> Closure {
    closure("fragile", &["x"], like(0), |call| {
        match call.params.str("fail") {
            Some("error") => return Err("no more paper".into()),
            Some("panic") => panic!("paper on fire"),
            _ => {}
        }
        let x = call.read::<f32>(0)?;
        call.write::<f32>(0)?.iter_mut().zip(x).for_each(|(y, x)| *y = x + 1.0);
        Ok(())
    })
    .choice("fail", &["no", "error", "panic"], "no", "how")
    .types(&[DType::F32])
}

fn runtimes() -> Vec<Runtime> {
    let make = |kind| {
        let engine = EngineConfig { kind, ..EngineConfig::default() };
        let compiler = Compiler::with_operators(options(), [fragile().build(), running_max()]).unwrap();
        Runtime::with_compiler(compiler, RuntimeOptions { engine, ..RuntimeOptions::default() }).unwrap()
    };
    EngineKind::ALL.into_iter().map(make).collect()
}

#[test]
fn closures_compute_between_deferred_calls() {
    for rt in runtimes() {
        let x = rt.array(&[2, 3], &[1f32, 3.0, 2.0, -5.0, -6.0, 0.0]).unwrap();
        let y = (&x * 2.0).unwrap().apply("running_max").unwrap();
        let z = (&y - 1.0).unwrap();
        assert_eq!(z.to_vec::<f32>().unwrap(), [1.0, 5.0, 5.0, -11.0, -11.0, -1.0]);
    }
}

/// What fails reaches whoever reads a result, by name, and nobody else; the array can be used again.
#[test]
fn errors_and_panics_travel_along_the_chain() {
    for rt in runtimes() {
        let x = rt.array(&[3], &[1f32, 2.0, 3.0]).unwrap();
        for (fail, words) in [("error", "no more paper"), ("panic", "paper on fire")] {
            let bad = rt.op("fragile").unwrap().arg(&x).param("fail", fail).invoke().unwrap();
            let after = (&(&bad * 2.0).unwrap() + &x).unwrap().apply("running_max").unwrap();
            let beside = rt.op("fragile").unwrap().arg(&x).invoke().unwrap();
            for array in [&bad, &after] {
                let error = array.to_vec::<f32>().unwrap_err();
                let message = error.to_string();
                assert!(matches!(error, Error::Wait(_)), "{error:?}");
                assert!(message.contains("fragile") && message.contains(words), "{message}");
            }
            assert_eq!(beside.to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
            x.copy_into(&bad).unwrap();
            assert_eq!(bad.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
            assert!(rt.wait_all().is_err(), "the failure is also told to whoever waits for everything");
        }
    }
}

/// In a model: a step between two kernels, whose failure names operator and node.
#[test]
fn closures_are_steps_of_a_plan() {
    let compiler = Compiler::with_operators(options(), [fragile()]).unwrap();
    let model = |fail: &str| {
        let text = format!(
            "graph @g(%x: f32[2, 4]) {{
                %a = exp(%x)
                %shape = const i64[1] [8]
                %b = reshape(%a, %shape)
                %mine = fragile(%b) {{fail = {fail:?}}}
                %c = mul(%mine, %mine)
                %d = exp(%c)
                return %d, %mine
            }}"
        );
        let graph = tensorc::ir::text::parse_module(&text, compiler.registry()).unwrap().graphs.remove(0);
        compiler.model(graph)
    };
    let x = Tensor::from_f32(&[2, 4], &[0.0; 8]).unwrap();
    let good = model("no");
    let outputs = good.run(&[("x", x.clone())]).unwrap();
    assert_eq!(outputs[1].1.to_f32().unwrap(), [2.0; 8]);
    assert!(outputs[0].1.to_f32().unwrap().iter().all(|y| (y - 4f32.exp()).abs() < 1e-4));
    let types: Vec<_> = good.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
    let session = good.compile(&types).unwrap();
    let kinds: Vec<bool> = session.plan().steps.iter().map(|s| matches!(s.op, StepOp::Extern { .. })).collect();
    assert_eq!(kinds, [false, true, false], "what is around the closure is fused");
    let text = tensorc::ir::text::print_plan(session.plan());
    assert!(text.contains("extern \"fragile\" 0 ("), "{text}");
    let again = tensorc::ir::text::parse_module(&text, compiler.registry()).unwrap();
    assert_eq!(again.plans[0], *session.plan());
    for (fail, words) in [("error", "no more paper"), ("panic", "paper on fire")] {
        let message = model(fail).run(&[("x", x.clone())]).unwrap_err().to_string();
        assert!(["`mine`", "`fragile`", words].iter().all(|w| message.contains(w)), "{message}");
    }
}

/// Two results of other shapes, an integer operand, a parameter, working memory that the plan counts.
#[test]
fn results_parameters_and_working_memory() {
    let extremes = closure(
        "extremes",
        &["x"],
        types(|params, given| {
            let n = params.int("n").unwrap_or(1) as u64;
            let ty = |dtype| tensorc::op::DenseType::new(dtype, [n]);
            match given[0].len() >= n {
                true => Ok(vec![ty(given[0].dtype), ty(DType::I32)]),
                false => Err(format!("{} elements have no {n} largest", given[0].len()).into()),
            }
        }),
        |call| {
            let (x, count) = (call.read::<f64>(0)?, call.outputs[0].dims[0] as usize);
            assert_eq!(call.scratch.len(), x.len());
            call.scratch.fill(0);
            for i in 0..count {
                let free = (0..x.len()).filter(|at| call.scratch[*at] == 0);
                let best = free.max_by(|a, b| x[*a].total_cmp(&x[*b])).ok_or("nothing is left")?;
                call.scratch[best] = 1;
                call.write::<f64>(0)?[i] = x[best];
                call.write::<i32>(1)?[i] = best as i32;
            }
            Ok(())
        },
    )
    .types(&[DType::F64])
    .outputs(2, 2)
    .required("n", ParamKind::Int, "How many.")
    .within(1.0, 100.0)
    .scratch(|_, given| given[0].as_ref().map_or(0, |ty| ty.len()));
    let rt = runtime(vec![extremes.build()]);
    let x = rt.array(&[2, 3], &[1f64, 9.0, -4.0, 7.0, 8.0, 0.5]).unwrap();
    let results = rt.op("extremes").unwrap().arg(&x).param("n", 3).outputs(2).invoke_all().unwrap();
    assert_eq!(results[0].to_vec::<f64>().unwrap(), [9.0, 8.0, 7.0]);
    assert_eq!(results[1].to_vec::<i32>().unwrap(), [1, 4, 3]);
    let error = rt.op("extremes").unwrap().arg(&x).param("n", 7).outputs(2).invoke_all().unwrap_err().to_string();
    assert!(error.contains("extremes") && error.contains("6 elements have no 7 largest"), "{error}");
}

/// Numbers come from the device's stream: seeded equally, equal; drawn again, different.
#[test]
fn random_closures_draw_from_the_stream() {
    let noise = || {
        let def = closure("noise", &["x"], like(0), |call| {
            let mut random = call.random()?;
            call.write::<f32>(0)?.iter_mut().for_each(|y| *y = random.uniform() as f32);
            Ok(())
        });
        def.types(&[DType::F32]).random().build()
    };
    let draw = || {
        let rt = runtime(vec![noise()]);
        let x = rt.zeros(&[1000], DType::F32).unwrap();
        let arrays = [x.apply("noise").unwrap(), x.apply("noise").unwrap()];
        arrays.map(|array| values(&array))
    };
    let [first, second] = draw();
    assert_eq!(draw(), [first.clone(), second.clone()]);
    assert_ne!(first, second);
    let mean = first.iter().sum::<f64>() / 1000.0;
    assert!((mean - 0.5).abs() < 0.05 && first.iter().all(|x| (0.0..1.0).contains(x)), "{mean}");
}

/// A closure may do more than compute: it is called once for each call, also on constants.
#[test]
fn closures_are_never_folded_or_merged() {
    let count = Arc::new(AtomicUsize::new(0));
    let calls = count.clone();
    let counting = closure("counting", &["x"], like(0), move |call| {
        calls.fetch_add(1, Ordering::Relaxed);
        let x = call.read::<f32>(0)?;
        call.write::<f32>(0)?.copy_from_slice(x);
        Ok(())
    });
    let counting: OpDef = counting.types(&[DType::F32]).build();
    let compiler = Compiler::with_operators(options(), [counting]).unwrap();
    let text = "graph @g() { %x = const f32[2] [1, 2] %a = counting(%x) %b = counting(%x) %c = add(%a, %b) return %c }";
    let graph = tensorc::ir::text::parse_module(text, compiler.registry()).unwrap().graphs.remove(0);
    let model = compiler.model(graph);
    for run in 1..=2 {
        assert_eq!(model.run(&[]).unwrap()[0].1.to_f32().unwrap(), [2.0, 4.0]);
        assert_eq!(count.load(Ordering::Relaxed), 2 * run);
    }
}
