//! Weights that are in use, packed ones and those on devices: plans for other shapes of the same model find theirs here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tensorc_abi::content::{Content, Place};
use tensorc_abi::{DType, Packing};
use xxhash_rust::xxh3::xxh3_128;

use super::{WeightError, WeightStorage, pack_weight};
use crate::device::Device;
use crate::device::stream::Transfer;
use crate::gpu::{Driver, DriverError, Memory};
use tensorc_abi::memory::AlignedBuffer;

/// Bytes of this number and XXH3 are taken to be the same.
type Hashed = (usize, u128);

/// What a packed weight is made of. Hashing what is in a file would read it once more.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Memory(Hashed),
    Stored(Place),
}

impl Source {
    fn of(content: &Content) -> Source {
        match content {
            Content::Memory(bytes) => Source::Memory(hashed(bytes)),
            // What is unpacked from the same memory is the same.
            Content::Stored(_) | Content::Blocked(_) => Source::Stored(content.place()),
        }
    }
}

/// The number of bytes and what some of them are: unequal for most weights that are not equal.
type Sample = (usize, [u128; 3]);

/// Finds packed weights by what they are made of, and weights on devices by what they hold. It keeps none of them in
/// memory: a weight goes with the last plan that has it.
#[derive(Debug, Default)]
pub struct WeightCache(Mutex<CachedWeights>);

#[derive(Debug, Default)]
struct CachedWeights {
    sources: BTreeMap<(Packing, Source), Weak<AlignedBuffer>>,
    /// A packing names what its kernel computes; some make the same of a constant.
    packed: BTreeMap<Sample, Vec<Weak<AlignedBuffer>>>,
    /// By the address of the driver, which lives as long as what is in its memory.
    there: BTreeMap<(usize, Hashed), Weak<dyn Memory>>,
}

impl WeightCache {
    /// [`pack_weight`], in memory shared with every equal weight that is in use. Plain weights are as there.
    ///
    /// # Errors
    /// As for [`pack_weight`].
    pub fn pack(&self, packing: &Packing, dtype: DType, source: &Content) -> Result<WeightStorage, WeightError> {
        if *packing == Packing::Plain || !packing.takes(dtype) {
            return pack_weight(packing, dtype, source);
        }
        let made_of = (*packing, Source::of(source));
        if let Some(found) = self.known().sources.get(&made_of).and_then(Weak::upgrade) {
            return Ok(WeightStorage::Owned(found));
        }
        let stored = pack_weight(packing, dtype, source)?;
        let WeightStorage::Owned(mut buffer) = stored else { return Ok(stored) };
        let mut known = self.known();
        known.sources.retain(|_, weight| weight.strong_count() > 0);
        known.packed.retain(|_, weights| {
            weights.retain(|weight| weight.strong_count() > 0);
            !weights.is_empty()
        });
        let alike = known.packed.entry(sample(buffer.as_slice())).or_default();
        let equal = alike.iter().filter_map(Weak::upgrade).find(|other| other.as_slice() == buffer.as_slice());
        match equal {
            Some(equal) => buffer = equal,
            None => alike.push(Arc::downgrade(&buffer)),
        }
        known.sources.insert(made_of, Arc::downgrade(&buffer));
        Ok(WeightStorage::Owned(buffer))
    }

    /// Weights in the memory of a driver's device, each once; those that are not there yet are copied. What loads them
    /// must keep the driver.
    ///
    /// # Errors
    /// The device's memory is used up, or the driver fails.
    pub fn load(
        &self,
        driver: &Arc<dyn Driver>,
        weights: &[WeightStorage],
    ) -> Result<Vec<Arc<dyn Memory>>, DriverError> {
        let owner = Arc::as_ptr(driver).cast::<()>() as usize;
        let keys: Vec<_> = weights.iter().map(|weight| (owner, hashed(weight.as_slice()))).collect();
        let mut there: BTreeMap<_, Arc<dyn Memory>> = {
            let known = self.known();
            keys.iter().filter_map(|key| Some((*key, known.there.get(key)?.upgrade()?))).collect()
        };
        let stream = driver.stream()?;
        for (key, weight) in keys.iter().zip(weights) {
            let std::collections::btree_map::Entry::Vacant(vacant) = there.entry(*key) else { continue };
            let data = weight.as_slice();
            let memory = vacant.insert(driver.alloc(data.len() as u64)?.into());
            let transfer = Transfer {
                source: data.as_ptr(),
                from: Device::cpu(0),
                target: memory.address(),
                to: driver.device(),
                bytes: data.len(),
            };
            // SAFETY: both ranges live until the stream is done, which is waited for below.
            unsafe { stream.copy(transfer) };
        }
        stream.synchronize().map_err(|e| DriverError { device: driver.device(), message: e.to_string() })?;
        let mut known = self.known();
        known.there.retain(|_, memory| memory.strong_count() > 0);
        known.there.extend(there.iter().map(|(key, memory)| (*key, Arc::downgrade(memory))));
        Ok(keys.iter().filter_map(|key| there.get(key).cloned()).collect())
    }

    /// Bytes of the packed weights that are in use.
    pub fn bytes(&self) -> u64 {
        let known = self.known();
        let used =
            known.packed.values().flatten().filter_map(Weak::upgrade).map(|weight| weight.as_slice().len() as u64);
        used.sum()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, CachedWeights> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of the beginning, the middle and the end. Hashing all of a packed weight would read it once more.
fn sample(bytes: &[u8]) -> Sample {
    const LEN: usize = 256;
    let part = |at: usize| xxh3_128(&bytes[at..bytes.len().min(at + LEN)]);
    (bytes.len(), [part(0), part(bytes.len() / 2), part(bytes.len().saturating_sub(LEN))])
}

fn hashed(bytes: &[u8]) -> Hashed {
    (bytes.len(), xxh3_128(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use tensorc_abi::PackedElements;

    use super::*;

    const PACKING: Packing =
        Packing::GemmB { k: 4, n: 3, offset: 0, row_stride: 3, col_stride: 1, elements: PackedElements::F32 };

    fn address(weight: &WeightStorage) -> *const u8 {
        weight.as_slice().as_ptr()
    }

    fn content(bytes: Vec<u8>) -> Content {
        Content::Memory(bytes.into())
    }

    fn source(first: f32) -> Content {
        content((0..12).flat_map(|i| (first + i as f32).to_le_bytes()).collect())
    }

    #[test]
    fn equal_weights_share_memory_while_one_is_in_use() {
        let cache = WeightCache::default();
        let pack = |first| cache.pack(&PACKING, DType::F32, &source(first)).unwrap();
        let (a, b, other) = (pack(0.0), pack(0.0), pack(1.0));
        assert_eq!(address(&a), address(&b));
        assert_ne!(address(&a), address(&other));
        assert_eq!(cache.bytes(), 2 * a.as_slice().len() as u64);
        assert_eq!(a.as_slice(), pack_weight(&PACKING, DType::F32, &source(0.0)).unwrap().as_slice());
        drop((a, b));
        let again = pack(2.0);
        assert_eq!(cache.known().packed.len(), 2, "what nobody uses is forgotten");
        drop((again, other));
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn different_packings_with_one_result_share_memory() {
        let cache = WeightCache::default();
        let transposed =
            Packing::GemmB { k: 4, n: 3, offset: 0, row_stride: 1, col_stride: 4, elements: PackedElements::F32 };
        let rows: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let columns: Vec<u8> =
            (0..3).flat_map(|c| (0..4).map(move |r| (r * 3 + c) as f32)).flat_map(f32::to_le_bytes).collect();
        let a = cache.pack(&PACKING, DType::F32, &content(rows)).unwrap();
        let b = cache.pack(&transposed, DType::F32, &content(columns)).unwrap();
        assert_eq!(address(&a), address(&b));
    }

    #[test]
    fn what_does_not_fit_is_an_error_even_if_equal_bytes_are_known() {
        let cache = WeightCache::default();
        let kept = cache.pack(&PACKING, DType::F32, &source(0.0)).unwrap();
        assert!(matches!(cache.pack(&PACKING, DType::I32, &source(0.0)), Err(WeightError::DType(DType::I32))));
        assert!(cache.pack(&PACKING, DType::F32, &content(vec![0; 8])).is_err());
        drop(kept);
    }
}
