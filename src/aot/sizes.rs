//! Writes size programs ([`tensorc_abi::sizes`]): instructions that compute the numbers of a plan from extents of inputs.

use std::collections::HashMap;

use tensorc_abi::sizes::SizeOp;
use tensorc_ir::Extent;
use tensorc_ir::extent::{Factor, Trace};

use crate::error::Error;

/// A size program that is being written. Equal numbers are computed once.
pub struct SizeProgram<'t> {
    trace: &'t Trace,
    /// Of each symbol, an input and an axis whose extent it is.
    places: &'t [(usize, usize)],
    ops: Vec<SizeOp>,
    known: HashMap<SizeOp, u32>,
}

impl<'t> SizeProgram<'t> {
    /// A program for extents of a trace.
    pub fn new(trace: &'t Trace, places: &'t [(usize, usize)]) -> SizeProgram<'t> {
        SizeProgram { trace, places, ops: vec![], known: HashMap::new() }
    }

    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// The instructions as words.
    ///
    /// # Errors
    /// There are too many.
    pub fn words(&self) -> Result<Vec<u64>, Error> {
        let words: Option<_> = self.ops.iter().map(|op| op.word()).collect();
        words.ok_or_else(|| Error::Artifact("a plan for many shapes has too many numbers".to_owned()))
    }

    /// Adds an instruction that is executed for what it does.
    pub fn act(&mut self, op: SizeOp) -> u32 {
        self.ops.push(op);
        self.ops.len() as u32 - 1
    }

    /// The position of an instruction that has a value.
    pub fn op(&mut self, op: SizeOp) -> u32 {
        if let Some(known) = self.known.get(&op) {
            return *known;
        }
        let at = self.act(op);
        self.known.insert(op, at);
        at
    }

    /// A number.
    pub fn constant(&mut self, n: i64) -> u32 {
        if SizeOp::Constant(n).word().is_some() {
            return self.op(SizeOp::Constant(n));
        }
        let [high, unit, low] = [n >> 32, 1 << 32, n & ((1 << 32) - 1)].map(|part| self.op(SizeOp::Constant(part)));
        let high = self.op(SizeOp::Product(high, unit));
        self.op(SizeOp::Sum(high, low))
    }

    /// The value of an extent.
    pub fn extent(&mut self, extent: Extent) -> u32 {
        if let Some(n) = extent.known() {
            return self.constant(n);
        }
        let mut sum = None;
        for (factors, number) in self.trace.terms(extent) {
            let mut product = None;
            for factor in factors {
                let factor = self.factor(factor);
                product = Some(product.map_or(factor, |product| self.op(SizeOp::Product(product, factor))));
            }
            let term = match product {
                Some(product) if number == 1 => product,
                Some(product) => {
                    let number = self.constant(number);
                    self.op(SizeOp::Product(product, number))
                }
                None => self.constant(number),
            };
            sum = Some(sum.map_or(term, |sum| self.op(SizeOp::Sum(sum, term))));
        }
        sum.unwrap_or_else(|| self.constant(0))
    }

    fn factor(&mut self, factor: Factor) -> u32 {
        match factor {
            Factor::Symbol(position) => {
                let (input, axis) = self.places[position];
                self.op(SizeOp::Extent { input: input as u32, axis: axis as u32 })
            }
            Factor::Quotient(a, b) => {
                let (a, b) = (self.extent(a), self.extent(b));
                self.op(SizeOp::Quotient(a, b))
            }
        }
    }

    /// The sum of two values.
    pub fn sum(&mut self, a: u32, b: u32) -> u32 {
        let zero = self.constant(0);
        match (a == zero, b == zero) {
            (true, _) => b,
            (_, true) => a,
            _ => self.op(SizeOp::Sum(a, b)),
        }
    }

    /// The largest of some values; 0 if there are none.
    pub fn greatest(&mut self, values: impl IntoIterator<Item = u32>) -> u32 {
        let most = values.into_iter().reduce(|a, b| if a == b { a } else { self.op(SizeOp::Greatest(a, b)) });
        most.unwrap_or_else(|| self.constant(0))
    }
}
