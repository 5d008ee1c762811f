//! Writes the image of a model: its plans as the run-time library reads them ([`tensorc_abi::image`]).

use std::collections::BTreeMap;

use tensorc_abi::image::{LIBRARIES, MAGIC, VERSION, batch, checksum, gpu, header, matrix, slot, step};
use tensorc_abi::{Buffer, BufferId, DType, Epilogue, Home, Plan, Step, StepOp};
use tensorc_kernels::{ConvWay, conv_way};
use tensorc_runtime::gpu::{Entry, Matrix};
use tensorc_runtime::plan::division;

use super::Request;
use super::gpu::Code;
use super::variants::Variant;
use super::weights::Block;

/// What an image is made of.
pub struct Contents<'c> {
    pub request: &'c Request,
    pub variants: &'c [Variant],
    /// Of each variant, the number of each of its kernels in the artifact.
    pub kernels: &'c [Vec<u32>],
    pub block: &'c Block,
    /// Code of kernels that run on a GPU.
    pub gpu: Option<&'c Code>,
}

/// The kind of a step; `None` for a function of the host or a call of a vendor's library.
pub fn kind(op: &StepOp) -> Option<u64> {
    Some(match op {
        StepOp::Launch { .. } => step::KERNEL,
        StepOp::Copy { .. } => step::COPY,
        StepOp::Gemm { .. } => library("tc_rt_gemm")?,
        StepOp::Attention { .. } => library("tc_rt_attention")?,
        StepOp::Conv { call, .. } => library(match conv_way(call) {
            ConvWay::Windows => "tc_rt_conv_windows",
            ConvWay::Planar => "tc_rt_conv_planar",
            ConvWay::Correlate => "tc_rt_conv_correlate",
            ConvWay::Blocked => "tc_rt_conv_blocked",
            ConvWay::BlockedDepthwise => "tc_rt_conv_blocked_depthwise",
            ConvWay::Winograd => "tc_rt_conv_winograd",
        })?,
        StepOp::Extern { .. } | StepOp::Vendor { .. } => return None,
    })
}

/// The kind of step that calls a library kernel.
fn library(name: &str) -> Option<u64> {
    LIBRARIES.iter().position(|known| *known == name).map(|i| step::LIBRARY + i as u64)
}

/// The words of an image.
pub fn write(contents: &Contents<'_>) -> Vec<u64> {
    let mut w = Writer { words: vec![0; header::WORDS], texts: BTreeMap::new() };
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
    let kernels = contents.kernels.iter().flatten().max().map_or(0, |last| u64::from(*last) + 1);
    w.words[header::KERNELS] = kernels;
    w.words[header::GPU] = contents.gpu.map_or(0, |code| w.gpu(contents, code));
    w.words[header::MAGIC] = MAGIC;
    w.words[header::VERSION] = VERSION.word();
    w.words[header::LEN] = w.words.len() as u64;
    w.words[header::CHECKSUM] = checksum(&w.words[header::NAME..]);
    w.words
}

struct Writer {
    words: Vec<u64>,
    /// Offsets of the texts written.
    texts: BTreeMap<String, u64>,
}

impl Writer {
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
    fn gpu(&mut self, contents: &Contents<'_>, code: &Code) -> u64 {
        let mut parameters = vec![0; code.entries.len()];
        for (variant, numbers) in contents.variants.iter().zip(contents.kernels) {
            for s in &variant.plan.steps {
                if let StepOp::Launch { kernel, args, .. } = &s.op {
                    parameters[numbers[kernel.0 as usize] as usize] = args.len() as u64;
                }
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
        let each = |(kernel, entry): (usize, &Entry)| {
            let of = move |m: &Matrix| {
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
        let beside = |(i, m): (usize, &Matrix)| {
            m.batch.iter().flat_map(|(extent, stride)| [i as u64, *extent, *stride]).collect::<Vec<u64>>()
        };
        let batches: Vec<u64> = all.flat_map(beside).collect();
        let (matrices_at, batches_at) = (self.put(&matrices), self.put(&batches));
        let record = self.put(&record);
        self.put(&[(matrices.len() / matrix::WORDS) as u64, matrices_at]);
        self.put(&[(batches.len() / batch::WORDS) as u64, batches_at]);
        record
    }

    fn variant(&mut self, contents: &Contents<'_>, i: usize) -> u64 {
        let plan = &contents.variants[i].plan;
        let (mut slots, mut steps) = (vec![], vec![]);
        for s in &plan.steps {
            let (Some(kind), (tasks, grain)) = (kind(&s.op), division(plan, s)) else { continue };
            if tasks == 0 {
                continue;
            }
            let (first, name) = ((slots.len() / slot::WORDS) as u64, self.text(&s.name));
            let used = operands(s);
            let (function, args, call) = self.call(s, &contents.kernels[i]);
            steps.extend(match (contents.gpu, kind) {
                (Some(_), step::KERNEL) => [step::LAUNCH, name, first, 1, 0, function, used.len() as u64, 0],
                _ => [kind, name, first, tasks, grain, function, args, call],
            });
            slots.extend(used.into_iter().flat_map(|id| place(plan, id, &contents.block.offsets[i])));
        }
        let shapes: Vec<u64> =
            plan.inputs.iter().chain(&plan.outputs).flat_map(|id| plan.buffer(*id).dims.clone()).collect();
        let (step_count, slot_count) = (steps.len() / step::WORDS, slots.len() / slot::WORDS);
        let [steps, slots, shapes] = [steps, slots, shapes].map(|words| self.put(&words));
        self.put(&[plan.arena_bytes, step_count as u64, steps, slot_count as u64, slots, shapes])
    }

    /// The functions, the numbers of arguments of epilogue and prologue, and the call of a step.
    fn call(&mut self, s: &Step, kernels: &[u32]) -> (u64, u64, u64) {
        let number = |kernel: u32| u64::from(kernels[kernel as usize]);
        let (call, epilogue): (u64, &Option<Epilogue>) = match &s.op {
            StepOp::Launch { kernel, .. } => return (number(kernel.0), 0, 0),
            StepOp::Copy { .. } | StepOp::Extern { .. } | StepOp::Vendor { .. } => return (0, 0, 0),
            StepOp::Gemm { call, epilogue, .. } => (self.put(&call.to_words()), epilogue),
            StepOp::Conv { call, epilogue, .. } => (self.put(&call.to_words()), epilogue),
            StepOp::Attention { call, epilogue, .. } => (self.put(&call.to_words()), epilogue),
        };
        let epilogue = epilogue.as_ref().map_or([0; 2], |e| [number(e.kernel.0) + 1, e.args.len() as u64]);
        let prologue = s.op.prologue().map_or([0; 2], |p| [number(p.kernel.0) + 1, p.args.len() as u64]);
        (epilogue[0] | prologue[0] << 32, epilogue[1] | prologue[1] << 32, call)
    }
}

/// The buffers of a step in the order of its slots.
fn operands(s: &Step) -> Vec<BufferId> {
    s.op.args().into_iter().map(|arg| arg.buffer).collect()
}

/// The record of a slot.
fn place(plan: &Plan, id: BufferId, weights: &[u64]) -> [u64; slot::WORDS] {
    let offset = plan.byte_offset(id);
    match plan.buffer(id).home {
        Home::Input(i) => [slot::INPUT, i.into(), offset],
        Home::Output(i) => [slot::OUTPUT, i.into(), offset],
        Home::Weight(i) => [slot::WEIGHTS, 0, weights[i as usize] + offset],
        Home::Arena(at) => [slot::ARENA, 0, at + offset],
        // Models that change states are refused before.
        Home::State(i) => [slot::INPUT, i.into(), offset],
    }
}
