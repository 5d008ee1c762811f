//! Every operator of tensorc, one entry each, and the math library.
//!
//! Adding an operator means adding one entry to one family file here; inference, lowering, fusion,
//! code generation, import and documentation follow from the entry.
//!
//! ```
//! let registry = tensorc_ops::registry()?;
//! let softplus = registry.get("softplus").ok_or("no such operator")?;
//! assert_eq!(softplus.names.onnx[0].name, "Softplus");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod compose;
pub mod def;
pub mod math;
pub mod texts;

mod activation;
mod adjoint;
mod arith;
mod attention;
mod blocks;
mod byte_products;
mod cast;
mod compare;
mod contract;
mod contrib;
mod conv;
mod einsum;
mod fill;
mod fourier;
mod graph;
mod host;
mod index;
mod kernel;
mod logical;
mod loss;
mod merge;
mod ml;
mod mxnet;
mod norm;
mod owners;
mod pool;
mod prelude;
mod quantize;
mod random;
mod ranking;
mod recurrent;
mod reduce;
mod region;
mod resample;
mod resize;
mod rnn;
mod rules;
mod sample_block;
mod sampled_axis;
mod sampling;
mod scan;
mod scatter_sum;
mod shape;
mod slicing;
mod sort;
mod views;
mod window;

pub use rules::same as same_type;

use tensorc_ir::op::{OpDef, Registry};

/// Every entry, family by family.
pub fn all() -> Vec<OpDef> {
    let families = [
        activation::ops(),
        arith::ops(),
        attention::ops(),
        cast::ops(),
        compare::ops(),
        contract::ops(),
        contrib::ops(),
        conv::ops(),
        vec![einsum::einsum()],
        fill::ops(),
        index::ops(),
        logical::ops(),
        loss::ops(),
        ml::ops(),
        mxnet::ops(),
        norm::ops(),
        pool::ops(),
        quantize::ops(),
        random::ops(),
        fourier::ops(),
        recurrent::ops(),
        reduce::ops(),
        scan::ops(),
        region::ops(),
        rnn::ops(),
        resize::ops(),
        host::ops(),
        sampling::ops(),
        shape::ops(),
        slicing::ops(),
        sort::ops(),
    ];
    families.into_iter().flatten().collect()
}

/// A registry of every operator, with the math library.
///
/// # Errors
/// If two entries share a name or a function of the math library is ill-typed; both would be
/// mistakes in this crate.
pub fn registry() -> Result<Registry, String> {
    Registry::new(all(), Box::new(math::MathBodies::new()?))
}
