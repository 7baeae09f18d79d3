//! How values are written to bytes and read back.
//!
//! ```text
//!   number   7 bits per byte, least significant first, top bit set on all but the last
//!   bytes    number (length), then the bytes
//!   float    8 bytes, little endian, IEEE 754
//! ```
//!
//! A reader never trusts a length: it is compared with what is left before anything is allocated.

/// Bytes that are not what the writer of this format writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed value: {0}")]
pub struct Malformed(pub &'static str);

/// Appends a number in 1 to 10 bytes.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a length and the bytes themselves.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends the 8 bytes of a float.
pub fn put_float(out: &mut Vec<u8>, float: f64) {
    out.extend_from_slice(&float.to_bits().to_le_bytes());
}

/// Reads what the `put_*` functions wrote, from the front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader over all of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The unread part.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes the next `length` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// When none is left.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// Takes a number written by [`put_number`].
    ///
    /// # Errors
    /// When it is cut short, exceeds 64 bits, or is not in its shortest form.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("number exceeds 64 bits"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(Malformed("number is not in its shortest form"));
                }
                return Ok(number);
            }
        }
        Err(Malformed("number exceeds 64 bits"))
    }

    /// Takes bytes written by [`put_bytes`].
    ///
    /// # Errors
    /// When they are cut short.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.number()?;
        let length = usize::try_from(length).map_err(|_| Malformed("cut short"))?;
        self.take(length)
    }

    /// Takes a float written by [`put_float`].
    ///
    /// # Errors
    /// When it is cut short.
    pub fn float(&mut self) -> Result<f64, Malformed> {
        let mut bits = [0u8; 8];
        bits.copy_from_slice(self.take(8)?);
        Ok(f64::from_bits(u64::from_le_bytes(bits)))
    }

    /// For how many of `count` elements, each of which takes `size` bytes in memory, room may be
    /// made before they are read: what only announces many costs a few times its own bytes.
    #[must_use]
    pub const fn room_for(&self, count: usize, size: usize) -> usize {
        const TIMES: usize = 8;
        let most = self.rest.len() * TIMES / size;
        if count < most { count } else { most }
    }

    /// Takes the number of elements that follow, each of which takes `size_min` bytes or more.
    /// See [`Self::room_for`] before making room for them.
    ///
    /// # Errors
    /// When it is zero (an empty collection is never stored) or more than the bytes that are left
    /// can hold.
    pub fn count(&mut self, size_min: usize) -> Result<usize, Malformed> {
        let count = self.number()?;
        if count == 0 {
            return Err(Malformed("empty collection"));
        }
        let count = usize::try_from(count).map_err(|_| Malformed("cut short"))?;
        if count > self.rest.len() / size_min.max(1) || count > u32::MAX as usize {
            return Err(Malformed("more elements announced than there are bytes"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_number(&mut out, number);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.number(), Ok(number));
            assert!(reader.rest().is_empty());
        }
    }

    #[test]
    fn bad_numbers_are_refused() {
        for bad in [&[0x80u8][..], &[0x80, 0], &[0xff; 10], &[0xff; 11], &[]] {
            assert!(Reader::new(bad).number().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn lengths_are_checked_before_use() {
        let mut out = Vec::new();
        put_number(&mut out, u64::MAX);
        assert!(Reader::new(&out).bytes().is_err());
        assert!(Reader::new(&out).count(1).is_err());
        assert!(Reader::new(&[0]).count(1).is_err());
    }
}
