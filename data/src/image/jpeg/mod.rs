//! Decoding a region of a JPEG file, at full size or reduced.
//!
//! Only the blocks of the region are transformed; what lies before it is passed over and what lies behind it is not
//! read. The pixels are those of libjpeg-turbo: its accurate integer transform, its interpolation of chroma and its
//! conversion to RGB. Files are baseline or extended sequential ones with Huffman codes and 8 bits, grey or YCbCr, in
//! one scan; others are refused as [`JpegError::Unsupported`], so that the caller can take a decoder of all kinds.

mod bits;
mod block;
mod colour;
mod huffman;
mod idct;
mod kernels;
mod markers;
mod plan;
mod rows;
mod scan;
#[cfg(target_arch = "x86_64")]
mod simd;

use super::Region;
use bits::{EMPTY, Feed, Window};
use block::Tables;
use huffman::{AcTable, DcTable};
use idct::PairTable;
use kernels::{Kernels, Portable};
use markers::{Headers, ZIGZAG};
use plan::Plan;
use scan::{Job, Work};

/// How much smaller an image is decoded. A reduced pixel is about the mean of the pixels that it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scale {
    #[default]
    Full,
    Half,
    Quarter,
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

/// What was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Pixels in a row, and rows.
    pub width: usize,
    pub height: usize,
    /// 1: grey, 3: RGB.
    pub channels: usize,
    /// The pixel of the file at which the first one begins.
    pub x: usize,
    pub y: usize,
    pub scale: Scale,
}

/// Size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
    /// 1: grey, 3: colours.
    pub channels: usize,
}

/// Why a file was not decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JpegError {
    /// A file of a kind that this decoder is not made for. It may be a good one.
    #[error("a kind of JPEG file that is not supported: {0}")]
    Unsupported(&'static str),
    /// Bytes that no decoder can use in full, or a region outside of the image.
    #[error("{0}")]
    Invalid(&'static str),
    /// More pixels than the caller allows.
    #[error("an image of {width}x{height} pixels, which is more than {limit}")]
    TooLarge { width: usize, height: usize, limit: u64 },
    /// Memory for the pixels cannot be had.
    #[error("no memory for {0} values")]
    Memory(usize),
}

/// Makes a buffer hold at least `length` values; it never shrinks.
fn grow<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> Result<(), JpegError> {
    if buffer.len() < length {
        buffer.try_reserve(length - buffer.len()).map_err(|_| JpegError::Memory(length))?;
        buffer.resize(length, T::default());
    }
    Ok(())
}

/// Reads the size of an image from the headers of its file.
///
/// # Errors
///
/// See [`JpegError`]: what comes before the size is no JPEG file, or one that [`RegionDecoder`] does not support.
pub fn read_size(bytes: &[u8]) -> Result<Size, JpegError> {
    let headers = Headers::read_size(bytes)?;
    Ok(Size { width: headers.width, height: headers.height, channels: headers.components().len() })
}

/// The code that a decoder runs.
#[derive(Clone, Copy)]
enum Tier {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(simd::Avx2),
}

impl std::fmt::Debug for RegionDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionDecoder").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// A decoder with the tables and buffers that it uses again from file to file. Once they have the size and the tables
/// of the files there are, nothing is allocated.
pub struct RegionDecoder {
    tier: Tier,
    limit: u64,
    window: Box<Window>,
    dc: Vec<DcTable>,
    ac: Vec<AcTable>,
    quantisation: [PairTable; 3],
    work: Work,
}

impl RegionDecoder {
    /// A decoder of images of at most `limit` pixels, counted before scaling and without regard to regions.
    pub fn new(limit: u64) -> RegionDecoder {
        #[cfg(target_arch = "x86_64")]
        let tier = simd::Avx2::detect().map_or(Tier::Portable, Tier::Avx2);
        #[cfg(not(target_arch = "x86_64"))]
        let tier = Tier::Portable;
        RegionDecoder::with_tier(tier, limit)
    }

    /// A decoder that uses no instructions beyond those of every machine of the architecture. Its pixels are the same.
    pub fn portable(limit: u64) -> RegionDecoder {
        RegionDecoder::with_tier(Tier::Portable, limit)
    }

    fn with_tier(tier: Tier, limit: u64) -> RegionDecoder {
        RegionDecoder {
            tier,
            limit,
            window: Box::new(EMPTY),
            dc: (0..4).map(|_| DcTable::new()).collect(),
            ac: (0..4).map(|_| AcTable::new()).collect(),
            quantisation: [[0; 128]; 3],
            work: Work::default(),
        }
    }

    /// Decodes a region of a file, or all of it, to `out`: rows of pixels of u8, RGB or grey, without padding. Of a
    /// reduced image these are the pixels that the region touches.
    ///
    /// The pixels are the same as those at their places in the whole image. What `out` held is lost, in case of an
    /// error too; it is best given back for the next file, as it is.
    ///
    /// # Errors
    ///
    /// See [`JpegError`]. Errors in the data behind the region are not found.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        region: Option<Region>,
        scale: Scale,
        out: &mut Vec<u8>,
    ) -> Result<Decoded, JpegError> {
        let headers = Headers::read(bytes)?;
        let (width, height) = (headers.width, headers.height);
        if width as u64 * height as u64 > self.limit {
            return Err(JpegError::TooLarge { width, height, limit: self.limit });
        }
        let region = region.unwrap_or(Region::all(width as u32, height as u32));
        let plan = Plan::new(&headers, region, scale)?;
        self.set_tables(&headers)?;
        self.work.reserve(&plan)?;
        let length = plan.columns.len() * plan.rows.len() * plan.parts().len();
        grow(out, length)?;
        out.truncate(length);

        let tables = [0, 1, 2].map(|i| {
            let component = plan.parts()[i.min(plan.parts().len() - 1)].component;
            Tables { dc: &self.dc[component.dc], ac: &self.ac[component.ac] }
        });
        let job = Job {
            plan: &plan,
            tables: &tables,
            quantisation: &self.quantisation,
            restart: headers.restart,
            feed: Feed::new(bytes, headers.data, &mut self.window),
            work: &mut self.work,
            out,
        };
        match self.tier {
            Tier::Portable => Portable.run(job)?,
            #[cfg(target_arch = "x86_64")]
            Tier::Avx2(kernels) => kernels.run(job)?,
        }
        let (x, y) = (plan.columns.start * scale.divisor(), plan.rows.start * scale.divisor());
        let (width, height) = (plan.columns.len(), plan.rows.len());
        Ok(Decoded { width, height, channels: plan.parts().len(), x, y, scale })
    }

    fn set_tables(&mut self, headers: &Headers<'_>) -> Result<(), JpegError> {
        for (component, pair) in headers.components().iter().zip(&mut self.quantisation) {
            self.dc[component.dc].set(headers.dc(component.dc)?)?;
            self.ac[component.ac].set(headers.ac(component.ac)?)?;
            let table = headers.quantisation(component)?;
            for (&place, &value) in ZIGZAG.iter().zip(table) {
                let at = usize::from(place / 8 * 16 + place % 8);
                // Products with coefficients wrap in 16 bits, so that only the low bits of a value count.
                (pair[at], pair[at + 8]) = (value as i16, value as i16);
            }
        }
        Ok(())
    }
}
