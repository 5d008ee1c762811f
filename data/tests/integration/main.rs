//! Readers and writers of data. What measures the memory of the process, and the loader, whose threads must keep up with
//! short pauses, are programs of their own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod array_formats;
mod image;
mod images;
mod jpeg;
mod record;
mod record_damage;
mod record_parts;
mod text_formats;
