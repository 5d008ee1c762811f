//! Writes the image of a model: its plans as the run-time library reads them ([`tensorc_abi::image`]).

use std::collections::BTreeMap;

use tensorc_abi::image::{MAGIC, VERSION, batch, checksum, gpu, header, matrix, scratch, slot, step};
use tensorc_abi::{Buffer, DType, Plan, StorageClass};
use tensorc_exec::{Place, Records};
use tensorc_runtime::gpu::{LaunchConfig, MatrixParam};

use super::AotRequest;
use super::gpu::ModelCode;
use super::variants::Variant;
use super::weights::WeightBlock;
use crate::error::Error;

/// What an image is made of.
pub struct Contents<'c> {
    pub request: &'c AotRequest,
    pub variants: &'c [Variant],
    /// Of each variant.
    pub records: &'c [Records],
    /// Generated kernels of the artifact.
    pub kernels: u64,
    pub block: &'c WeightBlock,
    /// ModelCode of kernels that run on a GPU.
    pub gpu: Option<&'c ModelCode>,
}

/// The records of a variant's plan, with kernels as the artifact numbers them.
///
/// # Errors
/// A step has no form in an artifact: a function of the host, a call of a vendor library, or one of the kernel library in a
/// model for a GPU.
pub fn records(plan: &Plan, numbers: &[u32], gpu: bool) -> Result<Records, Error> {
    let place = if gpu { Place::Device } else { Place::Processor };
    let records = Records::of(plan, place, &|kernel| numbers[kernel.0 as usize].into());
    records
        .map_err(|refused| Error::Internal(format!("`{}` has no form in an artifact", plan.steps[refused.step].name)))
}

/// The words of an image.
pub fn write(contents: &Contents<'_>) -> Vec<u64> {
    let mut w = ImageWriter { words: vec![0; header::WORDS], texts: BTreeMap::new() };
    let Contents { request, variants, block, .. } = contents;
    let first = &variants[0].plan;
    w.words[header::NAME] = w.text(&request.name);
    let hash = [block.hash as u64, (block.hash >> 64) as u64];
    w.words[header::WEIGHTS..header::WEIGHTS + 3].copy_from_slice(&[block.bytes.len() as u64, hash[0], hash[1]]);
    for (at, list) in [(header::INPUTS, &first.inputs), (header::OUTPUTS, &first.outputs)] {
        let records: Vec<u64> = list.iter().flat_map(|id| w.tensor(first.buffer(*id))).collect();
        w.table(at, list.len(), &records);
    }
    let dims: Vec<u64> = request.ranges.iter().flat_map(|(name, (min, max))| [w.text(name), *min, *max]).collect();
    w.table(header::DIMS, request.ranges.len(), &dims);
    let offsets: Vec<u64> = (0..variants.len()).map(|i| w.variant(contents, i)).collect();
    w.table(header::VARIANTS, offsets.len(), &offsets);
    w.words[header::KERNELS] = contents.kernels;
    w.words[header::GPU] = contents.gpu.map_or(0, |code| w.gpu(contents, code));
    w.words[header::MAGIC] = MAGIC;
    w.words[header::VERSION] = VERSION.word();
    w.words[header::LEN] = w.words.len() as u64;
    w.words[header::CHECKSUM] = checksum(&w.words[header::NAME..]);
    w.words
}

/// Number and offset of records.
struct StepTables {
    steps: [u64; 2],
    slots: [u64; 2],
}

struct ImageWriter {
    words: Vec<u64>,
    /// Offsets of the texts written.
    texts: BTreeMap<String, u64>,
}

impl ImageWriter {
    fn put(&mut self, words: &[u64]) -> u64 {
        self.words.extend_from_slice(words);
        (self.words.len() - words.len()) as u64
    }

    /// Writes records, and their number and offset into the header.
    fn table(&mut self, at: usize, count: usize, records: &[u64]) {
        let offset = self.put(records);
        self.words[at..at + 2].copy_from_slice(&[count as u64, offset]);
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(at) = self.texts.get(text) {
            return *at;
        }
        let mut words = vec![text.len() as u64];
        words.extend(text.as_bytes().chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        }));
        let at = self.put(&words);
        self.texts.insert(text.to_owned(), at);
        at
    }

    fn tensor(&mut self, buffer: &Buffer) -> [u64; 3] {
        [self.text(&buffer.name), buffer.dtype as u64, buffer.dims.len() as u64]
    }

    /// The record of the code for a GPU.
    fn gpu(&mut self, contents: &Contents<'_>, code: &ModelCode) -> u64 {
        let mut parameters = vec![0; code.entries.len()];
        for record in contents.records.iter().flat_map(|records| &records.steps) {
            if record[step::KIND] == step::LAUNCH {
                parameters[record[step::FUNCTION] as usize] = record[step::ARGS];
            }
        }
        let mut launches = vec![];
        for (entry, parameters) in code.entries.iter().zip(parameters) {
            let name = self.text(&format!("{}\0", entry.name));
            launches.extend([name, entry.blocks, entry.threads.into(), entry.shared_bytes.into(), parameters]);
        }
        let launches = self.put(&launches);
        let (capability, later) = (code.capability.number().into(), code.capability.later().into());
        let mut record = [0; gpu::WORDS];
        record[..gpu::PTX].copy_from_slice(&[capability, later, launches]);
        record[gpu::PTX..].copy_from_slice(&code.hashes());
        let each = |(kernel, entry): (usize, &LaunchConfig)| {
            let of = move |m: &MatrixParam| {
                let element = match m.dtype {
                    DType::BF16 => 1,
                    DType::F32 => 2,
                    _ => 0,
                };
                [kernel as u64, m.argument.into(), element, m.rows, m.columns, m.stride, m.box_rows.into()]
            };
            entry.matrices.iter().flat_map(of).collect::<Vec<u64>>()
        };
        let matrices: Vec<u64> = code.entries.iter().enumerate().flat_map(each).collect();
        let all = code.entries.iter().flat_map(|entry| &entry.matrices).enumerate();
        let beside = |(i, m): (usize, &MatrixParam)| {
            m.batch.iter().flat_map(|(extent, stride)| [i as u64, *extent, *stride]).collect::<Vec<u64>>()
        };
        let batches: Vec<u64> = all.flat_map(beside).collect();
        let (matrices_at, batches_at) = (self.put(&matrices), self.put(&batches));
        let record = self.put(&record);
        self.put(&[(matrices.len() / matrix::WORDS) as u64, matrices_at]);
        self.put(&[(batches.len() / batch::WORDS) as u64, batches_at]);
        record
    }

    /// Writes the records of the steps of a plan and of its slots, those of nested plans first.
    fn steps(&mut self, plan: &Plan, records: &Records, weights: &[u64]) -> StepTables {
        let Records { steps, positions, slots, words, bodies } = records;
        let (mut steps, mut bodies) = (steps.clone(), bodies.iter());
        let calls = self.put(words);
        for (record, position) in steps.iter_mut().zip(positions) {
            let step = &plan.steps[*position];
            record[step::NAME] = self.text(&step.name);
            if (step::LIBRARY..step::LAUNCH).contains(&record[step::KIND]) {
                record[step::CALL] += calls;
            }
            if let Some((flow, bodies)) = step.op.flow().and_then(|flow| Some((flow, bodies.next()?))) {
                let head = &words[record[step::CALL] as usize - scratch::WORDS..][..scratch::WORDS];
                let mut words = [head, &flow.words()].concat();
                for (body, records) in flow.bodies.iter().zip(bodies) {
                    let StepTables { steps, slots } = self.steps(body, records, weights);
                    words.extend([steps[0], steps[1], slots[0], slots[1], body.arena_bytes]);
                }
                record[step::CALL] = self.put(&words) + scratch::WORDS as u64;
            }
        }
        // Weights of all variants lie in one block.
        let place = |[home, index, offset]: &[u64; slot::WORDS]| match *home {
            slot::WEIGHTS => [*home, 0, weights[*index as usize] + offset],
            _ => [*home, *index, *offset],
        };
        let slots: Vec<u64> = slots.iter().flat_map(place).collect();
        let counts = [steps.len(), slots.len() / slot::WORDS];
        let [steps, slots] = [steps.concat(), slots].map(|words| self.put(&words));
        StepTables { steps: [counts[0] as u64, steps], slots: [counts[1] as u64, slots] }
    }

    fn variant(&mut self, contents: &Contents<'_>, i: usize) -> u64 {
        let plan = &contents.variants[i].plan;
        let StepTables { steps, slots } = self.steps(plan, &contents.records[i], &contents.block.offsets[i]);
        let shapes: Vec<u64> =
            plan.inputs.iter().chain(&plan.outputs).flat_map(|id| plan.buffer(*id).dims.clone()).collect();
        let mut checks = vec![];
        for check in &plan.checks {
            let StorageClass::Arena(offset) = plan.buffer(check.buffer).storage else { continue };
            let words = [check.requirement.before(), check.requirement.behind()].map(|text| self.text(&text));
            checks.extend([offset, words[0], words[1]]);
        }
        let check_count = plan.checks.len();
        let [shapes, checks] = [shapes, checks].map(|words| self.put(&words));
        let record = self.put(&[plan.arena_bytes, steps[0], steps[1], slots[0], slots[1], shapes]);
        self.put(&[check_count as u64, checks]);
        record
    }
}
