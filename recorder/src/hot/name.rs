//! The name of something the program tells us of, such as a range.
//!
//! Constraint: it comes inside a hook, may be of any length, and often counts up ("step 17"). Consequence: it is copied into a
//! buffer on the stack, cut where that ends, and each number in it becomes `#`, so that a loop has one name and not one for
//! each turn. A mark keeps its numbers: it is asked for by its name, and is made seldom.

/// Longest name that is kept, in bytes.
const MAX_BYTES: usize = 200;
/// The lengths of file, name and line table, before the name itself: a name is a code definition with nothing else in it.
const HEAD_BYTES: usize = 12;

/// A name as it is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventName {
    payload: [u8; HEAD_BYTES + MAX_BYTES],
    len: usize,
    cut: bool,
}

impl EventName {
    /// Of nothing.
    pub(crate) const EMPTY: Self = Self { payload: [0; HEAD_BYTES + MAX_BYTES], len: 0, cut: false };

    /// Of these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self::of(bytes, true)
    }

    /// Of these bytes, with their numbers: for what is asked for by its name.
    pub(crate) fn literal(bytes: &[u8]) -> Self {
        Self::of(bytes, false)
    }

    fn of(bytes: &[u8], folds_numbers: bool) -> Self {
        let mut name = Self::EMPTY;
        let mut in_number = false;
        for byte in bytes {
            let is_digit = folds_numbers && byte.is_ascii_digit();
            if is_digit && in_number {
                continue;
            }
            in_number = is_digit;
            let Some(place) = name.payload.get_mut(HEAD_BYTES + name.len) else {
                name.cut = true;
                break;
            };
            *place = if is_digit { b'#' } else { *byte };
            name.len += 1;
        }
        name.payload[4..8].copy_from_slice(&(name.len as u32).to_le_bytes());
        name
    }

    /// As it will be read.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &[u8] {
        &self.payload[HEAD_BYTES..HEAD_BYTES + self.len]
    }

    /// As the payload of a definition.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..HEAD_BYTES + self.len]
    }

    /// True if it was longer.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Tells names apart (FNV-1a, 64 bits).
    pub(crate) fn hash(&self) -> u64 {
        self.payload().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        String::from_utf8_lossy(EventName::new(bytes).text()).into_owned()
    }

    #[test]
    fn a_name_that_counts_is_one_name() {
        assert_eq!(text(b"step 17"), "step #");
        assert_eq!(text(b"12_batch_9999999999"), "#_batch_#");
        assert_eq!(EventName::new(b"step 1").hash(), EventName::new(b"step 22").hash());
        assert_ne!(EventName::new(b"step").hash(), EventName::new(b"steps").hash());
    }

    #[test]
    fn a_literal_name_keeps_its_numbers() {
        assert_eq!(EventName::literal(b"epoch 12").text(), b"epoch 12");
        assert_ne!(EventName::literal(b"epoch 1").hash(), EventName::literal(b"epoch 2").hash());
    }

    #[test]
    fn a_long_name_is_cut_and_an_empty_one_is_none() {
        let long = EventName::new(&[b'x'; 5000]);
        assert!(long.is_cut() && long.payload().len() == HEAD_BYTES + MAX_BYTES);
        assert!(!EventName::new(b"").is_cut() && text(b"").is_empty());
        assert!(!EventName::new(&[b'7'; 5000]).is_cut());
    }
}
