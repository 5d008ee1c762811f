//! Small JPEG and PNG files of all kinds.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use tensorc_data::image::Image;

/// A smooth picture, so that coded images are near it.
pub fn smooth(width: u32, height: u32, channels: u8) -> Image {
    let value = |x: u32, y: u32, c: u32| {
        let (x, y, c) = (f64::from(x), f64::from(y), f64::from(c));
        (128.0 + 90.0 * ((x * (0.05 + 0.01 * c) + y * 0.07).sin()) + 20.0 * c - 30.0) as u8
    };
    let pixel = |x, y| (0..u32::from(channels)).map(move |c| value(x, y, c));
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    Image::from_pixels(width, height, channels, pixels).unwrap()
}

/// How a JPEG file is made.
#[derive(Clone, Copy, Default)]
pub struct Jpeg {
    pub progressive: bool,
    pub subsampled: bool,
    pub restart: u16,
    pub optimised: bool,
}

pub fn jpeg(pixels: &[u8], width: u32, height: u32, color: ColorType, kind: Jpeg) -> Vec<u8> {
    let mut bytes = vec![];
    let mut encoder = Encoder::new(&mut bytes, 95);
    encoder.set_progressive(kind.progressive);
    encoder.set_optimized_huffman_tables(kind.optimised);
    encoder.set_sampling_factor(if kind.subsampled { SamplingFactor::F_2_2 } else { SamplingFactor::F_1_1 });
    if kind.restart > 0 {
        encoder.set_restart_interval(kind.restart);
    }
    encoder.encode(pixels, width as u16, height as u16, color).unwrap();
    bytes
}

/// A PNG file of samples that are packed as the format demands; `palette` and `transparency` are left out where empty.
pub struct Png<'a> {
    pub width: u32,
    pub height: u32,
    pub color: png::ColorType,
    pub depth: png::BitDepth,
    pub rows: &'a [u8],
    pub palette: &'a [u8],
    pub transparency: &'a [u8],
}

impl Png<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(self.color);
        encoder.set_depth(self.depth);
        if !self.palette.is_empty() {
            encoder.set_palette(self.palette);
        }
        if !self.transparency.is_empty() {
            encoder.set_trns(self.transparency);
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(self.rows).unwrap();
        writer.finish().unwrap();
        bytes
    }
}

/// A PNG file in the seven passes of Adam7.
pub fn interlaced(image: &Image) -> Vec<u8> {
    const PASSES: [(usize, usize, usize, usize); 7] =
        [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)];
    let (width, height, channels) = (image.width() as usize, image.height() as usize, usize::from(image.channels()));
    let mut data = ZlibEncoder::new(vec![], Compression::default());
    for (x0, y0, dx, dy) in PASSES {
        if x0 >= width {
            continue;
        }
        for y in (y0..height).step_by(dy) {
            data.write_all(&[0]).unwrap();
            for x in (x0..width).step_by(dx) {
                data.write_all(&image.pixels()[(y * width + x) * channels..][..channels]).unwrap();
            }
        }
    }
    let color = [0, 0, 0, 2, 6][channels];
    let mut header = [image.width().to_be_bytes(), image.height().to_be_bytes()].concat();
    header.extend([8, color, 0, 0, 1]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, body) in [(b"IHDR", header), (b"IDAT", data.finish().unwrap()), (b"IEND", vec![])] {
        file.extend((body.len() as u32).to_be_bytes());
        file.extend(name);
        file.extend(&body);
        file.extend([0; 4]);
    }
    seal(&mut file);
    file
}

/// Makes the checksums of a PNG file's chunks right.
pub fn seal(file: &mut [u8]) {
    let mut at = 8;
    while let Some(head) = file.get(at..at + 8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let end = at + 8 + length;
        if file.len() < end + 4 {
            return;
        }
        let mut crc = Crc::new();
        crc.update(&file[at + 4..end]);
        file[end..end + 4].copy_from_slice(&crc.sum().to_be_bytes());
        at = end + 4;
    }
}

/// One small file of each kind, with what it is.
pub fn all_kinds() -> Vec<(&'static str, Vec<u8>)> {
    let (width, height) = (19, 21);
    let (grey, rgb, four) = (smooth(width, height, 1), smooth(width, height, 3), smooth(width, height, 4));
    let kind = Jpeg::default();
    let coded = |image: &Image, color, kind| jpeg(image.pixels(), width, height, color, kind);
    let png = |rows: &[u8], color, depth, palette: &[u8], transparency: &[u8]| {
        Png { width, height, color, depth, rows, palette, transparency }.bytes()
    };
    let palette: Vec<u8> = (0..768).map(|i| (i * 7) as u8).collect();
    let wide: Vec<u8> = rgb.pixels().iter().flat_map(|value| [*value, 17]).collect();
    use png::{BitDepth::Eight, BitDepth::Sixteen, ColorType::Grayscale, ColorType::Indexed};
    vec![
        ("baseline", coded(&rgb, ColorType::Rgb, kind)),
        ("subsampled", coded(&rgb, ColorType::Rgb, Jpeg { subsampled: true, optimised: true, ..kind })),
        ("restarts", coded(&rgb, ColorType::Rgb, Jpeg { restart: 2, ..kind })),
        ("progressive", coded(&rgb, ColorType::Rgb, Jpeg { progressive: true, subsampled: true, ..kind })),
        ("grey", coded(&grey, ColorType::Luma, kind)),
        ("grey, progressive", coded(&grey, ColorType::Luma, Jpeg { progressive: true, ..kind })),
        ("CMYK", coded(&four, ColorType::Cmyk, kind)),
        ("YCCK", coded(&four, ColorType::CmykAsYcck, Jpeg { subsampled: true, ..kind })),
        ("PNG, grey", png(grey.pixels(), Grayscale, Eight, &[], &[])),
        ("PNG, RGB", png(rgb.pixels(), png::ColorType::Rgb, Eight, &[], &[])),
        ("PNG, RGBA", png(four.pixels(), png::ColorType::Rgba, Eight, &[], &[])),
        ("PNG, interlaced", interlaced(&rgb)),
        ("PNG, 16 bits", png(&wide, png::ColorType::Rgb, Sixteen, &[], &[])),
        ("PNG, palette", png(grey.pixels(), Indexed, Eight, &palette, &[0, 50, 100])),
    ]
}
