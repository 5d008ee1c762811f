//! Values that operators do not take are errors that name node, operand and value: in process, on a GPU, in artifacts, on arrays.

use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::aot::{self, AotRequest};
use tensorc::ir::DenseType;
use tensorc::ir::text::parse_module;
use tensorc::runtime::artifact::{Artifact, ArtifactError, LoadOptions};
use tensorc::runtime::plan::RunError;
use tensorc::runtime::{Device, Pool, TensorMut, TensorRef};
use tensorc::{Compiler, DType, Error, Model, Options, Tensor};
use tensorc_abi::artifact::status;
use tensorc_tests::cache::visible;

use crate::aot::{exists, request};
use crate::support::backend::options;

/// An operator applied to `%data` and to integers of which some are wrong.
struct Case {
    /// The inputs besides the integers, with their types.
    data: &'static str,
    /// The type of `%i`.
    integers: (DType, &'static [u64]),
    /// What is computed.
    node: &'static str,
    right: &'static [i64],
    wrong: &'static [i64],
    /// The end of the message.
    message: &'static str,
}

impl Case {
    const fn new(
        data: &'static str,
        integers: (DType, &'static [u64]),
        node: &'static str,
        right: &'static [i64],
        wrong: &'static [i64],
        message: &'static str,
    ) -> Case {
        Case { data, integers, node, right, wrong, message }
    }

    fn text(&self) -> String {
        let (dtype, dims) = self.integers;
        let data = if self.data.is_empty() { String::new() } else { format!("{}, ", self.data) };
        format!("graph @values({data}%i: {dtype}{dims:?}) {{\n  %node = {}\n  return %node\n}}\n", self.node)
    }

    fn model(&self, compiler: &Compiler) -> Model {
        let module = parse_module(&self.text(), compiler.registry()).unwrap_or_else(|e| panic!("{e}\n{}", self.text()));
        compiler.model(module.graphs.into_iter().next().unwrap())
    }

    /// Inputs with these integers; all else is small numbers.
    fn inputs(&self, model: &Model, integers: &[i64]) -> Vec<(String, Tensor)> {
        let tensor = |(name, ty): (String, tensorc::ir::TensorType)| {
            let DenseType { dtype, dims } = ty.dense().unwrap();
            let count = dims.iter().product::<u64>();
            let numbers: Vec<i64> =
                if name == "i" { integers.to_vec() } else { (0..count as i64).map(|x| x % 5).collect() };
            let bytes: Vec<u8> = match dtype {
                DType::I32 => numbers.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
                DType::I64 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                _ => numbers.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect(),
            };
            (name, Tensor::from_bytes(dtype, &dims, bytes).unwrap())
        };
        model.inputs().into_iter().map(tensor).collect()
    }

    fn run(&self, model: &Model, integers: &[i64]) -> Result<(), Error> {
        let inputs = self.inputs(model, integers);
        let named: Vec<(&str, Tensor)> = inputs.iter().map(|(name, t)| (name.as_str(), t.clone())).collect();
        model.run(&named).map(|_| ())
    }

    fn expected(&self) -> String {
        format!("node `node`: operand {}", self.message)
    }
}

const I64: DType = DType::I64;

const CASES: &[Case] = &[
    Case::new(
        "%data: f32[10, 4]",
        (I64, &[3]),
        "gather(%data, %i)",
        &[-10, 9, 0],
        &[1, 10, 2],
        "`indices` holds 10, which is outside of -10 to 9",
    ),
    Case::new(
        "%data: f32[3, 7]",
        (DType::I32, &[2, 2]),
        "gather(%data, %i) {axis = 1}",
        &[0, -7, 6, 1],
        &[0, -8, 7, 1],
        "`indices` holds -8, which is outside of -7 to 6",
    ),
    Case::new(
        "%data: f32[3, 4]",
        (I64, &[2, 4]),
        "gather_elements(%data, %i)",
        &[2; 8],
        &[0, 0, 0, 3, 0, 0, 0, 0],
        "`indices` holds 3, which is outside of -3 to 2",
    ),
    Case::new(
        "%data: f32[2, 5]",
        (I64, &[2, 2]),
        "gather_nd(%data, %i)",
        &[1, 4, -2, -5],
        &[1, 4, 2, 0],
        "`indices` holds 2, which is no position in axes of 2 × 5",
    ),
    Case::new(
        "%data: f32[4], %u: f32[2]",
        (I64, &[2]),
        "scatter_elements(%data, %i, %u)",
        &[3, -4],
        &[3, 4],
        "`indices` holds 4, which is outside of -4 to 3",
    ),
    Case::new(
        "%data: f32[4], %u: f32[2]",
        (I64, &[2, 1]),
        "scatter_nd(%data, %i, %u)",
        &[3, 0],
        &[3, -5],
        "`indices` holds -5, which is no position in axes of 4",
    ),
    Case::new(
        "%c: f32[1, 8, 2], %u: f32[1, 3, 2]",
        (I64, &[1]),
        "tensor_scatter(%c, %u, %i)",
        &[5],
        &[6],
        "`write_indices` holds 6, which is outside of 0 to 5",
    ),
    Case::new(
        "%c: f32[1, 8, 2], %u: f32[1, 3, 2]",
        (I64, &[1]),
        "tensor_scatter(%c, %u, %i) {mode = \"circular\"}",
        &[7],
        &[8],
        "`write_indices` holds 8, which is outside of 0 to 7",
    ),
    Case::new(
        "%x: f32[4, 2]",
        (I64, &[2]),
        "reverse_sequence(%x, %i)",
        &[4, 0],
        &[5, 1],
        "`sequence_lens` holds 5, which is outside of 0 to 4",
    ),
    Case::new(
        "%x: f32[1, 1, 2, 2]",
        (I64, &[1, 1, 2, 2]),
        "max_unpool(%x, %i) {kernel_shape = [2, 2], strides = [2, 2]}",
        &[0, 3, 8, 15],
        &[0, 3, 8, 16],
        "`I` holds 16, which is outside of 0 to 15",
    ),
    Case::new(
        "%x: f32[2, 1, 4, 4], %r: f32[1, 4]",
        (I64, &[1]),
        "roi_align(%x, %r, %i)",
        &[1],
        &[2],
        "`batch_indices` holds 2, which is outside of 0 to 1",
    ),
    Case::new(
        "%x: f32[1, 2, 3, 4], %cos: f32[5, 2], %sin: f32[5, 2]",
        (I64, &[1, 3]),
        "rotary_embedding(%x, %cos, %sin, %i)",
        &[0, 4, 2],
        &[0, 5, 2],
        "`position_ids` holds 5, which is outside of 0 to 4",
    ),
    Case::new(
        "%s: f32[2, 3]",
        (I64, &[2]),
        "nll_loss(%s, %i)",
        &[2, 0],
        &[3, 0],
        "`target` holds 3, which is outside of 0 to 2",
    ),
    Case::new(
        "%s: f32[2, 3]",
        (I64, &[2]),
        "softmax_cross_entropy_loss(%s, %i) {ignore_index = -1}",
        &[2, -1],
        &[2, -2],
        "`target` holds -2, which is neither within 0 to 2 nor -1",
    ),
    Case::new(
        "%x: f32[3, 2, 4], %w: f32[1, 5, 4], %r: f32[1, 5, 5], %b: f32[1, 10]",
        (DType::I32, &[2]),
        "rnn(%x, %w, %r, %b, %i) {hidden_size = 5}",
        &[3, 1],
        &[3, 4],
        "`sequence_lens` holds 4, which is outside of 0 to 3",
    ),
    Case::new(
        "",
        (DType::I32, &[4]),
        "div(%i, %i)",
        &[1, 2, 3, -4],
        &[1, 0, 3, -4],
        "`rhs` holds 0, by which integers cannot be divided",
    ),
    Case::new(
        "",
        (I64, &[4]),
        "mod(%i, %i)",
        &[1, 2, 3, -4],
        &[1, 2, 3, 0],
        "`rhs` holds 0, by which integers cannot be divided",
    ),
    Case::new(
        "",
        (I64, &[1]),
        "mod(%i, %i) {fmod = true}",
        &[1],
        &[0],
        "`rhs` holds 0, by which integers cannot be divided",
    ),
];

/// What an error says, and whether it is one of a value.
fn is_broken(error: &Error) -> (bool, String) {
    (matches!(error, Error::Run(RunError::Value(_))), error.to_string())
}

fn fails_on(options: Options) {
    let compiler = Compiler::new(options).unwrap();
    for case in CASES {
        let model = case.model(&compiler);
        case.run(&model, case.right).unwrap_or_else(|e| panic!("{}: {e}", case.text()));
        let error = case.run(&model, case.wrong).expect_err(case.node);
        assert_eq!(is_broken(&error), (true, case.expected()), "{}", case.text());
        // An error leaves nothing behind.
        case.run(&model, case.right).unwrap();
    }
}

#[test]
fn on_one_thread_and_on_two() {
    for threads in [1, 2] {
        fails_on(Options { threads: Some(threads), poison: true, ..options() });
    }
}

#[test]
fn on_a_gpu() {
    let gpu = tensorc_simulator::interpreted(Device::accelerator(0));
    fails_on(Options { gpus: vec![gpu], threads: Some(1), ..Options::default() });
}

#[test]
fn clamped_if_that_is_wanted() {
    let mut options = Options { threads: Some(1), ..options() };
    options.passes.clamp_indices = true;
    let compiler = Compiler::new(options).unwrap();
    for case in CASES {
        let model = case.model(&compiler);
        case.run(&model, case.wrong).unwrap_or_else(|e| panic!("{}: {e}", case.text()));
        let types: Vec<DenseType> = model.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
        assert!(model.compile(&types).unwrap().plan().checks.is_empty(), "{}", case.node);
    }
}

#[test]
fn in_artifacts() {
    if !exists("cc") {
        visible("skipped: there is no C compiler `cc`");
        return;
    }
    let compiler = Compiler::new(Options { threads: Some(1), ..options() }).unwrap();
    let pool = Pool::new(1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (i, case) in CASES.iter().enumerate() {
        let model = case.model(&compiler);
        let name = format!("values{i}");
        let whole = AotRequest { embed_weights: true, ..request(&name, "native") };
        let artifact = aot::compile(&model, &whole).unwrap();
        let path = dir.path().join(format!("{name}.so"));
        let target = "native".parse().unwrap();
        link(LinkOutput::SharedLibrary, &name, &artifact.object, target, &Tools::default(), &path).unwrap();
        let library = Artifact::load(&path, &LoadOptions::default()).unwrap();
        let mut context = library.context(&pool).unwrap();
        let types: Vec<DenseType> = model.inputs().iter().map(|(_, ty)| ty.dense().unwrap()).collect();
        let session = model.compile(&types).unwrap();
        let plan = session.plan();
        let buffers: Vec<_> = plan.outputs.iter().map(|id| plan.buffer(*id).clone()).collect();
        let mut run = |integers: &[i64]| {
            let inputs = case.inputs(&model, integers);
            let reads: Vec<TensorRef<'_>> =
                inputs.iter().map(|(_, t)| TensorRef::new(t.dtype(), t.dims(), t.bytes())).collect();
            let mut memory: Vec<Vec<u8>> = buffers.iter().map(|b| vec![0; b.bytes() as usize]).collect();
            let mut writes: Vec<TensorMut<'_>> =
                buffers.iter().zip(&mut memory).map(|(b, m)| TensorMut::new(b.dtype, &b.dims, m)).collect();
            context.run(&reads, &mut writes)
        };
        run(case.right).unwrap_or_else(|e| panic!("{}: {e}", case.text()));
        match run(case.wrong) {
            Err(ArtifactError::Failed { status, message }) => {
                assert_eq!((status, message), (status::VALUE, case.expected()), "{}", case.text());
            }
            other => panic!("{}: {other:?}", case.text()),
        }
        run(case.right).unwrap();
    }
}
