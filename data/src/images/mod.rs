//! Sources of images: files of records, lists and folders, with what is done to every image.

mod files;
mod mean;
mod options;
mod pipeline;
mod records;

pub use files::{IMAGE_ENDINGS, ImageFiles, folder_entries};
pub use options::{ImageOptions, ImageRecordOptions};
pub use pipeline::ImagePipeline;
pub use records::ImageRecords;
