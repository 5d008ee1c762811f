//! What `--help` says beyond the options: groups of commands, and examples of each.

use std::fmt::Write;

use clap::Command;
use clap::builder::StyledStr;

/// What is said about a command.
struct CommandHelp {
    name: &'static str,
    /// Command lines, and what they do.
    examples: &'static [(&'static str, &'static str)],
}

const fn command(name: &'static str, examples: &'static [(&'static str, &'static str)]) -> CommandHelp {
    CommandHelp { name, examples }
}

/// The commands by what they are for.
const GROUPS: [(&str, &[CommandHelp]); 5] = [
    (
        "Run and measure",
        &[
            command(
                "run",
                &[
                    ("tensorc run model.onnx", "on random inputs, dimensions that are open being 1"),
                    ("tensorc run model.onnx --input in.npz --output out.npz", "on arrays, and save the results"),
                    (
                        "tensorc run net-symbol.json --params net-0000.params --shape data=1,3,224,224",
                        "a network of MXNet",
                    ),
                ],
            ),
            command(
                "bench",
                &[
                    ("tensorc bench model.onnx --shape batch=8", "compile time and latency with a batch of 8"),
                    ("tensorc bench model.onnx --threads 1 --profile", "with the time of every step"),
                    ("tensorc bench model.onnx --callers 4 --json", "called by four threads at once, as JSON"),
                ],
            ),
        ],
    ),
    (
        "Compile",
        &[
            command(
                "compile",
                &[
                    ("tensorc compile model.onnx -o model --emit=exe", "a program that reads .npy files"),
                    (
                        "tensorc compile model.onnx -o model --emit=static-lib --shape batch=1..8 --weights=embed",
                        "a library with a C header, for batches of 1 to 8",
                    ),
                    (
                        "tensorc compile model.onnx -o model --emit=obj --target=x86_64-v3",
                        "an object for processors with AVX2",
                    ),
                ],
            ),
            command(
                "quantize",
                &[
                    (
                        "tensorc quantize model.onnx --calibrate images -o int8.onnx",
                        "activations and weights as bytes, with scales from the files in images",
                    ),
                    (
                        "tensorc quantize model.onnx --calibrate in.npz -o int8.onnx --method entropy --keep /head/Conv",
                        "ranges of least divergence; one node stays in f32",
                    ),
                    (
                        "tensorc quantize model.onnx --calibrate in.npz -o int4.onnx --mode weights --bits 4",
                        "weights alone, with 4 bits",
                    ),
                ],
            ),
        ],
    ),
    (
        "Look",
        &[
            command(
                "inspect",
                &[
                    ("tensorc inspect model.onnx", "inputs, outputs, operators, arithmetic and memory"),
                    (
                        "tensorc inspect model.onnx --shape batch=8 --memory plan.svg",
                        "with a drawing of the memory plan",
                    ),
                    ("tensorc inspect model.so", "what is in a compiled model"),
                ],
            ),
            command(
                "report",
                &[
                    ("tensorc report model.onnx -o model.html", "graph, kernels with their times, memory and passes"),
                    (
                        "tensorc report model.onnx -o model.html --no-measure",
                        "without times: the same bytes every time",
                    ),
                ],
            ),
            command(
                "diff",
                &[
                    ("tensorc diff a.onnx b.onnx --input in.npz", "the first node whose values differ"),
                    (
                        "tensorc diff model.onnx --b=--fast-math -o diff.html",
                        "one model compiled in two ways, as a page",
                    ),
                ],
            ),
            command(
                "opt",
                &[
                    ("tensorc opt model.onnx --to=fuse --shape batch=1", "the graph after fusion"),
                    (
                        "tensorc opt graph.tc --passes=infer,decompose,simplify --print-changed",
                        "some passes, one by one",
                    ),
                    ("tensorc opt model.onnx --to=asm --shape batch=1", "assembly of the kernels"),
                ],
            ),
            command(
                "ops",
                &[
                    ("tensorc ops", "every operator"),
                    ("tensorc ops Softmax", "the operators with this in a name, here, in ONNX or in MXNet"),
                ],
            ),
        ],
    ),
    (
        "Data",
        &[
            command(
                "im2rec",
                &[
                    ("tensorc im2rec pets images --list --recursive", "pets.lst: a class for each folder in images"),
                    ("tensorc im2rec pets images --resize 256", "pets.rec and pets.idx of the images of the list"),
                ],
            ),
            command(
                "records",
                &[
                    ("tensorc records pets.rec --head 3", "the first three records"),
                    ("tensorc records pets.rec --verify", "whether every image can be decoded"),
                ],
            ),
        ],
    ),
    (
        "Help",
        &[
            command(
                "doctor",
                &[
                    ("tensorc doctor", "what this machine has, and what works on it"),
                    ("tensorc doctor --json", "the same for programs"),
                ],
            ),
            command(
                "completions",
                &[
                    ("tensorc completions bash > ~/.local/share/bash-completion/completions/tensorc", "for bash"),
                    ("tensorc completions zsh > ~/.zfunc/_tensorc", "for zsh, whose fpath has ~/.zfunc"),
                    ("tensorc completions fish > ~/.config/fish/completions/tensorc.fish", "for fish"),
                ],
            ),
            command(
                "man",
                &[
                    ("tensorc man ~/.local/share/man/man1", "the pages of all commands"),
                    ("tensorc man | man -l -", "the page of tensorc"),
                ],
            ),
        ],
    ),
];

/// Adds groups of commands and examples to the command line.
pub fn describe(command: Command) -> Command {
    let groups = groups(&command);
    let all = GROUPS.iter().flat_map(|(_, commands)| *commands);
    all.fold(command, |command, help| command.mut_subcommand(help.name, |c| c.after_help(listed(help.examples))))
        .help_template(groups)
}

/// The help of the program: its commands by group.
fn groups(command: &Command) -> StyledStr {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let width = GROUPS.iter().flat_map(|(_, commands)| *commands).map(|help| help.name.len()).max().unwrap_or(0);
    let mut text = StyledStr::new();
    let mut put = |line: String| {
        let _ = text.write_str(&line);
    };
    put("{about}\n\n{usage-heading} {usage}\n".to_owned());
    for (title, commands) in GROUPS {
        put(format!("\n{header}{title}:{header:#}\n"));
        for help in commands {
            let about = command.find_subcommand(help.name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            put(format!("  {literal}{:width$}{literal:#}  {about}\n", help.name));
        }
    }
    put(format!("\n{header}Options:{header:#}\n{{options}}\n\n"));
    put(format!("{literal}tensorc COMMAND --help{literal:#} describes a command with examples.\n"));
    text
}

/// The examples of a command.
pub fn examples(name: &str) -> &'static [(&'static str, &'static str)] {
    let mut all = GROUPS.iter().flat_map(|(_, commands)| *commands);
    all.find(|help| help.name == name).map_or(&[], |help| help.examples)
}

fn listed(examples: &[(&str, &str)]) -> String {
    let lines = examples.iter().map(|(line, what)| format!("  {line}\n      {what}\n"));
    format!("Examples:\n{}", lines.collect::<String>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_has_a_group_and_examples_that_parse() {
        let command = crate::command();
        let known: BTreeSet<&str> = command.get_subcommands().map(Command::get_name).collect();
        let mut described = BTreeSet::new();
        for help in GROUPS.iter().flat_map(|(_, commands)| *commands) {
            assert!(described.insert(help.name), "{} stands twice", help.name);
            assert!(!help.examples.is_empty());
            for (line, what) in help.examples {
                let words: Vec<&str> = line.split(['>', '|']).next().unwrap().split_whitespace().collect();
                assert_eq!(words[1], help.name, "{line}");
                let parsed = command.clone().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(!what.is_empty());
            }
        }
        assert_eq!(described, known);
    }
}
