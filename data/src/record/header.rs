//! The payload of a record that holds an image: a header, labels and the image's file.

use crate::error::Cause;

/// Bytes of the header: number of labels, label, and two identifiers.
const HEADER: usize = 24;

/// The labels of an image.
#[derive(Clone, Copy, Debug)]
pub enum Labels<'a> {
    /// One, which the header has room for.
    One(f32),
    /// Any number, which follow the header.
    Values(&'a [f32]),
    /// Any number, as they are stored: four bytes each, the low one first. A rest of less is ignored.
    Stored(&'a [u8]),
}

impl Labels<'_> {
    /// Number of labels.
    pub fn len(&self) -> usize {
        match self {
            Labels::One(_) => 1,
            Labels::Values(values) => values.len(),
            Labels::Stored(bytes) => bytes.len() / 4,
        }
    }

    /// Whether there are no labels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The labels, in order.
    pub fn iter(&self) -> impl Iterator<Item = f32> {
        let (one, values, stored): (_, &[f32], &[u8]) = match *self {
            Labels::One(label) => (Some(label), &[], &[]),
            Labels::Values(values) => (None, values, &[]),
            Labels::Stored(bytes) => (None, &[], bytes),
        };
        let stored = stored.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        one.into_iter().chain(values.iter().copied()).chain(stored)
    }
}

/// An image with its labels, borrowed from a record's payload or about to be written to one.
#[derive(Clone, Copy, Debug)]
pub struct ImageRecord<'a> {
    /// The labels of the image.
    pub labels: Labels<'a>,
    /// A number by which the user knows the image.
    pub id: u64,
    /// A second such number, mostly 0.
    pub id2: u64,
    /// The image's file, such as JPEG or PNG.
    pub image: &'a [u8],
}

impl<'a> ImageRecord<'a> {
    /// Takes a payload apart without copying.
    ///
    /// # Errors
    /// The payload is too short for the header and the labels that this announces.
    pub fn unpack(payload: &'a [u8]) -> Result<ImageRecord<'a>, Cause> {
        let header = payload.first_chunk::<HEADER>().ok_or(Cause::Truncated { what: "an image record's header" })?;
        let (words, _) = header.as_chunks::<4>();
        let long =
            |at: usize| u64::from(u32::from_le_bytes(words[at])) | u64::from(u32::from_le_bytes(words[at + 1])) << 32;
        let (id, id2) = (long(2), long(4));
        let rest = &payload[HEADER..];
        let (labels, image) = match u32::from_le_bytes(words[0]) as usize {
            0 => (Labels::One(f32::from_le_bytes(words[1])), rest),
            count => {
                let bytes = count.checked_mul(4).and_then(|bytes| rest.split_at_checked(bytes));
                let (labels, image) = bytes.ok_or(Cause::Truncated { what: "an image record's labels" })?;
                (Labels::Stored(labels), image)
            }
        };
        Ok(ImageRecord { labels, id, id2, image })
    }

    /// Writes the payload, which replaces what `payload` holds. No labels at all are written as one of 0.
    ///
    /// # Errors
    /// There are 2³² labels or more.
    pub fn pack(&self, payload: &mut Vec<u8>) -> Result<(), Cause> {
        let (count, label) = match self.labels {
            Labels::One(label) => (0, label),
            _ => (self.labels.len(), 0.0),
        };
        let count = u32::try_from(count).map_err(|_| Cause::Format(format!("{count} labels of an image")))?;
        payload.clear();
        payload.extend(count.to_le_bytes());
        payload.extend(label.to_le_bytes());
        payload.extend(self.id.to_le_bytes());
        payload.extend(self.id2.to_le_bytes());
        if count > 0 {
            payload.extend(self.labels.iter().flat_map(f32::to_le_bytes));
        }
        payload.extend_from_slice(self.image);
        Ok(())
    }
}
