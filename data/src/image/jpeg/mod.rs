//! Decoding a region of a JPEG file, at full size or reduced.
//!
//! Only the blocks of the region are transformed; what lies before it is passed over and what lies behind it is not
//! read. The pixels are those of libjpeg-turbo: its accurate integer transform, its interpolation of chroma and its
//! conversion to RGB. Files are baseline or extended sequential ones with Huffman codes and 8 bits, grey or YCbCr, in
//! one scan; others are refused as [`JpegError::Unsupported`], so that the caller can take a decoder of all kinds.

mod bits;
mod block;
mod colour;
mod error;
mod huffman;
mod idct;
mod kernels;
mod markers;
mod plan;
mod rows;
mod scan;
#[cfg(target_arch = "x86_64")]
mod simd;

use super::PixelRegion;
use bits::{EMPTY, EntropyInput, UnstuffedWindow};
use block::Tables;
pub use error::JpegError;
use error::grow;
use huffman::{AcTable, DcTable};
use idct::PairTable;
use kernels::Portable;
use markers::{Headers, ZIGZAG};
use plan::RegionPlan;
pub use plan::Scale;
use scan::{ScanBuffers, ScanJob};

/// What was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Pixels in a row, and rows.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
    /// 1: grey, 3: RGB.
    pub channels: usize,
    /// The pixel of the file at which the first one begins.
    pub x: usize,
    /// The row of the first pixel in the scaled image.
    pub y: usize,
    /// The scale at which the image was decoded.
    pub scale: Scale,
}

/// Size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The width in pixels.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
    /// 1: grey, 3: colours.
    pub channels: usize,
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
enum IsaPath {
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
    path: IsaPath,
    limit: u64,
    window: Box<UnstuffedWindow>,
    dc: Vec<DcTable>,
    ac: Vec<AcTable>,
    quantisation: [PairTable; 3],
    work: ScanBuffers,
}

impl RegionDecoder {
    /// A decoder of images of at most `limit` pixels, counted before scaling and without regard to regions.
    pub fn new(limit: u64) -> RegionDecoder {
        #[cfg(target_arch = "x86_64")]
        let path = simd::Avx2::detect().map_or(IsaPath::Portable, IsaPath::Avx2);
        #[cfg(not(target_arch = "x86_64"))]
        let path = IsaPath::Portable;
        RegionDecoder::with_path(path, limit)
    }

    /// A decoder that uses no instructions beyond those of every machine of the architecture. Its pixels are the same.
    pub fn portable(limit: u64) -> RegionDecoder {
        RegionDecoder::with_path(IsaPath::Portable, limit)
    }

    fn with_path(path: IsaPath, limit: u64) -> RegionDecoder {
        RegionDecoder {
            path,
            limit,
            window: Box::new(EMPTY),
            dc: (0..4).map(|_| DcTable::new()).collect(),
            ac: (0..4).map(|_| AcTable::new()).collect(),
            quantisation: [[0; 128]; 3],
            work: ScanBuffers::default(),
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
        region: Option<PixelRegion>,
        scale: Scale,
        out: &mut Vec<u8>,
    ) -> Result<Decoded, JpegError> {
        let headers = Headers::read(bytes)?;
        let (width, height) = (headers.width, headers.height);
        if width as u64 * height as u64 > self.limit {
            return Err(JpegError::TooLarge { width, height, limit: self.limit });
        }
        let region = region.unwrap_or(PixelRegion::all(width as u32, height as u32));
        let plan = RegionPlan::new(&headers, region, scale)?;
        self.set_tables(&headers)?;
        self.work.reserve(&plan)?;
        let length = plan.columns.len() * plan.rows.len() * plan.parts().len();
        grow(out, length)?;
        out.truncate(length);

        let tables = [0, 1, 2].map(|i| {
            let component = plan.parts()[i.min(plan.parts().len() - 1)].component;
            Tables { dc: &self.dc[component.dc], ac: &self.ac[component.ac] }
        });
        let job = ScanJob {
            plan: &plan,
            tables: &tables,
            quantisation: &self.quantisation,
            restart: headers.restart,
            input: EntropyInput::new(bytes, headers.data, &mut self.window),
            work: &mut self.work,
            out,
        };
        match self.path {
            IsaPath::Portable => scan::run(Portable, job)?,
            #[cfg(target_arch = "x86_64")]
            IsaPath::Avx2(kernels) => simd::decode(kernels, job)?,
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
