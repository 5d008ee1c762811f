//! The block of weights that all variants share, and its file.

use std::collections::BTreeMap;

use tensorc_abi::image::VERSION;
use tensorc_abi::image::weights::{ALIGN, FIRST, HEADER_BYTES};
use xxhash_rust::xxh3::xxh3_128;

use super::variants::Variant;
use crate::compile::pack_weights;
use crate::{Compiler, Error};

/// Every weight once, whatever variants use it.
pub struct Block {
    pub bytes: Vec<u8>,
    /// XXH3 of the bytes.
    pub hash: u128,
    /// Of each variant, where each of its weights begins.
    pub offsets: Vec<Vec<u64>>,
}

impl Block {
    pub fn new(compiler: &Compiler, variants: &[Variant]) -> Result<Block, Error> {
        let (mut bytes, mut offsets) = (vec![], vec![]);
        let mut known: BTreeMap<(usize, u128), u64> = BTreeMap::new();
        for variant in variants {
            let mut own = vec![];
            for weight in pack_weights(compiler, &variant.plan, &variant.constants)? {
                let data = weight.as_slice();
                let key = (data.len(), xxh3_128(data));
                own.push(*known.entry(key).or_insert_with(|| {
                    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
                    bytes.extend_from_slice(data);
                    (bytes.len() - data.len()) as u64
                }));
            }
            offsets.push(own);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        Ok(Block { hash: xxh3_128(&bytes), bytes, offsets })
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
