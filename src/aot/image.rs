//! Writes the image of a model: its plans as the run-time library reads them ([`tensorc_abi::image`]).
//!
//! Plans for one shape have records of numbers, plans for many shapes of extents. Both are written in one way; where an extent
//! depends on symbols, the word is that of the largest shape, and its position is noted for the size program.

use std::collections::BTreeMap;

use tensorc_abi::image::{MAGIC, VERSION, batch, checksum, gpu, header, matrix, scratch, slot, step};
use tensorc_abi::{DType, Number, Plan, StorageClass};
use tensorc_exec::{Place, Records};
use tensorc_runtime::gpu::{LaunchConfig, MatrixParam};

use tensorc_ir::Extent;

use super::gpu::ModelCode;
use super::variants::Variant;
use super::weights::WeightBlock;
use super::{AotRequest, ExtentRange};
use crate::error::Error;

/// What the image of a part is made of.
pub struct Contents<'c> {
    pub request: &'c AotRequest,
    /// The numbers that its shapes depend on.
    pub names: &'c [String],
    pub ranges: &'c [ExtentRange],
    pub variants: &'c [Variant],
    /// Of each variant, the number of each of its kernels.
    pub numbers: &'c [Vec<u32>],
    /// Of each variant, for the shape of its plan.
    pub records: &'c [Records],
    /// Of each variant, where its weights lie in the block.
    pub offsets: &'c [Vec<u64>],
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
///
/// # Errors
/// A plan for many shapes has too many numbers.
pub fn write(contents: &Contents<'_>) -> Result<Vec<u64>, Error> {
    let Contents { request, variants, block, .. } = contents;
    let mut w = ImageWriter::new(&request.name, block);
    let first = &variants[0].plan;
    for (at, list) in [(header::INPUTS, &first.inputs), (header::OUTPUTS, &first.outputs)] {
        let records: Vec<u64> =
            list.iter().map(|id| first.buffer(*id)).flat_map(|b| w.tensor(&b.name, b.dtype, b.dims.len())).collect();
        w.table(at, list.len(), &records);
    }
    w.dims(contents.names, contents.ranges);
    let offsets: Vec<u64> = (0..variants.len()).map(|i| w.variant(contents, i)).collect::<Result<_, _>>()?;
    w.table(header::VARIANTS, offsets.len(), &offsets);
    w.words[header::KERNELS] = contents.kernels;
    w.words[header::GPU] = contents.gpu.map_or(0, |code| w.gpu(contents, code));
    Ok(w.finish())
}

/// Number and offset of records.
pub struct StepTables {
    pub steps: [u64; 2],
    pub slots: [u64; 2],
    /// Of each step with nested plans, in order, where these lie.
    pub nested: Vec<Vec<NestedTables>>,
}

/// Where a nested plan lies in an image.
pub struct NestedTables {
    pub tables: StepTables,
    /// The position of the words that say so behind the record of its step.
    pub at: u64,
}

/// A number of a plan as a word of an image.
pub trait Word: Number {
    /// The word, if it depends on nothing.
    fn known(self) -> Result<u64, Extent>;
}

impl Word for u64 {
    fn known(self) -> Result<u64, Extent> {
        Ok(self)
    }
}

impl Word for Extent {
    fn known(self) -> Result<u64, Extent> {
        self.known().map(|n| n as u64).ok_or(self)
    }
}

#[derive(Default)]
pub struct ImageWriter {
    pub words: Vec<u64>,
    /// Offsets of the texts written.
    texts: BTreeMap<String, u64>,
    /// Positions of words that depend on extents, and these.
    pub stores: Vec<(usize, Extent)>,
}

impl ImageWriter {
    /// An image with a name, of a model with these weights.
    pub fn new(name: &str, block: &WeightBlock) -> ImageWriter {
        let mut w = ImageWriter { words: vec![0; header::WORDS], ..ImageWriter::default() };
        w.words[header::NAME] = w.text(name);
        let hash = [block.hash as u64, (block.hash >> 64) as u64];
        w.words[header::WEIGHTS..header::WEIGHTS + 3].copy_from_slice(&[block.bytes.len() as u64, hash[0], hash[1]]);
        w
    }

    /// Writes the dynamic dimensions.
    pub fn dims(&mut self, names: &[String], ranges: &[ExtentRange]) {
        let records = names.iter().zip(ranges).flat_map(|(name, range)| [self.text(name), range.first, range.last]);
        let mut dims: Vec<u64> = records.collect();
        dims.extend(ranges.iter().map(|range| range.step));
        self.table(header::DIMS, ranges.len(), &dims);
    }

    /// The words, when all is written.
    pub fn finish(mut self) -> Vec<u64> {
        self.words[header::MAGIC] = MAGIC;
        self.words[header::VERSION] = VERSION.word();
        self.words[header::LEN] = self.words.len() as u64;
        self.words[header::CHECKSUM] = checksum(&self.words[header::NAME..]);
        self.words
    }

    pub fn put(&mut self, words: &[impl Word]) -> u64 {
        let at = self.words.len();
        for (i, word) in words.iter().enumerate() {
            self.words.push(word.known().unwrap_or_else(|extent| {
                self.stores.push((at + i, extent));
                0
            }));
        }
        at as u64
    }

    /// Writes records, and their number and offset into the header.
    pub fn table(&mut self, at: usize, count: usize, records: &[u64]) {
        let offset = self.put(records);
        self.words[at..at + 2].copy_from_slice(&[count as u64, offset]);
    }

    pub fn text(&mut self, text: &str) -> u64 {
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

    /// The record of an input or output.
    pub fn tensor(&mut self, name: &str, dtype: DType, rank: usize) -> [u64; 3] {
        [self.text(name), dtype as u64, rank as u64]
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

    /// Writes the step records and slot records of a plan, those of nested plans first. `weight` gives home and offset of a weight.
    pub fn steps<N: Word>(
        &mut self,
        plan: &Plan<N>,
        records: &Records<N>,
        weight: &dyn Fn(usize) -> (u64, u64),
    ) -> StepTables {
        let Records { steps, positions, slots, words, bodies } = records;
        let (mut steps, mut bodies, mut nested) = (steps.clone(), bodies.iter(), vec![]);
        let calls = self.put(words);
        let known = |word: N| word.known().unwrap_or(0);
        for (record, position) in steps.iter_mut().zip(positions) {
            let step = &plan.steps[*position];
            record[step::NAME] = self.text(&step.name).into();
            let call = known(record[step::CALL]);
            if (step::LIBRARY..step::LAUNCH).contains(&known(record[step::KIND])) {
                record[step::CALL] = (call + calls).into();
            }
            if let Some((flow, bodies)) = step.op.flow().and_then(|flow| Some((flow, bodies.next()?))) {
                let head = &words[call as usize - scratch::WORDS..][..scratch::WORDS];
                let mut words = [head, &flow.words()].concat();
                let mut tables = vec![];
                for (body, records) in flow.bodies.iter().zip(bodies) {
                    let StepTables { steps, slots, nested } = self.steps(body, records, weight);
                    let of_body = [steps[0], steps[1], slots[0], slots[1], body.arena_bytes];
                    let at = words.len() as u64;
                    words.extend(of_body.map(N::from));
                    tables.push(NestedTables { tables: StepTables { steps, slots, nested }, at });
                }
                let at = self.put(&words);
                tables.iter_mut().for_each(|nested| nested.at += at);
                nested.push(tables);
                record[step::CALL] = (at + scratch::WORDS as u64).into();
            }
        }
        // Weights of all variants lie in one block.
        let place = |[home, index, offset]: &[N; slot::WORDS]| match (known(*home), known(*index)) {
            (slot::WEIGHTS, index) => {
                let (home, at) = weight(index as usize);
                [home.into(), N::from(0), N::from(at) + *offset]
            }
            _ => [*home, *index, *offset],
        };
        let slots: Vec<N> = slots.iter().flat_map(place).collect();
        let counts = [steps.len(), slots.len() / slot::WORDS];
        let [steps, slots] = [steps.concat(), slots].map(|words| self.put(&words));
        StepTables { steps: [counts[0] as u64, steps], slots: [counts[1] as u64, slots], nested }
    }

    fn variant(&mut self, contents: &Contents<'_>, i: usize) -> Result<u64, Error> {
        let (variant, numbers) = (&contents.variants[i], &contents.numbers[i]);
        let offsets = &contents.offsets[i];
        if let Some((open, memory)) = &variant.open {
            return open.enter(|trace| self.open_variant(trace, open, memory, numbers, offsets));
        }
        let plan = &variant.plan;
        let steps = self.steps(plan, &contents.records[i], &|weight| (slot::WEIGHTS, offsets[weight]));
        let (shapes, checks) = (self.shapes(plan), self.checks(plan));
        Ok(self.variant_record(plan.arena_bytes, &steps, shapes, (plan.checks.len(), checks), 0))
    }

    /// Writes the extents of inputs and outputs.
    pub fn shapes<N: Word>(&mut self, plan: &Plan<N>) -> u64 {
        let shapes: Vec<N> =
            plan.inputs.iter().chain(&plan.outputs).flat_map(|id| plan.buffer(*id).dims.clone()).collect();
        self.put(&shapes)
    }

    /// Writes the records of checks.
    pub fn checks<N: Word>(&mut self, plan: &Plan<N>) -> u64 {
        let mut checks = vec![];
        for check in &plan.checks {
            let StorageClass::Arena(offset) = plan.buffer(check.buffer).storage else { continue };
            let words = [check.requirement.before(), check.requirement.behind()].map(|text| self.text(&text));
            checks.extend([offset, words[0], words[1]]);
        }
        self.put(&checks)
    }

    /// Writes the record of a variant.
    pub fn variant_record(
        &mut self,
        arena_bytes: u64,
        StepTables { steps, slots, .. }: &StepTables,
        shapes: u64,
        (check_count, checks): (usize, u64),
        open: u64,
    ) -> u64 {
        let record = self.put(&[arena_bytes, steps[0], steps[1], slots[0], slots[1], shapes]);
        self.put(&[check_count as u64, checks, open]);
        record
    }
}
