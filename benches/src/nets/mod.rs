//! Networks written as symbols, for measurements, memory tables and examples.
//!
//! One file a family. Every net ends in a loss `softmax`; [`Net::inputs`] are the shapes of its data for a
//! batch, all else follows by inference.

mod alexnet;
mod densenet;
mod inception;
mod inception3;
pub(crate) mod layers;
pub(crate) mod lstm;
mod mobilenet;
mod resnet;
mod small;
mod squeezenet;
pub(crate) mod transformer;
mod vgg;

use tensorc::symbol::{Symbol, SymbolError, name_scope};

/// A network and its data.
pub struct Net {
    /// With the loss.
    pub symbol: Symbol,
    /// Shapes of the data by name, the batch included. Those of other variables are inferred.
    pub inputs: Vec<(&'static str, Vec<u64>)>,
    /// Data are positions in a table, and must be less than this; `None`: any numbers.
    pub vocabulary: Option<u64>,
}

/// What making a network gives.
type BuiltNet = Result<Net, SymbolError>;

/// A name, and the network for a batch.
type NamedNet = (&'static str, fn(u64) -> BuiltNet);

const IMAGE: &[u64] = &[3, 224, 224];

const NETS: [NamedNet; 14] = [
    ("mlp", |batch| plain(small::mlp, batch, &[784])),
    ("lenet", |batch| plain(small::lenet, batch, &[1, 28, 28])),
    ("resnet18-cifar", |batch| plain(resnet::cifar18, batch, &[3, 32, 32])),
    ("transformer", |batch| encoder(&transformer::SMALL, batch, 64)),
    ("bert-base", |batch| encoder(&transformer::BERT_BASE, batch, 128)),
    ("inception-bn", |batch| plain(inception::bn, batch, IMAGE)),
    ("inception-v3", |batch| plain(inception3::v3, batch, &[3, 299, 299])),
    ("resnet50", |batch| plain(resnet::v1_50, batch, IMAGE)),
    ("vgg16", |batch| plain(vgg::vgg16, batch, IMAGE)),
    ("squeezenet1.0", |batch| plain(squeezenet::v1_0, batch, IMAGE)),
    ("mobilenet1.0", |batch| plain(mobilenet::v1, batch, IMAGE)),
    ("densenet121", |batch| plain(densenet::densenet121, batch, IMAGE)),
    ("alexnet", |batch| plain(alexnet::alexnet, batch, IMAGE)),
    ("lstm", |batch| language(&lstm::MEDIUM, batch)),
];

/// The names that [`net`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    NETS.iter().map(|(name, _)| *name)
}

/// A network by name for a batch; `None` if there is none of that name.
///
/// # Errors
/// An operator that the net needs is not registered.
pub fn net(name: &str, batch: u64) -> Option<Result<Net, SymbolError>> {
    NETS.iter().find(|(known, _)| *known == name).map(|(_, make)| make(batch))
}

/// A network of one input of numbers.
fn plain(make: fn() -> Result<Symbol, SymbolError>, batch: u64, sample: &[u64]) -> BuiltNet {
    let _names = name_scope();
    Ok(Net { symbol: make()?, inputs: vec![("data", [&[batch], sample].concat())], vocabulary: None })
}

/// An encoder of other extents than those that [`net`] knows, for sequences of `steps` words.
///
/// # Errors
/// As [`net`].
pub fn encoder(of: &transformer::Encoder, batch: u64, steps: u64) -> Result<Net, SymbolError> {
    let _names = name_scope();
    Ok(Net { symbol: of.symbol()?, inputs: vec![("data", vec![batch, steps])], vocabulary: Some(of.words) })
}

/// A language model of other extents than that which [`net`] knows.
///
/// # Errors
/// As [`net`].
pub fn language(of: &lstm::Language, batch: u64) -> Result<Net, SymbolError> {
    let _names = name_scope();
    let mut inputs = vec![("data", vec![batch, of.steps])];
    inputs.extend(lstm::STATES.iter().map(|state| (*state, vec![batch, of.hidden])));
    inputs.push(("softmax_label", vec![batch, of.steps]));
    Ok(Net { symbol: of.symbol()?, inputs, vocabulary: Some(of.words) })
}
