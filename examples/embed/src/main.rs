//! Classifies handwritten digits with a model that is part of the program.
//!
//!   cargo run --release --manifest-path examples/embed/Cargo.toml
#![forbid(unsafe_code)]

use std::error::Error;

use tensorc_runtime::Pool;

include!(concat!(env!("OUT_DIR"), "/digits.rs"));

use digits::{Extents, Inputs, Outputs};

/// Three images of eight rows; a character is a grey value from 0 to 16.
const IMAGES: [&str; 3] = [
    "01cf5000 04f8f300 0031e400 004eg100 001aef40 00000c80 0484ag40 02cgd600",
    "00007g60 0004gg40 02bfgg70 0agdag40 01304g50 00007g70 00009g80 00009g60",
    "000c7000 006f1100 01e8a800 06f0dc60 0efcgg90 0agfg810 000ag100 000c9000",
];

fn main() -> Result<(), Box<dyn Error>> {
    let grey = |c: char| c.to_digit(17).map(|value| value as f32);
    let pixels: Vec<f32> = IMAGES.iter().flat_map(|image| image.chars().filter_map(grey)).collect();
    let (mut digit, mut probabilities) = ([0; IMAGES.len()], [0.0; 10 * IMAGES.len()]);

    let model = digits::Model::load()?;
    let pool = Pool::new(2)?;
    let mut context = model.context(&pool)?;
    let extents = Extents { batch: IMAGES.len() as u64 };
    let outputs = Outputs { digit: &mut digit, probabilities: &mut probabilities };
    context.run(extents, Inputs { image: &pixels }, outputs)?;
    for (digit, probabilities) in digit.iter().zip(probabilities.chunks(10)) {
        println!("{digit} with probability {:.3}", probabilities[*digit as usize]);
    }

    // There is no plan for so many: an error that says so.
    let extents = Extents { batch: Extents::BATCH.end() + 1 };
    if let Err(error) = context.shapes(extents, Inputs { image: &pixels }) {
        println!("{error}");
    }
    Ok(())
}
