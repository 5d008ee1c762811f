//! Groups of devices.

use std::sync::Arc;

use tensorc_runtime::Device;
use tensorc_runtime::gpu::{CollectiveError, Driver, join};
use tensorc_simulator::HostDriver;

fn host(id: u16) -> Arc<dyn Driver> {
    Arc::new(HostDriver::new(Device::accelerator(id)))
}

#[test]
fn devices_that_cannot_be_joined_are_refused() {
    assert_eq!(join(&[]).err(), Some(CollectiveError::Few { found: 0 }));
    assert_eq!(join(&[host(0)]).err(), Some(CollectiveError::Few { found: 1 }));
    let twice = join(&[host(0), host(1), host(0)]).err();
    assert_eq!(twice, Some(CollectiveError::Twice { device: Device::accelerator(0) }));
    let expected = match cfg!(feature = "nccl") {
        true => CollectiveError::Foreign { device: Device::accelerator(0) },
        false => CollectiveError::NotBuilt,
    };
    assert_eq!(join(&[host(0), host(1)]).err(), Some(expected));
}
