//! A cursor over the bytes of one block: fixed-width integers, compact sizes, slices. It never reads past its end
//! and never allocates.

/// What a cursor could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The bytes end before the item does.
    #[error("bytes end at {end} while {wanted} bytes are wanted at {at}")]
    Short {
        /// Offset of the item, bytes from the start of the block.
        at: usize,
        /// Length of the item, bytes.
        wanted: u64,
        /// Length of the block, bytes.
        end: usize,
    },
    /// A compact size uses more bytes than its value needs (`non-canonical ReadCompactSize()` in Bitcoin Core).
    #[error("compact size at {at} is not in its shortest form")]
    LongCompactSize {
        /// Offset of the compact size, bytes from the start of the block.
        at: usize,
    },
}

/// Reads one block front to back.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// Returns the offset of the next byte.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes not yet read.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the bytes between two offsets already passed.
    #[inline]
    pub fn slice(&self, from: usize, to: usize) -> &'a [u8] {
        &self.bytes[from..to]
    }

    /// Takes `count` bytes.
    #[inline]
    pub fn take(&mut self, count: u64) -> Result<&'a [u8], CursorError> {
        if count > self.remaining() as u64 {
            return Err(CursorError::Short { at: self.at, wanted: count, end: self.bytes.len() });
        }
        let from = self.at;
        self.at += count as usize;
        Ok(&self.bytes[from..self.at])
    }

    /// Takes `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CursorError> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("take gave N bytes"))
    }

    /// Looks at the next byte without taking it.
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Takes one byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, CursorError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a little-endian `u32`.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, CursorError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a little-endian `u64`.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, CursorError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes a compact size (`ReadCompactSize` in Bitcoin Core's `serialize.h`); longer forms than needed are refused.
    #[inline]
    pub fn compact_size(&mut self) -> Result<u64, CursorError> {
        let at = self.at;
        let (value, least) = match self.u8()? {
            0xfd => (u64::from(u16::from_le_bytes(self.array()?)), 0xfd),
            0xfe => (u64::from(self.u32()?), 0x1_0000),
            0xff => (self.u64()?, 0x1_0000_0000),
            small => (u64::from(small), 0),
        };
        if value < least {
            return Err(CursorError::LongCompactSize { at });
        }
        Ok(value)
    }

    /// Takes a compact size and that many bytes; returns their offset and length.
    #[inline]
    pub fn var_bytes(&mut self) -> Result<(usize, usize), CursorError> {
        let count = self.compact_size()?;
        let from = self.at;
        self.take(count)?;
        Ok((from, count as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_sizes_are_read_and_long_forms_refused() {
        let mut cursor =
            Cursor::new(&[0xfc, 0xfd, 0xfd, 0x00, 0xfe, 0, 0, 1, 0, 0xff, 0, 0, 0, 0, 1, 0, 0, 0]);
        let sizes: Vec<u64> = (0..4).map(|_| cursor.compact_size().unwrap()).collect();
        assert_eq!(sizes, [0xfc, 0xfd, 0x1_0000, 0x1_0000_0000]);
        assert_eq!(
            Cursor::new(&[0xfd, 0xfc, 0x00]).compact_size(),
            Err(CursorError::LongCompactSize { at: 0 })
        );
    }

    #[test]
    fn a_compact_size_of_2_pow_60_reads_nothing() {
        let mut cursor = Cursor::new(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 2, 3]);
        let error = cursor.var_bytes().unwrap_err();
        assert_eq!(error, CursorError::Short { at: 9, wanted: 1 << 60, end: 12 });
    }
}
