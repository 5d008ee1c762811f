//! Calls of loops over wide vectors ([`crate::vector`]) from Cranelift's code.
//!
//! The arguments of a loop are words in a stack slot. Its code stands behind that of the kernel, so that a call needs no
//! symbol: it names a function of a namespace of its own, which becomes a distance when the code is put together.

use cranelift_codegen::FinalizedMachReloc;
use cranelift_codegen::FinalizedRelocTarget;
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, Function, InstBuilder, Signature, StackSlot, StackSlotData, StackSlotKind,
    UserExternalName, Value, types,
};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::Variable;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Stmt;

use super::state::{BufferStorage, Gen};
use super::types::chunk_type;
use crate::vector::{self, Accumulator, ArgumentWords, CompiledLoop, LoopForm, UniformValue, VectorLoop};
use crate::walk::{IndexOp, KernelEmitter, KernelWalker};

/// The namespace of function names that stand for vector loops. Crate `cranelift_module` uses 0 and 1.
const NAMESPACE: u32 = 2;

/// The loop that a reference in the code of a kernel means, by its number.
pub(super) fn called(reloc: &FinalizedMachReloc, function: &Function) -> Option<usize> {
    let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = reloc.target else { return None };
    let name = &function.params.user_named_funcs()[name];
    (name.namespace == NAMESPACE).then_some(name.index as usize)
}

/// A loop as text below the code that calls it.
pub(super) fn text(number: usize, l: &CompiledLoop) -> String {
    format!("\nloop u{NAMESPACE}:{number}, {} bytes of code\n{}", l.code.bytes.len(), l.source)
}

/// Calls the loop that a block begins with, if there is code for it; how many statements that are.
pub(super) fn call(walk: &mut KernelWalker<'_, Gen<'_, '_>>, block: &[Stmt]) -> Result<usize> {
    let Some(level) = walk.code.level.filter(|_| walk.lanes.is_none()) else { return Ok(0) };
    let Some(found) = vector::loop_at(walk.kernel, block, level) else { return Ok(0) };
    let l = &found.source;
    if !fits(walk, l) {
        return Ok(0);
    }
    let slot = arguments(walk, l)?;
    let (registers, statements) = (accumulators(walk, l, slot), l.statements);
    let number = walk.code.loops.len() as u32;
    walk.code.loops.push(found);
    let b = &mut walk.code.b;
    let name = b.func.declare_imported_user_function(UserExternalName::new(NAMESPACE, number));
    let mut signature = Signature::new(CallConv::SystemV);
    signature.params.push(AbiParam::new(types::I64));
    let signature = b.import_signature(signature);
    let callee = ExtFuncData { name: ExternalName::user(name), signature, colocated: true, patchable: false };
    let callee = b.import_function(callee);
    let address = b.ins().stack_addr(types::I64, slot, 0);
    b.ins().call(callee, &[address]);
    for (variables, dtype, memory) in registers {
        for (i, variable) in variables.into_iter().enumerate() {
            let value = b.ins().stack_load(types::I64, chunk_type(dtype, 32), memory, 16 * i as i32);
            b.def_var(variable, value);
        }
    }
    Ok(statements)
}

/// Whether all that the loop needs from here is where it must be.
fn fits(walk: &KernelWalker<'_, Gen<'_, '_>>, l: &VectorLoop) -> bool {
    l.pointers.iter().all(|p| walk.code.in_memory(p.buf) == Some(true))
        && l.accumulators.iter().all(|a| a.local || variables(walk, a, l.lanes).is_some())
}

/// The variables that hold an accumulator.
fn variables(walk: &KernelWalker<'_, Gen<'_, '_>>, a: &Accumulator, lanes: u32) -> Option<Vec<Variable>> {
    let BufferStorage::Packed(variables) = &walk.code.storage[a.buf.0 as usize] else { return None };
    let per = chunk_type(a.dtype, 32).lane_count() as usize;
    let first = usize::try_from(a.first).ok().filter(|first| first.is_multiple_of(per))? / per;
    variables.get(first..first + lanes as usize / per).map(<[Variable]>::to_vec)
}

/// A slot with the number of elements or iterations, the pointers and the uniform values.
fn arguments(walk: &mut KernelWalker<'_, Gen<'_, '_>>, l: &VectorLoop) -> Result<StackSlot> {
    let count = count(walk, l)?;
    let rows = match &l.rows {
        Some(rows) => {
            let (lo, hi) = (walk.resolve(&rows.lo), walk.resolve(&rows.hi));
            walk.index_value(&hi.sub(&lo))?
        }
        None => count,
    };
    let mut words = vec![count, rows];
    for p in &l.pointers {
        let start = walk.resolve(&p.start);
        let at = walk.address(p.buf, &start)?;
        words.push(walk.code.pointer(at));
    }
    for uniform in &l.uniforms {
        words.push(match uniform {
            UniformValue::Index(index) => {
                let index = walk.resolve(index);
                walk.index_value(&index)?
            }
            UniformValue::Operand(operand, dtype) => {
                let value = walk.uniform(*operand)?.v;
                if *dtype == DType::Bool { walk.code.b.ins().uextend(types::I32, value) } else { value }
            }
        });
    }
    let slot = stack(walk, 8 * ArgumentWords::len(l) as u32);
    for (i, word) in words.into_iter().enumerate() {
        walk.code.b.ins().stack_store(types::I64, word, slot, 8 * i as i32);
    }
    Ok(slot)
}

fn stack(walk: &mut KernelWalker<'_, Gen<'_, '_>>, bytes: u32) -> StackSlot {
    walk.code.b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4))
}

/// How many elements, or iterations, the loop has.
fn count(walk: &mut KernelWalker<'_, Gen<'_, '_>>, l: &VectorLoop) -> Result<Value> {
    let (lo, hi) = (walk.resolve(&l.lo), walk.resolve(&l.hi));
    let elements = walk.index_value(&hi.sub(&lo))?;
    let step = l.step;
    let code = &mut walk.code;
    if l.form == LoopForm::ElementsTo || step == 1 {
        return Ok(elements);
    }
    let up = code.index(IndexOp::AddConst(elements, step - 1))?;
    match (l.form, step.count_ones()) {
        (LoopForm::Elements, _) => code.index(IndexOp::Mask(up, -step)),
        (_, 1) => code.index(IndexOp::ShiftRight(up, step.trailing_zeros())),
        _ => Ok(code.b.ins().sdiv_imm_s(up, step)),
    }
}

/// Writes accumulators to memory, with its addresses among the arguments.
fn accumulators(
    walk: &mut KernelWalker<'_, Gen<'_, '_>>,
    l: &VectorLoop,
    slot: StackSlot,
) -> Vec<(Vec<Variable>, DType, StackSlot)> {
    let mut all = vec![];
    for (i, a) in l.accumulators.iter().enumerate().filter(|(_, a)| !a.local) {
        let variables = variables(walk, a, l.lanes).unwrap_or_default();
        let memory = stack(walk, 16 * variables.len() as u32);
        let b = &mut walk.code.b;
        let read = variables.iter().enumerate().filter(|_| a.initial.is_none());
        for (i, variable) in read {
            let value = b.use_var(*variable);
            b.ins().stack_store(types::I64, value, memory, 16 * i as i32);
        }
        let address = b.ins().stack_addr(types::I64, memory, 0);
        b.ins().stack_store(types::I64, address, slot, 8 * ArgumentWords::accumulator(l, i) as i32);
        let per = chunk_type(a.dtype, 32).lane_count();
        let needed = a.needed.min(l.lanes).div_ceil(per) as usize;
        all.push((variables[..needed.min(variables.len())].to_vec(), a.dtype, memory));
    }
    all
}
