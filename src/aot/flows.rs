//! Branches and loops that the host runs between two parts: their bodies, compiled for what operands may be.
//!
//! A body is a model of its own, in parts if shapes in it depend on values. What it takes has the ranges of the operands. What a loop
//! carries has extents that hold in every iteration: those of its operand, those that a request states of its result, and those that
//! the body gives for them.

use std::collections::BTreeMap;

use tensorc_ir::flow::{Flow, FlowKind, Loop};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::{DType, Dim, Shape, TensorType};
use tensorc_passes::parts::{HostCall, HostOperand, number_name};

use super::division::{Divider, Division, Most};
use super::{AotRequest, ExtentRange};
use crate::error::Error;
use crate::model::Model;

/// How often extents of what a loop carries are widened to those that its body gives.
const WIDENINGS: usize = 2;

/// The bodies of a branch or loop.
pub struct HostedBodies {
    /// Two of a branch, one of a loop.
    pub bodies: Vec<Division>,
    /// What each result of a loop's body has at most: its condition, rows, and what it carries.
    pub made: Vec<Most>,
}

/// A branch or loop, and what is known of its operands.
pub struct FlowRequest<'a> {
    pub model: &'a Model,
    pub request: &'a AotRequest,
    pub call: &'a HostCall,
    pub flow: &'a Flow,
    pub most: &'a BTreeMap<Value, Most>,
}

/// What a tensor has at least and at most.
#[derive(Clone)]
struct Bounds {
    least: Vec<u64>,
    most: Most,
}

impl Bounds {
    fn row(&self) -> Bounds {
        let (least, most) = (self.least.get(1..).unwrap_or_default(), self.most.dims.get(1..).unwrap_or_default());
        Bounds { least: least.to_vec(), most: Most::of(self.most.dtype, most.to_vec()) }
    }
}

impl FlowRequest<'_> {
    /// Compiles the bodies; what results have at most.
    ///
    /// # Errors
    /// A body does not compile, or nothing says how long a result becomes.
    pub fn compile(&self, divider: &mut Divider) -> Result<(HostedBodies, Vec<(Value, Most)>), Error> {
        let operands = self.call.operands.iter().map(|operand| self.operand(operand.as_ref()));
        let operands = operands.collect::<Result<Vec<Bounds>, Error>>()?;
        let (bodies, results) = match &self.flow.kind {
            FlowKind::If => self.branch(divider, &operands)?,
            FlowKind::Loop(repeat) => self.repeated(divider, repeat, &operands)?,
        };
        let results = results.into_iter().zip(0..).map(|(most, port)| (Value { node: self.call.node, port }, most));
        Ok((bodies, results.collect()))
    }

    fn name(&self) -> &str {
        &self.model.graph().node(self.call.node).name
    }

    fn operand(&self, operand: Option<&HostOperand>) -> Result<Bounds, Error> {
        match operand {
            Some(HostOperand::Constant(data)) => {
                let dims = data.dims().to_vec();
                Ok(Bounds { least: dims.clone(), most: Most::of(data.dtype(), dims) })
            }
            Some(HostOperand::Value(v)) if self.most.contains_key(v) => {
                Ok(Bounds { least: self.least(*v), most: self.most[v].clone() })
            }
            _ => Err(Error::Internal(format!("no part computes an operand of `{}`", self.name()))),
        }
    }

    /// The least extents of a value; 0 where only a run tells.
    fn least(&self, v: Value) -> Vec<u64> {
        let graph = self.model.graph();
        let ranges = &self.request.ranges;
        let least = |dim: &Dim| match dim {
            Dim::Const(n) => *n,
            Dim::Sym(id) => ranges.get(&*graph.dims.name(*id)).map_or(0, |range| range.first),
            Dim::Open(_) => 0,
        };
        let dims = self.most[&v].dims.len();
        match graph.resolved(v).shape.dims() {
            Some(own) if graph.inputs().contains(&v.node) => own.iter().map(least).collect(),
            _ => vec![0; dims],
        }
    }

    fn branch(&self, divider: &mut Divider, operands: &[Bounds]) -> Result<(HostedBodies, Vec<Most>), Error> {
        let inputs = operands.get(1..).unwrap_or_default();
        let bodies = self.flow.bodies.iter().map(|body| self.body(divider, body, inputs));
        let bodies = bodies.collect::<Result<Vec<Division>, Error>>()?;
        let mut results = outputs(&bodies[0])?;
        for (most, other) in results.iter_mut().zip(outputs(&bodies[1])?) {
            most.widen(&other.dims);
        }
        Ok((HostedBodies { bodies, made: vec![] }, results))
    }

    fn repeated(
        &self,
        divider: &mut Divider,
        repeat: &Loop,
        operands: &[Bounds],
    ) -> Result<(HostedBodies, Vec<Most>), Error> {
        let (initial, others) = operands[usize::from(repeat.conditional)..].split_at(repeat.carried);
        let (scanned, constant) = others.split_at(repeat.scanned.len());
        let mut carried = initial.to_vec();
        for (port, bounds) in carried.iter_mut().enumerate() {
            let stated: Vec<u64> =
                (0..bounds.least.len()).map(|axis| self.stated(port, axis).map_or(0, |range| range.last)).collect();
            bounds.most.widen(&stated);
        }
        let number = Bounds { least: vec![], most: Most::of(DType::I64, vec![]) };
        let mut widened = 0;
        let (body, made) = loop {
            let rows = scanned.iter().map(Bounds::row);
            let inputs: Vec<Bounds> = std::iter::once(number.clone())
                .chain(carried.iter().cloned())
                .chain(rows)
                .chain(constant.iter().cloned())
                .collect();
            let before = divider.variants.len();
            let body = self.body(divider, &self.flow.bodies[0], &inputs)?;
            let made = outputs(&body)?;
            let Some((port, axis)) = self.grown(repeat, &carried, &made) else { break (body, made) };
            if widened == WIDENINGS {
                let name = number_name(self.name(), port as u16, axis);
                let why = "a tensor that it carries may become longer with every iteration";
                let how = format!("give --shape {name}=FIRST..LAST, which extents it may have");
                return Err(Error::Artifact(format!("`{}`: {why}: {how}", self.name())));
            }
            widened += 1;
            divider.variants.truncate(before);
            for (bounds, made) in carried.iter_mut().zip(&made[repeat.outputs()..]) {
                bounds.least = bounds.least.iter().map(|_| 0).collect();
                bounds.most.widen(&made.dims);
            }
        };
        let trips = scanned.first().and_then(|all| all.most.dims.first().copied());
        let mut results: Vec<Most> = carried.into_iter().map(|bounds| bounds.most).collect();
        for row in &made[usize::from(repeat.conditional)..repeat.outputs()] {
            let rows = trips.or_else(|| self.stated(results.len(), 0).map(|range| range.last));
            let Some(rows) = rows else {
                let name = number_name(self.name(), results.len() as u16, 0);
                let how = format!("give --shape {name}=FIRST..LAST, how many rows it may stack");
                return Err(Error::Artifact(format!("`{}`: nothing says how often it runs: {how}", self.name())));
            };
            results.push(Most::of(row.dtype, [&[rows], &row.dims[..]].concat()));
        }
        Ok((HostedBodies { bodies: vec![body], made }, results))
    }

    /// What the request says of an extent of a result.
    fn stated(&self, port: usize, axis: usize) -> Option<ExtentRange> {
        self.request.ranges.get(&number_name(self.name(), port as u16, axis)).copied()
    }

    /// A carried tensor and an axis that an iteration may make longer than a request says, or than it was.
    fn grown(&self, repeat: &Loop, carried: &[Bounds], made: &[Most]) -> Option<(usize, usize)> {
        let updated = made.get(repeat.outputs()..).unwrap_or_default();
        carried.iter().zip(updated).enumerate().find_map(|(port, (bounds, made))| {
            let mut axes = bounds.most.dims.iter().zip(&made.dims).enumerate();
            let axis = axes.find(|(axis, (n, made))| made > n && self.stated(port, *axis).is_none())?.0;
            Some((port, axis))
        })
    }

    /// A body, compiled for such inputs.
    fn body(&self, divider: &mut Divider, body: &Graph, inputs: &[Bounds]) -> Result<Division, Error> {
        let mut graph = body.clone();
        let mut ranges: BTreeMap<String, ExtentRange> = BTreeMap::new();
        let nodes: Vec<NodeId> = graph.inputs().to_vec();
        for (node, bounds) in nodes.into_iter().zip(inputs) {
            let mut ty = graph.resolved(Value { node, port: 0 });
            if ty.shape == Shape::Unranked || ty.dtype.is_none() {
                // An input that this body does not use.
                let dims = bounds.least.iter().map(|_| graph.dims.fresh(None)).collect();
                ty = TensorType { dtype: Some(bounds.most.dtype), shape: Shape::Ranked(dims) };
                graph.node_mut(node).types[0] = ty.clone();
            }
            for (dim, (least, most)) in
                ty.shape.dims().unwrap_or_default().iter().zip(bounds.least.iter().zip(&bounds.most.dims))
            {
                if let Dim::Sym(id) = dim {
                    let own = ExtentRange::all(*least, (*most).max(*least));
                    let range = ranges.entry(graph.dims.name(*id).to_string()).or_insert(own);
                    *range = ExtentRange::all(range.first.min(own.first), range.last.max(own.last));
                }
            }
        }
        for (name, range) in &self.request.ranges {
            ranges.entry(name.clone()).or_insert(*range);
        }
        let request = AotRequest { shapes: BTreeMap::new(), ranges, ..self.request.clone() };
        divider.divide(&Model::new(self.model.compiler().clone(), graph), &request, false)
    }
}

/// What the outputs of a body have at most.
fn outputs(body: &Division) -> Result<Vec<Most>, Error> {
    let most = |(name, v): &(_, Value)| {
        let most = body.most.get(v).cloned();
        most.ok_or_else(|| Error::Internal(format!("no part computes the result `{name}` of a body")))
    };
    body.graph.outputs().iter().map(most).collect()
}
