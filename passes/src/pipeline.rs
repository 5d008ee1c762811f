//! Pipelines: which passes run, in what order, and their text form
//! `infer,simplify{reassociate=false},fuse{by=greedy}`.

use tensorc_abi::ImageLayout;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::Graph;

use crate::algebra::Algebra;
use crate::decompose::Decompose;
use crate::differentiate::Differentiate;
use crate::fold_constants::FoldConstants;
use crate::fuse::Fuse;
use crate::infer::InferTypes;
use crate::insert_checks::InsertChecks;
use crate::layout::ChooseLayout;
use crate::manager::{Pass, PassCx, run_passes};
use crate::options::{Budget, FusionStrategy};
use crate::recipes::ChooseRecipes;
use crate::recompute::Recompute;
use crate::round_products::RoundProducts;
use crate::simplify::Simplify;
use crate::slices::SliceBatch;
use crate::tabulate::Tabulate;
use crate::write_out::WriteOut;

/// Named points of the compilation, in order; `--to=fuse` stops after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompilePhase {
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
    /// The recipe of every cluster decided.
    Schedule,
    /// Clusters lowered to kernels and library calls.
    Lower,
    /// Memory planned.
    Plan,
}

impl CompilePhase {
    /// All phases, in order.
    pub const ALL: [CompilePhase; 8] = [
        CompilePhase::Import,
        CompilePhase::Type,
        CompilePhase::Simplify,
        CompilePhase::Layout,
        CompilePhase::Fuse,
        CompilePhase::Schedule,
        CompilePhase::Lower,
        CompilePhase::Plan,
    ];

    /// The name in text forms and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CompilePhase::Import => "import",
            CompilePhase::Type => "type",
            CompilePhase::Simplify => "simplify",
            CompilePhase::Layout => "layout",
            CompilePhase::Fuse => "fuse",
            CompilePhase::Schedule => "schedule",
            CompilePhase::Lower => LOWER,
            CompilePhase::Plan => "plan",
        }
    }

    /// The inverse of [`CompilePhase::name`].
    pub fn from_name(name: &str) -> Option<CompilePhase> {
        CompilePhase::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// The default compilation of an imported graph, which just-in-time and ahead-of-time compilation and `tensorc opt` run: first
/// what holds for extents that depend on symbols ([`crate::template`]), then what takes numbers.
const DEFAULT: [(CompilePhase, Stage); 17] = [
    (CompilePhase::Type, Stage::Open(|| Box::new(InferTypes))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(InsertChecks))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(Decompose))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(WriteOut))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(FoldConstants))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(Simplify::default()))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(Algebra::default()))),
    (CompilePhase::Simplify, Stage::Open(|| Box::new(Tabulate))),
    (CompilePhase::Layout, Stage::Open(|| Box::new(ChooseLayout::default()))),
    (CompilePhase::Layout, Stage::Open(|| Box::new(Simplify::default()))),
    (CompilePhase::Layout, Stage::Open(|| Box::new(RoundProducts))),
    (CompilePhase::Fuse, Stage::Open(|| Box::new(Recompute::default()))),
    (CompilePhase::Fuse, Stage::Open(|| Box::new(Fuse::default()))),
    (CompilePhase::Fuse, Stage::Closed(|| Box::new(SliceBatch::default()))),
    (CompilePhase::Schedule, Stage::Closed(|| Box::new(ChooseRecipes))),
    (CompilePhase::Lower, Stage::Lower),
    (CompilePhase::Plan, Stage::PlanMemory),
];

/// A stage of the default compilation.
#[derive(Clone, Copy)]
enum Stage {
    /// A pass of graphs whose extents may depend on symbols.
    Open(fn() -> Box<dyn Pass>),
    /// A pass that takes numbers for extents.
    Closed(fn() -> Box<dyn Pass>),
    /// [`LOWER`].
    Lower,
    /// [`PLAN_MEMORY`].
    PlanMemory,
}

/// Name of the step from clusters to kernels and a plan.
pub const LOWER: &str = "lower";
/// Name of the step that gives the buffers of a plan their places in memory.
pub const PLAN_MEMORY: &str = "plan-memory";

/// What the passes of a pipeline are followed by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Nothing: the result is a graph.
    #[default]
    Graph,
    /// [`PLAN_MEMORY`] alone, of plans that exist already.
    Replanned,
    /// [`LOWER`]: the result is kernels and a plan.
    Lowered,
    /// [`LOWER`] and [`PLAN_MEMORY`].
    Planned,
}

/// A sequence of passes, and what follows them.
#[derive(Default)]
pub struct Pipeline {
    /// The passes, in order.
    pub passes: Vec<Box<dyn Pass>>,
    /// Where the pipeline ends.
    pub end: End,
}

/// What is wrong with the text of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// A pass that does not exist.
    #[error("unknown pass `{0}`; known passes: {known}", known = known_names().join(", "))]
    UnknownPass(String),
    /// An option that the pass does not have.
    #[error("pass `{pass}` has no option `{option}`; it takes: {known}")]
    UnknownOption {
        /// The pass.
        pass: &'static str,
        /// The option.
        option: String,
        /// The options of the pass, separated by commas.
        known: String,
    },
    /// A value that the option cannot have.
    #[error("option `{option}` of pass `{pass}`: `{value}` is not a {expected}")]
    BadValue {
        /// The pass.
        pass: &'static str,
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// What the option takes.
        expected: &'static str,
    },
    /// A list of options without its end.
    #[error("pipeline text ends inside the options of `{0}`")]
    Unclosed(String),
    /// A character that does not belong there.
    #[error("unexpected `{0}` in the pipeline text")]
    Unexpected(String),
    /// Passes in an order that does not work.
    #[error("`{0}` is out of order: `{LOWER}` and `{LOWER},{PLAN_MEMORY}` stand at the end only")]
    Order(String),
}

impl From<PipelineError> for Diagnostic {
    fn from(e: PipelineError) -> Diagnostic {
        Diagnostic::new(DiagnosticCode::Pipeline, e.to_string())
    }
}

/// Options given to one pass in the text.
struct Given {
    pass: &'static str,
    /// Names with values, `true` where none is written.
    options: Vec<(String, String)>,
}

impl Given {
    fn text(&self, option: &str) -> Option<&str> {
        self.options.iter().rev().find(|(name, _)| name == option).map(|(_, value)| value.as_str())
    }

    /// An option as `parse` reads it; `expected` says what that is.
    fn read<T>(
        &self,
        option: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, PipelineError> {
        let bad = |value: &str| PipelineError::BadValue { pass: self.pass, option, value: value.into(), expected };
        self.text(option).map(|value| parse(value).ok_or_else(|| bad(value))).transpose()
    }

    fn boolean(&self, option: &'static str) -> Result<Option<bool>, PipelineError> {
        self.read(option, "truth value", |value| value.parse().ok())
    }

    fn number<T: std::str::FromStr>(&self, option: &'static str) -> Result<Option<T>, PipelineError> {
        self.read(option, "number", |value| value.parse().ok())
    }
}

struct KnownPass {
    name: &'static str,
    /// Option names.
    options: &'static [&'static str],
    build: fn(&Given) -> Result<Box<dyn Pass>, PipelineError>,
}

const KNOWN: &[KnownPass] = &[
    KnownPass { name: "infer", options: &[], build: |_| Ok(Box::new(InferTypes)) },
    KnownPass { name: "write-out", options: &[], build: |_| Ok(Box::new(WriteOut)) },
    KnownPass { name: "insert-checks", options: &[], build: |_| Ok(Box::new(InsertChecks)) },
    KnownPass { name: "decompose", options: &[], build: |_| Ok(Box::new(Decompose)) },
    KnownPass {
        name: "differentiate",
        options: &["wrt"],
        build: |given| {
            // Names of inputs, joined by `+`.
            let wrt = given.text("wrt").map(|names| names.split('+').map(String::from).collect());
            Ok(Box::new(Differentiate { wrt: wrt.unwrap_or_default() }))
        },
    },
    KnownPass { name: "fold-constants", options: &[], build: |_| Ok(Box::new(FoldConstants)) },
    KnownPass {
        name: "simplify",
        options: &["reassociate", "approximate", "rounds"],
        build: |given| {
            let mut pass = Simplify::default();
            pass.reassociate = given.boolean("reassociate")?;
            pass.approximate = given.boolean("approximate")?;
            pass.rounds = given.number("rounds")?.unwrap_or(pass.rounds);
            Ok(Box::new(pass))
        },
    },
    KnownPass {
        name: "algebra",
        options: &["reassociate"],
        build: |given| Ok(Box::new(Algebra { reassociate: given.boolean("reassociate")? })),
    },
    KnownPass {
        name: "choose-layout",
        options: &["everywhere"],
        build: |given| {
            let everywhere = given.read("everywhere", "layout: planes, blocks or last", layout)?;
            Ok(Box::new(ChooseLayout { everywhere }))
        },
    },
    KnownPass { name: "round-products", options: &[], build: |_| Ok(Box::new(RoundProducts)) },
    KnownPass { name: "tabulate", options: &[], build: |_| Ok(Box::new(Tabulate)) },
    KnownPass {
        name: "recompute",
        options: &["bytes", "percent"],
        build: |given| {
            let bytes = given.number("bytes")?.map(Budget::Bytes);
            let percent = given.number("percent")?.map(Budget::Percent);
            Ok(Box::new(Recompute { budget: bytes.or(percent) }))
        },
    },
    KnownPass {
        name: "fuse",
        options: &["by"],
        build: |given| {
            let by = given.read("by", "way to fuse: alternatives, greedy or off", FusionStrategy::from_name)?;
            Ok(Box::new(Fuse { by }))
        },
    },
    KnownPass { name: "choose-recipes", options: &[], build: |_| Ok(Box::new(ChooseRecipes)) },
    KnownPass {
        name: "slice-batch",
        options: &["least"],
        build: |given| Ok(Box::new(SliceBatch { least: given.number("least")? })),
    },
];

/// Names of the passes and steps a pipeline text may use.
pub fn known_names() -> Vec<&'static str> {
    KNOWN.iter().map(|k| k.name).chain([LOWER, PLAN_MEMORY]).collect()
}

fn layout(name: &str) -> Option<ImageLayout> {
    match name {
        "planes" => Some(ImageLayout::Nchw),
        "blocks" => Some(ImageLayout::Nchw16c),
        "last" => Some(ImageLayout::Nhwc),
        _ => None,
    }
}

impl Pipeline {
    /// The default pipeline up to and including a phase.
    pub fn to(phase: CompilePhase) -> Pipeline {
        Pipeline::of(|of, _| of <= phase)
    }

    /// The part of [`Pipeline::to`] that holds for extents that depend on symbols.
    pub fn open(phase: CompilePhase) -> Pipeline {
        Pipeline::of(|of, stage| of <= phase && matches!(stage, Stage::Open(_)))
    }

    /// What of the default pipeline follows [`Pipeline::open`].
    pub fn closed() -> Pipeline {
        Pipeline::of(|_, stage| !matches!(stage, Stage::Open(_)))
    }

    fn of(is_part: impl Fn(CompilePhase, &Stage) -> bool) -> Pipeline {
        let mut pipeline = Pipeline::default();
        for (_, stage) in DEFAULT.iter().filter(|(phase, stage)| is_part(*phase, stage)) {
            match stage {
                Stage::Open(build) | Stage::Closed(build) => pipeline.passes.push(build()),
                Stage::Lower => pipeline.end = End::Lowered,
                Stage::PlanMemory => pipeline.end = End::Planned,
            }
        }
        pipeline
    }

    /// Parses `pass{option=value,flag},pass,…`; the last may be [`LOWER`], or that and [`PLAN_MEMORY`].
    ///
    /// # Errors
    /// A name or an option is not known, or a step that ends pipelines is not at the end.
    pub fn parse(text: &str) -> Result<Pipeline, PipelineError> {
        let mut pipeline = Pipeline::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let end = rest.find([',', '{', '}']).unwrap_or(rest.len());
            let name = rest[..end].trim();
            rest = rest[end..].trim_start();
            pipeline.end = match (name, pipeline.end) {
                (LOWER, End::Graph) => End::Lowered,
                (PLAN_MEMORY, End::Lowered) => End::Planned,
                (PLAN_MEMORY, End::Graph) if pipeline.passes.is_empty() => End::Replanned,
                (LOWER | PLAN_MEMORY, _) | (_, End::Replanned | End::Lowered | End::Planned) => {
                    return Err(PipelineError::Order(name.to_string()));
                }
                _ => {
                    let known = KNOWN.iter().find(|k| k.name == name);
                    let known = known.ok_or_else(|| PipelineError::UnknownPass(name.to_string()))?;
                    let mut options = vec![];
                    if let Some(inner) = rest.strip_prefix('{') {
                        let close = inner.find('}').ok_or_else(|| PipelineError::Unclosed(name.to_string()))?;
                        options = parse_options(known, &inner[..close])?;
                        rest = inner[close + 1..].trim_start();
                    }
                    pipeline.passes.push((known.build)(&Given { pass: known.name, options })?);
                    End::Graph
                }
            };
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.is_empty() => rest,
                None => return Err(PipelineError::Unexpected(rest.chars().take(1).collect())),
            };
        }
        Ok(pipeline)
    }

    /// Runs every pass; returns whether the graph changed.
    pub fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        run_passes(&self.passes, graph, cx)
    }
}

fn parse_options(known: &KnownPass, text: &str) -> Result<Vec<(String, String)>, PipelineError> {
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
        let names = |phase| Pipeline::to(phase).passes.iter().map(|p| p.name()).collect::<Vec<_>>();
        let all = names(CompilePhase::Plan);
        assert!(names(CompilePhase::Import).is_empty());
        assert_eq!(Pipeline::parse(&all.join(",")).unwrap().passes.len(), all.len());
        for phase in CompilePhase::ALL {
            let some = names(phase);
            assert_eq!(some, all[..some.len()]);
            assert_eq!(CompilePhase::from_name(phase.name()), Some(phase));
        }
        let ends =
            [CompilePhase::Schedule, CompilePhase::Lower, CompilePhase::Plan].map(|phase| Pipeline::to(phase).end);
        assert_eq!(ends, [End::Graph, End::Lowered, End::Planned]);
    }

    #[test]
    fn steps_that_end_a_pipeline_stand_at_its_end() {
        let end = |text| Pipeline::parse(text).map(|p| p.end);
        assert_eq!(end("infer, lower"), Ok(End::Lowered));
        assert_eq!(end("lower,plan-memory"), Ok(End::Planned));
        assert_eq!(end("plan-memory"), Ok(End::Replanned));
        for text in ["lower,infer", "infer,plan-memory", "lower,lower", "plan-memory,lower"] {
            assert!(matches!(end(text), Err(PipelineError::Order(_))), "{text}");
        }
    }
}
