//! The options of the augmenter: names, defaults and ranges.

use crate::draws::Draws;
use crate::error::DataError;
use crate::image::Inter;
use crate::options::options;

options! {
    "augmentation",
    /// What is done to images, by the names and with the defaults of MXNet's default augmenter.
    ///
    /// Random values are drawn uniformly from the closed ranges `[min, max]`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AugmentOptions {
        /// Channels, height and width of what comes out. 1 channel is grey, 3 are RGB, 4 RGBA.
        pub data_shape: [u32; 3] = [3, 224, 224],
        /// The shorter edge gets this length before all else; -1 for none.
        pub resize: i32 = -1,
        /// Cropping at a random place, not in the middle.
        pub rand_crop: bool = false,
        /// A random part of the image, of an area and aspect ratio from the ranges below, resized to the output.
        pub random_resized_crop: bool = false,
        /// Rotation by a whole number of degrees in `[-max, max]`, counter-clockwise.
        pub max_rotate_angle: i32 = 0,
        /// Width over height: in `[1 - max, 1 + max]`, or `[min_aspect_ratio, max]` if that is given.
        pub max_aspect_ratio: f64 = 0.0,
        /// The smallest random aspect ratio, `None`: 1 minus the bound above.
        pub min_aspect_ratio: Option<f64> = None,
        /// `x` grows by `y` times a number in `[-max, max]`.
        pub max_shear_ratio: f64 = 0.0,
        /// A square whose side is in `[min, max]` is cropped and resized to the output; both -1 for none.
        pub max_crop_size: i32 = -1,
        /// The smallest edge of a random crop, in pixels; -1 for none.
        pub min_crop_size: i32 = -1,
        /// Width and height times a number in `[min, max]`.
        pub max_random_scale: f64 = 1.0,
        /// The smallest random scale.
        pub min_random_scale: f64 = 1.0,
        /// Part of the image's area that a random resized crop has.
        pub max_random_area: f64 = 1.0,
        /// The smallest area of a random crop, as a fraction of the image.
        pub min_random_area: f64 = 1.0,
        /// Limits of width and height after scaling, each on its own; what is missing is filled.
        pub max_img_size: f64 = 1e10,
        /// The smallest edge of a scaled image, in pixels.
        pub min_img_size: f64 = 0.0,
        /// Pixels times a number in `[1 - brightness, 1 + brightness]`.
        pub brightness: f64 = 0.0,
        /// Distances from the mean of luma times a number in `[1 - contrast, 1 + contrast]`.
        pub contrast: f64 = 0.0,
        /// Distances from each pixel's luma times a number in `[1 - saturation, 1 + saturation]`.
        pub saturation: f64 = 0.0,
        /// Deviation of normal weights of the principal components of colours in ImageNet.
        pub pca_noise: f64 = 0.0,
        /// Greatest change of hue, in units of 2 degrees.
        pub random_h: i32 = 0,
        /// Greatest change of saturation, in units of 1/255.
        pub random_s: i32 = 0,
        /// Greatest change of lightness, in units of 1/255.
        pub random_l: i32 = 0,
        /// Rotation by so many degrees if it is more than 0, whatever `max_rotate_angle` says.
        pub rotate: i32 = -1,
        /// Degrees one of which is chosen; goes before `rotate`.
        pub rotate_list: Vec<i32> = vec![],
        /// Value of pixels that lie outside of the image.
        pub fill_value: u8 = 255,
        /// 0 nearest, 1 bilinear, 2 cubic, 3 area, 4 Lanczos, 9 by the sizes, 10 random.
        pub inter_method: u8 = 1,
        /// Pixels added to every edge.
        pub pad: u32 = 0,
    }
}

/// Largest extent of an output, and of padding.
const MAX_EXTENT: u32 = 1 << 16;

fn require(holds: bool, name: &str, why: impl Into<String>) -> Result<(), DataError> {
    if holds { Ok(()) } else { Err(DataError::options(name, why)) }
}

fn in_range(name: &str, value: f64, low: f64, high: f64) -> Result<(), DataError> {
    require((low..=high).contains(&value), name, format!("{value} is not in {low}..={high}"))
}

impl AugmentOptions {
    /// The range of aspect ratios.
    pub(super) fn aspect(&self) -> (f64, f64) {
        match self.min_aspect_ratio {
            Some(min) => (min, self.max_aspect_ratio),
            None => (1.0 - self.max_aspect_ratio, 1.0 + self.max_aspect_ratio),
        }
    }

    /// Whether the image is rotated, sheared or scaled.
    pub(super) fn is_affine(&self) -> bool {
        self.max_rotate_angle > 0
            || self.max_shear_ratio > 0.0
            || self.rotate > 0
            || !self.rotate_list.is_empty()
            || (self.min_random_scale, self.max_random_scale) != (1.0, 1.0)
            || (!self.random_resized_crop && self.aspect() != (1.0, 1.0))
            || self.max_img_size != 1e10
            || self.min_img_size != 0.0
    }

    /// Checks ranges and contradictions.
    ///
    /// # Errors
    /// An option that is out of its range or contradicts another one.
    pub fn check(&self) -> Result<(), DataError> {
        self.check_sizes()?;
        self.check_affine()?;
        self.check_colours()?;
        self.check_conflicts()
    }

    fn check_sizes(&self) -> Result<(), DataError> {
        let [channels, height, width] = self.data_shape;
        require([1, 3, 4].contains(&channels), "data_shape", format!("{channels} channels are not 1, 3 or 4"))?;
        for extent in [height, width] {
            in_range("data_shape", extent.into(), 1.0, MAX_EXTENT.into())?;
        }
        require(self.resize == -1 || self.resize > 0, "resize", format!("{} is no length", self.resize))?;
        in_range("pad", self.pad.into(), 0.0, MAX_EXTENT.into())?;
        let method = self.inter_method;
        require(matches!(method, 0..=4 | 9 | 10), "inter_method", format!("{method} is not 0, 1, 2, 3, 4, 9 or 10"))?;
        let (min, max) = (self.min_crop_size, self.max_crop_size);
        if (min, max) != (-1, -1) {
            require(min > 0, "min_crop_size", format!("{min} is no size, but max_crop_size is {max}"))?;
            require(max >= min, "max_crop_size", format!("{max} is less than min_crop_size, {min}"))?;
        }
        Ok(())
    }

    fn check_affine(&self) -> Result<(), DataError> {
        in_range("max_rotate_angle", self.max_rotate_angle.into(), 0.0, 360.0)?;
        require(self.rotate >= -1, "rotate", format!("{} is negative; use rotate_list", self.rotate))?;
        in_range("max_shear_ratio", self.max_shear_ratio, 0.0, f64::from(MAX_EXTENT))?;
        let (min, max) = self.aspect();
        let name = if self.min_aspect_ratio.is_some() { "min_aspect_ratio" } else { "max_aspect_ratio" };
        require(min > 0.0, name, format!("an aspect ratio of {min} is not more than 0"))?;
        require(min <= max && max.is_finite(), "max_aspect_ratio", format!("no ratio is from {min} to {max}"))?;
        for (name, min, max) in [
            ("scale", self.min_random_scale, self.max_random_scale),
            ("area", self.min_random_area, self.max_random_area),
        ] {
            let lower = format!("min_random_{name}");
            require(min > 0.0 && min.is_finite(), &lower, format!("{min} is not more than 0"))?;
            let why = format!("{max} is less than {lower}, {min}");
            require(max >= min && max.is_finite(), &format!("max_random_{name}"), why)?;
        }
        let (min, max) = (self.min_img_size, self.max_img_size);
        require(min >= 0.0 && min.is_finite(), "min_img_size", format!("{min} is no size"))?;
        require(max >= min.max(1.0), "max_img_size", format!("{max} is less than 1 or min_img_size, {min}"))
    }

    fn check_colours(&self) -> Result<(), DataError> {
        let ranges = [
            ("brightness", self.brightness, 1e3),
            ("contrast", self.contrast, 1e3),
            ("saturation", self.saturation, 1e3),
            ("pca_noise", self.pca_noise, 1e3),
            ("random_h", self.random_h.into(), 180.0),
            ("random_s", self.random_s.into(), 255.0),
            ("random_l", self.random_l.into(), 255.0),
        ];
        for (name, value, high) in ranges {
            in_range(name, value, 0.0, high)?;
        }
        if self.data_shape[0] == 1 {
            for (name, value, _) in ranges {
                let grey = value == 0.0 || ["brightness", "contrast"].contains(&name);
                require(grey, name, "an image of one channel has no colours")?;
            }
        }
        Ok(())
    }

    fn check_conflicts(&self) -> Result<(), DataError> {
        if !self.random_resized_crop {
            return Ok(());
        }
        let conflicts = [
            ("min_random_scale", self.min_random_scale != 1.0),
            ("max_random_scale", self.max_random_scale != 1.0),
            ("min_crop_size", self.min_crop_size != -1),
            ("max_crop_size", self.max_crop_size != -1),
            ("rand_crop", self.rand_crop),
        ];
        for (name, set) in conflicts {
            require(!set, name, "contradicts random_resized_crop")?;
        }
        Ok(())
    }
}

/// The method, whose number was checked.
pub(super) fn pick(options: &AugmentOptions, from: (f64, f64), to: (u32, u32), draws: &mut Draws) -> Inter {
    Inter::pick(options.inter_method, from, to, draws).unwrap_or(Inter::Bilinear)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Result<AugmentOptions, DataError> {
        let mut options = AugmentOptions::default();
        for (name, value) in pairs {
            options.set(name, value)?;
        }
        options.check().map(|()| options)
    }

    fn refused(pairs: &[(&str, &str)], option: &str) {
        match set(pairs) {
            Err(DataError::Options { name, .. }) => assert_eq!(name, option),
            other => panic!("{pairs:?}: {other:?}"),
        }
    }

    #[test]
    fn options_are_read_from_text() {
        let pairs = [
            ("data_shape", "(1, 28, 32)"),
            ("rand_crop", "True"),
            ("max_aspect_ratio", "1.25"),
            ("min_aspect_ratio", "0.75"),
            ("rotate_list", "0,90,-90"),
            ("pad", " 4 "),
        ];
        let options = set(&pairs).unwrap();
        assert_eq!((options.data_shape, options.rand_crop, options.pad), ([1, 28, 32], true, 4));
        assert_eq!((options.aspect(), &options.rotate_list[..]), ((0.75, 1.25), &[0, 90, -90][..]));
        assert_eq!(set(&[("min_aspect_ratio", "None")]).unwrap(), AugmentOptions::default());
    }

    #[test]
    fn what_is_out_of_range_or_unknown_is_refused() {
        for (name, value) in [
            ("resize", "0"),
            ("resize", "x"),
            ("data_shape", "(2,4,4)"),
            ("data_shape", "(3,4)"),
            ("data_shape", "(3,0,4)"),
            ("inter_method", "5"),
            ("fill_value", "256"),
            ("pad", "-1"),
            ("min_crop_size", "8"),
            ("brightness", "-0.1"),
            ("pca_noise", "NaN"),
            ("random_h", "181"),
            ("min_random_area", "0"),
            ("max_random_area", "0.5"),
            ("min_random_scale", "2"),
            ("rand_crop", "yes"),
            ("max_aspect_ratio", "1"),
            ("min_aspect_ratio", "0"),
            ("rotate", "-2"),
            ("max_img_size", "0"),
        ] {
            let blamed = match (name, value) {
                ("min_random_scale", _) => "max_random_scale",
                ("min_crop_size", _) => "max_crop_size",
                ("max_random_area", _) => "max_random_area",
                _ => name,
            };
            refused(&[(name, value)], blamed);
        }
        refused(&[("min_aspect_ratio", "0.5")], "max_aspect_ratio");
        refused(&[("max_crop_size", "8")], "min_crop_size");
        refused(&[("data_shape", "(1,4,4)"), ("random_h", "3")], "random_h");
        let Err(DataError::Options { why, .. }) = AugmentOptions::default().set("bright", "1") else { panic!() };
        assert!(why.contains("brightness") && why.contains("pad"), "{why}");
    }

    #[test]
    fn a_random_resized_crop_excludes_other_crops() {
        for (name, value) in [("rand_crop", "1"), ("max_random_scale", "2"), ("min_crop_size", "3")] {
            let crop = [("random_resized_crop", "1"), (name, value), ("max_crop_size", "9")];
            refused(if name == "min_crop_size" { &crop } else { &crop[..2] }, name);
        }
    }

    #[test]
    fn names_are_those_of_the_fields() {
        let text = format!("{:?}", AugmentOptions::default());
        assert!(AugmentOptions::NAMES.iter().all(|name| text.contains(&format!("{name}: "))));
        assert_eq!(text.matches(": ").count(), AugmentOptions::NAMES.len());
    }
}
