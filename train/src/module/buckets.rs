//! Networks of several sizes that share parameters, for examples of different lengths.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::Symbol;

use super::{Module, ModuleBuilder};
use crate::error::Error;
use tensorc_data::DataDesc;

type Make<'a> = dyn Fn(usize) -> Result<Network, Error> + 'a;

/// A network of one size, with the types of its data and labels.
#[derive(Clone, Debug)]
pub struct Network {
    /// The network.
    pub symbol: Symbol,
    /// Names, element types and shapes of the data.
    pub data: Vec<DataDesc>,
    /// Names, element types and shapes of the labels.
    pub labels: Vec<DataDesc>,
}

/// One module for each size, made when it is first used. All share the parameters, the optimizer and the
/// memory of the first, which should be the largest.
pub struct Buckets<'a> {
    make: Box<Make<'a>>,
    first: usize,
    modules: BTreeMap<usize, Module>,
}

impl<'a> Buckets<'a> {
    /// Binds the network of the size `first`; `prepare` may change how.
    ///
    /// # Errors
    /// The network cannot be made or bound.
    pub fn new(
        rt: &tensorc_nd::Runtime,
        first: usize,
        make: impl Fn(usize) -> Result<Network, Error> + 'a,
        prepare: impl FnOnce(ModuleBuilder) -> ModuleBuilder,
    ) -> Result<Buckets<'a>, Error> {
        let network = make(first)?;
        let builder = prepare(Module::of(rt, &network.symbol).inputs(network.data, network.labels));
        Ok(Buckets { make: Box::new(make), first, modules: BTreeMap::from([(first, builder.bind()?)]) })
    }

    /// The module of a size.
    ///
    /// # Errors
    /// Its network cannot be made or bound, or a shared parameter would have another shape.
    pub fn at(&mut self, size: usize) -> Result<&mut Module, Error> {
        if !self.modules.contains_key(&size) {
            let network = (self.make)(size)?;
            let made = self.at_first()?.sibling(&network.symbol, &network.data, &network.labels)?;
            self.modules.insert(size, made);
        }
        self.modules.get_mut(&size).ok_or_else(|| Error::Internal(format!("no module of size {size}")))
    }

    fn at_first(&self) -> Result<&Module, Error> {
        self.modules.get(&self.first).ok_or_else(|| Error::Internal("the first module is missing".into()))
    }

    /// Sizes that were used.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.modules.keys().copied()
    }
}
