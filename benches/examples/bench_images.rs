//! Times of the stages between a file and a tensor, on one thread: `bench_images FOLDER` takes its JPEG and PNG files.

use std::error::Error;
use std::time::Instant;

use tensorc_abi::DType;
use tensorc_data::Draws;
use tensorc_data::image::{
    AugmentOptions, Augmenter, AxisOrder, Channels, Decoder, Image, ImageFormat, Inter, NormaliseOptions, Normaliser,
    PixelRegion, Resizer, Workspace, encode,
};
use tensorc_runtime::TensorMut;

const ROUNDS: u64 = 8;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Milliseconds per file of the fastest of some rounds.
fn time(files: &[Vec<u8>], mut work: impl FnMut(&[u8], Draws) -> Outcome<()>) -> Outcome<f64> {
    let mut best = f64::MAX;
    for round in 0..ROUNDS {
        let start = Instant::now();
        for (sample, file) in files.iter().enumerate() {
            work(file, Draws::new(1, round, sample as u64))?;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e3 / files.len() as f64);
    }
    Ok(best)
}

/// A tensor in memory that is aligned for every type.
fn slot<'a>(dtype: DType, dims: &'a [u64], values: &'a mut [f32]) -> TensorMut<'a> {
    let bytes = values.len() * dtype.size();
    let data = TensorMut::from_slice(dims, values).data;
    TensorMut::new(dtype, dims, &mut data[..bytes])
}

/// The stages from a file to a tensor of 3×224×224, one after the other and all together.
fn stages(what: &str, files: &[Vec<u8>], options: AugmentOptions, dtype: DType) -> Outcome<()> {
    let normalise = match dtype {
        DType::F32 => NormaliseOptions {
            rand_mirror: true,
            mean_r: 123.68,
            mean_g: 116.78,
            mean_b: 103.94,
            std_r: 58.4,
            std_g: 57.12,
            std_b: 57.38,
            ..NormaliseOptions::default()
        },
        _ => NormaliseOptions { rand_mirror: true, ..NormaliseOptions::default() },
    };
    let augmenter = Augmenter::new(options)?;
    let normaliser = Normaliser::new(normalise, dtype, AxisOrder::Chw)?;
    let mut work = Workspace::new();
    let dims = augmenter.options().data_shape.map(u64::from);
    let mut values = vec![0.0f32; dims.iter().product::<u64>() as usize];

    let mut image = Image::new();
    let decode = time(files, |file, _| Ok(work.decoder.decode(file, Channels::Rgb, &mut image)?))?;
    let mut decoder = Decoder::new();
    decoder.decode(&files[0], Channels::Rgb, &mut image)?;
    let augment = time(files, |_, mut draws| {
        augmenter.augment_image(&image, &mut draws, &mut work)?;
        Ok(())
    })?;
    let output = augmenter.augment_image(&image, &mut Draws::new(1, 2, 3), &mut work)?.clone();
    let normalised =
        time(files, |_, mut draws| Ok(normaliser.run(&output, &mut draws, &mut slot(dtype, &dims, &mut values))?))?;
    let total = time(files, |file, mut draws| {
        let image = augmenter.augment(file, &mut draws, &mut work)?;
        Ok(normaliser.run(image, &mut draws, &mut slot(dtype, &dims, &mut values))?)
    })?;
    println!("{what}: decode {decode:.4} ms, crop and resize {augment:.4} ms, normalise {normalised:.4} ms");
    println!("{what}: all {total:.4} ms, {:.0} images/s", 1e3 / total);
    Ok(())
}

fn main() -> Outcome<()> {
    let folder = std::env::args().nth(1).ok_or("bench_images FOLDER")?;
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "jpg" || e == "jpeg" || e == "png"));
    paths.sort();
    let files: Vec<Vec<u8>> = paths.iter().map(std::fs::read).collect::<Result<_, _>>()?;
    if files.is_empty() {
        return Err("no images".into());
    }

    let mut resized = AugmentOptions { random_resized_crop: true, ..AugmentOptions::default() };
    (resized.min_random_area, resized.min_aspect_ratio, resized.max_aspect_ratio) = (0.08, Some(0.75), 4.0 / 3.0);
    stages("random resized crop, float32", &files, resized, DType::F32)?;

    let (mut decoder, mut resizer, mut image, mut small) = (Decoder::new(), Resizer::new(), Image::new(), Image::new());
    let mut squares = vec![];
    for file in &files {
        decoder.decode(file, Channels::Rgb, &mut image)?;
        let all = PixelRegion::all(image.width(), image.height());
        resizer.resize(&image, all.into(), (256, 256), Inter::Area, &mut small)?;
        let mut bytes = vec![];
        encode(&small, ImageFormat::Jpeg { quality: 90 }, &mut bytes)?;
        squares.push(bytes);
    }
    let options = AugmentOptions { rand_crop: true, ..AugmentOptions::default() };
    stages("256×256, random crop, uint8", &squares, options, DType::U8)
}
