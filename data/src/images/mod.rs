//! Sources of images: files of records, lists and folders, with what is done to every image.

mod files;
mod mean;
mod options;
mod pipeline;
mod records;

pub use files::ImageFiles;
pub(crate) use files::{IMAGE_ENDINGS, folder_entries};
pub use options::{ImageOptions, ImageRecordOptions};
pub use pipeline::ImagePipeline;
pub use records::ImageRecords;
