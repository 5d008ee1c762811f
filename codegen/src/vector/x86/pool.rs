//! Constants of a function, which lie before its code.

/// Bytes by their distance from the code, at multiples of their length.
#[derive(Debug, Default)]
pub(super) struct ConstantPool {
    entries: Vec<(Vec<u8>, usize)>,
    bytes: usize,
}

impl ConstantPool {
    /// The offset of some bytes, 4 to 64, from the beginning of the code.
    pub fn offset(&mut self, bytes: &[u8]) -> i32 {
        let known = self.entries.iter().find(|(known, _)| known == bytes).map(|(_, at)| *at);
        let before = known.unwrap_or_else(|| {
            self.bytes = (self.bytes + bytes.len()).next_multiple_of(bytes.len());
            self.entries.push((bytes.to_vec(), self.bytes));
            self.bytes
        });
        -(before as i32)
    }

    /// The pool and the code behind it.
    pub fn before(self, code: &[u8]) -> (Vec<u8>, usize) {
        let entry = self.bytes.next_multiple_of(16);
        let mut out = vec![0; entry];
        for (bytes, before) in &self.entries {
            let at = entry - before;
            out[at..at + bytes.len()].copy_from_slice(bytes);
        }
        out.extend_from_slice(code);
        (out, entry)
    }
}
