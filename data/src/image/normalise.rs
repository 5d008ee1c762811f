//! Images to tensors: mirroring, mean, deviation and scale, and the order of axes.

use serde::{Deserialize, Serialize};
use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use super::Image;
use crate::draws::Draws;
use crate::error::{Cause, DataError};
use crate::options::options;

/// Order of the axes of an image in a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AxisOrder {
    /// Channels × height × width.
    #[default]
    Chw,
    /// Height × width × channels.
    Hwc,
}

options! {
    "normalisation",
    /// What is done to values, by the names and with the defaults of MXNet.
    ///
    /// A value of `float32` is `(x - mean) · (c · scale / std) + i · scale / std`, where `c` is in `[1 - max_random_contrast,
    /// 1 + max_random_contrast]` and `i` in `[-max_random_illumination, max_random_illumination]`, the same for the whole
    /// image. One of `int8` is `x - round(mean)`, kept in the range; one of `uint8` is `x`. Channels are R, G, B and A; that
    /// of a grey image has the options of R.
    #[derive(Clone, Debug, PartialEq)]
    pub struct NormaliseOptions {
        /// All images are mirrored: left becomes right.
        pub mirror: bool = false,
        /// Half of all images are mirrored.
        pub rand_mirror: bool = false,
        /// The mean of red, subtracted; 0 for none.
        pub mean_r: f64 = 0.0,
        /// The mean of green, subtracted.
        pub mean_g: f64 = 0.0,
        /// The mean of blue, subtracted.
        pub mean_b: f64 = 0.0,
        /// The mean of alpha, subtracted.
        pub mean_a: f64 = 0.0,
        /// The standard deviation of red, which values are divided by.
        pub std_r: f64 = 1.0,
        /// The standard deviation of green, which values are divided by.
        pub std_g: f64 = 1.0,
        /// The standard deviation of blue, which values are divided by.
        pub std_b: f64 = 1.0,
        /// The standard deviation of alpha, which values are divided by.
        pub std_a: f64 = 1.0,
        /// The factor that values are multiplied by.
        pub scale: f64 = 1.0,
        /// The largest random change of contrast, as a fraction.
        pub max_random_contrast: f64 = 0.0,
        /// The largest random change of illumination, in units of a pixel's value.
        pub max_random_illumination: f64 = 0.0,
    }
}

impl NormaliseOptions {
    fn means(&self) -> [(&'static str, f64); 4] {
        [("mean_r", self.mean_r), ("mean_g", self.mean_g), ("mean_b", self.mean_b), ("mean_a", self.mean_a)]
    }

    fn deviations(&self) -> [(&'static str, f64); 4] {
        [("std_r", self.std_r), ("std_g", self.std_g), ("std_b", self.std_b), ("std_a", self.std_a)]
    }

    /// Options that matter for floating-point tensors only, and their values without effect.
    fn float_only(&self) -> impl Iterator<Item = (&'static str, f64, f64)> {
        let rest = [
            ("scale", self.scale, 1.0),
            ("max_random_contrast", self.max_random_contrast, 0.0),
            ("max_random_illumination", self.max_random_illumination, 0.0),
        ];
        self.deviations().into_iter().map(|(name, value)| (name, value, 1.0)).chain(rest)
    }

    fn check(&self, dtype: DType, mean_image: bool) -> Result<(), DataError> {
        if let Some((name, value)) = self.deviations().into_iter().find(|(_, std)| *std == 0.0 || !std.is_finite()) {
            return Err(DataError::options(name, format!("{value} is no deviation")));
        }
        for (name, value) in self.means().into_iter().chain([("scale", self.scale)]) {
            if !value.is_finite() || value.abs() > f64::from(f32::MAX) {
                return Err(DataError::options(name, format!("{value} is not finite")));
            }
        }
        for (name, value) in [
            ("max_random_contrast", self.max_random_contrast),
            ("max_random_illumination", self.max_random_illumination),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(DataError::options(name, format!("{value} is negative or not finite")));
            }
        }
        let unused = |name: &str| Err(DataError::options(name, format!("has no meaning for {dtype}")));
        match dtype {
            DType::F32 => {}
            DType::I8 | DType::U8 => {
                if let Some((name, ..)) = self.float_only().find(|(_, value, neutral)| value != neutral) {
                    return unused(name);
                }
                let set = self.means().into_iter().find(|(_, mean)| *mean != 0.0).map(|(name, _)| name);
                if let (DType::U8, Some(name)) = (dtype, set.or(mean_image.then_some("mean_img"))) {
                    return unused(name);
                }
            }
            _ => return Err(DataError::options("dtype", format!("{dtype} is not float32, uint8 or int8"))),
        }
        Ok(())
    }
}

/// Writes images into tensors.
#[derive(Clone, Debug)]
pub struct Normaliser {
    options: NormaliseOptions,
    dtype: DType,
    layout: AxisOrder,
    /// Height × width × channels, as images are.
    mean: Option<MeanImage>,
}

/// A mean for every value of an image.
#[derive(Clone, Debug)]
struct MeanImage {
    channels: usize,
    height: usize,
    width: usize,
    values: Vec<f32>,
}

/// What is drawn for an image.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    mirror: bool,
    contrast: f32,
    illumination: f32,
}

impl Normaliser {
    /// A writer of tensors of `float32`, `uint8` or `int8`.
    ///
    /// # Errors
    /// Another data type, a deviation of 0, a value out of its range, or an option that has no meaning for the type.
    pub fn new(options: NormaliseOptions, dtype: DType, layout: AxisOrder) -> Result<Normaliser, DataError> {
        options.check(dtype, false)?;
        Ok(Normaliser { options, dtype, layout, mean: None })
    }

    /// The same with a mean for every value, of shape channels × height × width, instead of one per channel.
    ///
    /// # Errors
    /// The shape does not fit the values, means of channels are given, too, or the tensors are of `uint8`.
    pub fn with_mean_image(self, shape: [usize; 3], values: &[f32]) -> Result<Normaliser, DataError> {
        let [channels, height, width] = shape;
        let count = channels.checked_mul(height).and_then(|n| n.checked_mul(width));
        if count != Some(values.len()) {
            let why = format!("{} values are not of the shape {shape:?}", values.len());
            return Err(DataError::options("mean_img", why));
        }
        if let Some((name, _)) = self.options.means().into_iter().find(|(_, mean)| *mean != 0.0) {
            return Err(DataError::options(name, "contradicts mean_img"));
        }
        self.options.check(self.dtype, true)?;
        let plane = height * width;
        let order = (0..plane).flat_map(|at| (0..channels).map(move |channel| values[channel * plane + at]));
        let mean = MeanImage { channels, height, width, values: order.collect() };
        Ok(Normaliser { mean: Some(mean), ..self })
    }

    /// The element type of the results.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The order of the axes of the results.
    pub fn layout(&self) -> AxisOrder {
        self.layout
    }

    /// Writes an image. The tensor has the image's number of values, in the layout of this writer, and its type.
    ///
    /// # Errors
    /// The tensor or the mean has another shape than the image, or the tensor another type.
    pub fn run(&self, image: &Image, draws: &mut Draws, out: &mut TensorMut<'_>) -> Result<(), Cause> {
        self.check_shape(image, out)?;
        let drawn = self.draw(draws);
        match self.dtype {
            DType::F32 => {
                let found = format!("{} of {} bytes", out.dtype, out.data.len());
                let values = out.as_mut_slice::<f32>();
                let values = values.ok_or(Cause::Shape { expected: "aligned values of float32".into(), found })?;
                self.write_floats(image, drawn, values);
            }
            DType::I8 => self.write_signed(image, drawn.mirror, out.data),
            _ => write(image, self.layout, drawn.mirror, out.data, |_| |value, _| value),
        }
        Ok(())
    }

    fn draw(&self, draws: &mut Draws) -> Drawn {
        let options = &self.options;
        let mirror = (options.rand_mirror && draws.coin()) || options.mirror;
        let around = |middle: f64, max: f64, draws: &mut Draws| draws.between(middle - max, middle + max);
        let contrast = around(1.0, options.max_random_contrast, draws) * options.scale;
        let illumination = around(0.0, options.max_random_illumination, draws) * options.scale;
        Drawn { mirror, contrast: contrast as f32, illumination: illumination as f32 }
    }

    fn check_shape(&self, image: &Image, out: &TensorMut<'_>) -> Result<(), Cause> {
        let (channels, height, width) = (image.channels().into(), image.height().into(), image.width().into());
        let dims: [u64; 3] = match self.layout {
            AxisOrder::Chw => [channels, height, width],
            AxisOrder::Hwc => [height, width, channels],
        };
        let expected = || format!("{} {dims:?}", self.dtype);
        let bytes = image.pixels().len() * self.dtype.size();
        if out.dtype != self.dtype || !out.dims.ends_with(&dims) || out.data.len() != bytes {
            return Err(Cause::Shape { expected: expected(), found: format!("{} {:?}", out.dtype, out.dims) });
        }
        if let Some(mean) = &self.mean {
            let shape = [mean.channels, mean.height, mean.width];
            if shape.map(|n| n as u64) != [channels, height, width] {
                return Err(Cause::Shape { expected: expected(), found: format!("a mean image of {shape:?}") });
            }
        }
        Ok(())
    }

    fn write_floats(&self, image: &Image, drawn: Drawn, out: &mut [f32]) {
        let deviations = self.options.deviations().map(|(_, std)| std as f32);
        let factors = deviations.map(|std| drawn.contrast / std);
        let offsets = deviations.map(|std| drawn.illumination / std);
        if let Some(mean) = &self.mean {
            write(image, self.layout, drawn.mirror, out, |channel| {
                let (factor, offset) = (factors[channel], offsets[channel]);
                move |value, at: usize| (f32::from(value) - mean.values[at]) * factor + offset
            });
        } else {
            let means = self.options.means().map(|(_, mean)| mean as f32);
            write(image, self.layout, drawn.mirror, out, |channel| {
                let (mean, factor, offset) = (means[channel], factors[channel], offsets[channel]);
                move |value, _| (f32::from(value) - mean) * factor + offset
            });
        }
    }

    fn write_signed(&self, image: &Image, mirror: bool, out: &mut [u8]) {
        // Greater means than these leave nothing of any byte.
        let whole = |mean: f32| mean.round().clamp(-512.0, 512.0) as i16;
        let shifted = |value: u8, mean: i16| (i16::from(value) - mean).clamp(-128, 127) as u8;
        if let Some(mean) = &self.mean {
            write(image, self.layout, mirror, out, |_| |value, at: usize| shifted(value, whole(mean.values[at])));
        } else {
            let means = self.options.means().map(|(_, mean)| whole(mean as f32));
            write(image, self.layout, mirror, out, |channel| {
                let mean = means[channel];
                move |value, _| shifted(value, mean)
            });
        }
    }
}

/// Writes each value as a function of the byte and its number in the image; there is one function for each channel.
fn write<T: Copy, V, F>(image: &Image, layout: AxisOrder, mirror: bool, out: &mut [T], value: F)
where
    V: Fn(u8, usize) -> T,
    F: Fn(usize) -> V,
{
    pulp::Arch::new().dispatch(Write { image, layout, mirror, out, value });
}

/// The loop of [`write`], compiled for the instructions that the machine has: taking channels apart is slow without
/// shuffles of bytes.
struct Write<'a, T, F> {
    image: &'a Image,
    layout: AxisOrder,
    mirror: bool,
    out: &'a mut [T],
    value: F,
}

impl<T: Copy, V: Fn(u8, usize) -> T, F: Fn(usize) -> V> pulp::NullaryFnOnce for Write<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.image.channels() {
            1 => self.channels::<1>(),
            3 => self.channels::<3>(),
            _ => self.channels::<4>(),
        }
    }
}

impl<T: Copy, V: Fn(u8, usize) -> T, F: Fn(usize) -> V> Write<'_, T, F> {
    #[inline(always)]
    fn channels<const C: usize>(self) {
        let Write { image, layout, mirror, out, value } = self;
        let values: [V; C] = std::array::from_fn(value);
        let width = image.width() as usize;
        let plane = width * image.height() as usize;
        for (y, row) in image.pixels().chunks_exact(width * C).enumerate() {
            let (row, first) = (row.as_chunks::<C>().0, y * width);
            let at = |x: usize, channel: usize| (first + x) * C + channel;
            match layout {
                AxisOrder::Chw => {
                    for (channel, convert) in values.iter().enumerate() {
                        let to = &mut out[channel * plane + first..][..width];
                        let value = |(x, pixel): (usize, &[u8; C])| convert(pixel[channel], at(x, channel));
                        fill(to, row.iter().enumerate().map(value), mirror);
                    }
                }
                AxisOrder::Hwc => {
                    let to = out[first * C..][..width * C].as_chunks_mut::<C>().0;
                    let pixel = |(x, pixel): (usize, &[u8; C])| {
                        std::array::from_fn(|channel| values[channel](pixel[channel], at(x, channel)))
                    };
                    fill(to, row.iter().enumerate().map(pixel), mirror);
                }
            }
        }
    }
}

/// Writes values in their order, or from the end. Loops that write from the end are not vectorised, but
/// reversing is.
#[inline(always)]
fn fill<T>(to: &mut [T], from: impl Iterator<Item = T>, mirror: bool) {
    to.iter_mut().zip(from).for_each(|(to, value)| *to = value);
    if mirror {
        to.reverse();
    }
}
