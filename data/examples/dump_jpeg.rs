//! temporary: dump_jpeg SCALE IN.jpg OUT.raw ... 
use tensorc_data::image::jpeg::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let scale = [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth][a[1].parse::<usize>().unwrap()];
    let mut d = RegionDecoder::new(u64::MAX);
    let mut p = RegionDecoder::portable(u64::MAX);
    for path in &a[3..] {
        let bytes = std::fs::read(path).unwrap();
        let mut out = vec![];
        let mut out2 = vec![];
        let r = d.decode(&bytes, None, scale, &mut out);
        let r2 = p.decode(&bytes, None, scale, &mut out2);
        assert_eq!(r, r2);
        assert!(out == out2, "{path}");
        let name = std::path::Path::new(path).file_stem().unwrap().to_str().unwrap();
        match r {
            Ok(r) => { println!("{name} {} {} {}", r.width, r.height, r.channels); std::fs::write(format!("{}/{name}.raw", a[2]), &out).unwrap(); }
            Err(e) => println!("{name} error {e}"),
        }
    }
}
