//! Images from records, lists and folders, and records made of folders.

use std::path::{Path, PathBuf};

use tensorc_data::im2rec::{Color, Encoding, ListOptions, PackOptions, make_lists, pack_list};
use tensorc_data::image::{Image, ImageFormat, encode};
use tensorc_data::images::{ImageOptions, ImageRecordOptions};
use tensorc_data::iter::epoch;
use tensorc_data::list::ImageList;
use tensorc_data::record::{ImageRecord, IndexedWriter, Labels, RecordSet, RecordSetOptions};
use tensorc_data::{Batch, DataIter, Draws, Loader, OnError, Position};

const PNG: ImageFormat = ImageFormat::Png { compression: 1 };

/// An image whose pixels follow from a number; all channels of the first pixel are that number.
fn image(number: u8, width: u32, height: u32, channels: u8) -> Image {
    let mut draws = Draws::new(1, 2, number.into());
    let bytes = width as usize * height as usize * usize::from(channels);
    let mut pixels: Vec<u8> = (0..bytes).map(|_| draws.below(256) as u8).collect();
    pixels[..usize::from(channels)].fill(number);
    Image::from_pixels(width, height, channels, pixels).unwrap()
}

fn file(image: &Image, format: ImageFormat) -> Vec<u8> {
    let mut bytes = vec![];
    encode(image, format, &mut bytes).unwrap();
    bytes
}

/// Writes `count` records of PNG images of 12×10, numbered from 0, whose label is three times the number. Those of `bad`
/// are no images.
fn records(folder: &Path, name: &str, count: u8, bad: &[u8]) -> PathBuf {
    let path = folder.join(format!("{name}.rec"));
    let mut out = IndexedWriter::create(&path, path.with_extension("idx")).unwrap();
    for number in 0..count {
        let stored = file(&image(number, 12, 10, 3), PNG);
        let stored = if bad.contains(&number) { &stored[..40] } else { &stored };
        let mut payload = vec![];
        let labels = Labels::One(3.0 * f32::from(number));
        ImageRecord { labels, id: number.into(), id2: 0, image: stored }.pack(&mut payload).unwrap();
        out.write(number.into(), &payload).unwrap();
    }
    out.finish().unwrap();
    path
}

fn options(records: &Path, batch_size: usize) -> ImageRecordOptions {
    let images = ImageOptions { preprocess_threads: Some(2), ..ImageOptions::new([3, 10, 12], batch_size) };
    ImageRecordOptions { path_imgrec: records.display().to_string(), images, ..ImageRecordOptions::default() }
}

fn all(loader: &mut Loader, epochs: usize) -> Vec<Batch> {
    (0..epochs).flat_map(|_| epoch(loader).map(Result::unwrap).collect::<Vec<_>>()).collect()
}

fn labels(batch: &Batch) -> Vec<f32> {
    batch.labels[0].to_vec().unwrap()
}

#[test]
fn images_come_out_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 10, &[]);
    let mut loader = options(&path, 4).open().unwrap();
    assert_eq!(loader.provide_data()[0].dims, [4, 3, 10, 12]);
    let batches = all(&mut loader, 2);
    // Left-over images are filled up with those of the next epoch, which begins behind them.
    let numbers: Vec<Vec<f32>> = batches.iter().map(|b| labels(b).iter().map(|l| l / 3.0).collect()).collect();
    let expected = [[0., 1., 2., 3.], [4., 5., 6., 7.], [8., 9., 0., 1.], [2., 3., 4., 5.], [6., 7., 8., 9.]];
    assert_eq!(numbers, expected);
    assert_eq!(batches.iter().map(|b| b.pad).collect::<Vec<_>>(), [0, 0, 2, 0, 0]);
    let pixels: Vec<f32> = batches[1].data[0].to_vec().unwrap();
    let expected = image(5, 12, 10, 3);
    for (at, value) in pixels[360..720].iter().enumerate() {
        let (channel, place) = (at / 120, at % 120);
        assert_eq!(*value, f32::from(expected.pixels()[place * 3 + channel]));
    }
    let bytes = ImageRecordOptions {
        images: ImageOptions { dtype: "uint8".into(), layout: "NHWC".into(), ..options(&path, 4).images },
        ..options(&path, 4)
    };
    let first = bytes.open().unwrap().next().unwrap().unwrap();
    assert_eq!(first.data[0].dims(), [4, 10, 12, 3]);
    assert_eq!(&first.data[0].bytes()[360..720], image(1, 12, 10, 3).pixels());
}

/// Random in every way: order, crops, colours, mirrors.
fn random(path: &Path, threads: usize) -> ImageRecordOptions {
    let mut options = options(path, 4);
    for (name, value) in [
        ("shuffle", "True"),
        ("seed", "7"),
        ("data_shape", "(3,6,6)"),
        ("rand_crop", "1"),
        ("rand_mirror", "1"),
        ("resize", "8"),
        ("max_rotate_angle", "20"),
        ("brightness", "0.3"),
        ("random_h", "20"),
        ("pca_noise", "0.1"),
        ("mean_r", "123.5"),
        ("std_g", "57.1"),
        ("preprocess_threads", &threads.to_string()),
    ] {
        options.set(name, value).unwrap();
    }
    options
}

#[test]
fn batches_are_the_same_for_any_threads_and_after_resuming_anywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 22, &[]);
    for round_batch in [true, false] {
        let open = |threads| {
            let mut options = random(&path, threads);
            options.images.round_batch = round_batch;
            options.open().unwrap()
        };
        let expected = all(&mut open(1), 3);
        assert_ne!(expected[0], expected[6], "epochs differ");
        for threads in [2, 4] {
            assert_eq!(all(&mut open(threads), 3), expected);
        }
        let mut positions = vec![];
        for e in 0..3 {
            let mut probe = open(1);
            probe.seek(Position::new(e, 0)).unwrap();
            positions.extend((0..probe.batches().unwrap()).map(|b| Position::new(e, b)));
        }
        for (skipped, at) in positions.into_iter().enumerate() {
            let mut resumed = open(2);
            resumed.seek(at).unwrap();
            assert_eq!(all(&mut resumed, 3 - at.epoch as usize), expected[skipped..], "from {at}");
        }
    }
}

#[test]
fn shuffling_in_blocks_keeps_neighbours_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 22, &[]);
    let mut options = random(&path, 2);
    options.shuffle_chunk_size = 1;
    let mut order: Vec<f32> = epoch(&mut options.open().unwrap()).flat_map(|b| labels(&b.unwrap())).collect();
    order.truncate(22);
    order.sort_by(f32::total_cmp);
    assert_eq!(order, (0..22).map(|n| 3.0 * n as f32).collect::<Vec<_>>());
}

#[test]
fn a_corrupt_image_is_an_error_with_its_place_or_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "some", 9, &[4]);
    let mut failing = options(&path, 3).open().unwrap();
    assert_eq!(labels(&failing.next().unwrap().unwrap()), [0., 3., 6.]);
    let error = failing.next().unwrap_err().to_string();
    let offset = RecordSet::open(&path.display().to_string(), &RecordSetOptions::default()).unwrap().place(4).offset;
    let begin = format!("{}, record 4, byte {}: ", path.display(), offset.unwrap());
    assert!(error.starts_with(&begin), "{error}");
    assert_eq!(labels(&failing.next().unwrap().unwrap()), [18., 21., 24.], "the next batches come");
    let mut counted = options(&path, 3);
    counted.set("on_error", "count").unwrap();
    let mut counted = counted.open().unwrap();
    let batches: Vec<(Vec<f32>, usize)> = all(&mut counted, 1).iter().map(|b| (labels(b), b.pad)).collect();
    assert_eq!(batches, [(vec![0., 3., 6.], 0), (vec![9., 15., 9.], 1), (vec![18., 21., 24.], 0)]);
    assert_eq!((counted.faults().skipped, counted.faults().first[0].to_string()), (1, error));
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 4, &[]);
    let message = |name: &str, value: &str| {
        let mut options = options(&path, 2);
        match options.set(name, value).and_then(|()| options.open()) {
            Err(error) => error.to_string(),
            Ok(mut loader) => loader.next().unwrap_err().to_string(),
        }
    };
    for (name, value, says) in [
        ("data_shape", "(4,10,12)", "expected an image of 4 channels, found 3"),
        ("data_shape", "(2,10,12)", "data_shape: 2 channels"),
        ("label_width", "2", "expected 2 labels (label_width), found 1"),
        ("batch_size", "5", "4 examples for batches of 5"),
        ("num_parts", "0", "part: part 0 of 0"),
        ("part_index", "1", "part: part 1 of 1"),
        ("dtype", "float16", "dtype: `float16` is not float32, uint8 or int8"),
        ("layout", "CHWN", "layout: `CHWN` is not NCHW or NHWC"),
        ("path_imgrec", "/nowhere/x.rec", "/nowhere/x.rec"),
        ("path_imgidx", "/nowhere/x.idx", "/nowhere/x.idx"),
        ("path_imglist", "/nowhere/x.lst", "/nowhere/x.lst"),
        ("on_error", "ignore", "on_error: `ignore` is not fail, skip or count"),
        ("data_sahpe", "1", "unknown option `data_sahpe`; there are path_imgrec"),
    ] {
        let found = message(name, value);
        assert!(found.contains(says), "{name}={value}: {found}");
    }
}

#[test]
fn lists_override_labels_and_their_lack_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 4, &[]);
    let list = folder.path().join("labels.lst");
    std::fs::write(&list, "3\t30\tx\n1\t10\tx\n0\t5\tx\n").unwrap();
    let mut with = options(&path, 2);
    with.path_imglist = list.display().to_string();
    let mut loader = with.open().unwrap();
    assert_eq!(labels(&loader.next().unwrap().unwrap()), [5., 10.]);
    let error = loader.next().unwrap_err().to_string();
    assert!(error.ends_with("index: the list has no image 2"), "{error}");
}

#[test]
fn parts_share_out_all_images_with_and_without_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let first = records(folder.path(), "a", 13, &[]);
    let second = records(folder.path(), "b", 8, &[]);
    for indexed in [true, false] {
        if !indexed {
            for path in [&first, &second] {
                std::fs::remove_file(path.with_extension("idx")).unwrap();
            }
        }
        for (parts, equal) in [(1, false), (2, false), (3, true), (5, true)] {
            let open = |part_index| {
                let mut options = options(&first, 1);
                options.path_imgrec = format!("{};{}", first.display(), second.display());
                let images = ImageOptions { num_parts: parts, part_index, equal_parts: equal, ..options.images };
                ImageRecordOptions { images, ..options }.open().unwrap()
            };
            let all: Vec<Vec<Batch>> = (0..parts).map(|part| all(&mut open(part), 1)).collect();
            assert!(!equal || all.iter().all(|part| part.len() == all[0].len()), "{parts} parts");
            let counted = all.iter().flatten().filter(|batch| batch.pad == 0);
            let mut seen: Vec<f32> = counted.flat_map(labels).map(|label| label / 3.0).collect();
            seen.sort_by(f32::total_cmp);
            let mut expected: Vec<f32> = (0..13).chain(0..8).map(|n| n as f32).collect();
            expected.sort_by(f32::total_cmp);
            assert_eq!(seen, expected, "{parts} parts, index: {indexed}");
        }
    }
}

#[test]
fn an_image_changes_alike_in_whatever_part_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 12, &[]);
    let images = |num_parts, part_index| -> Vec<(Vec<f32>, Vec<f32>)> {
        let mut options = random(&path, 2);
        let images = ImageOptions { num_parts, part_index, batch_size: 1, shuffle: false, ..options.images };
        options.images = images;
        all(&mut options.open().unwrap(), 1).iter().map(|b| (labels(b), b.data[0].to_vec().unwrap())).collect()
    };
    let whole = images(1, 0);
    assert_eq!([images(3, 0), images(3, 1), images(3, 2)].concat(), whole);
}

#[test]
fn a_mean_image_is_computed_once_and_read_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = records(folder.path(), "all", 6, &[]);
    let mean = folder.path().join("mean.bin");
    let mut with = options(&path, 6);
    with.mean_img = mean.display().to_string();
    let centred: Vec<f32> = with.open().unwrap().next().unwrap().unwrap().data[0].to_vec().unwrap();
    for at in 0..360 {
        let sum: f32 = (0..6).map(|i| centred[i * 360 + at]).sum();
        assert!(sum.abs() < 1e-2, "the mean is 0: {sum}");
    }
    let written = std::fs::metadata(&mean).unwrap().modified().unwrap();
    let again: Vec<f32> = with.open().unwrap().next().unwrap().unwrap().data[0].to_vec().unwrap();
    assert_eq!((again, std::fs::metadata(&mean).unwrap().modified().unwrap()), (centred, written));
    with.set("data_shape", "(3,6,6)").unwrap();
    let error = with.open().err().unwrap().to_string();
    assert_eq!(error, "mean_img: it is [3, 10, 12], images are [3, 6, 6]");
}

/// `cats/0.png`, `cats/1.png`, `dogs/2.png`, …, a text and a file that is no image.
fn folder_of_images() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, name) in ["cats", "cats", "cats", "dogs/large", "dogs/large", "emus"].into_iter().enumerate() {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
        let stored = file(&image(number as u8, 16, 12, 3), PNG);
        std::fs::write(folder.path().join(name).join(format!("{number}.png")), stored).unwrap();
    }
    std::fs::write(folder.path().join("emus/broken.JPG"), b"nothing").unwrap();
    std::fs::write(folder.path().join("emus/notes.txt"), b"not listed").unwrap();
    folder
}

#[test]
fn folders_are_classes() {
    let folder = folder_of_images();
    let mut options = ImageOptions::new([3, 12, 16], 7);
    options.on_error = OnError::Skip;
    let batch = options.open_folder(folder.path()).unwrap().next().unwrap().unwrap();
    assert_eq!((batch.pad, &labels(&batch)[..6]), (1, &[0., 0., 0., 1., 1., 2.][..]));
    let pixels: Vec<f32> = batch.data[0].to_vec().unwrap();
    assert_eq!((0..6).map(|i| pixels[i * 576]).collect::<Vec<_>>(), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn a_folder_becomes_lists_and_records() {
    let folder = folder_of_images();
    let out = tempfile::tempdir().unwrap();
    let prefix = out.path().join("pets").display().to_string();
    let lists = ListOptions { recursive: true, shuffle: false, ..ListOptions::default() };
    let made = make_lists(&prefix, folder.path(), &lists).unwrap();
    assert_eq!(made, [(PathBuf::from(format!("{prefix}.lst")), 7)]);
    let text = std::fs::read_to_string(&made[0].0).unwrap();
    assert!(text.starts_with("0\t0.000000\tcats/0.png\n") && text.contains("5\t2.000000\temus/5.png\n"), "{text}");

    let mut calls = vec![];
    let options = PackOptions { encoding: Encoding::Png, quality: 3, num_thread: 3, ..PackOptions::default() };
    let packed = pack_list(&made[0].0, folder.path(), &options, |done, all| calls.push((done, all))).unwrap();
    assert_eq!((packed.images, packed.skipped.len(), calls.last()), (6, 1, Some(&(7, 7))));
    assert!(packed.skipped[0].to_string().contains("broken.JPG"), "{}", packed.skipped[0]);
    let one = std::fs::read(format!("{prefix}.rec")).unwrap();
    pack_list(&made[0].0, folder.path(), &PackOptions { num_thread: 1, ..options }, |_, _| {}).unwrap();
    assert_eq!(std::fs::read(format!("{prefix}.rec")).unwrap(), one, "threads change nothing");

    let mut images = ImageOptions::new([3, 12, 16], 6);
    images.preprocess_threads = Some(1);
    let path_imgrec = format!("{prefix}.rec");
    let batch = ImageRecordOptions { path_imgrec, images, ..ImageRecordOptions::default() };
    let batch = batch.open().unwrap().next().unwrap().unwrap();
    assert_eq!(labels(&batch), [0., 0., 0., 1., 1., 2.]);
    let pixels: Vec<f32> = batch.data[0].to_vec().unwrap();
    assert_eq!((0..6).map(|i| pixels[i * 576]).collect::<Vec<_>>(), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn records_are_resized_cropped_or_passed_through() {
    let folder = folder_of_images();
    let list = folder.path().join("some.lst");
    std::fs::write(&list, "7\t1\t2\tcats/0.png\n").unwrap();
    let sizes = |options: PackOptions| {
        pack_list(&list, folder.path(), &options, |_, _| {}).unwrap();
        let set = RecordSet::open(&list.with_extension("rec").display().to_string(), &RecordSetOptions::default());
        let mut payload = vec![];
        set.unwrap().read(0, &mut payload).unwrap();
        let record = ImageRecord::unpack(&payload).unwrap();
        let size = tensorc_data::image::dimensions(record.image).unwrap();
        (record.id, record.labels.iter().collect::<Vec<_>>(), size.width, size.height, record.image.to_vec())
    };
    let plain = PackOptions::default();
    let (id, labels, width, height, bytes) = sizes(plain);
    assert_eq!((id, labels, width, height, &bytes[..2]), (7, vec![1.0], 16, 12, &[0xFF, 0xD8][..]));
    let (_, labels, ..) = sizes(PackOptions { pack_label: true, ..plain });
    assert_eq!(labels, [1.0, 2.0]);
    let (_, _, width, height, _) = sizes(PackOptions { resize: 6, ..plain });
    assert_eq!((width, height), (8, 6));
    let (_, _, width, height, _) = sizes(PackOptions { center_crop: true, color: Color::Grey, ..plain });
    assert_eq!((width, height), (12, 12));
    let stored = std::fs::read(folder.path().join("cats/0.png")).unwrap();
    assert_eq!(sizes(PackOptions { pass_through: true, ..plain }).4, stored);
    let wrong = pack_list(&list, folder.path(), &PackOptions { quality: 101, ..plain }, |_, _| {});
    assert_eq!(wrong.unwrap_err().to_string(), "quality: 101 is not in 1..=100");
}

#[test]
fn lists_are_divided_and_shuffled_as_by_mxnet() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..20 {
        std::fs::write(folder.path().join(format!("{i:02}.jpg")), b"").unwrap();
    }
    let prefix = folder.path().join("x").display().to_string();
    let split = ListOptions { chunks: 2, train_ratio: 0.5, test_ratio: 0.25, ..ListOptions::default() };
    let made: Vec<(String, usize)> = make_lists(&prefix, folder.path(), &split)
        .unwrap()
        .into_iter()
        .map(|(path, n)| (path.file_name().unwrap().to_string_lossy().into_owned(), n))
        .collect();
    let expected = ["x_0_test.lst", "x_0_val.lst", "x_0_train.lst", "x_1_test.lst", "x_1_val.lst", "x_1_train.lst"];
    assert_eq!(made, expected.into_iter().map(String::from).zip([2, 3, 5, 2, 3, 5]).collect::<Vec<_>>());
    let indices = |name: &str| -> Vec<u64> {
        let list = ImageList::read(folder.path().join(name)).unwrap();
        list.entries.iter().map(|entry| entry.index).collect()
    };
    // random.seed(100), random.shuffle(list(range(20))), 2 of the first ten for tests and five for training
    assert_eq!([indices("x_0_test.lst"), indices("x_0_train.lst")].concat(), FIRST);
    let wrong = ListOptions { train_ratio: 0.8, test_ratio: 0.3, ..ListOptions::default() };
    assert!(make_lists(&prefix, folder.path(), &wrong).is_err());
    let none = ListOptions { exts: vec![".gif".into()], ..ListOptions::default() };
    let error = make_lists(&prefix, folder.path(), &none).unwrap_err().to_string();
    assert!(error.ends_with("no images with names that end in .gif"), "{error}");
}

const FIRST: [u64; 7] = [7, 15, 19, 0, 2, 3, 13];
