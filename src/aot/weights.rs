//! The block of weights that all variants share, and its file.

use std::collections::BTreeMap;

use tensorc_abi::content::Place;
use tensorc_abi::image::VERSION;
use tensorc_abi::image::weights::{ALIGN, FIRST, HEADER_BYTES};
use tensorc_abi::{Packing, Weight};
use tensorc_ir::TensorData;
use tensorc_runtime::WeightStorage;
use xxhash_rust::xxh3::xxh3_128;

use super::variants::Variant;
use crate::compile::pack_each;
use crate::compiler::Compiler;
use crate::error::Error;

/// In place of the number of a weight that the block does not hold.
const NOWHERE: usize = usize::MAX;

/// Every weight once, whatever variants use it. A weight that another begins with is that one's beginning: embeddings
/// of the first positions, for every number of them.
pub struct WeightBlock {
    pub bytes: Vec<u8>,
    /// XXH3 of the bytes.
    pub hash: u128,
    /// Of each variant, where each of its weights begins; 0 for those that depend on extents.
    pub offsets: Vec<Vec<u64>>,
}

impl WeightBlock {
    pub fn new(compiler: &Compiler, variants: &[Variant]) -> Result<WeightBlock, Error> {
        // Equal constants of variants have one place ([`super::constants`]).
        let mut known: BTreeMap<(Packing, Place), usize> = BTreeMap::new();
        let mut distinct: Vec<(&Weight, &TensorData)> = vec![];
        let mut numbers: Vec<Vec<usize>> = vec![];
        for variant in variants {
            let mut own = vec![];
            for weight in &variant.plan.weights {
                let data = &variant.constants[weight.constant as usize];
                if data.is_open() {
                    // It lies in the region of the plan.
                    own.push(NOWHERE);
                    continue;
                }
                let source = (weight.packing, data.content().place());
                own.push(*known.entry(source).or_insert(distinct.len()));
                if own.last() == Some(&distinct.len()) {
                    distinct.push((weight, data));
                }
            }
            numbers.push(own);
        }
        let packed = pack_each(compiler, &distinct)?;
        let (bytes, places) = lay(&packed);
        let place = |i: usize| places.get(i).copied().unwrap_or(0);
        let offsets = numbers.into_iter().map(|own| own.into_iter().map(place).collect()).collect();
        Ok(WeightBlock { hash: xxh3_128(&bytes), bytes, offsets })
    }

    /// The file: a header ([`tensorc_abi::image::weights`]), then the block.
    pub fn file(&self) -> Vec<u8> {
        let words = [FIRST, VERSION.word(), self.bytes.len() as u64, self.hash as u64, (self.hash >> 64) as u64];
        let mut file: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        file.resize(HEADER_BYTES, 0);
        file.extend_from_slice(&self.bytes);
        file
    }
}

/// The bytes of all weights, and where each begins.
fn lay(weights: &[WeightStorage]) -> (Vec<u8>, Vec<u64>) {
    let holders = holders(weights);
    let held = || weights.iter().enumerate().filter(|(i, _)| holders[*i] == *i);
    let size = held().map(|(_, weight)| weight.as_slice().len().next_multiple_of(ALIGN)).sum();
    let (mut bytes, mut places) = (Vec::with_capacity(size), vec![0; weights.len()]);
    for (i, weight) in held() {
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0u8);
        places[i] = bytes.len() as u64;
        bytes.extend_from_slice(weight.as_slice());
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    let places = holders.iter().map(|holder| places[*holder]).collect();
    (bytes, places)
}

/// For each weight, one that begins with it: of those, one that no other begins with.
fn holders(weights: &[WeightStorage]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    // A weight comes right before those that begin with it.
    order.sort_by_key(|i| weights[*i].as_slice());
    let mut holders: Vec<usize> = (0..weights.len()).collect();
    for pair in order.windows(2).rev() {
        if weights[pair[1]].as_slice().starts_with(weights[pair[0]].as_slice()) {
            holders[pair[0]] = holders[pair[1]];
        }
    }
    holders
}
