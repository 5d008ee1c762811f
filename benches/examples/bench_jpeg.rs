//! Times the decoding of JPEG files: `bench_jpeg FOLDER` prints what one thread takes for an image of the folder, each one's
//! least time of 20 rounds, for whole images, random-resized crops and reduced images, with zune-jpeg beside it.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use tensorc_data::Draws;
use tensorc_data::image::PixelRegion;
use tensorc_data::image::jpeg::{JpegError, RegionDecoder, Scale, read_size};
use zune_core::bytestream::ZCursor;
use zune_jpeg::JpegDecoder;

const ROUNDS: usize = 20;

type Error = Box<dyn std::error::Error>;

/// The files of a folder that are supported.
fn files(folder: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "jpg"));
    paths.sort();
    let mut files = vec![];
    for path in paths {
        let bytes = std::fs::read(path)?;
        match RegionDecoder::new(u64::MAX).decode(&bytes, None, Scale::Full, &mut vec![]) {
            Ok(_) => files.push(bytes),
            Err(JpegError::Unsupported(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if files.is_empty() { Err("no file that is supported".into()) } else { Ok(files) }
}

/// A box of 8..100 % of the area and of an aspect of 3/4..4/3, as training draws them.
fn random_box(width: usize, height: usize, random: &mut impl FnMut() -> f64) -> PixelRegion {
    for _ in 0..10 {
        let area = (0.08 + 0.92 * random()) * (width * height) as f64;
        let aspect = ((2.0 * random() - 1.0) * (4.0f64 / 3.0).ln()).exp();
        let (w, h) = ((area * aspect).sqrt().round() as usize, (area / aspect).sqrt().round() as usize);
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let left = (random() * (width - w + 1) as f64) as u32;
            let top = (random() * (height - h + 1) as f64) as u32;
            return PixelRegion { left, top, width: w as u32, height: h as u32 };
        }
    }
    PixelRegion::all(width as u32, height as u32)
}

/// Prints the mean over files of the least time of all rounds, in ms, and returns it.
fn time(name: &str, count: usize, mut decode: impl FnMut(usize) -> Result<(), Error>) -> Result<f64, Error> {
    let mut least = vec![f64::MAX; count];
    for _ in 0..ROUNDS {
        for (i, least) in least.iter_mut().enumerate() {
            let start = Instant::now();
            decode(i)?;
            *least = least.min(start.elapsed().as_secs_f64());
        }
    }
    let mean = least.iter().sum::<f64>() / count as f64;
    println!("{name:24} {:.4} ms, {:6.0} images/s", mean * 1e3, 1.0 / mean);
    Ok(mean)
}

fn main() -> Result<(), Error> {
    let folder = std::env::args().nth(1).ok_or("the folder is missing")?;
    let files = files(Path::new(&folder))?;
    println!("{} files of {} bytes", files.len(), files.iter().map(Vec::len).sum::<usize>() / files.len());
    time("zune-jpeg", files.len(), |i| {
        let mut decoder = JpegDecoder::new(ZCursor::new(&files[i][..]));
        black_box(decoder.decode().map_err(|e| format!("{e:?}"))?);
        Ok(())
    })?;
    let run = |name: &str, mut decoder: RegionDecoder, scale: Scale, region: &dyn Fn(usize) -> Option<PixelRegion>| {
        let mut out = vec![];
        time(name, files.len(), |i| {
            black_box(decoder.decode(&files[i], region(i), scale, &mut out)?);
            Ok(())
        })
    };
    let sizes = files.iter().map(|f| read_size(f)).collect::<Result<Vec<_>, _>>()?;
    let new = || RegionDecoder::new(u64::MAX);
    let full = run("full", new(), Scale::Full, &|_| None)?;
    // The last pixel alone: all data is passed over, next to nothing is made of it.
    let last = |i: usize| {
        Some(PixelRegion { left: sizes[i].width as u32 - 1, top: sizes[i].height as u32 - 1, width: 1, height: 1 })
    };
    let entropy = run("entropy decoding alone", new(), Scale::Full, &last)?;
    println!("{:24} {:.0} %", "its share of full", 100.0 * entropy / full);
    let mut draws = Draws::new(1, 0, 0);
    let mut random = || draws.unit();
    let boxes: Vec<PixelRegion> = sizes.iter().map(|s| random_box(s.width, s.height, &mut random)).collect();
    run("random-resized crop", new(), Scale::Full, &|i| Some(boxes[i]))?;
    run("half", new(), Scale::Half, &|_| None)?;
    run("quarter", new(), Scale::Quarter, &|_| None)?;
    run("eighth", new(), Scale::Eighth, &|_| None)?;
    run("full, portable", RegionDecoder::portable(u64::MAX), Scale::Full, &|_| None)?;
    Ok(())
}
