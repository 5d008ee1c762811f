//! Control flow: loops and choices as closures, against the same networks written out.

use tensorc::DType;
use tensorc::symbol::{Infer, Loop, Symbol, SymbolError, cond, foreach, name_scope, op, while_loop};
use tensorc_nd::executor::{Executor, GradReq};
use tensorc_nd::{NDArray, RuntimeOptions};

use crate::support::backend::new_runtime;

type Made = Result<Symbol, SymbolError>;
type Body = dyn Fn(&[Symbol], &[Symbol]) -> Result<Loop, SymbolError>;
type Arrays<'a> = &'a [(&'a str, &'a [u64], &'a [f32])];

fn var(name: &str) -> Symbol {
    Symbol::variable(name)
}

fn unary(name: &str, x: &Symbol) -> Made {
    op(name).input(x).build()
}

fn floats(array: &NDArray) -> Vec<f32> {
    array.to_vec::<f32>().unwrap()
}

/// Outputs in training, and gradients of their sum by every argument, in the order given.
fn run(net: &Symbol, inputs: Arrays<'_>) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let rt = new_runtime(RuntimeOptions::default());
    let mut binder = Executor::simple_bind(&rt, net).grad_req(GradReq::Write);
    for (name, dims, values) in inputs {
        binder = binder.array(name, &rt.array(dims, values).unwrap());
    }
    let mut executor = binder.build().unwrap();
    let outputs: Vec<Vec<f32>> = executor.forward(true).unwrap().iter().map(floats).collect();
    let heads: Vec<NDArray> =
        executor.outputs().iter().map(|output| rt.ones(output.dims(), DType::F32).unwrap()).collect();
    executor.backward(&heads.iter().collect::<Vec<_>>()).unwrap();
    let gradients = inputs.iter().map(|(name, ..)| floats(executor.gradient(name).unwrap())).collect();
    (outputs, gradients)
}

#[track_caller]
fn agree(net: &Symbol, written_out: &Symbol, inputs: Arrays<'_>) {
    let (found, expected) = (run(net, inputs), run(written_out, inputs));
    for (f, e) in [(found.0, expected.0), (found.1, expected.1)] {
        assert_eq!(f.len(), e.len());
        for (f, e) in f.iter().zip(&e) {
            let near = f.len() == e.len() && f.iter().zip(e).all(|(f, e)| (f - e).abs() <= 1e-5 * (1.0 + e.abs()));
            assert!(near, "{f:?}, expected {e:?}");
        }
    }
}

/// Also of the file that is written, which is read and written again.
#[track_caller]
fn agree_and_save(net: &Symbol, written_out: &Symbol, inputs: Arrays<'_>) {
    agree(net, written_out, inputs);
    let text = net.to_json();
    let again = Symbol::from_json(&text).unwrap();
    assert_eq!(again.to_json(), text);
    assert_eq!(again.list_arguments(), net.list_arguments());
    agree(&again, written_out, inputs);
}

/// A recurrent layer: `h' = tanh(W·x + U·h + c)`, `c` computed outside of the loop, and a scale made inside of it.
fn cell(x: &Symbol, h: &Symbol, [w, u, outside]: [&Symbol; 3]) -> Result<Loop, SymbolError> {
    let fc = |x: &Symbol, weight: &Symbol| {
        let layer = op("FullyConnected").input(x).arg("weight", weight).param("no_bias", true);
        layer.param("num_hidden", 2).build()
    };
    let sum = (&(&fc(x, w)? + &fc(h, u)?)? + outside)?;
    let next = unary("tanh", &sum)?;
    Ok(Loop { outputs: vec![(&next * 2.0)?, x.clone()], states: vec![next] })
}

const W: [f32; 6] = [0.5, -0.3, 0.2, 0.1, 0.7, -0.4];
const U: [f32; 4] = [0.3, -0.6, 0.2, 0.4];

#[test]
fn loops_over_rows_hand_states_on() {
    // A few are written out, many stay a loop.
    [4, 90].into_iter().for_each(loop_over_rows);
}

fn loop_over_rows(steps: usize) {
    let extent = steps as u64;
    let data: Vec<f32> = (0..steps * 3).map(|i| (i as f32 * 0.7).sin()).collect();
    let inputs: Arrays<'_> = &[
        ("data", &[extent, 1, 3], &data),
        ("start", &[1, 2], &[0.1, -0.2]),
        ("w", &[2, 3], &W),
        ("u", &[2, 2], &U),
        ("bias", &[1, 2], &[0.3, -0.1]),
    ];
    let outside = || unary("exp", &var("bias")).unwrap();
    let net = {
        let _names = name_scope();
        let (w, c) = (var("w"), outside());
        let whole = foreach(&[&var("data")], &[&var("start")], |rows, states| {
            // A variable made inside is one of the network, as one made outside.
            cell(&rows[0], &states[0], [&w, &var("u"), &c])
        });
        let whole = whole.unwrap();
        assert_eq!((whole.outputs.len(), whole.states.len()), (2, 1));
        Symbol::group(whole.outputs.iter().chain(&whole.states))
    };
    assert_eq!(net.list_arguments(), ["data", "start", "w", "u", "bias"]);
    let shapes = net.infer_shape(&[("data", &[extent, 1, 3]), ("start", &[1, 2])]).unwrap().all().unwrap();
    assert_eq!(shapes.outputs[0], [extent, 1, 2]);
    let written_out = {
        let rows = op("SliceChannel").input(&var("data")).param("axis", 0).param("num_outputs", steps);
        let rows = rows.param("squeeze_axis", true).build().unwrap();
        let (w, u, c, mut h) = (var("w"), var("u"), outside(), var("start"));
        let mut outputs = [vec![], vec![]];
        for row in rows.outputs() {
            let made = cell(&row, &h, [&w, &u, &c]).unwrap();
            outputs.iter_mut().zip(made.outputs).for_each(|(all, one)| all.push(one));
            h = made.states[0].clone();
        }
        let stack = |all: &Vec<Symbol>| op("stack").inputs(all).param("axis", 0).param("num_args", steps).build();
        Symbol::group([&stack(&outputs[0]).unwrap(), &stack(&outputs[1]).unwrap(), &h])
    };
    agree_and_save(&net, &written_out, inputs);
}

/// Doubling until the sum exceeds a bound: three iterations, and zeros for the others.
#[test]
fn loops_end_when_their_condition_fails() {
    [5, 150].into_iter().for_each(loop_that_ends);
}

fn loop_that_ends(most: u32) {
    let net = {
        let _names = name_scope();
        let whole = while_loop(
            &[&var("x"), &var("count")],
            most,
            |held| (&unary("sum", &held[0])? - &var("bound"))?.lesser(0.0),
            |held| {
                let next = (&held[0] * 2.0)?;
                Ok(Loop { outputs: vec![(&next + &var("shift"))?], states: vec![next, (&held[1] + 1.0)?] })
            },
        )
        .unwrap();
        Symbol::group(whole.outputs.iter().chain(&whole.states))
    };
    let written_out = {
        let mut rows = vec![];
        let (shift, mut x) = (var("shift"), var("x"));
        for _ in 0..3 {
            x = (&x * 2.0).unwrap();
            rows.push((&x + &shift).unwrap());
        }
        let nothing = (&(&var("bound") * 0.0).unwrap() + &(&x * 0.0).unwrap()).unwrap();
        rows.extend((3..most).map(|_| nothing.clone()));
        let rows = op("stack").inputs(&rows).param("axis", 0).param("num_args", most as usize).build().unwrap();
        Symbol::group([&rows, &x, &(&var("count") + 3.0).unwrap()])
    };
    let inputs: Arrays<'_> =
        &[("x", &[1], &[1.5]), ("count", &[1], &[0.0]), ("bound", &[1], &[10.0]), ("shift", &[1], &[0.25])];
    agree_and_save(&net, &written_out, inputs);
}

#[test]
fn choices_take_one_branch() {
    let net = {
        let _names = name_scope();
        let (x, y) = (var("x"), var("y"));
        let condition = unary("sum", &x).unwrap().lesser(0.0).unwrap();
        let made = cond(&condition, || Ok(vec![(&unary("exp", &x)? * &y)?]), || Ok(vec![(&unary("sin", &x)? + &y)?]));
        made.unwrap().remove(0)
    };
    let below = (&unary("exp", &var("x")).unwrap() * &var("y")).unwrap();
    let above = (&unary("sin", &var("x")).unwrap() + &var("y")).unwrap();
    let y: (&str, &[u64], &[f32]) = ("y", &[2], &[2.0, -1.0]);
    agree_and_save(&net, &below, &[("x", &[2], &[-1.0, 0.5]), y]);
    agree_and_save(&net, &above, &[("x", &[2], &[-0.25, 0.5]), y]);
}

/// A choice inside of a loop.
#[test]
fn control_flow_nests() {
    let body = |row: &Symbol, held: &Symbol| -> Made { &(row * 3.0)? + held };
    let net = {
        let _names = name_scope();
        let whole = foreach(&[&var("data")], &[&var("start")], |rows, states| {
            let positive = unary("sum", &rows[0])?.greater(0.0)?;
            let (row, held) = (rows[0].clone(), states[0].clone());
            let next = cond(&positive, || Ok(vec![body(&row, &held)?]), || Ok(vec![held.clone()]))?;
            Ok(Loop { outputs: vec![], states: next })
        });
        whole.unwrap().states.remove(0)
    };
    let rows = op("SliceChannel").input(&var("data")).param("axis", 0).param("num_outputs", 3);
    let rows: Vec<Symbol> = rows.param("squeeze_axis", true).build().unwrap().outputs().collect();
    let first = body(&rows[0], &var("start")).unwrap();
    let written_out = body(&rows[2], &first).unwrap();
    let data = [1.0, 0.5, -2.0, 1.0, 0.25, 0.0];
    agree_and_save(&net, &written_out, &[("data", &[3, 2], &data), ("start", &[2], &[0.0, 1.0])]);
}

#[test]
fn what_cannot_be_a_loop_is_said() {
    let _names = name_scope();
    let (data, start) = (var("data"), var("start"));
    let fails = |body: &Body, part: &str| {
        let why = foreach(&[&data], &[&start], |rows, states| body(rows, states)).unwrap_err().to_string();
        assert!(why.contains("foreach") && why.contains(part), "{why}");
    };
    fails(&|rows, _| Ok(Loop { outputs: rows.to_vec(), states: vec![] }), "returns 0 states, expected 1");
    fails(&|_, states| Ok(Loop { outputs: vec![], states: states.to_vec() }), "does not use operand 0");
    fails(
        &|rows, states| {
            let x = op("Dropout").input(&(&rows[0] + &states[0])?).build()?;
            Ok(Loop { outputs: vec![], states: vec![x] })
        },
        "random numbers inside of control flow are not supported",
    );
    let uneven = cond(&data, || Ok(vec![start.clone()]), || Ok(vec![])).unwrap_err().to_string();
    assert!(uneven.contains("one branch makes 1 values, the other 0"), "{uneven}");
    let none = foreach(&[], &[&start], |_, states| Ok(Loop { outputs: vec![], states: states.to_vec() }));
    assert!(none.unwrap_err().to_string().contains("no data to iterate over"));
}
