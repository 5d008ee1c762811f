//! Rules about the documents: what they name exists, their links lead somewhere, every option and environment variable is
//! described, each page can be found from the front, and words are those of the field.

use std::collections::BTreeSet;

use super::*;

/// Documents outside of `docs/`, which is read whole.
const FRONT: [&str; 9] = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benches/README.md",
    "benches/gpu/README.md",
    "examples/digits/README.md",
    "filecheck/README.md",
    "python/README.md",
];

/// Documents that stay short, with the most lines they may have.
const SHORT: [(&str, usize); 3] = [("README.md", 160), ("ARCHITECTURE.md", 250), ("CONTRIBUTING.md", 120)];

/// Names of other projects, and names that programs put together.
const FOREIGN: [&str; 6] = [
    "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32",
    "Det",
    "ImageRecordIter",
    "LLVM_SYS_221_PREFIX",
    "TENSORC_CROSS_AARCH64",
    "ThreadedEnginePerDevice",
];

/// Expressions that nobody searches for, and what to say.
const WORDS: [(&str, &str); 13] = [
    ("minimal filtering", "Winograd convolution"),
    ("gpu's maker", "vendor library"),
    ("imperative door", "imperative API"),
    ("instruction-set tier", "ISA level"),
    ("tiers", "ISA levels"),
    ("stand-ins", "soft libcalls"),
    ("strips of", "vector-math calls"),
    ("by the greedy", "by greedy fusion"),
    ("dearer", "costlier"),
    ("as it lies", "a noun"),
    ("what is there", "a noun"),
    ("/work", "nothing: the path exists on one machine"),
    ("../shared", "nothing: the path exists on one machine"),
];

fn documents() -> Vec<(String, String)> {
    let pages = fs::read_dir(root().join("docs")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let pages = pages.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let mut paths: Vec<String> = FRONT.iter().map(|p| (*p).to_owned()).chain(pages).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The contents of code spans.
fn spans(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2)
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// `CamelCase`, or `SCREAMING_CASE` with an underscore: an identifier, whatever the sentence says.
fn is_identifier(text: &str) -> bool {
    let has = |f: fn(char) -> bool| text.chars().any(f);
    let starts_high = text.starts_with(|c: char| c.is_ascii_uppercase());
    is_name(text) && starts_high && (has(|c| c.is_ascii_lowercase()) || text.contains('_')) && text.len() > 2
}

/// Whether a code span is a path that must exist: its first folder is one of the folder's, and nothing in it stands for
/// something else, as words in capitals do.
fn is_path(span: &str, folder: &Path) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let stands_in = |part: &str| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase());
    let Some((first, _)) = span.split_once('/') else { return false };
    let ours = !["", ".", "..", "target"].contains(&first) && folder.join(first).is_dir();
    ours && span.chars().all(plain) && !span.split('/').any(stands_in)
}

/// Every word of the sources, of whatever language; this file names what need not be there.
fn words() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for extension in ["rs", "c", "h", "in", "cpp", "py", "sh", "toml"] {
        for (_, text) in files(".", extension).into_iter().filter(|(path, _)| path != "tests/tests/tidy/documents.rs") {
            found.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from));
        }
    }
    found
}

#[test]
fn documents_name_only_what_exists() {
    let words = words();
    let exists = |path: PathBuf| path.exists() || path.with_extension("rs").exists();
    let mut found = vec![];
    for (document, text) in documents() {
        let folder = root().join(Path::new(&document).parent().unwrap());
        for span in spans(&prose(&text)) {
            let homes = [root(), folder.clone()];
            let mut homes = homes.iter().filter(|home| is_path(span, home)).peekable();
            if homes.peek().is_some() && !homes.any(|home| exists(home.join(span))) {
                found.push(format!("{document}: `{span}` does not exist"));
            }
            let identifier = span.split(['(', '<']).next().unwrap_or(span);
            let last = identifier.rsplit("::").next().unwrap_or(identifier);
            let names_something = identifier.contains("::") && is_name(last) || is_identifier(identifier);
            if names_something && !words.contains(last) && !FOREIGN.contains(&last) {
                found.push(format!("{document}: `{span}` is not in the sources"));
            }
        }
    }
    assert_none("dead names in documents", &found);
}

/// The identifier that a reader of Markdown gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.split("```").step_by(2).flat_map(str::lines).filter(|l| l.starts_with('#'));
    headings.map(|l| anchor(l.trim_start_matches('#'))).collect()
}

/// Targets of links inside of the repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|t| !t.contains("://") && !t.contains(' ')).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut found = vec![];
    for (document, text) in documents() {
        let folder = Path::new(&document).parent().unwrap().to_owned();
        for link in links(&prose(&text)) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { root().join(&document) } else { root().join(&folder).join(path) };
            if !target.exists() {
                found.push(format!("{document}: {link}"));
            } else if !heading.is_empty() && !anchors(&fs::read_to_string(&target).unwrap()).contains(heading) {
                found.push(format!("{document}: {link}: no such heading"));
            }
        }
    }
    assert_none("links that lead nowhere", &found);
}

#[test]
fn every_page_is_linked_from_the_front() {
    let front = read("README.md") + &read("ARCHITECTURE.md");
    let linked: BTreeSet<&str> = links(&front).into_iter().map(|l| l.split('#').next().unwrap_or(l)).collect();
    let pages = documents().into_iter().map(|(path, _)| path).filter(|path| path.starts_with("docs/"));
    let hidden = pages.filter(|path| !linked.contains(path.as_str()));
    assert_none("pages that neither README.md nor ARCHITECTURE.md links", &hidden.collect::<Vec<_>>());
}

#[test]
fn front_pages_are_short() {
    let long = SHORT.iter().map(|(path, most)| (path, most, read(path).lines().count())).filter(|(_, m, n)| n > *m);
    let long = long.map(|(path, most, lines)| format!("{path}: {lines} lines, at most {most}"));
    assert_none("too long", &long.collect::<Vec<_>>());
}

#[test]
fn prose_uses_the_words_of_the_field() {
    let mut found = vec![];
    for (document, text) in documents() {
        let prose = prose(&text).split('`').step_by(2).collect::<Vec<_>>().join(" ");
        let prose = prose.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        let used = WORDS.iter().filter(|(word, _)| prose.contains(word));
        found.extend(used.map(|(word, instead)| format!("{document}: \"{word}\"; say {instead}")));
    }
    assert_none("private words", &found);
}

/// Long options that the fields of clap's structures declare.
fn options_of(text: &str) -> Vec<String> {
    let mut found = vec![];
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let is_long = line.starts_with("#[arg(") && line.contains("long");
        if let Some(name) = line.split("long = \"").nth(1).filter(|_| is_long) {
            found.extend(name.split('"').next().map(String::from));
        } else if is_long {
            let field = lines.find(|l| !l.starts_with(['#', '/', ')']) && l.contains(": "));
            found.extend(field.and_then(|l| l.split(':').next()).map(|f| f.replace("pub ", "").replace('_', "-")));
        }
    }
    found
}

#[test]
fn every_option_of_the_command_line_is_described() {
    let text: String = documents().into_iter().map(|(_, text)| text).collect();
    let options: BTreeSet<String> = sources("cli/src").iter().flat_map(|(_, text)| options_of(text)).collect();
    assert!(options.len() > 40, "found only {options:?}");
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
    let described = |option: &str| text.split(&format!("--{option}")).skip(1).any(ends);
    let missing = options.into_iter().filter(|option| !described(option)).map(|option| format!("--{option}"));
    assert_none("options that no document describes", &missing.collect::<Vec<_>>());
}

/// Long options in the spans of a table or a sentence: `--name`, `--name VALUE`, `--name=VALUE`.
fn options_in(text: &str) -> BTreeSet<String> {
    let named = spans(text).flat_map(|span| span.split(' ')).filter_map(|word| word.strip_prefix("--"));
    let names = named.map(|name| name.split(['=', '[', ',']).next().unwrap_or_default().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_page_of_the_command_line_has_only_options_that_exist() {
    let declared: BTreeSet<String> = sources("cli/src").iter().flat_map(|(_, text)| options_of(text)).collect();
    let text = prose(&read("docs/command-line.md"));
    // Cargo's, and those that every command has.
    let others = ["release", "features", "help", "path", "version"];
    let unknown = options_in(&text).into_iter().filter(|o| !declared.contains(o) && !others.contains(&o.as_str()));
    assert_none("options that no command has", &unknown.collect::<Vec<_>>());
}

#[test]
fn the_page_of_the_command_line_has_every_command() {
    let text = read("docs/command-line.md");
    let described: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split(['`', ' ']).next()).collect();
    let declared = read("cli/src/lib.rs");
    let commands = declared.split("enum CliCommand {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants = commands.lines().filter_map(|line| line.trim().split_once('(')).map(|(name, _)| name.to_lowercase());
    let variants: Vec<String> = variants.filter(|name| is_name(name)).collect();
    assert!(variants.len() > 8, "found only {variants:?}");
    let missing = variants.into_iter().filter(|name| !described.contains(name.as_str()));
    assert_none("commands that docs/command-line.md does not have", &missing.collect::<Vec<_>>());
}

#[test]
fn every_environment_variable_is_described() {
    let text: String = documents().into_iter().map(|(_, text)| text).collect();
    let read = |text: &str| -> Vec<String> {
        let names = text.split("\"TENSORC_").skip(1).filter_map(|rest| rest.split('"').next());
        names.filter(|n| is_name(n) && !n.starts_with("TEST_")).map(|n| format!("TENSORC_{n}")).collect()
    };
    // Set by build scripts, and prefixes of names.
    let of_the_build = ["TENSORC_CODE_VERSION", "TENSORC_RT_TARGET", "TENSORC_CROSS_"];
    let names: BTreeSet<String> = sources(".").iter().flat_map(|(_, text)| read(text)).collect();
    let names = names.into_iter().filter(|n| !of_the_build.contains(&n.as_str()));
    let missing = names.filter(|name| !text.contains(name.as_str()));
    assert_none("environment variables that no document describes", &missing.collect::<Vec<_>>());
}
