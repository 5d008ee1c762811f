//! temporary
use jpeg_encoder::*;
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let mut n = 0;
    for (i, s) in [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2].into_iter().enumerate() {
        for (w, h) in [(1usize, 1usize), (2,3),(3,2),(4, 4), (5,5),(6,7),(7,16),(16,7),(17, 33), (33, 17), (67, 41), (160, 120), (223, 97), (3, 40),(4,40),(5,40), (40, 3), (40,4),(48, 48)] {
            for q in [50u8, 90, 100] {
                for r in [0u16, 3] {
                    let mut px = vec![];
                    let mut x = 12345u32 + w as u32 * 7 + q as u32;
                    for k in 0..w * h * 3 { x = x.wrapping_mul(1664525).wrapping_add(1013904223); let a = (k / 3 % w) as f64; let b = (k / 3 / w) as f64;
                        px.push((128.0 + 60.0 * (a * 0.2 + (k % 3) as f64).sin() + 50.0 * (b * 0.15).cos() + ((x >> 24) as f64 - 128.0) * (q as f64 / 150.0)) as u8); }
                    let mut out = vec![];
                    let mut e = Encoder::new(&mut out, q);
                    e.set_sampling_factor(s);
                    if r > 0 { e.set_restart_interval(r); }
                    e.encode(&px, w as u16, h as u16, ColorType::Rgb).unwrap();
                    std::fs::write(format!("{dir}/{n:04}_{i}_{w}x{h}_{q}_{r}.jpg"), out).unwrap();
                    n += 1;
                }
            }
        }
    }
}
