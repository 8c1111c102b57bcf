//! The name of a range, a phase or a mark.
//!
//! A name arrives inside a hook, may have any length, and often counts up ("step 17"). So it is
//! copied into a fixed buffer, truncated if necessary, and each number in it becomes `#`: a loop
//! then has one name, not one for each iteration. A mark keeps its digits, because users select
//! marks by name and programs make few of them.

/// Longest name that is stored, in bytes.
const MAX_NAME_BYTES: usize = 200;
/// Lengths of file, name and line table. A name is stored as a code definition that has only a
/// name.
const HEAD_BYTES: usize = 12;

#[derive(Clone, Copy, Debug)]
pub(crate) struct EventName {
    payload: [u8; HEAD_BYTES + MAX_NAME_BYTES],
    len: usize,
    is_truncated: bool,
}

impl EventName {
    pub(crate) const EMPTY: Self =
        Self { payload: [0; HEAD_BYTES + MAX_NAME_BYTES], len: 0, is_truncated: false };

    /// Copies a name and replaces each number in it by `#`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self::copy(bytes, true)
    }

    /// Copies a name unchanged.
    pub(crate) fn literal(bytes: &[u8]) -> Self {
        Self::copy(bytes, false)
    }

    fn copy(bytes: &[u8], folds_numbers: bool) -> Self {
        let mut name = Self::EMPTY;
        let mut in_number = false;
        for byte in bytes {
            let is_digit = folds_numbers && byte.is_ascii_digit();
            if is_digit && in_number {
                continue;
            }
            in_number = is_digit;
            let Some(place) = name.payload.get_mut(HEAD_BYTES + name.len) else {
                name.is_truncated = true;
                break;
            };
            *place = if is_digit { b'#' } else { *byte };
            name.len += 1;
        }
        name.payload[4..8].copy_from_slice(&(name.len as u32).to_le_bytes());
        name
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &[u8] {
        &self.payload[HEAD_BYTES..HEAD_BYTES + self.len]
    }

    /// The name in the form of a code definition.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..HEAD_BYTES + self.len]
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The FNV-1a hash of the name.
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
    fn numbers_in_a_name_become_one_placeholder() {
        assert_eq!(text(b"step 17"), "step #");
        assert_eq!(text(b"12_batch_9999999999"), "#_batch_#");
        assert_eq!(EventName::new(b"step 1").hash(), EventName::new(b"step 22").hash());
        assert_ne!(EventName::new(b"step").hash(), EventName::new(b"steps").hash());
    }

    #[test]
    fn literal_name_keeps_its_digits() {
        assert_eq!(EventName::literal(b"epoch 12").text(), b"epoch 12");
        assert_ne!(EventName::literal(b"epoch 1").hash(), EventName::literal(b"epoch 2").hash());
    }

    #[test]
    fn long_name_is_truncated_and_empty_name_stays_empty() {
        let long = EventName::new(&[b'x'; 5000]);
        assert!(long.is_truncated() && long.payload().len() == HEAD_BYTES + MAX_NAME_BYTES);
        assert!(!EventName::new(b"").is_truncated() && text(b"").is_empty());
        assert!(!EventName::new(&[b'7'; 5000]).is_truncated());
    }
}
