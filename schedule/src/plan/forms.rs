//! How each cluster of a graph is computed, decided once for each layout of its operands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusedCluster, FusionClass, Graph, NodeId};

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
    pub flops: u64,
    /// Bytes that are read and written. A cluster may read only part of a buffer.
    pub bytes: u64,
}

/// The forms of one cluster, each with the layouts of operands and results that it is for.
type LocatedForms = Vec<(Layouts, Rc<ClusterForm>)>;

/// The forms of a graph's clusters. Plans of the same graph share them.
pub(super) struct Forms {
    target: Target,
    known: RefCell<BTreeMap<NodeId, LocatedForms>>,
}

impl Forms {
    pub(super) fn new(target: Target) -> Forms {
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
        let known = known.entry(node).or_default();
        if let Some((_, found)) = known.iter().find(|(of, _)| of == layouts) {
            return Ok(found.clone());
        }
        let form = decide(&Site::of(graph, node, fused, layouts), &self.target)?;
        // Tiles of a contraction on a GPU are written while others are computed.
        let overlaps = self.target.is_gpu() && fused.class == FusionClass::Contract;
        let in_place = match form {
            Form::Generated(_) if !overlaps => in_place(fused.class, &Located { body: &fused.body, layouts })?,
            _ => vec![],
        };
        let (flops, bytes) = (flops(&fused.body)?, KernelWork::of_body(&fused.body)?.moved());
        let found = Rc::new(ClusterForm { form, in_place, flops, bytes });
        known.push((layouts.clone(), found.clone()));
        Ok(found)
    }
}
