//! Objects in executable memory of this process.

use std::any::Any;
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
use tensorc_abi::KernelFn;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use super::ir::internal;
use super::machine::Processor;
use super::module::object;
use crate::jit::Entry;
use crate::target::Target;

/// What LLVM calls on processors without an instruction, by its names in C, and the functions of the run-time
/// library that are called instead.
pub(crate) const LIBCALLS: [(&str, &str); 10] = [
    ("ceilf", "tc_ceil_f32"),
    ("ceil", "tc_ceil_f64"),
    ("floorf", "tc_floor_f32"),
    ("floor", "tc_floor_f64"),
    ("truncf", "tc_trunc_f32"),
    ("trunc", "tc_trunc_f64"),
    ("roundevenf", "tc_round_f32"),
    ("roundeven", "tc_round_f64"),
    ("fmaf", "tc_fma_f32"),
    ("fma", "tc_fma_f64"),
];

/// Compiles kernels into one piece of memory. `addresses` holds the library functions they call.
pub(crate) fn compile(kernels: &[&Kernel], addresses: &BTreeMap<String, usize>, verify: bool) -> Result<Vec<Entry>> {
    let processor = Processor::new(Target::native()?)?;
    let names: Vec<String> = (0..kernels.len()).map(|i| format!("kernel{i}")).collect();
    let named: Vec<(&str, &Kernel)> = names.iter().map(String::as_str).zip(kernels.iter().copied()).collect();
    let bytes = object(&named, &processor, verify)?;
    let loaded = Loaded::new(processor, &bytes, addresses)?;
    let mut functions = Vec::with_capacity(names.len());
    for name in &names {
        let address = loaded.address(name)?;
        // SAFETY: the object defines the function with exactly this signature and the C convention.
        functions.push(unsafe { std::mem::transmute::<*const u8, KernelFn>(address) });
    }
    let code: Arc<dyn Any + Send + Sync> = Arc::new(loaded);
    Ok(functions.into_iter().map(|function| Entry { function, code: code.clone() }).collect())
}

/// An object that is loaded; its memory is returned when this is dropped.
struct Loaded(LLVMOrcLLJITRef);

// SAFETY: after construction the handle is only used by `drop`, which has exclusive access. The code itself is
// immutable and may run on any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new(processor: Processor, bytes: &[u8], addresses: &BTreeMap<String, usize>) -> Result<Loaded> {
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
        // SAFETY: the bytes are copied; the name ends in 0; the handle is alive and takes the buffer over.
        check(unsafe {
            let copy =
                LLVMCreateMemoryBufferWithMemoryRangeCopy(bytes.as_ptr().cast(), bytes.len(), c"kernels".as_ptr());
            LLVMOrcLLJITAddObjectFile(loaded.0, LLVMOrcLLJITGetMainJITDylib(loaded.0), copy)
        })?;
        Ok(loaded)
    }

    /// Gives the object the addresses of the functions it may call.
    fn define(&self, addresses: &BTreeMap<String, usize>) -> Result<()> {
        let exported = LLVMJITSymbolGenericFlags::LLVMJITSymbolGenericFlagsExported as u8
            | LLVMJITSymbolGenericFlags::LLVMJITSymbolGenericFlagsCallable as u8;
        let known = addresses.iter().map(|(name, address)| (name.as_str(), *address));
        let libcalls = LIBCALLS.iter().filter_map(|(c_name, name)| Some((*c_name, *addresses.get(*name)?)));
        let mut pairs = vec![];
        for (name, address) in known.chain(libcalls) {
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
