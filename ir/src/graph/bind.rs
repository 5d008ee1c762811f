//! A graph of numbers from one whose extents depend on symbols.

use std::sync::Arc;

use super::{FusedCluster, Graph, NodeKind};
use crate::extent::{Binding, Extent, Extents};
use crate::flow::Flow;
use crate::index::Index;
use crate::prim::{Contraction, Prim, View};
use crate::tensor::TensorData;
use crate::types::{DenseType, Dim, Shape, TensorType};

impl Graph {
    /// The graph for values of the symbols that its extents depend on. Constants are shared.
    ///
    /// The numbers of kernels that operators wrote depend on no symbols.
    pub fn bound(&self, binding: &Binding) -> Graph {
        let mut graph = self.clone();
        for node in graph.node_ids() {
            let types = graph.node(node).types.iter().map(|ty| self.dims.resolve_type(ty));
            let types = types.map(|ty| bound_type(&ty, binding)).collect();
            let node = graph.node_mut(node);
            node.types = types;
            match &mut node.kind {
                NodeKind::Const(data) if data.is_open() => *data = bound_data(data, binding),
                NodeKind::Prim(prim) => *prim = bound_prim(prim, binding),
                NodeKind::Fused(cluster) => {
                    let FusedCluster { class, recipe, body } = &*cluster;
                    *cluster = FusedCluster { class: *class, recipe: *recipe, body: Arc::new(body.bound(binding)) };
                }
                NodeKind::Input | NodeKind::Const(_) | NodeKind::Op(_) => {}
            }
        }
        graph
    }
}

fn number(n: Extent, binding: &Binding) -> Extent {
    Extent::of(binding.value(n))
}

fn extents(all: &Extents, binding: &Binding) -> Extents {
    if all.is_open() { all.all().map(|n| number(n, binding)).collect() } else { all.clone() }
}

fn bound_type(ty: &TensorType, binding: &Binding) -> TensorType {
    let dim = |d: &Dim| match d {
        Dim::Open(n) => Dim::of(number(*n, binding)),
        Dim::Const(_) | Dim::Sym(_) => *d,
    };
    match &ty.shape {
        Shape::Ranked(dims) => TensorType { dtype: ty.dtype, shape: Shape::Ranked(dims.iter().map(dim).collect()) },
        Shape::Unranked => ty.clone(),
    }
}

fn bound_data(data: &TensorData, binding: &Binding) -> TensorData {
    let ty = DenseType::new(data.dtype(), extents(&data.ty.dims, binding));
    let elements = data.extents().into_iter().map(|n| number(n, binding)).collect();
    TensorData::of_extents(ty, elements).unwrap_or_else(|| data.clone())
}

fn bound_prim(prim: &Prim, binding: &Binding) -> Prim {
    match prim {
        Prim::View(view) => {
            let map = indices(&view.map, binding);
            Prim::View(View { map, fill: view.fill }.into())
        }
        Prim::Contract(c) => Prim::Contract(
            Contraction {
                extents: extents(&c.extents, binding),
                lhs: indices(&c.lhs, binding),
                rhs: indices(&c.rhs, binding),
                ..**c
            }
            .into(),
        ),
        Prim::Flow(flow) => {
            let bodies = flow.bodies.iter().map(|body| body.bound(binding)).collect();
            Prim::Flow(Flow { kind: flow.kind.clone(), bodies }.into())
        }
        Prim::Map(_) | Prim::Reduce(_) | Prim::Gather(_) | Prim::Concat { .. } | Prim::Kernel(_) | Prim::Extern(_) => {
            prim.clone()
        }
    }
}

fn indices(map: &[Index], binding: &Binding) -> Vec<Index> {
    map.iter().map(|index| index.bound(binding)).collect()
}
