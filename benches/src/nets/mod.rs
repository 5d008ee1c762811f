//! Networks written as symbols, for measurements, memory tables and examples.
//!
//! One file a family. Every net ends in a loss `softmax`; [`Net::inputs`] are the shapes of its data for a
//! batch, all else follows by inference.

mod alexnet;
mod densenet;
mod inception;
mod inception3;
pub mod layers;
mod lstm;
mod mobilenet;
mod resnet;
mod small;
mod squeezenet;
mod transformer;
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

type Make = fn() -> Result<Symbol, SymbolError>;

struct Entry {
    name: &'static str,
    make: Make,
    /// Extents of one sample of `data`.
    sample: &'static [u64],
    vocabulary: Option<u64>,
}

const IMAGE: &[u64] = &[3, 224, 224];

const NETS: [Entry; 13] = [
    Entry { name: "mlp", make: small::mlp, sample: &[784], vocabulary: None },
    Entry { name: "lenet", make: small::lenet, sample: &[1, 28, 28], vocabulary: None },
    Entry { name: "resnet18-cifar", make: resnet::cifar18, sample: &[3, 32, 32], vocabulary: None },
    Entry { name: "transformer", make: transformer::encoder, sample: &[64], vocabulary: Some(1000) },
    Entry { name: "inception-bn", make: inception::bn, sample: IMAGE, vocabulary: None },
    Entry { name: "inception-v3", make: inception3::v3, sample: &[3, 299, 299], vocabulary: None },
    Entry { name: "resnet50", make: resnet::v1_50, sample: IMAGE, vocabulary: None },
    Entry { name: "vgg16", make: vgg::vgg16, sample: IMAGE, vocabulary: None },
    Entry { name: "squeezenet1.0", make: squeezenet::v1_0, sample: IMAGE, vocabulary: None },
    Entry { name: "mobilenet1.0", make: mobilenet::v1, sample: IMAGE, vocabulary: None },
    Entry { name: "densenet121", make: densenet::densenet121, sample: IMAGE, vocabulary: None },
    Entry { name: "alexnet", make: alexnet::alexnet, sample: IMAGE, vocabulary: None },
    Entry { name: "lstm", make: lstm::language_model, sample: &[lstm::STEPS], vocabulary: Some(lstm::WORDS) },
];

/// The names that [`net`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    NETS.iter().map(|n| n.name)
}

/// A network by name for a batch; `None` if there is none of that name.
///
/// # Errors
/// An operator that the net needs is not registered.
pub fn net(name: &str, batch: u64) -> Option<Result<Net, SymbolError>> {
    let entry = NETS.iter().find(|n| n.name == name)?;
    let _names = name_scope();
    Some((entry.make)().map(|symbol| {
        let data = [&[batch], entry.sample].concat();
        let mut inputs = vec![("data", data)];
        if name == "lstm" {
            inputs.extend(lstm::STATES.iter().map(|state| (*state, vec![batch, lstm::HIDDEN])));
            inputs.push(("softmax_label", vec![batch, lstm::STEPS]));
        }
        Net { symbol, inputs, vocabulary: entry.vocabulary }
    }))
}
