//! Kinds of stores and of compressions, read from MXNet's settings.

use std::str::FromStr;

use crate::compression::{Compression, DEFAULT_THRESHOLD};
use crate::error::KvError;
use crate::kind::StoreKind;

impl FromStr for StoreKind {
    type Err = KvError;

    /// Reads a name or one of MXNet's other names, in lower case. Anything else is an error, where MXNet takes it for `local`.
    fn from_str(name: &str) -> Result<StoreKind, KvError> {
        let kind = match name {
            "local" | "local_update_cpu" | "local_allreduce_cpu" => StoreKind::Local,
            "device" | "local_allreduce_device" => StoreKind::Device,
            "dist" | "dist_sync" => StoreKind::DistSync,
            "dist_device_sync" | "dist_sync_device" => StoreKind::DistDeviceSync,
            "dist_async" => StoreKind::DistAsync,
            _ => {
                let expected = "local, device, dist_sync, dist_device_sync or dist_async";
                return Err(KvError::setting("kind of store", name, expected));
            }
        };
        Ok(kind)
    }
}

impl Compression {
    /// Reads MXNet's settings: `type` is `2bit`, `1bit`, `fp16`, `bf16` or `none`; `threshold` is optional for the first two.
    ///
    /// # Errors
    /// No type, an unknown setting or type, a setting given twice, or a threshold that the type cannot have.
    pub fn from_settings<'a>(settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Compression, KvError> {
        let (mut kind, mut threshold) = (None, None);
        for (name, value) in settings {
            let given = match name {
                "type" => &mut kind,
                "threshold" => &mut threshold,
                _ => return Err(KvError::setting(name, value, "only `type` and `threshold` of gradient compression")),
            };
            if given.replace(value).is_some() {
                return Err(KvError::setting(name, value, "one value only"));
            }
        }
        let number = threshold.map_or(Ok(DEFAULT_THRESHOLD), |text| text.trim().parse::<f32>().map_err(|_| text));
        let number = number.map_err(|text| KvError::setting("threshold", text, "a number"))?;
        let compression = match kind.unwrap_or_default() {
            "2bit" => Compression::TwoBit { threshold: number },
            "1bit" => Compression::OneBit { threshold: number },
            "fp16" => Compression::F16,
            "bf16" => Compression::BF16,
            "none" => Compression::None,
            other => return Err(KvError::setting("type of compression", other, "2bit, 1bit, fp16, bf16 or none")),
        };
        if let (Some(text), false) = (threshold, compression.keeps_residual()) {
            return Err(KvError::setting("threshold", text, "none for this type of compression"));
        }
        compression.check()?;
        Ok(compression)
    }

    /// Whether the threshold is one that this compression can have.
    pub(crate) fn check(self) -> Result<(), KvError> {
        match self {
            Compression::TwoBit { threshold } if !(threshold > 0.0 && threshold.is_finite()) => {
                Err(KvError::setting("threshold", threshold, "a finite number above 0"))
            }
            Compression::OneBit { threshold } if !threshold.is_finite() => {
                Err(KvError::setting("threshold", threshold, "a finite number"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in StoreKind::ALL {
            assert_eq!(kind.name().parse::<StoreKind>().unwrap(), kind);
        }
        for wrong in ["", "foo", "Local", "local ", "nccl"] {
            assert!(matches!(wrong.parse::<StoreKind>(), Err(KvError::Setting { .. })), "{wrong}");
        }
    }
}
