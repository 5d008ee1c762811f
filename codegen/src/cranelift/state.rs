//! The function under construction: its builder, the storage of buffers, and the scopes that computed indices live in.

use std::collections::{BTreeMap, HashMap};

use crate::vector::CompiledLoop;
use crate::walk::{IndexOp, KernelWalker, internal};
use cranelift_codegen::cursor::{Cursor, FuncCursor};
use cranelift_codegen::entity::SecondaryMap;
use cranelift_codegen::ir::{Block, FuncRef, Inst, InstBuilder, MemFlagsData, StackSlot, Value, types};
use cranelift_frontend::{FunctionBuilder, Variable};
use smallvec::SmallVec;
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::{Buf, Kernel, Operand};
use tensorc_schedule::target::VectorLevel;

/// The chunks of a value that differs by lane.
pub(super) type Chunks = SmallVec<[Value; 8]>;

/// A region of code that is entered from one place.
pub(super) struct CodeRegion {
    /// The branch in the parent scope that enters this one: code moved out of the scope goes before.
    pub entry: Option<Inst>,
    /// Index computations already available in this scope.
    pub known: HashMap<IndexOp<Value>, Value>,
}

pub(super) struct Gen<'a, 'b> {
    pub b: FunctionBuilder<'b>,
    pub kernel: &'a Kernel,
    pub externals: &'a BTreeMap<String, FuncRef>,
    pub storage: Vec<BufferStorage>,
    pub scopes: Vec<CodeRegion>,
    /// How many scopes stand around a block.
    pub depths: SecondaryMap<Block, usize>,
    pub spare: Option<StackSlot>,
    /// Operands of comparisons by lane, for selections between the same operands.
    pub compared: BTreeMap<u32, Compared>,
    pub scalars: Value,
    /// The instructions for loops over wide vectors, and the code of those that are called.
    pub level: Option<VectorLevel>,
    pub loops: Vec<CompiledLoop>,
}

/// How pointers and index parameters of the call are read.
pub(super) fn parameter() -> MemFlagsData {
    MemFlagsData::new().with_notrap().with_readonly().with_aligned()
}

impl<'a, 'b> Gen<'a, 'b> {
    pub fn new(
        mut b: FunctionBuilder<'b>,
        kernel: &'a Kernel,
        externals: &'a BTreeMap<String, FuncRef>,
        level: Option<VectorLevel>,
    ) -> Self {
        let entry = b.create_block();
        b.append_block_params_for_function_params(entry);
        b.switch_to_block(entry);
        b.seal_block(entry);
        let (buffers, scalars) = (b.block_params(entry)[0], b.block_params(entry)[1]);
        let mut storage = vec![BufferStorage::None; kernel.buffers.len()];
        for (i, storage) in storage[..kernel.params].iter_mut().enumerate() {
            *storage = BufferStorage::Memory(b.ins().load(types::I64, parameter(), buffers, 8 * i as i32));
        }
        let scopes = vec![CodeRegion { entry: None, known: HashMap::new() }];
        let (depths, compared) = (SecondaryMap::new(), BTreeMap::new());
        Gen { b, kernel, externals, storage, scopes, depths, spare: None, compared, scalars, level, loops: vec![] }
    }

    /// A block in the current scope, or in the next one to be opened.
    pub fn new_block(&mut self, inside: bool) -> Block {
        let block = self.b.create_block();
        self.depths[block] = self.scopes.len() - 1 + usize::from(inside);
        block
    }

    pub fn buf_dtype(&self, buf: Buf) -> DType {
        self.kernel.buf(buf).dtype
    }

    /// A call of a function of the run-time library.
    pub fn call(&mut self, name: &str, args: &[Value]) -> Result<Inst> {
        let callee = self.externals.get(name).ok_or_else(|| internal(format!("`{name}` is not declared")))?;
        Ok(self.b.ins().call(*callee, args))
    }

    /// Writes one operation at a depth, or finds it there.
    pub fn place(&mut self, op: IndexOp<Value>, depth: usize) -> Value {
        if let Some(v) = self.scopes[depth].known.get(&op) {
            return *v;
        }
        let v = match self.scopes.get(depth + 1).and_then(|s| s.entry) {
            Some(inst) => instruction(FuncCursor::new(self.b.func).at_inst(inst).ins(), op),
            None => instruction(self.b.ins(), op),
        };
        self.scopes[depth].known.insert(op, v);
        v
    }

    /// The inside of a scope that `entry` enters.
    pub fn scope(
        walk: &mut KernelWalker<'_, Self>,
        entry: Inst,
        body: impl FnOnce(&mut KernelWalker<'_, Self>) -> Result<()>,
    ) -> Result<()> {
        walk.code.scopes.push(CodeRegion { entry: Some(entry), known: HashMap::new() });
        let result = body(walk);
        walk.code.scopes.pop();
        result
    }
}

fn instruction<'f>(ins: impl InstBuilder<'f>, op: IndexOp<Value>) -> Value {
    match op {
        IndexOp::Const(c) => ins.iconst(types::I64, c),
        IndexOp::Add(a, b) => ins.iadd(a, b),
        IndexOp::Rest(a, b) => ins.isub(a, b),
        IndexOp::AddConst(a, c) => ins.iadd_imm_s(a, c),
        IndexOp::Scale(a, c) if c > 0 && c & (c - 1) == 0 => ins.ishl_imm_u(a, i64::from(c.trailing_zeros())),
        IndexOp::Scale(a, c) => ins.imul_imm_s(a, c),
        IndexOp::ShiftRight(a, c) => ins.sshr_imm_u(a, i64::from(c)),
        IndexOp::Mask(a, c) => ins.band_imm_s(a, c),
        IndexOp::Divide(a, c, _) => ins.sdiv_imm_s(a, c),
        IndexOp::Min(a, b) => ins.smin(a, b),
        IndexOp::Max(a, b) => ins.smax(a, b),
    }
}

/// Where a buffer's elements are.
#[derive(Clone, Debug)]
pub(super) enum BufferStorage {
    None,
    /// At an address.
    Memory(Value),
    /// One variable for each element.
    Elements(Vec<Variable>),
    /// Vectors of consecutive elements.
    Packed(Vec<Variable>),
    /// For each element the chunks of all lanes of the current vector loop.
    Private(Vec<Vec<Variable>>),
}

/// A comparison's operands and their chunks.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub operands: SmallVec<[Operand; 3]>,
    pub chunks: SmallVec<[Chunks; 3]>,
}
