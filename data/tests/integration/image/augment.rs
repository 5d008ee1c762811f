//! The augmenter: geometry on small images, ranges of random choices, and the same results on every path.

use jpeg_encoder::ColorType;
use tensorc_data::image::{
    AugmentOptions, Augmenter, Channels, Decoder, Image, ImageView, Inter, Resizer, Workspace, shorter_edge,
};
use tensorc_data::{Cause, Draws};

use super::files::{Jpeg, jpeg, smooth};

fn augmenter(pairs: &[(&str, &str)]) -> Augmenter {
    let mut options = AugmentOptions::default();
    for (name, value) in pairs {
        options.set(name, value).unwrap();
    }
    Augmenter::new(options).unwrap()
}

fn augment(pairs: &[(&str, &str)], image: &Image, sample: u64) -> Image {
    let mut work = Workspace::new();
    augmenter(pairs).augment_image(image, &mut Draws::new(3, 1, sample), &mut work).unwrap().clone()
}

/// Grey pixels 0, 1, 2, … in rows.
fn counted(width: u32, height: u32) -> Image {
    Image::from_pixels(width, height, 1, (0..width * height).map(|i| i as u8).collect()).unwrap()
}

#[track_caller]
fn assert_near(a: &Image, b: &Image, most: u8) {
    assert_eq!((a.width(), a.height(), a.channels()), (b.width(), b.height(), b.channels()));
    let worst = a.pixels().iter().zip(b.pixels()).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(worst <= Some(most), "{worst:?}");
}

#[test]
fn the_middle_is_cropped() {
    let image = augment(&[("data_shape", "(1,2,3)")], &counted(6, 5), 0);
    assert_eq!(image.pixels(), [7, 8, 9, 13, 14, 15]);
}

#[test]
fn random_crops_reach_every_place() {
    let mut seen = std::collections::BTreeSet::new();
    for sample in 0..500 {
        let image = augment(&[("data_shape", "(1,2,3)"), ("rand_crop", "1")], &counted(6, 5), sample);
        let first = image.pixels()[0];
        assert_eq!(image.pixels(), [0, 1, 2, 6, 7, 8].map(|i| i + first));
        seen.insert((first % 6, first / 6));
    }
    assert_eq!(seen.len(), 16);
}

#[test]
fn small_images_are_enlarged() {
    let image = Image::from_pixels(2, 1, 1, vec![10, 50]).unwrap();
    assert_eq!(augment(&[("data_shape", "(1,2,4)")], &image, 0).pixels(), [10, 20, 40, 50, 10, 20, 40, 50]);
    // The height grows from 1 to 2 first, and the width with it: the middle two of four columns are left.
    assert_eq!(augment(&[("data_shape", "(1,2,2)")], &image, 0).pixels(), [20, 40, 20, 40]);
}

#[test]
fn padding_has_the_fill_value() {
    let pairs = [("data_shape", "(1,4,4)"), ("pad", "1"), ("fill_value", "9")];
    assert_eq!(augment(&pairs, &counted(2, 2), 0).pixels(), [9, 9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9, 9, 9, 9]);
}

#[test]
fn resize_and_crop_are_one_step() {
    let image = smooth(61, 47, 3);
    let (width, height) = shorter_edge(61, 47, 31);
    assert_eq!((width, height), (40, 31));
    for (method, inter) in
        [("0", Inter::Nearest), ("1", Inter::Bilinear), ("2", Inter::Cubic), ("3", Inter::Area), ("4", Inter::Lanczos)]
    {
        let pairs = [("data_shape", "(3,24,24)"), ("resize", "31"), ("inter_method", method)];
        let together = augment(&pairs, &image, 0);
        let (mut resized, mut cropped) = (Image::new(), Image::new());
        Resizer::new().resize(&image, ImageView::all(61, 47), (width, height), inter, &mut resized).unwrap();
        let region = tensorc_data::image::PixelRegion { left: 8, top: 3, width: 24, height: 24 };
        cropped.copy_region(&resized, region).unwrap();
        assert_near(&together, &cropped, 1);
    }
}

#[test]
fn squares_of_a_random_size() {
    let pairs = [("data_shape", "(1,3,3)"), ("min_crop_size", "2"), ("max_crop_size", "4"), ("rand_crop", "1")];
    let augmenter = augmenter(&pairs);
    let mut sides = std::collections::BTreeSet::new();
    for sample in 0..300 {
        let view = augmenter.plan(6, 5, &mut Draws::new(0, 0, sample)).unwrap().source_view().unwrap();
        assert_eq!(view.width, view.height);
        sides.insert(view.width as u32);
    }
    assert_eq!(Vec::from_iter(sides), [2, 3, 4]);
    let small = augmenter.plan(6, 3, &mut Draws::new(0, 0, 0));
    assert!(matches!(small, Err(Cause::Shape { expected, .. }) if expected.contains("max_crop_size")));
}

#[test]
fn rotation_by_right_angles_is_exact() {
    let image = smooth(16, 16, 3);
    let at = |x: usize, y: usize| image.pixels()[(y * 16 + x) * 3..][..3].to_vec();
    let expected = |from: &dyn Fn(usize, usize) -> Vec<u8>| {
        let pixels = (0..16).flat_map(|y| (0..16).flat_map(move |x| from(x, y))).collect();
        Image::from_pixels(16, 16, 3, pixels).unwrap()
    };
    for method in ["0", "1", "2", "4"] {
        let turned = |angle: &str| {
            let pairs = [("data_shape", "(3,16,16)"), ("rotate_list", angle), ("inter_method", method)];
            augment(&pairs, &image, 0)
        };
        assert_near(&turned("90"), &expected(&|x, y| at(15 - y, x)), 1);
        assert_near(&turned("180"), &expected(&|x, y| at(15 - x, 15 - y)), 1);
        assert_near(&turned("-90"), &expected(&|x, y| at(y, 15 - x)), 1);
        assert_near(&turned("360"), &image, 1);
    }
}

#[test]
fn shear_scale_and_sizes() {
    // Half of the size in a canvas that keeps it: the outer quarter on each side is filled.
    let image = Image::from_pixels(8, 8, 1, vec![100; 64]).unwrap();
    let pairs = [
        ("data_shape", "(1,8,8)"),
        ("min_random_scale", "0.5"),
        ("max_random_scale", "0.5"),
        ("min_img_size", "8"),
        ("fill_value", "7"),
        ("inter_method", "0"),
    ];
    let scaled = augment(&pairs, &image, 0);
    let expected: Vec<u8> =
        (0..64).map(|i| if (2..6).contains(&(i % 8)) && (2..6).contains(&(i / 8)) { 100 } else { 7 }).collect();
    assert_eq!(scaled.pixels(), expected);
    // Sheared rows are moved along x only; the middle rows hardly.
    let pairs = [("data_shape", "(1,8,8)"), ("max_shear_ratio", "1"), ("fill_value", "7"), ("inter_method", "0")];
    for sample in 0..20 {
        let sheared = augment(&pairs, &image, sample);
        let filled = |row: usize| sheared.pixels()[row * 8..][..8].iter().filter(|value| **value == 7).count();
        let counts: Vec<usize> = (0..8).map(filled).collect();
        assert!(counts[..4].is_sorted_by(|a, b| a >= b) && counts[4..].is_sorted() && counts[3] <= 1, "{counts:?}");
    }
    let limited = [("data_shape", "(1,4,4)"), ("max_img_size", "4"), ("inter_method", "0")];
    assert_eq!(augment(&limited, &counted(8, 8), 0).pixels()[..4], [18, 19, 20, 21]);
}

#[test]
fn random_resized_crops_are_in_range() {
    let pairs = [
        ("random_resized_crop", "1"),
        ("min_random_area", "0.08"),
        ("max_random_area", "0.9"),
        ("min_aspect_ratio", "0.75"),
        ("max_aspect_ratio", "1.25"),
    ];
    let augmenter = augmenter(&pairs);
    let (mut areas, mut fell_back) = (vec![], 0);
    for sample in 0..10_000 {
        let mut draws = Draws::new(5, 2, sample);
        let (width, height) = (200 + draws.below(400) as u32, 200 + draws.below(400) as u32);
        let plan = augmenter.plan(width, height, &mut draws).unwrap();
        let view = plan.source_view().unwrap();
        assert!(plan.region().fits(width, height));
        assert!(view.left >= 0.0 && view.top >= 0.0, "{view:?}");
        assert!(view.left + view.width <= width.into() && view.top + view.height <= height.into(), "{view:?}");
        let area = view.width * view.height / (f64::from(width) * f64::from(height));
        let ratio = view.width / view.height;
        // After ten attempts, the middle of the output's size is taken.
        if ratio == 1.0 && view.region().is_none_or(|region| region.width == 224) {
            fell_back += 1;
            continue;
        }
        // Sides are rounded to pixels.
        let slack = 1.0 / view.width.min(view.height) * 1.1;
        assert!((0.08 * (1.0 - slack)..=0.9 * (1.0 + slack)).contains(&area), "{area}");
        let upright = ratio.max(1.0 / ratio);
        assert!(upright <= 1.0 / 0.75 * (1.0 + slack), "{ratio}");
        areas.push(area);
    }
    let mean = areas.iter().sum::<f64>() / areas.len() as f64;
    assert!((0.35..0.45).contains(&mean) && fell_back < 500, "{mean} {fell_back}");
}

#[test]
fn views_lie_inside_of_images() {
    for sample in 0..10_000 {
        let mut draws = Draws::new(11, 0, sample);
        let mut options = AugmentOptions { rand_crop: true, ..AugmentOptions::default() };
        options.data_shape = [1, 1 + draws.below(40) as u32, 1 + draws.below(40) as u32];
        options.resize = if draws.coin() { -1 } else { 1 + draws.below(60) as i32 };
        options.inter_method = [0, 1, 2, 3, 4, 9, 10][draws.below(7) as usize];
        let (width, height) = (1 + draws.below(50) as u32, 1 + draws.below(50) as u32);
        let augmenter = Augmenter::new(options).unwrap();
        let plan = augmenter.plan(width, height, &mut draws.clone()).unwrap();
        assert!(plan.region().fits(width, height), "{sample}");
        let view = plan.source_view().unwrap();
        assert!(view.left >= 0.0 && view.left + view.width <= f64::from(width) + 1e-9, "{view:?}");
        if sample % 10 == 0 {
            let image = smooth(width, height, 1);
            let mut work = Workspace::new();
            let output = augmenter.augment_image(&image, &mut draws, &mut work).unwrap();
            assert_eq!(
                (output.height(), output.width()),
                (augmenter.options().data_shape[1], augmenter.options().data_shape[2])
            );
        }
    }
}

/// Options with every step.
const EVERYTHING: [(&str, &str); 18] = [
    ("data_shape", "(3,20,24)"),
    ("resize", "40"),
    ("rand_crop", "1"),
    ("max_rotate_angle", "20"),
    ("max_shear_ratio", "0.1"),
    ("max_aspect_ratio", "0.2"),
    ("min_random_scale", "0.8"),
    ("max_random_scale", "1.2"),
    ("pad", "3"),
    ("fill_value", "128"),
    ("brightness", "0.2"),
    ("contrast", "0.2"),
    ("saturation", "0.2"),
    ("random_h", "20"),
    ("random_s", "30"),
    ("random_l", "30"),
    ("pca_noise", "0.1"),
    ("inter_method", "10"),
];

#[test]
fn the_same_draws_give_the_same_image() {
    let source = smooth(70, 50, 3);
    let crops = [("data_shape", "(3,20,24)"), ("resize", "33"), ("rand_crop", "1"), ("inter_method", "10")];
    let part = [("data_shape", "(3,20,24)"), ("random_resized_crop", "1"), ("min_random_area", "0.1")];
    for pairs in [&EVERYTHING[..], &crops, &part] {
        let augmenter = augmenter(pairs);
        let bytes = jpeg(source.pixels(), 70, 50, ColorType::Rgb, Jpeg::default());
        let mut decoded = Image::new();
        Decoder::new().decode(&bytes, Channels::Rgb, &mut decoded).unwrap();
        let mut shared = Workspace::new();
        let mut images = vec![];
        for sample in 0..50 {
            let draws = || Draws::new(9, 4, sample);
            let image = augmenter.augment(&bytes, &mut draws(), &mut shared).unwrap().clone();
            let fresh = augmenter.augment_image(&decoded, &mut draws(), &mut Workspace::new()).unwrap().clone();
            let view = augmenter.plan(70, 50, &mut draws()).unwrap().source_view();
            match view.is_some_and(|view| view.width >= 48.0 && view.height >= 40.0) {
                // Decoded at half its size.
                true => {
                    let pairs = image.pixels().iter().zip(fresh.pixels());
                    let sum: u32 = pairs.map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
                    assert!(sum < 3 * image.pixels().len() as u32, "mean difference of {sum}/{}", image.pixels().len());
                    let again = augmenter.augment(&bytes, &mut draws(), &mut Workspace::new()).unwrap().clone();
                    assert_eq!(image, again);
                }
                false => assert_eq!(image, fresh),
            }
            assert_eq!((image.width(), image.height(), image.channels()), (24, 20, 3));
            images.push(image);
        }
        images.dedup();
        assert!(images.len() > 40);
    }
}

#[test]
fn all_steps_work_with_every_number_of_channels() {
    for (channels, shape) in [(1, "(1,20,24)"), (4, "(4,20,24)")] {
        let coloured = ["saturation", "random_h", "random_s", "random_l", "pca_noise"];
        let fits = |pair: &&(&str, &str)| channels == 4 || !coloured.contains(&pair.0);
        let mut pairs: Vec<_> = EVERYTHING.iter().filter(fits).copied().collect();
        pairs[0].1 = shape;
        assert_eq!(augment(&pairs, &smooth(50, 70, channels), 1).channels(), channels);
    }
    let error =
        augmenter(&[]).augment_image(&smooth(300, 300, 1), &mut Draws::new(0, 0, 0), &mut Workspace::new()).err();
    assert!(matches!(error, Some(Cause::Shape { .. })));
}

#[test]
fn steps_between_do_not_take_any_memory() {
    let augmenter = augmenter(&[("data_shape", "(1,8,8)"), ("resize", "4000"), ("rotate", "10")]);
    let thin = smooth(60_000, 1, 1);
    let error = augmenter.augment_image(&thin, &mut Draws::new(0, 0, 0), &mut Workspace::new()).err();
    assert!(matches!(error, Some(Cause::Image(message)) if message.contains("limit")));
}

#[test]
fn options_are_kept_as_text() {
    let options = augmenter(&EVERYTHING).options().clone();
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<AugmentOptions>(&text).unwrap(), options);
    assert_eq!(serde_json::from_str::<AugmentOptions>("{}").unwrap(), AugmentOptions::default());
}
