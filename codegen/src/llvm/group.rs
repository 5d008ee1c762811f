//! What groups of warps do, as instructions of compute capability 9.0a (PTX ISA, "Asynchronous Warpgroup Level Matrix
//! Instructions" and "cp.async.bulk.tensor"). LLVM has no intrinsic for the products; all are written as assembly.
//!
//! What a warp does once is done by one of its threads, which the processor elects.

use std::fmt::Write;

use inkwell::IntPredicate;
use inkwell::values::{InstructionOpcode as Op, PointerValue};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{
    Buf, BufferPlace, GroupMma, MemorySpace, Stmt, TILE_ALIGNMENT, TileCopy, TileOperand, WARP, WarpRole, panel,
};

use super::ir::Value;
use super::state::Gen;
use crate::walk::{KernelWalker, internal, unsupported};

/// Registers of a multiprocessor, and most of a thread.
const REGISTERS: u32 = 64 << 10;
const MAX_THREAD_REGISTERS: u32 = 255;
/// Bits of a matrix descriptor: the permutation of pieces within 128 bytes; distances stand above the address.
const PERMUTED: u64 = 1 << 62;
const LEADING: u32 = 16;
const STRIDE: u32 = 32;
/// Descriptors hold addresses and distances in pieces of 16 bytes.
const PIECE: u64 = 16;

impl<'c> KernelWalker<'_, Gen<'c, '_, '_>> {
    pub(super) fn group_stmt(&mut self, stmt: &Stmt) -> Result<()> {
        if !self.code.machine.groups {
            return Err(unsupported("products of groups of warps need compute capability 9.0a"));
        }
        match stmt {
            Stmt::InitBarriers { buf, arrivals } => self.init_barriers(*buf, *arrivals),
            Stmt::Arrive { barrier, bytes } => self.arrive(barrier, *bytes),
            Stmt::AwaitBarrier { barrier, phase } => self.await_barrier(barrier, phase),
            Stmt::CopyTile(copy) => self.copy_tile(copy),
            Stmt::GroupMma(mma) => self.group_mma(mma),
            Stmt::AwaitProducts { sums, pending } => self.await_products(*sums, *pending),
            Stmt::Roles(roles) => self.roles(roles),
            _ => Err(internal("a statement that no kernel for a GPU has")),
        }
    }

    /// The address of a place in shared memory.
    fn shared_address(&mut self, place: &BufferPlace) -> Result<Value<'c>> {
        let index = self.resolve(&place.index);
        let at: PointerValue<'c> = self.address(place.buf, &index)?;
        self.code.ir.cast(Op::PtrToInt, at.into(), self.code.ir.int(32).into())
    }

    fn narrow_index(&mut self, index: &Index) -> Result<Value<'c>> {
        let index = self.resolve(index);
        let wide = self.index_value(&index)?;
        self.code.ir.cast(Op::Trunc, wide, self.code.ir.int(32).into())
    }

    fn init_barriers(&mut self, buf: Buf, arrivals: u32) -> Result<()> {
        let at = self.shared_address(&BufferPlace::new(buf, Index::default()))?;
        let mut text = String::from("{\n.reg .pred p;\n.reg .b32 t;\nmov.u32 t, %tid.x;\nsetp.eq.u32 p, t, 0;\n");
        for i in 0..self.kernel.buf(buf).elements() {
            let _ = writeln!(text, "@p mbarrier.init.shared::cta.b64 [$0+{}], {arrivals};", 8 * i);
        }
        // The copy engine must see them, too.
        text += "fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n}";
        self.code.ir.assembly(&text, "r,~{memory}", None, &[at]).map(drop)
    }

    fn arrive(&mut self, barrier: &BufferPlace, bytes: u32) -> Result<()> {
        let at = self.shared_address(barrier)?;
        let arrive = match bytes {
            0 => "mbarrier.arrive.shared::cta.b64 _, [$0];".to_owned(),
            n => format!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {n};"),
        };
        let fence = if self.code.shows_tiles { "fence.proxy.async.shared::cta;\n" } else { "" };
        let text = format!("{{\n.reg .pred p;\n{fence}bar.warp.sync -1;\nelect.sync _|p, -1;\n@p {arrive}\n}}");
        self.code.ir.assembly(&text, "r,~{memory}", None, &[at]).map(drop)
    }

    fn await_barrier(&mut self, barrier: &BufferPlace, phase: &Index) -> Result<()> {
        let (at, phase) = (self.shared_address(barrier)?, self.narrow_index(phase)?);
        let parity = self.code.ir.and_bits(phase, 1)?;
        let text = "{\n.reg .pred p;\nAGAIN_${:uid}:\nmbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;\n\
                    @!p bra AGAIN_${:uid};\n}";
        self.code.ir.assembly(text, "r,r,~{memory}", None, &[at, parity]).map(drop)
    }

    fn copy_tile(&mut self, copy: &TileCopy) -> Result<()> {
        let map = self.kernel.tensor_maps().iter().position(|map| *map == copy.map);
        let map = map.ok_or_else(|| internal("a copy without a map"))?;
        let map = self.code.ir.cast(
            Op::PtrToInt,
            self.code.parameter(self.kernel.params + self.kernel.scalars.len() + map)?.into(),
            self.code.ir.int(64).into(),
        )?;
        let (into, barrier) = (self.shared_address(&copy.into)?, self.shared_address(&copy.barrier)?);
        let [row, column] = [0, 1].map(|i| self.narrow_index(&copy.at[i]));
        let batch = copy.batch.iter().map(|i| self.narrow_index(i)).collect::<Result<Vec<_>>>()?;
        let at = copy.map.ordered([row?, column?], &batch);
        let places: Vec<String> = (0..at.len()).map(|i| format!("${}", i + 3)).collect();
        let text = format!(
            "{{\n.reg .pred p;\nelect.sync _|p, -1;\n\
             @p cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes \
             [$0], [$1, {{{}}}], [$2];\n}}",
            at.len(),
            places.join(", "),
        );
        let constraints = format!("r,l,r{},~{{memory}}", ",r".repeat(at.len()));
        let operands = [&[into, map, barrier], &at[..]].concat();
        self.code.ir.assembly(&text, &constraints, None, &operands).map(drop)
    }

    /// The descriptor of an operand, and how far it goes on from one instruction to the next.
    fn descriptor(&mut self, x: &TileOperand) -> Result<(Value<'c>, u64)> {
        let at = self.shared_address(&x.at)?;
        let pieces = self.code.ir.shift(Op::LShr, self.code.ir.and_bits(at, 0x3ffff)?, PIECE.trailing_zeros())?;
        let dtype = self.kernel.buf(x.at.buf).dtype;
        let (size, terms) = (dtype.size() as u64, GroupMma::terms(dtype) as u64);
        let (leading, step) = match x.panels {
            None => (PIECE, terms * size),
            Some(distance) => (u64::from(distance) * size, terms * panel(dtype) as u64 * size),
        };
        let layout = PERMUTED | (TILE_ALIGNMENT / PIECE) << STRIDE | (leading / PIECE) << LEADING;
        let wide = self.code.ir.cast(Op::ZExt, pieces, self.code.ir.int(64).into())?;
        Ok((self.code.ir.or(wide, self.code.ir.bits_like(wide, layout)?)?, step / PIECE))
    }

    fn group_mma(&mut self, mma: &GroupMma) -> Result<()> {
        let dtype = self.kernel.buf(mma.a.at.buf).dtype;
        let ty = match dtype {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "tf32",
            other => return Err(unsupported(format!("products of tiles of {other}"))),
        };
        let count = mma.elements() as usize;
        let ((a, step_a), (b, step_b)) = (self.descriptor(&mma.a)?, self.descriptor(&mma.b)?);
        let sums: Vec<String> = (0..count).map(|i| format!("${i}")).collect();
        // Of tf32 neighbours are terms.
        let [a_turned, b_turned] = [&mma.a, &mma.b].map(|x| u8::from(x.panels.is_some()));
        let turned = if dtype.size() == 2 { format!(", {a_turned}, {b_turned}") } else { String::new() };
        let terms = GroupMma::terms(dtype) as u64;
        let mut text = String::from(
            "{\n.reg .pred p;\n.reg .b32 one;\n.reg .b64 a, b;\nmov.b32 one, 1;\nsetp.ne.b32 p, one, 0;\n\
             wgmma.fence.sync.aligned;\n",
        );
        for k in 0..u64::from(mma.depth) / terms {
            let _ = writeln!(text, "add.s64 a, ${count}, {};\nadd.s64 b, ${}, {};", k * step_a, count + 1, k * step_b);
            let _ = writeln!(
                text,
                "wgmma.mma_async.sync.aligned.m64n{}k{terms}.f32.{ty}.{ty} {{{}}}, a, b, p, 1, 1{turned};",
                mma.columns,
                sums.join(", "),
            );
        }
        text += "wgmma.commit_group.sync.aligned;\n}";
        self.with_sums(&text, &mma.acc, count, &[a, b])
    }

    fn await_products(&mut self, sums: Buf, pending: u8) -> Result<()> {
        let text = format!("wgmma.wait_group.sync.aligned {pending};");
        let count = self.kernel.buf(sums).elements() as usize;
        self.with_sums(&text, &BufferPlace::new(sums, Index::default()), count, &[])
    }

    /// Assembly that changes sums in registers: operands from 0 on, then come `args`.
    fn with_sums(&mut self, text: &str, sums: &BufferPlace, count: usize, args: &[Value<'c>]) -> Result<()> {
        let float = self.code.ir.cx.f32_type();
        let mut operands = args.to_vec();
        operands.extend(self.registers(sums, count, float.into())?);
        let mut constraints = vec!["=f".to_owned(); count];
        constraints.extend(args.iter().map(|_| "l".to_owned()));
        constraints.extend((0..count).map(|i| i.to_string()));
        constraints.push("~{memory}".into());
        let all = self.code.ir.cx.struct_type(&vec![float.into(); count], false);
        let result = self.code.ir.assembly(text, &constraints.join(","), Some(all.into()), &operands)?;
        let result = result.ok_or_else(|| internal("assembly without a result"))?;
        for i in 0..count {
            let at = self.register(sums, i)?;
            self.code.ir.store(self.code.ir.field(result, i as u32)?, at, 4)?;
        }
        Ok(())
    }

    fn stores_tiles(&self, body: &[Stmt]) -> bool {
        body.iter().any(|stmt| match stmt {
            Stmt::Store { buf, .. } => self.kernel.buf(*buf).space == MemorySpace::Tile,
            Stmt::For { body, .. } => self.stores_tiles(body),
            Stmt::If { then, otherwise, .. } => self.stores_tiles(then) || self.stores_tiles(otherwise),
            _ => false,
        })
    }

    /// Each role is a branch by the number of the thread. Registers go from those that fetch to those that multiply.
    fn roles(&mut self, roles: &[WarpRole]) -> Result<()> {
        let threads = self.kernel.launch().map_or(1, |launch| launch.threads);
        let given = (REGISTERS / threads).min(MAX_THREAD_REGISTERS) / 8 * 8;
        let thread = self.code.ir.intrinsic("llvm.nvvm.read.ptx.sreg.tid.x", &[], &[])?;
        let join = self.code.new_block("join");
        for (i, role) in roles.iter().enumerate() {
            let (own, rest) = (self.code.new_block("role"), self.code.new_block("others"));
            let end = self.code.ir.bits_like(thread, u64::from(role.warps.1) * WARP as u64)?;
            match i + 1 < roles.len() {
                true => self.code.ir.branch(self.code.ir.compare_ints(IntPredicate::ULT, thread, end)?, own, rest)?,
                false => self.code.ir.jump(own)?,
            }
            self.code.ir.b.position_at_end(own);
            if role.registers != given {
                let way = if role.registers > given { "inc" } else { "dec" };
                let text = format!("setmaxnreg.{way}.sync.aligned.u32 {};", role.registers);
                self.code.ir.assembly(&text, "~{memory}", None, &[])?;
            }
            self.code.shows_tiles = self.stores_tiles(&role.body);
            self.block(&role.body)?;
            self.code.ir.jump(join)?;
            self.code.ir.b.position_at_end(rest);
        }
        self.code.ir.jump(join)?;
        self.code.ir.b.position_at_end(join);
        Ok(())
    }
}
