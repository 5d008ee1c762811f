//! Calls of the run-time library, which a GPU does not have, as the statements that compute the same.

use smallvec::SmallVec;
use tensorc_ir::kir::{Kernel, Operand, Stmt, Var, VarInfo};
use tensorc_ir::scalar::{MathLibrary, Scalar, ScalarFn, ScalarNode};

/// The kernel with the expansions of a library in place of calls.
pub fn expanded(mut kernel: Kernel, library: &dyn MathLibrary) -> Kernel {
    let body = std::mem::take(&mut kernel.body);
    let mut expander = Expander { library, vars: &mut kernel.vars };
    kernel.body = expander.block(body);
    kernel
}

struct Expander<'a> {
    library: &'a dyn MathLibrary,
    vars: &'a mut Vec<VarInfo>,
}

impl Expander<'_> {
    fn block(&mut self, body: Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::with_capacity(body.len());
        for stmt in body {
            match stmt {
                Stmt::For { var, lo, hi, step, kind, body } => {
                    let body = self.block(body);
                    out.push(Stmt::For { var, lo, hi, step, kind, body });
                }
                Stmt::If { cond, then, otherwise } => {
                    let (then, otherwise) = (self.block(then), self.block(otherwise));
                    out.push(Stmt::If { cond, then, otherwise });
                }
                Stmt::Let { var, op, ref args } => {
                    let from = args.first().map(|a| match a {
                        Operand::Var(v) => self.vars[v.0 as usize].dtype,
                        Operand::Const(c) => c.dtype,
                    });
                    let library = self.library;
                    match from.and_then(|from| library.expansion(op, from)) {
                        Some(f) => self.inline(f, args, var, &mut out),
                        None => out.push(stmt),
                    }
                }
                other => out.push(other),
            }
        }
        out
    }

    /// Binds `result` to what the function, whose output is an operation, gives for the operands.
    fn inline(&mut self, f: &ScalarFn, args: &[Operand], result: Var, out: &mut Vec<Stmt>) {
        let mut values: Vec<Operand> = Vec::with_capacity(f.nodes.len());
        for (i, node) in f.nodes.iter().enumerate() {
            values.push(match node {
                ScalarNode::Input(i) => args[*i as usize],
                ScalarNode::Const(c) => Operand::Const(*c),
                // No function of a library depends on positions.
                ScalarNode::Coord(_) => Operand::Const(Scalar::i64(0)),
                ScalarNode::Op(op, ids) => {
                    let var = match f.outputs[0].0 as usize == i {
                        true => result,
                        false => {
                            self.vars.push(VarInfo { name: "f".into(), dtype: f.dtypes[i] });
                            Var(self.vars.len() as u32 - 1)
                        }
                    };
                    let args: SmallVec<[Operand; 3]> = ids.iter().map(|id| values[id.0 as usize]).collect();
                    out.push(Stmt::Let { var, op: *op, args });
                    Operand::Var(var)
                }
            });
        }
    }
}
