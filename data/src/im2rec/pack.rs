//! Records from a list of images.

use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{Cause, DataError, ExamplePlace};
use crate::image::{
    Channels, Decoder, Image, ImageFormat, ImageView, Inter, PixelRegion, Resizer, encode, shorter_edge,
};
use crate::list::{ImageList, ListEntry};
use crate::record::{ImageRecord, IndexedWriter, Labels};

/// Which channels images are stored with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// Those of the file, with transparency.
    Unchanged,
    /// One channel.
    Grey,
    /// Three channels, RGB.
    #[default]
    Color,
}

/// How images are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// JPEG.
    #[default]
    Jpeg,
    /// PNG.
    Png,
}

/// What is done to images before they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Files are stored as they are.
    pub pass_through: bool,
    /// The shorter edge gets this length, in pixels; 0 for none.
    pub resize: u32,
    /// The middle square is cut out first.
    pub center_crop: bool,
    /// Of JPEG from 1 to 100; of PNG, compression from 1 to 9.
    pub quality: u8,
    /// Threads that read and encode.
    pub num_thread: usize,
    /// The channels that images are packed with.
    pub color: Color,
    /// The format that images are encoded in.
    pub encoding: Encoding,
    /// All labels of a list are stored, not only the first.
    pub pack_label: bool,
}

impl Default for PackOptions {
    fn default() -> PackOptions {
        PackOptions {
            pass_through: false,
            resize: 0,
            center_crop: false,
            quality: 95,
            num_thread: 1,
            color: Color::default(),
            encoding: Encoding::default(),
            pack_label: false,
        }
    }
}

/// What became of a list.
#[derive(Debug, Default)]
pub struct Packed {
    /// Number of images written.
    pub images: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Images that cannot be read, which are left out, and lines of the list that are no entries.
    pub skipped: Vec<DataError>,
}

/// Images that are under way at once, for each thread.
const IN_FLIGHT: usize = 16;

/// Packs a list into records and their index beside it, with its name. `root` is the folder that paths are relative to.
/// `progress` is called with the number of images done and of all.
///
/// # Errors
/// The list cannot be read, or the records cannot be written.
pub fn pack_list(
    list: &Path,
    root: &Path,
    options: &PackOptions,
    progress: impl FnMut(u64, u64),
) -> Result<Packed, DataError> {
    let images = ImageList::read(list)?;
    let damaged = |line: &crate::list::SkippedLine| {
        DataError::at(ExamplePlace::file(list).record(line.line), Cause::Format(line.why.to_owned()))
    };
    let mut packed = pack(&images.entries, root, &list.with_extension(""), options, progress)?;
    packed.skipped.extend(images.skipped.iter().map(damaged));
    Ok(packed)
}

/// Packs images in their order into `stem`.rec and `stem`.idx; the files appear when they are complete, and not if no image
/// could be read.
///
/// # Errors
/// The quality is out of range, threads cannot be started, or the records cannot be written.
pub fn pack(
    entries: &[ListEntry],
    root: &Path,
    stem: &Path,
    options: &PackOptions,
    mut progress: impl FnMut(u64, u64),
) -> Result<Packed, DataError> {
    options.check()?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(options.num_thread.max(1)).build();
    let threads = threads.map_err(|e| DataError::options("num-thread", e.to_string()))?;
    let [records, index] = ["rec", "idx"].map(|ending| PathBuf::from(format!("{}.{ending}", stem.display())));
    let unfinished = [&records, &index].map(|path| PathBuf::from(format!("{}.part", path.display())));
    let made = write_all(&threads, entries, root, &unfinished, options, &mut progress);
    let renamed = made.and_then(|packed| {
        if packed.images == 0 {
            unfinished.iter().for_each(|path| drop(fs::remove_file(path)));
            return Ok(packed);
        }
        for (from, to) in unfinished.iter().zip([&records, &index]) {
            fs::rename(from, to).map_err(|e| DataError::io(to, e))?;
        }
        Ok(packed)
    });
    if renamed.is_err() {
        // It may be that they were not even created.
        unfinished.iter().for_each(|path| drop(fs::remove_file(path)));
    }
    renamed
}

fn write_all(
    threads: &rayon::ThreadPool,
    entries: &[ListEntry],
    root: &Path,
    [records, index]: &[PathBuf; 2],
    options: &PackOptions,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Packed, DataError> {
    let mut out = IndexedWriter::create(records, index)?;
    let mut packed = Packed::default();
    let mut done = 0;
    for some in entries.chunks(IN_FLIGHT * options.num_thread.max(1)) {
        let one = |scratch: &mut PackScratch, entry: &ListEntry| scratch.payload(entry, root, options);
        let payloads: Vec<Result<Vec<u8>, DataError>> =
            threads.install(|| some.par_iter().map_init(PackScratch::default, one).collect());
        for (entry, payload) in some.iter().zip(payloads) {
            match payload {
                Ok(payload) => {
                    out.write(entry.index, &payload)?;
                    packed.images += 1;
                    packed.bytes += payload.len() as u64;
                }
                Err(error) => packed.skipped.push(error),
            }
        }
        done += some.len() as u64;
        progress(done, entries.len() as u64);
    }
    out.finish()?;
    Ok(packed)
}

impl PackOptions {
    fn check(&self) -> Result<(), DataError> {
        let range = match self.encoding {
            Encoding::Jpeg => 1..=100,
            Encoding::Png => 1..=9,
        };
        match range.contains(&self.quality) || self.pass_through {
            true => Ok(()),
            false => Err(DataError::options("quality", format!("{} is not in {range:?}", self.quality))),
        }
    }

    fn format(&self) -> ImageFormat {
        match self.encoding {
            Encoding::Jpeg => ImageFormat::Jpeg { quality: self.quality },
            Encoding::Png => ImageFormat::Png { compression: self.quality },
        }
    }
}

/// Memory of a thread.
#[derive(Default)]
struct PackScratch {
    decoder: Decoder,
    resizer: Resizer,
    image: Image,
    resized: Image,
}

impl PackScratch {
    fn payload(&mut self, entry: &ListEntry, root: &Path, options: &PackOptions) -> Result<Vec<u8>, DataError> {
        let path = root.join(&entry.path);
        let made = fs::read(&path).map_err(Cause::from).and_then(|file| {
            let stored = if options.pass_through { file } else { self.reencode(&file, options)? };
            let labels = match &entry.labels[..] {
                [first, ..] if !options.pack_label => Labels::One(*first),
                [only] => Labels::One(*only),
                all => Labels::Values(all),
            };
            let mut payload = vec![];
            ImageRecord { labels, id: entry.index, id2: 0, image: &stored }.pack(&mut payload)?;
            Ok(payload)
        });
        made.map_err(|cause| DataError::at(ExamplePlace::file(&path).record(entry.index), cause))
    }

    fn reencode(&mut self, file: &[u8], options: &PackOptions) -> Result<Vec<u8>, Cause> {
        let PackScratch { decoder, resizer, image, resized } = self;
        let channels = match options.color {
            Color::Unchanged => Channels::Unchanged,
            Color::Grey => Channels::Grey,
            Color::Color => Channels::Rgb,
        };
        decoder.decode(file, channels, image)?;
        if options.center_crop {
            let (width, height) = (image.width(), image.height());
            let side = width.min(height);
            image.crop(PixelRegion {
                left: (width - side) / 2,
                top: (height - side) / 2,
                width: side,
                height: side,
            })?;
        }
        let mut result = &*image;
        if options.resize > 0 {
            let size = shorter_edge(image.width(), image.height(), options.resize);
            resizer.resize(image, ImageView::all(image.width(), image.height()), size, Inter::Bilinear, resized)?;
            result = resized;
        }
        let mut bytes = vec![];
        encode(result, options.format(), &mut bytes)?;
        Ok(bytes)
    }
}
