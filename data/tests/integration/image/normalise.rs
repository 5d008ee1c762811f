//! Normalisation: formulas, layouts and what is refused.

use tensorc_abi::DType;
use tensorc_data::image::{AxisOrder, Image, NormaliseOptions, Normaliser};
use tensorc_data::{Cause, DataError, Draws};
use tensorc_runtime::TensorMut;

fn options(pairs: &[(&str, &str)]) -> NormaliseOptions {
    let mut options = NormaliseOptions::default();
    for (name, value) in pairs {
        options.set(name, value).unwrap();
    }
    options
}

/// Two rows of three pixels.
fn image() -> Image {
    let pixels = vec![0, 1, 2, 10, 11, 12, 20, 21, 22, 100, 101, 102, 110, 111, 112, 253, 254, 255];
    Image::from_pixels(3, 2, 3, pixels).unwrap()
}

fn floats(normaliser: &Normaliser, image: &Image, sample: u64) -> Vec<f32> {
    let mut values = vec![0.0f32; image.pixels().len()];
    let (c, h, w) = (image.channels().into(), image.height().into(), image.width().into());
    let dims: [u64; 3] = if normaliser.layout() == AxisOrder::Chw { [c, h, w] } else { [h, w, c] };
    normaliser.run(image, &mut Draws::new(1, 1, sample), &mut TensorMut::from_slice(&dims, &mut values)).unwrap();
    values
}

fn bytes(normaliser: &Normaliser, image: &Image) -> Vec<u8> {
    let mut values = vec![0; image.pixels().len()];
    let mut tensor = TensorMut::new(normaliser.dtype(), &[3, 2, 3], &mut values);
    normaliser.run(image, &mut Draws::new(1, 1, 1), &mut tensor).unwrap();
    values
}

#[test]
fn planes_of_channels() {
    let plain = Normaliser::new(options(&[]), DType::F32, AxisOrder::Chw).unwrap();
    let expected = [0, 10, 20, 100, 110, 253, 1, 11, 21, 101, 111, 254, 2, 12, 22, 102, 112, 255].map(|x| x as f32);
    assert_eq!(floats(&plain, &image(), 0), expected);
    let mirrored = Normaliser::new(options(&[("mirror", "true")]), DType::F32, AxisOrder::Chw).unwrap();
    let expected = [20, 10, 0, 253, 110, 100, 21, 11, 1, 254, 111, 101, 22, 12, 2, 255, 112, 102].map(|x| x as f32);
    assert_eq!(floats(&mirrored, &image(), 0), expected);
}

#[test]
fn pixels_in_their_order() {
    let plain = Normaliser::new(options(&[]), DType::F32, AxisOrder::Hwc).unwrap();
    let expected: Vec<f32> = image().pixels().iter().map(|value| f32::from(*value)).collect();
    assert_eq!(floats(&plain, &image(), 0), expected);
    let mirrored = Normaliser::new(options(&[("mirror", "1")]), DType::F32, AxisOrder::Hwc).unwrap();
    assert_eq!(floats(&mirrored, &image(), 0)[..6], [20.0, 21.0, 22.0, 10.0, 11.0, 12.0]);
}

#[test]
fn mean_deviation_and_scale() {
    let pairs = [("mean_r", "10"), ("mean_g", "1"), ("std_r", "2"), ("std_b", "4"), ("scale", "0.5")];
    let values = floats(&Normaliser::new(options(&pairs), DType::F32, AxisOrder::Chw).unwrap(), &image(), 0);
    assert_eq!(values[..3], [-2.5, 0.0, 2.5]);
    assert_eq!(values[6..9], [0.0, 5.0, 10.0]);
    assert_eq!(values[12..15], [0.25, 1.5, 2.75]);
    for (channels, count) in [(1, 6), (4, 24)] {
        let image = Image::from_pixels(3, 2, channels, vec![30; count]).unwrap();
        let values = floats(&Normaliser::new(options(&pairs), DType::F32, AxisOrder::Chw).unwrap(), &image, 0);
        let expected: Vec<f32> = [5.0, 14.5, 3.75, 15.0][..channels.into()].iter().flat_map(|x| [*x; 6]).collect();
        assert_eq!(values, expected);
    }
}

#[test]
fn a_mean_for_each_value() {
    let mean: Vec<f32> = (0..18).map(|i| i as f32).collect();
    for (mirror, first) in [("0", [0.0, 9.0, 18.0]), ("1", [18.0, 9.0, 0.0])] {
        let normaliser = Normaliser::new(options(&[("mirror", mirror)]), DType::F32, AxisOrder::Chw).unwrap();
        let normaliser = normaliser.with_mean_image([3, 2, 3], &mean).unwrap();
        // The mean is subtracted before mirroring.
        assert_eq!(floats(&normaliser, &image(), 0)[..3], first);
    }
    let normaliser = Normaliser::new(options(&[]), DType::F32, AxisOrder::Chw).unwrap();
    assert!(normaliser.clone().with_mean_image([3, 2, 2], &mean).is_err());
    let other = normaliser.with_mean_image([3, 3, 2], &mean).unwrap();
    let mut values = [0.0f32; 18];
    let run = other.run(&image(), &mut Draws::new(0, 0, 0), &mut TensorMut::from_slice(&[3, 2, 3], &mut values));
    assert!(matches!(run, Err(Cause::Shape { .. })));
}

#[test]
fn bytes_are_copied_and_signed_ones_shifted() {
    let copy = Normaliser::new(options(&[]), DType::U8, AxisOrder::Chw).unwrap();
    assert_eq!(bytes(&copy, &image())[..6], [0, 10, 20, 100, 110, 253]);
    let pairs = [("mean_r", "127.6"), ("mean_g", "300"), ("mean_b", "-9")];
    let signed = Normaliser::new(options(&pairs), DType::I8, AxisOrder::Chw).unwrap();
    let values: Vec<i8> = bytes(&signed, &image()).into_iter().map(|byte| byte as i8).collect();
    assert_eq!(values[..6], [-128, -118, -108, -28, -18, 125]);
    assert_eq!(values[6..12], [-128, -128, -128, -128, -128, -46]);
    assert_eq!(values[12..], [11, 21, 31, 111, 121, 127]);
    let signed = Normaliser::new(options(&[]), DType::I8, AxisOrder::Chw).unwrap();
    let signed = signed.with_mean_image([3, 2, 3], &[127.6; 18]).unwrap();
    assert_eq!(bytes(&signed, &image())[..3].iter().map(|byte| *byte as i8).collect::<Vec<_>>(), [-128, -118, -108]);
}

#[test]
fn random_changes_are_in_range_and_half_are_mirrored() {
    let pairs = [
        ("rand_mirror", "1"),
        ("max_random_contrast", "0.25"),
        ("max_random_illumination", "8"),
        ("scale", "2"),
        ("std_r", "4"),
    ];
    let normaliser = Normaliser::new(options(&pairs), DType::F32, AxisOrder::Chw).unwrap();
    let mut mirrored = 0;
    let (mut contrasts, mut offsets) = (vec![], vec![]);
    for sample in 0..2000 {
        let values = floats(&normaliser, &image(), sample);
        let first = if values[0] > values[2] { 2 } else { 0 };
        mirrored += usize::from(first == 2);
        offsets.push(values[first] * 4.0 / 2.0);
        contrasts.push((values[1] - values[first]) * 4.0 / 2.0 / 10.0);
        assert_eq!(values, floats(&normaliser, &image(), sample));
    }
    let range = |values: &[f32]| values.iter().fold((f32::MAX, f32::MIN), |(a, b), x| (a.min(*x), b.max(*x)));
    let ((low, high), (dark, light)) = (range(&contrasts), range(&offsets));
    assert!((0.749..0.76).contains(&low) && (1.24..1.251).contains(&high), "{low} {high}");
    assert!((-8.01..-7.8).contains(&dark) && (7.8..8.01).contains(&light), "{dark} {light}");
    assert!((900..1100).contains(&mirrored), "{mirrored}");
}

#[test]
fn options_without_meaning_are_refused() {
    let refused =
        |pairs: &[(&str, &str)], dtype, blamed: &str| match Normaliser::new(options(pairs), dtype, AxisOrder::Chw) {
            Err(DataError::Options { name, .. }) => assert_eq!(name, blamed),
            other => panic!("{other:?}"),
        };
    refused(&[("mean_g", "1")], DType::U8, "mean_g");
    refused(&[("scale", "2")], DType::U8, "scale");
    refused(&[("std_a", "2")], DType::I8, "std_a");
    refused(&[("max_random_contrast", "0.1")], DType::I8, "max_random_contrast");
    refused(&[("std_r", "0")], DType::F32, "std_r");
    refused(&[("max_random_illumination", "-1")], DType::F32, "max_random_illumination");
    refused(&[], DType::F16, "dtype");
    assert!(NormaliseOptions::default().set("mean_x", "1").is_err());
    let both = Normaliser::new(options(&[("mean_r", "1")]), DType::F32, AxisOrder::Chw).unwrap();
    assert!(both.with_mean_image([1, 1, 1], &[1.0]).is_err());
    let bytes = Normaliser::new(options(&[]), DType::U8, AxisOrder::Chw).unwrap();
    assert!(bytes.with_mean_image([1, 1, 1], &[1.0]).is_err());
}

#[test]
fn tensors_of_another_shape_or_type_are_refused() {
    let normaliser = Normaliser::new(options(&[]), DType::F32, AxisOrder::Chw).unwrap();
    let mut values = [0.0f32; 18];
    for dims in [[2, 3, 3], [3, 3, 2], [3, 2, 4]] {
        let run = normaliser.run(&image(), &mut Draws::new(0, 0, 0), &mut TensorMut::from_slice(&dims, &mut values));
        assert!(matches!(run, Err(Cause::Shape { .. })));
    }
    let mut bytes = [0; 18];
    let mut slot = TensorMut::new(DType::U8, &[3, 2, 3], &mut bytes);
    assert!(normaliser.run(&image(), &mut Draws::new(0, 0, 0), &mut slot).is_err());
    // A slot of a batch may keep its leading axis.
    let mut tensor = TensorMut::from_slice(&[1, 3, 2, 3], &mut values);
    assert!(normaliser.run(&image(), &mut Draws::new(0, 0, 0), &mut tensor).is_ok());
}
