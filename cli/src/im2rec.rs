//! `tensorc im2rec`: lists of images, and records from lists. Options are those of MXNet's `im2rec.py`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use tensorc_data::im2rec::{Color, Encoding, ListOptions, PackOptions, Packed, make_lists, pack_list};

use super::failure::{CliFailure, Usage};
use super::output::print;

#[derive(Args)]
pub struct Im2RecArgs {
    /// Where lists begin and records are written: PREFIX.lst, PREFIX.rec, PREFIX.idx
    prefix: String,
    /// The folder of the images
    root: PathBuf,
    /// Make lists instead of records
    #[arg(long, help_heading = "Lists")]
    list: bool,
    /// Endings of the names of images
    #[arg(long, num_args = 1.., default_values = [".jpeg", ".jpg", ".png"], help_heading = "Lists")]
    exts: Vec<String>,
    /// Lists that the images are divided into
    #[arg(long, default_value_t = 1, help_heading = "Lists")]
    chunks: usize,
    /// Fraction of the images for training
    #[arg(long, default_value_t = 1.0, help_heading = "Lists")]
    train_ratio: f64,
    /// Fraction of the images for testing
    #[arg(long, default_value_t = 0.0, help_heading = "Lists")]
    test_ratio: f64,
    /// Look at folders in the folder as well; each is a class, numbered in the order of their names
    #[arg(long, help_heading = "Lists")]
    recursive: bool,
    /// Leave images in the order of their names
    #[arg(long, help_heading = "Lists")]
    no_shuffle: bool,
    /// Store files as they are
    #[arg(long, help_heading = "Records")]
    pass_through: bool,
    /// Give the shorter edge this length, in pixels
    #[arg(long, default_value_t = 0, help_heading = "Records")]
    resize: u32,
    /// Cut out the middle square first
    #[arg(long, help_heading = "Records")]
    center_crop: bool,
    /// Of JPEG, 1 to 100; of PNG, compression from 1 to 9 [default: 95, of PNG 3]
    #[arg(long, help_heading = "Records")]
    quality: Option<u8>,
    /// Threads that read and encode [default: all cores]
    #[arg(long, help_heading = "Records")]
    num_thread: Option<usize>,
    /// 1 colour, 0 grey, -1 unchanged, with alpha
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(i8).range(-1..=1), help_heading = "Records")]
    color: i8,
    /// How images are stored
    #[arg(long, value_enum, default_value = ".jpg", help_heading = "Records")]
    encoding: StoredFormat,
    /// Store all labels of a list, not only the first
    #[arg(long, help_heading = "Records")]
    pack_label: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoredFormat {
    #[value(name = ".jpg")]
    Jpeg,
    #[value(name = ".png")]
    Png,
}

/// Errors that are shown; others are counted.
const MAX_SHOWN_ERRORS: usize = 20;

pub fn run(args: &Im2RecArgs) -> Result<(), CliFailure> {
    match args.list {
        true => list(args),
        false => records(args),
    }
}

fn list(args: &Im2RecArgs) -> Result<(), CliFailure> {
    let options = ListOptions {
        exts: args.exts.clone(),
        chunks: args.chunks,
        train_ratio: args.train_ratio,
        test_ratio: args.test_ratio,
        recursive: args.recursive,
        shuffle: !args.no_shuffle,
    };
    for (path, images) in make_lists(&args.prefix, &args.root, &options)? {
        print(&format!("{}: {images} images\n", path.display()))?;
    }
    Ok(())
}

fn records(args: &Im2RecArgs) -> Result<(), CliFailure> {
    let encoding = match args.encoding {
        StoredFormat::Jpeg => Encoding::Jpeg,
        StoredFormat::Png => Encoding::Png,
    };
    let options = PackOptions {
        pass_through: args.pass_through,
        resize: args.resize,
        center_crop: args.center_crop,
        quality: args.quality.unwrap_or(if encoding == Encoding::Png { 3 } else { 95 }),
        num_thread: args.num_thread.unwrap_or_else(tensorc::runtime::available_threads),
        color: match args.color {
            1 => Color::Color,
            0 => Color::Grey,
            _ => Color::Unchanged,
        },
        encoding,
        pack_label: args.pack_label,
    };
    let lists = lists_of(&args.prefix)?;
    if lists.is_empty() {
        let why = format!("there is no list {}*.lst; `--list` makes one", args.prefix);
        return Err(Usage(why).into());
    }
    for list in lists {
        let bar = bar(&list);
        let packed = pack_list(&list, &args.root, &options, |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        report(&list, &packed?)?;
    }
    Ok(())
}

/// The lists whose names begin with the prefix, or all of a folder, in the order of their names.
fn lists_of(prefix: &str) -> Result<Vec<PathBuf>, CliFailure> {
    let whole = Path::new(prefix).is_dir();
    let folder = if whole { Path::new(prefix) } else { Path::new(prefix).parent().unwrap_or(Path::new("")) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let begin = Path::new(prefix).file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let named = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut lists = vec![];
    for entry in std::fs::read_dir(folder).map_err(named)? {
        let path = entry.map_err(named)?.path();
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        if (whole || name.starts_with(&begin)) && name.ends_with(".lst") {
            lists.push(path);
        }
    }
    lists.sort();
    Ok(lists)
}

fn bar(list: &Path) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let line = "{prefix} {bar:30} {pos}/{len} images, {per_sec}, {eta} left";
    let style = ProgressStyle::with_template(line).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_prefix(list.display().to_string())
}

fn report(list: &Path, packed: &Packed) -> Result<(), CliFailure> {
    for error in packed.skipped.iter().take(MAX_SHOWN_ERRORS) {
        eprintln!("tensorc: skipped: {error}");
    }
    if packed.skipped.len() > MAX_SHOWN_ERRORS {
        eprintln!("tensorc: and {} more", packed.skipped.len() - MAX_SHOWN_ERRORS);
    }
    let (records, bytes) = (list.with_extension("rec"), HumanBytes(packed.bytes));
    print(&format!("{}: {} images, {bytes}, {} skipped\n", records.display(), packed.images, packed.skipped.len()))?;
    match packed.images {
        0 => Err(format!("{}: no image could be packed", list.display()).into()),
        _ => Ok(()),
    }
}
