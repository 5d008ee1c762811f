//! Data loading: files of examples, and iterators that make batches of them.
//!
//! A [`Dataset`] reads any of its examples by number; a [`DataIter`] gives batches, epoch after epoch. Everything random
//! is a function of (seed, epoch, sample), and positions are explicit, so that the same batches come for any number of
//! threads and after resuming anywhere.
//!
//! ```
//! use tensorc_data::{Batches, DataIter, HostTensor};
//!
//! let data = HostTensor::from_slice(&[4, 1], &[0.0f32, 1.0, 2.0, 3.0])?;
//! let labels = HostTensor::from_slice(&[4], &[0i64, 1, 0, 1])?;
//! let mut batches = Batches::labelled(data, labels, 2)?;
//! let mut examples = 0;
//! while let Some(batch) = batches.next()? {
//!     examples += batch.data[0].dims()[0];
//! }
//! assert_eq!(examples, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

mod dataset;
mod draws;
mod error;
pub mod formats;
#[cfg(feature = "images")]
pub mod im2rec;
#[cfg(feature = "images")]
pub mod image;
#[cfg(feature = "images")]
pub mod images;
pub mod iter;
pub mod list;
mod options;
pub mod record;
mod rounding;

pub use dataset::{DataDesc, Dataset, Sample};
pub use draws::Draws;
pub use error::{Cause, DataError, ExamplePlace};
pub use iter::{Batch, Batches, DataIter, LastBatch, Loader, OnError, Position, Shuffle};
/// The tensors that batches are made of.
pub use tensorc_runtime::HostTensor;
