//! Rules about crates that others depend on: what their manifests state, that nothing in them needs the repository, and which
//! compiler they are tested with.

use super::*;

/// Folders of the crates that can be published.
fn published() -> Vec<&'static str> {
    let all = ALLOWED.iter().map(|(folder, _)| *folder).chain(JOINING);
    all.filter(|folder| !read(format!("{folder}/Cargo.toml")).contains("\npublish = false\n")).collect()
}

/// The value of a field of a section.
fn field(manifest: &str, header: &str, name: &str) -> Option<String> {
    let inside = manifest.lines().skip_while(|l| l.trim() != format!("[{header}]")).skip(1);
    let line = inside.take_while(|l| !l.starts_with('[')).find(|l| l.split(['.', ' ']).next() == Some(name))?;
    Some(line.split_once('=')?.1.trim().trim_matches('"').to_owned())
}

fn workspace(name: &str) -> String {
    field(&read("Cargo.toml"), "workspace.package", name).unwrap()
}

#[test]
fn crates_that_can_be_published_say_what_they_are() {
    let folders = published();
    assert!(folders.len() >= 17, "{folders:?}");
    let mut found = vec![];
    for folder in folders {
        let manifest = read(format!("{folder}/Cargo.toml"));
        let text = |name: &str| field(&manifest, "package", name).unwrap_or_default();
        let name = text("name");
        let expected = if folder == "." {
            "tensorc".to_owned()
        } else {
            format!("tensorc-{}", folder.rsplit('/').next().unwrap())
        };
        let count = |name: &str| field(&manifest, "package", name).map_or(0, |list| literals(&list).len());
        let rules = [
            ("its name", name == expected),
            ("a description", text("description").len() > 20 && !text("description").ends_with('.')),
            ("one to five keywords", (1..=5).contains(&count("keywords"))),
            ("categories", count("categories") > 0),
            ("its documentation", text("documentation") == format!("https://docs.rs/{name}")),
            ("a short README", (5..60).contains(&read(format!("{folder}/{}", text("readme"))).lines().count())),
            ("what is packaged", text("include").contains("/src/**")),
            ("no address of a repository", !manifest.contains("\nrepository") && !manifest.contains("\nhomepage")),
        ];
        found.extend(rules.iter().filter(|(_, holds)| !holds).map(|(rule, _)| format!("{folder}: {rule}")));
        let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| root().join(folder).join(file).is_file());
        found.extend((licences != [true; 2]).then(|| format!("{folder}: the texts of the licences")));
    }
    assert_none("manifests without", &found);
}

#[test]
fn crates_that_can_be_published_have_an_example_that_runs() {
    let runs = |text: &str| {
        let header = text.lines().take_while(|l| l.starts_with("//!"));
        let fences: Vec<&str> = header.filter_map(|l| l.strip_prefix("//! ```")).collect();
        fences.iter().step_by(2).any(|language| language.is_empty())
    };
    let silent = published().into_iter().filter(|folder| !runs(&read(format!("{folder}/src/lib.rs"))));
    assert_none("no example at the root of", &silent.map(String::from).collect::<Vec<_>>());
}

/// Published crates find each other by version, and exactly those that were tested together. What only tests need is found by path alone,
/// which packages leave out: crates whose tests need each other could never be published.
#[test]
fn crates_depend_on_each_other_by_one_version() {
    let exact = format!("version = \"={}\"", workspace("version"));
    let mut found = vec![];
    let ours =
        |line: &str| line.starts_with("tensorc-") || line.starts_with("tensorc = ") || line.starts_with("tensorc.");
    for folder in published().into_iter().chain(["rt"]) {
        let mut section = String::new();
        for line in read(format!("{folder}/Cargo.toml")).lines() {
            section = if line.starts_with('[') { line.to_owned() } else { section };
            let inherited = line.contains("workspace = true");
            let right = match section.as_str() {
                "[dependencies]" | "[build-dependencies]" => inherited || line.contains(&exact),
                "[workspace.dependencies]" => line.contains(&exact) || line.contains("path = \"tests/"),
                "[dev-dependencies]" => !inherited && !line.contains("version"),
                _ => true,
            };
            found.extend((ours(line) && !right).then(|| format!("{folder}: {section}: {line}")));
        }
    }
    let own = field(&read("rt/Cargo.toml"), "package", "version");
    found.extend((own != Some(workspace("version"))).then(|| format!("rt has the version {own:?}")));
    assert_none("dependencies that a package could not have", &found);
}

/// `src/aot` has the sources and the manifest of the run-time library for packages, in which no folder has a manifest.
#[test]
fn the_package_of_the_compiler_has_the_run_time_library() {
    for (link, file) in [("src/aot/rt", "rt/src"), ("src/aot/rt.toml", "rt/Cargo.toml")] {
        let target = fs::read_link(root().join(link)).unwrap();
        let found = fs::canonicalize(root().join(link).parent().unwrap().join(target)).unwrap();
        assert_eq!(found, fs::canonicalize(root().join(file)).unwrap());
    }
}

/// The least compiler that is promised is the one that every test runs with.
#[test]
fn the_promised_compiler_is_the_one_that_tests() {
    let toolchain = field(&read("rust-toolchain.toml"), "toolchain", "channel").unwrap();
    let promised = workspace("rust-version");
    let minor = toolchain.rsplit_once('.').unwrap().0;
    assert_eq!(minor, promised);
    assert_eq!(field(&read("rt/Cargo.toml"), "package", "rust-version"), Some(promised.clone()));
    let running = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).arg("--version").output();
    let running = String::from_utf8(running.unwrap().stdout).unwrap();
    assert!(running.starts_with(&format!("cargo {toolchain}")), "tests run with {running}");
    assert!(
        read("docs/stability.md").contains(&format!("Rust {promised}")),
        "docs/stability.md states another version"
    );
}

#[test]
fn the_changelog_has_the_present_version() {
    let text = read("CHANGELOG.md");
    let version = workspace("version");
    assert!(text.contains("## [Unreleased]") && text.contains(&format!("## [{version}]")), "{version}");
}
