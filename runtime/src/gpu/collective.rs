//! Devices that exchange elements with each other by a library of their maker.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use tensorc_abi::DType;

use crate::device::Device;
use crate::driver::{Driver, DriverError, LaunchStream};

/// What devices do together with arrays of one type and length, one on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every array becomes the sum of all.
    AllReduce,
    /// The array of the device at this position becomes the sum of all; the others stay.
    Reduce {
        /// Position of the device.
        root: usize,
    },
    /// Every array becomes a copy of that of the device at this position.
    Broadcast {
        /// Position of the device.
        root: usize,
    },
}

impl Exchange {
    /// The position that differs from the others.
    pub(crate) fn root(self) -> Option<usize> {
        match self {
            Exchange::AllReduce => None,
            Exchange::Reduce { root } | Exchange::Broadcast { root } => Some(root),
        }
    }

    /// Whether the old elements of the device at a position matter.
    pub(crate) fn reads(self, position: usize) -> bool {
        !matches!(self, Exchange::Broadcast { root } if root != position)
    }

    /// Whether the device at a position gets new elements.
    pub fn writes(self, position: usize) -> bool {
        match self {
            Exchange::AllReduce => true,
            Exchange::Reduce { root } => root == position,
            Exchange::Broadcast { root } => root != position,
        }
    }
}

/// A device's part of an exchange.
#[derive(Clone, Copy)]
pub struct CollectiveRank<'a> {
    /// The stream of the device that the exchange is enqueued on.
    pub stream: &'a dyn LaunchStream,
    /// Where its elements are in the device's memory; what it gets is written there.
    pub address: *mut u8,
}

/// Devices that were joined; see [`join`].
pub trait Collective: fmt::Debug + Send + Sync {
    /// In the order in which they were joined. There are two or more, all different.
    fn devices(&self) -> &[Device];

    /// Whether elements of this type are exchanged.
    fn takes(&self, dtype: DType) -> bool;

    /// Enqueues an exchange of `count` elements on a stream of each device, in the order of [`Collective::devices`], behind
    /// everything before it. Sums are computed in an order of the library's. If a stream has failed, nothing is enqueued on
    /// any of them: the others would wait for ever.
    ///
    /// # Errors
    /// The library refuses it, or an earlier exchange has failed; none is possible any more then.
    ///
    /// # Safety
    /// The addresses are in the memory of the devices, multiples of the element's size and valid for the elements until all
    /// streams have passed; nobody else uses what is written, or writes what is read, other than work ordered with the stream
    /// of that device.
    unsafe fn exchange(
        &self,
        exchange: Exchange,
        dtype: DType,
        count: usize,
        parts: &[CollectiveRank<'_>],
    ) -> Result<(), CollectiveError>;
}

/// Why devices cannot exchange elements.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// This build was made without the feature `nccl`.
    #[error("this build has no NCCL; build with the feature `nccl`")]
    NotBuilt,
    /// The library was not found.
    #[error("NCCL is not installed here (libnccl.so.2 was not found)")]
    NotInstalled,
    /// The library lacks a function.
    #[error("the NCCL that is installed here has no {function}")]
    NoFunction {
        /// The symbol.
        function: &'static str,
    },
    /// The library is older than 2.10.
    #[error("the NCCL that is installed here has the version {version}; 21000 (2.10) is the least")]
    TooOld {
        /// Its version, as `ncclGetVersion` gives it.
        version: i32,
    },
    /// There are fewer than two devices.
    #[error("NCCL sums over two or more GPUs, not over {found}")]
    Few {
        /// How many there are.
        found: usize,
    },
    /// A device is named twice.
    #[error("{device} is named twice; NCCL takes a device once")]
    Twice {
        /// The device.
        device: Device,
    },
    /// A device has no driver, or one that is not CUDA's.
    #[error("{device} is not a GPU of CUDA's driver, as NCCL needs it")]
    Foreign {
        /// The device.
        device: Device,
    },
    /// Elements of this type are not exchanged.
    #[error("NCCL adds no elements of {dtype}")]
    Type {
        /// The type.
        dtype: DType,
    },
    /// What is exchanged does not fit the devices.
    #[error("{why}")]
    Shape {
        /// What does not fit.
        why: String,
    },
    /// A call failed at once.
    #[error("{call} failed: {why}")]
    Call {
        /// The function of NCCL.
        call: &'static str,
        /// NCCL's text of the error.
        why: String,
    },
    /// NCCL told later that it cannot go on.
    #[error("NCCL's communicator of {device} has failed: {why}")]
    Later {
        /// The device of the communicator.
        device: Device,
        /// NCCL's text of the error.
        why: String,
    },
    /// What an earlier exchange failed with.
    #[error("NCCL is not used any more, since {first}")]
    Broken {
        /// The error of that exchange.
        first: Box<CollectiveError>,
    },
    /// Nothing was enqueued as the stream of one device had failed.
    #[error("no exchange behind a failure: {why}")]
    Behind {
        /// The failure of the stream.
        why: String,
    },
    /// The driver of a device refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Joins devices of one process by NCCL, which is looked for when this is first called.
///
/// # Errors
/// This build was made without the feature `nccl`, the library is not installed, is older than 2.10 or refuses; there are fewer
/// than two devices, one is named twice or is not NVIDIA's.
pub fn join(drivers: &[Arc<dyn Driver>]) -> Result<Arc<dyn Collective>, CollectiveError> {
    if drivers.len() < 2 {
        return Err(CollectiveError::Few { found: drivers.len() });
    }
    for (at, driver) in drivers.iter().enumerate() {
        let device = driver.device();
        if drivers[..at].iter().any(|earlier| earlier.device() == device) {
            return Err(CollectiveError::Twice { device });
        }
    }
    let as_any: Vec<(Device, &dyn Any)> = drivers.iter().map(|d| (d.device(), &**d as &dyn Any)).collect();
    joined(&as_any)
}

#[cfg(feature = "nccl")]
fn joined(drivers: &[(Device, &dyn Any)]) -> Result<Arc<dyn Collective>, CollectiveError> {
    let own = |(device, driver): &(Device, &dyn Any)| {
        driver.downcast_ref::<super::CudaDriver>().cloned().ok_or(CollectiveError::Foreign { device: *device })
    };
    let drivers = drivers.iter().map(own).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(super::cuda::Communicators::new(&drivers)?))
}

#[cfg(not(feature = "nccl"))]
fn joined(_: &[(Device, &dyn Any)]) -> Result<Arc<dyn Collective>, CollectiveError> {
    Err(CollectiveError::NotBuilt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_say_what_they_touch() {
        let touched = |exchange: Exchange| [0, 1].map(|at| (exchange.reads(at), exchange.writes(at)));
        assert_eq!(touched(Exchange::AllReduce), [(true, true); 2]);
        assert_eq!(touched(Exchange::Reduce { root: 1 }), [(true, false), (true, true)]);
        assert_eq!(touched(Exchange::Broadcast { root: 1 }), [(false, true), (true, false)]);
    }
}
