//! Objects in executable memory of this process.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use inkwell::llvm_sys::core::LLVMCreateMemoryBufferWithMemoryRangeCopy;
use inkwell::llvm_sys::error::{LLVMDisposeErrorMessage, LLVMErrorRef, LLVMGetErrorMessage};
use inkwell::llvm_sys::orc2::lljit::{
    LLVMOrcCreateLLJIT, LLVMOrcCreateLLJITBuilder, LLVMOrcDisposeLLJIT, LLVMOrcLLJITAddObjectFile,
    LLVMOrcLLJITBuilderSetJITTargetMachineBuilder, LLVMOrcLLJITGetMainJITDylib, LLVMOrcLLJITLookup,
    LLVMOrcLLJITMangleAndIntern, LLVMOrcLLJITRef,
};
use inkwell::llvm_sys::orc2::{
    LLVMJITEvaluatedSymbol, LLVMJITSymbolFlags, LLVMJITSymbolGenericFlags, LLVMOrcAbsoluteSymbols,
    LLVMOrcCSymbolMapPair, LLVMOrcJITDylibDefine, LLVMOrcJITTargetMachineBuilderCreateFromTargetMachine,
};
use inkwell::support::get_llvm_version;
use tensorc_abi::KernelFn;
use tensorc_ir::diag::Result;

use super::machine::{Processor, cpu};
use super::module::object;
use crate::isa::Isa;
use crate::loading::{KernelCode, LoadRequest, LoadedKernel};
use crate::symbols::C_FUNCTIONS;
use crate::walk::internal;

/// Brings kernels into memory: from their known objects, or compiled. `addresses` holds the library functions they
/// call.
pub(crate) fn load(
    wanted: &[LoadRequest<'_>],
    addresses: &BTreeMap<String, usize>,
    verify: bool,
) -> Result<Vec<LoadedKernel>> {
    let processor = Processor::new(Isa::native()?)?;
    let new = |w: &LoadRequest<'_>| {
        let made = w.known.is_none().then(|| object(w.name, w.kernel, &processor, verify)).transpose()?;
        w.interrupt.check(format_args!("kernel `{}`", w.kernel.name))?;
        Ok(made)
    };
    let new: Vec<Option<Vec<u8>>> = wanted.iter().map(new).collect::<Result<_>>()?;
    let objects = wanted.iter().zip(&new).filter_map(|(w, new)| w.known.or(new.as_deref()));
    let loaded = Arc::new(Loaded::new(processor, objects, addresses)?);
    let mut made = Vec::with_capacity(wanted.len());
    for (wanted, new) in wanted.iter().zip(new) {
        let address = loaded.address(wanted.name)?;
        // SAFETY: the object defines the function with exactly this signature and the C convention, also if it was
        // stored.
        let function = unsafe { std::mem::transmute::<*const u8, KernelFn>(address) };
        let bytes = wanted.known.or(new.as_deref()).map_or(0, <[u8]>::len);
        let entry = KernelCode { function, bytes, code: loaded.clone() };
        made.push(LoadedKernel { entry, code: new.filter(|_| wanted.keep) });
    }
    Ok(made)
}

/// All that decides what code LLVM makes on this machine.
pub(crate) fn describe() -> Result<String> {
    let target = Isa::native()?;
    let (cpu, features) = cpu(target);
    Ok(format!("{} {} {cpu} {features}", version(), target.triple()))
}

pub(crate) fn version() -> String {
    let (major, minor, patch) = get_llvm_version();
    format!("LLVM {major}.{minor}.{patch}")
}

/// Objects that are loaded; their memory is returned when this is dropped.
struct Loaded(LLVMOrcLLJITRef);

// SAFETY: after construction the handle is only used by `drop`, which has exclusive access. The code itself is
// immutable and may run on any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new<'o>(
        processor: Processor,
        objects: impl Iterator<Item = &'o [u8]>,
        addresses: &BTreeMap<String, usize>,
    ) -> Result<Loaded> {
        let mut handle = std::ptr::null_mut();
        // The builder is told of the processor, since to ask it again would take long.
        let machine = ManuallyDrop::new(processor.machine);
        // SAFETY: each call takes over what the one before made, and the first one the machine, which is not
        // dropped here; the result is a place for a handle.
        check(unsafe {
            let machine = LLVMOrcJITTargetMachineBuilderCreateFromTargetMachine(machine.as_mut_ptr());
            let builder = LLVMOrcCreateLLJITBuilder();
            LLVMOrcLLJITBuilderSetJITTargetMachineBuilder(builder, machine);
            LLVMOrcCreateLLJIT(&mut handle, builder)
        })?;
        let loaded = Loaded(handle);
        loaded.define(addresses)?;
        for bytes in objects {
            // SAFETY: the bytes are copied; the name ends in 0; the handle is alive and takes the buffer over.
            check(unsafe {
                let name = c"kernel".as_ptr();
                let copy = LLVMCreateMemoryBufferWithMemoryRangeCopy(bytes.as_ptr().cast(), bytes.len(), name);
                LLVMOrcLLJITAddObjectFile(loaded.0, LLVMOrcLLJITGetMainJITDylib(loaded.0), copy)
            })?;
        }
        Ok(loaded)
    }

    /// Gives objects the addresses of the functions they may call.
    fn define(&self, addresses: &BTreeMap<String, usize>) -> Result<()> {
        let exported = LLVMJITSymbolGenericFlags::LLVMJITSymbolGenericFlagsExported as u8
            | LLVMJITSymbolGenericFlags::LLVMJITSymbolGenericFlagsCallable as u8;
        let known = addresses.iter().map(|(name, address)| (name.as_str(), *address));
        let in_c = C_FUNCTIONS.iter().filter_map(|(c_name, name)| Some((*c_name, *addresses.get(*name)?)));
        let mut pairs = vec![];
        for (name, address) in known.chain(in_c) {
            let name = c_string(name)?;
            // SAFETY: the handle is alive and the name ends in 0.
            let name = unsafe { LLVMOrcLLJITMangleAndIntern(self.0, name.as_ptr()) };
            let flags = LLVMJITSymbolFlags { GenericFlags: exported, TargetFlags: 0 };
            pairs.push(LLVMOrcCSymbolMapPair {
                Name: name,
                Sym: LLVMJITEvaluatedSymbol { Address: address as u64, Flags: flags },
            });
        }
        // SAFETY: the pairs are copied, their names taken over; the library belongs to the living handle.
        check(unsafe {
            let unit = LLVMOrcAbsoluteSymbols(pairs.as_mut_ptr(), pairs.len());
            LLVMOrcJITDylibDefine(LLVMOrcLLJITGetMainJITDylib(self.0), unit)
        })
    }

    fn address(&self, name: &str) -> Result<*const u8> {
        let name = c_string(name)?;
        let mut address = 0;
        // SAFETY: the handle is alive, the result a place for an address, and the name ends in 0.
        check(unsafe { LLVMOrcLLJITLookup(self.0, &mut address, name.as_ptr()) })?;
        Ok(address as usize as *const u8)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the handle is alive and nobody uses it after this. Every module with a pointer into the memory
        // holds a reference to it.
        let error = unsafe { LLVMOrcDisposeLLJIT(self.0) };
        // There is nobody to tell; the message is freed with the error.
        drop(check(error));
    }
}

fn c_string(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| internal("the name of a function has a 0 in it"))
}

fn check(error: LLVMErrorRef) -> Result<()> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is not null and is taken over by the call, whose result ends in 0 and is freed once.
    let message = unsafe {
        let text = LLVMGetErrorMessage(error);
        let message = CStr::from_ptr(text).to_string_lossy().into_owned();
        LLVMDisposeErrorMessage(text);
        message
    };
    Err(internal(format!("LLVM: {message}")))
}
