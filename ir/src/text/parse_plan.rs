//! Parsing of plans.

use std::collections::BTreeMap;
use std::iter;
use std::rc::Rc;

use tensorc_abi::fields::Visitor;
use tensorc_abi::{
    Arg, BatchedGemm, Buffer, BufferId, Conv2d, ConvPass, Epilogue, FlowKind, FlowPlan, KernelId, LeftOperand, Loop,
    PackedElements, Packing, Plan, Prologue, Scratch, Step, StepOp, StorageClass, SubBuffer, ValueCheck, VendorCall,
    VendorContraction, Weight,
};

use super::lex::{Pos, SigilName};
use super::parse::Parser;
use crate::diag::{Diagnostic, Result};

/// Positions by name, one table for each sigil.
#[derive(Default)]
struct PlanScope {
    plan: Plan,
    /// Those of the outermost plan, which nested ones share.
    kernels: Rc<BTreeMap<(String, u32), u32>>,
    weights: Rc<BTreeMap<(String, u32), u32>>,
    buffers: BTreeMap<(String, u32), u32>,
}

fn bind(table: &mut BTreeMap<(String, u32), u32>, name: &SigilName, pos: Pos) -> Result<()> {
    let position = table.len() as u32;
    match table.insert(name.key(), position) {
        Some(_) => Err(pos.error(format!("`{}` is defined twice", name.text))),
        None => Ok(()),
    }
}

/// `{name = number or list, …}`; every field is taken once.
struct Record {
    fields: BTreeMap<String, Vec<i128>>,
    pos: Pos,
}

impl Record {
    fn one<T: TryFrom<i128> + Default>(&mut self, name: &str) -> Result<T> {
        let mut value = [T::default()];
        self.take(name, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    fn finish(self) -> Result<()> {
        match self.fields.keys().next() {
            Some(name) => Err(self.pos.error(format!("unknown field `{name}`"))),
            None => Ok(()),
        }
    }
}

impl Parser<'_> {
    /// A plan from its name on.
    pub(super) fn plan(&mut self) -> Result<Plan> {
        let name = self.sigil('@', "a plan name")?.text;
        let mut s = PlanScope::default();
        s.plan.name = name;
        self.expect('{')?;
        self.arena(&mut s.plan)?;
        while self.eat_word("kernel") {
            let pos = self.pos();
            let name = self.sigil('@', "a kernel name")?;
            bind(Rc::make_mut(&mut s.kernels), &name, pos)?;
            s.plan.kernels.push(name.text);
        }
        while self.eat_word("weight") {
            let pos = self.pos();
            let name = self.sigil('$', "a weight name")?;
            bind(Rc::make_mut(&mut s.weights), &name, pos)?;
            self.expect('=')?;
            self.expect_word("constant")?;
            let constant = self.number("the position of a constant")?;
            let packing = self.packing()?;
            s.plan.weights.push(Weight { name: name.text, constant, packing });
        }
        self.plan_contents(s)
    }

    fn arena(&mut self, plan: &mut Plan) -> Result<()> {
        self.expect_word("arena")?;
        plan.arena_bytes = self.number("a number of bytes")?;
        self.expect_word("lower_bound")?;
        plan.lower_bound_bytes = self.number("a number of bytes")?;
        Ok(())
    }

    /// Buffers, signature and steps, to the end of the block.
    fn plan_contents(&mut self, mut s: PlanScope) -> Result<Plan> {
        while self.eat_word("buffer") {
            self.buffer(&mut s)?;
        }
        self.expect_word("inputs")?;
        s.plan.inputs = self.list(('(', ')'), |p| p.buffer_id(&s))?;
        if self.eat_word("states") {
            s.plan.states = self.list(('(', ')'), |p| p.buffer_id(&s))?;
        }
        self.expect_word("outputs")?;
        s.plan.outputs = self.list(('(', ')'), |p| p.buffer_id(&s))?;
        if self.eat_word("kept") {
            s.plan.kept = self.list(('(', ')'), |p| p.buffer_id(&s))?;
        }
        while self.eat_word("check") {
            let buffer = self.buffer_id(&s)?;
            s.plan.checks.push(ValueCheck { buffer, requirement: self.requirement()? });
        }
        while !self.eat('}') {
            if s.plan.boundary.is_none() && self.eat_word("then") {
                s.plan.boundary = Some(s.plan.steps.len() as u32);
                continue;
            }
            let mut step = self.step(&s)?;
            if self.eat_word("scratch") {
                let scratch = self.scratch(s.plan.steps.len() as u32)?;
                s.plan.scratch.push(scratch);
            }
            if let StepOp::Flow { flow, .. } = &mut step.op {
                flow.bodies = self.nested(|p| p.bodies(&s))?;
            }
            s.plan.steps.push(step);
        }
        Ok(s.plan)
    }

    /// `{ body @name { … } … }`.
    fn bodies(&mut self, s: &PlanScope) -> Result<Vec<Plan>> {
        self.expect('{')?;
        let mut bodies = vec![];
        while self.eat_word("body") {
            let plan = Plan { name: self.body_name()?, ..Plan::default() };
            let (kernels, weights) = (s.kernels.clone(), s.weights.clone());
            let mut inner = PlanScope { plan, kernels, weights, buffers: BTreeMap::new() };
            self.expect('{')?;
            self.arena(&mut inner.plan)?;
            bodies.push(self.plan_contents(inner)?);
        }
        self.expect('}')?;
        Ok(bodies)
    }

    fn buffer(&mut self, s: &mut PlanScope) -> Result<()> {
        let pos = self.pos();
        let name = self.sigil('%', "a buffer name")?;
        bind(&mut s.buffers, &name, pos)?;
        self.expect(':')?;
        let ty = self.dense_type()?;
        self.expect('=')?;
        let storage = match () {
            _ if self.eat_word("input") => StorageClass::Input(self.number("an input")?),
            _ if self.eat_word("output") => StorageClass::Output(self.number("an output")?),
            _ if self.eat_word("state") => StorageClass::State(self.number("a state")?),
            _ if self.eat_word("arena") => StorageClass::Arena(self.number("an offset")?),
            _ if self.eat_word("weight") => {
                let pos = self.pos();
                let name = self.sigil('$', "a weight")?;
                let weight = s.weights.get(&name.key());
                StorageClass::Weight(*weight.ok_or_else(|| pos.error(format!("`${}` is not defined", name.text)))?)
            }
            _ => return self.expected("`input`, `output`, `state`, `weight` or `arena`"),
        };
        let part = if self.eat_word("part") { Some(self.part(s)?) } else { None };
        s.plan.buffers.push(Buffer { name: name.text, dtype: ty.dtype, dims: ty.dims.to_vec(), storage, part });
        Ok(())
    }

    fn part(&mut self, s: &PlanScope) -> Result<SubBuffer> {
        self.expect_word("of")?;
        let of = self.buffer_id(s)?;
        let mut field = |word: &str| {
            self.expect_word(word)?;
            self.number("a number of elements")
        };
        Ok(SubBuffer { of, offset: field("at")?, run: field("run")?, stride: field("stride")? })
    }

    fn buffer_id(&mut self, s: &PlanScope) -> Result<BufferId> {
        let pos = self.pos();
        let name = self.sigil('%', "a buffer")?;
        let id = s.buffers.get(&name.key());
        id.map(|i| BufferId(*i)).ok_or_else(|| pos.error(format!("`%{}` is not defined", name.text)))
    }

    fn kernel_call(&mut self, s: &PlanScope) -> Result<(KernelId, Vec<Arg>)> {
        let pos = self.pos();
        let name = self.sigil('@', "a kernel")?;
        let id = s.kernels.get(&name.key());
        let id = id.ok_or_else(|| pos.error(format!("`@{}` is not defined", name.text)))?;
        Ok((KernelId(*id), self.args(s)?))
    }

    fn args(&mut self, s: &PlanScope) -> Result<Vec<Arg>> {
        self.list(('(', ')'), |p| {
            let writes = p.eat_word("mut");
            Ok(Arg { buffer: p.buffer_id(s)?, writes })
        })
    }

    fn step(&mut self, s: &PlanScope) -> Result<Step> {
        self.expect_word("step")?;
        let name = self.label()?;
        let mut counts = self.record()?;
        let (flops, bytes) = (counts.one("flops")?, counts.one("bytes")?);
        counts.finish()?;
        let op = match () {
            _ if self.eat_word("launch") => {
                let (kernel, args) = self.kernel_call(s)?;
                self.expect_word("extent")?;
                StepOp::Launch { kernel, args, extent: self.number("an extent")? }
            }
            _ if self.eat_word("extern") => {
                let operator = self.label()?;
                let function = self.number("the position of a function")?;
                StepOp::Extern { operator, function, args: self.args(s)? }
            }
            _ if self.eat_word("if") => self.flow_step(s, FlowKind::If)?,
            _ if self.eat_word("loop") => self.flow_step(s, FlowKind::Loop(Loop::default()))?,
            _ if self.eat_word("cublaslt_gemm") => self.vendor(s, true)?,
            _ if self.eat_word("cudnn_conv") => self.vendor(s, false)?,
            _ => {
                let blank = StepOp::blanks().into_iter().find(|op| op.word().is_some_and(|word| self.eat_word(word)));
                let Some(mut op) = blank else { return self.expected("the word of a step") };
                self.expect('(')?;
                let mut parsed = Parsed { parser: self, scope: s, operands: 0, open: true, record: None };
                op.parts(&mut parsed)?;
                parsed.close()?;
                op
            }
        };
        Ok(Step { name, op, flops, bytes })
    }

    /// A step whose nested plans are still to come, from its arguments on.
    fn flow_step(&mut self, s: &PlanScope, kind: FlowKind) -> Result<StepOp> {
        let args = self.args(s)?;
        let kind = match kind {
            FlowKind::If => kind,
            FlowKind::Loop(_) => FlowKind::Loop(self.repeat()?),
        };
        Ok(StepOp::Flow { flow: FlowPlan { kind, bodies: vec![] }.into(), args })
    }

    /// The working memory of a step.
    fn scratch(&mut self, step: u32) -> Result<Scratch> {
        let mut r = self.record()?;
        let shared = if r.fields.contains_key("shared") { r.one("shared")? } else { 0 };
        let scratch = Scratch { step, offset: r.one("offset")?, shared, bytes: r.one("bytes")?, live: r.one("live")? };
        r.finish()?;
        Ok(scratch)
    }

    /// A call of a vendor's library, from its arguments on.
    fn vendor(&mut self, s: &PlanScope, is_product: bool) -> Result<StepOp> {
        let (args, dtype) = (self.args(s)?, self.dtype()?);
        let mut r = self.record()?;
        let contraction = match is_product {
            true => {
                let mut call = BatchedGemm::default();
                call.fields(&mut r)?;
                VendorContraction::Product { call, bias: r.take_flag("bias")? }
            }
            false => VendorContraction::Convolution(r.conv(ConvPass::Forward)?),
        };
        let call = VendorCall { contraction, dtype, tf32: r.take_flag("tf32")?, workspace: r.one("workspace")? };
        r.finish()?;
        Ok(StepOp::Vendor { call, args })
    }

    fn packing(&mut self) -> Result<Packing> {
        if self.eat_word("plain") {
            return Ok(Packing::Plain);
        }
        let elements = PackedElements::ALL.into_iter().find(|elements| self.eat_word(elements.word()));
        let passes = || ConvPass::ALL.into_iter().filter(|pass| pass.is_packed());
        let pass = if elements.is_none() { passes().find(|pass| self.eat_word(pass.step_word())) } else { None };
        if elements.is_none() && pass.is_none() {
            let products = PackedElements::ALL.into_iter().map(PackedElements::word);
            return self.expected_word(iter::once("plain").chain(products).chain(passes().map(ConvPass::step_word)));
        }
        let mut r = self.record()?;
        let packing = match pass {
            Some(pass) => Packing::Conv(r.conv(pass)?),
            None => Packing::GemmB {
                k: r.one("k")?,
                n: r.one("n")?,
                offset: r.one("offset")?,
                row_stride: r.one("row_stride")?,
                col_stride: r.one("col_stride")?,
                elements: elements.unwrap_or(PackedElements::F32),
            },
        };
        r.finish()?;
        Ok(packing)
    }

    fn record(&mut self) -> Result<Record> {
        let mut record = Record { fields: BTreeMap::new(), pos: self.pos() };
        self.list(('{', '}'), |p| {
            let pos = p.pos();
            let name = p.word("a field name")?;
            p.expect('=')?;
            let values = match p.peek() {
                super::lex::Tok::Punct('[') => p.list(('[', ']'), |p| p.number("a number"))?,
                _ => vec![p.number("a number")?],
            };
            match record.fields.insert(name.clone(), values) {
                Some(_) => Err(pos.error(format!("`{name}` is given twice"))),
                None => Ok(()),
            }
        })?;
        Ok(record)
    }
}

impl Record {
    /// A number that is 1 where it is set, and may be left out.
    fn take_flag(&mut self, name: &str) -> Result<bool> {
        Ok(self.fields.contains_key(name) && self.one::<u8>(name)? != 0)
    }

    fn take<T: TryFrom<i128>>(&mut self, name: &str, values: &mut [T]) -> Result<()> {
        let given = self.fields.remove(name).ok_or_else(|| self.pos.error(format!("`{name}` is missing")))?;
        let count = values.len();
        let wrong = || self.pos.error(format!("`{name}` is not valid: {count} numbers are expected"));
        if given.len() != count {
            return Err(wrong());
        }
        for (value, given) in values.iter_mut().zip(given) {
            *value = T::try_from(given).map_err(|_| wrong())?;
        }
        Ok(())
    }

    fn conv(&mut self, pass: ConvPass) -> Result<Conv2d> {
        let mut call = Conv2d { pass, ..Conv2d::default() };
        call.fields(self)?;
        Ok(call)
    }
}

impl Visitor for Record {
    type Error = Diagnostic;

    fn unsigned(&mut self, name: &'static str, values: &mut [u64]) -> Result<()> {
        self.take(name, values)
    }

    fn signed(&mut self, name: &'static str, values: &mut [i64]) -> Result<()> {
        self.take(name, values)
    }

    fn bits(&mut self, name: &'static str, value: &mut u32) -> Result<()> {
        self.take(name, std::slice::from_mut(value))
    }

    fn flag(&mut self, name: &'static str, value: &mut bool) -> Result<()> {
        *value = self.take_flag(name)?;
        Ok(())
    }

    fn optional(&mut self, name: &'static str, values: &mut [u64]) -> Result<()> {
        match self.fields.contains_key(name) {
            true => self.take(name, values),
            false => Ok(()),
        }
    }

    fn bytes(&mut self, name: &'static str, values: &mut [u8]) -> Result<()> {
        match self.fields.contains_key(name) {
            true => self.take(name, values),
            false => Ok(()),
        }
    }
}

/// The parts of a step as they are read.
struct Parsed<'p, 't> {
    parser: &'p mut Parser<'t>,
    scope: &'p PlanScope,
    /// Operands read so far.
    operands: usize,
    /// Whether their list goes on.
    open: bool,
    record: Option<Record>,
}

impl Parsed<'_, '_> {
    /// What stands between an operand and the one before.
    fn next(&mut self) -> Result<()> {
        self.operands += 1;
        if self.operands > 1 { self.parser.expect(',') } else { Ok(()) }
    }

    /// The end of the list of operands.
    fn close(&mut self) -> Result<()> {
        if std::mem::take(&mut self.open) { self.parser.expect(')') } else { Ok(()) }
    }

    fn numbers(&mut self) -> Result<&mut Record> {
        let pos = self.parser.pos();
        self.record.as_mut().ok_or_else(|| pos.error("numbers are missing".to_owned()))
    }
}

impl Visitor for Parsed<'_, '_> {
    type Error = Diagnostic;

    fn unsigned(&mut self, name: &'static str, values: &mut [u64]) -> Result<()> {
        self.numbers()?.unsigned(name, values)
    }

    fn signed(&mut self, name: &'static str, values: &mut [i64]) -> Result<()> {
        self.numbers()?.signed(name, values)
    }

    fn bits(&mut self, name: &'static str, value: &mut u32) -> Result<()> {
        self.numbers()?.bits(name, value)
    }

    fn flag(&mut self, name: &'static str, value: &mut bool) -> Result<()> {
        self.numbers()?.flag(name, value)
    }

    fn optional(&mut self, name: &'static str, values: &mut [u64]) -> Result<()> {
        self.numbers()?.optional(name, values)
    }

    fn bytes(&mut self, name: &'static str, values: &mut [u8]) -> Result<()> {
        self.numbers()?.bytes(name, values)
    }

    fn left(&mut self, operand: &mut LeftOperand) -> Result<()> {
        self.next()?;
        *operand = match self.parser.eat_word("computed") {
            true => LeftOperand::Computed(Prologue { kernel: KernelId(0), args: vec![] }),
            false => self.parser.buffer_id(self.scope)?.into(),
        };
        Ok(())
    }

    fn read(&mut self, buffer: &mut BufferId) -> Result<()> {
        self.next()?;
        *buffer = self.parser.buffer_id(self.scope)?;
        Ok(())
    }

    fn written(&mut self, buffer: &mut BufferId) -> Result<()> {
        self.next()?;
        self.parser.expect_word("mut")?;
        *buffer = self.parser.buffer_id(self.scope)?;
        Ok(())
    }

    fn begin_numbers(&mut self) -> Result<()> {
        self.close()?;
        self.record = Some(self.parser.record()?);
        Ok(())
    }

    fn end_numbers(&mut self) -> Result<()> {
        self.record.take().map_or(Ok(()), Record::finish)
    }

    fn prologue(&mut self, operand: &mut LeftOperand) -> Result<()> {
        if let LeftOperand::Computed(prologue) = operand {
            self.parser.expect_word("prologue")?;
            (prologue.kernel, prologue.args) = self.parser.kernel_call(self.scope)?;
        }
        Ok(())
    }

    fn epilogue(&mut self, epilogue: &mut Option<Epilogue>) -> Result<()> {
        let apart = self.parser.eat_word(Epilogue::APART);
        if apart || self.parser.eat_word(Epilogue::WORD) {
            let (kernel, args) = self.parser.kernel_call(self.scope)?;
            *epilogue = Some(Epilogue { kernel, args, apart });
        }
        Ok(())
    }
}
