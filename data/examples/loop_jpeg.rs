//! temporary: loop_jpeg MODE ROUNDS FILES
use tensorc_data::image::jpeg::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let rounds: usize = a[2].parse().unwrap();
    let files: Vec<_> = a[3..].iter().map(|f| std::fs::read(f).unwrap()).collect();
    let mut d = RegionDecoder::new(u64::MAX);
    let mut out = vec![];
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let t = std::time::Instant::now();
        for f in &files {
            let s = read_size(f).unwrap();
            let r = match a[1].as_str() { "full" => None, _ => Some(Region { x: s.width - 1, y: s.height - 1, width: 1, height: 1 }) };
            d.decode(f, r, Scale::Full, &mut out).unwrap();
        }
        best = best.min(t.elapsed().as_secs_f64() / files.len() as f64);
    }
    println!("{} {:.4} ms", a[1], best * 1e3);
}
