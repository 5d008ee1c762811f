//! Chooses how images lie in memory: channels in planes, as most models have them, in blocks, as convolutions
//! compute fastest, or last, as the rest of models has them.
//!
//! A tensor `[n, c, …]` in blocks is `[n, c / 16, …, 16]`, with its channels last `[n, …, c]`. Convolutions with
//! constant filters have kernels for all; what lies between them can be computed in any. [`choose`] finds
//! layouts for the whole graph; [`rewrite`] carries them out with the shapes of [`forms`]. Nothing below this pass
//! knows of layouts: a tensor in blocks is a tensor of one more axis, a conversion a view. So a transposition that a
//! model makes between its own layout and planes composes with the conversion, and nothing is left of the two.

mod choose;
mod cut;
mod forms;
mod rewrite;

use tensorc_abi::ImageLayout;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;
use tensorc_ir::prim::ConvAlgorithm;

use choose::Prices;
use tensorc_ir::extent::advice;

use crate::manager::{Pass, PassCx};

/// Algorithms of convolutions that add in f32: the sum, and faster ones.
const ALGORITHMS: [ConvAlgorithm; 3] = [ConvAlgorithm::Direct, ConvAlgorithm::WinogradF2, ConvAlgorithm::WinogradF4];

/// Lays images out where convolutions are cheapest, as long as no more bytes are moved. Requires a decomposed graph; [`crate::simplify`]
/// should follow, to compose what views are left.
///
/// Nothing is chosen where [`crate::Options::chooses_layouts`] says no.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChooseLayout {
    /// One layout wherever a kernel can compute with it, whatever it costs.
    pub everywhere: Option<ImageLayout>,
}

impl Pass for ChooseLayout {
    fn name(&self) -> &'static str {
        "choose-layout"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        if !cx.options.chooses_layouts() {
            return Ok(false);
        }
        let algorithms = if cx.options.rewrite { &ALGORITHMS[..] } else { &ALGORITHMS[..1] };
        let prices = Prices { machine: &cx.options.target.machine(), algorithms };
        graph.remove_dead();
        let choices = advice(|| choose::choices(graph, prices, self.everywhere))?;
        if choices.is_empty() {
            return Ok(false);
        }
        rewrite::run(graph, &choices)?;
        Ok(true)
    }
}
