//! Layers that the nets share, with the parameters that MXNet's model zoo gives them.

use tensorc::symbol::{Symbol, SymbolError, op};

pub type Layer = Result<Symbol, SymbolError>;

pub fn data() -> Symbol {
    Symbol::variable("data")
}

/// A convolution.
#[derive(Clone, Copy)]
pub struct Conv {
    filters: u64,
    kernel: [u64; 2],
    stride: u64,
    pad: [u64; 2],
    groups: u64,
    bias: bool,
}

/// `filters` filters of `kernel`² with a bias, no padding.
pub const fn conv(filters: u64, kernel: u64) -> Conv {
    Conv { filters, kernel: [kernel; 2], stride: 1, pad: [0; 2], groups: 1, bias: true }
}

impl Conv {
    pub const fn stride(self, stride: u64) -> Conv {
        Conv { stride, ..self }
    }

    pub const fn pad(self, pad: u64) -> Conv {
        self.pads([pad; 2])
    }

    /// Padding of rows and of columns.
    pub const fn pads(self, pad: [u64; 2]) -> Conv {
        Conv { pad, ..self }
    }

    /// Rows and columns of a window.
    pub const fn window(self, kernel: [u64; 2]) -> Conv {
        Conv { kernel, ..self }
    }

    pub const fn groups(self, groups: u64) -> Conv {
        Conv { groups, ..self }
    }

    pub const fn no_bias(self) -> Conv {
        Conv { bias: false, ..self }
    }

    pub fn on(self, x: &Symbol) -> Layer {
        op("Convolution")
            .input(x)
            .param("kernel", self.kernel)
            .param("stride", [self.stride; 2])
            .param("pad", self.pad)
            .param("num_filter", self.filters)
            .param("num_group", self.groups)
            .param("no_bias", !self.bias)
            .build()
    }

    /// With batch normalisation behind it.
    pub fn norm(self, x: &Symbol) -> Layer {
        batch_norm(&self.on(x)?)
    }

    /// With batch normalisation and ReLU behind it.
    pub(crate) fn norm_relu(self, x: &Symbol) -> Layer {
        relu(&self.norm(x)?)
    }

    /// With ReLU behind it.
    pub fn relu(self, x: &Symbol) -> Layer {
        relu(&self.on(x)?)
    }
}

pub fn batch_norm(x: &Symbol) -> Layer {
    batch_norm_eps(x, 1e-5)
}

pub(crate) fn batch_norm_eps(x: &Symbol, eps: f64) -> Layer {
    op("BatchNorm").input(x).param("eps", eps).param("momentum", 0.9).param("fix_gamma", false).build()
}

pub fn activation(x: &Symbol, kind: &str) -> Layer {
    op("Activation").input(x).param("act_type", kind).build()
}

pub fn relu(x: &Symbol) -> Layer {
    activation(x, "relu")
}

/// A fully connected layer on what is left of each sample.
pub fn dense(x: &Symbol, hidden: u64) -> Layer {
    op("FullyConnected").input(x).param("num_hidden", hidden).build()
}

/// A fully connected layer on the last axis.
pub(crate) fn dense_last(x: &Symbol, hidden: u64) -> Layer {
    op("FullyConnected").input(x).param("num_hidden", hidden).param("flatten", false).build()
}

pub fn flatten(x: &Symbol) -> Layer {
    op("Flatten").input(x).build()
}

pub fn dropout(x: &Symbol, p: f64) -> Layer {
    op("Dropout").input(x).param("p", p).build()
}

/// Windows of `kernel`² at a stride; `kind` is `max` or `avg`.
pub fn pool(x: &Symbol, kind: &str, kernel: u64, stride: u64, pad: u64) -> Layer {
    windows(x, kind, kernel, stride, pad, "valid")
}

/// As [`pool`], the last window may reach beyond the edge.
pub(crate) fn pool_full(x: &Symbol, kind: &str, kernel: u64, stride: u64) -> Layer {
    windows(x, kind, kernel, stride, 0, "full")
}

fn windows(x: &Symbol, kind: &str, kernel: u64, stride: u64, pad: u64, convention: &str) -> Layer {
    op("Pooling")
        .input(x)
        .param("pool_type", kind)
        .param("kernel", [kernel; 2])
        .param("stride", [stride; 2])
        .param("pad", [pad; 2])
        .param("pooling_convention", convention)
        .build()
}

/// The mean of each channel.
pub fn global_pool(x: &Symbol) -> Layer {
    op("Pooling").input(x).param("pool_type", "avg").param("kernel", [1, 1]).param("global_pool", true).build()
}

/// Channels side by side.
pub fn concat(parts: &[&Symbol]) -> Layer {
    op("Concat").inputs(parts.iter().copied()).param("dim", 1).build()
}

/// The loss on logits.
pub fn softmax(logits: &Symbol) -> Layer {
    op("SoftmaxOutput").input(logits).name("softmax").build()
}
