//! Function names of native addresses, resolved where the libraries are installed, so that the
//! trace can be read on another machine.
//!
//! A name belongs to a build id and an address in the file, never to a path: another build of the
//! same library has other addresses. One name may stand at a million addresses, in a hostile file
//! too, so texts are stored once and shared in memory: decoding takes a small multiple of the
//! payload.

use std::collections::HashMap;
use std::sync::Arc;

use super::MAX_TEXT_BYTES;
use crate::wire::{Cursor, WireError, put_bytes, put_delta, put_varint};

/// A function at an address.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct NamedFrame {
    /// Demangled name; empty if unknown.
    pub function: Arc<str>,
    /// Source file; empty if unknown.
    pub file: Arc<str>,
    /// Line in `file`; 0 if unknown. Of an inlined function, its own line.
    pub line: u32,
}

/// The frames at one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressNames {
    /// Address of the call in the module's file: return address minus 1 minus load bias.
    pub address: u64,
    /// Innermost first: inlined functions, then the one in the symbol table.
    pub frames: Vec<NamedFrame>,
}

/// The named addresses of one module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleNames {
    /// Identifies the build of the module.
    pub build_id: Vec<u8>,
    /// In any order; each address once.
    pub addresses: Vec<AddressNames>,
}

/// Encodes a NAMES payload: `count, text*`, then `count, (build_id, count, (address delta, count,
/// (function, file, line)*)*)*`. Functions and files are indexes into the texts, from 1; 0 is
/// unknown.
pub fn encode_names(modules: &[ModuleNames]) -> Vec<u8> {
    let mut texts: Vec<&str> = Vec::new();
    let mut indexes: HashMap<&str, u64> = HashMap::new();
    let frames = modules.iter().flat_map(|module| &module.addresses).flat_map(|address| &address.frames);
    for text in frames.flat_map(|frame| [&*frame.function, &*frame.file]).filter(|text| !text.is_empty()) {
        indexes.entry(text).or_insert_with(|| {
            texts.push(text);
            texts.len() as u64
        });
    }
    let mut out = Vec::new();
    put_varint(&mut out, texts.len() as u64);
    for text in texts {
        put_bytes(&mut out, text.as_bytes());
    }
    put_varint(&mut out, modules.len() as u64);
    let index = |text: &str| indexes.get(text).copied().unwrap_or(0);
    for module in modules {
        put_bytes(&mut out, &module.build_id);
        put_varint(&mut out, module.addresses.len() as u64);
        let mut previous = 0;
        for names in &module.addresses {
            put_delta(&mut out, previous, names.address);
            previous = names.address;
            put_varint(&mut out, names.frames.len() as u64);
            for frame in &names.frames {
                put_varint(&mut out, index(&frame.function));
                put_varint(&mut out, index(&frame.file));
                put_varint(&mut out, u64::from(frame.line));
            }
        }
    }
    out
}

/// Decodes what [`encode_names`] encodes.
#[doc(hidden)]
pub fn decode_names(payload: &[u8]) -> Result<Vec<ModuleNames>, WireError> {
    let mut cursor = Cursor::new(payload);
    let mut texts: Vec<Arc<str>> = vec![Arc::from("")];
    for _ in 0..cursor.count(1)? {
        let text = cursor.text()?;
        if text.len() > MAX_TEXT_BYTES {
            return Err(WireError::Limit);
        }
        texts.push(Arc::from(text));
    }
    let text = |cursor: &mut Cursor<'_>| -> Result<Arc<str>, WireError> {
        texts.get(cursor.varint_u32()? as usize).cloned().ok_or(WireError::Range)
    };
    let mut modules = Vec::new();
    for _ in 0..cursor.count(2)? {
        let build_id = cursor.bytes()?.to_vec();
        let mut addresses = Vec::new();
        let mut address = 0;
        for _ in 0..cursor.count(2)? {
            address = cursor.delta(address)?;
            let mut frames = Vec::new();
            for _ in 0..cursor.count(3)? {
                frames.push(NamedFrame {
                    function: text(&mut cursor)?,
                    file: text(&mut cursor)?,
                    line: cursor.varint_u32()?,
                });
            }
            addresses.push(AddressNames { address, frames });
        }
        modules.push(ModuleNames { build_id, addresses });
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = NamedFrame> {
        ("[a-c]{0,2}", "[a-c]{0,2}", any::<u32>()).prop_map(|(function, file, line)| NamedFrame {
            function: function.into(),
            file: file.into(),
            line,
        })
    }

    fn module() -> impl Strategy<Value = ModuleNames> {
        let names =
            (any::<u64>(), vec(frame(), 0..4)).prop_map(|(address, frames)| AddressNames { address, frames });
        (vec(any::<u8>(), 0..24), vec(names, 0..8))
            .prop_map(|(build_id, addresses)| ModuleNames { build_id, addresses })
    }

    proptest! {
        #[test]
        fn names_round_trip(modules in vec(module(), 0..4)) {
            prop_assert_eq!(decode_names(&encode_names(&modules)), Ok(modules));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = decode_names(&bytes);
        }

        #[test]
        fn truncated_or_changed_payload_does_not_panic(
            modules in vec(module(), 1..4), at: prop::sample::Index, value: u8,
        ) {
            let mut bytes = encode_names(&modules);
            let at = at.index(bytes.len());
            prop_assert!(decode_names(&bytes[..at]).is_err());
            bytes[at] = value;
            let _ = decode_names(&bytes);
        }
    }

    #[test]
    fn repeated_name_is_stored_once() {
        let name: Arc<str> = "f".repeat(1000).into();
        let frame = NamedFrame { function: name, file: Arc::from(""), line: 1 };
        let addresses = (0..1000).map(|address| AddressNames { address, frames: vec![frame.clone()] });
        let modules = vec![ModuleNames { build_id: vec![1; 20], addresses: addresses.collect() }];
        let bytes = encode_names(&modules);
        assert!(bytes.len() < 10_000, "{}", bytes.len());
        let read = decode_names(&bytes).unwrap();
        assert!(Arc::ptr_eq(
            &read[0].addresses[0].frames[0].function,
            &read[0].addresses[999].frames[0].function
        ));
    }
}
