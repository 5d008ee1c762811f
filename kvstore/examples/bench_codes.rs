//! Measures codes of gradients and sums of buffers: gigabytes of f32 values a second on one thread.
//!
//! Arguments: values (default 1048576), seconds for each measurement (default 0.5).

use std::hint::black_box;
use std::time::{Duration, Instant};

use tensorc_kvstore::sum::sum_into;
use tensorc_kvstore::{Compression, KvError};
use tensorc_runtime::DType;

/// The shortest of repeated runs, in seconds.
fn shortest(span: Duration, mut run: impl FnMut() -> Result<(), KvError>) -> Result<f64, KvError> {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed() < span {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(1 << 20), |text| text.parse::<usize>())?;
    let span = Duration::from_secs_f64(arguments.next().map_or(Ok(0.5), |text| text.parse())?);
    let value = |i: usize| ((i * 7919 % 10_007) as f32 / 10_007.0 - 0.5) * 0.2;
    let gradient: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    let rate = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
    let kinds = [
        Compression::None,
        Compression::TwoBit { threshold: 0.05 },
        Compression::OneBit { threshold: 0.0 },
        Compression::F16,
        Compression::BF16,
    ];
    for kind in kinds {
        let mut residual = vec![0.0; if kind.keeps_residual() { count } else { 0 }];
        let (mut codes, mut out) = (Vec::new(), vec![0.0; count]);
        let encode = shortest(span, || {
            codes.clear();
            kind.encode(black_box(&gradient), &mut residual, &mut codes)
        })?;
        let decode = shortest(span, || kind.decode_into(black_box(&codes), black_box(&mut out)))?;
        let add = shortest(span, || kind.decode_add(black_box(&codes), black_box(&mut out)))?;
        let [encode, decode, add] = [encode, decode, add].map(|seconds| rate(4 * count, seconds));
        println!("{kind:?}: encode {encode:.1} GB/s, decode {decode:.1} GB/s, decode and add {add:.1} GB/s");
    }
    let parts = vec![gradient; 16];
    let mut out = vec![0; 4 * count];
    let copy = shortest(span, || {
        black_box(&mut out).copy_from_slice(black_box(&parts[0]));
        Ok(())
    })?;
    println!("copy: {:.1} GB/s read and written", rate(8 * count, copy));
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8] {
        for k in [2, 3, 4, 8, 16] {
            let parts: Vec<_> = parts[..k].iter().map(Vec::as_slice).collect();
            let seconds = shortest(span, || sum_into(black_box(&mut out), black_box(&parts), dtype))?;
            println!("sum of {k} of {dtype}: {:.1} GB/s read and written", rate((k + 1) * 4 * count, seconds));
        }
    }
    Ok(())
}
