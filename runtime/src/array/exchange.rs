//! Exchanges of elements between the GPUs of several drivers: one operation that works on an array of each.

use std::sync::Arc;

use tensorc_abi::DType;

use super::driven::Driven;
use super::enqueued::{allocated, unwritten};
use super::launch::{ArrayLaunch, LaunchError, LaunchOutput, push};
use super::source::ArrayOperand;
use super::space::ArraySpace;
use super::uses::Touched;
use super::view::ArrayView;
use crate::engine::{Failure, OpName};
use crate::gpu::{Collective, CollectiveError, CollectiveRank, Exchange, KeepAliveQueue};

/// The arrays of an exchange, in the order of its devices, and what is done with them.
struct Arrays {
    exchange: Exchange,
    collective: Arc<dyn Collective>,
    views: Vec<ArrayView>,
}

/// Pushes an exchange between arrays of one type and shape, one on each device of `collective` in its order; returns before it
/// ran. It is enqueued as a whole on the streams for computing of all devices, behind what uses the arrays.
///
/// # Errors
/// The arrays are not such ones, or their elements are not exchanged; what goes wrong while running stays with the arrays that
/// would have been written.
pub fn exchange(
    space: &ArraySpace,
    name: &OpName,
    priority: i32,
    exchange: Exchange,
    collective: &Arc<dyn Collective>,
    views: Vec<ArrayView>,
) -> Result<(), LaunchError> {
    check(exchange, &**collective, &views)?;
    let streams: Vec<Arc<Driven>> =
        views.iter().map(|view| space.streams_of(view.device())).collect::<Result<_, _>>()?;
    let (mut inputs, mut outputs) = (vec![], vec![]);
    for (at, view) in views.iter().enumerate() {
        match (exchange.reads(at), exchange.writes(at)) {
            (true, true) => outputs.push(LaunchOutput::update(view.clone())),
            (false, true) => outputs.push(LaunchOutput::write(view.clone())),
            _ => inputs.push(ArrayOperand::View(view.clone())),
        }
    }
    let device = views[0].device();
    let request = ArrayLaunch { priority, ..ArrayLaunch::new(name, device, inputs, outputs) };
    let arrays = Arrays { exchange, collective: collective.clone(), views };
    push(request, None, |op, inputs, outputs| {
        let (storage, touched) = (space.storage().clone(), Touched::new(&inputs, &outputs));
        space.engine().push_enqueued(op, move |_, completion| {
            // SAFETY: called where the engine has given permission for every chunk of the lists, until the operation is
            // complete.
            let enqueue = |queues: &mut [KeepAliveQueue<'_>]| unsafe { enqueued(queues, arrays) };
            Driven::operate_together(&streams, &storage, touched, completion, enqueue);
        })
    })
}

fn check(exchange: Exchange, collective: &dyn Collective, views: &[ArrayView]) -> Result<(), CollectiveError> {
    let wrong = |why: String| Err(CollectiveError::Shape { why });
    let devices = collective.devices();
    if views.len() != devices.len() {
        return wrong(format!("{} arrays for an exchange between {} devices", views.len(), devices.len()));
    }
    if let Some(root) = exchange.root().filter(|root| *root >= devices.len()) {
        return wrong(format!("position {root} among {} devices", devices.len()));
    }
    let described = |view: &ArrayView| format!("{}{:?} on {}", view.dtype(), view.dims(), view.device());
    for (view, device) in views.iter().zip(devices) {
        let first = &views[0];
        if view.device() != *device || (view.dtype(), view.dims()) != (first.dtype(), first.dims()) {
            let expected = format!("{}{:?} on {device}", first.dtype(), first.dims());
            return wrong(format!("{} in an exchange, where {expected} is expected", described(view)));
        }
    }
    let dtype: DType = views[0].dtype();
    if collective.takes(dtype) { Ok(()) } else { Err(CollectiveError::Type { dtype }) }
}

/// Enqueues an exchange on the streams of its devices.
///
/// # Safety
/// The caller is inside an operation that reads or writes the variables of all views as the exchange does, until it is complete.
unsafe fn enqueued(queues: &mut [KeepAliveQueue<'_>], arrays: Arrays) -> Result<(), Failure> {
    let Arrays { exchange, collective, views } = arrays;
    if let Some(first) = queues.first_mut() {
        first.keep((views.clone(), collective.clone()));
    }
    let mut addresses = vec![];
    for (at, (queue, view)) in queues.iter_mut().zip(&views).enumerate() {
        // SAFETY: passed on from the caller; the view lies inside its chunk.
        let address = unsafe {
            match (exchange.writes(at), exchange.reads(at), view.chunk().address()) {
                (true, true, _) => allocated(queue, &LaunchOutput::update(view.clone()))?.add(view.range().start),
                (true, false, _) => allocated(queue, &LaunchOutput::write(view.clone()))?.add(view.range().start),
                (false, _, Some(start)) => start.add(view.range().start),
                (false, _, None) => unwritten(queue, view)?,
            }
        };
        addresses.push(address);
    }
    let parts: Vec<CollectiveRank<'_>> = queues
        .iter()
        .zip(addresses)
        .map(|(queue, address)| CollectiveRank { stream: queue.stream(), address })
        .collect();
    let (dtype, count) = (views[0].dtype(), views[0].len() as usize);
    // SAFETY: each address is that of a view of this type and length; the views are kept until the exchange has ended, and the
    // streams are ordered with every other use of them.
    unsafe { collective.exchange(exchange, dtype, count, &parts) }?;
    Ok(())
}
