//! temporary: loop_jpeg MODE ROUNDS FILES
use tensorc_data::image::jpeg::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let rounds: usize = a[2].parse().unwrap();
    let files: Vec<_> = a[3..].iter().map(|f| std::fs::read(f).unwrap()).collect();
    let mut d = RegionDecoder::new(u64::MAX);
    let mut out = vec![];
    let mut best = vec![[f64::MAX; 2]; files.len()];
    for _ in 0..rounds {
        for (f, b) in files.iter().zip(&mut best) {
            let s = read_size(f).unwrap();
            for (i, r) in [None, Some(Region { x: s.width - 1, y: s.height - 1, width: 1, height: 1 })].into_iter().enumerate() {
            let t = std::time::Instant::now();
            d.decode(f, r, Scale::Full, &mut out).unwrap();
            b[i] = b[i].min(t.elapsed().as_secs_f64());
            if i == 1 {out.resize(s.width*s.height*3,0);}
            }
        }
    }
    for i in 0..2 {
    println!("{} {:.4} ms", ["full", "skip"][i], best.iter().map(|b| b[i]).sum::<f64>() / files.len() as f64 * 1e3);
    }
}
