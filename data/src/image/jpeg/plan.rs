//! What of an image is decoded for a region of it: MCUs, and samples of every component.

use std::ops::Range;

use super::super::PixelRegion;
use super::error::JpegError;
use super::markers::{Component, Headers};

/// How a component is decoded, and where its samples lie in the ring of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComponentPlan {
    pub component: Component,
    /// Width and height of a decoded block: 8, 4, 2 or 1.
    pub size: usize,
    /// Samples of the component in the whole image, as scaled.
    pub width: usize,
    pub height: usize,
    /// Pixels for a sample.
    pub across: usize,
    pub down: usize,
    /// Samples between neighbours are interpolated.
    pub smooth: bool,
    /// Offset of the part's rows in the ring, and samples from row to row.
    offset: usize,
    pub stride: usize,
    /// Rows less one; their number is a power of two.
    mask: usize,
    /// First column in the ring.
    pub column: usize,
}

impl ComponentPlan {
    /// Samples that an MCU is wide and high.
    pub fn mcu_width(&self) -> usize {
        self.component.horizontal * self.size
    }

    pub fn mcu_height(&self) -> usize {
        self.component.vertical * self.size
    }

    /// Offset in the ring of the sample in row `y` and the first column that is kept.
    pub fn at(&self, y: usize) -> usize {
        self.offset + (y & self.mask) * self.stride
    }

    /// The two rows of samples that row `y` of pixels lies between, the nearer one first.
    pub fn rows(&self, y: usize) -> (usize, usize) {
        let near = y / self.down;
        match (self.smooth && self.down == 2, y % 2) {
            (false, _) => (near, near),
            (true, 0) => (near, near.saturating_sub(1)),
            (true, _) => (near, (near + 1).min(self.height - 1)),
        }
    }

    /// The columns, or rows, of samples that pixels need. `factor` pixels share one; `limit`: how many there are.
    fn needed(&self, pixels: &Range<usize>, factor: usize, limit: usize) -> Range<usize> {
        let margin = usize::from(self.smooth && factor == 2);
        let (first, last) = (pixels.start / factor, (pixels.end - 1) / factor);
        first.saturating_sub(margin)..(last + 1 + margin).min(limit)
    }
}

/// The decoding of one region.
#[derive(Clone, Debug)]
pub(super) struct RegionPlan {
    /// Pixels of the scaled image that are given out.
    pub columns: Range<usize>,
    pub rows: Range<usize>,
    parts: [ComponentPlan; 3],
    count: usize,
    /// MCUs in a row of the whole image.
    pub mcus_across: usize,
    /// MCUs that are decoded.
    pub mcu_columns: Range<usize>,
    pub mcu_rows: Range<usize>,
    /// Pixels of the scaled image that an MCU is high.
    pub mcu_height: usize,
    /// Bytes of the ring.
    pub ring: usize,
}

/// Bytes behind a row that code for vectors may touch.
const PADDING: usize = 64;

impl RegionPlan {
    /// # Errors
    ///
    /// The region is empty or not inside of the image.
    pub fn new(headers: &Headers<'_>, region: PixelRegion, scale: Scale) -> Result<RegionPlan, JpegError> {
        if !region.fits(headers.width as u32, headers.height as u32) {
            return Err(JpegError::Invalid("a region that is empty or not inside of the image"));
        }
        let by = scale.divisor();
        let reduced = |start: u32, size: u32| start as usize / by..((start + size) as usize).div_ceil(by);
        let (columns, rows) = (reduced(region.left, region.width), reduced(region.top, region.height));
        let components = headers.components();
        let luma = components[0];
        let count = components.len();
        let mut parts = [0, 1, 2].map(|i| ComponentPlan::new(headers, components[i.min(count - 1)], luma, 8 / by));
        let mcus_of = |part: &ComponentPlan| {
            let across = part.needed(&columns, part.across, part.width);
            let down = part.needed(&rows, part.down, part.height);
            (divide(across, part.mcu_width()), divide(down, part.mcu_height()))
        };
        let (mut mcu_columns, mut mcu_rows) = mcus_of(&parts[0]);
        for part in &parts[1..count] {
            let (across, down) = mcus_of(part);
            (mcu_columns, mcu_rows) = (hull(mcu_columns, across), hull(mcu_rows, down));
        }
        let mut ring = 0;
        for part in &mut parts[..count] {
            part.column = mcu_columns.start * part.mcu_width();
            // An odd number of blocks is decoded as an even one.
            part.stride = (mcu_columns.len() * part.mcu_width() + part.size).next_multiple_of(PADDING);
            part.mask = 2 * part.mcu_height() - 1;
            part.offset = ring;
            ring += (part.mask + 1) * part.stride;
        }
        let mcus_across = headers.width.div_ceil(8 * luma.horizontal);
        let mcu_height = parts[0].mcu_height();
        Ok(RegionPlan {
            columns,
            rows,
            parts,
            count,
            mcus_across,
            mcu_columns,
            mcu_rows,
            mcu_height,
            ring: ring + PADDING,
        })
    }

    pub fn parts(&self) -> &[ComponentPlan] {
        &self.parts[..self.count]
    }

    /// Rows of pixels, from the first of the image on, that can be made once row `mcu_row` of MCUs is decoded.
    pub fn ready(&self, mcu_row: usize) -> usize {
        if mcu_row + 1 >= self.mcu_rows.end {
            return self.rows.end;
        }
        let waiting = self.parts().iter().any(|p| p.smooth && p.down == 2);
        ((mcu_row + 1) * self.mcu_height - usize::from(waiting)).min(self.rows.end)
    }

    /// Number of the first MCU from `mcu` on that is decoded; none is after the last one.
    pub fn next_needed(&self, mcu: usize) -> usize {
        let (row, column) = (mcu / self.mcus_across, mcu % self.mcus_across);
        let first = |row: usize| row * self.mcus_across + self.mcu_columns.start;
        if row < self.mcu_rows.start {
            first(self.mcu_rows.start)
        } else if column >= self.mcu_columns.end {
            first(row + 1)
        } else {
            mcu.max(first(row))
        }
    }

    /// Number of the MCU behind the last one that is decoded.
    pub fn end(&self) -> usize {
        (self.mcu_rows.end - 1) * self.mcus_across + self.mcu_columns.end
    }
}

impl ComponentPlan {
    fn new(headers: &Headers<'_>, component: Component, luma: Component, least: usize) -> ComponentPlan {
        let (mut across, mut down) = (luma.horizontal / component.horizontal, luma.vertical / component.vertical);
        let mut size = least;
        // As in libjpeg, less reduction takes the place of upsampling.
        while size < 8 && across == 2 && down == 2 {
            (size, across, down) = (size * 2, 1, 1);
        }
        let samples = |pixels: usize, factor: usize, most: usize| (pixels * factor * size).div_ceil(most * 8);
        let width = samples(headers.width, component.horizontal, luma.horizontal);
        let height = samples(headers.height, component.vertical, luma.vertical);
        let smooth = least > 1 && (across == 1 || width > 2);
        let (offset, stride, mask, column) = (0, 0, 0, 0);
        ComponentPlan { component, size, width, height, across, down, smooth, offset, stride, mask, column }
    }
}

/// The MCUs in which needed samples lie, of which an MCU has `size`.
fn divide(needed: Range<usize>, size: usize) -> Range<usize> {
    needed.start / size..(needed.end - 1) / size + 1
}

fn hull(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    a.start.min(b.start)..a.end.max(b.end)
}

/// How much smaller an image is decoded. A reduced pixel is about the mean of the pixels that it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    /// The size of the file.
    #[default]
    Full,
    /// Half the width and height.
    Half,
    /// A quarter of the width and height.
    Quarter,
    /// An eighth of the width and height.
    Eighth,
}

impl Scale {
    /// The greatest reduction whose divisor is at most `limit`.
    pub fn of_at_most(limit: f64) -> Scale {
        let all = [Scale::Eighth, Scale::Quarter, Scale::Half];
        all.into_iter().find(|scale| scale.divisor() as f64 <= limit).unwrap_or(Scale::Full)
    }

    /// Pixels of the file, in width and in height, that become one.
    pub fn divisor(self) -> usize {
        match self {
            Scale::Full => 1,
            Scale::Half => 2,
            Scale::Quarter => 4,
            Scale::Eighth => 8,
        }
    }
}
