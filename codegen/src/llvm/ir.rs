//! Instructions of LLVM on values that are a scalar or a vector of lanes: one way to write them for both.

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicMetadataTypeEnum, BasicType, BasicTypeEnum, IntType, VectorType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, FunctionValue, InstructionOpcode, IntValue, PointerValue,
    VectorValue,
};
use inkwell::{AddressSpace, FloatPredicate, IntPredicate};
use tensorc_abi::DType;
use tensorc_ir::diag::Result;
use tensorc_ir::scalar::Scalar;

use crate::walk::internal;

/// A scalar or a vector.
pub(super) type Value<'c> = BasicValueEnum<'c>;

fn built<T>(result: std::result::Result<T, BuilderError>) -> Result<T> {
    result.map_err(|e| internal(format!("LLVM: {e}")))
}

/// The module under construction and the place where instructions go.
pub(super) struct Ir<'c, 'm> {
    pub cx: &'c Context,
    pub module: &'m Module<'c>,
    pub b: Builder<'c>,
}

impl<'c> Ir<'c, '_> {
    pub fn int(&self, bits: u32) -> IntType<'c> {
        match bits {
            1 => self.cx.bool_type(),
            8 => self.cx.i8_type(),
            16 => self.cx.i16_type(),
            32 => self.cx.i32_type(),
            _ => self.cx.i64_type(),
        }
    }

    /// The type of a scalar: integers and the bits of f16 and bf16 at their width, bool as one bit.
    pub fn scalar_type(&self, dtype: DType) -> BasicTypeEnum<'c> {
        match dtype {
            DType::F32 => self.cx.f32_type().into(),
            DType::F64 => self.cx.f64_type().into(),
            DType::Bool => self.cx.bool_type().into(),
            other => self.int(other.size() as u32 * 8).into(),
        }
    }

    /// The type of an element in memory.
    pub fn memory_type(&self, dtype: DType) -> BasicTypeEnum<'c> {
        if dtype == DType::Bool { self.cx.i8_type().into() } else { self.scalar_type(dtype) }
    }

    /// `lanes` values of a scalar type; the scalar itself for `None`.
    pub fn shaped(&self, scalar: BasicTypeEnum<'c>, lanes: Option<u32>) -> Result<BasicTypeEnum<'c>> {
        match (lanes, scalar) {
            (None, ty) => Ok(ty),
            (Some(n), BasicTypeEnum::FloatType(ty)) => Ok(ty.vec_type(n).into()),
            (Some(n), BasicTypeEnum::IntType(ty)) => Ok(ty.vec_type(n).into()),
            _ => Err(internal("a vector of vectors")),
        }
    }

    /// The type of `v` with other scalars.
    pub fn like(&self, v: Value<'c>, scalar: BasicTypeEnum<'c>) -> Result<BasicTypeEnum<'c>> {
        self.shaped(scalar, lanes_of(v))
    }

    /// Integers of `bits` in the shape of `v`.
    pub fn ints_like(&self, v: Value<'c>, bits: u32) -> Result<BasicTypeEnum<'c>> {
        self.like(v, self.int(bits).into())
    }

    /// A constant of the given type with these bits in every lane.
    pub fn bits(&self, ty: BasicTypeEnum<'c>, bits: u64) -> Result<Value<'c>> {
        match ty {
            BasicTypeEnum::IntType(int) => Ok(int.const_int(bits, false).into()),
            BasicTypeEnum::FloatType(float) => {
                let width = if float == self.cx.f64_type() { 64 } else { 32 };
                built(self.b.build_bit_cast(self.int(width).const_int(bits, false), float, ""))
            }
            BasicTypeEnum::VectorType(vector) => {
                let one = self.bits(vector.get_element_type(), bits)?;
                Ok(constant_vector(&vec![one; vector.get_size() as usize]).into())
            }
            _ => Err(internal("a constant of a type without bits")),
        }
    }

    /// A constant of the type of `v`.
    pub fn bits_like(&self, v: Value<'c>, bits: u64) -> Result<Value<'c>> {
        self.bits(v.get_type(), bits)
    }

    pub fn scalar(&self, c: Scalar) -> Result<Value<'c>> {
        let bits = if c.dtype == DType::Bool { u64::from(c.as_bool()) } else { c.bits };
        self.bits(self.scalar_type(c.dtype), bits)
    }

    pub fn i64(&self, x: i64) -> IntValue<'c> {
        self.cx.i64_type().const_int(x as u64, true)
    }

    /// An instruction of two operands of one type.
    pub fn binary(&self, op: InstructionOpcode, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        built(self.b.build_binop(op, a, b, ""))
    }

    pub fn add(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::Add, a, b)
    }

    /// The next value of a loop counter, which does not overflow.
    pub fn step(&self, counter: Value<'c>, by: Value<'c>) -> Result<Value<'c>> {
        match (counter, by) {
            (Value::IntValue(a), Value::IntValue(b)) => Ok(built(self.b.build_int_nsw_add(a, b, ""))?.into()),
            _ => Err(internal("expected an integer loop counter")),
        }
    }

    pub fn sub(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::Sub, a, b)
    }

    pub fn mul(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::Mul, a, b)
    }

    pub fn and(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::And, a, b)
    }

    pub fn or(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::Or, a, b)
    }

    pub fn xor(&self, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        self.binary(InstructionOpcode::Xor, a, b)
    }

    pub fn and_bits(&self, a: Value<'c>, bits: u64) -> Result<Value<'c>> {
        self.and(a, self.bits_like(a, bits)?)
    }

    /// A shift by a constant less than the width.
    pub fn shift(&self, op: InstructionOpcode, a: Value<'c>, by: u32) -> Result<Value<'c>> {
        self.binary(op, a, self.bits_like(a, u64::from(by))?)
    }

    pub fn negate(&self, v: Value<'c>) -> Result<Value<'c>> {
        match v {
            Value::FloatValue(x) => Ok(built(self.b.build_float_neg(x, ""))?.into()),
            Value::VectorValue(x) => Ok(built(self.b.build_float_neg(x, ""))?.into()),
            _ => Err(internal("a float negation of something else")),
        }
    }

    /// The complement of every bit.
    pub fn not(&self, v: Value<'c>) -> Result<Value<'c>> {
        self.xor(v, self.bits_like(v, u64::MAX)?)
    }

    pub fn compare_ints(&self, p: IntPredicate, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        match (a, b) {
            (Value::IntValue(a), Value::IntValue(b)) => Ok(built(self.b.build_int_compare(p, a, b, ""))?.into()),
            (Value::VectorValue(a), Value::VectorValue(b)) => Ok(built(self.b.build_int_compare(p, a, b, ""))?.into()),
            _ => Err(internal("a comparison of unlike operands")),
        }
    }

    pub fn compare_floats(&self, p: FloatPredicate, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        match (a, b) {
            (Value::FloatValue(a), Value::FloatValue(b)) => Ok(built(self.b.build_float_compare(p, a, b, ""))?.into()),
            (Value::VectorValue(a), Value::VectorValue(b)) => {
                Ok(built(self.b.build_float_compare(p, a, b, ""))?.into())
            }
            _ => Err(internal("a comparison of unlike operands")),
        }
    }

    /// `a` where `c` holds, else `b`; a scalar condition chooses all lanes.
    pub fn select(&self, c: Value<'c>, a: Value<'c>, b: Value<'c>) -> Result<Value<'c>> {
        match c {
            Value::IntValue(c) => built(self.b.build_select(c, a, b, "")),
            Value::VectorValue(c) => built(self.b.build_select(c, a, b, "")),
            _ => Err(internal("a condition that is none")),
        }
    }

    pub fn cast(&self, op: InstructionOpcode, v: Value<'c>, ty: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        if v.get_type() == ty { Ok(v) } else { built(self.b.build_cast(op, v, ty, "")) }
    }

    pub fn bitcast(&self, v: Value<'c>, ty: BasicTypeEnum<'c>) -> Result<Value<'c>> {
        self.cast(InstructionOpcode::BitCast, v, ty)
    }

    /// A call of an intrinsic that is overloaded by `types`.
    pub fn intrinsic(&self, name: &str, types: &[BasicTypeEnum<'c>], args: &[Value<'c>]) -> Result<Value<'c>> {
        let result = self.instruction(name, types, args)?;
        result.ok_or_else(|| internal(format!("`{name}` has no result")))
    }

    /// As [`Ir::intrinsic`], with a result or none.
    pub fn instruction(
        &self,
        name: &str,
        types: &[BasicTypeEnum<'c>],
        args: &[Value<'c>],
    ) -> Result<Option<Value<'c>>> {
        let found = Intrinsic::find(name).and_then(|i| i.get_declaration(self.module, types));
        self.call(found.ok_or_else(|| internal(format!("LLVM has no `{name}`")))?, args)
    }

    /// A call of assembly with effects beyond its operands, which threads execute together.
    pub fn assembly(
        &self,
        text: &str,
        constraints: &str,
        result: Option<BasicTypeEnum<'c>>,
        args: &[Value<'c>],
    ) -> Result<Option<Value<'c>>> {
        let types: Vec<BasicMetadataTypeEnum<'c>> = args.iter().map(|a| a.get_type().into()).collect();
        let ty = match result {
            Some(result) => result.fn_type(&types, false),
            None => self.cx.void_type().fn_type(&types, false),
        };
        let code = self.cx.create_inline_asm(ty, text.into(), constraints.into(), true, false, None, false);
        let args: Vec<BasicMetadataValueEnum<'c>> = args.iter().map(|a| (*a).into()).collect();
        let call = built(self.b.build_indirect_call(ty, code, &args, ""))?;
        for attribute in ["convergent", "nounwind"] {
            call.add_attribute(AttributeLoc::Function, self.attribute(attribute));
        }
        Ok(call.try_as_basic_value().basic())
    }

    /// Field `i` of a structure.
    pub fn field(&self, v: Value<'c>, i: u32) -> Result<Value<'c>> {
        match v {
            Value::StructValue(v) => built(self.b.build_extract_value(v, i, "")),
            _ => Err(internal("a field of no structure")),
        }
    }

    /// A call of a function without side effects but on the memory its arguments point to.
    pub fn call(&self, function: FunctionValue<'c>, args: &[Value<'c>]) -> Result<Option<Value<'c>>> {
        let args: Vec<BasicMetadataValueEnum<'c>> = args.iter().map(|a| (*a).into()).collect();
        Ok(built(self.b.build_call(function, &args, ""))?.try_as_basic_value().basic())
    }

    /// Declares a library function, once.
    pub fn declare(
        &self,
        name: &str,
        params: &[BasicTypeEnum<'c>],
        result: Option<BasicTypeEnum<'c>>,
    ) -> FunctionValue<'c> {
        if let Some(known) = self.module.get_function(name) {
            return known;
        }
        let params: Vec<BasicMetadataTypeEnum<'c>> = params.iter().map(|p| (*p).into()).collect();
        let ty = match result {
            Some(result) => result.fn_type(&params, false),
            None => self.cx.void_type().fn_type(&params, false),
        };
        let function = self.module.add_function(name, ty, None);
        for attribute in ["nounwind", "willreturn"] {
            function.add_attribute(AttributeLoc::Function, self.attribute(attribute));
        }
        function
    }

    pub fn attribute(&self, name: &str) -> Attribute {
        self.cx.create_enum_attribute(Attribute::get_named_enum_kind_id(name), 0)
    }

    pub fn splat(&self, v: Value<'c>, lanes: u32) -> Result<Value<'c>> {
        if v.is_vector_value() {
            return Ok(v);
        }
        if v.is_const() {
            return Ok(constant_vector(&vec![v; lanes as usize]).into());
        }
        let ty = self.vector_type(v.get_type(), lanes)?;
        let first = self.insert(ty.get_poison(), v, 0)?;
        let mask = self.cx.i32_type().vec_type(lanes).const_zero();
        Ok(built(self.b.build_shuffle_vector(first, ty.get_poison(), mask, ""))?.into())
    }

    pub fn vector_type(&self, scalar: BasicTypeEnum<'c>, lanes: u32) -> Result<VectorType<'c>> {
        match self.shaped(scalar, Some(lanes))? {
            BasicTypeEnum::VectorType(ty) => Ok(ty),
            _ => Err(internal("expected a vector type")),
        }
    }

    pub fn insert(&self, vector: VectorValue<'c>, v: Value<'c>, lane: usize) -> Result<VectorValue<'c>> {
        let at = self.cx.i32_type().const_int(lane as u64, false);
        built(self.b.build_insert_element(vector, v, at, ""))
    }

    pub fn extract(&self, vector: Value<'c>, lane: usize) -> Result<Value<'c>> {
        match vector {
            Value::VectorValue(v) => {
                let at = self.cx.i32_type().const_int(lane as u64, false);
                built(self.b.build_extract_element(v, at, ""))
            }
            scalar => Ok(scalar),
        }
    }

    /// One vector of scalars, one for each lane.
    pub fn assemble(&self, values: &[Value<'c>]) -> Result<Value<'c>> {
        let first = values.first().ok_or_else(|| internal("a vector without lanes"))?;
        let mut vector = self.vector_type(first.get_type(), values.len() as u32)?.get_poison();
        for (lane, v) in values.iter().enumerate() {
            vector = self.insert(vector, *v, lane)?;
        }
        Ok(vector.into())
    }

    /// Picks lanes of `a` followed by `b`.
    pub fn shuffle(&self, a: Value<'c>, b: Value<'c>, lanes: impl Iterator<Item = usize>) -> Result<Value<'c>> {
        let i32_type = self.cx.i32_type();
        let mask: Vec<Value<'c>> = lanes.map(|l| i32_type.const_int(l as u64, false).into()).collect();
        match (a, b) {
            (Value::VectorValue(a), Value::VectorValue(b)) => {
                Ok(built(self.b.build_shuffle_vector(a, b, constant_vector(&mask), ""))?.into())
            }
            _ => Err(internal("a shuffle of scalars")),
        }
    }

    pub fn load(&self, ty: BasicTypeEnum<'c>, at: PointerValue<'c>, alignment: u32) -> Result<Value<'c>> {
        let v = built(self.b.build_load(ty, at, ""))?;
        self.align(v.as_instruction_value(), alignment)?;
        Ok(v)
    }

    pub fn store(&self, v: Value<'c>, at: PointerValue<'c>, alignment: u32) -> Result<()> {
        let store = built(self.b.build_store(at, v))?;
        self.align(Some(store), alignment)
    }

    fn align(&self, access: Option<inkwell::values::InstructionValue<'c>>, alignment: u32) -> Result<()> {
        let access = access.ok_or_else(|| internal("expected a memory instruction"))?;
        access.set_alignment(alignment).map_err(|e| internal(format!("LLVM: {e}")))
    }

    /// Memory of the current function; the caller stands in its first block.
    pub fn alloca(&self, ty: BasicTypeEnum<'c>, alignment: u32) -> Result<PointerValue<'c>> {
        let memory = built(self.b.build_alloca(ty, ""))?;
        self.align(memory.as_instruction_value(), alignment)?;
        Ok(memory)
    }

    /// The address of the element `index` of an array at `base`.
    pub fn element(
        &self,
        element: BasicTypeEnum<'c>,
        base: PointerValue<'c>,
        index: IntValue<'c>,
    ) -> Result<PointerValue<'c>> {
        // SAFETY: the instruction has no promise attached (it is not `inbounds`), the operands are of the types
        // it takes: a pointer and an integer.
        built(unsafe { self.b.build_gep(element, base, &[index], "") })
    }

    pub fn pointer_type(&self) -> BasicTypeEnum<'c> {
        self.cx.ptr_type(AddressSpace::default()).into()
    }

    pub fn jump(&self, to: BasicBlock<'c>) -> Result<()> {
        built(self.b.build_unconditional_branch(to)).map(drop)
    }

    pub fn branch(&self, c: Value<'c>, then: BasicBlock<'c>, otherwise: BasicBlock<'c>) -> Result<()> {
        match c {
            Value::IntValue(c) => built(self.b.build_conditional_branch(c, then, otherwise)).map(drop),
            _ => Err(internal("a branch that differs by lane")),
        }
    }

    pub fn phi(&self, ty: BasicTypeEnum<'c>) -> Result<inkwell::values::PhiValue<'c>> {
        built(self.b.build_phi(ty, ""))
    }

    pub fn ret(&self) -> Result<()> {
        built(self.b.build_return(None)).map(drop)
    }
}

pub(super) fn lanes_of(v: Value<'_>) -> Option<u32> {
    match v {
        Value::VectorValue(v) => Some(v.get_type().get_size()),
        _ => None,
    }
}

pub(super) fn constant_vector<'c>(values: &[Value<'c>]) -> VectorValue<'c> {
    VectorType::const_vector(values)
}
