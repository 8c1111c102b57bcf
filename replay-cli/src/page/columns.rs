//! Columns of numbers in one compressed blob.
//!
//! A column is a LEB128 count, then the zigzag LEB128 difference of each value from the one before.
//! `web/src/data/decode.ts` reads it.

use gpumemtrace_format::{put_delta, put_varint};

/// The number of a column in the blob.
pub(super) type Column = usize;

/// The columns written so far.
#[derive(Debug, Default)]
pub(super) struct Columns {
    bytes: Vec<u8>,
    count: usize,
}

impl Columns {
    /// Adds a column and returns its number.
    pub(super) fn add(&mut self, values: impl IntoIterator<Item = u64>) -> Column {
        let begin = self.bytes.len();
        let (mut before, mut count) = (0u64, 0u64);
        for value in values {
            put_delta(&mut self.bytes, before, value);
            before = value;
            count += 1;
        }
        // The count is known only now. Moving the column is cheaper than storing its values first.
        let mut prefix = Vec::new();
        put_varint(&mut prefix, count);
        self.bytes.splice(begin..begin, prefix);
        self.count += 1;
        self.count - 1
    }

    /// All columns in the order of their numbers.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_differences() {
        let mut columns = Columns::default();
        assert_eq!(columns.add([3, 1, 300]), 0);
        assert_eq!(columns.add([]), 1);
        // 3 values: +3, -2, +299. Then no value.
        assert_eq!(columns.into_bytes(), [3, 6, 3, 0xd6, 4, 0]);
    }
}
