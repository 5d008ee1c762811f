//! Compiled models: sealed libraries, their manifests, and the images of their plans.

use std::io::Write;

use flate2::{Compression, write::ZlibEncoder};
use tensorc_abi::artifact::MANIFEST_SECTION;
use tensorc_abi::image::{self, Image, checksum, dim, flow, header, open, slot, step, tensor, variant};
use tensorc_abi::sizes::{Sign, SizeOp};
use tensorc_abi::{Attention, BatchedGemm, Conv2d, seal};
use tensorc_exec::Flow;
use tensorc_exec::sizes::SizeRun;
use tensorc_runtime::artifact::Manifest;

use crate::FileReader;

/// Libraries.
pub const ARTIFACT: FileReader =
    FileReader { name: "artifact", files: libraries, seal: Some(seal_library), read: read_library, memory: 2048 };

/// Images of plans.
pub const IMAGE: FileReader =
    FileReader { name: "plan_image", files: images, seal: Some(seal_image), read: read_image, memory: 16 };

/// Manifests beside compiled models.
pub const MANIFEST: FileReader =
    FileReader { name: "manifest", files: manifests, seal: None, read: read_manifest, memory: 256 };

/// A manifest that was read can be shown and written.
fn use_manifest(manifest: &Manifest) {
    assert!(manifest.run_bytes(4) >= manifest.arena_bytes());
    manifest.scratch_bytes();
    assert_eq!(Manifest::from_json(&manifest.to_json()).expect("what was written can be read").name, manifest.name);
}

fn read_manifest(bytes: &[u8]) -> bool {
    Manifest::from_json(bytes).map(|manifest| use_manifest(&manifest)).is_ok()
}

fn manifests() -> Vec<Vec<u8>> {
    let kernel = r#"{"name": "k0", "code_bytes": 12, "kir": "kernel @k0() {}"}"#;
    let gpu = r#""gpu": {"architecture": "sm_80", "ptx_bytes": 9, "cubin_bytes": 0},"#;
    let text = |gpu: &str| {
        format!(
            r#"{{"format": [1, 4], "compiler": "0.1.0", "name": "m", "target": "x86_64", {gpu}
            "inputs": [{{"name": "x", "dtype": "f32", "dims": ["batch", "3"]}}], "outputs": [],
            "dims": [["batch", 1, 4]], "weights": {{"embedded": true, "bytes": 64, "hash": "00"}}, "image_bytes": 8,
            "variants": [{{"extents": [1], "steps": 2, "arena_bytes": 128, "scratch": [{{"offset": 0, "bytes": 64}}]}}],
            "kernels": [{kernel}]}}"#
        )
    };
    vec![text("").into_bytes(), text(gpu).into_bytes()]
}

/// A library is refused unless its seal is unbroken; what says why reads the manifest of any file.
fn read_library(bytes: &[u8]) -> bool {
    let content = seal::open(bytes);
    if let Some(content) = content {
        assert_eq!(content.len() + seal::BYTES, bytes.len());
    }
    let manifest = Manifest::of_elf(content.unwrap_or(bytes));
    manifest.iter().for_each(use_manifest);
    content.is_some() && manifest.is_ok()
}

fn seal_library(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len().saturating_sub(seal::BYTES));
    seal::close(bytes);
}

/// An ELF file with one section, sealed.
fn libraries() -> Vec<Vec<u8>> {
    const HEADER: usize = 64;
    let names = [&b"\0"[..], MANIFEST_SECTION.as_bytes(), b"\0.shstrtab\0"].concat();
    manifests()
        .iter()
        .map(|json| {
            let mut encoder = ZlibEncoder::new(vec![], Compression::best());
            encoder.write_all(json).unwrap();
            let section = encoder.finish().unwrap();
            let table = (HEADER + section.len() + names.len()).next_multiple_of(8);
            let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
            let half = |file: &mut Vec<u8>, words: &[u16]| file.extend(words.iter().flat_map(|w| w.to_le_bytes()));
            let long = |file: &mut Vec<u8>, words: &[u64]| file.extend(words.iter().flat_map(|w| w.to_le_bytes()));
            half(&mut file, &[3, 62, 1, 0]);
            long(&mut file, &[0, 0, table as u64]);
            half(&mut file, &[0, 0, HEADER as u16, 0, 0, HEADER as u16, 3, 2]);
            file.extend(&section);
            file.extend(&names);
            file.resize(table, 0);
            let mut entry = |name: u64, kind: u64, at: usize, size: usize| {
                long(&mut file, &[name | kind << 32, 0, 0, at as u64, size as u64, 0, 1, 0]);
            };
            entry(0, 0, 0, 0);
            entry(1, 1, HEADER, section.len());
            entry(2 + MANIFEST_SECTION.len() as u64, 3, HEADER + section.len(), names.len());
            seal::close(&mut file);
            file
        })
        .collect()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Looks at everything that an image says, as its executors do.
fn read_image(bytes: &[u8]) -> bool {
    let words = words(bytes);
    let Ok(image) = Image::new(&words) else { return false };
    let list = |at: usize, record: usize| {
        let (count, first) = (image.size(at), image.size(at + 1));
        (0..count.min(words.len())).map(move |i| first.saturating_add(i.saturating_mul(record)))
    };
    image.text(image.size(header::NAME));
    let tensors = list(header::INPUTS, tensor::WORDS).chain(list(header::OUTPUTS, tensor::WORDS));
    let named = tensors.chain(list(header::DIMS, dim::WORDS));
    named.for_each(|at| _ = image.text(image.size(at)));
    for record in list(header::VARIANTS, 1).map(|at| image.size(at)) {
        for at in list(record.saturating_add(variant::STEPS), step::WORDS) {
            let Some(step) = image.record::<{ step::WORDS }>(at) else { break };
            image.text(step[step::NAME] as usize);
            let call = step[step::CALL] as usize;
            image.record(call).map(BatchedGemm::from_words);
            image.record(call).map(Attention::from_words);
            image.record(call).map(Conv2d::from_words);
            assert!(image.words(call, step[step::ARGS] as usize).len() <= words.len());
            assert!(image.tail(call).len() <= words.len());
            if let Some(flow) = Flow::read(image.tail(call)) {
                let bodies = flow.behind.chunks_exact(flow::BODY_WORDS).take(flow.bodies());
                bodies.for_each(|body| _ = image.record::<{ step::WORDS }>(body[1] as usize));
            }
        }
        let slots = list(record.saturating_add(variant::SLOTS), slot::WORDS);
        slots.for_each(|at| _ = image.record::<{ slot::WORDS }>(at));
        read_open(&image, image.size(record.saturating_add(variant::OPEN)));
    }
    true
}

/// Executes the size program of a plan for many shapes, but for what asks the kernel library.
fn read_open(image: &Image<'_>, at: usize) {
    let Some(record) = image.record::<{ open::WORDS }>(at) else { return };
    let [region_at, len] = [record[open::REGION], record[open::REGION + 1]].map(|word| word as usize);
    let program = image.words(record[open::PROGRAM + 1] as usize, record[open::PROGRAM] as usize);
    let (mut region, mut values) = (image.words(region_at, len).to_vec(), vec![0; program.len()]);
    let mut run = SizeRun { values: &mut values, region: &mut region, region_at, workers: 3 };
    let done = run.execute(program, 0, &|input, axis| Some((7 * input + axis) as u64), &|_| None);
    if done.is_ok() {
        let image = image.with(region_at, &region);
        assert!(image.tail(region_at).len() >= region.len().min(1));
    }
}

fn seal_image(bytes: &mut Vec<u8>) {
    let mut words = words(bytes);
    if words.len() < header::WORDS {
        return;
    }
    words[header::LEN] = words.len() as u64;
    words[header::CHECKSUM] = checksum(&words[header::NAME..]);
    *bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
}

fn images() -> Vec<Vec<u8>> {
    vec![product_and_loop(), many_shapes()]
}

/// A plan for many shapes: a copy whose bytes depend on an extent.
fn many_shapes() -> Vec<u8> {
    let mut words = vec![0; header::WORDS];
    (words[header::MAGIC], words[header::VERSION]) = (image::MAGIC, image::VERSION.word());
    let region = words.len();
    words.extend([step::COPY, 0, 0, 64, 1, 0, 2, 0]);
    words.extend([slot::INPUT, 0, 0, slot::ARENA, 0, 64, slot::REGION, 0, 8]);
    let (program, end) = (words.len(), words.len());
    let ops = [
        SizeOp::Extent { input: 1, axis: 1 },
        SizeOp::Constant(-2),
        SizeOp::Sum(0, 1),
        SizeOp::Require(2, Sign::NonNegative),
        SizeOp::Product(0, 0),
        SizeOp::Quotient(4, 0),
        SizeOp::Greatest(5, 1),
        SizeOp::Align { value: 6, exponent: 6 },
        SizeOp::Store { value: 7, word: step::TASKS as u32 },
        SizeOp::Grain { tasks: 7, ns: 4 },
        SizeOp::Store { value: 9, word: step::GRAIN as u32 },
        SizeOp::Workers,
        SizeOp::Product(7, 11),
    ];
    words.extend(ops.iter().filter_map(|op| op.word()));
    let open = words.len();
    words.extend([region, end - region, ops.len(), program, 4, 0, 0].map(|word| word as u64));
    let record = words.len() as u64;
    let steps = region as u64;
    words.extend([4096, 1, steps, 3, steps + step::WORDS as u64, 0, 0, 0, open as u64]);
    (words[header::VARIANTS], words[header::VARIANTS + 1]) = (1, words.len() as u64);
    words.push(record);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    seal_image(&mut bytes);
    bytes
}

/// A model of a product and a loop.
fn product_and_loop() -> Vec<u8> {
    let mut words = vec![0; header::WORDS];
    (words[header::MAGIC], words[header::VERSION]) = (image::MAGIC, image::VERSION.word());
    let mut put = |at: usize, new: &[u64]| {
        words[at] = words.len() as u64;
        words.extend(new);
        words[at] as usize
    };
    put(header::NAME, &[5, u64::from_le_bytes(*b"model\0\0\0")]);
    let name = put(header::INPUTS + 1, &[0, 7, 2]);
    let variants = put(header::VARIANTS + 1, &[0]);
    let record = put(variants, &[0; variant::WORDS]);
    let product = [step::LIBRARY, name as u64, 0, 1, 1, 0, 0, 0];
    let repeated = [step::FLOW, name as u64, 0, 1, 1, 0, 0, 0];
    put(record + variant::STEPS + 1, &[product, repeated].concat());
    put(record + variant::SLOTS + 1, &[slot::INPUT, 0, 0, slot::ARENA, 0, 64]);
    let call = words.len() as u64;
    let first = words[record + variant::STEPS + 1] as usize;
    words[first + step::CALL] = call;
    words.extend(BatchedGemm::<u64>::default().to_words());
    words[first + step::WORDS + step::CALL] = words.len() as u64;
    // One carried tensor, one scanned and one stacked, and a body of the first step and its slots.
    words.extend([flow::LOOP, 3, 0, 1, 1, 1, 2]);
    words.extend([64, 64, 0, 64, 1]);
    words.extend([1, first as u64, 2, words[record + variant::SLOTS + 1], 128]);
    for (at, count) in [(header::INPUTS, 1), (header::VARIANTS, 1), (record + variant::STEPS, 2)] {
        words[at] = count;
    }
    words[record + variant::SLOTS] = 2;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    seal_image(&mut bytes);
    bytes
}
