//! Writing standard nodes in place of one that is imported.

use std::rc::Rc;
use std::sync::Arc;

use tensorc_ir::TensorData;

use super::error::OnnxError;
use super::functions::ScopedNode;
use super::import::Importer;
use super::load::Opsets;
use super::proto::{AttributeProto, AttributeType, NodeProto};
use super::upgrade::{ValueFacts, i64_list};

/// Adds nodes in their newest form, with names made from that of the node imported.
pub(super) struct NodeWriter<'a, 'b> {
    pub importer: &'a mut Importer<'b>,
    pub label: &'a Arc<str>,
}

impl NodeWriter<'_, '_> {
    pub fn constant(&mut self, data: TensorData) -> String {
        let name = self.importer.fresh_name(self.label);
        self.importer.define(name.clone(), data);
        name
    }

    pub fn i64s(&mut self, values: &[i64]) -> String {
        self.constant(i64_list(values))
    }

    pub fn node(&mut self, op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> Result<String, OnnxError> {
        let output = self.importer.fresh_name(self.label);
        self.node_to(op, inputs, attribute, &[&output])?;
        Ok(output)
    }

    pub fn node_to(
        &mut self,
        op: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
        outputs: &[&str],
    ) -> Result<(), OnnxError> {
        let output = outputs.iter().map(|name| (*name).to_owned()).collect();
        let node = NodeProto { attribute, output, ..NodeProto::of(op, inputs, "", Some(self.label.to_string())) };
        // Without a version nodes have the newest form.
        self.importer.node(ScopedNode { node, opsets: Rc::new(Opsets::default()) })
    }
}

/// An attribute that is a list of integers.
pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..AttributeProto::of(name, AttributeType::Ints) }
}
