//! A text that the program hands over, such as who holds a block.
//!
//! Constraint: it may be of any length, and is said outside of any hook, on a thread whose stack may be small. Consequence: it is
//! copied into a buffer on the stack, cut at the end of a character where that ends, and otherwise kept as it is: unlike in a
//! [`crate::hot::name::Name`], numbers in it are what is told.

/// Longest text that is kept, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 2048;
/// The lengths of file, name and line table, before the text itself: it is a code definition with nothing else in it.
const HEAD_BYTES: usize = 12;

/// A text as it is recorded.
#[derive(Debug)]
pub(crate) struct EventText {
    payload: [u8; HEAD_BYTES + MAX_TEXT_BYTES],
    len: usize,
    cut: bool,
}

impl EventText {
    /// Of these bytes, which are UTF-8.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut len = bytes.len().min(MAX_TEXT_BYTES);
        let cut = len < bytes.len();
        while cut && len > 0 && bytes[len] & 0xc0 == 0x80 {
            len -= 1;
        }
        let mut payload = [0; HEAD_BYTES + MAX_TEXT_BYTES];
        payload[HEAD_BYTES..HEAD_BYTES + len].copy_from_slice(&bytes[..len]);
        payload[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        Self { payload, len, cut }
    }

    /// As the payload of a definition.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..HEAD_BYTES + self.len]
    }

    /// True if it was longer.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_as_it_is_and_cut_between_characters() {
        let text = EventText::new("step 17 of µ".as_bytes());
        assert!(!text.is_cut() && &text.payload()[HEAD_BYTES..] == "step 17 of µ".as_bytes());
        let long = "µ".repeat(MAX_TEXT_BYTES);
        let text = EventText::new(format!("x{long}").as_bytes());
        assert!(text.is_cut() && std::str::from_utf8(&text.payload()[HEAD_BYTES..]).is_ok());
        assert_eq!(text.payload().len(), HEAD_BYTES + MAX_TEXT_BYTES - 1);
        assert_eq!(EventText::new(b"").payload(), [0; HEAD_BYTES]);
    }
}
