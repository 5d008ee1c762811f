//! Parsing of plans.

use std::collections::BTreeMap;

use tensorc_abi::{
    Arg, Attention, BatchedGemm, Buffer, BufferId, Conv2d, ConvLayout, ConvPass, Epilogue, Home, KernelId,
    MatrixLayout, Packing, Part, Plan, Step, StepOp, VendorCall, VendorContraction, Weight,
};

use super::lex::{Name, Pos};
use super::parse::Parser;
use super::print_plan::conv_pass;
use crate::diag::Result;

/// Positions by name, one table for each sigil.
#[derive(Default)]
struct Scope {
    plan: Plan,
    kernels: BTreeMap<(String, u32), u32>,
    weights: BTreeMap<(String, u32), u32>,
    buffers: BTreeMap<(String, u32), u32>,
}

fn bind(table: &mut BTreeMap<(String, u32), u32>, name: &Name, pos: Pos) -> Result<()> {
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
    fn list<T: TryFrom<i128>, const N: usize>(&mut self, name: &str) -> Result<[T; N]> {
        let values = self.fields.remove(name).ok_or_else(|| self.pos.error(format!("`{name}` is missing")))?;
        let values: Option<Vec<T>> = values.into_iter().map(|v| T::try_from(v).ok()).collect();
        values
            .and_then(|v| v.try_into().ok())
            .ok_or_else(|| self.pos.error(format!("`{name}` is not valid: {N} numbers are expected")))
    }

    fn one<T: TryFrom<i128>>(&mut self, name: &str) -> Result<T> {
        self.list::<T, 1>(name).map(|[v]| v)
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
        let mut s = Scope::default();
        s.plan.name = self.sigil('@', "a plan name")?.text;
        self.expect('{')?;
        self.expect_word("arena")?;
        s.plan.arena_bytes = self.number("a number of bytes")?;
        self.expect_word("lower_bound")?;
        s.plan.lower_bound_bytes = self.number("a number of bytes")?;
        while self.eat_word("kernel") {
            let pos = self.pos();
            let name = self.sigil('@', "a kernel name")?;
            bind(&mut s.kernels, &name, pos)?;
            s.plan.kernels.push(name.text);
        }
        while self.eat_word("weight") {
            let pos = self.pos();
            let name = self.sigil('$', "a weight name")?;
            bind(&mut s.weights, &name, pos)?;
            self.expect('=')?;
            self.expect_word("constant")?;
            let constant = self.number("the position of a constant")?;
            let packing = self.packing()?;
            s.plan.weights.push(Weight { name: name.text, constant, packing });
        }
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
        while !self.eat('}') {
            if s.plan.boundary.is_none() && self.eat_word("then") {
                s.plan.boundary = Some(s.plan.steps.len() as u32);
                continue;
            }
            let step = self.step(&s)?;
            s.plan.steps.push(step);
        }
        Ok(s.plan)
    }

    fn buffer(&mut self, s: &mut Scope) -> Result<()> {
        let pos = self.pos();
        let name = self.sigil('%', "a buffer name")?;
        bind(&mut s.buffers, &name, pos)?;
        self.expect(':')?;
        let ty = self.dense_type()?;
        self.expect('=')?;
        let home = match () {
            _ if self.eat_word("input") => Home::Input(self.number("an input")?),
            _ if self.eat_word("output") => Home::Output(self.number("an output")?),
            _ if self.eat_word("state") => Home::State(self.number("a state")?),
            _ if self.eat_word("arena") => Home::Arena(self.number("an offset")?),
            _ if self.eat_word("weight") => {
                let pos = self.pos();
                let name = self.sigil('$', "a weight")?;
                let weight = s.weights.get(&name.key());
                Home::Weight(*weight.ok_or_else(|| pos.error(format!("`${}` is not defined", name.text)))?)
            }
            _ => return self.expected("`input`, `output`, `state`, `weight` or `arena`"),
        };
        let part = if self.eat_word("part") { Some(self.part(s)?) } else { None };
        s.plan.buffers.push(Buffer { name: name.text, dtype: ty.dtype, dims: ty.dims, home, part });
        Ok(())
    }

    fn part(&mut self, s: &Scope) -> Result<Part> {
        self.expect_word("of")?;
        let of = self.buffer_id(s)?;
        let mut field = |word: &str| {
            self.expect_word(word)?;
            self.number("a number of elements")
        };
        Ok(Part { of, offset: field("at")?, run: field("run")?, stride: field("stride")? })
    }

    fn buffer_id(&mut self, s: &Scope) -> Result<BufferId> {
        let pos = self.pos();
        let name = self.sigil('%', "a buffer")?;
        let id = s.buffers.get(&name.key());
        id.map(|i| BufferId(*i)).ok_or_else(|| pos.error(format!("`%{}` is not defined", name.text)))
    }

    fn kernel_call(&mut self, s: &Scope) -> Result<(KernelId, Vec<Arg>)> {
        let pos = self.pos();
        let name = self.sigil('@', "a kernel")?;
        let id = s.kernels.get(&name.key());
        let id = id.ok_or_else(|| pos.error(format!("`@{}` is not defined", name.text)))?;
        Ok((KernelId(*id), self.args(s)?))
    }

    fn args(&mut self, s: &Scope) -> Result<Vec<Arg>> {
        self.list(('(', ')'), |p| {
            let writes = p.eat_word("mut");
            Ok(Arg { buffer: p.buffer_id(s)?, writes })
        })
    }

    fn epilogue(&mut self, s: &Scope) -> Result<Option<Epilogue>> {
        match self.eat_word("epilogue") {
            true => self.kernel_call(s).map(|(kernel, args)| Some(Epilogue { kernel, args })),
            false => Ok(None),
        }
    }

    fn step(&mut self, s: &Scope) -> Result<Step> {
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
            _ if self.eat_word("gemm") => {
                let [a, b, c] = self.three_buffers(s)?;
                let mut r = self.record()?;
                let call = r.gemm()?;
                r.finish()?;
                StepOp::Gemm { call, a, b, c, epilogue: self.epilogue(s)? }
            }
            _ if self.eat_word("attention") => {
                self.expect('(')?;
                let [q, k, v] = [0; 3].map(|_| {
                    let id = self.buffer_id(s)?;
                    self.expect(',').map(|()| id)
                });
                let (q, k, v) = (q?, k?, v?);
                self.expect_word("mut")?;
                let out = self.buffer_id(s)?;
                self.expect(')')?;
                let mut r = self.record()?;
                let call = r.attention()?;
                r.finish()?;
                StepOp::Attention { call, q, k, v, out, epilogue: self.epilogue(s)? }
            }
            _ if self.eat_word("copy") => {
                self.expect('(')?;
                let src = self.buffer_id(s)?;
                self.expect(',')?;
                self.expect_word("mut")?;
                let dst = self.buffer_id(s)?;
                self.expect(')')?;
                StepOp::Copy { src, dst }
            }
            _ if self.eat_word("extern") => {
                let operator = self.label()?;
                let function = self.number("the position of a function")?;
                StepOp::Extern { operator, function, args: self.args(s)? }
            }
            _ if self.eat_word("cublaslt_gemm") => self.vendor(s, true)?,
            _ if self.eat_word("cudnn_conv") => self.vendor(s, false)?,
            _ => {
                let Some(pass) = ConvPass::ALL.into_iter().find(|pass| self.eat_word(conv_pass(*pass))) else {
                    return self.expected(
                        "`launch`, `gemm`, `attention`, `copy`, `extern`, a vendor's call, `conv` or a pass of one",
                    );
                };
                let [a, b, c] = self.three_buffers(s)?;
                let mut r = self.record()?;
                let call = r.conv(pass)?;
                r.finish()?;
                StepOp::Conv { call, a, b, c, epilogue: self.epilogue(s)? }
            }
        };
        Ok(Step { name, op, flops, bytes })
    }

    /// A call of a vendor's library, from its arguments on.
    fn vendor(&mut self, s: &Scope, is_product: bool) -> Result<StepOp> {
        let (args, dtype) = (self.args(s)?, self.dtype()?);
        let mut r = self.record()?;
        let contraction = match is_product {
            true => VendorContraction::Product { call: r.gemm()?, bias: r.flag("bias")? },
            false => VendorContraction::Convolution(r.conv(ConvPass::Forward)?),
        };
        let call = VendorCall { contraction, dtype, tf32: r.flag("tf32")?, workspace: r.one("workspace")? };
        r.finish()?;
        Ok(StepOp::Vendor { call, args })
    }

    /// `(%a, %b, mut %c)`.
    fn three_buffers(&mut self, s: &Scope) -> Result<[BufferId; 3]> {
        self.expect('(')?;
        let a = self.buffer_id(s)?;
        self.expect(',')?;
        let b = self.buffer_id(s)?;
        self.expect(',')?;
        self.expect_word("mut")?;
        let c = self.buffer_id(s)?;
        self.expect(')')?;
        Ok([a, b, c])
    }

    fn packing(&mut self) -> Result<Packing> {
        if self.eat_word("plain") {
            return Ok(Packing::Plain);
        }
        let pass = match self.eat_word("gemm_b") {
            true => None,
            false => {
                let mut packed = ConvPass::ALL.into_iter().filter(|pass| pass.is_packed());
                let Some(pass) = packed.find(|pass| self.eat_word(conv_pass(*pass))) else {
                    return self.expected("`plain`, `gemm_b`, `conv`, `conv_winograd2` or `conv_winograd4`");
                };
                Some(pass)
            }
        };
        let mut r = self.record()?;
        let packing = match pass {
            None => Packing::GemmB {
                k: r.one("k")?,
                n: r.one("n")?,
                offset: r.one("offset")?,
                row_stride: r.one("row_stride")?,
                col_stride: r.one("col_stride")?,
            },
            Some(pass) => Packing::Conv(r.conv(pass)?),
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
    fn layout(&mut self, name: &str) -> Result<MatrixLayout> {
        let [offset, b0, b1, b2, row_stride, col_stride] = self.list(name)?;
        Ok(MatrixLayout { offset, batch_strides: [b0, b1, b2], row_stride, col_stride })
    }

    /// A field that is 1 where it is set, and may be left out.
    fn flag(&mut self, name: &str) -> Result<bool> {
        let set: u8 = match self.fields.contains_key(name) {
            true => self.one(name)?,
            false => 0,
        };
        Ok(set != 0)
    }

    fn attention(&mut self) -> Result<Attention> {
        Ok(Attention {
            batch: self.list("batch")?,
            queries: self.one("queries")?,
            keys: self.one("keys")?,
            depth: self.one("depth")?,
            size: self.one("size")?,
            q: self.layout("q")?,
            k: self.layout("k")?,
            v: self.layout("v")?,
            out: self.layout("out")?,
            scale: self.one("scale")?,
            shifted: self.flag("shifted")?,
            empty_is_zero: self.flag("empty_is_zero")?,
        })
    }

    fn gemm(&mut self) -> Result<BatchedGemm> {
        Ok(BatchedGemm {
            batch: self.list("batch")?,
            m: self.one("m")?,
            n: self.one("n")?,
            k: self.one("k")?,
            a: self.layout("a")?,
            b: self.layout("b")?,
            c: self.layout("c")?,
            b_packed: self.flag("b_packed")?,
        })
    }

    fn conv(&mut self, pass: ConvPass) -> Result<Conv2d> {
        let layout = match (self.flag("x_blocked")?, self.flag("y_blocked")?) {
            (false, false) => ConvLayout::Planar,
            (false, true) => ConvLayout::ToBlocked,
            (true, _) => ConvLayout::Blocked,
        };
        Ok(Conv2d {
            batch: self.one("batch")?,
            groups: self.one("groups")?,
            in_channels: self.one("in_channels")?,
            out_channels: self.one("out_channels")?,
            input: self.list("input")?,
            output: self.list("output")?,
            kernel: self.list("kernel")?,
            strides: self.list("strides")?,
            dilations: self.list("dilations")?,
            pads: self.list("pads")?,
            pass,
            images: match self.fields.contains_key("images") {
                true => self.list("images")?,
                false => [0; 2],
            },
            layout,
        })
    }
}
