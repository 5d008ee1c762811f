//! The code of one kernel before it has an address, and its form in a store.
//!
//! The form, all numbers of 32 bits and little-endian: alignment, number of references, for each of these where the
//! address of 64 bits goes, what is added to it and the length of the function's name, then the name; then the code.

use std::collections::BTreeMap;

use cranelift_codegen::FinalizedMachReloc;
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::LibCall;
use cranelift_module::{FuncId, Module, ModuleReloc, ModuleRelocTarget};

use tensorc_ir::diag::Result;

use super::libcalls;
use crate::vector::CompiledLoop;
use crate::walk::internal;

pub(super) struct CodeBlob {
    pub align: u64,
    pub code: Vec<u8>,
    pub relocs: Vec<ModuleReloc>,
}

/// Alignment of the loops' code.
const LOOP_ALIGN: usize = 16;

impl CodeBlob {
    /// Puts functions behind the code; where each one begins.
    pub fn append(&mut self, loops: &[CompiledLoop]) -> Vec<usize> {
        if !loops.is_empty() {
            self.align = self.align.max(LOOP_ALIGN as u64);
        }
        let place = |l: &CompiledLoop| {
            self.code.resize(self.code.len().next_multiple_of(LOOP_ALIGN), 0);
            let entry = self.code.len() + l.code.entry;
            self.code.extend_from_slice(&l.code.bytes);
            entry
        };
        loops.iter().map(place).collect()
    }

    /// Makes a call lead to a place in the code.
    pub fn link(&mut self, call: &FinalizedMachReloc, to: usize) -> Result<()> {
        let at = call.offset as usize;
        let distance = to as i64 - at as i64 + call.addend;
        let (Reloc::X86CallPCRel4 | Reloc::X86PCRel4, Ok(distance)) = (call.kind, i32::try_from(distance)) else {
            return Err(internal(format!("a call of a loop by {:?}", call.kind)));
        };
        self.code[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        Ok(())
    }

    /// The form in a store; `None` if the code refers to anything but addresses of named functions.
    pub fn to_bytes(&self, module: &impl Module) -> Option<Vec<u8>> {
        let mut out = vec![];
        let word = |out: &mut Vec<u8>, word: u32| out.extend(word.to_le_bytes());
        word(&mut out, u32::try_from(self.align).ok()?);
        word(&mut out, u32::try_from(self.relocs.len()).ok()?);
        for reloc in &self.relocs {
            let name = match &reloc.name {
                ModuleRelocTarget::User { namespace: 0, .. } => {
                    module.declarations().get_function_decl(FuncId::from_name(&reloc.name)).name.clone()?
                }
                ModuleRelocTarget::LibCall(call) => libcalls::name(*call),
                _ => return None,
            };
            if reloc.kind != Reloc::Abs8 {
                return None;
            }
            word(&mut out, reloc.offset);
            word(&mut out, i32::try_from(reloc.addend).ok()? as u32);
            word(&mut out, u32::try_from(name.len()).ok()?);
            out.extend(name.as_bytes());
        }
        out.extend(&self.code);
        Some(out)
    }

    /// Reads the form of a store; `None` if it is none, or names a function that the kernel does not call.
    pub fn from_bytes(bytes: &[u8], functions: &BTreeMap<String, FuncId>) -> Option<CodeBlob> {
        let mut rest = bytes;
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at_checked(n)?;
            rest = left;
            Some(taken)
        };
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_le_bytes);
        let (align, count) = (word(take(4)?)?, word(take(4)?)?);
        let mut relocs = vec![];
        for _ in 0..count {
            let (offset, addend, len) = (word(take(4)?)?, word(take(4)?)? as i32, word(take(4)?)?);
            let name = std::str::from_utf8(take(len as usize)?).ok()?;
            relocs.push(ModuleReloc {
                offset,
                kind: Reloc::Abs8,
                name: target(name, functions)?,
                addend: addend.into(),
            });
        }
        let fits = |reloc: &ModuleReloc| u64::from(reloc.offset) + 8 <= rest.len() as u64;
        let whole = align.is_power_of_two() && !rest.is_empty() && relocs.iter().all(fits);
        whole.then(|| CodeBlob { align: align.into(), code: rest.to_vec(), relocs })
    }
}

fn target(name: &str, functions: &BTreeMap<String, FuncId>) -> Option<ModuleRelocTarget> {
    let libcall = || LibCall::all_libcalls().iter().find(|call| libcalls::name(**call) == name);
    let function = functions.get(name).map(|id| ModuleRelocTarget::from(*id));
    function.or_else(|| libcall().map(|call| ModuleRelocTarget::LibCall(*call)))
}
