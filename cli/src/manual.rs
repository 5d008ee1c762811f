//! `tensorc completions` and `tensorc man`: what shells and `man` read, made of the command line's own description.

use std::fs;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::failure::CliFailure;
use super::help;
use super::output::{print, write_text};

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Args)]
pub struct ManArgs {
    /// Write the pages of all commands to this folder, which is made if need be (default: the page of tensorc, to standard output)
    folder: Option<PathBuf>,
}

pub fn completions(args: &CompletionsArgs) -> Result<(), CliFailure> {
    let mut text = vec![];
    clap_complete::generate(args.shell, &mut super::command(), "tensorc", &mut text);
    print(&String::from_utf8(text)?)
}

pub fn man(args: &ManArgs) -> Result<(), CliFailure> {
    let pages = pages()?;
    let Some(folder) = &args.folder else {
        return print(&pages.into_iter().next().map(|(_, text)| text).unwrap_or_default());
    };
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut written = String::new();
    for (name, text) in pages {
        let path = folder.join(name);
        write_text(&path, &text)?;
        written += &format!("{}\n", path.display());
    }
    print(&written)
}

/// Names and texts of the pages: that of the program, then one for each command.
fn pages() -> Result<Vec<(String, String)>, CliFailure> {
    let mut program = super::command();
    program.build();
    // Groups are for terminals: the page has its own list.
    let commands: Vec<Command> = program.get_subcommands().filter(|c| c.get_name() != "help").cloned().collect();
    let page = |name: String, command: Command| -> Result<(String, String), CliFailure> {
        let mut text = vec![];
        let command = command.after_help(Resettable::Reset);
        Man::new(command).title(name.to_uppercase()).render(&mut text)?;
        Ok((format!("{name}.1"), String::from_utf8(text)?))
    };
    let mut pages = vec![page("tensorc".to_owned(), program)?];
    for command in commands {
        let (name, examples) = (format!("tensorc-{}", command.get_name()), help::examples(command.get_name()));
        let (file, text) = page(name, command)?;
        pages.push((file, text + &section(examples)));
    }
    Ok(pages)
}

/// Examples in the language of manual pages.
fn section(examples: &[(&str, &str)]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let one = |(line, what): &(&str, &str)| format!(".TP\n\\fB{}\\fR\n{}\n", escaped(line), escaped(what));
    format!(".SH EXAMPLES\n{}", examples.iter().map(one).collect::<String>())
}
