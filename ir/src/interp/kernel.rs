//! Execution of KIR: every loop kind runs in order, every access is checked.

use smallvec::SmallVec;
use tensorc_abi::DType;

use crate::diag::{Diagnostic, DiagnosticCode, Result};
use crate::index::Index;
use crate::kir::{Buf, Kernel, LoopKind, MemorySpace, Operand, Stmt, Var};
use crate::scalar::{MathLibrary, Scalar, ScalarOp};

/// Runs a kernel on the bytes of its buffer parameters. For a parallel kernel `scalars` is the
/// half-open range of iterations.
///
/// Errors: a buffer of the wrong size, an access out of bounds, a read of a local element that was
/// never written, a store to a read-only buffer, a function call the f32 verifier would reject.
pub fn run_kernel(kernel: &Kernel, buffers: &mut [Vec<u8>], scalars: &[i64], math: &dyn MathLibrary) -> Result<()> {
    let mut machine = KernelInterpreter {
        kernel,
        math,
        vars: vec![Scalar::i64(0); kernel.vars.len()],
        params: buffers,
        locals: vec![],
    };
    machine.locals.resize(kernel.buffers.len(), (vec![], vec![]));
    if kernel.launch().is_some() {
        return machine.fail("is for a GPU".into());
    }
    if machine.params.len() != kernel.params || scalars.len() != kernel.scalars.len() {
        return machine.fail(format!(
            "takes {} buffers and {} scalars, given {} and {}",
            kernel.params,
            kernel.scalars.len(),
            machine.params.len(),
            scalars.len()
        ));
    }
    for (info, bytes) in kernel.buffers.iter().zip(machine.params.iter()) {
        if info.len * info.dtype.size() as u64 != bytes.len() as u64 {
            return machine.fail(format!(
                "buffer `{}` has {} bytes, expected {} elements",
                info.name,
                bytes.len(),
                info.len
            ));
        }
    }
    for (var, value) in kernel.scalars.iter().zip(scalars) {
        machine.vars[var.0 as usize] = Scalar::i64(*value);
    }
    if kernel.is_parallel() {
        let [Stmt::For { var, step, body, .. }] = &kernel.body[..] else {
            return machine.fail("a parallel loop must be the only statement".into());
        };
        return (scalars[0]..scalars[1]).try_for_each(|i| {
            machine.vars[var.0 as usize] = Scalar::i64(i * step);
            machine.block(body)
        });
    }
    machine.block(&kernel.body)
}

struct KernelInterpreter<'a> {
    kernel: &'a Kernel,
    math: &'a dyn MathLibrary,
    vars: Vec<Scalar>,
    params: &'a mut [Vec<u8>],
    /// Values of each local buffer and which elements were written.
    locals: Vec<(Vec<Scalar>, Vec<bool>)>,
}

impl KernelInterpreter<'_> {
    fn fail<T>(&self, why: String) -> Result<T> {
        Err(Diagnostic::new(DiagnosticCode::Verify, format!("kernel {}: {why}", self.kernel.name)))
    }

    fn index(&self, index: &Index) -> i64 {
        index.eval(&|v| self.vars[v as usize].as_i64())
    }

    fn operand(&self, o: Operand) -> Scalar {
        match o {
            Operand::Var(v) => self.vars[v.0 as usize],
            Operand::Const(c) => c,
        }
    }

    fn bind(&mut self, var: Var, value: Scalar) {
        self.vars[var.0 as usize] = value;
    }

    fn element(&self, buf: Buf, index: &Index) -> Result<usize> {
        let info = self.kernel.buf(buf);
        let at = self.index(index);
        match (0..info.len.fixed()).contains(&at) {
            true => Ok(at as usize),
            false => self.fail(format!("index {at} is out of bounds of `{}` ({} elements)", info.name, info.len)),
        }
    }

    fn load(&self, buf: Buf, index: &Index) -> Result<Scalar> {
        let at = self.element(buf, index)?;
        let info = self.kernel.buf(buf);
        if info.space == MemorySpace::Global {
            return Ok(Scalar::read(info.dtype, &self.params[buf.0 as usize][at * info.dtype.size()..]));
        }
        let (values, written) = &self.locals[buf.0 as usize];
        match written.get(at) {
            Some(true) => Ok(values[at]),
            _ => self.fail(format!("element {at} of `{}` is read before it is written", info.name)),
        }
    }

    fn store(&mut self, buf: Buf, index: &Index, value: Scalar) -> Result<()> {
        let at = self.element(buf, index)?;
        let info = self.kernel.buf(buf);
        match info.space {
            _ if !info.writable => self.fail(format!("`{}` is read-only", info.name)),
            MemorySpace::Global => {
                value.write(&mut self.params[buf.0 as usize][at * info.dtype.size()..]);
                Ok(())
            }
            _ => match self.locals[buf.0 as usize].0.get_mut(at) {
                Some(slot) => {
                    *slot = value;
                    self.locals[buf.0 as usize].1[at] = true;
                    Ok(())
                }
                None => self.fail(format!("`{}` is used before its alloc", info.name)),
            },
        }
    }

    fn block(&mut self, stmts: &[Stmt]) -> Result<()> {
        stmts.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { kind: LoopKind::Parallel | LoopKind::Grid | LoopKind::Threads, .. } => {
                self.fail("a loop over what runs at once must be outermost".into())
            }
            Stmt::For { var, lo, hi, step, body, .. } => {
                let (mut i, hi) = (self.index(lo), self.index(hi));
                while i < hi {
                    self.bind(*var, Scalar::i64(i));
                    self.block(body)?;
                    i += step;
                }
                Ok(())
            }
            Stmt::Let { var, op, args } => {
                let args: SmallVec<[Scalar; 3]> = args.iter().map(|a| self.operand(*a)).collect();
                let dtypes: SmallVec<[DType; 3]> = args.iter().map(|a| a.dtype).collect();
                match (op, op.result(&dtypes)) {
                    (_, Err(why)) => self.fail(why),
                    (ScalarOp::Math(f), Ok(DType::F32)) => self.fail(format!("{} on f32 is not expanded", f.name())),
                    _ => {
                        self.bind(*var, op.eval(&args));
                        Ok(())
                    }
                }
            }
            Stmt::LetIndex { var, index } => {
                let value = self.index(index);
                self.bind(*var, Scalar::i64(value));
                Ok(())
            }
            Stmt::Load { var, buf, index, guard } => {
                let value = match guard {
                    Some((cond, fill)) if !self.operand(*cond).as_bool() => *fill,
                    _ => self.load(*buf, index)?,
                };
                self.bind(*var, value);
                Ok(())
            }
            Stmt::Store { buf, index, value } => self.store(*buf, index, self.operand(*value)),
            Stmt::VectorMath { f, buf, start, len } => {
                for i in 0..self.index(len) {
                    let at = start.offset(i);
                    let value = self.math.body(*f).eval(&[self.load(*buf, &at)?], &[]);
                    self.store(*buf, &at, value[0])?;
                }
                Ok(())
            }
            Stmt::Alloc { buf } => {
                let len = self.kernel.buf(*buf).elements() as usize;
                let zero = Scalar::zero(self.kernel.buf(*buf).dtype);
                self.locals[buf.0 as usize] = (vec![zero; len], vec![false; len]);
                Ok(())
            }
            Stmt::If { cond, then, otherwise } => match self.operand(*cond).as_bool() {
                true => self.block(then),
                false => self.block(otherwise),
            },
            _ => self.fail("a statement of kernels for a GPU".into()),
        }
    }
}
