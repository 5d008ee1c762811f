//! RecordIO: files of byte strings, of which any part can be read, as dmlc and MXNet write them.
//!
//! A record is stored in one or more parts. A part is the magic number, a word with the part's kind and length, that
//! many bytes, and zeros up to a multiple of four. Magic numbers inside of a payload, at multiples of four from its
//! start, are left out and the record is cut there; so a magic number at a multiple of four in a file is always the
//! head of a part, and reading can begin, or go on behind damage, anywhere.
//!
//! [`RecordWriter`] and [`Reader`] work on streams, [`RecordFile`] reads at offsets and finds where records begin, [`Index`]
//! is a file of such offsets, and [`RecordSet`] is all records of several files, or one of equal parts of them.
//! [`ImageRecord`] is the payload that holds an image with its labels.

mod file;
mod frame;
mod header;
mod index;
mod paths;
mod reader;
mod set;
mod walk;
mod writer;

pub use file::{Damage, RecordFile, Scan};
pub use frame::{MAGIC, MAX_PAYLOAD, encode};
pub use header::{ImageRecord, Labels};
pub use index::{Index, IndexEntry};
pub use reader::{Reader, Record};
pub use set::{IndexFiles, RecordSet, RecordSetOptions};
pub use walk::decode;
pub use writer::{IndexedWriter, RecordWriter};
