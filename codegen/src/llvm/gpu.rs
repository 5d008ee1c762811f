//! Statements of kernels for a GPU, as NVPTX intrinsics (LLVM's "User Guide for NVPTX Back-end").

use inkwell::AddressSpace;
use inkwell::module::Linkage;
use inkwell::values::{InstructionOpcode as Op, PointerValue};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::{Buf, BufferPlace, LoopKind, Mma, Operand, Stmt, warp_matrix};

use super::ir::Value;
use super::nvptx::SHARED;
use super::state::{BufferStorage, Gen};
use crate::walk::{Bind, KernelWalker, unsupported};

/// The name of the dynamic shared memory of all kernels of a module.
const SHARED_MEMORY: &str = "tc_shared";
/// Its alignment, in bytes: enough for the swizzled tiles of bulk copies.
const SHARED_ALIGNMENT: u32 = 1024;

impl<'c> Gen<'c, '_, '_> {
    pub(super) fn take_parameters(&mut self) -> Result<()> {
        for i in 0..self.kernel.params {
            self.storage[i] = BufferStorage::Memory(self.parameter(i)?);
        }
        Ok(())
    }

    /// The number of the block or thread in the launch: a register of the processor.
    pub(super) fn launch_position(&mut self, kind: LoopKind) -> Result<Value<'c>> {
        if !self.machine.gpu {
            return Err(unsupported("the kernel is for a GPU"));
        }
        let register = match kind {
            LoopKind::Grid => "llvm.nvvm.read.ptx.sreg.ctaid.x",
            _ => "llvm.nvvm.read.ptx.sreg.tid.x",
        };
        let narrow = self.ir.intrinsic(register, &[], &[])?;
        self.ir.cast(Op::ZExt, narrow, self.ir.int(64).into())
    }

    /// Shared buffers lie in the dynamic shared memory.
    pub(super) fn alloc_shared(&mut self, buf: Buf) -> Result<()> {
        let offset = self.kernel.shared_offset(buf);
        let base = match self.ir.module.get_global(SHARED_MEMORY) {
            Some(global) => global,
            None => {
                let ty = self.ir.cx.i8_type().array_type(0);
                let global = self.ir.module.add_global(ty, Some(AddressSpace::from(SHARED)), SHARED_MEMORY);
                global.set_linkage(Linkage::External);
                global.set_alignment(SHARED_ALIGNMENT);
                global
            }
        };
        let at = self.ir.element(self.ir.int(8).into(), base.as_pointer_value(), self.ir.i64(offset as i64))?;
        self.storage[buf.0 as usize] = BufferStorage::Memory(at);
        Ok(())
    }
}

impl<'c> KernelWalker<'_, Gen<'c, '_, '_>> {
    pub(super) fn gpu_stmt(&mut self, stmt: &Stmt) -> Result<()> {
        if !self.code.machine.gpu {
            return Err(unsupported("the kernel is for a GPU"));
        }
        match stmt {
            Stmt::Barrier => {
                let number = self.code.ir.bits(self.code.ir.int(32).into(), 0)?;
                self.code.ir.instruction("llvm.nvvm.barrier.cta.sync.aligned.all", &[], &[number]).map(drop)
            }
            Stmt::Shuffle { var, value, mask } => {
                let value = self.shuffle(*value, *mask)?;
                self.bind(*var, Bind::Uniform(value));
                Ok(())
            }
            Stmt::Mma(mma) => self.mma(mma),
            Stmt::LoadMatrix { into, from, count, transposed } => self.load_matrix(into, from, *count, *transposed),
            Stmt::CopyAsync { into, from, len, cond } => self.copy_async(into, from, u64::from(*len), *cond),
            Stmt::CommitCopies => self.code.ir.instruction("llvm.nvvm.cp.async.commit.group", &[], &[]).map(drop),
            Stmt::AwaitCopies { pending } => {
                let pending = self.code.ir.bits(self.code.ir.int(32).into(), u64::from(*pending))?;
                self.code.ir.instruction("llvm.nvvm.cp.async.wait.group", &[], &[pending]).map(drop)
            }
            _ => self.group_stmt(stmt),
        }
    }

    /// Exchanges words of 32 bits.
    fn shuffle(&mut self, value: Operand, mask: u32) -> Result<Value<'c>> {
        let dtype = self.dtype(value);
        let (value, word) = (self.uniform(value)?.v, self.code.ir.int(32));
        let exchange = |g: &Self, v: Value<'c>| -> Result<Value<'c>> {
            let int = |x: u64| g.code.ir.bits(word.into(), x);
            let args = [int(0xffff_ffff)?, v, int(u64::from(mask))?, int(31)?];
            g.code.ir.intrinsic("llvm.nvvm.shfl.sync.bfly.i32", &[], &args)
        };
        let bits = self.code.ir.int(dtype.size() as u32 * 8);
        let plain = match dtype {
            DType::Bool => self.code.ir.cast(Op::ZExt, value, word.into())?,
            _ => self.code.ir.bitcast(value, bits.into())?,
        };
        let moved = match dtype.size() {
            8 => {
                let low = exchange(self, self.code.ir.cast(Op::Trunc, plain, word.into())?)?;
                let high = self.code.ir.shift(Op::LShr, plain, 32)?;
                let high = exchange(self, self.code.ir.cast(Op::Trunc, high, word.into())?)?;
                let wide = |v| self.code.ir.cast(Op::ZExt, v, bits.into());
                self.code.ir.or(wide(low)?, self.code.ir.shift(Op::Shl, wide(high)?, 32)?)?
            }
            4 => exchange(self, plain)?,
            _ if dtype == DType::Bool => exchange(self, plain)?,
            _ => {
                let wide = exchange(self, self.code.ir.cast(Op::ZExt, plain, word.into())?)?;
                self.code.ir.cast(Op::Trunc, wide, bits.into())?
            }
        };
        match dtype {
            DType::Bool => self.code.ir.cast(Op::Trunc, moved, self.code.ir.int(1).into()),
            _ => self.code.ir.bitcast(moved, self.code.ir.scalar_type(dtype)),
        }
    }

    /// `count` registers of 32 bits from a place in an array of registers on, as values of type `ty`.
    pub(super) fn registers(
        &mut self,
        place: &BufferPlace,
        count: usize,
        ty: inkwell::types::BasicTypeEnum<'c>,
    ) -> Result<Vec<Value<'c>>> {
        let mut values = Vec::with_capacity(count);
        for i in 0..count {
            let at = self.register(place, i)?;
            values.push(self.code.ir.load(ty, at, 4)?);
        }
        Ok(values)
    }

    /// The address of register `i` of a place, counted in words of 32 bits.
    pub(super) fn register(&mut self, place: &BufferPlace, i: usize) -> Result<PointerValue<'c>> {
        let per_word = 4 / self.kernel.buf(place.buf).dtype.size();
        let index = self.resolve(&place.index.offset((i * per_word) as i64));
        self.address(place.buf, &index)
    }

    fn mma(&mut self, mma: &Mma) -> Result<()> {
        let dtype = self.kernel.buf(mma.a.buf).dtype;
        let (a, b, acc) = warp_matrix::elements(dtype);
        let (int, float) = (self.code.ir.int(32).into(), self.code.ir.cx.f32_type().into());
        let (name, ty, words) = match dtype {
            DType::BF16 => ("llvm.nvvm.mma.m16n8k16.row.col.bf16", int, 2),
            DType::F16 => ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", self.code.ir.cx.f16_type().vec_type(2).into(), 2),
            DType::F32 => ("llvm.nvvm.mma.m16n8k8.row.col.tf32", float, 1),
            other => return Err(unsupported(format!("products of matrices of {other}"))),
        };
        let mut args = self.registers(&mma.a, a / words, ty)?;
        args.extend(self.registers(&mma.b, b / words, ty)?);
        if dtype == DType::F32 {
            for v in &mut args {
                *v = self.code.ir.intrinsic("llvm.nvvm.f2tf32.rna", &[], &[*v])?;
            }
        }
        args.extend(self.registers(&mma.acc, acc, float)?);
        let sums = self.code.ir.intrinsic(name, &[], &args)?;
        for i in 0..acc {
            let at = self.register(&mma.acc, i)?;
            self.code.ir.store(self.code.ir.field(sums, i as u32)?, at, 4)?;
        }
        Ok(())
    }

    fn load_matrix(&mut self, into: &BufferPlace, from: &BufferPlace, count: u8, transposed: bool) -> Result<()> {
        let index = self.resolve(&from.index);
        let at = self.address(from.buf, &index)?;
        let form = if transposed { ".trans" } else { "" };
        let name = format!("llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{form}.b16");
        let loaded = self.code.ir.intrinsic(&name, &[at.get_type().into()], &[at.into()])?;
        for i in 0..usize::from(count) {
            let to = self.register(into, i)?;
            let word = if count == 1 { loaded } else { self.code.ir.field(loaded, i as u32)? };
            self.code.ir.store(word, to, 4)?;
        }
        Ok(())
    }

    fn copy_async(&mut self, into: &BufferPlace, from: &BufferPlace, len: u64, cond: Option<Operand>) -> Result<()> {
        let bytes = len * self.kernel.buf(into.buf).dtype.size() as u64;
        let (to_index, from_index) = (self.resolve(&into.index), self.resolve(&from.index));
        let to = self.address(into.buf, &to_index)?;
        let mut at: Value<'c> = self.address(from.buf, &from_index)?.into();
        // Only copies of 16 bytes can leave the nearest cache out.
        let cache = if bytes == 16 { "cg" } else { "ca" };
        let name = format!("llvm.nvvm.cp.async.{cache}.shared.global.{bytes}");
        let Some(cond) = cond else {
            return self.code.ir.instruction(&name, &[], &[to.into(), at]).map(drop);
        };
        let cond = self.uniform(cond)?.v;
        let int = |x: u64| self.code.ir.bits(self.code.ir.int(32).into(), x);
        let size = self.code.ir.select(cond, int(bytes)?, int(0)?)?;
        if let BufferStorage::Memory(base) = self.code.storage[from.buf.0 as usize] {
            at = self.code.ir.select(cond, at, base.into())?;
        }
        self.code.ir.instruction(&format!("{name}.s"), &[], &[to.into(), at, size]).map(drop)
    }
}
