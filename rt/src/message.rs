//! Texts of errors, put together without an allocator.

use core::ffi::{CStr, c_char};

use tensorc_abi::DType;
use tensorc_abi::artifact::GpuHandle;

const CAPACITY: usize = GpuHandle::MESSAGE;

/// A text that ends with a zero, cut off where it is too long.
pub struct ErrorText {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl ErrorText {
    /// The empty text.
    pub const EMPTY: ErrorText = ErrorText { bytes: [0; CAPACITY], len: 0 };

    /// The text and the zeros behind it.
    pub fn bytes(&self) -> [u8; CAPACITY] {
        self.bytes
    }

    /// Address of the text, for C.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Makes the text empty.
    pub fn clear(&mut self) {
        *self = ErrorText::EMPTY;
    }

    /// Appends a text.
    // Messages are rare: one copy of the loop.
    #[inline(never)]
    pub fn text(&mut self, text: &str) -> &mut ErrorText {
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
    pub unsafe fn c_text(&mut self, text: *const c_char) -> &mut ErrorText {
        if text.is_null() {
            return self;
        }
        // SAFETY: by the caller's contract.
        self.text(unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?"))
    }

    /// Appends a number in decimal digits.
    // A loop over the digits would be unrolled to twenty times its size.
    #[inline(never)]
    pub fn number(&mut self, number: u64) -> &mut ErrorText {
        if number >= 10 {
            self.number(number / 10);
        }
        let digit = (number % 10) as usize;
        self.text("0123456789".get(digit..=digit).unwrap_or("?"))
    }

    /// Appends the name of an element type, given as a number.
    #[inline(never)]
    pub fn dtype(&mut self, number: u64) -> &mut ErrorText {
        let known = DType::ALL.into_iter().find(|dtype| *dtype as u64 == number);
        self.text(known.map_or("unknown type", DType::name))
    }

    /// `[2, 3]`.
    pub fn shape(&mut self, dims: impl Iterator<Item = u64>) -> &mut ErrorText {
        self.text("[");
        for (i, dim) in dims.enumerate() {
            self.text(if i == 0 { "" } else { ", " }).number(dim);
        }
        self.text("]")
    }
}
