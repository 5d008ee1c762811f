//! A small transformer that learns to write like a play, character by character.
//!
//! `cargo run --release --example train_characters [STEPS] [TEXT]`
//!
//! Two layers of causal attention over 48 characters. Without TEXT, it reads
//! `examples/text/romeo_and_juliet.txt`. It fails if it does not learn more than how often each character comes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use tensorc::Tensor;
use tensorc::symbol::{Symbol, SymbolError, op, variable};
use tensorc_data::iter::epoch;
use tensorc_data::{Batch, Batches, DataDesc, HostTensor, LastBatch};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::{Initializer, LrSchedule, Metric, Module, Optimizer, metric};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
type Built = std::result::Result<Symbol, SymbolError>;

const WINDOW: usize = 48;
const WIDTH: i64 = 96;
const HEADS: i64 = 4;
const BATCH: usize = 16;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let steps: u64 = arguments.next().map_or(Ok(600), |n| n.parse())?;
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/text/romeo_and_juliet.txt");
    let text = std::fs::read_to_string(arguments.next().map_or(default.into(), PathBuf::from))?;
    let letters: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
    let code: Vec<f32> = text.chars().filter_map(|c| letters.binary_search(&c).ok()).map(|i| i as f32).collect();
    let cut = code.len() * 9 / 10;
    let (mut train, mut held_out) = (windows(&code[..cut])?.shuffle(1), windows(&code[cut..])?);

    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let network = transformer(letters.len() as i64)?;
    let mut module = Module::of(&rt, &network).batches(&train).bind()?;
    module.init_params(&Initializer::xavier(1.0))?;
    module.init_optimizer(
        Optimizer::adam(0.0).schedule(LrSchedule::cosine(3e-3, steps).warm_up(30, 0.0)).clip_gradient(1.0),
    )?;
    let parameters: u64 = module.parameters().map(|(_, array)| array.len()).sum();
    println!("{} characters of {} kinds, {parameters} parameters", code.len(), letters.len());

    let (mut loss, start) = (metric::create("ce")?, Instant::now());
    let mut step = 0;
    'training: loop {
        for batch in epoch(&mut train) {
            let batch = batch?;
            module.step(&batch)?;
            loss.update(&[flat(&batch.labels[0])?], &[module.outputs()[0].to_tensor()?])?;
            step += 1;
            if step % 100 == 0 {
                let speed = (step * BATCH * WINDOW) as f64 / start.elapsed().as_secs_f64();
                println!("step {step}: {:.3} bits per character, {speed:.0} characters/s", bits(loss.as_ref()));
                loss.reset();
            }
            if step as u64 >= steps {
                break 'training;
            }
        }
    }
    loss.reset();
    for batch in epoch(&mut held_out) {
        let batch = batch?;
        module.forward(&batch, false)?;
        loss.update(&[flat(&batch.labels[0])?], &[module.outputs()[0].to_tensor()?])?;
    }
    let (learned, frequencies) = (bits(loss.as_ref()), entropy(&code, letters.len()));
    println!("held out: {learned:.3} bits per character; knowing their frequencies, {frequencies:.3}\n");
    let written = write(&mut module, &rt, &code[cut..], letters.len(), 300)?;
    println!("{}", written.into_iter().map(|i| letters[i]).collect::<String>());
    // A hundred steps are enough for a fifth less.
    if learned > 0.8 * frequencies { Err("the network has not learned to write".into()) } else { Ok(()) }
}

/// Bits per character of text in which characters come independently, as often as in this one.
fn entropy(code: &[f32], kinds: usize) -> f64 {
    let mut counts = vec![0.0f64; kinds];
    code.iter().for_each(|c| counts[*c as usize] += 1.0);
    counts.into_iter().filter(|n| *n > 0.0).map(|n| n / code.len() as f64).map(|p| -p * p.log2()).sum()
}

fn bits(loss: &dyn Metric) -> f64 {
    loss.values()[0].1 / std::f64::consts::LN_2
}

fn flat(labels: &HostTensor) -> Result<Tensor> {
    Ok(Tensor::try_from(labels)?.reshape(&[labels.dims().iter().product()])?)
}

/// Stretches of the text, half a window apart, each with the characters that follow.
fn windows(code: &[f32]) -> Result<Batches> {
    let starts: Vec<usize> = (0..code.len().saturating_sub(WINDOW + 1)).step_by(WINDOW / 2).collect();
    let cut = |shift: usize| {
        let all: Vec<f32> = starts.iter().flat_map(|s| code[s + shift..][..WINDOW].iter().copied()).collect();
        Tensor::from_f32(&[starts.len() as u64, WINDOW as u64], &all)
    };
    Ok(Batches::labelled(cut(0)?, cut(1)?, BATCH)?.last(LastBatch::Discard))
}

/// Draws characters one after the other, each by the probabilities after those before it.
fn write(module: &mut Module, rt: &Runtime, prompt: &[f32], kinds: usize, count: usize) -> Result<Vec<usize>> {
    let network = module.symbol().clone();
    let (window, f32) = (WINDOW as u64, tensorc::DType::F32);
    let mut writer = module.sibling(
        &network,
        &[DataDesc::new("data", f32, &[1, window])],
        &[DataDesc::new("softmax_label", f32, &[1, window])],
    )?;
    let draws = rt.uniform(&[count as u64], f32, 0.0, 1.0)?.to_vec::<f32>()?;
    let mut seen: Vec<f32> = prompt[..WINDOW].to_vec();
    let mut written = vec![];
    for draw in draws {
        let data = Tensor::from_f32(&[1, window], &seen[seen.len() - WINDOW..])?;
        let batch = Batch::new([data.clone()], [data])?;
        let scores = writer.forward(&batch, false)?[0].to_vec::<f32>()?;
        // Sharper than learned: unlikely characters become rarer still.
        let last = scores[(WINDOW - 1) * kinds..].iter().map(|p| p.powf(1.4));
        let total: f32 = last.clone().sum();
        let mut sum = 0.0;
        let chosen = last.take_while(|p| {
            sum += p / total;
            sum < draw
        });
        let chosen = chosen.count().min(kinds - 1);
        seen.push(chosen as f32);
        written.push(chosen);
    }
    Ok(written)
}

fn transformer(kinds: i64) -> Built {
    let embedding =
        op("Embedding").input(&Symbol::variable("data")).param("input_dim", kinds).param("output_dim", WIDTH);
    let embedded = embedding.name("embed").build()?;
    let init = r#"["normal", {"sigma": 0.02}]"#;
    let places = variable("place_weight").shape([1, WINDOW as u64, WIDTH as u64]).init(init).build()?;
    let mut x = op("broadcast_add").input(&embedded).input(&places).build()?;
    for layer in 0..2 {
        let name = |part: &str| format!("layer{layer}_{part}");
        let normal = op("LayerNorm").input(&x).name(&name("norm1")).build()?;
        x = (&x + &attention(&normal, &name)?)?;
        let normal = op("LayerNorm").input(&x).name(&name("norm2")).build()?;
        let wide =
            op("Activation").input(&dense(&normal, 4 * WIDTH, &name("wide"))?).param("act_type", "relu").build()?;
        x = (&x + &dense(&wide, WIDTH, &name("narrow"))?)?;
    }
    let x = op("LayerNorm").input(&x).name("norm").build()?;
    let x = op("Reshape").input(&x).param("shape", [-1, WIDTH]).build()?;
    let scores = op("FullyConnected").input(&x).param("num_hidden", kinds).name("scores").build()?;
    let labels = op("Reshape").input(&Symbol::variable("softmax_label")).param("shape", [-1]).build()?;
    op("SoftmaxOutput").input(&scores).input(&labels).name("softmax").build()
}

fn dense(x: &Symbol, units: i64, name: &str) -> Built {
    op("FullyConnected").input(x).param("num_hidden", units).param("flatten", false).name(name).build()
}

/// Every character looks at those before it.
fn attention(x: &Symbol, name: &dyn Fn(&str) -> String) -> Built {
    let size = WIDTH / HEADS;
    let heads = |part: &str| {
        let all = op("Reshape").input(&dense(x, WIDTH, &name(part))?).param("shape", [0, 0, HEADS, size]).build()?;
        let first = op("transpose").input(&all).param("axes", [0, 2, 1, 3]).build()?;
        op("Reshape").input(&first).param("shape", [-3, 0, 0]).build()
    };
    let (query, key, value) = (heads("query")?, heads("key")?, heads("value")?);
    let scores = op("batch_dot").input(&query).input(&key).param("transpose_b", true).build()?;
    let scores = (&scores * (size as f64).powf(-0.5))?;
    // 0 where the column is not after the row, else far below every score.
    let window = WINDOW as i64;
    let places = op("_arange").param("start", 0).param("stop", window).build()?;
    let place = op("Reshape").input(&places).param("shape", [1, 1, window]).build()?;
    let row = op("Reshape").input(&places).param("shape", [1, window, 1]).build()?;
    let later = op("broadcast_greater").input(&place).input(&row).build()?;
    let masked = op("broadcast_add").input(&scores).input(&(&later * -1e9)?).build()?;
    let weights = op("softmax").input(&masked).param("axis", -1).build()?;
    let mixed = op("batch_dot").input(&weights).input(&value).build()?;
    let mixed = op("Reshape").input(&mixed).param("shape", [-4, -1, HEADS, 0, 0]).build()?;
    let mixed = op("transpose").input(&mixed).param("axes", [0, 2, 1, 3]).build()?;
    let joined = op("Reshape").input(&mixed).param("shape", [0, 0, -3]).build()?;
    dense(&joined, WIDTH, &name("mix"))
}
