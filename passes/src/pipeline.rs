//! Pipelines: which passes run, in what order, and their text form
//! `infer,simplify{reassociate=false},fuse{by=greedy}`.

use tensorc_abi::ImageLayout;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::graph::Graph;

use crate::algebra::Algebra;
use crate::decompose::Decompose;
use crate::differentiate::Differentiate;
use crate::fold_constants::FoldConstants;
use crate::fuse::{By, Fuse};
use crate::infer::InferTypes;
use crate::layout::ChooseLayout;
use crate::manager::{Pass, PassCx, run_passes};
use crate::recompute::{Budget, Recompute};
use crate::simplify::Simplify;
use crate::slices::SliceBatch;

/// Named points of the compilation, in order; `--to=fuse` stops after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The graph as the front end delivers it.
    Import,
    /// Types and shapes inferred.
    Type,
    /// Decomposed to primitives and simplified.
    Simplify,
    /// Images laid out in planes or in blocks of channels.
    Layout,
    /// Primitives grouped into clusters.
    Fuse,
    /// Clusters lowered to kernels and library calls.
    Lower,
    /// Memory planned.
    Plan,
}

impl Phase {
    pub const ALL: [Phase; 7] =
        [Phase::Import, Phase::Type, Phase::Simplify, Phase::Layout, Phase::Fuse, Phase::Lower, Phase::Plan];

    pub const fn name(self) -> &'static str {
        match self {
            Phase::Import => "import",
            Phase::Type => "type",
            Phase::Simplify => "simplify",
            Phase::Layout => "layout",
            Phase::Fuse => "fuse",
            Phase::Lower => "lower",
            Phase::Plan => "plan",
        }
    }

    /// The inverse of [`Phase::name`].
    pub fn from_name(name: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// Every graph pass of the default compilation.
pub fn default_pipeline() -> Vec<(Phase, Box<dyn Pass>)> {
    vec![
        (Phase::Type, Box::new(InferTypes)),
        (Phase::Simplify, Box::new(Decompose)),
        (Phase::Simplify, Box::new(FoldConstants)),
        (Phase::Simplify, Box::new(Simplify::default())),
        (Phase::Simplify, Box::new(Algebra::default())),
        (Phase::Layout, Box::new(ChooseLayout::default())),
        (Phase::Layout, Box::new(Simplify::default())),
        (Phase::Fuse, Box::new(Recompute::default())),
        (Phase::Fuse, Box::new(Fuse::default())),
        (Phase::Fuse, Box::new(SliceBatch::default())),
    ]
}

/// The graph passes of the default pipeline up to and including a phase.
pub fn phase_passes(to: Phase) -> Vec<Box<dyn Pass>> {
    default_pipeline().into_iter().filter(|(phase, _)| *phase <= to).map(|(_, pass)| pass).collect()
}

/// A sequence of passes.
pub struct Pipeline {
    pub passes: Vec<Box<dyn Pass>>,
}

/// What is wrong with the text of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    #[error("unknown pass `{0}`; known passes: {known}", known = known_names().join(", "))]
    UnknownPass(String),
    #[error("pass `{pass}` has no option `{option}`; it takes: {known}")]
    UnknownOption { pass: &'static str, option: String, known: String },
    #[error("option `{option}` of pass `{pass}`: `{value}` is not a {expected}")]
    BadValue { pass: &'static str, option: &'static str, value: String, expected: &'static str },
    #[error("pipeline text ends inside the options of `{0}`")]
    Unclosed(String),
    #[error("unexpected `{0}` in the pipeline text")]
    Unexpected(String),
}

impl From<PipelineError> for Diagnostic {
    fn from(e: PipelineError) -> Diagnostic {
        Diagnostic::new(Code::Pipeline, e.to_string())
    }
}

/// Options given to one pass in the text: names with values, `true` where none is written.
type Given = Vec<(String, String)>;

struct Known {
    name: &'static str,
    /// Option names.
    options: &'static [&'static str],
    build: fn(&Given) -> Result<Box<dyn Pass>, PipelineError>,
}

const KNOWN: &[Known] = &[
    Known { name: "infer", options: &[], build: |_| Ok(Box::new(InferTypes)) },
    Known { name: "decompose", options: &[], build: |_| Ok(Box::new(Decompose)) },
    Known {
        name: "differentiate",
        options: &["wrt"],
        build: |given| {
            // Names of inputs, joined by `+`.
            let wrt = given_value("wrt", given).map(|names| names.split('+').map(String::from).collect());
            Ok(Box::new(Differentiate { wrt: wrt.unwrap_or_default() }))
        },
    },
    Known { name: "fold-constants", options: &[], build: |_| Ok(Box::new(FoldConstants)) },
    Known {
        name: "simplify",
        options: &["reassociate", "approximate", "rounds"],
        build: |given| {
            let mut pass = Simplify::default();
            pass.reassociate = boolean("simplify", "reassociate", given)?;
            pass.approximate = boolean("simplify", "approximate", given)?;
            pass.rounds = number("simplify", "rounds", given)?.unwrap_or(pass.rounds);
            Ok(Box::new(pass))
        },
    },
    Known {
        name: "algebra",
        options: &["reassociate"],
        build: |given| Ok(Box::new(Algebra { reassociate: boolean("algebra", "reassociate", given)? })),
    },
    Known {
        name: "choose-layout",
        options: &["everywhere"],
        build: |given| Ok(Box::new(ChooseLayout { everywhere: layout(given)? })),
    },
    Known {
        name: "recompute",
        options: &["bytes", "percent"],
        build: |given| {
            let bytes = number("recompute", "bytes", given)?.map(Budget::Bytes);
            let percent = number("recompute", "percent", given)?.map(Budget::Percent);
            Ok(Box::new(Recompute { budget: bytes.or(percent) }))
        },
    },
    Known { name: "fuse", options: &["by"], build: |given| Ok(Box::new(Fuse { by: fusion(given)? })) },
    Known {
        name: "slice-batch",
        options: &["least"],
        build: |given| Ok(Box::new(SliceBatch { least: number("slice-batch", "least", given)? })),
    },
];

/// Names of the passes a pipeline text may use.
pub fn known_names() -> Vec<&'static str> {
    KNOWN.iter().map(|k| k.name).collect()
}

fn given_value<'g>(option: &str, given: &'g Given) -> Option<&'g str> {
    given.iter().rev().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
}

fn boolean(pass: &'static str, option: &'static str, given: &Given) -> Result<Option<bool>, PipelineError> {
    let bad = |value: &str| PipelineError::BadValue { pass, option, value: value.into(), expected: "truth value" };
    given_value(option, given).map(|v| v.parse().map_err(|_| bad(v))).transpose()
}

fn layout(given: &Given) -> Result<Option<ImageLayout>, PipelineError> {
    let bad = |value: &str| PipelineError::BadValue {
        pass: "choose-layout",
        option: "everywhere",
        value: value.into(),
        expected: "layout: planes, blocks or last",
    };
    let named = |value: &str| match value {
        "planes" => Ok(ImageLayout::Planes),
        "blocks" => Ok(ImageLayout::Blocks),
        "last" => Ok(ImageLayout::Last),
        _ => Err(bad(value)),
    };
    given_value("everywhere", given).map(named).transpose()
}

fn fusion(given: &Given) -> Result<Option<By>, PipelineError> {
    let bad = |value: &str| PipelineError::BadValue {
        pass: "fuse",
        option: "by",
        value: value.into(),
        expected: "way to fuse: alternatives, greedy or off",
    };
    given_value("by", given).map(|v| By::from_name(v).ok_or_else(|| bad(v))).transpose()
}

fn number<T: std::str::FromStr>(
    pass: &'static str,
    option: &'static str,
    given: &Given,
) -> Result<Option<T>, PipelineError> {
    let bad = |value: &str| PipelineError::BadValue { pass, option, value: value.into(), expected: "number" };
    given_value(option, given).map(|v| v.parse().map_err(|_| bad(v))).transpose()
}

impl Pipeline {
    pub fn new(passes: Vec<Box<dyn Pass>>) -> Pipeline {
        Pipeline { passes }
    }

    /// The default pipeline up to a phase.
    pub fn to(phase: Phase) -> Pipeline {
        Pipeline::new(phase_passes(phase))
    }

    /// Parses `pass{option=value,flag},pass,…`.
    pub fn parse(text: &str) -> Result<Pipeline, PipelineError> {
        let mut passes = vec![];
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find([',', '{', '}']).unwrap_or(rest.len());
            let name = rest[..end].trim();
            let known =
                KNOWN.iter().find(|k| k.name == name).ok_or_else(|| PipelineError::UnknownPass(name.to_string()))?;
            rest = rest[end..].trim_start();
            let mut given = Given::new();
            if let Some(inner) = rest.strip_prefix('{') {
                let close = inner.find('}').ok_or_else(|| PipelineError::Unclosed(name.to_string()))?;
                given = parse_options(known, &inner[..close])?;
                rest = inner[close + 1..].trim_start();
            }
            passes.push((known.build)(&given)?);
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.is_empty() => rest,
                None => return Err(PipelineError::Unexpected(rest.chars().take(1).collect())),
            };
        }
        Ok(Pipeline { passes })
    }

    /// Runs every pass; returns whether the graph changed.
    pub fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        run_passes(&self.passes, graph, cx)
    }
}

fn parse_options(known: &Known, text: &str) -> Result<Given, PipelineError> {
    let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
    parts
        .map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            let (name, value) = (name.trim(), value.trim());
            match known.options.contains(&name) {
                true => Ok((name.to_string(), value.to_string())),
                false => Err(PipelineError::UnknownOption {
                    pass: known.name,
                    option: name.to_string(),
                    known: known.options.join(", "),
                }),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<&'static str>, PipelineError> {
        Ok(Pipeline::parse(text)?.passes.iter().map(|p| p.name()).collect())
    }

    #[test]
    fn text_names_passes_and_options() {
        assert_eq!(
            names(" infer , simplify{reassociate=false, rounds=2},fuse{by=greedy}").unwrap(),
            ["infer", "simplify", "fuse"]
        );
        assert_eq!(names("").unwrap(), [""; 0]);
    }

    #[test]
    fn errors_say_what_is_known() {
        let message = names("infer,frobnicate").unwrap_err().to_string();
        assert!(message.contains("frobnicate") && message.contains("fold-constants"), "{message}");
        assert!(matches!(names("fuse{max=1}"), Err(PipelineError::UnknownOption { .. })));
        assert!(matches!(names("simplify{rounds=many}"), Err(PipelineError::BadValue { .. })));
        assert!(matches!(names("simplify{rounds=1"), Err(PipelineError::Unclosed(_))));
        assert!(matches!(names("infer}fuse"), Err(PipelineError::Unexpected(_))));
        assert!(matches!(names("infer,,fuse"), Err(PipelineError::UnknownPass(_))));
    }

    #[test]
    fn phases_are_prefixes_of_the_default_pipeline() {
        assert!(phase_passes(Phase::Import).is_empty());
        let all: Vec<_> = phase_passes(Phase::Plan).iter().map(|p| p.name()).collect();
        for phase in Phase::ALL {
            let some: Vec<_> = phase_passes(phase).iter().map(|p| p.name()).collect();
            assert_eq!(some, all[..some.len()]);
            assert_eq!(Phase::from_name(phase.name()), Some(phase));
        }
    }
}
