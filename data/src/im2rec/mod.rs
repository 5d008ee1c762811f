//! Making files of records from folders of images: lists, and records from lists. File names, options and order are those
//! of MXNet's `im2rec.py`.

mod lists;
mod mersenne;
mod pack;

pub use lists::{ListOptions, make_lists};
pub use pack::{Color, Encoding, PackOptions, Packed, pack, pack_list};
