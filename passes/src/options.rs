//! What a user may choose about a compilation.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_schedule::Target;
use tensorc_schedule::plan::Choices;

/// How primitives are put together into kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FusionStrategy {
    /// Every primitive is a cluster of its own.
    Off,
    /// By a fixed order of preference.
    Greedy,
    /// By cost where that improves on [`FusionStrategy::Greedy`].
    #[default]
    Alternatives,
}

impl FusionStrategy {
    /// All strategies.
    pub const ALL: [FusionStrategy; 3] = [FusionStrategy::Alternatives, FusionStrategy::Greedy, FusionStrategy::Off];

    /// The name in text forms and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            FusionStrategy::Off => "off",
            FusionStrategy::Greedy => "greedy",
            FusionStrategy::Alternatives => "alternatives",
        }
    }

    /// The inverse of [`FusionStrategy::name`].
    pub fn from_name(name: &str) -> Option<FusionStrategy> {
        FusionStrategy::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// How much memory a plan may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Bytes of intermediate tensors and of working memory for [`Options::workers`].
    Bytes(u64),
    /// Percent of what is needed without recomputing.
    Percent(u32),
}

impl Budget {
    pub(crate) fn bytes(self, needed: u64) -> u64 {
        match self {
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(percent) => {
                (u128::from(needed) * u128::from(percent) / 100).min(u128::from(u64::MAX)) as u64
            }
        }
    }
}

/// Precision of the operands of matrix products with constants on processors; sums are of f32.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// That of their types.
    #[default]
    Full,
    /// bf16 for f32, and constants are stored so; results, and everything else, stay f32.
    Bf16 {
        /// Names of nodes of the model whose products are as ever.
        keep: Arc<BTreeSet<String>>,
    },
}

/// What a user may choose about the whole compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Constant folding may make a constant this many bytes larger than the operands it replaces.
    pub fold_bytes: u64,
    /// Values of operands that decide shapes are computed at compile time up to this many bytes.
    pub static_bytes: u64,
    /// Allow rewrites that are exact in real arithmetic but round differently.
    pub reassociate: bool,
    /// Allow rewrites that contract, or ignore NaN, infinities, overflow and signs of zero.
    pub approximate: bool,
    /// Allow products of f32 to round their operands to 10 bits of fraction (tf32), as matrix units of GPUs do; only where
    /// `reassociate` is.
    pub tf32: bool,
    /// Precision of products; only where `reassociate` is.
    pub precision: Precision,
    /// Do not check values that operators demand: an index that is out of range is clamped to its axis, and an integer divided by zero
    /// gives zero.
    pub clamp_indices: bool,
    /// Rewrite primitives into cheaper ones.
    pub rewrite: bool,
    /// What kernels are made for.
    pub target: Target,
    /// How primitives are put together into kernels.
    pub fuse: FusionStrategy,
    /// Compute values of the forward pass again in the backward pass until intermediate tensors and working memory
    /// fit in this; `None`: keep them.
    pub recompute: Option<Budget>,
    /// Workers whose working memory counts where passes and schedules weigh memory. The number of threads of a pool is
    /// never taken by itself: nothing that is compiled depends on it.
    pub workers: u64,
    /// Least bytes that a cluster hands on for a part of the batch, where it runs part by part to save memory.
    pub slice_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fold_bytes: 1 << 20,
            static_bytes: 1 << 20,
            reassociate: true,
            approximate: false,
            tf32: false,
            precision: Precision::Full,
            clamp_indices: false,
            rewrite: true,
            target: Target::default(),
            fuse: FusionStrategy::default(),
            recompute: None,
            workers: 1,
            slice_bytes: 128 << 10,
        }
    }
}

impl Options {
    /// How graphs are scheduled where passes ask what a schedule would need.
    pub(crate) fn choices(&self) -> Choices {
        Choices { target: self.target, workers: self.workers, ..Choices::default() }
    }

    /// Whether images may lie otherwise than the model has them: a convolution over other layouts than planes adds in
    /// another order, and those of a GPU are products over planes.
    pub(crate) fn chooses_layouts(&self) -> bool {
        self.reassociate && !self.target.is_gpu()
    }
}

/// What a rewrite may do to the bits of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// Nothing, payloads of NaN excepted.
    Exact,
    /// It is exact in real arithmetic.
    Reassoc,
    /// It contracts, or ignores NaN, infinities, overflow or signs of zero.
    Approx,
}

impl Label {
    /// The name in text forms and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Label::Exact => "exact",
            Label::Reassoc => "reassoc",
            Label::Approx => "approx",
        }
    }
}
