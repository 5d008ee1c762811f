//! Chooses how images lie in memory: channels in planes, as models have them, or in blocks, as convolutions
//! compute fastest.
//!
//! A blocked tensor `[n, c, …]` is `[n, c / 16, …, 16]`. Convolutions with constant filters have kernels for both;
//! what lies between them can be computed either way. [`choose`] finds the cheapest assignment over the
//! whole graph, conversions included; [`rewrite`] carries it out. Nothing below this pass knows of layouts: a
//! blocked tensor is a tensor of one more axis, a conversion a view.

mod choose;
mod cut;
mod rewrite;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;

use crate::manager::{Device, Pass, PassCx};

/// Lays images out in blocks of channels where that is cheaper. Requires a decomposed graph; [`crate::simplify`]
/// should follow, to compose what views are left.
///
/// A convolution over blocks adds in another order, so the pass does nothing without
/// [`crate::Options::reassociate`], nor for a GPU, whose convolutions are products over planes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChooseLayout {
    /// Blocks wherever a kernel can compute with them, whatever it costs.
    pub everywhere: bool,
}

impl Pass for ChooseLayout {
    fn name(&self) -> &'static str {
        "choose-layout"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        if !cx.options.reassociate || cx.options.device == Device::Gpu {
            return Ok(false);
        }
        graph.remove_dead();
        let blocked = choose::blocked(graph, &cx.options.machine, self.everywhere)?;
        if blocked.is_empty() {
            return Ok(false);
        }
        rewrite::run(graph, &blocked)?;
        Ok(true)
    }
}
