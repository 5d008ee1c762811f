//! What one kernel computes and moves: element evaluations by kind and bytes by operand.
//!
//! Facts about a set of primitives that become one kernel, without regard to a machine. A value
//! inside the kernel that is read at other coordinates than its user's is computed at every read; a
//! value that does not change along the innermost axes is computed once for them.

use smallvec::SmallVec;
use tensorc_ir::DenseType;
use tensorc_ir::diag::Result;
use tensorc_ir::extent::Example;
use tensorc_ir::graph::{Graph, NodeKind, Value};
use tensorc_ir::index::Index;
use tensorc_ir::prim::{Contraction, Prim, View};
use tensorc_ir::scalar::{ScalarFn, ScalarNode, ScalarOp};

use crate::recognise::contract::{LibraryCall, computed_elements, library_call};

/// Where a member of a kernel finds an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandSource {
    /// The result of an earlier member.
    Member(usize),
    /// An operand of the kernel.
    External(usize),
    /// A number in the code.
    Number,
}

/// One primitive of a kernel.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The primitive.
    pub prim: &'a Prim,
    /// Where its operands are found.
    pub args: SmallVec<[OperandSource; 4]>,
    /// The types of its results.
    pub types: &'a [DenseType],
    /// Whether results are written to memory, by result.
    pub stored: SmallVec<[bool; 2]>,
    /// What a contraction computes, if that is known already: finding the library that computes it takes
    /// a while.
    pub ops: Option<Ops>,
}

/// Scalar work by what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ops {
    /// Floating-point operations of library matrix products.
    pub product: u64,
    /// Floating-point operations of library convolutions over channels in planes.
    pub convolution: u64,
    /// The same over channels in blocks.
    pub blocked_convolution: u64,
    /// Floating-point operations of contractions in generated loops.
    pub direct: u64,
    /// Additions, comparisons and the like.
    pub simple: u64,
    /// Divisions and square roots.
    pub division: u64,
    /// Calls of mathematical functions.
    pub call: u64,
    /// Positions that are not sums of strides: gathers, divided coordinates, guarded reads.
    pub lookup: u64,
}

/// Part of one operand that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Bytes read at least once.
    pub bytes: u64,
    /// Bytes of the whole operand.
    pub of: u64,
}

/// What running a kernel once takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelWork {
    /// By operand.
    pub reads: Vec<Read>,
    /// Bytes of each result.
    pub writes: Vec<u64>,
    /// Arithmetic operations by kind.
    pub ops: Ops,
}

impl Ops {
    fn add_function(&mut self, f: &ScalarFn, times: u64) {
        for node in &f.nodes {
            let kind = match node {
                ScalarNode::Op(ScalarOp::Math(_), _) => &mut self.call,
                ScalarNode::Op(ScalarOp::Div | ScalarOp::Rem | ScalarOp::Sqrt, _) => &mut self.division,
                ScalarNode::Op(..) => &mut self.simple,
                _ => continue,
            };
            *kind = kind.saturating_add(times);
        }
    }

    /// What one call of a function computes.
    pub fn of_function(f: &ScalarFn) -> Ops {
        let mut ops = Ops::default();
        ops.add_function(f, 1);
        ops
    }

    /// What a contraction of operands of these types computes.
    pub fn of_contraction(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Ops {
        let flops = c.extents.iter().fold(2u64, |product, e| product.saturating_mul(*e));
        match library_call(c, lhs, rhs, None) {
            Some(LibraryCall::Conv(conv)) if conv.in_planes() && conv.pass.tile().is_none() => {
                Ops { convolution: flops, ..Ops::default() }
            }
            Some(LibraryCall::Conv(conv)) => {
                Ops { blocked_convolution: conv.convert(&Example).products().saturating_mul(2), ..Ops::default() }
            }
            Some(LibraryCall::Gemm(_)) => Ops { product: flops, ..Ops::default() },
            None => Ops { direct: flops, ..Ops::default() },
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        let Ops { product, convolution, blocked_convolution, direct, simple, division, call, lookup } = *self;
        let parts = [product, convolution, blocked_convolution, direct, simple, division, call, lookup];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    fn add(&mut self, other: &Ops) {
        self.product = self.product.saturating_add(other.product);
        self.convolution = self.convolution.saturating_add(other.convolution);
        self.blocked_convolution = self.blocked_convolution.saturating_add(other.blocked_convolution);
        self.direct = self.direct.saturating_add(other.direct);
    }
}

impl KernelWork {
    /// Bytes read from memory.
    pub fn read(&self) -> u64 {
        self.reads.iter().map(|r| r.bytes).sum()
    }

    /// Bytes written to memory.
    pub fn written(&self) -> u64 {
        self.writes.iter().sum()
    }

    /// Bytes read and written.
    pub fn moved(&self) -> u64 {
        self.read() + self.written()
    }

    /// The work of primitives in topological order, with operands of the given types.
    pub fn of(members: &[Member<'_>], externals: &[&DenseType]) -> KernelWork {
        let mut demand = Demand {
            members,
            externals,
            evaluations: vec![(0, 0); members.len()],
            needed: vec![0; members.len()],
            touched: vec![0; externals.len()],
        };
        let mut work = KernelWork::default();
        for (i, member) in members.iter().enumerate().rev() {
            demand.member(i, member, &mut work);
        }
        let read = |(ty, touched): (&&DenseType, &u64)| Read {
            bytes: (*touched).min(ty.len()) * ty.dtype.size() as u64,
            of: ty.bytes(),
        };
        work.reads = externals.iter().zip(&demand.touched).map(read).collect();
        for member in members {
            let stored = member.types.iter().zip(&member.stored).filter(|(_, stored)| **stored);
            work.writes.extend(stored.map(|(ty, _)| ty.bytes()));
        }
        work
    }

    /// The work of the body of a cluster.
    ///
    /// # Errors
    /// A type is not fully known.
    pub fn of_body(body: &Graph) -> Result<KernelWork> {
        let order = body.order();
        let mut at = std::collections::BTreeMap::new();
        let mut members = vec![];
        let externals: Vec<Value> = body.inputs().iter().map(|&node| Value { node, port: 0 }).collect();
        let mut types = std::collections::BTreeMap::new();
        for &node in &order {
            let ports = 0..body.node(node).types.len() as u16;
            types.insert(node, ports.map(|port| body.dense(Value { node, port })).collect::<Result<Vec<_>>>()?);
        }
        for &node in &order {
            let NodeKind::Prim(prim) = &body.node(node).kind else { continue };
            let source = |v: Value| match at.get(&v.node) {
                Some(i) => OperandSource::Member(*i),
                None => externals.iter().position(|e| *e == v).map_or(OperandSource::Number, OperandSource::External),
            };
            let args = body.args(node).into_iter().map(source).collect();
            let ports = 0..body.node(node).types.len() as u16;
            let stored = ports.map(|port| body.is_output(Value { node, port })).collect();
            at.insert(node, members.len());
            members.push(Member { prim, args, types: &types[&node], stored, ops: None });
        }
        let dense = externals.iter().map(|v| body.dense(*v)).collect::<Result<Vec<_>>>()?;
        Ok(KernelWork::of(&members, &dense.iter().collect::<Vec<_>>()))
    }
}

/// What users ask of members and operands; users are visited before what they read.
struct Demand<'a> {
    members: &'a [Member<'a>],
    externals: &'a [&'a DenseType],
    /// Evaluations of elements at their users' coordinates, which share them, and elsewhere.
    evaluations: Vec<(u64, u64)>,
    /// Different elements that are needed.
    needed: Vec<u64>,
    touched: Vec<u64>,
}

impl<'a> Demand<'a> {
    fn member(&mut self, i: usize, member: &Member<'_>, work: &mut KernelWork) {
        let Some(out) = member.types.first() else { return };
        let len = out.len();
        let (mut aligned, other) = self.evaluations[i];
        let mut needed = self.needed[i].min(len);
        let folds = matches!(member.prim, Prim::Reduce(_) | Prim::Contract(_));
        if folds || member.stored.contains(&true) {
            (aligned, needed) = (aligned.max(len), len);
        }
        let evaluations = if folds { len } else { aligned.saturating_add(other) };
        match member.prim {
            Prim::Map(f) => {
                work.ops.add_function(f, evaluations);
                for source in &member.args {
                    let dims = self.dims(*source);
                    let steps = broadcast_steps(&out.dims, dims);
                    self.read(*source, evaluations.div_ceil(steps), out.dims == dims, needed);
                }
            }
            Prim::View(view) => {
                if view.fill.is_some() || !view.map.iter().all(Index::is_affine) {
                    work.ops.lookup = work.ops.lookup.saturating_add(evaluations);
                }
                if let Some(source) = member.args.first() {
                    self.read(*source, evaluations.div_ceil(constant_steps(view, &out.dims)), false, needed);
                }
            }
            Prim::Gather(_) => {
                work.ops.lookup = work.ops.lookup.saturating_add(evaluations);
                member.args.iter().for_each(|source| self.read(*source, evaluations, false, needed));
            }
            Prim::Reduce(r) => {
                let elements = member.args.first().map_or(0, |source| self.len(*source));
                work.ops.add_function(&r.map, elements);
                work.ops.add_function(&r.combine, elements);
                work.ops.add_function(&r.finish, len);
                member.args.iter().for_each(|source| self.read(*source, elements, true, elements));
            }
            Prim::Contract(c) => {
                let [l, r] = member.args[..] else { return };
                let (Some(lhs), Some(rhs)) = (self.ty(l), self.ty(r)) else { return };
                work.ops.add(&member.ops.unwrap_or_else(|| Ops::of_contraction(c, lhs, rhs)));
                for (source, map) in [(l, &c.lhs), (r, &c.rhs)] {
                    let points = points(map, &c.extents);
                    let times = match source {
                        OperandSource::Member(_) => computed_elements(c, lhs, rhs, points.min(self.len(source))),
                        _ => points,
                    };
                    self.read(source, times, false, points);
                }
            }
            Prim::Concat { .. } | Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_) => {
                for source in &member.args {
                    let all = self.len(*source);
                    self.read(*source, all, true, all);
                }
            }
        }
    }

    fn dims(&self, source: OperandSource) -> &[u64] {
        match source {
            OperandSource::Member(i) => self.members[i].types.first().map_or(&[], |t| &t.dims),
            OperandSource::External(i) => &self.externals[i].dims,
            OperandSource::Number => &[],
        }
    }

    fn ty(&self, source: OperandSource) -> Option<&'a DenseType> {
        match source {
            OperandSource::Member(i) => self.members[i].types.first(),
            OperandSource::External(i) => self.externals.get(i).copied(),
            OperandSource::Number => None,
        }
    }

    fn len(&self, source: OperandSource) -> u64 {
        self.dims(source).iter().product()
    }

    /// Adds a user that reads `times` elements, `needed` different ones at most.
    fn read(&mut self, source: OperandSource, times: u64, in_place: bool, needed: u64) {
        let len = self.len(source);
        match source {
            OperandSource::Member(i) => {
                let (aligned, other) = &mut self.evaluations[i];
                match in_place {
                    true => *aligned = times.max(*aligned),
                    false => *other = other.saturating_add(times),
                }
                self.needed[i] = self.needed[i].saturating_add(needed.min(len));
            }
            OperandSource::External(i) => self.touched[i] = self.touched[i].saturating_add(needed.min(len)),
            OperandSource::Number => {}
        }
    }
}

/// Along how many steps of the innermost axes an operand of shape `dims`, broadcast to `out`, does
/// not change.
fn broadcast_steps(out: &[u64], dims: &[u64]) -> u64 {
    let constant = |(i, n): &(usize, &u64)| dims.len().checked_sub(1 + i).is_none_or(|at| dims[at] == 1) || **n == 1;
    out.iter().rev().enumerate().take_while(constant).map(|(_, n)| (*n).max(1)).product()
}

/// As [`broadcast_steps`], for the operand of a view.
fn constant_steps(view: &View, out: &[u64]) -> u64 {
    let constant = |axis: &usize| out[*axis] == 1 || !view.map.iter().any(|m| m.mentions(*axis as u32));
    (0..out.len()).rev().take_while(constant).map(|axis| out[axis].max(1)).product()
}

/// How many points the axes that an operand's index map mentions have.
fn points(map: &[Index], extents: &[u64]) -> u64 {
    let mentioned = |axis: &usize| map.iter().any(|m| m.mentions(*axis as u32));
    (0..extents.len()).filter(mentioned).fold(1u64, |product, axis| product.saturating_mul(extents[axis]))
}
