//! Training on a folder of images: a list, a file of records, batches with random changes, a convolutional network.
//!
//! `cargo run --release --example train_images [FOLDER]`
//!
//! FOLDER holds a folder of JPEG or PNG files for each class. Without it, the 8×8 digits of `examples/digits/all.npz` are
//! enlarged and written as images first. It fails if too few of the held-out images are recognised.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tensorc::symbol::{Symbol, SymbolError, op};
use tensorc_data::formats::read_arrays;
use tensorc_data::im2rec::{ListOptions, PackOptions, make_lists, pack_list};
use tensorc_data::image::{Image, ImageFormat, encode};
use tensorc_data::images::{ImageOptions, ImageRecordOptions};
use tensorc_data::{DataIter, HostTensor, Loader};
use tensorc_nd::{Runtime, RuntimeOptions};
use tensorc_train::{Fit, Initializer, Module, Optimizer, metric};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Pixels along an edge of what the network sees; stored images are a little larger.
const EDGE: u32 = 28;
const STORED: u32 = 32;
const BATCH: usize = 64;
/// Share of the held-out digits that must be read; of other images, twice what guessing gives.
const ENOUGH: f64 = 0.93;

fn main() -> Result<()> {
    let work = tempfile::tempdir()?;
    let given = std::env::args().nth(1).map(PathBuf::from);
    let folder = match &given {
        Some(folder) => folder.clone(),
        None => digits(&work.path().join("digits"))?,
    };
    let classes = fs::read_dir(&folder)?.filter(|entry| entry.as_ref().is_ok_and(|e| e.path().is_dir())).count();

    // What `tensorc im2rec PREFIX FOLDER --list --recursive --train-ratio 0.8 --test-ratio 0.2` and
    // `tensorc im2rec PREFIX FOLDER --resize 32` do.
    let prefix = work.path().join("images").display().to_string();
    let lists = ListOptions { recursive: true, train_ratio: 0.8, test_ratio: 0.2, ..ListOptions::default() };
    let pack =
        PackOptions { resize: STORED, num_thread: tensorc::runtime::available_threads(), ..PackOptions::default() };
    for (list, _) in make_lists(&prefix, &folder, &lists)? {
        let packed = pack_list(&list, &folder, &pack, |_, _| {})?;
        println!("{}: {} images, {} bytes", list.with_extension("rec").display(), packed.images, packed.bytes);
    }

    let mut train = batches(&format!("{prefix}_train.rec"), true)?;
    let mut held_out = batches(&format!("{prefix}_test.rec"), false)?;
    let rt = Runtime::new(RuntimeOptions::default())?;
    rt.seed(1);
    let mut module = Module::of(&rt, &network(classes)?).batches(&train).bind()?;
    module.init_params(&Initializer::xavier(2.24))?;
    module.init_optimizer(Optimizer::sgd(0.05, 0.9).weight_decay(1e-4))?;
    module.fit(&mut train, Fit::epochs(8).evaluate(&mut held_out).on_epoch(|report| println!("{report}")))?;

    let accuracy = module.score(&mut held_out, metric::create("acc")?.as_mut())?[0].1;
    println!("{:.1} % of {} held-out images recognised", 100.0 * accuracy, held_out.examples());
    let enough = if given.is_some() { 2.0 / classes as f64 } else { ENOUGH };
    if accuracy < enough { Err("the network has not learned to see".into()) } else { Ok(()) }
}

/// Grey images from a file of records; for training in a random order, moved and turned a little.
fn batches(records: &str, training: bool) -> Result<Loader> {
    let mut options = ImageRecordOptions { path_imgrec: records.into(), ..ImageRecordOptions::default() };
    options.images = ImageOptions::new([1, EDGE, EDGE], BATCH);
    let random = [("shuffle", "True"), ("seed", "1"), ("rand_crop", "True"), ("max_rotate_angle", "8")];
    let fixed = [("mean_r", "64"), ("std_r", "94"), ("round_batch", "False")];
    for (name, value) in random.iter().filter(|_| training).chain(&fixed) {
        options.set(name, value)?;
    }
    let loader = options.open()?;
    println!("{records}: {} images in {} batches", loader.examples(), loader.batches().unwrap_or_default());
    Ok(loader)
}

fn network(classes: usize) -> std::result::Result<Symbol, SymbolError> {
    let relu = |x: &Symbol| op("Activation").input(x).param("act_type", "relu").build();
    let mut x = Symbol::variable("data");
    for (i, filters) in [16, 32].into_iter().enumerate() {
        let conv = op("Convolution").input(&x).param("kernel", [3, 3]).param("num_filter", filters);
        x = relu(&conv.name(&format!("conv{}", i + 1)).build()?)?;
        x = op("Pooling")
            .input(&x)
            .param("pool_type", "max")
            .param("kernel", [2, 2])
            .param("stride", [2, 2])
            .build()?;
    }
    let x = relu(&op("FullyConnected").input(&x).param("num_hidden", 128).name("fc1").build()?)?;
    let scores = op("FullyConnected").input(&x).param("num_hidden", classes).name("fc2").build()?;
    op("SoftmaxOutput").input(&scores).name("softmax").build()
}

/// Writes the digits as PNG files of 32×32 pixels, in a folder for each digit.
fn digits(folder: &Path) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/all.npz");
    let arrays: BTreeMap<String, HostTensor> = read_arrays(path)?.into_iter().collect();
    let read = |name: &str| arrays.get(name).and_then(HostTensor::to_vec::<u8>).ok_or("no such array");
    let (pixels, labels) = (read("x")?, read("y")?);
    for digit in 0..10 {
        fs::create_dir_all(folder.join(digit.to_string()))?;
    }
    for (number, (digit, label)) in pixels.chunks(64).zip(labels).enumerate() {
        let at = |i: usize| (digit[i / 32 / 4 * 8 + i % 32 / 4].saturating_mul(16)).saturating_sub(1);
        let image = Image::from_pixels(STORED, STORED, 1, (0..1024).map(at).collect())?;
        let mut stored = vec![];
        encode(&image, ImageFormat::Png { compression: 1 }, &mut stored)?;
        fs::write(folder.join(label.to_string()).join(format!("{number:04}.png")), stored)?;
    }
    Ok(folder.to_owned())
}
