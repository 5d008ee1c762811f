//! The headers of a JPEG file (ITU-T T.81 annex B): what comes before the entropy-coded data of its first scan.

use super::error::JpegError;

/// Positions of the coefficients of a block in the order of the file: row * 8 + column.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

/// A component of the frame, with the tables that its blocks are decoded with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Component {
    id: u8,
    /// Sampling factors.
    pub horizontal: usize,
    pub vertical: usize,
    quantisation: usize,
    /// Numbers of its Huffman tables.
    pub dc: usize,
    pub ac: usize,
}

/// One Huffman table of the file: sixteen counts of codes by length, then the symbols.
pub(super) type HuffmanSpec<'a> = (&'a [u8; 16], &'a [u8]);

/// What the headers of a file say, up to its first scan.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers<'a> {
    /// Size of the image in pixels, at least 1.
    pub width: usize,
    pub height: usize,
    /// One (grey) or three (YCbCr).
    count: usize,
    components: [Component; 3],
    /// In the order of the file.
    quantisation: [Option<[u16; 64]>; 4],
    dc: [Option<HuffmanSpec<'a>>; 4],
    ac: [Option<HuffmanSpec<'a>>; 4],
    /// MCUs between two restart markers; 0: there are none.
    pub restart: usize,
    /// Offset of the entropy-coded data.
    pub data: usize,
    jfif: bool,
    /// The transform that an Adobe segment names.
    adobe: Option<u8>,
}

fn truncated() -> JpegError {
    JpegError::Invalid("the file ends inside of its headers")
}

/// A cursor over the payload of a segment, or over the file.
struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn u8(&mut self) -> Result<u8, JpegError> {
        let byte = *self.bytes.get(self.at).ok_or_else(truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn u16(&mut self) -> Result<usize, JpegError> {
        Ok(usize::from(self.u8()?) << 8 | usize::from(self.u8()?))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], JpegError> {
        let taken = self.bytes.get(self.at..self.at + count).ok_or_else(truncated)?;
        self.at += count;
        Ok(taken)
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The code of the next marker; fill bytes and other bytes before it are passed over.
    fn marker(&mut self) -> Result<u8, JpegError> {
        loop {
            while self.u8()? != 0xff {}
            let mut code = self.u8()?;
            while code == 0xff {
                code = self.u8()?;
            }
            if code != 0 {
                return Ok(code);
            }
        }
    }

    /// The payload of a segment whose marker was just read.
    fn segment(&mut self) -> Result<Bytes<'a>, JpegError> {
        let length = self.u16()?.checked_sub(2).ok_or(JpegError::Invalid("a segment shorter than its length"))?;
        Ok(Bytes { bytes: self.take(length)?, at: 0 })
    }
}

impl<'a> Headers<'a> {
    /// Parses all marker segments up to the first start-of-scan (SOS) segment, inclusive.
    ///
    /// # Errors
    ///
    /// [`JpegError::Unsupported`] for files of another kind than this decoder is for, [`JpegError::Invalid`] for bytes
    /// that are no JPEG file.
    pub fn read(bytes: &'a [u8]) -> Result<Headers<'a>, JpegError> {
        let mut headers = Headers::default();
        let mut file = headers.read_frame(bytes)?;
        loop {
            match file.marker()? {
                0xda => {
                    headers.read_scan(file.segment()?)?;
                    headers.data = file.at;
                    headers.check_colours()?;
                    return Ok(headers);
                }
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    return Err(JpegError::Invalid("two frames in one file"));
                }
                code => headers.read_segment(code, &mut file)?,
            }
        }
    }

    /// Reads the size and the components alone.
    pub fn read_size(bytes: &'a [u8]) -> Result<Headers<'a>, JpegError> {
        let mut headers = Headers::default();
        headers.read_frame(bytes)?;
        Ok(headers)
    }

    /// Reads the segments up to and including the header of the frame, which tells the size.
    fn read_frame(&mut self, bytes: &'a [u8]) -> Result<Bytes<'a>, JpegError> {
        if bytes.get(..2) != Some(&[0xff, 0xd8]) {
            return Err(JpegError::Invalid("no JPEG file"));
        }
        let mut file = Bytes { bytes, at: 2 };
        loop {
            match file.marker()? {
                0xc0 | 0xc1 => {
                    self.read_components(file.segment()?)?;
                    return Ok(file);
                }
                0xc2 => return Err(JpegError::Unsupported("progressive")),
                0xc3 | 0xc5..=0xc7 => return Err(JpegError::Unsupported("lossless or hierarchical")),
                0xc8..=0xcb | 0xcd..=0xcf => return Err(JpegError::Unsupported("arithmetic coding")),
                0xda => return Err(JpegError::Invalid("a scan before the frame")),
                code => self.read_segment(code, &mut file)?,
            }
        }
    }

    /// The components of the scan: one for grey, three for YCbCr.
    pub fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// The quantisation table of a component, in the order of the file.
    pub fn quantisation(&self, component: &Component) -> Result<&[u16; 64], JpegError> {
        self.quantisation[component.quantisation].as_ref().ok_or(JpegError::Invalid("a quantisation table is missing"))
    }

    pub fn dc(&self, number: usize) -> Result<HuffmanSpec<'a>, JpegError> {
        self.dc[number].ok_or(JpegError::Unsupported("no Huffman tables"))
    }

    pub fn ac(&self, number: usize) -> Result<HuffmanSpec<'a>, JpegError> {
        self.ac[number].ok_or(JpegError::Unsupported("no Huffman tables"))
    }

    fn read_segment(&mut self, code: u8, file: &mut Bytes<'a>) -> Result<(), JpegError> {
        match code {
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => Ok(()),
            0xd9 => Err(JpegError::Invalid("the image ends before its data")),
            0xc4 => self.read_huffman(file.segment()?),
            0xcc => Err(JpegError::Unsupported("arithmetic coding")),
            0xdb => self.read_quantisation(file.segment()?),
            0xdd => {
                self.restart = file.segment()?.u16()?;
                Ok(())
            }
            0xe0 => {
                self.jfif |= file.segment()?.bytes.starts_with(b"JFIF\0");
                Ok(())
            }
            0xee => {
                let segment = file.segment()?;
                if segment.bytes.starts_with(b"Adobe") {
                    self.adobe = segment.bytes.get(11).copied();
                }
                Ok(())
            }
            _ => file.segment().map(|_| ()),
        }
    }

    fn read_components(&mut self, mut segment: Bytes<'_>) -> Result<(), JpegError> {
        if segment.u8()? != 8 {
            return Err(JpegError::Unsupported("samples of more than 8 bits"));
        }
        (self.height, self.width) = (segment.u16()?, segment.u16()?);
        self.count = usize::from(segment.u8()?);
        if self.height == 0 {
            return Err(JpegError::Unsupported("a height that follows the data"));
        }
        if self.width == 0 || self.count == 0 {
            return Err(JpegError::Invalid("an image without pixels"));
        }
        if self.count != 1 && self.count != 3 {
            return Err(JpegError::Unsupported("another number of components than one or three"));
        }
        for component in &mut self.components[..self.count] {
            let (id, factors, table) = (segment.u8()?, usize::from(segment.u8()?), usize::from(segment.u8()?));
            let (horizontal, vertical) = (factors >> 4, factors & 15);
            if !(1..=4).contains(&horizontal) || !(1..=4).contains(&vertical) || table > 3 {
                return Err(JpegError::Invalid("a component's sampling factors or table are out of range"));
            }
            *component = Component { id, horizontal, vertical, quantisation: table, ..Component::default() };
        }
        self.check_sampling()
    }

    fn check_sampling(&mut self) -> Result<(), JpegError> {
        if self.count == 1 {
            // The blocks of a single component are not interleaved, whatever its factors are.
            (self.components[0].horizontal, self.components[0].vertical) = (1, 1);
            return Ok(());
        }
        let factors = self.components.map(|c| (c.horizontal, c.vertical));
        match factors {
            [(1 | 2, 1 | 2), (1, 1), (1, 1)] => Ok(()),
            _ => Err(JpegError::Unsupported("unusual sampling factors")),
        }
    }

    fn read_scan(&mut self, mut segment: Bytes<'_>) -> Result<(), JpegError> {
        if usize::from(segment.u8()?) != self.count {
            return Err(JpegError::Unsupported("several scans"));
        }
        for component in &mut self.components[..self.count] {
            if segment.u8()? != component.id {
                return Err(JpegError::Unsupported("components in another order"));
            }
            let tables = usize::from(segment.u8()?);
            (component.dc, component.ac) = (tables >> 4, tables & 15);
            if component.dc > 3 || component.ac > 3 {
                return Err(JpegError::Invalid("the number of a Huffman table is out of range"));
            }
        }
        match segment.take(3)? {
            [0, 63, 0] => Ok(()),
            _ => Err(JpegError::Unsupported("a scan of a part of the coefficients")),
        }
    }

    /// Three components are YCbCr by the rules of libjpeg: in a JFIF file; else an Adobe segment decides, or identifiers.
    fn check_colours(&self) -> Result<(), JpegError> {
        let ids = self.components.map(|c| c.id);
        let ycbcr = match self.adobe {
            _ if self.count == 1 || self.jfif => true,
            Some(transform) => transform != 0,
            None => ids != *b"RGB",
        };
        if ycbcr { Ok(()) } else { Err(JpegError::Unsupported("RGB components")) }
    }

    fn read_quantisation(&mut self, mut segment: Bytes<'_>) -> Result<(), JpegError> {
        while segment.left() > 0 {
            let kind = segment.u8()?;
            if kind >> 4 > 1 || kind & 15 > 3 {
                return Err(JpegError::Invalid("a quantisation table out of range"));
            }
            let mut table = [0; 64];
            for value in &mut table {
                *value = if kind >> 4 == 0 { u16::from(segment.u8()?) } else { segment.u16()? as u16 };
            }
            self.quantisation[usize::from(kind & 15)] = Some(table);
        }
        Ok(())
    }

    fn read_huffman(&mut self, mut segment: Bytes<'a>) -> Result<(), JpegError> {
        while segment.left() > 0 {
            let kind = segment.u8()?;
            let counts = segment.take(16)?.first_chunk::<16>().ok_or_else(truncated)?;
            let symbols = segment.take(counts.iter().map(|&c| usize::from(c)).sum())?;
            let tables = match kind >> 4 {
                0 => &mut self.dc,
                1 => &mut self.ac,
                _ => return Err(JpegError::Invalid("a Huffman table out of range")),
            };
            let table = tables.get_mut(usize::from(kind & 15));
            *table.ok_or(JpegError::Invalid("a Huffman table out of range"))? = Some((counts, symbols));
        }
        Ok(())
    }
}
