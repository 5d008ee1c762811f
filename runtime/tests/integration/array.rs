//! Operations over views: aliasing, partial results, memory that is shared and lent.

use std::sync::Arc;

use bytes::Bytes;
use tensorc_abi::DType;
use tensorc_runtime::array::{
    ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, Extents, Inline, LaunchError, LaunchOutput, launch, lend,
    read,
};
use tensorc_runtime::dlpack::Imported;
use tensorc_runtime::engine::{EngineConfig, EngineKind, OpName, Property};
use tensorc_runtime::gpu::DriverError;
use tensorc_runtime::storage::{AllocCause, AllocError, StorageConfig};
use tensorc_runtime::{Device, TensorMut, TensorRef};
use tensorc_simulator::HostDriver;

static NAME: OpName = OpName::from_static("test");

const GPU: Device = Device::accelerator(0);

fn config(kind: EngineKind) -> EngineConfig {
    EngineConfig { kind, cpu_workers: 2, ..EngineConfig::default() }
}

/// With a GPU made of the host.
fn spaces() -> Vec<ArraySpace> {
    let driver = |seed| Arc::new(HostDriver::with_seed(GPU, seed));
    let space =
        |(seed, kind)| ArraySpace::with_drivers(config(kind), StorageConfig::default(), vec![driver(seed)]).unwrap();
    (0..).zip(EngineKind::ALL).map(space).collect()
}

#[test]
fn a_gpu_without_a_driver_is_an_error() {
    let nothing = ArraySpace::new(config(EngineKind::PerDevice), StorageConfig::default()).unwrap();
    let other = Arc::new(HostDriver::new(Device::accelerator(3)));
    let other = ArraySpace::with_drivers(config(EngineKind::PerDevice), StorageConfig::default(), vec![other]).unwrap();
    for (space, known) in [(nothing, "nor for any other GPU"), (other, "only for gpu:3")] {
        let view = ArrayView::whole(Chunk::new(&space, GPU, 4), DType::U8, &[4]).unwrap();
        let error =
            launch(&space, request(GPU, vec![], vec![LaunchOutput::write(view.clone())]), |_, _| Ok(())).unwrap_err();
        let LaunchError::Driver(DriverError { device, message }) = &error else { panic!("{error}") };
        assert!(
            *device == GPU && message.starts_with("there is no driver for it") && message.contains(known),
            "{error}"
        );
        assert!(matches!(Chunk::copy_of(&space, GPU, &[1]), Err(AllocError { cause: AllocCause::NoDriver, .. })));
        assert_eq!(read(&space, &NAME, &view).unwrap_err().to_string(), error.to_string());
    }
}

fn array(space: &ArraySpace, device: Device, values: &[u8]) -> ArrayView {
    let dims = [values.len() as u64];
    if !space.is_driven(device) {
        return ArrayView::whole(Chunk::copy_of(space, device, values).unwrap(), DType::U8, &dims).unwrap();
    }
    let view = ArrayView::whole(Chunk::new(space, device, dims[0]), DType::U8, &dims).unwrap();
    let data = Bytes::copy_from_slice(values);
    let from = ArrayOperand::Host { dtype: DType::U8, dims: Extents::from_slice(&dims), data };
    launch(space, request(device, vec![from], vec![LaunchOutput::write(view.clone())]), |inputs, outputs| {
        outputs[0].data.copy_from_slice(inputs[0].data);
        Ok(())
    })
    .unwrap();
    view
}

fn bytes(space: &ArraySpace, view: &ArrayView) -> Vec<u8> {
    read(space, &NAME, view).unwrap()
}

fn request(device: Device, inputs: Vec<ArrayOperand>, outputs: Vec<LaunchOutput>) -> ArrayLaunch<'static> {
    ArrayLaunch { name: &NAME, device, property: Property::Normal, priority: 0, inputs, outputs }
}

/// Element i of the result is the sum of element i of one input and element n - 1 - i of the other,
/// so that reading after writing would be seen.
fn add_reversed(inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) {
    let (a, b) = (inputs[0].data, inputs[1].data);
    for (i, out) in outputs[0].data.iter_mut().enumerate() {
        *out = a[i].wrapping_add(b[b.len() - 1 - i]);
    }
}

#[test]
fn inputs_are_read_before_results_take_their_place() {
    for space in spaces() {
        for device in [Device::cpu(0), GPU] {
            let a = array(&space, device, &[1, 2, 3, 4]);
            let both = vec![ArrayOperand::View(a.clone()), ArrayOperand::View(a.clone())];
            launch(&space, request(device, both, vec![LaunchOutput::write(a.clone())]), |inputs, outputs| {
                add_reversed(inputs, outputs);
                Ok(())
            })
            .unwrap();
            assert_eq!(bytes(&space, &a), [5, 5, 5, 5]);
            // Parts of one chunk, overlapping.
            let b = array(&space, device, &[1, 2, 3, 4, 5]);
            let (low, high) = (b.rows(0, 4).unwrap(), b.rows(1, 5).unwrap());
            let both = vec![ArrayOperand::View(low.clone()), ArrayOperand::View(low)];
            launch(&space, request(device, both, vec![LaunchOutput::write(high)]), |inputs, outputs| {
                add_reversed(inputs, outputs);
                Ok(())
            })
            .unwrap();
            assert_eq!(bytes(&space, &b), [1, 5, 5, 5, 5]);
        }
    }
}

#[test]
fn updates_find_the_old_elements() {
    for space in spaces() {
        let a = array(&space, Device::cpu(0), &[1, 2, 3, 4]);
        let tail = a.rows(2, 4).unwrap();
        for inputs in [vec![], vec![ArrayOperand::View(a.clone())]] {
            launch(&space, request(Device::cpu(0), inputs, vec![LaunchOutput::update(tail.clone())]), |_, outputs| {
                outputs[0].data[0] += 10;
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(bytes(&space, &a), [1, 2, 23, 4]);
    }
}

/// A failed operation leaves the operand it was to replace as it was, under the error.
#[test]
fn errors_stay_until_the_whole_is_overwritten() {
    for space in spaces() {
        let a = array(&space, Device::cpu(0), &[1, 2]);
        launch(&space, request(Device::cpu(0), vec![], vec![LaunchOutput::write(a.clone())]), |_, _| Err("no".into()))
            .unwrap();
        for _ in 0..2 {
            assert!(read(&space, &NAME, &a).unwrap_err().to_string().contains("no"));
        }
        let part = LaunchOutput::write(a.rows(0, 1).unwrap());
        launch(&space, request(Device::cpu(0), vec![], vec![part]), |_, _| Ok(())).unwrap();
        assert!(read(&space, &NAME, &a).is_err());
        launch(&space, request(Device::cpu(0), vec![], vec![LaunchOutput::write(a.clone())]), |_, outputs| {
            outputs[0].data.fill(9);
            Ok(())
        })
        .unwrap();
        assert_eq!(bytes(&space, &a), [9, 9]);
    }
}

#[test]
fn a_panic_on_a_stream_is_an_error_of_the_result() {
    for space in spaces() {
        for device in [Device::cpu(0), GPU] {
            let a = array(&space, device, &[1]);
            launch(&space, request(device, vec![], vec![LaunchOutput::write(a.clone())]), |_, _| {
                panic!("broken kernel")
            })
            .unwrap();
            let error = read(&space, &NAME, &a).unwrap_err().to_string();
            assert!(error.contains("broken kernel") && error.contains(&device.to_string()), "{error}");
        }
    }
}

#[test]
fn results_must_not_overlap() {
    let space = &spaces()[0];
    let a = array(space, Device::cpu(0), &[1, 2, 3]);
    let two = vec![LaunchOutput::write(a.rows(0, 2).unwrap()), LaunchOutput::write(a.rows(1, 3).unwrap())];
    let error = launch(space, request(Device::cpu(0), vec![], two), |_, _| Ok(())).unwrap_err();
    assert!(matches!(error, LaunchError::Overlap { first: 0, second: 1, .. }), "{error}");
}

/// Memory that nobody wrote reads as zeros, and small values travel with the operation.
#[test]
fn every_kind_of_operand_is_seen() {
    for space in spaces() {
        let fresh = ArrayView::whole(Chunk::new(&space, Device::cpu(0), 2), DType::U8, &[2]).unwrap();
        let out = ArrayView::whole(Chunk::new(&space, Device::cpu(0), 16), DType::U8, &[16]).unwrap();
        let host = bytes::Bytes::from_static(&[7, 8]);
        let inputs = vec![
            ArrayOperand::View(fresh),
            ArrayOperand::Inline(Inline::vector(&[1u32, 2]).unwrap()),
            ArrayOperand::Inline(Inline::scalar(DType::I16, &[5, 0]).unwrap()),
            ArrayOperand::Host { dtype: DType::U8, dims: [2].as_slice().into(), data: host },
        ];
        launch(&space, request(Device::cpu(0), inputs, vec![LaunchOutput::write(out.clone())]), |inputs, outputs| {
            let all: Vec<u8> = inputs.iter().flat_map(|input| input.data.to_vec()).collect();
            outputs[0].data[..all.len()].copy_from_slice(&all);
            outputs[0].data[all.len()..].fill(0);
            Ok(())
        })
        .unwrap();
        assert_eq!(bytes(&space, &out)[..14], [0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 7, 8]);
    }
    assert!(Inline::vector(&[1u32, 2, 3]).is_none());
    assert!(Inline::scalar(DType::I64, &[1]).is_none());
}

/// Lent memory is the array's own, stays where it is, and outlives the array.
#[test]
fn lent_memory_is_shared() {
    for space in spaces() {
        let a = array(&space, Device::cpu(0), &[1, 2, 3, 4]);
        let tensor = lend(&space, &NAME, &a.rows(1, 3).unwrap()).unwrap();
        // SAFETY: `lend` made the tensor for us alone.
        let taken = unsafe { Imported::from_versioned(tensor) }.unwrap();
        assert_eq!((taken.dtype(), taken.dims(), taken.as_slice()), (DType::U8, &[2][..], &[2, 3][..]));
        // The operation replaces the whole, reading it: memory that is lent is written in place.
        let inputs = vec![ArrayOperand::View(a.clone()), ArrayOperand::View(a.clone())];
        launch(&space, request(Device::cpu(0), inputs, vec![LaunchOutput::write(a.clone())]), |inputs, outputs| {
            add_reversed(inputs, outputs);
            Ok(())
        })
        .unwrap();
        assert_eq!(bytes(&space, &a), [5, 5, 5, 5]);
        assert_eq!(taken.as_slice(), [5, 5]);
        let view = ArrayView::whole(Chunk::foreign(&space, Device::cpu(0), taken), DType::U8, &[2]).unwrap();
        let weak = Arc::downgrade(a.chunk());
        drop(a);
        space.engine().wait_all().unwrap();
        assert_eq!(bytes(&space, &view), [5, 5]);
        assert!(weak.upgrade().is_some(), "the importer keeps the memory");
        drop(view);
        space.engine().wait_all().unwrap();
        assert!(weak.upgrade().is_none());
    }
}
