//! A plan for many shapes takes the numbers of another shape in the memory that it has.

use tensorc_abi::image::slot;
use tensorc_abi::{KernelFn, KernelSignature, Plan};
use tensorc_exec::{Place, Records};

use super::super::bindings::Interface;
use super::super::error::LoadError;
use super::super::poison::Deaths;
use super::super::verify::{VerifyRoom, verify_in, verify_kernels};
use super::{CheckedWord, Executable, Tables, by_id, check_tables, prepare, refused};
use crate::weights::WeightStorage;

/// Memory in which plans get other numbers, for one plan after the other.
#[derive(Default)]
pub struct RenumberRoom {
    verify: VerifyRoom,
    records: Records,
}

impl Executable {
    /// Lets `change` give the plan, the signatures of its kernels and the weights that depend on it the numbers of another shape,
    /// then verifies the plan anew and resolves it. What the plan consists of stays: steps, their arguments, kernels, of which
    /// `kernels` has the entry points, as in [`Executable::new`].
    ///
    /// If the room and the executable have been used for as much, only the list of what steps side by side touch is allocated,
    /// unless other steps than before have nothing to do, or nested plans change.
    ///
    /// # Errors
    /// Those of `change`; the plan breaks an invariant, or kernels or weights do not match it. Nothing is executed then any more.
    ///
    /// # Safety
    /// As [`Executable::new`].
    pub unsafe fn renumber<E: From<LoadError>>(
        &mut self,
        kernels: &[KernelFn],
        signatures: &mut [KernelSignature],
        room: &mut RenumberRoom,
        change: impl FnOnce(&mut Plan, &mut [KernelSignature], &mut [WeightStorage]) -> Result<(), E>,
    ) -> Result<(), E> {
        let changed = change(&mut self.plan, signatures, &mut self.weights);
        let changed = changed.and_then(|()| Ok(self.resolve_again(kernels, signatures, room)?));
        if changed.is_err() {
            self.prepared.clear();
            self.interfaces.clear();
        }
        changed
    }

    fn resolve_again(
        &mut self,
        kernels: &[KernelFn],
        signatures: &[KernelSignature],
        room: &mut RenumberRoom,
    ) -> Result<(), LoadError> {
        let (plan, place) = (&self.plan, Place::Processor);
        self.report = verify_in(plan, &mut room.verify)?;
        verify_kernels(plan, signatures)?;
        let tables = Tables { code: &self.code, weights: &self.weights, kernels, externs: &self.externs };
        check_tables(plan, tables, place)?;
        let records = &mut room.records;
        records.refill(plan, place, &by_id).map_err(|error| refused(plan, &error, place))?;
        let home = |slot: &[u64; slot::WORDS]| [slot[slot::HOME], slot[slot::INDEX]];
        let same = records.positions.iter().eq(self.prepared.iter().map(|prepared| &prepared.step))
            && records.slots.iter().map(home).eq(self.slots.iter().map(home));
        prepare(plan, records, tables, place, &mut self.prepared)?;
        self.slots.clone_from(&records.slots);
        match same {
            true => self.interfaces.iter_mut().for_each(|interface| interface.shift(&self.slots)),
            false => self.interfaces = Interface::all(plan, &self.prepared, &self.slots),
        }
        self.words.clear();
        self.words.extend(CheckedWord::all(plan));
        self.deaths = self.deaths.is_some().then(|| Deaths::of(plan));
        self.names.take();
        Ok(())
    }
}
