//! Printing of kernels.

use std::fmt::Write;

use tensorc_abi::DType;

use super::canonical::canonical_kernel;
use super::names::{Scoped, sigiled};
use super::out::{Out, join};
use super::print_scalar::{constant, instruction};
use crate::index::Index;
use crate::kir::{
    Buf, BufferPlace, Kernel, LoopKind, MemorySpace, Operand, Stmt, TensorMap, TileOperand, Var, WarpRole,
};

struct Printer<'k> {
    kernel: &'k Kernel,
    vars: Vec<String>,
    buffers: Vec<String>,
    names: Scoped,
    /// Unquoted names bound in the open blocks, in order.
    bound: Vec<String>,
}

/// `kernel @name(…) { … }` as an item of a file.
pub(super) fn item(out: &mut Out<'_>, k: &Kernel) {
    kernel(out, "kernel ", k);
    out.close("}");
}

/// The kernel in canonical form from its name on; the caller closes the brace.
pub(super) fn kernel(out: &mut Out<'_>, head: &str, k: &Kernel) {
    let k = &canonical_kernel(k);
    let mut p = Printer {
        kernel: k,
        vars: (0..k.vars.len()).map(|v| format!("%undefined{v}")).collect(),
        buffers: (0..k.buffers.len()).map(|b| format!("%undefined_buffer{b}")).collect(),
        names: Scoped::default(),
        bound: vec![],
    };
    let params: Vec<String> = (0..k.params.min(k.buffers.len()))
        .map(|b| {
            p.bind_buffer(Buf(b as u32));
            let info = &k.buffers[b];
            let mutable = if info.writable { "mut " } else { "" };
            format!("{}: {mutable}{}[{}]", p.buffers[b], info.dtype, info.len)
        })
        .collect();
    let scalars: Vec<String> = k.scalars.iter().map(|v| p.bind(*v)).collect();
    let scalars = match scalars.is_empty() {
        true => String::new(),
        false => format!(" scalars({})", join(scalars)),
    };
    out.open(&format!("{head}{}({}){scalars} {{", sigiled('@', &k.name), join(params)));
    p.block(out, &k.body);
}

impl Printer<'_> {
    fn bind(&mut self, v: Var) -> String {
        let Some(info) = self.kernel.vars.get(v.0 as usize) else { return self.var(v) };
        let text = self.unique(&info.name);
        self.vars[v.0 as usize] = text.clone();
        text
    }

    fn unique(&mut self, name: &str) -> String {
        let unique = self.names.bind(name);
        let text = sigiled('%', &unique);
        self.bound.push(unique);
        text
    }

    fn bind_buffer(&mut self, b: Buf) {
        if let Some(info) = self.kernel.buffers.get(b.0 as usize) {
            self.buffers[b.0 as usize] = self.unique(&info.name);
        }
    }

    fn var(&self, v: Var) -> String {
        self.vars.get(v.0 as usize).cloned().unwrap_or_else(|| "%undefined".into())
    }

    fn buffer(&self, b: Buf) -> String {
        self.buffers.get(b.0 as usize).cloned().unwrap_or_else(|| "%undefined_buffer".into())
    }

    fn dtype(&self, o: Operand) -> DType {
        match o {
            Operand::Var(v) => self.kernel.vars.get(v.0 as usize).map_or(DType::I64, |i| i.dtype),
            Operand::Const(c) => c.dtype,
        }
    }

    fn buffer_dtype(&self, b: Buf) -> Option<DType> {
        self.kernel.buffers.get(b.0 as usize).map(|i| i.dtype)
    }

    fn operand(&self, o: Operand, expected: Option<DType>) -> String {
        match o {
            Operand::Var(v) => self.var(v),
            Operand::Const(c) => constant(c, expected),
        }
    }

    fn index(&self, index: &Index) -> String {
        index.display(&|v| self.var(Var(v)))
    }

    fn place(&self, buf: Buf, index: &Index) -> String {
        format!("{}[{}]", self.buffer(buf), self.index(index))
    }

    /// Prints a block and ends the visibility of what it binds.
    fn block(&mut self, out: &mut Out<'_>, block: &[Stmt]) {
        let outer = self.bound.len();
        block.iter().for_each(|s| self.stmt(out, s));
        self.close_scope(outer);
    }

    fn close_scope(&mut self, outer: usize) {
        for name in self.bound.drain(outer..) {
            self.names.unbind(&name);
        }
    }

    fn stmt(&mut self, out: &mut Out<'_>, stmt: &Stmt) {
        match stmt {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let (lo, hi) = (self.index(lo), self.index(hi));
                let by = if *step == 1 { String::new() } else { format!(" by {step}") };
                let outer = self.bound.len();
                let name = self.bind(*var);
                out.open(&format!("{} {name} in {lo}..{hi}{by} {{", loop_name(*kind)));
                self.block(out, body);
                self.close_scope(outer);
                out.close("}");
            }
            Stmt::Let { var, op, args } => {
                let args: Vec<_> = args
                    .iter()
                    .map(|a| match a {
                        Operand::Var(v) => (Ok(self.var(*v)), self.dtype(*a)),
                        Operand::Const(c) => (Err(*c), c.dtype),
                    })
                    .collect();
                let text = instruction(*op, &args);
                out.line(&format!("{} = {text}", self.bind(*var)));
            }
            Stmt::LetIndex { var, index } => {
                let text = self.index(index);
                out.line(&format!("{} = index {text}", self.bind(*var)));
            }
            Stmt::Load { var, buf, index, guard } => {
                let guard = guard.map_or(String::new(), |(cond, fill)| {
                    let cond = self.operand(cond, Some(DType::Bool));
                    format!(" where {cond} else {}", constant(fill, self.buffer_dtype(*buf)))
                });
                let place = self.place(*buf, index);
                out.line(&format!("{} = load {place}{guard}", self.bind(*var)));
            }
            Stmt::Store { buf, index, value } => {
                let value = self.operand(*value, self.buffer_dtype(*buf));
                out.line(&format!("store {}, {value}", self.place(*buf, index)));
            }
            Stmt::VectorMath { f, buf, start, len } => {
                let len = self.index(len);
                out.line(&format!("apply {} {} len {len}", f.name(), self.place(*buf, start)));
            }
            Stmt::Alloc { buf } => {
                self.bind_buffer(*buf);
                let Some(info) = self.kernel.buffers.get(buf.0 as usize) else { return };
                let text = format!("alloc {} {}[{}]", space_name(info.space), info.dtype, info.len);
                out.line(&format!("{} = {text}", self.buffer(*buf)));
            }
            Stmt::If { cond, then, otherwise } => {
                out.open(&format!("if {} {{", self.operand(*cond, Some(DType::Bool))));
                self.block(out, then);
                if !otherwise.is_empty() {
                    out.close("} else {");
                    out.reopen();
                    self.block(out, otherwise);
                }
                out.close("}");
            }
            _ => self.gpu_stmt(out, stmt),
        }
    }

    /// Statements of kernels for a GPU alone.
    fn gpu_stmt(&mut self, out: &mut Out<'_>, stmt: &Stmt) {
        match stmt {
            Stmt::Shuffle { var, value, mask } => {
                let dtype = self.kernel.vars.get(var.0 as usize).map(|i| i.dtype);
                let value = self.operand(*value, dtype);
                out.line(&format!("{} = shuffle {value} xor {mask}", self.bind(*var)));
            }
            Stmt::Mma(mma) => {
                let [acc, a, b] = [&mma.acc, &mma.a, &mma.b].map(|p| self.place(p.buf, &p.index));
                out.line(&format!("mma {acc}, {a}, {b}"));
            }
            Stmt::LoadMatrix { into, from, count, transposed } => {
                let [into, from] = [into, from].map(|p| self.place(p.buf, &p.index));
                let transposed = if *transposed { " transposed" } else { "" };
                out.line(&format!("load_matrix {into}, {from} count {count}{transposed}"));
            }
            Stmt::CopyAsync { into, from, len, cond } => {
                let [into, from] = [into, from].map(|p| self.place(p.buf, &p.index));
                let cond = cond.map_or(String::new(), |c| format!(" where {}", self.operand(c, Some(DType::Bool))));
                out.line(&format!("copy_async {into}, {from} len {len}{cond}"));
            }
            Stmt::CommitCopies => out.line("commit_copies"),
            Stmt::AwaitCopies { pending } => out.line(&format!("await_copies {pending}")),
            Stmt::Barrier => out.line("barrier"),
            _ => self.group_stmt(out, stmt),
        }
    }

    /// Statements of groups of warps.
    fn group_stmt(&mut self, out: &mut Out<'_>, stmt: &Stmt) {
        let place = |p: &Self, place: &BufferPlace| p.place(place.buf, &place.index);
        match stmt {
            Stmt::InitBarriers { buf, arrivals } => {
                out.line(&format!("init_barriers {} arrivals {arrivals}", self.buffer(*buf)));
            }
            Stmt::Arrive { barrier, bytes: 0 } => out.line(&format!("arrive {}", place(self, barrier))),
            Stmt::Arrive { barrier, bytes } => out.line(&format!("arrive {} bytes {bytes}", place(self, barrier))),
            Stmt::AwaitBarrier { barrier, phase } => {
                let phase = self.index(phase);
                out.line(&format!("await_barrier {} phase {phase}", place(self, barrier)));
            }
            Stmt::CopyTile(copy) => {
                let TensorMap { buf, rows, columns, stride, box_rows, ref batch } = copy.map;
                let (matrix, into, barrier) = (self.buffer(buf), place(self, &copy.into), place(self, &copy.barrier));
                let [row, column] = [0, 1].map(|i| self.index(&copy.at[i]));
                let mut view = format!("{matrix} rows {rows} columns {columns} stride {stride} box {box_rows}");
                for (axis, at) in batch.iter().zip(&copy.batch) {
                    let _ = write!(view, " batch {} stride {} at {}", axis.extent, axis.stride, self.index(at));
                }
                out.line(&format!("copy_tile {into}, {view} at {row}, {column} signals {barrier}"));
            }
            Stmt::GroupMma(mma) => {
                let operand = |p: &Self, x: &TileOperand| match x.panels {
                    None => place(p, &x.at),
                    Some(distance) => format!("{} transposed panels {distance}", place(p, &x.at)),
                };
                let (a, b) = (operand(self, &mma.a), operand(self, &mma.b));
                let (columns, depth) = (mma.columns, mma.depth);
                out.line(&format!("group_mma {}, {a}, {b} columns {columns} depth {depth}", place(self, &mma.acc)));
            }
            Stmt::AwaitProducts { sums, pending } => {
                out.line(&format!("await_products {} pending {pending}", self.buffer(*sums)));
            }
            Stmt::Roles(roles) => {
                out.open("roles {");
                for WarpRole { warps: (first, end), registers, body } in roles {
                    out.open(&format!("warps {first}..{end} registers {registers} {{"));
                    self.block(out, body);
                    out.close("}");
                }
                out.close("}");
            }
            _ => {}
        }
    }
}

pub(super) const fn loop_name(kind: LoopKind) -> &'static str {
    match kind {
        LoopKind::Serial => "for",
        LoopKind::Unroll => "unroll",
        LoopKind::Vector => "vector",
        LoopKind::Parallel => "parallel",
        LoopKind::Grid => "grid",
        LoopKind::Threads => "threads",
    }
}

pub(super) const fn space_name(space: MemorySpace) -> &'static str {
    match space {
        MemorySpace::Global => "global",
        MemorySpace::Shared => "shared",
        MemorySpace::Tile => "tile",
        MemorySpace::Barrier => "barrier",
        MemorySpace::Stack => "stack",
        MemorySpace::Register => "register",
    }
}
