//! What a run takes from its caller: which tensors, and where their addresses go.
//!
//! A plan of two phases has three interfaces: of the whole run, and of each phase, which leaves out
//! what it does not use.

use std::ops::Range;

use tensorc_abi::image::slot;
use tensorc_abi::{Buffer, BufferId, DType, Plan, StorageClass};

use super::error::{PlanEdge, RunError};
use super::executable::Prepared;
use crate::tensor::{TensorMut, TensorRef};

/// A part of a run of a plan with a boundary. What the first leaves in the arena, the second finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The steps before the boundary: forward.
    First,
    /// The steps from the boundary on: backward and updates.
    Second,
}

/// The caller's tensors, in the order of the plan's lists.
#[derive(Debug)]
pub struct Bindings<'a, 's, 'o> {
    /// Read. A phase takes the states it only reads behind its inputs.
    pub inputs: &'a [TensorRef<'a>],
    /// Read, written or both.
    pub states: &'a mut [TensorMut<'s>],
    /// Written.
    pub outputs: &'a mut [TensorMut<'o>],
}

impl<'a, 'o> Bindings<'a, '_, 'o> {
    /// Of a plan without states.
    pub fn new(inputs: &'a [TensorRef<'a>], outputs: &'a mut [TensorMut<'o>]) -> Self {
        Bindings { inputs, states: &mut [], outputs }
    }
}

/// A tensor in the memory of a device, row-major and without gaps.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTensor<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: &'a [u64],
    /// A multiple of [`DeviceTensor::ALIGN`] unless the tensor is empty.
    pub address: *mut u8,
}

impl DeviceTensor<'_> {
    /// Kernels move as many bytes at once.
    pub const ALIGN: usize = 16;

    /// Size of the elements in bytes.
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<u64>() as usize * self.dtype.size()
    }
}

/// The caller's tensors on a device, in the order of the plan's lists, as in [`Bindings`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceBindings<'a> {
    /// Read. A phase takes the states it only reads behind its inputs.
    pub inputs: &'a [DeviceTensor<'a>],
    /// Read, written or both.
    pub states: &'a [DeviceTensor<'a>],
    /// Written.
    pub outputs: &'a [DeviceTensor<'a>],
}

/// What a phase takes from the caller: ascending positions in the lists of the plan. The tensors
/// are given in this order: `inputs` and behind them `read_states` as [`Bindings::inputs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// In [`Plan::inputs`].
    pub inputs: Vec<usize>,
    /// In [`Plan::states`]: those that are read and not written.
    pub read_states: Vec<usize>,
    /// In [`Plan::states`]: those that are written, and perhaps read.
    pub states: Vec<usize>,
    /// In [`Plan::outputs`].
    pub outputs: Vec<usize>,
}

/// What lies behind an entry of the argument table.
type Slot = [u64; slot::WORDS];

/// An entry of the argument table whose address the caller provides with each run.
struct Patch {
    slot: usize,
    /// Position among the tensors of its kind.
    index: usize,
    /// Bytes from its start, where the argument is a part of it.
    offset: usize,
}

/// An output that no call uses any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Final {
    /// Position of the first call from which on that is so.
    pub from: usize,
    /// Position in [`Needs::outputs`].
    pub output: usize,
}

/// Tensors of one kind.
#[derive(Default)]
struct BoundTensors {
    buffers: Vec<(PlanEdge, BufferId)>,
    patches: Vec<Patch>,
}

/// The tensors of a run or a phase, and the entries of the argument table they fill.
pub(super) struct Interface {
    pub needs: Needs,
    /// Positions of its calls.
    pub calls: Range<usize>,
    /// Outputs that calls use, in the order in which they become final.
    pub finals: Vec<Final>,
    inputs: BoundTensors,
    states: BoundTensors,
    outputs: BoundTensors,
}

impl Interface {
    /// The interface of the whole run, then, where there are two, those of the phases.
    pub fn all(plan: &Plan, calls: &[Prepared], slots: &[Slot]) -> Vec<Interface> {
        let everything = Needs::all(plan.inputs.len(), plan.states.len(), plan.outputs.len());
        let used = (0..).zip(slots.iter().copied());
        let mut all = vec![Interface::new(plan, everything, calls, 0..calls.len(), used)];
        if plan.boundary.is_some() {
            let middle = calls.partition_point(|call| !plan.in_second_phase(call.step));
            for range in [0..middle, middle..calls.len()] {
                let first = calls.get(range.start).map_or(slots.len(), |call| call.call.first_slot);
                let end = calls.get(range.end).map_or(slots.len(), |call| call.call.first_slot);
                let used = (first..end).zip(slots[first..end].iter().copied());
                let needs = Needs::of(plan, &calls[range.clone()]);
                all.push(Interface::new(plan, needs, calls, range, used));
            }
        }
        all
    }

    fn new(
        plan: &Plan,
        needs: Needs,
        all: &[Prepared],
        calls: Range<usize>,
        slots: impl Iterator<Item = (usize, Slot)>,
    ) -> Interface {
        let listed = |side, list: &[BufferId], some: &[usize]| -> Vec<(PlanEdge, BufferId)> {
            some.iter().map(|i| (side, list[*i])).collect()
        };
        let mut read = listed(PlanEdge::Input, &plan.inputs, &needs.inputs);
        read.extend(listed(PlanEdge::State, &plan.states, &needs.read_states));
        let group = |buffers| BoundTensors { buffers, patches: vec![] };
        let mut interface = Interface {
            inputs: group(read),
            states: group(listed(PlanEdge::State, &plan.states, &needs.states)),
            outputs: group(listed(PlanEdge::Output, &plan.outputs, &needs.outputs)),
            finals: vec![],
            needs,
            calls,
        };
        for (slot, [home, index, offset]) in slots {
            let (needs, index) = (&interface.needs, index as usize);
            let place = |list: &[usize]| list.binary_search(&index).ok();
            let (group, index) = match home {
                slot::INPUT => (&mut interface.inputs, place(&needs.inputs)),
                slot::OUTPUT => (&mut interface.outputs, place(&needs.outputs)),
                slot::STATE => match place(&needs.states) {
                    Some(at) => (&mut interface.states, Some(at)),
                    None => {
                        let behind = needs.inputs.len();
                        (&mut interface.inputs, place(&needs.read_states).map(|at| behind + at))
                    }
                },
                _ => continue,
            };
            group.patches.extend(index.map(|index| Patch { slot, index, offset: offset as usize }));
        }
        interface.finals = interface.outputs.finals(all);
        interface
    }

    /// Arguments begin elsewhere in the caller's tensors, as these entries of the argument table say.
    pub fn shift(&mut self, slots: &[Slot]) {
        for group in [&mut self.inputs, &mut self.states, &mut self.outputs] {
            for patch in &mut group.patches {
                patch.offset = slots[patch.slot][slot::OFFSET] as usize;
            }
        }
    }

    /// Checks the caller's tensors and enters their addresses into the argument table.
    pub fn bind(&self, plan: &Plan, table: &mut [*mut u8], bindings: Bindings<'_, '_, '_>) -> Result<(), RunError> {
        let Bindings { inputs, states, outputs } = bindings;
        self.check_inputs(plan, inputs)?;
        self.states.check(plan, PlanEdge::State, states.iter().map(|t| (t.dtype, t.dims, &*t.data)))?;
        self.check_outputs(plan, outputs)?;
        for patch in &self.inputs.patches {
            table[patch.slot] = inputs[patch.index].data.as_ptr().cast_mut().wrapping_add(patch.offset);
        }
        for patch in &self.states.patches {
            table[patch.slot] = states[patch.index].data.as_mut_ptr().wrapping_add(patch.offset);
        }
        for patch in &self.outputs.patches {
            table[patch.slot] = outputs[patch.index].data.as_mut_ptr().wrapping_add(patch.offset);
        }
        Ok(())
    }
}

impl Interface {
    /// Checks tensors to read.
    pub fn check_inputs(&self, plan: &Plan, inputs: &[TensorRef<'_>]) -> Result<(), RunError> {
        self.inputs.check(plan, PlanEdge::Input, inputs.iter().map(|t| (t.dtype, t.dims, t.data)))
    }

    /// Checks tensors to write.
    pub fn check_outputs(&self, plan: &Plan, outputs: &[TensorMut<'_>]) -> Result<(), RunError> {
        self.outputs.check(plan, PlanEdge::Output, outputs.iter().map(|t| (t.dtype, t.dims, &*t.data)))
    }

    /// As [`Interface::bind`], with tensors on the device.
    pub fn bind_device(
        &self,
        plan: &Plan,
        table: &mut [*mut u8],
        bindings: DeviceBindings<'_>,
    ) -> Result<(), RunError> {
        let DeviceBindings { inputs, states, outputs } = bindings;
        let all = [(&self.inputs, PlanEdge::Input, inputs), (&self.states, PlanEdge::State, states)];
        for (group, side, given) in all.into_iter().chain([(&self.outputs, PlanEdge::Output, outputs)]) {
            group.count(plan, side, given.len())?;
            for ((side, id), tensor) in group.buffers.iter().zip(given) {
                let buffer = plan.buffer(*id);
                check_type(*side, buffer, tensor.dtype, tensor.dims)?;
                if !buffer.is_empty() && !tensor.address.addr().is_multiple_of(DeviceTensor::ALIGN) {
                    let (name, align) = (buffer.name.clone(), DeviceTensor::ALIGN);
                    return Err(RunError::Alignment { side: *side, name, dtype: tensor.dtype, align });
                }
            }
            for patch in &group.patches {
                table[patch.slot] = given[patch.index].address.wrapping_add(patch.offset);
            }
        }
        Ok(())
    }

    /// Enters the addresses of buffers that stand for the caller's tensors into the argument table.
    pub fn place(&self, table: &mut [*mut u8], at: impl Fn(BufferId) -> *mut u8) {
        for group in [&self.inputs, &self.states, &self.outputs] {
            for patch in &group.patches {
                table[patch.slot] = at(group.buffers[patch.index].1).wrapping_add(patch.offset);
            }
        }
    }
}

impl Needs {
    /// So many inputs, states and outputs; the states are written.
    pub fn all(inputs: usize, states: usize, outputs: usize) -> Needs {
        let [inputs, states, outputs] = [inputs, states, outputs].map(|count| (0..count).collect());
        Needs { inputs, read_states: vec![], states, outputs }
    }

    /// What some steps use.
    fn of(plan: &Plan, calls: &[Prepared]) -> Needs {
        let mut inputs = vec![false; plan.inputs.len()];
        let mut outputs = vec![false; plan.outputs.len()];
        let mut states = vec![(false, false); plan.states.len()];
        for arg in calls.iter().flat_map(|call| plan.steps[call.step].op.args()) {
            match plan.buffer(arg.buffer).storage {
                StorageClass::Input(i) => inputs[i as usize] = true,
                StorageClass::Output(i) => outputs[i as usize] = true,
                StorageClass::State(i) => {
                    let (used, written) = &mut states[i as usize];
                    (*used, *written) = (true, *written || arg.writes);
                }
                StorageClass::Weight(_) | StorageClass::Arena(_) => {}
            }
        }
        let places = |flags: Vec<bool>| (0..flags.len()).filter(|i| flags[*i]).collect();
        Needs {
            inputs: places(inputs),
            read_states: places(states.iter().map(|(used, written)| *used && !*written).collect()),
            states: places(states.iter().map(|(_, written)| *written).collect()),
            outputs: places(outputs),
        }
    }
}

impl BoundTensors {
    /// The last use of each tensor, under whatever name: all parts and aliases of it are patched with its address.
    fn finals(&self, calls: &[Prepared]) -> Vec<Final> {
        let mut last = vec![None; self.buffers.len()];
        for patch in &self.patches {
            last[patch.index] = last[patch.index].max(Some(patch.slot));
        }
        let after = |slot: usize| calls.partition_point(|call| call.call.first_slot <= slot);
        let found = last.iter().enumerate().filter_map(|(output, slot)| Some(Final { from: after((*slot)?), output }));
        let mut finals: Vec<Final> = found.collect();
        finals.sort_unstable();
        finals
    }

    fn count(&self, plan: &Plan, side: PlanEdge, actual: usize) -> Result<(), RunError> {
        let expected = self.buffers.len();
        match expected == actual {
            true => Ok(()),
            false => Err(RunError::Count { plan: plan.name.clone(), side, expected, actual }),
        }
    }

    fn check<'t>(
        &self,
        plan: &Plan,
        side: PlanEdge,
        tensors: impl ExactSizeIterator<Item = (DType, &'t [u64], &'t [u8])>,
    ) -> Result<(), RunError> {
        self.count(plan, side, tensors.len())?;
        self.buffers
            .iter()
            .zip(tensors)
            .try_for_each(|((side, id), (dtype, dims, data))| check_tensor(*side, plan.buffer(*id), dtype, dims, data))
    }
}

fn check_type(side: PlanEdge, buffer: &Buffer, dtype: DType, dims: &[u64]) -> Result<(), RunError> {
    let name = || buffer.name.clone();
    if dtype != buffer.dtype {
        return Err(RunError::DType { side, name: name(), expected: buffer.dtype, actual: dtype });
    }
    if dims != buffer.dims {
        return Err(RunError::Shape { side, name: name(), expected: buffer.dims.clone(), actual: dims.to_vec() });
    }
    Ok(())
}

fn check_tensor(side: PlanEdge, buffer: &Buffer, dtype: DType, dims: &[u64], data: &[u8]) -> Result<(), RunError> {
    let name = || buffer.name.clone();
    check_type(side, buffer, dtype, dims)?;
    let (expected, actual) = (buffer.bytes(), data.len() as u64);
    if expected != actual {
        return Err(RunError::Bytes { side, name: name(), expected, actual });
    }
    let align = dtype.size();
    if actual > 0 && !(data.as_ptr() as usize).is_multiple_of(align) {
        return Err(RunError::Alignment { side, name: name(), dtype, align });
    }
    Ok(())
}
