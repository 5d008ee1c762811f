//! Texts of errors, put together without an allocator.

use core::ffi::{CStr, c_char};

use tensorc_abi::DType;
use tensorc_abi::artifact::Gpu;

const CAPACITY: usize = Gpu::MESSAGE;

/// A text that ends with a zero, cut off where it is too long.
pub struct Message {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Message {
    pub const EMPTY: Message = Message { bytes: [0; CAPACITY], len: 0 };

    pub fn bytes(&self) -> [u8; CAPACITY] {
        self.bytes
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    pub fn clear(&mut self) {
        *self = Message::EMPTY;
    }

    // Messages are rare: one copy of the loop.
    #[inline(never)]
    pub fn text(&mut self, text: &str) -> &mut Message {
        for byte in text.bytes() {
            if self.len + 1 < CAPACITY {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
        self
    }

    /// A text of C's.
    ///
    /// # Safety
    /// It is null or ends with a zero.
    pub unsafe fn c_text(&mut self, text: *const c_char) -> &mut Message {
        if text.is_null() {
            return self;
        }
        // SAFETY: by the caller's contract.
        self.text(unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?"))
    }

    // A loop over the digits would be unrolled to twenty times its size.
    #[inline(never)]
    pub fn number(&mut self, number: u64) -> &mut Message {
        if number >= 10 {
            self.number(number / 10);
        }
        let digit = (number % 10) as usize;
        self.text("0123456789".get(digit..=digit).unwrap_or("?"))
    }

    #[inline(never)]
    pub fn dtype(&mut self, number: u64) -> &mut Message {
        let known = DType::ALL.into_iter().find(|dtype| *dtype as u64 == number);
        self.text(known.map_or("unknown type", DType::name))
    }

    /// `[2, 3]`.
    pub fn shape(&mut self, dims: impl Iterator<Item = u64>) -> &mut Message {
        self.text("[");
        for (i, dim) in dims.enumerate() {
            self.text(if i == 0 { "" } else { ", " }).number(dim);
        }
        self.text("]")
    }
}
