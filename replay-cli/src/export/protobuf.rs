//! A writer of the protocol buffers wire format, for formats with a small fixed schema.
//!
//! Fields are written in the order of the calls. Nothing is left out: a field with its default
//! value is written if it is given, so that readers with explicit presence see it.
//! Format: <https://protobuf.dev/programming-guides/encoding/>.

use gpumemtrace_format::put_varint;

/// A message that is being encoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

/// How the payload of a field is encoded: the low three bits of its key.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Fixed64 = 1,
    LengthDelimited = 2,
}

impl Message {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The encoded fields, without the length that precedes a nested message.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all fields and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends the fields of another message to this one.
    pub(crate) fn append(&mut self, other: &Self) -> &mut Self {
        self.bytes.extend_from_slice(&other.bytes);
        self
    }

    /// A field of type `uint32`, `uint64`, `bool` or of an enum.
    pub(crate) fn uint(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, WireType::Varint);
        put_varint(&mut self.bytes, value);
        self
    }

    /// A field of type `int32` or `int64`. Types with `sint` encode differently.
    pub(crate) fn int(&mut self, field: u32, value: i64) -> &mut Self {
        self.uint(field, value as u64)
    }

    /// A field of type `fixed64`.
    pub(crate) fn fixed64(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, WireType::Fixed64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A field of type `double`.
    pub(crate) fn double(&mut self, field: u32, value: f64) -> &mut Self {
        self.fixed64(field, value.to_bits())
    }

    /// A field of type `bytes`.
    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.key(field, WireType::LengthDelimited);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    /// A field of type `string`.
    pub(crate) fn str(&mut self, field: u32, value: &str) -> &mut Self {
        self.bytes(field, value.as_bytes())
    }

    /// A nested message, with its length.
    pub(crate) fn message(&mut self, field: u32, value: &Message) -> &mut Self {
        self.bytes(field, &value.bytes)
    }

    /// A repeated field of integers, packed. Writes nothing without values.
    pub(crate) fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let mut packed = Vec::new();
        for value in values {
            put_varint(&mut packed, value);
        }
        if !packed.is_empty() {
            self.bytes(field, &packed);
        }
        self
    }

    fn key(&mut self, field: u32, wire_type: WireType) {
        put_varint(&mut self.bytes, u64::from(field) << 3 | wire_type as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(write: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::new();
        write(&mut message);
        message.as_bytes().to_vec()
    }

    /// The examples of the specification.
    #[test]
    fn fields_have_the_bytes_of_the_specification() {
        assert_eq!(encoded(|m| _ = m.uint(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(encoded(|m| _ = m.str(2, "testing")), b"\x12\x07testing");
        let mut nested = Message::new();
        nested.uint(1, 150);
        assert_eq!(encoded(|m| _ = m.message(3, &nested)), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(encoded(|m| _ = m.packed(6, [3, 270, 86_942])), b"\x32\x06\x03\x8e\x02\x9e\xa7\x05");
    }

    #[test]
    fn extreme_values_are_encoded_in_full() {
        let most = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(encoded(|m| _ = m.uint(1, u64::MAX)), most);
        assert_eq!(encoded(|m| _ = m.int(1, -1)), most);
        assert_eq!(encoded(|m| _ = m.uint(1, 0)), [0x08, 0x00]);
        assert_eq!(encoded(|m| _ = m.double(1, 1.0)), [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(encoded(|m| _ = m.uint((1 << 29) - 1, 1)), [0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01]);
        assert!(encoded(|m| _ = m.packed(6, [])).is_empty());
    }

    #[test]
    fn cleared_message_is_empty() {
        let mut message = Message::new();
        message.uint(1, 1).clear();
        assert!(message.as_bytes().is_empty());
    }
}
