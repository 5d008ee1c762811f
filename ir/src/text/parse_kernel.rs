//! Parsing of kernels.

use std::collections::BTreeMap;

use tensorc_abi::DType;

use super::lex::{Pos, SigilName, Tok};
use super::parse::Parser;
use super::parse_scalar::ParsedOperand;
use crate::diag::Result;
use crate::index::Index;
use crate::kir::{
    BatchAxis, Buf, BufInfo, BufferPlace, GroupMma, Kernel, LoopKind, MemorySpace, Mma, Operand, Stmt, TensorMap,
    TileCopy, TileOperand, Var, VarInfo, WarpRole,
};
use crate::scalar::{MathFn, Scalar};

#[derive(Clone, Copy)]
enum NamedItem {
    Var(Var),
    Buf(Buf),
}

/// The kernel so far and the names visible at the cursor.
struct KernelScope {
    kernel: Kernel,
    names: BTreeMap<(String, u32), NamedItem>,
    /// Names bound in the open blocks, in order.
    bound: Vec<(String, u32)>,
}

impl KernelScope {
    fn bind(&mut self, name: &SigilName, entry: NamedItem, pos: Pos) -> Result<()> {
        match self.names.insert(name.key(), entry) {
            Some(_) => Err(pos.error(format!("`%{}` is already visible here", name.text))),
            None => {
                self.bound.push(name.key());
                Ok(())
            }
        }
    }

    fn var(&mut self, name: &SigilName, dtype: DType, pos: Pos) -> Result<Var> {
        let var = Var(self.kernel.vars.len() as u32);
        self.kernel.vars.push(VarInfo { name: name.text.clone(), dtype });
        self.bind(name, NamedItem::Var(var), pos)?;
        Ok(var)
    }

    fn buffer(&mut self, name: &SigilName, info: BufInfo, pos: Pos) -> Result<Buf> {
        let buf = Buf(self.kernel.buffers.len() as u32);
        self.kernel.buffers.push(info);
        self.bind(name, NamedItem::Buf(buf), pos)?;
        Ok(buf)
    }

    fn close(&mut self, outer: usize) {
        for key in self.bound.drain(outer..) {
            self.names.remove(&key);
        }
    }

    fn value(&self, name: &SigilName) -> Option<(Var, DType)> {
        match self.names.get(&name.key()) {
            Some(NamedItem::Var(v)) => Some((*v, self.kernel.var(*v).dtype)),
            _ => None,
        }
    }
}

impl Parser<'_> {
    /// A kernel from its name on.
    pub(super) fn kernel(&mut self) -> Result<Kernel> {
        let name = self.sigil('@', "a kernel name")?.text;
        let kernel = Kernel { name, vars: vec![], buffers: vec![], params: 0, scalars: vec![], body: vec![] };
        let mut s = KernelScope { kernel, names: BTreeMap::new(), bound: vec![] };
        self.list(('(', ')'), |p| {
            let pos = p.pos();
            let name = p.sigil('%', "a parameter name")?;
            p.expect(':')?;
            let writable = p.eat_word("mut");
            let (dtype, len) = p.buffer_type()?;
            let info =
                BufInfo { name: name.text.clone(), dtype, len: len.into(), space: MemorySpace::Global, writable };
            s.buffer(&name, info, pos)
        })?;
        s.kernel.params = s.kernel.buffers.len();
        if self.eat_word("scalars") {
            s.kernel.scalars = self.list(('(', ')'), |p| {
                let pos = p.pos();
                let name = p.sigil('%', "a parameter name")?;
                s.var(&name, DType::I64, pos)
            })?;
        }
        s.kernel.body = self.block(&mut s)?;
        Ok(s.kernel)
    }

    /// `f32[1024]`.
    fn buffer_type(&mut self) -> Result<(DType, u64)> {
        let dtype = self.dtype()?;
        self.expect('[')?;
        let len = self.number("a number of elements")?;
        self.expect(']')?;
        Ok((dtype, len))
    }

    fn block(&mut self, s: &mut KernelScope) -> Result<Vec<Stmt>> {
        self.nested(|p| {
            let outer = s.bound.len();
            p.expect('{')?;
            let mut stmts = vec![];
            while !p.eat('}') {
                stmts.push(p.stmt(s)?);
            }
            s.close(outer);
            Ok(stmts)
        })
    }

    fn stmt(&mut self, s: &mut KernelScope) -> Result<Stmt> {
        let pos = self.pos();
        if let Tok::Sigil('%', ..) = self.peek() {
            let name = self.sigil('%', "a value name")?;
            self.expect('=')?;
            return self.binding(s, &name, pos);
        }
        let word = self.word("a statement")?;
        match word.as_str() {
            "for" => self.for_loop(s, LoopKind::Serial),
            "unroll" => self.for_loop(s, LoopKind::Unroll),
            "vector" => self.for_loop(s, LoopKind::Vector),
            "parallel" => self.for_loop(s, LoopKind::Parallel),
            "grid" => self.for_loop(s, LoopKind::Grid),
            "threads" => self.for_loop(s, LoopKind::Threads),
            "store" => {
                let (buf, index) = self.place(s)?;
                self.expect(',')?;
                let value = self.operand(s, s.kernel.buf(buf).dtype)?;
                Ok(Stmt::Store { buf, index, value })
            }
            "apply" => {
                let at = self.pos();
                let name = self.word("a function")?;
                let f = MathFn::from_name(&name).filter(|f| f.arity() == 1);
                let f = f.ok_or_else(|| at.error(format!("`{name}` is not a function of one argument")))?;
                let (buf, start) = self.place(s)?;
                self.expect_word("len")?;
                Ok(Stmt::VectorMath { f, buf, start, len: self.kernel_index(s)? })
            }
            "if" => {
                let cond = self.operand(s, DType::Bool)?;
                let then = self.block(s)?;
                let otherwise = match self.eat_word("else") {
                    true => self.block(s)?,
                    false => vec![],
                };
                Ok(Stmt::If { cond, then, otherwise })
            }
            _ => self.gpu_stmt(s, &word, pos),
        }
    }

    /// Statements of kernels for a GPU alone.
    fn gpu_stmt(&mut self, s: &mut KernelScope, word: &str, pos: Pos) -> Result<Stmt> {
        match word {
            "barrier" => Ok(Stmt::Barrier),
            "mma" => {
                let acc = self.gpu_place(s)?;
                self.expect(',')?;
                let a = self.gpu_place(s)?;
                self.expect(',')?;
                Ok(Stmt::Mma(Box::new(Mma { a, b: self.gpu_place(s)?, acc })))
            }
            "load_matrix" => {
                let into = self.gpu_place(s)?;
                self.expect(',')?;
                let from = self.gpu_place(s)?;
                self.expect_word("count")?;
                let count = self.number("a number of matrices")?;
                Ok(Stmt::LoadMatrix { into, from, count, transposed: self.eat_word("transposed") })
            }
            "copy_async" => {
                let into = self.gpu_place(s)?;
                self.expect(',')?;
                let from = self.gpu_place(s)?;
                self.expect_word("len")?;
                let len = self.number("a number of elements")?;
                let cond = match self.eat_word("where") {
                    true => Some(self.operand(s, DType::Bool)?),
                    false => None,
                };
                Ok(Stmt::CopyAsync { into, from, len, cond })
            }
            "commit_copies" => Ok(Stmt::CommitCopies),
            "await_copies" => Ok(Stmt::AwaitCopies { pending: self.number("a number of groups")? }),
            _ => self.group_stmt(s, word, pos),
        }
    }

    /// Statements of groups of warps.
    fn group_stmt(&mut self, s: &mut KernelScope, word: &str, pos: Pos) -> Result<Stmt> {
        match word {
            "init_barriers" => {
                let buf = self.buffer_name(s)?;
                self.expect_word("arrivals")?;
                Ok(Stmt::InitBarriers { buf, arrivals: self.number("a number of warps")? })
            }
            "arrive" => {
                let barrier = self.gpu_place(s)?;
                let bytes = if self.eat_word("bytes") { self.number("a number of bytes")? } else { 0 };
                Ok(Stmt::Arrive { barrier, bytes })
            }
            "await_barrier" => {
                let barrier = self.gpu_place(s)?;
                self.expect_word("phase")?;
                Ok(Stmt::AwaitBarrier { barrier, phase: self.kernel_index(s)? })
            }
            "copy_tile" => {
                let into = self.gpu_place(s)?;
                self.expect(',')?;
                let buf = self.buffer_name(s)?;
                let mut extent = |word: &str| {
                    self.expect_word(word)?;
                    self.number::<u64>("a number of elements")
                };
                let (rows, columns, stride) = (extent("rows")?, extent("columns")?, extent("stride")?);
                self.expect_word("box")?;
                let box_rows = self.number("a number of rows")?;
                let (axes, batch) = self.batch_axes(s)?;
                self.expect_word("at")?;
                let row = self.kernel_index(s)?;
                self.expect(',')?;
                let at = [row, self.kernel_index(s)?];
                self.expect_word("signals")?;
                let map = TensorMap { buf, rows, columns, stride, box_rows, batch: axes };
                Ok(Stmt::CopyTile(Box::new(TileCopy { into, map, at, batch, barrier: self.gpu_place(s)? })))
            }
            "group_mma" => {
                let acc = self.gpu_place(s)?;
                self.expect(',')?;
                let a = self.tile_operand(s)?;
                self.expect(',')?;
                let b = self.tile_operand(s)?;
                self.expect_word("columns")?;
                let columns = self.number("a number of columns")?;
                self.expect_word("depth")?;
                let depth = self.number("a number of terms")?;
                Ok(Stmt::GroupMma(Box::new(GroupMma { acc, a, b, columns, depth })))
            }
            "await_products" => {
                let sums = self.buffer_name(s)?;
                self.expect_word("pending")?;
                Ok(Stmt::AwaitProducts { sums, pending: self.number("a number of products")? })
            }
            "roles" => {
                self.expect('{')?;
                let mut roles = vec![];
                while self.eat_word("warps") {
                    let first = self.number("a warp")?;
                    if *self.peek() != Tok::DotDot {
                        return self.expected("`..`");
                    }
                    self.next();
                    let end = self.number("a warp")?;
                    self.expect_word("registers")?;
                    let registers = self.number("a number of registers")?;
                    roles.push(WarpRole { warps: (first, end), registers, body: self.block(s)? });
                }
                self.expect('}')?;
                Ok(Stmt::Roles(roles))
            }
            _ => Err(pos.error(format!("`{word}` does not begin a statement"))),
        }
    }

    /// Axes along which there are more matrices, and which of them.
    fn batch_axes(&mut self, s: &KernelScope) -> Result<(Vec<BatchAxis>, Vec<Index>)> {
        let (mut axes, mut batch) = (vec![], vec![]);
        while self.eat_word("batch") {
            let extent = self.number("a number of matrices")?;
            self.expect_word("stride")?;
            axes.push(BatchAxis { extent, stride: self.number("a number of elements")? });
            self.expect_word("at")?;
            batch.push(self.kernel_index(s)?);
        }
        Ok((axes, batch))
    }

    fn tile_operand(&mut self, s: &KernelScope) -> Result<TileOperand> {
        let at = self.gpu_place(s)?;
        let panels = match self.eat_word("transposed") {
            true => {
                self.expect_word("panels")?;
                Some(self.number("a number of elements")?)
            }
            false => None,
        };
        Ok(TileOperand { at, panels })
    }

    fn buffer_name(&mut self, s: &KernelScope) -> Result<Buf> {
        let pos = self.pos();
        let name = self.sigil('%', "a buffer")?;
        match s.names.get(&name.key()) {
            Some(NamedItem::Buf(buf)) => Ok(*buf),
            _ => Err(pos.error(format!("`%{}` is not a visible buffer", name.text))),
        }
    }

    fn gpu_place(&mut self, s: &KernelScope) -> Result<BufferPlace> {
        let (buf, index) = self.place(s)?;
        Ok(BufferPlace { buf, index })
    }

    fn binding(&mut self, s: &mut KernelScope, name: &SigilName, pos: Pos) -> Result<Stmt> {
        if self.eat_word("load") {
            let (buf, index) = self.place(s)?;
            let dtype = s.kernel.buf(buf).dtype;
            let guard = match self.eat_word("where") {
                true => {
                    let cond = self.operand(s, DType::Bool)?;
                    self.expect_word("else")?;
                    Some((cond, self.literal_or(dtype)?))
                }
                false => None,
            };
            return Ok(Stmt::Load { var: s.var(name, dtype, pos)?, buf, index, guard });
        }
        if self.eat_word("index") {
            let index = self.kernel_index(s)?;
            return Ok(Stmt::LetIndex { var: s.var(name, DType::I64, pos)?, index });
        }
        if self.eat_word("shuffle") {
            let at = self.pos();
            let value = self.operand(s, DType::F32)?;
            let Operand::Var(of) = value else { return Err(at.error("a constant is the same in every thread")) };
            self.expect_word("xor")?;
            let mask = self.number("a mask")?;
            let dtype = s.kernel.var(of).dtype;
            return Ok(Stmt::Shuffle { var: s.var(name, dtype, pos)?, value, mask });
        }
        if self.eat_word("alloc") {
            let space = match () {
                _ if self.eat_word("shared") => MemorySpace::Shared,
                _ if self.eat_word("tile") => MemorySpace::Tile,
                _ if self.eat_word("barrier") => MemorySpace::Barrier,
                _ if self.eat_word("register") => MemorySpace::Register,
                _ if self.eat_word("stack") => MemorySpace::Stack,
                _ => return self.expected("`register`, `stack`, `shared`, `tile` or `barrier`"),
            };
            let (dtype, len) = self.buffer_type()?;
            let info = BufInfo { name: name.text.clone(), dtype, len: len.into(), space, writable: true };
            return Ok(Stmt::Alloc { buf: s.buffer(name, info, pos)? });
        }
        let ins = self.instruction(&|name| s.value(name))?;
        let args = ins.args.into_iter().map(|a| match a {
            ParsedOperand::Ref(v, _) => Operand::Var(v),
            ParsedOperand::Const(c) => Operand::Const(c),
        });
        let args = args.collect();
        Ok(Stmt::Let { var: s.var(name, ins.result, pos)?, op: ins.op, args })
    }

    /// `%i in lo..hi by step { … }`.
    fn for_loop(&mut self, s: &mut KernelScope, kind: LoopKind) -> Result<Stmt> {
        let pos = self.pos();
        let name = self.sigil('%', "a loop variable")?;
        self.expect_word("in")?;
        let lo = self.kernel_index(s)?;
        if *self.peek() != Tok::DotDot {
            return self.expected("`..`");
        }
        self.next();
        let hi = self.kernel_index(s)?;
        let at = self.pos();
        let step: i64 = match self.eat_word("by") {
            true => self.number("a step")?,
            false => 1,
        };
        if step < 1 {
            return Err(at.error("a step must be positive"));
        }
        let outer = s.bound.len();
        let var = s.var(&name, DType::I64, pos)?;
        let body = self.block(s)?;
        s.close(outer);
        Ok(Stmt::For { var, lo, hi, step, kind, body })
    }

    /// `%buffer[index]`.
    fn place(&mut self, s: &KernelScope) -> Result<(Buf, Index)> {
        let buf = self.buffer_name(s)?;
        self.expect('[')?;
        let index = self.kernel_index(s)?;
        self.expect(']')?;
        Ok((buf, index))
    }

    fn kernel_index(&mut self, s: &KernelScope) -> Result<Index> {
        self.index(&|t| match t {
            Tok::Sigil('%', name, None) => s.value(name).filter(|(_, d)| *d == DType::I64).map(|(v, _)| v.0),
            _ => None,
        })
    }

    fn operand(&mut self, s: &KernelScope, expected: DType) -> Result<Operand> {
        if let Tok::Sigil('%', ..) = self.peek() {
            let pos = self.pos();
            let name = self.sigil('%', "a value")?;
            let value = s.value(&name).ok_or_else(|| pos.error(format!("`%{}` is not a visible value", name.text)))?;
            return Ok(Operand::Var(value.0));
        }
        let value: Scalar = self.literal_or(expected)?;
        Ok(Operand::Const(value))
    }
}
