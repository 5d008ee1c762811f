//! The numbers of calls by name and in order. Whoever prints or reads plans goes over them, and over the parts of steps
//! ([`crate::StepOp::parts`]), with a [`Visitor`].

use crate::blocked::BlockedWeights;
use crate::library::{Attention, BatchedGemm, Conv2d, GemmElements, ImageLayout, MatrixLayout};
use crate::number::Number;
use crate::operand::{BufferId, Epilogue, LeftOperand};

/// Goes over what a step consists of, which it may read or set: operands, numbers, what is computed before and after.
/// Of calls alone there are numbers only.
pub trait Visitor<N: Number = u64> {
    /// What a method returns to end the visit.
    type Error;

    /// Unsigned numbers of one name.
    fn unsigned(&mut self, name: &'static str, values: &mut [N]) -> Result<(), Self::Error>;

    /// Signed numbers of one name.
    fn signed(&mut self, name: &'static str, values: &mut [N::Signed]) -> Result<(), Self::Error>;

    /// The bits of an f32.
    fn bits(&mut self, name: &'static str, value: &mut u32) -> Result<(), Self::Error>;

    /// 0 or 1; a number that may be left out where it is 0.
    fn flag(&mut self, name: &'static str, value: &mut bool) -> Result<(), Self::Error>;

    /// May be left out where all are 0.
    fn optional(&mut self, name: &'static str, values: &mut [N]) -> Result<(), Self::Error>;

    /// Small numbers that may be left out where all are 0.
    fn bytes(&mut self, name: &'static str, values: &mut [u8]) -> Result<(), Self::Error>;

    /// The left operand of a product or a convolution.
    fn left(&mut self, _operand: &mut LeftOperand) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A buffer that the step reads.
    fn read(&mut self, _buffer: &mut BufferId) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The buffer that the step writes.
    fn written(&mut self, _buffer: &mut BufferId) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Between operands and numbers, if there are any of these.
    fn begin_numbers(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Behind the numbers.
    fn end_numbers(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// What computes the left operand, if that is in no buffer.
    fn prologue(&mut self, _operand: &mut LeftOperand) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The epilogue of a library call, if it has one.
    fn epilogue(&mut self, _epilogue: &mut Option<Epilogue>) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<N: Number> MatrixLayout<N> {
    fn field<F: Visitor<N>>(&mut self, name: &'static str, f: &mut F) -> Result<(), F::Error> {
        let [b0, b1, b2] = self.batch_strides;
        let mut all = [self.offset, b0, b1, b2, self.row_stride, self.col_stride];
        f.signed(name, &mut all)?;
        let [offset, b0, b1, b2, row_stride, col_stride] = all;
        *self = MatrixLayout { offset, batch_strides: [b0, b1, b2], row_stride, col_stride };
        Ok(())
    }
}

fn each<N: Number, F: Visitor<N>>(f: &mut F, fields: &mut [(&'static str, &mut N)]) -> Result<(), F::Error> {
    fields.iter_mut().try_for_each(|(name, value)| f.unsigned(name, std::slice::from_mut(*value)))
}

impl<N: Number> BatchedGemm<N> {
    /// Goes over the numbers of the call, in the order of its text form.
    ///
    /// # Errors
    /// Those of the visitor.
    pub fn fields<F: Visitor<N>>(&mut self, f: &mut F) -> Result<(), F::Error> {
        let BatchedGemm { batch, m, n, k, a, b, c, b_packed, elements } = self;
        f.unsigned("batch", batch)?;
        each(f, &mut [("m", m), ("n", n), ("k", k)])?;
        a.field("a", f)?;
        b.field("b", f)?;
        c.field("c", f)?;
        f.flag("b_packed", b_packed)?;
        let mut kinds = GemmElements::PLAIN.map(|kind| *elements == kind);
        let names = ["double", "bytes", "left_signed_bytes", "bf16"];
        for (name, kind) in names.into_iter().zip(&mut kinds[1..]) {
            f.flag(name, kind)?;
        }
        let last = kinds.iter().rposition(|kind| *kind).unwrap_or(0);
        let mut weights = match elements {
            GemmElements::Blocked(weights) => weights.to_word().to_le_bytes(),
            _ => [0; 4],
        };
        f.bytes("weights", &mut weights)?;
        *elements = match weights {
            [0, 0, 0, 0] => GemmElements::PLAIN[last],
            weights => GemmElements::Blocked(BlockedWeights::from_word(u32::from_le_bytes(weights))),
        };
        Ok(())
    }
}

impl<N: Number> Conv2d<N> {
    /// But for the pass, which is part of the word.
    ///
    /// Goes over the numbers of the call, in the order of its text form.
    ///
    /// # Errors
    /// Those of the visitor.
    pub fn fields<F: Visitor<N>>(&mut self, f: &mut F) -> Result<(), F::Error> {
        let Conv2d { batch, groups, in_channels, out_channels, input, output, kernel, .. } = self;
        let channels = [("in_channels", in_channels), ("out_channels", out_channels)];
        each(f, &mut [("batch", batch), ("groups", groups)])?;
        each(f, &mut { channels })?;
        f.unsigned("input", input)?;
        f.unsigned("output", output)?;
        f.unsigned("kernel", kernel)?;
        f.unsigned("strides", &mut self.strides)?;
        f.unsigned("dilations", &mut self.dilations)?;
        f.unsigned("pads", &mut self.pads)?;
        for ([blocked, last], layout) in
            [["x_nchw16c", "x_nhwc"], ["y_nchw16c", "y_nhwc"]].into_iter().zip(&mut self.layouts)
        {
            let mut is = [ImageLayout::Nchw16c, ImageLayout::Nhwc].map(|known| *layout == known);
            f.flag(blocked, &mut is[0])?;
            f.flag(last, &mut is[1])?;
            *layout = match is {
                [true, _] => ImageLayout::Nchw16c,
                [false, true] => ImageLayout::Nhwc,
                [false, false] => ImageLayout::Nchw,
            };
        }
        f.optional("images", &mut self.images)
    }
}

impl<N: Number> Attention<N> {
    /// Goes over the numbers of the call, in the order of its text form.
    ///
    /// # Errors
    /// Those of the visitor.
    pub fn fields<F: Visitor<N>>(&mut self, f: &mut F) -> Result<(), F::Error> {
        let Attention { batch, queries, keys, depth, size, q, k, v, out, scale, shifted, empty_is_zero, rounded } =
            self;
        f.unsigned("batch", batch)?;
        each(f, &mut [("queries", queries), ("keys", keys), ("depth", depth), ("size", size)])?;
        q.field("q", f)?;
        k.field("k", f)?;
        v.field("v", f)?;
        out.field("out", f)?;
        f.bits("scale", scale)?;
        f.flag("shifted", shifted)?;
        f.flag("empty_is_zero", empty_is_zero)?;
        f.flag("bf16", rounded)
    }
}
