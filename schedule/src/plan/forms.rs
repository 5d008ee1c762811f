//! How each cluster is computed, decided once for each layout of its operands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::advice;
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, NodeId};
use tensorc_ir::recipe::Recipe;

use super::flops;
use crate::access::Located;
use crate::access::in_place::in_place;
use crate::cost::work::KernelWork;
use crate::layout::Layouts;
use crate::recipe::{Form, Site, decide};
use crate::target::Target;

/// How a cluster is computed, and what its plan step says.
pub(super) struct ClusterForm {
    pub form: Form,
    /// Results of a generated kernel that may be written over operands: positions of an operand and of a result.
    pub in_place: Vec<(usize, usize)>,
    /// Floating-point operations.
    pub flops: Extent,
    /// Bytes that are read and written, in the example. A cluster may read only part of a buffer.
    pub bytes: u64,
}

/// A cluster of some primitives, and how it is computed there.
struct KnownForm {
    /// What is decided depends on: which operands are constants, where operands and results lie, and the stated recipe.
    site: (Vec<bool>, Layouts, Option<Recipe>),
    /// Keeps the address of the primitives from being used again.
    _body: Arc<Graph>,
    form: Rc<ClusterForm>,
}

/// The forms of clusters. Plans of a graph and of copies of it share them.
pub struct Forms {
    target: Target,
    /// By the address of the primitives.
    known: RefCell<BTreeMap<*const Graph, Vec<KnownForm>>>,
}

impl Forms {
    /// None are known yet.
    pub fn new(target: Target) -> Forms {
        Forms { target, known: RefCell::default() }
    }

    /// # Errors
    /// As [`decide`].
    pub(super) fn of(
        &self,
        graph: &Graph,
        node: NodeId,
        fused: &FusedCluster,
        layouts: &Layouts,
    ) -> Result<Rc<ClusterForm>> {
        let mut known = self.known.borrow_mut();
        let known = known.entry(Arc::as_ptr(&fused.body)).or_default();
        let constants = graph.args(node).into_iter().map(|v| graph.constant(v).is_some()).collect();
        let site = (constants, layouts.clone(), fused.recipe);
        if let Some(found) = known.iter().find(|known| known.site == site) {
            return Ok(found.form.clone());
        }
        let form = decide(&Site::of(graph, node, fused, layouts), &self.target)?;
        // Tiles of a contraction on a GPU are written while others are computed.
        let overlaps = self.target.is_gpu() && fused.class == FusionClass::Contract;
        let in_place = match form {
            Form::Generated(_) if !overlaps => in_place(fused.class, &Located { body: &fused.body, layouts })?,
            _ => vec![],
        };
        let (flops, bytes) = (flops(&fused.body)?, advice(|| KernelWork::of_body(&fused.body))?.moved());
        let form = Rc::new(ClusterForm { form, in_place, flops, bytes });
        known.push(KnownForm { site, _body: fused.body.clone(), form: form.clone() });
        Ok(form)
    }
}
