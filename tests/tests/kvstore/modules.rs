//! Modules whose steps are shared out: micro-batches, devices, ranks.

use tensorc::DType;
use tensorc::runtime::Device;
use tensorc::symbol::{Symbol, name_scope, op};
use tensorc_data::{Batch, DataDesc};
use tensorc_nd::Runtime;
use tensorc_nd::executor::GradReq;
use tensorc_train::kvstore::KVStore;
use tensorc_train::{Initializer, Module, ModuleBuilder, Optimizer, Params};

use super::runtime;
use crate::several_gpus::{FIRST, SECOND, on_two};

/// Examples of a batch.
pub const BATCH: u64 = 8;

/// A network with a convolution, batch normalisation with its running statistics, dropout and a loss.
pub fn network() -> Symbol {
    let _names = name_scope();
    let data = Symbol::variable("data");
    let image =
        op("Convolution").input(&data).param("kernel", [3, 3]).param("num_filter", 4).name("conv").build().unwrap();
    let image = op("BatchNorm").input(&image).param("fix_gamma", false).name("bn").build().unwrap();
    let image = op("Activation").input(&image).param("act_type", "relu").name("relu").build().unwrap();
    let image = op("Dropout").input(&image).param("p", 0.25).name("drop").build().unwrap();
    let scores = op("FullyConnected").input(&image).param("num_hidden", 5).name("fc").build().unwrap();
    op("SoftmaxOutput").input(&scores).name("softmax").build().unwrap()
}

/// A batch of step `step`: rows `part` of `parts` of the whole.
pub fn batch(step: u64, part: u64, parts: u64) -> Batch {
    let rows = BATCH / parts;
    let first = part * rows;
    let value = |at: u64| ((at * 7919 + step * 104_729) % 1000) as f32 / 500.0 - 1.0;
    let pixels: Vec<f32> = (first * 36..(first + rows) * 36).map(value).collect();
    let labels: Vec<f32> = (first..first + rows).map(|row| ((row * 3 + step) % 5) as f32).collect();
    let host = |dims: &[u64], values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        tensorc_data::HostTensor::new(DType::F32, dims, bytes).unwrap()
    };
    Batch { data: vec![host(&[rows, 1, 6, 6], &pixels)], labels: vec![host(&[rows], &labels)], pad: 0, index: vec![] }
}

pub fn bound(rt: &Runtime, rows: u64, prepare: impl FnOnce(ModuleBuilder) -> ModuleBuilder) -> Module {
    let data = vec![DataDesc::new("data", DType::F32, &[rows, 1, 6, 6])];
    let labels = vec![DataDesc::new("softmax_label", DType::F32, &[rows])];
    let mut module = prepare(Module::of(rt, &network()).inputs(data, labels)).bind().unwrap();
    module.init_params(&Initializer::xavier(3.0)).unwrap();
    module.init_optimizer(Optimizer::sgd(0.1, 0.9).weight_decay(1e-3)).unwrap();
    module
}

/// Parameters and states after some steps on rows of the batches, and the outputs of the last one.
pub fn trained(module: &mut Module, steps: u64, part: u64, parts: u64) -> (Params, Vec<f32>) {
    for step in 0..steps {
        module.step(&batch(step, part, parts)).unwrap();
    }
    (module.params().unwrap(), module.outputs()[0].to_vec::<f32>().unwrap())
}

/// The same bits on one device and on several, for a number of micro-batches; outputs are those of the whole batch.
#[test]
fn devices_do_not_change_bits() {
    for micro in [2, 4, 8] {
        let rt = runtime();
        rt.seed(3);
        let mut one = bound(&rt, BATCH, |module| module.micro_batches(micro));
        rt.seed(9);
        let expected = trained(&mut one, 5, 0, 1);
        for devices in [2, 4] {
            if micro % devices != 0 {
                continue;
            }
            let rt = runtime();
            rt.seed(3);
            let devices: Vec<Device> = (0..devices as u16).map(Device::cpu).collect();
            let mut several = bound(&rt, BATCH, |module| module.devices(&devices).micro_batches(micro));
            rt.seed(9);
            assert_eq!(trained(&mut several, 5, 0, 1), expected, "{micro} micro-batches on {devices:?}");
        }
    }
}

/// Micro-batches compute what the whole batch does, where nothing depends on the division.
#[test]
fn micro_batches_learn_what_batches_do() {
    let _names = name_scope();
    let scores =
        op("FullyConnected").input(&Symbol::variable("data")).param("num_hidden", 5).name("fc").build().unwrap();
    let net = op("SoftmaxOutput").input(&scores).name("softmax").build().unwrap();
    let run = |prepare: fn(ModuleBuilder) -> ModuleBuilder| {
        let rt = runtime();
        let data = vec![DataDesc::new("data", DType::F32, &[BATCH, 1, 6, 6])];
        let labels = vec![DataDesc::new("softmax_label", DType::F32, &[BATCH])];
        let mut module = prepare(Module::of(&rt, &net).inputs(data, labels)).bind().unwrap();
        module.init_params(&Initializer::xavier(3.0)).unwrap();
        module.init_optimizer(Optimizer::adam(0.01)).unwrap();
        let (params, outputs) = trained(&mut module, 10, 0, 1);
        (params.arguments["fc_weight"].to_f32().unwrap(), outputs)
    };
    let whole = run(|module| module);
    let parts = run(|module| module.micro_batches(4));
    let close = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(close(&whole.0, &parts.0), "{:?} {:?}", whole.0, parts.0);
    assert!(close(&whole.1, &parts.1));
}

#[test]
fn divisions_that_leave_a_rest_are_refused() {
    let rt = runtime();
    let bind = |rows: u64, prepare: fn(ModuleBuilder) -> ModuleBuilder| {
        let data = vec![DataDesc::new("data", DType::F32, &[rows, 1, 6, 6])];
        let labels = vec![DataDesc::new("softmax_label", DType::F32, &[rows])];
        prepare(Module::of(&rt, &network()).inputs(data, labels)).bind().map(drop)
    };
    let uneven = bind(6, |module| module.micro_batches(4)).unwrap_err().to_string();
    assert!(uneven.contains("`data` has 6 examples, which 4 micro-batches do not divide"), "{uneven}");
    let places = bind(6, |module| module.devices(&[Device::cpu(0), Device::cpu(1)]).micro_batches(3)).unwrap_err();
    assert!(places.to_string().contains("3 micro-batches on 1 processes with 2 devices each"), "{places}");
    let added = bind(6, |module| module.micro_batches(2).grad_req(GradReq::Add)).unwrap_err().to_string();
    assert!(added.contains("use `GradReq::Write`"), "{added}");
    let mut module = bound(&rt, BATCH, |module| module.micro_batches(2));
    module.forward(&batch(0, 0, 1), true).unwrap();
    assert!(module.backward(&[]).unwrap_err().to_string().contains("use `step`"));
    assert!(module.feed(&batch(0, 0, 1)).unwrap_err().to_string().contains("use `step`"));
}

/// Two GPUs of the interpreter train to the bits of one.
#[test]
fn gpus_do_not_change_bits() {
    let run = |devices: &[Device]| {
        let (rt, _) = on_two(1);
        rt.seed(3);
        let mut module = bound(&rt, BATCH, |module| module.devices(devices).micro_batches(2));
        rt.seed(9);
        trained(&mut module, 3, 0, 1)
    };
    assert_eq!(run(&[FIRST, SECOND]), run(&[FIRST]));
}

/// Stores sum the arrays of two GPUs on one of them, and copy to both.
#[test]
fn gpus_share_values() {
    for kind in ["local", "device"] {
        let (rt, _) = on_two(2);
        let store = KVStore::create(&rt, kind).unwrap();
        let values: Vec<_> = [FIRST, SECOND].map(|gpu| rt.full(gpu, DType::F32, &[5, 3], 1.5).unwrap()).into();
        store.init(7, &values[1]).unwrap();
        store.set_optimizer(Optimizer::sgd(1.0, 0.0)).unwrap();
        store.push(7, &[&values[0], &values[1]], 0).unwrap();
        store.pull(7, &[&values[0], &values[1]], 0).unwrap();
        values.iter().for_each(|value| assert_eq!(value.to_vec::<f32>().unwrap(), [-1.5; 15]));
    }
}
