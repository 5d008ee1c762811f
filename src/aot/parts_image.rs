//! Writes the image of a model that runs in parts ([`tensorc_abi::image::parts`]): the images of its parts, and which values go from
//! one to the other.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::Plan;
use tensorc_abi::image::{MAX_RANK, call, header, number, part, parts, value};
use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, Value};
use tensorc_kernels::find_words;
use tensorc_passes::parts::{HostCall, HostOperand, PartShape, SourceKind};

use super::AotRequest;
use super::division::{Division, Most, Origin, find_op, most_of_operands};
use super::image::ImageWriter;
use super::weights::WeightBlock;
use crate::error::Error;

/// The most memory that values may take, in bytes.
const MAX_BYTES: u64 = 1 << 46;

/// The words of the image, and the bytes of memory that values and calls of the host take.
///
/// # Errors
/// The host computes what artifacts do not, or values take more memory than there is.
pub fn write(
    request: &AotRequest,
    graph: &Graph,
    division: &Division,
    images: &[Vec<u64>],
    kernels: u64,
    block: &WeightBlock,
) -> Result<(Vec<u64>, u64), Error> {
    let mut w = ImageWriter::new(&request.name, block);
    let mut values =
        Values { graph, division, numbers: BTreeMap::new(), records: vec![], used: BTreeSet::new(), bytes: 0 };
    values.find_used();
    let inputs = graph.inputs().iter().map(|node| (&*graph.node(*node).name, Value { node: *node, port: 0 })).collect();
    let outputs = graph.outputs().iter().map(|(name, v)| (&**name, *v)).collect();
    for (at, list) in [(header::INPUTS, inputs), (header::OUTPUTS, outputs)] {
        let list: Vec<(&str, Value)> = list;
        let mut records = vec![];
        for (name, v) in &list {
            let most = values.most(*v)?;
            records.extend(w.tensor(name, most.dtype, most.dims.len()));
        }
        w.table(at, list.len(), &records);
    }
    let first = &division.parts[0];
    w.dims(&first.names, &first.ranges);
    w.words[header::KERNELS] = kernels;
    let (mut records, mut call_words) = (vec![], 0);
    for (done, image) in division.parts.iter().zip(images) {
        let shape = &done.shape;
        let known = if records.is_empty() { 0 } else { done.names.len() as u64 };
        let lists = [&shape.inputs, &shape.outputs];
        let mut record = vec![w.put(image), known];
        for list in lists {
            let list = list.iter().map(|v| values.number(*v)).collect::<Result<Vec<u64>, _>>()?;
            record.extend([list.len() as u64, w.put(&list)]);
        }
        let mut calls = vec![];
        for host in &shape.hosts {
            calls.extend(values.call(&mut w, host)?);
            let operands = most_of_operands(host, &division.most);
            let op = find_op(graph, host, operands.first().copied().flatten().unwrap_or_default().len())?;
            call_words = call_words.max(find_words(op, &operands));
        }
        record.extend([shape.hosts.len() as u64, w.put(&calls)]);
        records.extend(record);
        debug_assert_eq!(records.len() % part::WORDS, part::IMAGE);
    }
    let numbers = values.numbers_of(&mut w)?;
    let results = values.results(&mut w)?;
    let [part_table, value_table, number_table, results] =
        [&records, &values.records, &numbers, &results].map(|words| w.put(words));
    let bytes = values.bytes.saturating_add(call_words.saturating_mul(8));
    if bytes > MAX_BYTES {
        let why = "what goes from part to part takes more memory than machines have; give smaller ranges with --shape";
        return Err(Error::Artifact(format!("model `{}`: {why}", graph.name)));
    }
    let mut record = [0; parts::WORDS];
    record[parts::PARTS..parts::VALUES].copy_from_slice(&[division.parts.len() as u64, part_table]);
    let count = (values.records.len() / value::WORDS) as u64;
    record[parts::VALUES..parts::NUMBERS].copy_from_slice(&[count, value_table]);
    record[parts::NUMBERS..parts::RESULTS].copy_from_slice(&[(numbers.len() / number::WORDS) as u64, number_table]);
    record[parts::RESULTS..].copy_from_slice(&[results, values.bytes, call_words]);
    w.words[header::PARTS] = w.put(&record);
    Ok((w.finish(), bytes))
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
            _ => {
                let at = self.bytes;
                self.bytes = at.saturating_add(most.bytes).checked_next_multiple_of(Plan::ALIGN).unwrap_or(u64::MAX);
                [value::MEMORY, at]
            }
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

    fn call(&mut self, w: &mut ImageWriter, host: &HostCall) -> Result<[u64; call::WORDS], Error> {
        let node = self.graph.node(host.node);
        let mut operands = vec![];
        for operand in &host.operands {
            operands.push(match operand {
                None => 0,
                Some(HostOperand::Value(v)) => self.number(*v)? + 1,
                Some(HostOperand::Constant(data)) => self.constant(w, data) + 1,
            });
        }
        let mut results = vec![];
        for port in 0..node.types.len() as u16 {
            results.push(self.number(Value { node: host.node, port })? + 1);
        }
        let rank = most_of_operands(host, &self.division.most).first().copied().flatten().map_or(0, <[u64]>::len);
        let op = find_op(self.graph, host, rank)?;
        let mut record = [0; call::WORDS];
        record[call::NAME] = w.text(&node.name);
        record[call::OP..call::OPERANDS].copy_from_slice(&op.to_words());
        record[call::OPERANDS..call::RESULTS].copy_from_slice(&[operands.len() as u64, w.put(&operands)]);
        record[call::RESULTS..].copy_from_slice(&[results.len() as u64, w.put(&results)]);
        Ok(record)
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
