//! Graphs with other numbers in place of extents that depend on symbols.

use std::sync::Arc;

use super::{FusedCluster, Graph, NodeKind};
use crate::extent::{Binding, Extent, Extents};
use crate::flow::{Flow, FlowKind};
use crate::index::Index;
use crate::prim::{Contraction, Prim, View};
use crate::scalar::Scalar;
use crate::tensor::TensorData;
use crate::types::{DenseType, Dim, Shape, TensorType};

impl Graph {
    /// The graph for values of the symbols that its extents depend on. Constants are shared.
    pub fn bound(&self, binding: &Binding) -> Graph {
        self.renumbered(&|n| Extent::of(binding.value(n)))
    }

    /// The graph with other numbers.
    pub fn renumbered(&self, number: &dyn Fn(Extent) -> Extent) -> Graph {
        let mut graph = self.clone();
        for node in graph.node_ids() {
            let types = graph.node(node).types.iter().map(|ty| self.dims.resolve_type(ty));
            let types = types.map(|ty| renumbered_type(&ty, number)).collect();
            let node = graph.node_mut(node);
            node.types = types;
            match &mut node.kind {
                NodeKind::Const(data) => *data = data.renumbered(number),
                NodeKind::Prim(prim) => *prim = renumbered_prim(prim, number),
                NodeKind::Fused(cluster) => {
                    let FusedCluster { class, recipe, body } = &*cluster;
                    *cluster = FusedCluster { class: *class, recipe: *recipe, body: Arc::new(body.renumbered(number)) };
                }
                NodeKind::Input | NodeKind::Op(_) => {}
            }
        }
        graph
    }
}

fn extents(all: &Extents, number: &dyn Fn(Extent) -> Extent) -> Extents {
    if all.is_open() { all.all().map(number).collect() } else { all.clone() }
}

fn renumbered_type(ty: &TensorType, number: &dyn Fn(Extent) -> Extent) -> TensorType {
    let dim = |d: &Dim| match d {
        Dim::Open(n) => Dim::of(number(*n)),
        Dim::Const(_) | Dim::Sym(_) => *d,
    };
    match &ty.shape {
        Shape::Ranked(dims) => TensorType { dtype: ty.dtype, shape: Shape::Ranked(dims.iter().map(dim).collect()) },
        Shape::Unranked => ty.clone(),
    }
}

impl TensorData {
    /// The data for values of the symbols that it depends on.
    pub fn bound(&self, binding: &Binding) -> TensorData {
        self.renumbered(&|n| Extent::of(binding.value(n)))
    }

    /// Writes the elements of [`TensorData::bound`], little-endian, to memory for all of them.
    pub fn write_bound(&self, binding: &Binding, target: &mut [u8]) {
        let size = self.dtype().size();
        for (place, n) in target.chunks_exact_mut(size).zip(self.open_elements()) {
            let bits = Scalar::from_i64(self.dtype(), binding.value(*n)).bits.to_le_bytes();
            place.copy_from_slice(&bits[..size]);
        }
    }

    fn renumbered(&self, number: &dyn Fn(Extent) -> Extent) -> TensorData {
        if !self.is_open() {
            return self.clone();
        }
        let ty = DenseType::new(self.dtype(), extents(&self.ty.dims, number));
        let elements = self.extents().into_iter().map(number).collect();
        TensorData::of_extents(ty, elements).unwrap_or_else(|| self.clone())
    }
}

fn renumbered_prim(prim: &Prim, number: &dyn Fn(Extent) -> Extent) -> Prim {
    match prim {
        Prim::View(view) => {
            let map = indices(&view.map, number);
            Prim::View(View { map, fill: view.fill }.into())
        }
        Prim::Contract(c) => Prim::Contract(
            Contraction {
                extents: extents(&c.extents, number),
                lhs: indices(&c.lhs, number),
                rhs: indices(&c.rhs, number),
                ..**c
            }
            .into(),
        ),
        Prim::Flow(flow) => {
            let bodies = flow.bodies.iter().map(|body| body.renumbered(number)).collect();
            Prim::Flow(Flow { kind: renumbered_kind(&flow.kind, number), bodies, by_host: flow.by_host }.into())
        }
        Prim::Kernel(kernel) if kernel.is_open() => Prim::Kernel(kernel.renumbered(number).into()),
        Prim::Map(_) | Prim::Reduce(_) | Prim::Gather(_) | Prim::Concat { .. } | Prim::Kernel(_) | Prim::Extern(_) => {
            prim.clone()
        }
    }
}

fn renumbered_kind(kind: &FlowKind, number: &dyn Fn(Extent) -> Extent) -> FlowKind {
    let mut kind = kind.clone();
    if let FlowKind::Loop(repeat) = &mut kind {
        repeat.trips = repeat.trips.map(number);
    }
    kind
}

fn indices(map: &[Index], number: &dyn Fn(Extent) -> Extent) -> Vec<Index> {
    map.iter().map(|index| index.renumbered(number)).collect()
}
