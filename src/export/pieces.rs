//! Byte strings one behind the other in one arena, by number.

/// Pieces in the order in which they were put.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<usize>,
}

impl Pieces {
    /// Puts what `write` appends as the next piece.
    pub(super) fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// All pieces in their order.
    pub(super) fn iter(&self) -> Iter<'_> {
        Iter { bytes: &self.bytes, ends: self.ends.iter(), begin: 0 }
    }
}

/// Pieces in their order.
#[derive(Debug)]
pub(super) struct Iter<'a> {
    bytes: &'a [u8],
    ends: std::slice::Iter<'a, usize>,
    /// Where the next piece begins.
    begin: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let end = *self.ends.next()?;
        let piece = &self.bytes[self.begin..end];
        self.begin = end;
        Some(piece)
    }
}
