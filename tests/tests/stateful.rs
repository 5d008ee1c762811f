//! Models whose outputs are the next values of inputs: each run gives what the model gives with all of them passed by hand.

use tensorc::ir::text::parse_module;
use tensorc::ir::{DType, Rng};
use tensorc::{Compiler, Error, Model, Options, State, StatefulModel, Tensor};

use crate::support::backend::options;
use crate::support::plan_counter;

/// Attention of 2 heads with 4 elements each over what came before, and a state that keeps its shape.
const DECODER: &str =
    "graph @main(%x: f32[?b, ?k, 8], %w: f32[8, 24], %past_k: f32[?b, 2, ?n, 4], %past_v: f32[?b, 2, ?n, 4],
    %sum: f32[?b, 8]) {
  %p = matmul(%x, %w)
  %sizes = const i64[3] [8, 8, 8]
  %parts = split(%p, %sizes) {axis = 2} : (?, ?, ?)
  %heads = const i64[4] [0, 0, 2, 4]
  %q2 = reshape(%parts, %heads)
  %k2 = reshape(%parts:1, %heads)
  %v2 = reshape(%parts:2, %heads)
  %q = transpose(%q2) {perm = [0, 2, 1, 3]}
  %k = transpose(%k2) {perm = [0, 2, 1, 3]}
  %v = transpose(%v2) {perm = [0, 2, 1, 3]}
  %present_k = concat(%past_k, %k) {axis = 2}
  %present_v = concat(%past_v, %v) {axis = 2}
  %t = transpose(%present_k) {perm = [0, 1, 3, 2]}
  %scores = matmul(%q, %t)
  %a = softmax(%scores)
  %c = matmul(%a, %present_v)
  %ct = transpose(%c) {perm = [0, 2, 1, 3]}
  %flat = const i64[3] [0, 0, 8]
  %y = reshape(%ct, %flat)
  %axis = const i64[1] [1]
  %steps = reduce_sum(%y, %axis) {keepdims = false}
  %next_sum = add(%sum, %steps)
  return %y, %present_k, %present_v, %next_sum
}";

const CAPACITY: u64 = 48;

fn states() -> Vec<State> {
    vec![
        State::growing("past_k", "present_k", CAPACITY),
        State::new("sum", "next_sum"),
        State::growing("past_v", "present_v", CAPACITY),
    ]
}

fn loaded(compiler: &Compiler) -> Model {
    let text = format!("tensorc-ir 1\n{DECODER}");
    compiler.model(parse_module(&text, compiler.registry()).unwrap().graphs.remove(0))
}

fn random(dims: &[u64], seed: u64) -> Tensor {
    let mut rng = Rng::new(seed);
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect();
    Tensor::from_f32(dims, &values).unwrap()
}

fn zeros(dims: &[u64]) -> Tensor {
    Tensor::from_f32(dims, &vec![0.0; dims.iter().product::<u64>() as usize]).unwrap()
}

/// The model with its states passed by hand.
struct ByHand {
    model: Model,
    past: [Tensor; 3],
}

impl ByHand {
    fn new(compiler: &Compiler, batch: u64) -> ByHand {
        let empty = zeros(&[batch, 2, 0, 4]);
        ByHand { model: loaded(compiler), past: [empty.clone(), empty, zeros(&[batch, 8])] }
    }

    fn run(&mut self, x: &Tensor, w: &Tensor) -> Tensor {
        let names = ["past_k", "past_v", "sum"];
        let past = names.iter().copied().zip(self.past.iter().cloned());
        let inputs: Vec<_> = [("x", x.clone()), ("w", w.clone())].into_iter().chain(past).collect();
        let mut outputs = self.model.run(&inputs).unwrap().into_iter().map(|(_, t)| t);
        let y = outputs.next().unwrap();
        self.past = std::array::from_fn(|_| outputs.next().unwrap());
        y
    }
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

plan_counter!(PLANS, count_plans);

#[test]
fn a_sequence_of_runs_is_what_passing_states_by_hand_gives() {
    let compiler = Compiler::new(Options { progress: Some(count_plans), poison: true, ..options() }).unwrap();
    for batch in [1, 3] {
        let decoder = loaded(&compiler).stateful(&states()).unwrap();
        assert_eq!(decoder.inputs(), ["x", "w"]);
        let (mut held, mut by_hand) = (decoder.states(), ByHand::new(&compiler, batch));
        let w = random(&[8, 24], 7);
        let mut filled = 0;
        let mut made = vec![];
        // A prompt, then single steps, then some at once.
        for (step, k) in [5].into_iter().chain([1; 24]).chain([3, 4, 1]).enumerate() {
            let x = random(&[batch, k, 8], 100 + step as u64);
            let before = PLANS.load(std::sync::atomic::Ordering::Relaxed);
            let found = decoder.run(&mut held, &[("x", x.clone()), ("w", w.clone())]).unwrap();
            made.push(PLANS.load(std::sync::atomic::Ordering::Relaxed) - before);
            filled += k;
            assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["y"]);
            let expected = by_hand.run(&x, &w);
            assert!(largest_difference(&found[0].1, &expected) < 1e-5, "step {step}");
            assert_eq!(decoder.len(&held, "past_v"), Some(filled));
            for (name, expected) in ["past_k", "past_v", "sum"].iter().zip(&by_hand.past) {
                let found = decoder.get(&held, name).unwrap();
                assert!(largest_difference(&found, expected) < 1e-4, "step {step}: {name}");
            }
        }
        assert!(made[..2].iter().all(|n| *n > 0), "{made:?}");
        assert_eq!(made[2..25].iter().sum::<usize>(), 0, "single steps have one plan: {made:?}");
    }
}

#[test]
fn states_are_set_cut_and_read() {
    let compiler = Compiler::new(options()).unwrap();
    let decoder = loaded(&compiler).stateful(&states()).unwrap();
    let w = random(&[8, 24], 7);
    let step = |held: &mut tensorc::States, seed| {
        decoder.run(held, &[("x", random(&[1, 1, 8], seed)), ("w", w.clone())]).unwrap().remove(0).1
    };
    let mut held = decoder.states();
    let first: Vec<Tensor> = (0..10).map(|i| step(&mut held, i)).collect();
    // Back to the sixth step: the same follows.
    let sum = |held: &mut tensorc::States, t: &Tensor| decoder.set(held, "sum", t).unwrap();
    decoder.truncate(&mut held, 6);
    assert_eq!(decoder.len(&held, "past_k"), Some(6));
    sum(&mut held, &zeros(&[1, 8]));
    for (i, expected) in first.iter().enumerate().skip(6) {
        assert_eq!(step(&mut held, i as u64), *expected, "step {i}");
    }
    // Others that begin where these are.
    let mut other = decoder.states();
    for name in ["past_k", "past_v", "sum"] {
        decoder.set(&mut other, name, &decoder.get(&held, name).unwrap()).unwrap();
    }
    assert_eq!(step(&mut other, 77), step(&mut held, 77));
    assert_eq!(decoder.get(&other, "past_k").unwrap().dims(), [1, 2, 11, 4]);
}

#[test]
fn runs_add_what_they_are_given_at_every_length() {
    let compiler = Compiler::new(options()).unwrap();
    let decoder = loaded(&compiler).stateful(&states()).unwrap();
    let (mut held, w, mut filled) = (decoder.states(), random(&[8, 24], 7), 0);
    for k in [1, 3, 6, 12, 20, 5] {
        decoder.run(&mut held, &[("x", random(&[1, k, 8], k)), ("w", w.clone())]).unwrap();
        filled += k;
        assert_eq!(decoder.len(&held, "past_k"), Some(filled));
    }
}

#[test]
fn states_that_do_not_fit_together_are_refused() {
    let compiler = Compiler::new(options()).unwrap();
    let decoder = loaded(&compiler).stateful(&states()).unwrap();
    let (other, w) = (loaded(&compiler).stateful(&states()).unwrap(), random(&[8, 24], 7));
    let mut held = decoder.states();
    decoder.set(&mut held, "past_k", &random(&[1, 2, 5, 4], 1)).unwrap();
    let mut refused = |model: &StatefulModel, expected: &str| {
        let error = model.run(&mut held, &[("x", random(&[1, 1, 8], 2)), ("w", w.clone())]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&decoder, "state `past_v` has 0 positions, and a state that grows along the same dimension has 5");
    refused(&other, "state `past_k` is one of the states of another model");
    decoder.set(&mut held, "past_v", &random(&[1, 2, 5, 4], 3)).unwrap();
    decoder.run(&mut held, &[("x", random(&[1, 1, 8], 2)), ("w", w.clone())]).unwrap();
    assert_eq!(decoder.len(&held, "past_v"), Some(6));
}

#[test]
fn a_state_that_is_full_is_an_error_and_stays_as_it_is() {
    let compiler = Compiler::new(options()).unwrap();
    let decoder = loaded(&compiler).stateful(&states()).unwrap();
    let w = random(&[8, 24], 7);
    let mut held = decoder.states();
    let mut run = |k: u64| decoder.run(&mut held, &[("x", random(&[1, k, 8], k)), ("w", w.clone())]);
    assert!(run(CAPACITY - 2).is_ok());
    let full = |result: Result<_, Error>, wanted: u64| match result {
        Err(Error::StateFull { name, capacity, wanted: found }) => {
            assert_eq!((name.as_str(), capacity, found), ("past_k", CAPACITY, wanted));
        }
        other => panic!("{:?}", other.map(|_: Vec<(String, Tensor)>| ())),
    };
    full(run(3), CAPACITY + 1);
    full(run(9), CAPACITY + 7);
    assert!(run(1).is_ok() && run(1).is_ok());
    let before = decoder.get(&held, "sum").unwrap();
    full(decoder.run(&mut held, &[("x", random(&[1, 1, 8], 1)), ("w", w.clone())]), CAPACITY + 1);
    assert_eq!(decoder.len(&held, "past_k"), Some(CAPACITY));
    assert_eq!(decoder.get(&held, "sum").unwrap(), before);
    let error = decoder.set(&mut held, "past_k", &zeros(&[1, 2, CAPACITY + 1, 4])).unwrap_err();
    assert!(matches!(error, Error::StateFull { .. }), "{error}");
}

#[test]
fn what_cannot_be_a_state_is_refused() {
    let model = loaded(&Compiler::new(options()).unwrap());
    let refused = |states: &[State], expected: &str| {
        let error = model.stateful(states).map(|_: StatefulModel| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(&[State::new("past", "present_k")], "the model has no input `past`; it takes: x, w, past_k, past_v, sum");
    refused(&[State::new("sum", "later")], "the model has no output `later`; it gives: y, present_k");
    refused(&[State::growing("w", "y", 5)], "the state from `w` to `y` has another type than its next value");
    refused(&[State::growing("sum", "next_sum", 5)], "has no axis that grows");
    refused(&[State::new("sum", "next_sum"), State::new("sum", "y")], "is named twice");
    let decoder = model.stateful(&states()).unwrap();
    let mut held = decoder.states();
    assert!(decoder.get(&held, "past_k").unwrap_err().to_string().contains("has no value before the first run"));
    assert!(decoder.get(&held, "x").unwrap_err().to_string().contains("it takes: past_k, sum, past_v"));
    let wrong = Tensor::from_bytes(DType::I64, &[1, 8], vec![0; 64]).unwrap();
    let error = decoder.set(&mut held, "sum", &wrong).unwrap_err().to_string();
    assert!(error.contains("cannot be set to a tensor of type i64[1, 8]"), "{error}");
    let error = decoder.run(&mut held, &[("x", zeros(&[1, 1, 8]))]).unwrap_err().to_string();
    assert!(error.contains("input `w` is missing; the model takes: x, w"), "{error}");
}
