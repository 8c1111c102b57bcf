//! Parses the two entitlements that decide about injection, from both encodings in a signature.
//!
//! A property list and its DER form may hold anything. Only the outermost dictionary counts, and an
//! entitlement is set only if the value `true` follows its key.

use quick_xml::Reader;
use quick_xml::events::Event;

/// Makes dyld honour its environment variables under the hardened runtime.
pub const ALLOW_VARIABLES: &str = "com.apple.security.cs.allow-dyld-environment-variables";
/// Allows libraries of other teams under the hardened runtime.
pub const ALLOW_LIBRARIES: &str = "com.apple.security.cs.disable-library-validation";

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const TEXT: u8 = 0x0c;
const SEQUENCE: u8 = 0x30;
/// The tag around the whole value, `[APPLICATION 16]`.
const OUTERMOST: u8 = 0x70;
/// The tag around the entries of a dictionary, `[16]`.
const DICTIONARY: u8 = 0xb0;

/// The entitlements of a program, as far as they matter here.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Entitlements {
    /// The signature has [`ALLOW_VARIABLES`].
    pub allows_variables: bool,
    /// The signature has [`ALLOW_LIBRARIES`].
    pub allows_foreign_libraries: bool,
}

impl Entitlements {
    fn give(&mut self, key: &[u8]) {
        self.allows_variables |= key == ALLOW_VARIABLES.as_bytes();
        self.allows_foreign_libraries |= key == ALLOW_LIBRARIES.as_bytes();
    }
}

/// Parses an XML property list. Damaged input yields what was read so far.
pub fn parse_plist(text: &[u8]) -> Entitlements {
    let mut given = Entitlements::default();
    let Ok(text) = std::str::from_utf8(text) else { return given };
    let mut reader = Reader::from_str(text);
    reader.config_mut().expand_empty_elements = true;
    // Depth 1 is `plist`, depth 2 `dict`, depth 3 its entries. `key` is the last key at depth 3.
    let (mut depth, mut key, mut is_key) = (0u32, String::new(), false);
    loop {
        match reader.read_event() {
            Ok(Event::Start(element)) => {
                depth += 1;
                is_key = depth == 3 && element.name().as_ref() == "key";
                if depth == 3 {
                    if element.name().as_ref() == "true" {
                        given.give(key.trim().as_bytes());
                    }
                    key.clear();
                }
            }
            Ok(Event::Text(text)) if is_key => key.push_str(&text),
            Ok(Event::End(_)) => (depth, is_key) = (depth.saturating_sub(1), false),
            Ok(Event::Eof) | Err(_) => return given,
            Ok(_) => {}
        }
    }
}

/// Parses DER: `[APPLICATION 16] { version INTEGER, [16] { SEQUENCE { key UTF8String, value }* }
/// }`.
pub fn parse_der(bytes: &[u8]) -> Entitlements {
    let mut given = Entitlements::default();
    let mut inner = value(bytes, OUTERMOST).map_or(&[][..], |(inner, _)| inner);
    if let Some((_, rest)) = value(inner, INTEGER) {
        inner = rest;
    }
    let mut entries = value(inner, DICTIONARY).map_or(&[][..], |(entries, _)| entries);
    while let Some((entry, rest)) = value(entries, SEQUENCE) {
        entries = rest;
        let Some((key, rest)) = value(entry, TEXT) else { continue };
        if value(rest, BOOLEAN).is_some_and(|(value, _)| !matches!(value, [] | [0])) {
            given.give(key);
        }
    }
    given
}

/// The contents of the value at the start, if it has this tag, and the bytes behind it.
fn value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (len, rest) = rest.split_first()?;
    let (len, rest) = match len {
        0..=0x7f => (usize::from(*len), rest),
        // A length of 1 to 4 bytes. DER has no indefinite length (0x80).
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(len & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    (*first == tag).then(|| rest.split_at_checked(len)).flatten()
}
