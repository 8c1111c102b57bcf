//! The stack machine of a pickle.

use std::io::Read;

use super::bytes::PickleBytes;
use super::memo::PickleMemo;
use super::opcode as op;
use crate::error::SnapshotError;
use crate::values::{ContainerBody, SnapshotBuilder, TextId, Value};

/// Most values on the stack.
const MAX_STACK: usize = 1 << 24;
/// Most open lists and dictionaries.
const MAX_MARKS: usize = 1 << 16;
/// Longest integer of LONG1 and LONG4 that is a number.
const MAX_INTEGER_BYTES: usize = 9;

/// Runs the opcodes of one pickle.
pub(super) struct PickleMachine<'a> {
    pub(super) bytes: PickleBytes<'a>,
    pub(super) builder: &'a mut SnapshotBuilder,
    pub(super) stack: Vec<Value>,
    /// Lengths of the stack at open marks.
    marks: Vec<usize>,
    pub(super) memo: PickleMemo,
    /// Of the dictionary that is being filled; kept for the next one's memory.
    pub(super) pairs: Vec<(TextId, Value)>,
}

impl<'a> PickleMachine<'a> {
    pub(super) fn new(bytes: &'a mut dyn Read, builder: &'a mut SnapshotBuilder) -> Self {
        Self {
            bytes: PickleBytes::new(bytes),
            builder,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: PickleMemo::default(),
            pairs: Vec::new(),
        }
    }

    /// Forgets the pickle that was read, so that another one can follow.
    pub(super) fn forget(&mut self) {
        self.stack.clear();
        self.marks.clear();
        self.memo = PickleMemo::default();
    }

    /// Runs to STOP and returns the value.
    pub(super) fn run(&mut self) -> Result<Value, SnapshotError> {
        loop {
            let opcode = self.bytes.byte()?;
            match opcode {
                op::BINGET => {
                    let at = u32::from(self.bytes.byte()?);
                    self.get(at)?;
                }
                op::LONG_BINGET => {
                    let at = u32::from_le_bytes(self.bytes.array()?);
                    self.get(at)?;
                }
                op::MEMOIZE => {
                    let at = self.memo.next();
                    self.put(at)?;
                }
                op::BINPUT => {
                    let at = u32::from(self.bytes.byte()?);
                    self.put(at)?;
                }
                op::LONG_BINPUT => {
                    let at = u32::from_le_bytes(self.bytes.array()?);
                    self.put(at)?;
                }
                op::MARK => {
                    if self.marks.len() == MAX_MARKS {
                        return Err(self.bytes.damaged("its lists are nested too deeply"));
                    }
                    self.marks.push(self.stack.len());
                }
                op::BININT1 => {
                    let number = i64::from(self.bytes.byte()?);
                    self.push(Value::Int(number))?;
                }
                op::BININT2 => {
                    let number = u16::from_le_bytes(self.bytes.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::BININT => {
                    let number = i32::from_le_bytes(self.bytes.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::LONG1 => {
                    let len = u64::from(self.bytes.byte()?);
                    self.push_integer(len)?;
                }
                op::EMPTY_DICT => self.push_container(ContainerBody::Dict(Vec::new()))?,
                op::EMPTY_LIST => self.push_container(ContainerBody::List(Vec::new()))?,
                op::SETITEMS => self.set_items()?,
                op::APPENDS => self.append_items()?,
                op::STOP => {
                    let Some(value) = self.stack.pop() else { return Err(self.bytes.damaged("it is empty")) };
                    return Ok(self.complete(value));
                }
                opcode => self.run_rare(opcode)?,
            }
        }
    }

    #[inline(never)]
    fn run_rare(&mut self, opcode: u8) -> Result<(), SnapshotError> {
        match opcode {
            op::PROTO => {
                if !(2..=5).contains(&self.bytes.byte()?) {
                    return Err(self.bytes.damaged("it has a protocol other than 2 to 5"));
                }
                Ok(())
            }
            op::FRAME => self.bytes.array::<8>().map(drop),
            op::NONE => self.push(Value::Nothing),
            op::NEWTRUE => self.push(Value::Bool(true)),
            op::NEWFALSE => self.push(Value::Bool(false)),
            op::LONG4 => {
                let len = u64::from(u32::from_le_bytes(self.bytes.array()?));
                self.push_integer(len)
            }
            op::INT | op::LONG => {
                let value = parse_integer(self.bytes.line()?);
                self.push(value)
            }
            op::FLOAT => {
                let text = std::str::from_utf8(self.bytes.line()?).ok();
                let value = text.and_then(|text| text.parse().ok()).map_or(Value::Nothing, Value::Float);
                self.push(value)
            }
            op::BINFLOAT => {
                let value = f64::from_be_bytes(self.bytes.array()?);
                self.push(Value::Float(value))
            }
            op::SHORT_BINUNICODE | op::SHORT_BINSTRING | op::SHORT_BINBYTES => {
                let len = u64::from(self.bytes.byte()?);
                self.push_text(len)
            }
            op::BINUNICODE | op::BINSTRING | op::BINBYTES => {
                let len = u64::from(u32::from_le_bytes(self.bytes.array()?));
                self.push_text(len)
            }
            op::BINUNICODE8 | op::BINBYTES8 | op::BYTEARRAY8 => {
                let len = u64::from_le_bytes(self.bytes.array()?);
                self.push_text(len)
            }
            op::UNICODE | op::STRING => {
                let text = String::from_utf8_lossy(self.bytes.line()?);
                let value = self.builder.text(text.trim_matches(['\'', '"']));
                self.push(value)
            }
            op::EMPTY_TUPLE => self.push(Value::Empty),
            op::EMPTY_SET => self.push_container(ContainerBody::List(Vec::new())),
            op::ADDITEMS => self.append_items(),
            op::TUPLE | op::LIST | op::FROZENSET => {
                let from = self.pop_mark()?;
                self.make_list(from)
            }
            op::TUPLE1 => self.make_tuple(1),
            op::TUPLE2 => self.make_tuple(2),
            op::TUPLE3 => self.make_tuple(3),
            op::DICT => {
                let from = self.pop_mark()?;
                self.make_dict(from)
            }
            op::APPEND => {
                let from = self.stack.len().checked_sub(1);
                let from = from.ok_or_else(|| self.bytes.damaged("a value is missing"))?;
                self.append_from(from)
            }
            op::SETITEM => {
                let from = self.stack.len().checked_sub(2);
                let from = from.ok_or_else(|| self.bytes.damaged("a value is missing"))?;
                self.set_from(from)
            }
            op::PUT | op::GET => {
                let at = parse_integer(self.bytes.line()?).as_number().and_then(|at| u32::try_from(at).ok());
                let Some(at) = at else { return Err(self.bytes.damaged("a memo number is too large")) };
                if opcode == op::PUT { self.put(at) } else { self.get(at) }
            }
            op::POP => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else if self.stack.pop().is_none() {
                    return Err(self.bytes.damaged("a value is missing"));
                }
                Ok(())
            }
            op::POP_MARK => {
                let from = self.pop_mark()?;
                self.stack.truncate(from);
                Ok(())
            }
            op::DUP => {
                let Some(value) = self.stack.last().copied() else {
                    return Err(self.bytes.damaged("a value is missing"));
                };
                self.share(value);
                self.push(value)
            }
            opcode => match op::REFUSED.iter().find(|(code, _)| *code == opcode) {
                Some((_, name)) => {
                    Err(SnapshotError::Code { opcode: name, offset: self.bytes.offset().saturating_sub(1) })
                }
                None => Err(self.bytes.damaged("it has an unknown opcode")),
            },
        }
    }

    #[inline]
    pub(super) fn push(&mut self, value: Value) -> Result<(), SnapshotError> {
        if self.stack.len() == MAX_STACK {
            return Err(SnapshotError::TooLarge { what: "values in one list", limit: MAX_STACK as u64 });
        }
        self.stack.push(value);
        Ok(())
    }

    fn push_container(&mut self, body: ContainerBody) -> Result<(), SnapshotError> {
        let id = self.builder.containers.add(body)?;
        self.push(Value::Container(id))
    }

    /// Pushes a little-endian integer of `len` bytes.
    fn push_integer(&mut self, len: u64) -> Result<(), SnapshotError> {
        let bytes = self.bytes.text(len)?;
        let value = if bytes.len() as u64 == len && bytes.len() <= MAX_INTEGER_BYTES {
            let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
            let mut wide = [sign; 16];
            wide[..bytes.len()].copy_from_slice(bytes);
            number(i128::from_le_bytes(wide))
        } else {
            Value::Nothing
        };
        self.push(value)
    }

    fn push_text(&mut self, len: u64) -> Result<(), SnapshotError> {
        let bytes = self.bytes.text(len)?;
        let value = match std::str::from_utf8(bytes) {
            Ok(text) => self.builder.text(text),
            Err(_) => self.builder.text(&String::from_utf8_lossy(bytes)),
        };
        self.push(value)
    }

    #[inline]
    fn get(&mut self, at: u32) -> Result<(), SnapshotError> {
        let Some(value) = self.memo.get(at) else {
            return Err(self.bytes.damaged("it refers to a value that it does not have"));
        };
        self.share(value);
        self.push(value)
    }

    #[inline]
    fn share(&mut self, value: Value) {
        if let Value::Container(id) = value {
            self.builder.containers.share(id);
        }
    }

    #[inline]
    fn put(&mut self, at: u32) -> Result<(), SnapshotError> {
        let Some(value) = self.stack.last().copied() else {
            return Err(self.bytes.damaged("a value is missing"));
        };
        if let Value::Container(id) = value {
            self.builder.containers.set_memo(id, at);
        }
        self.memo.set(at, value, self.bytes.offset())
    }

    #[inline]
    pub(super) fn pop_mark(&mut self) -> Result<usize, SnapshotError> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(mark),
            _ => Err(self.bytes.damaged("a list has no begin")),
        }
    }
}

/// A decimal integer as text, as INT and LONG have it. INT 00 and 01 are booleans.
fn parse_integer(line: &[u8]) -> Value {
    let text = std::str::from_utf8(line).unwrap_or("").trim_end_matches('L');
    match text {
        "00" => Value::Bool(false),
        "01" => Value::Bool(true),
        text => text.parse().map_or(Value::Nothing, number),
    }
}

fn number(value: i128) -> Value {
    match (i64::try_from(value), u64::try_from(value)) {
        (Ok(number), _) => Value::Int(number),
        (_, Ok(number)) => Value::Large(number),
        _ => Value::Nothing,
    }
}
