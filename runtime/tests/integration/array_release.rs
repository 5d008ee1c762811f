//! Operations over views whose results become available one after the other.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tensorc_abi::DType;
use tensorc_runtime::array::{
    ArrayLaunch, ArrayOperand, ArraySpace, ArrayView, Chunk, LaunchOutput, Tell, launch, launch_releasing, read,
};
use tensorc_runtime::engine::{EngineConfig, EngineKind, OpName, Property};
use tensorc_runtime::storage::StorageConfig;
use tensorc_runtime::{Device, TensorMut, TensorRef};
use tensorc_simulator::HostDriver;

static NAME: OpName = OpName::from_static("test");
const PATIENCE: Duration = Duration::from_secs(20);
const N: u64 = 4;

fn config(kind: EngineKind) -> EngineConfig {
    EngineConfig { kind, cpu_workers: 2, ..EngineConfig::default() }
}

fn request(device: Device, inputs: Vec<ArrayOperand>, outputs: Vec<LaunchOutput>) -> ArrayLaunch<'static> {
    ArrayLaunch { name: &NAME, device, property: Property::Normal, priority: 0, inputs, outputs }
}

fn array(space: &ArraySpace, device: Device) -> ArrayView {
    let view = ArrayView::whole(Chunk::new(space, device, N), DType::U8, &[N]).unwrap();
    launch(space, request(device, vec![], vec![LaunchOutput::write(view.clone())]), |_, outputs| {
        outputs[0].data.fill(1);
        Ok(())
    })
    .unwrap();
    view
}

fn found(space: &ArraySpace, view: &ArrayView) -> Result<Vec<u8>, String> {
    read(space, &NAME, view).map_err(|error| error.to_string())
}

/// Results that are overwritten, overwritten in part, inputs as well, and updated; the last one is not told. The first is
/// read and overwritten while the operation goes on.
#[test]
fn results_that_are_overwritten_are_available_at_once() {
    for kind in [EngineKind::Pooled, EngineKind::PerDevice] {
        for fails in [false, true] {
            let space = ArraySpace::new(config(kind), StorageConfig::default()).unwrap();
            let views: Vec<ArrayView> = (0..5).map(|_| array(&space, Device::cpu(0))).collect();
            let [whole, part, input, update, untold] = &views[..] else { panic!() };
            let outputs = vec![
                LaunchOutput::write(part.rows(0, 2).unwrap()),
                LaunchOutput::write(whole.clone()),
                LaunchOutput::write(input.clone()),
                LaunchOutput::update(update.clone()),
                LaunchOutput::write(untold.clone()),
            ];
            let ((go, wait), launched) =
                (channel(), request(Device::cpu(0), vec![ArrayOperand::View(input.clone())], outputs));
            let body = move |_: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>], tell: Tell<'_>| {
                outputs.iter_mut().for_each(|output| output.data.fill(7));
                (0..4).chain([1, 9]).for_each(tell);
                wait.recv_timeout(PATIENCE)?;
                if fails { Err("late".into()) } else { Ok(()) }
            };
            // SAFETY: it only waits after it has told.
            unsafe { launch_releasing(&space, launched, body) }.unwrap();
            assert_eq!(found(&space, whole).unwrap(), [7; 4]);
            let again = request(
                Device::cpu(0),
                vec![ArrayOperand::View(whole.clone())],
                vec![LaunchOutput::write(whole.clone())],
            );
            launch(&space, again, |inputs, outputs| {
                outputs[0].data.copy_from_slice(inputs[0].data);
                outputs[0].data[0] += 1;
                Ok(())
            })
            .unwrap();
            assert_eq!(found(&space, whole).unwrap(), [8, 7, 7, 7]);
            for held in [part, input, update, untold] {
                assert_eq!(space.engine().version(held.chunk().var()), 1, "held until the end");
            }
            go.send(()).unwrap();
            for (view, expected) in [(part, [7, 7, 1, 1]), (input, [7; 4]), (update, [7; 4]), (untold, [7; 4])] {
                let found = found(&space, view);
                assert!(if fails { found.unwrap_err().contains("late") } else { found.unwrap() == expected });
            }
            assert_eq!(found(&space, whole).unwrap(), [8, 7, 7, 7]);
        }
    }
}

/// On a driver's device, results become available together.
#[test]
fn devices_make_results_available_at_the_end() {
    for kind in EngineKind::ALL {
        let device = Device::accelerator(0);
        let driver = Arc::new(HostDriver::with_seed(device, 1));
        let space = ArraySpace::with_drivers(config(kind), StorageConfig::default(), vec![driver]).unwrap();
        for fails in [false, true] {
            let view = array(&space, device);
            let launched = request(device, vec![], vec![LaunchOutput::write(view.clone())]);
            let body = move |_: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>], tell: Tell<'_>| {
                outputs[0].data.fill(7);
                tell(0);
                if fails { Err("late".into()) } else { Ok(()) }
            };
            // SAFETY: it does nothing after it has told.
            unsafe { launch_releasing(&space, launched, body) }.unwrap();
            let found = found(&space, &view);
            assert!(if fails { found.unwrap_err().contains("late") } else { found.unwrap() == [7; 4] });
        }
    }
}
