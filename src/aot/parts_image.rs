//! Writes the image of a model that runs in parts ([`tensorc_abi::image::parts`]): the images of its parts, and which values go from
//! one to the other.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::Plan;
use tensorc_abi::image::{MAX_RANK, call, header, hosted, number, part, parts, value};
use tensorc_ir::TensorData;
use tensorc_ir::flow::{FlowKind, Loop};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_kernels::find_words;
use tensorc_passes::parts::{HostCall, HostOperand, PartShape, SourceKind};
use tensorc_passes::results::results;

use super::AotRequest;
use super::division::{CompiledPart, Division, Most, Origin, find_op, most_of_operands};
use super::flows::HostedBodies;
use super::image::ImageWriter;
use super::weights::WeightBlock;
use crate::error::Error;

/// The most memory that values may take, in bytes.
const MAX_BYTES: u64 = 1 << 46;

/// What images of models in parts are made of.
pub struct PartsWriter<'w> {
    pub request: &'w AotRequest,
    /// The image of a part.
    pub part_image: &'w dyn Fn(&CompiledPart) -> Result<Vec<u64>, Error>,
    /// Generated kernels of the artifact.
    pub kernels: u64,
    pub block: &'w WeightBlock,
}

impl PartsWriter<'_> {
    /// The words of an image, and the bytes of memory that values and calls of the host take, and bodies of branches and loops.
    ///
    /// # Errors
    /// The host computes what artifacts do not, or values take more memory than there is.
    pub fn write(&self, division: &Division) -> Result<(Vec<u64>, u64), Error> {
        let mut w = ImageWriter::new(&self.request.name, self.block);
        let graph = &division.graph;
        let mut values =
            Values { graph, division, numbers: BTreeMap::new(), records: vec![], used: BTreeSet::new(), bytes: 0 };
        values.find_used();
        self.signature(&mut w, &values)?;
        let (mut bodies, mut body_bytes) = (vec![], 0u64);
        for flow in division.flows.values() {
            for body in &flow.bodies {
                let (image, bytes) = self.write(body)?;
                bodies.push(w.put(&image));
                body_bytes = body_bytes.saturating_add(bytes);
            }
        }
        let (mut records, mut call_words) = (vec![], 0);
        for done in &division.parts {
            let shape = &done.shape;
            let known = if records.is_empty() { 0 } else { done.names.len() as u64 };
            let mut record = vec![w.put(&(self.part_image)(done)?), known];
            for list in [&shape.inputs, &shape.outputs] {
                let list = list.iter().map(|v| values.number(*v)).collect::<Result<Vec<u64>, _>>()?;
                record.extend([list.len() as u64, w.put(&list)]);
            }
            let mut calls = vec![];
            for host in &shape.hosts {
                let (call, words) = values.call(&mut w, host)?;
                calls.extend(call);
                call_words = call_words.max(words);
            }
            record.extend([shape.hosts.len() as u64, w.put(&calls)]);
            records.extend(record);
            debug_assert_eq!(records.len() % part::WORDS, part::IMAGE);
        }
        let numbers = values.numbers_of(&mut w)?;
        let results = values.results(&mut w)?;
        let [part_table, value_table, number_table, results, body_table] =
            [&records, &values.records, &numbers, &results, &bodies].map(|words| w.put(words));
        let bytes = values.bytes.saturating_add(call_words.saturating_mul(8)).saturating_add(body_bytes);
        if bytes > MAX_BYTES {
            let why =
                "what goes from part to part takes more memory than machines have; give smaller ranges with --shape";
            return Err(Error::Artifact(format!("model `{}`: {why}", graph.name)));
        }
        let mut record = [0; parts::BODIES + 2];
        record[parts::PARTS..parts::VALUES].copy_from_slice(&[division.parts.len() as u64, part_table]);
        let count = (values.records.len() / value::WORDS) as u64;
        record[parts::VALUES..parts::NUMBERS].copy_from_slice(&[count, value_table]);
        record[parts::NUMBERS..parts::RESULTS].copy_from_slice(&[(numbers.len() / number::WORDS) as u64, number_table]);
        record[parts::RESULTS..parts::WORDS].copy_from_slice(&[results, values.bytes, call_words]);
        record[parts::BODIES..].copy_from_slice(&[bodies.len() as u64, body_table]);
        w.words[header::PARTS] = w.put(&record);
        Ok((w.finish(), bytes))
    }

    /// Writes inputs, outputs and the ranges of extents of inputs.
    fn signature(&self, w: &mut ImageWriter, values: &Values<'_>) -> Result<(), Error> {
        let graph = values.graph;
        let input = |node: &NodeId| (&*graph.node(*node).name, Value { node: *node, port: 0 });
        let inputs: Vec<(&str, Value)> = graph.inputs().iter().map(input).collect();
        let outputs = graph.outputs().iter().map(|(name, v)| (&**name, *v)).collect();
        for (at, list) in [(header::INPUTS, inputs), (header::OUTPUTS, outputs)] {
            let mut records = vec![];
            for (name, v) in &list {
                let most = values.most(*v)?;
                records.extend(w.tensor(name, most.dtype, most.dims.len()));
            }
            w.table(at, list.len(), &records);
        }
        let first = &values.division.parts[0];
        w.dims(&first.names, &first.ranges);
        w.words[header::KERNELS] = self.kernels;
        Ok(())
    }
}

/// The values of a run.
struct Values<'d> {
    graph: &'d Graph,
    division: &'d Division,
    numbers: BTreeMap<Value, u64>,
    records: Vec<u64>,
    /// Values of which more is read than extents.
    used: BTreeSet<Value>,
    /// Memory for values.
    bytes: u64,
}

impl Values<'_> {
    fn shapes(&self) -> impl Iterator<Item = &PartShape> {
        self.division.parts.iter().map(|part| &part.shape)
    }

    fn find_used(&mut self) {
        let operand = |operand: &Option<HostOperand>| match operand {
            Some(HostOperand::Value(v)) => Some(*v),
            _ => None,
        };
        let mut used: BTreeSet<Value> = self.graph.outputs().iter().map(|(_, v)| *v).collect();
        for shape in self.shapes() {
            used.extend(shape.inputs.iter().chain(&shape.outputs));
            used.extend(shape.hosts.iter().flat_map(|host| host.operands.iter().filter_map(operand)));
            // What bodies give is written whether it is read or not.
            let flows = shape.hosts.iter().filter(|host| self.division.flows.contains_key(&host.node));
            used.extend(flows.flat_map(|host| results(self.graph, host.node)));
            let elements = shape.sources.iter().filter(|source| source.kind == SourceKind::Elements);
            used.extend(elements.map(|source| source.value));
        }
        self.used = used;
    }

    /// What a value has at most.
    fn most(&self, v: Value) -> Result<Most, Error> {
        let named = || &self.graph.node(v.node).name;
        let most = self.division.most.get(&v);
        let most = most.ok_or_else(|| Error::Internal(format!("no part computes `{}`", named())))?;
        match most.dims.len() <= MAX_RANK {
            true => Ok(most.clone()),
            false => Err(Error::Artifact(format!("`{}` has more than {MAX_RANK} dimensions", named()))),
        }
    }

    /// The number of a value, which is entered if it has none.
    fn number(&mut self, v: Value) -> Result<u64, Error> {
        if let Some(number) = self.numbers.get(&v) {
            return Ok(*number);
        }
        let most = self.most(v)?;
        let is_result = self.shapes().any(|shape| shape.outputs.contains(&v));
        let input = self.graph.inputs().iter().position(|node| *node == v.node);
        let output = self.graph.outputs().iter().position(|(_, output)| *output == v).filter(|_| is_result);
        let place = match (input, output) {
            (Some(input), _) => [value::INPUT, input as u64],
            (None, Some(output)) => [value::OUTPUT, output as u64],
            _ if !self.used.contains(&v) => [value::EXTENTS, 0],
            _ => self.memory(&most),
        };
        let number = self.enter(place, &most);
        self.numbers.insert(v, number);
        Ok(number)
    }

    fn enter(&mut self, [home, at]: [u64; 2], most: &Most) -> u64 {
        let number = (self.records.len() / value::WORDS) as u64;
        self.records.extend([home, at, most.bytes, most.dtype as u64, most.dims.len() as u64]);
        number
    }

    /// A constant operand of the host.
    fn constant(&mut self, w: &mut ImageWriter, data: &TensorData) -> u64 {
        let mut words = data.dims().to_vec();
        words.extend(data.bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        let at = w.put(&words);
        let most = Most { dtype: data.dtype(), dims: data.dims().to_vec(), bytes: data.bytes().len() as u64 };
        self.enter([value::CONSTANT, at], &most)
    }

    /// The record of a call of the host, and how many words it notes what it finds in.
    fn call(&mut self, w: &mut ImageWriter, host: &HostCall) -> Result<([u64; call::WORDS], u64), Error> {
        let mut operands = vec![];
        for operand in &host.operands {
            operands.push(match operand {
                None => 0,
                Some(HostOperand::Value(v)) => self.number(*v)? + 1,
                Some(HostOperand::Constant(data)) => self.constant(w, data) + 1,
            });
        }
        let results = results(self.graph, host.node).map(|v| Ok(self.number(v)? + 1));
        let results = results.collect::<Result<Vec<u64>, Error>>()?;
        let (op, words) = match self.division.flows.get(&host.node) {
            Some(bodies) => ([call::FLOW, self.flow(w, host.node, bodies), 0], 0),
            None => {
                let most = most_of_operands(host, &self.division.most);
                let op = find_op(self.graph, host, most.first().copied().flatten().map_or(0, <[u64]>::len))?;
                (op.to_words(), find_words(op, &most))
            }
        };
        let mut record = [0; call::WORDS];
        record[call::NAME] = w.text(&self.graph.node(host.node).name);
        record[call::OP..call::OPERANDS].copy_from_slice(&op);
        record[call::OPERANDS..call::RESULTS].copy_from_slice(&[operands.len() as u64, w.put(&operands)]);
        record[call::RESULTS..].copy_from_slice(&[results.len() as u64, w.put(&results)]);
        Ok((record, words))
    }

    /// Writes the record of a branch or loop; its offset.
    fn flow(&mut self, w: &mut ImageWriter, node: NodeId, flow: &HostedBodies) -> u64 {
        let before = self.division.flows.range(..node).map(|(_, flow)| flow.bodies.len() as u64).sum::<u64>();
        let bodies: Vec<u64> = (before..).take(flow.bodies.len()).collect();
        let mut record = [0; hosted::WORDS];
        record[hosted::BODIES..hosted::CONDITIONAL].copy_from_slice(&[bodies.len() as u64, w.put(&bodies)]);
        let own = self.graph.flow(node).map(|own| (&own.kind, &own.bodies));
        if let Some((FlowKind::Loop(repeat), own_bodies)) = own {
            record[hosted::IS_LOOP] = 1;
            record[hosted::CONDITIONAL] = repeat.conditional.into();
            record[hosted::CARRIED] = repeat.carried as u64;
            let [directions, stacked] = [&repeat.scanned, &repeat.stacked]
                .map(|all| all.iter().map(|backwards| u64::from(*backwards)).collect::<Vec<u64>>());
            let made: Vec<u64> = flow.made.iter().map(|most| self.room(most)).collect();
            let carried = &flow.made[repeat.outputs()..];
            let held: Vec<u64> = carried.iter().map(|most| self.room(most)).collect();
            let rows = empty_rows(&own_bodies[0], repeat);
            for (at, list) in [
                (hosted::SCANNED, &directions),
                (hosted::MADE, &made),
                (hosted::HELD, &held),
                (hosted::NO_ROWS, &rows),
                (hosted::STACKED, &stacked),
            ] {
                record[at..at + 2].copy_from_slice(&[list.len() as u64, w.put(list)]);
            }
        }
        w.put(&record)
    }

    /// A value in memory that is none of the graph: its number, counted from 1.
    fn room(&mut self, most: &Most) -> u64 {
        let place = self.memory(most);
        self.enter(place, most) + 1
    }

    /// Memory for a value.
    fn memory(&mut self, most: &Most) -> [u64; 2] {
        let at = self.bytes;
        self.bytes = at.saturating_add(most.bytes).checked_next_multiple_of(Plan::ALIGN).unwrap_or(u64::MAX);
        [value::MEMORY, at]
    }

    /// Records of the numbers that decide shapes: open extents of inputs, then what each part makes known.
    fn numbers_of(&mut self, w: &mut ImageWriter) -> Result<Vec<u64>, Error> {
        let division = self.division;
        let Some(last) = division.parts.last() else { return Ok(vec![]) };
        let mut records = vec![];
        for (i, (name, range)) in last.names.iter().zip(&last.ranges).enumerate() {
            let Origin { value, is_element, position, saturates } = division.origins[i];
            let kind = [is_element.into(), position as u64, saturates.into()];
            records.extend([w.text(name), range.first, range.last, self.number(value)?]);
            records.extend(kind);
        }
        Ok(records)
    }

    /// The records of outputs.
    fn results(&mut self, w: &mut ImageWriter) -> Result<Vec<u64>, Error> {
        let mut records = vec![];
        for (_, v) in self.graph.outputs() {
            let most = self.most(*v)?;
            records.extend([self.number(*v)?, most.bytes, w.put(&most.dims)]);
        }
        Ok(records)
    }
}

/// The extents that rows have which no iteration computed, one row after the other: 0 where only a run tells.
fn empty_rows(body: &Graph, repeat: &Loop) -> Vec<u64> {
    let rows = body.outputs().iter().skip(repeat.conditional.into()).take(repeat.stacked.len());
    let dims = |(_, v): &(_, Value)| body.resolved(*v).shape.dims().unwrap_or_default().to_vec();
    rows.flat_map(dims).map(|dim| dim.as_const().unwrap_or(0)).collect()
}
