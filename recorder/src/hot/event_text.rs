//! A text from the program, such as a description of the references that keep a block alive.
//!
//! The text may have any length, and the calling thread's stack may be small. So it is copied into
//! a fixed buffer and truncated at a character boundary. Unlike an
//! [`super::event_name::EventName`], a text keeps its digits.

/// Longest text that is stored, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 2048;
/// Lengths of file, name and line table. A text is stored as a code definition that has only a
/// name.
const HEAD_BYTES: usize = 12;

#[derive(Debug)]
pub(crate) struct EventText {
    payload: [u8; HEAD_BYTES + MAX_TEXT_BYTES],
    len: usize,
    is_truncated: bool,
}

impl EventText {
    /// Copies `bytes`, which should be UTF-8.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut len = bytes.len().min(MAX_TEXT_BYTES);
        let is_truncated = len < bytes.len();
        while is_truncated && len > 0 && bytes[len] & 0xc0 == 0x80 {
            len -= 1;
        }
        let mut payload = [0; HEAD_BYTES + MAX_TEXT_BYTES];
        payload[HEAD_BYTES..HEAD_BYTES + len].copy_from_slice(&bytes[..len]);
        payload[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        Self { payload, len, is_truncated }
    }

    /// The text in the form of a code definition.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..HEAD_BYTES + self.len]
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_digits_and_is_truncated_between_characters() {
        let text = EventText::new("step 17 of µ".as_bytes());
        assert!(!text.is_truncated() && &text.payload()[HEAD_BYTES..] == "step 17 of µ".as_bytes());
        let long = "µ".repeat(MAX_TEXT_BYTES);
        let text = EventText::new(format!("x{long}").as_bytes());
        assert!(text.is_truncated() && std::str::from_utf8(&text.payload()[HEAD_BYTES..]).is_ok());
        assert_eq!(text.payload().len(), HEAD_BYTES + MAX_TEXT_BYTES - 1);
        assert_eq!(EventText::new(b"").payload(), [0; HEAD_BYTES]);
    }
}
