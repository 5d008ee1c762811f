//! Kernels written with operators: handles on the values, tensors and cells of a kernel under construction.
//!
//! Handles share the kernel and are copied freely. A statement is added when Rust evaluates the expression, so the text
//! of a kernel has the order of its source.

use std::cell::RefCell;
use std::ops::{Add, BitAnd, BitOr, Div, Mul, Neg, Not, Rem, Sub};

use tensorc_ir::diag::Result;
use tensorc_ir::extent::Axes;
use tensorc_ir::index::{Atom, Index, delinearize, linearize, unbounded};
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::op::OpError;
use tensorc_ir::prim::Prim;
use tensorc_ir::scalar::{CmpOp, Ex, MathFn, Scalar, ScalarFn, ScalarOp};
use tensorc_ir::{DType, DenseType, Extent, Extents};

use crate::blocks::copy_run;

/// A kernel under construction. Its first error is that of [`KernelScope::finish`].
pub struct KernelScope {
    builder: RefCell<KernelBuilder>,
    /// Those of the tensors, by buffer.
    dims: RefCell<Vec<Extents>>,
    error: RefCell<Option<OpError>>,
}

/// A value in a kernel.
#[derive(Clone, Copy)]
pub struct KernelValue<'k> {
    k: &'k KernelScope,
    operand: Operand,
}

/// A tensor in a kernel: a parameter or working memory.
#[derive(Clone, Copy)]
pub struct KernelTensor<'k> {
    k: &'k KernelScope,
    buf: Buf,
    dtype: DType,
}

/// Memory of one element.
#[derive(Clone, Copy)]
pub struct KernelCell<'k>(KernelTensor<'k>);

/// What operators take beside a [`KernelValue`]: numbers, of the type of the other operand, and positions.
pub trait Term<'k> {
    /// The type of a number among numbers alone.
    const NUMBER: DType = DType::I64;
    /// The type, if it has one of its own.
    fn dtype(&self) -> Option<DType>;
    /// The value as an operand of a statement; a number becomes one of `dtype`.
    fn operand(self, k: &KernelScope, dtype: DType) -> Operand;
}

impl<'k> Term<'k> for KernelValue<'k> {
    fn dtype(&self) -> Option<DType> {
        Some(KernelValue::dtype(*self))
    }

    fn operand(self, _: &KernelScope, _: DType) -> Operand {
        self.operand
    }
}

macro_rules! numbers {
    ($($number:ty, $default:expr, $own:expr, $convert:expr;)*) => { $(
        impl Term<'_> for $number {
            const NUMBER: DType = $default;

            fn dtype(&self) -> Option<DType> {
                $own(self)
            }

            fn operand(self, _: &KernelScope, dtype: DType) -> Operand {
                Operand::Const($convert(dtype, self))
            }
        }
    )* };
}

numbers! {
    f64, DType::F64, |_| None, Scalar::from_f64;
    i64, DType::I64, |_| None, Scalar::from_i64;
    bool, DType::Bool, |_| Some(DType::Bool), |_, x| Scalar::bool(x);
}

impl Term<'_> for Scalar {
    fn dtype(&self) -> Option<DType> {
        Some(self.dtype)
    }

    fn operand(self, _: &KernelScope, _: DType) -> Operand {
        Operand::Const(self)
    }
}

impl Term<'_> for Extent {
    fn dtype(&self) -> Option<DType> {
        Some(DType::I64)
    }

    fn operand(self, k: &KernelScope, _: DType) -> Operand {
        k.builder.borrow_mut().index_value(Index::constant(self))
    }
}

impl Term<'_> for &Index {
    fn dtype(&self) -> Option<DType> {
        Some(DType::I64)
    }

    fn operand(self, k: &KernelScope, _: DType) -> Operand {
        k.builder.borrow_mut().index_value(self.clone())
    }
}

/// Where an element of a tensor is: its row-major offset, or a coordinate for each axis.
pub trait Place {
    /// The row-major offset in a tensor with the given extents.
    fn offset(self, dims: &Extents) -> Index;
}

impl Place for &Index {
    fn offset(self, _: &Extents) -> Index {
        self.clone()
    }
}

impl Place for &[Index] {
    fn offset(self, dims: &Extents) -> Index {
        linearize(self, dims)
    }
}

impl Place for &Vec<Index> {
    fn offset(self, dims: &Extents) -> Index {
        linearize(self, dims)
    }
}

impl<const N: usize> Place for [&Index; N] {
    fn offset(self, dims: &Extents) -> Index {
        linearize(&self.map(Index::clone), dims)
    }
}

impl KernelScope {
    /// A kernel without parameters and statements.
    pub fn new(name: &str) -> KernelScope {
        let builder = RefCell::new(KernelBuilder::new(name));
        KernelScope { builder, dims: RefCell::default(), error: RefCell::default() }
    }

    /// The tensor of the buffer that was declared last.
    fn tensor(&self, buf: Buf, dtype: DType, dims: Extents) -> KernelTensor<'_> {
        self.dims.borrow_mut().push(dims);
        KernelTensor { k: self, buf, dtype }
    }

    /// The next parameter. Operands come before results, which are writable.
    pub fn param(&self, name: &str, dtype: DType, dims: impl Into<Extents>, writable: bool) -> KernelTensor<'_> {
        let dims = dims.into();
        let buf = self.builder.borrow_mut().param(name, dtype, dims.count(), writable);
        self.tensor(buf, dtype, dims)
    }

    /// The next parameter, an operand.
    pub fn input(&self, name: &str, ty: &DenseType) -> KernelTensor<'_> {
        self.param(name, ty.dtype, &ty.dims, false)
    }

    /// The next parameters, which are operands.
    pub fn inputs<const N: usize>(&self, names: [&str; N], types: [&DenseType; N]) -> [KernelTensor<'_>; N] {
        std::array::from_fn(|i| self.input(names[i], types[i]))
    }

    /// The next parameter, a result.
    pub fn output(&self, name: &str, ty: &DenseType) -> KernelTensor<'_> {
        self.param(name, ty.dtype, &ty.dims, true)
    }

    /// The next parameters, which are results.
    pub fn outputs<const N: usize>(&self, names: [&str; N], types: [&DenseType; N]) -> [KernelTensor<'_>; N] {
        std::array::from_fn(|i| self.output(names[i], types[i]))
    }

    /// Working memory until the end of the innermost block.
    pub fn memory(&self, name: &str, dtype: DType, dims: impl Into<Extents>, space: MemorySpace) -> KernelTensor<'_> {
        let dims = dims.into();
        let buf = self.builder.borrow_mut().alloc(name, dtype, dims.count(), space);
        self.tensor(buf, dtype, dims)
    }

    /// An element of working memory on the stack.
    pub fn cell(&self, name: &str, dtype: DType) -> KernelCell<'_> {
        KernelCell(self.memory(name, dtype, [], MemorySpace::Stack))
    }

    /// An element of working memory in a register.
    pub fn register(&self, name: &str, dtype: DType) -> KernelCell<'_> {
        KernelCell(self.memory(name, dtype, [], MemorySpace::Register))
    }

    fn value(&self, operand: Operand) -> KernelValue<'_> {
        KernelValue { k: self, operand }
    }

    /// A number of a type.
    pub fn number(&self, dtype: DType, x: f64) -> KernelValue<'_> {
        self.constant(Scalar::from_f64(dtype, x))
    }

    /// An i64 number.
    pub fn int(&self, x: i64) -> KernelValue<'_> {
        self.constant(Scalar::i64(x))
    }

    /// A constant.
    pub fn constant(&self, x: Scalar) -> KernelValue<'_> {
        self.value(Operand::Const(x))
    }

    /// A position as an i64 value.
    pub fn position(&self, at: &Index) -> KernelValue<'_> {
        self.value(at.operand(self, DType::I64))
    }

    /// A position as a variable of its own, whose range the code generator knows.
    pub fn bound(&self, name: &str, at: &Index) -> Index {
        self.builder.borrow_mut().let_index(name, at.clone())
    }

    /// Whether `lo <= at < hi`.
    pub fn in_range(&self, at: &Index, lo: i64, hi: impl Into<Extent>) -> KernelValue<'_> {
        let inside = self.builder.borrow_mut().in_range(at, lo, hi);
        self.value(inside)
    }

    /// A loop over `0..n`.
    fn counted(&self, name: &str, n: impl Into<Extent>, kind: LoopKind, body: impl FnOnce(&Index)) {
        self.enclosed(name, (Index::default(), Index::constant(n), 1), kind, body);
    }

    fn enclosed(&self, name: &str, range: (Index, Index, i64), kind: LoopKind, body: impl FnOnce(&Index)) {
        let i = self.builder.borrow_mut().open_for(name, range, kind);
        body(&i);
        self.builder.borrow_mut().close_for();
    }

    /// `for name in 0..n`.
    pub fn each(&self, name: &str, n: impl Into<Extent>, body: impl FnOnce(&Index)) {
        self.counted(name, n, LoopKind::Serial, body);
    }

    /// `for name in lo..hi`.
    pub fn range(&self, name: &str, (lo, hi): (&Index, &Index), body: impl FnOnce(&Index)) {
        self.strided(name, (lo, hi, 1), body);
    }

    /// `for name in lo..hi by step`.
    pub fn strided(&self, name: &str, (lo, hi, step): (&Index, &Index, i64), body: impl FnOnce(&Index)) {
        self.enclosed(name, (lo.clone(), hi.clone(), step), LoopKind::Serial, body);
    }

    /// `for name in 0..n`, written out.
    pub fn unrolled(&self, name: &str, n: i64, body: impl FnOnce(&Index)) {
        self.counted(name, n, LoopKind::Unroll, body);
    }

    /// `for name in 0..n`, as lanes of vectors.
    pub fn lanes(&self, name: &str, n: u64, body: impl FnOnce(&Index)) {
        self.counted(name, n, LoopKind::Vector, body);
    }

    /// The outermost loop `for name in 0..n`, with iterations that do not depend on each other.
    pub fn parallel_each(&self, name: &str, n: impl Into<Extent>, body: impl FnOnce(&Index)) {
        self.counted(name, n, LoopKind::Parallel, body);
    }

    /// The outermost loop, over all elements of `dims`; the body sees their coordinates.
    pub fn parallel(&self, dims: &(impl Axes + ?Sized), body: impl FnOnce(&[Index])) {
        self.parallel_each("p", dims.count(), |p| body(&coordinates(p, dims)));
    }

    /// Serial loops over `dims`, outermost first.
    pub fn serial(&self, dims: &(impl Axes + ?Sized), body: impl FnOnce(&[Index])) {
        let open = |n: Extent| {
            let range = (Index::default(), Index::constant(n), 1);
            self.builder.borrow_mut().open_for("i", range, LoopKind::Serial)
        };
        let at: Vec<Index> = dims.each().map(open).collect();
        body(&at);
        at.iter().for_each(|_| self.builder.borrow_mut().close_for());
    }

    /// Statements that run where the condition holds.
    pub fn when(&self, condition: KernelValue<'_>, body: impl FnOnce()) {
        self.builder.borrow_mut().open_block();
        body();
        self.builder.borrow_mut().close_if(condition.operand);
    }

    /// As [`KernelScope::when`]; without a condition, the statements always run.
    pub fn when_all(&self, conditions: Option<KernelValue<'_>>, body: impl FnOnce()) {
        match conditions {
            Some(condition) => self.when(condition, body),
            None => body(),
        }
    }

    /// Scalar expressions of some values.
    pub fn eval<'k, const N: usize>(
        &'k self,
        args: &[KernelValue<'k>],
        f: impl FnOnce(&[Ex]) -> [Ex; N],
    ) -> [KernelValue<'k>; N] {
        let types: Vec<DType> = args.iter().map(|a| KernelValue::dtype(*a)).collect();
        let values = self.eval_all(&types, args, |a| f(a).to_vec());
        std::array::from_fn(|i| values.get(i).copied().unwrap_or(self.int(0)))
    }

    /// Scalar expressions of values with the given types, as many as `f` returns; none after an error.
    pub fn eval_all<'k>(
        &'k self,
        types: &[DType],
        args: &[KernelValue<'k>],
        f: impl FnOnce(&[Ex]) -> Vec<Ex>,
    ) -> Vec<KernelValue<'k>> {
        match ScalarFn::build(types, |_, a| f(a)) {
            Ok(f) => {
                let args: Vec<Operand> = args.iter().map(|a| a.operand).collect();
                let values = self.builder.borrow_mut().apply(&f, &args, &[]);
                values.into_iter().map(|v| self.value(v)).collect()
            }
            Err(why) => {
                self.fail(why);
                vec![]
            }
        }
    }

    /// Remembers an error, unless there is one.
    pub fn fail(&self, why: impl Into<OpError>) {
        self.error.borrow_mut().get_or_insert(why.into());
    }

    /// The finished kernel, or the first error.
    pub fn finish(&self) -> Result<Kernel, OpError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.builder.replace(KernelBuilder::new("")).finish()),
        }
    }

    /// The finished kernel as a primitive.
    pub fn prim(&self) -> Result<Prim, OpError> {
        self.finish().map(|kernel| Prim::Kernel(kernel.into()))
    }
}

/// Row-major coordinates of `offset`, which lies in `0..dims.product()`.
pub fn coordinates(offset: &Index, dims: &(impl Axes + ?Sized)) -> Vec<Index> {
    // No variable of a sum exceeds the sum. What is divided does.
    let summed = |(atom, factor): &(Atom, Extent)| matches!(atom, Atom::Var(_)) && factor.is_surely_from(1);
    if !offset.terms.iter().all(summed) || !offset.constant.is_surely_from(0) {
        return delinearize(offset, dims, &unbounded);
    }
    let last = dims.count().last_position();
    delinearize(offset, dims, &|_: u32| (Extent::ZERO, last))
}

/// A position within `0..n`, with its bounds in sight of bounds checks.
pub fn clamp(at: &Index, n: impl Into<Extent>) -> Index {
    bounded(at, n.into().greatest(1) - 1)
}

/// A position within `0..=last`, with its bounds in sight of bounds checks.
pub fn bounded(at: &Index, last: impl Into<Extent>) -> Index {
    at.maximum(&Index::default(), &unbounded).minimum(&Index::constant(last), &unbounded)
}

impl<'k> KernelTensor<'k> {
    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The extents.
    pub fn dims(self) -> Extents {
        self.k.dims.borrow()[self.buf.0 as usize].clone()
    }

    fn offset(self, at: impl Place) -> Index {
        at.offset(&self.k.dims.borrow()[self.buf.0 as usize])
    }

    /// Reads an element.
    pub fn get(self, at: impl Place) -> KernelValue<'k> {
        let value = self.k.builder.borrow_mut().load(self.buf, self.offset(at));
        self.k.value(value)
    }

    /// Reads an element in another type.
    pub fn get_as(self, at: impl Place, dtype: DType) -> KernelValue<'k> {
        self.get(at).cast(dtype)
    }

    /// Reads an element as a position on an axis of extent `n`, see [`KernelValue::position`].
    pub fn position(self, at: impl Place, n: impl Into<Extent>) -> Index {
        self.get(at).position(n)
    }

    /// Writes an element.
    pub fn set(self, at: impl Place, value: impl Term<'k>) {
        let value = value.operand(self.k, self.dtype);
        self.k.builder.borrow_mut().store(self.buf, self.offset(at), value);
    }

    /// Writes an element, converted to the type of the tensor.
    pub fn set_cast(self, at: impl Place, value: KernelValue<'k>) {
        self.set(at, value.cast(self.dtype));
    }

    /// Adds to an element.
    pub fn add(self, at: impl Place, term: KernelValue<'k>) {
        let at = self.offset(at);
        let old = self.get(&at);
        self.set(&at, old + term.cast(self.dtype));
    }

    /// Copies `len` elements from `start` on of another tensor to the same places.
    pub fn copy(self, from: KernelTensor<'k>, start: &Index, len: impl Into<Extent>) {
        copy_run(self.k, [(self, start), (from, start)], len.into());
    }
}

impl<'k> KernelCell<'k> {
    /// The cell, which holds `value`.
    pub fn holding(self, value: impl Term<'k>) -> KernelCell<'k> {
        self.set(value);
        self
    }

    /// Reads it.
    pub fn get(self) -> KernelValue<'k> {
        self.0.get(&Index::default())
    }

    /// Writes it.
    pub fn set(self, value: impl Term<'k>) {
        self.0.set(&Index::default(), value);
    }

    /// Writes it where the condition holds.
    pub fn update(self, condition: KernelValue<'k>, value: impl Term<'k>) {
        let old = self.get();
        self.set(condition.select(value, old));
    }

    /// Adds to it.
    pub fn add(self, term: KernelValue<'k>) {
        self.set(self.get() + term);
    }
}

impl<'k> KernelValue<'k> {
    /// The type.
    pub fn dtype(self) -> DType {
        self.k.builder.borrow().dtype(self.operand)
    }

    fn apply(self, op: ScalarOp, args: &[Operand]) -> KernelValue<'k> {
        let value = self.k.builder.borrow_mut().op(op, args);
        self.k.value(value)
    }

    fn unary(self, op: ScalarOp) -> KernelValue<'k> {
        self.apply(op, &[self.operand])
    }

    /// A binary operation.
    pub fn binary(self, op: ScalarOp, other: impl Term<'k>) -> KernelValue<'k> {
        let other = other.operand(self.k, self.dtype());
        self.apply(op, &[self.operand, other])
    }

    /// A comparison.
    pub fn cmp(self, op: CmpOp, other: impl Term<'k>) -> KernelValue<'k> {
        self.binary(ScalarOp::Cmp(op), other)
    }

    /// A bool that chooses between two terms; of two numbers, f64 or i64.
    pub fn select<T: Term<'k>>(self, yes: T, no: impl Term<'k>) -> KernelValue<'k> {
        let dtype = yes.dtype().or(no.dtype()).unwrap_or(T::NUMBER);
        let (yes, no) = (yes.operand(self.k, dtype), no.operand(self.k, dtype));
        self.apply(ScalarOp::Select, &[self.operand, yes, no])
    }

    /// Converts to a type; no statement where the type is the same.
    pub fn cast(self, to: DType) -> KernelValue<'k> {
        if self.dtype() == to { self } else { self.unary(ScalarOp::Cast(to)) }
    }

    /// An i64 value as an index.
    pub fn index(self) -> Index {
        self.k.builder.borrow().as_index(self.operand)
    }

    /// An i64 value as a position in `0..n`; what is out of range is clamped.
    pub fn clamped(self, n: impl Into<Extent>) -> Index {
        clamp(&self.index(), n)
    }

    /// An element of an index operand as a position on an axis of extent `n`: negative values count from the end, and
    /// what is out of range is clamped.
    pub fn position(self, n: impl Into<Extent>) -> Index {
        let (value, n) = (self.cast(DType::I64), n.into());
        let wrapped = value + n;
        value.lt(0).select(wrapped, value).clamped(n)
    }
}

macro_rules! functions {
    (unary: $($doc:literal $name:ident $op:expr;)* binary: $($binary_doc:literal $binary:ident $binary_op:expr;)*) => {
        impl<'k> KernelValue<'k> {
            $(#[doc = $doc]
            pub fn $name(self) -> KernelValue<'k> {
                self.unary($op)
            })*
            $(#[doc = $binary_doc]
            pub fn $binary(self, other: impl Term<'k>) -> KernelValue<'k> {
                self.binary($binary_op, other)
            })*
        }
    };
}

functions! {
    unary:
    "The magnitude." abs ScalarOp::Abs;
    "The square root." sqrt ScalarOp::Sqrt;
    "The natural logarithm." log ScalarOp::Math(MathFn::Log);
    binary:
    "`self < other`." lt ScalarOp::Cmp(CmpOp::Lt);
    "`self <= other`." le ScalarOp::Cmp(CmpOp::Le);
    "`self > other`." gt ScalarOp::Cmp(CmpOp::Gt);
    "`self >= other`." ge ScalarOp::Cmp(CmpOp::Ge);
    "`self == other`." eq ScalarOp::Cmp(CmpOp::Eq);
    "`self != other`." ne ScalarOp::Cmp(CmpOp::Ne);
    "The larger of two values." max ScalarOp::Max;
    "The smaller of two values." min ScalarOp::Min;
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:expr;)*) => { $(
        impl<'k, T: Term<'k>> $trait<T> for KernelValue<'k> {
            type Output = KernelValue<'k>;

            fn $method(self, other: T) -> KernelValue<'k> {
                self.binary($op, other)
            }
        }
    )* };
}

operators! {
    Add add ScalarOp::Add;
    Sub sub ScalarOp::Sub;
    Mul mul ScalarOp::Mul;
    Div div ScalarOp::Div;
    Rem rem ScalarOp::Rem;
    BitAnd bitand ScalarOp::And;
    BitOr bitor ScalarOp::Or;
}

impl Neg for KernelValue<'_> {
    type Output = Self;

    fn neg(self) -> Self {
        self.unary(ScalarOp::Neg)
    }
}

impl Not for KernelValue<'_> {
    type Output = Self;

    fn not(self) -> Self {
        self.unary(ScalarOp::Not)
    }
}
