//! Readers, writers and loaders of data. What measures the memory of the process is a program of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapters;
mod array_formats;
mod image;
mod images;
mod jpeg;
mod loader;
mod record;
mod record_damage;
mod record_parts;
mod text_formats;
