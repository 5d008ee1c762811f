//! Settings of pools: size classes, limits, and aids for tests.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

use crate::device::Device;
use tensorc_abi::memory::AlignedBuffer;

const PAGE: u64 = 4096;
/// Sizes above this are rounded to multiples of it by [`Pooling::Pages`].
const LARGE_PAGE: u64 = 2 << 20;
/// [`Pooling::Classes`] divides every doubling of the size into this many classes.
const STEPS: u64 = 8;
const ALIGN: u64 = AlignedBuffer::ALIGN as u64;

/// Binary logarithm of the size up to which [`Pooling::PowersOfTwo`] doubles: 20 to 34.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoff(u8);

/// A cutoff that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cutoff of powers of two is between {} and {}, not {cutoff}", Cutoff::MIN, Cutoff::MAX)]
pub struct CutoffError {
    /// What was given.
    pub cutoff: u32,
}

impl Cutoff {
    /// Least cutoff: 1 MiB.
    pub const MIN: u32 = 20;
    /// Greatest cutoff: 16 GiB.
    pub const MAX: u32 = 34;

    /// The cutoff at 2 to the power of `cutoff` bytes.
    ///
    /// # Errors
    /// It is not in `Cutoff::MIN..=Cutoff::MAX`.
    pub fn new(cutoff: u32) -> Result<Cutoff, CutoffError> {
        match u8::try_from(cutoff) {
            Ok(log) if (Cutoff::MIN..=Cutoff::MAX).contains(&cutoff) => Ok(Cutoff(log)),
            _ => Err(CutoffError { cutoff }),
        }
    }
}

impl Default for Cutoff {
    fn default() -> Cutoff {
        Cutoff(24)
    }
}

/// How requests are rounded up to sizes; freed memory serves requests of the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Eight sizes for every doubling, and multiples of 64 bytes below 512: at most 12.5 % (or 63
    /// bytes) more than asked for. Written `classes`.
    #[default]
    Classes,
    /// Multiples of 4096 bytes, and above 2 MiB multiples of 2 MiB. Written `naive`.
    Pages,
    /// Powers of two from 4096 bytes to 2 to the cutoff, then multiples of that. Written `round`
    /// for a cutoff of 24, else `round:20`.
    PowersOfTwo(Cutoff),
    /// Multiples of 64 bytes; freed memory goes back to the system at once. Written `unpooled`.
    Unpooled,
}

impl Pooling {
    /// The number of bytes allocated for a request of `bytes`; none if it exceeds 64 bits.
    pub(crate) fn round(self, bytes: u64) -> Option<u64> {
        match self {
            Pooling::Classes => {
                // 2^log < bytes <= 2^(log + 1), with steps of 2^log / STEPS.
                let step = bytes.saturating_sub(1).checked_ilog2().map_or(1, |log| (1 << log) / STEPS);
                multiple(bytes, step.max(ALIGN))
            }
            Pooling::Pages => multiple(bytes, if bytes > LARGE_PAGE { LARGE_PAGE } else { PAGE }),
            Pooling::PowersOfTwo(Cutoff(log)) if bytes > 1 << log => multiple(bytes, 1 << log),
            Pooling::PowersOfTwo(_) => Some(bytes.next_power_of_two().max(PAGE)),
            Pooling::Unpooled => multiple(bytes, ALIGN),
        }
    }
}

/// The next multiple of `step`, a power of two. A division would cost more than the rest of a pooled
/// allocation.
fn multiple(bytes: u64, step: u64) -> Option<u64> {
    Some(bytes.checked_add(step - 1)? & !(step - 1))
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pooling::Classes => f.write_str("classes"),
            Pooling::Pages => f.write_str("naive"),
            Pooling::PowersOfTwo(cutoff) if *cutoff == Cutoff::default() => f.write_str("round"),
            Pooling::PowersOfTwo(Cutoff(log)) => write!(f, "round:{log}"),
            Pooling::Unpooled => f.write_str("unpooled"),
        }
    }
}

/// A text that names no pooling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePoolingError {
    /// The text is the name of no pooling.
    #[error("`{0}` is no pooling; write classes, naive, round, round with a cutoff as in round:20, or unpooled")]
    Unknown(String),
    /// The number behind `round:` is out of range.
    #[error(transparent)]
    Cutoff(#[from] CutoffError),
}

impl FromStr for Pooling {
    type Err = ParsePoolingError;

    fn from_str(text: &str) -> Result<Pooling, ParsePoolingError> {
        let unknown = || ParsePoolingError::Unknown(text.to_owned());
        Ok(match text {
            "classes" => Pooling::Classes,
            "naive" => Pooling::Pages,
            "round" => Pooling::PowersOfTwo(Cutoff::default()),
            "unpooled" => Pooling::Unpooled,
            _ => {
                let cutoff = text.strip_prefix("round:").ok_or_else(unknown)?;
                Pooling::PowersOfTwo(Cutoff::new(cutoff.parse().map_err(|_| unknown())?)?)
            }
        })
    }
}

/// Settings of one device's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How requests are rounded up.
    pub pooling: Pooling,
    /// Most bytes the device may provide, in use and held together.
    pub limit: Option<u64>,
    /// Per cent of the limit kept free as long as releasing unused memory can do that.
    pub reserve: u8,
    /// The pool gives memory back when it holds more unused bytes than this and more than are in
    /// use.
    pub max_held: u64,
    /// Fills unused memory with bytes 0xCB, and refuses to hand out memory that was
    /// written to while it was unused. Costs a pass over each block.
    pub poison: bool,
    /// Refuses every so many-th request, to test what follows.
    pub fail_every: Option<NonZero<u64>>,
}

impl Default for PoolConfig {
    /// No limit; poisons where debug assertions are on.
    fn default() -> PoolConfig {
        PoolConfig {
            pooling: Pooling::default(),
            limit: None,
            reserve: 5,
            max_held: 256 << 20,
            poison: cfg!(debug_assertions),
            fail_every: None,
        }
    }
}

/// Settings of a [`Storage`](super::Storage).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConfig {
    /// Settings of devices that `devices` does not list.
    pub default: PoolConfig,
    /// Settings of these devices.
    pub devices: BTreeMap<Device, PoolConfig>,
}

impl StorageConfig {
    pub(super) fn pool(&self, device: Device) -> &PoolConfig {
        self.devices.get(&device).unwrap_or(&self.default)
    }
}

impl From<PoolConfig> for StorageConfig {
    /// The same settings for every device.
    fn from(default: PoolConfig) -> StorageConfig {
        StorageConfig { default, devices: BTreeMap::new() }
    }
}
