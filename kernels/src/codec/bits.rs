//! Bits of a payload, the lowest of a byte first.

/// Writes bits, the lowest first, a word at a time. Only whole bytes count: the next call writes the bits above them
/// again.
pub(super) struct BitWriter {
    /// The next whole byte.
    pub at: usize,
    pub held: u64,
    /// Bits of `held`, fewer than 8.
    pub count: u32,
}

impl BitWriter {
    /// Writes the `count` (at most 56) low bits of `bits`; the bits above them must be 0.
    #[inline(always)]
    pub fn put(&mut self, out: &mut [u8], bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        if let Some(word) = out.get_mut(self.at..self.at + 8) {
            word.copy_from_slice(&self.held.to_le_bytes());
        }
        self.at += (self.count / 8) as usize;
        self.held >>= self.count & !7;
        self.count &= 7;
    }
}

pub(super) struct BitReader<'a> {
    pub bytes: &'a [u8],
    /// Bits that were read.
    pub at: usize,
}

impl<'a> BitReader<'a> {
    /// Up to 57 bits from here on, zeros beyond the end.
    #[inline(always)]
    fn peek(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let word = match rest.first_chunk::<8>() {
            Some(word) => u64::from_le_bytes(*word),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word >> (self.at % 8)
    }

    /// Skips `count` bits; `None` if that is beyond the end.
    #[inline(always)]
    fn skip(&mut self, count: usize) -> Option<()> {
        self.at += count;
        (self.at <= 8 * self.bytes.len()).then_some(())
    }

    /// The next `count` (at most 57) bits.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> Option<u64> {
        let bits = self.peek() & ((1 << count) - 1);
        self.skip(count as usize).map(|()| bits)
    }

    /// Reads a Rice-coded gap; a gap that would leave a block of `elements` is read as `elements`.
    #[inline(always)]
    pub fn rice(&mut self, r: u32, elements: usize) -> Option<usize> {
        let mut high = 0;
        loop {
            let ones = self.peek().trailing_ones().min(56) as usize;
            high += ones;
            if high << r >= elements {
                // The block must hold that many ones, or it is truncated before its place is wrong.
                return self.skip(ones).map(|()| elements);
            }
            if ones < 56 {
                self.skip(ones + 1)?;
                return Some((high << r) + self.take(r)? as usize);
            }
            self.skip(ones)?;
        }
    }

    /// Returns the bytes after the last byte that was begun; `None` if the other bits of that byte are not 0.
    pub fn finish(mut self) -> Option<&'a [u8]> {
        let rest = (8 - self.at % 8) % 8;
        if self.take(rest as u32)? != 0 {
            return None;
        }
        self.bytes.get(self.at / 8..)
    }
}
