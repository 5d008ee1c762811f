//! `tensorc diff`: where the values of two models, or of one compiled in two ways, begin to differ.

use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser};
use tensorc::compare::{ComparisonRequest, Side, Tolerance, compare};
use tensorc::report::{ModelReport, ReportRequest};

use super::args::{CompileArgs, InputArgs};
use super::arrays::borrowed;
use super::failure::{CliFailure, Differs, Usage};
use super::output::print;
use super::report::{LAYERS, write};

#[derive(Args)]
pub struct DiffArgs {
    #[command(flatten)]
    inputs: InputArgs,
    /// Another model, with the same inputs; without it, the same model
    other: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArgs,
    /// An option of the first side alone, such as --a=--exact; may be repeated
    #[arg(long = "a", value_name = "OPTION", require_equals = true, allow_hyphen_values = true)]
    first: Vec<String>,
    /// An option of the second side alone, such as --b=--fast-math; may be repeated
    #[arg(long = "b", value_name = "OPTION", require_equals = true, allow_hyphen_values = true)]
    second: Vec<String>,
    /// What may differ, as a share of the largest magnitude of a tensor
    #[arg(long, value_name = "SHARE", default_value_t = Tolerance::default().relative, value_parser = tolerance)]
    rtol: f64,
    /// What may differ besides
    #[arg(long, value_name = "X", default_value_t = Tolerance::default().absolute, value_parser = tolerance)]
    atol: f64,
    /// Also write a page of the first side, with the difference of each value that was looked at
    #[arg(short, long, value_name = "HTML")]
    out: Option<PathBuf>,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 => Ok(x),
        _ => Err("write a number that is not negative".to_owned()),
    }
}

/// What may differ from one side to the other.
#[derive(Parser)]
#[command(name = "tensorc diff", no_binary_name = true)]
struct SideArgs {
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    compile: CompileArgs,
}

pub fn run(args: &DiffArgs) -> Result<(), CliFailure> {
    if args.other.is_none() && args.first.is_empty() && args.second.is_empty() {
        let why = "there is nothing to compare with: name a second model, or options of one side (--b=--fast-math)";
        return Err(Usage(why.to_owned()).into());
    }
    let (first, second) = (side(args, &args.first)?, side(args, &args.second)?);
    let (compiler, other) = (first.compile.compiler()?, second.compile.compiler()?);
    let model = first.inputs.load(&compiler)?;
    let inputs = first.inputs.arrays(&model)?;
    let own = inputs.numbers(&model)?;
    let named = borrowed(&own);
    let path = args.other.as_deref().unwrap_or_else(|| second.inputs.path());
    let other = second.inputs.at(path).load(&other)?;
    let (a, b) = (Side::of(&model, &named)?, Side::of(&other, &borrowed(&inputs.numbers(&other)?))?);
    let tolerance = Tolerance { relative: args.rtol, absolute: args.atol };
    let layers = if args.out.is_some() { LAYERS } else { 0 };
    let found = compare(&a, &b, &ComparisonRequest { tolerance, layers })?;
    let verdict = found.to_string();
    if let Some(out) = &args.out {
        let report = ModelReport::of(&model, &model.ordered(&named)?, &ReportRequest { repeat: None })?;
        let title = format!("{} compared with {}.", words(first.inputs.path(), &args.first), words(path, &args.second));
        let name = first.inputs.path().file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        write(out, &report.named(&name).with_errors(&title, &found))?;
    }
    match found.first {
        Some(_) => Err(Differs(verdict).into()),
        None => print(&format!("{verdict}\n")),
    }
}

/// The arguments of one side: its options replace the common ones; values of options that may be repeated are added to the common values.
fn side(args: &DiffArgs, options: &[String]) -> Result<SideArgs, Usage> {
    let mut side = SideArgs { inputs: args.inputs.clone(), compile: args.compile.clone() };
    let wrong = |error: clap::Error| Usage(one_line(&error.to_string()));
    let own = SideArgs::command().mut_args(without_default).try_get_matches_from(options).map_err(wrong)?;
    if own.contains_id("model") {
        return Err(Usage("--a and --b take options, as in --b=--fast-math; a second model is an argument".to_owned()));
    }
    let both: Vec<Vec<String>> = side.lists().map(std::mem::take).collect();
    side.update_from_arg_matches(&own).map_err(wrong)?;
    side.lists().zip(both).for_each(|(own, both)| drop(own.splice(..0, both)));
    Ok(side)
}

/// An argument that has no value unless it is given.
fn without_default(arg: Arg) -> Arg {
    let arg = match arg.get_action() {
        ArgAction::SetTrue => arg.action(ArgAction::Set).num_args(0).default_missing_value("true"),
        _ => arg,
    };
    arg.required(false).default_value(Resettable::Reset)
}

impl SideArgs {
    /// Options that may be repeated.
    fn lists(&mut self) -> impl Iterator<Item = &mut Vec<String>> {
        self.inputs.lists().into_iter().chain(self.compile.lists())
    }
}

/// The first line of a message of the parser.
fn one_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// A side in words.
fn words(path: &std::path::Path, options: &[String]) -> String {
    let options: String = options.iter().map(|option| format!(" {option}")).collect();
    format!("{}{options}", path.display())
}
