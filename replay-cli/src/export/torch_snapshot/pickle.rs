//! A streaming writer of Python's pickle protocol 4.
//!
//! The page `memory_viz` has an unpickler of its own, which knows some opcodes only. So there are
//! no frames, no `BINUNICODE8` and no `LONG4`. It also passes the items of one `APPENDS` as
//! arguments of a call, so that a batch has at most [`BATCH`] items, as in CPython. Each text,
//! frame and stack is written once and then referred to by its number in the memo.

use std::collections::HashMap;
use std::io::{self, Write};

use super::value_writer::{SharedValue, ValueWriter, WriteValue};

/// Items of a list or dict that are added at once.
const BATCH: u32 = 1000;

const PROTO: [u8; 2] = [0x80, 4];
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const EMPTY_DICT: u8 = b'}';
const SETITEMS: u8 = b'u';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const BINFLOAT: u8 = b'G';
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// A list or dict that is not complete.
#[derive(Clone, Copy)]
struct OpenContainer {
    is_dict: bool,
    /// Items since the last batch.
    items: u32,
}

/// Writes values as a pickle. Memory grows with the distinct texts, frames and stacks.
pub(super) struct PickleWriter<'a> {
    out: &'a mut dyn Write,
    open: Vec<OpenContainer>,
    texts: HashMap<Box<str>, u32>,
    shared: HashMap<SharedValue, u32>,
    memo_len: u32,
}

impl<'a> PickleWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> io::Result<Self> {
        out.write_all(&PROTO)?;
        Ok(Self { out, open: Vec::new(), texts: HashMap::new(), shared: HashMap::new(), memo_len: 0 })
    }

    /// Begins an item of the innermost list, or a key of the innermost dict.
    fn begin_item(&mut self) -> io::Result<()> {
        let Some(container) = self.open.last_mut() else { return Ok(()) };
        if container.items == BATCH {
            container.items = 0;
            self.out.write_all(&[if container.is_dict { SETITEMS } else { APPENDS }])?;
        }
        container.items += 1;
        if container.items == 1 {
            self.out.write_all(&[MARK])?;
        }
        Ok(())
    }

    /// Begins a value: an item of a list, or the value of a key.
    fn begin_value(&mut self) -> io::Result<()> {
        if self.open.last().is_some_and(|container| !container.is_dict) { self.begin_item() } else { Ok(()) }
    }

    fn begin_container(&mut self, opcode: u8) -> io::Result<()> {
        self.begin_value()?;
        self.open.push(OpenContainer { is_dict: opcode == EMPTY_DICT, items: 0 });
        self.out.write_all(&[opcode])
    }

    fn end_container(&mut self) -> io::Result<()> {
        match self.open.pop() {
            Some(OpenContainer { items: 1.., is_dict }) => {
                self.out.write_all(&[if is_dict { SETITEMS } else { APPENDS }])
            }
            _ => Ok(()),
        }
    }

    /// Memoizes the value on top of the stack; returns its number.
    fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[MEMOIZE])?;
        let number = self.memo_len;
        self.memo_len = number.checked_add(1).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(number)
    }

    fn refer_to(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.out.write_all(&[BINGET, number]),
            Err(_) => self.opcode_with(LONG_BINGET, &number.to_le_bytes()),
        }
    }

    fn opcode_with(&mut self, opcode: u8, argument: &[u8]) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(argument)
    }

    fn raw_text(&mut self, value: &str) -> io::Result<()> {
        let bytes = value.as_bytes();
        match (u8::try_from(bytes.len()), u32::try_from(bytes.len())) {
            (Ok(len), _) => self.opcode_with(SHORT_BINUNICODE, &[len])?,
            (_, Ok(len)) => self.opcode_with(BINUNICODE, &len.to_le_bytes())?,
            _ => return Err(io::ErrorKind::FileTooLarge.into()),
        }
        self.out.write_all(bytes)
    }

    fn memoized_text(&mut self, value: &str) -> io::Result<()> {
        if let Some(number) = self.texts.get(value) {
            return self.refer_to(*number);
        }
        self.raw_text(value)?;
        let number = self.memoize()?;
        self.texts.insert(value.into(), number);
        Ok(())
    }

    fn raw_unsigned(&mut self, value: u64) -> io::Result<()> {
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.opcode_with(BININT1, &bytes[..1]),
            0x100..=0xffff => self.opcode_with(BININT2, &bytes[..2]),
            0x1_0000..=0x7fff_ffff => self.opcode_with(BININT, &bytes[..4]),
            _ => {
                // Two's complement: the highest bit of the last byte is clear.
                let len = (u64::BITS - value.leading_zeros()) as usize / 8 + 1;
                let mut long = [0; 9];
                long[..8].copy_from_slice(&bytes);
                self.opcode_with(LONG1, &[len as u8])?;
                self.out.write_all(&long[..len])
            }
        }
    }
}

impl ValueWriter for PickleWriter<'_> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin_container(EMPTY_DICT)
    }

    fn key(&mut self, name: &'static str) -> io::Result<()> {
        self.begin_item()?;
        self.memoized_text(name)
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end_container()
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin_container(EMPTY_LIST)
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end_container()
    }

    fn unsigned(&mut self, value: u64) -> io::Result<()> {
        self.begin_value()?;
        self.raw_unsigned(value)
    }

    fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.begin_value()?;
        self.out.write_all(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.begin_value()?;
        self.opcode_with(BINFLOAT, &value.to_be_bytes())
    }

    fn text(&mut self, value: &str) -> io::Result<()> {
        self.begin_value()?;
        self.memoized_text(value)
    }

    fn unique_text(&mut self, value: &str) -> io::Result<()> {
        self.begin_value()?;
        self.raw_text(value)
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.begin_value()?;
        self.raw_unsigned(first)?;
        self.raw_unsigned(second)?;
        self.out.write_all(&[TUPLE2])
    }

    fn shared(&mut self, name: SharedValue, write: &mut WriteValue<'_>) -> io::Result<()> {
        if let Some(number) = self.shared.get(&name).copied() {
            self.begin_value()?;
            return self.refer_to(number);
        }
        write(self)?;
        let number = self.memoize()?;
        self.shared.insert(name, number);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(&[STOP])
    }
}

#[cfg(test)]
#[path = "pickle_tests.rs"]
mod tests;
