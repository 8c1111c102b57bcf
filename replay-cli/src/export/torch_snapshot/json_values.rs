//! The JSON form of a snapshot: the same values, for programs without an unpickler.
//!
//! JSON cannot refer to an earlier value, so each event repeats its frames.

use std::io::{self, Write};

use super::value_writer::{SharedValue, ValueWriter, WriteValue};

/// Writes values as JSON without spaces.
pub(super) struct JsonWriter<'a> {
    out: &'a mut dyn Write,
    /// Per open list or dict: whether it is a dict, and whether it has items.
    open: Vec<(bool, bool)>,
}

impl<'a> JsonWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, open: Vec::new() }
    }

    fn begin_item(&mut self) -> io::Result<()> {
        let has_items = self.open.last_mut().is_some_and(|(_, has_items)| std::mem::replace(has_items, true));
        if has_items { self.out.write_all(b",") } else { Ok(()) }
    }

    fn begin_value(&mut self) -> io::Result<()> {
        if self.open.last().is_some_and(|(is_dict, _)| !is_dict) { self.begin_item() } else { Ok(()) }
    }

    fn scalar(&mut self, value: impl serde::Serialize) -> io::Result<()> {
        self.begin_value()?;
        Ok(serde_json::to_writer(&mut *self.out, &value)?)
    }
}

impl ValueWriter for JsonWriter<'_> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin_value()?;
        self.open.push((true, false));
        self.out.write_all(b"{")
    }

    fn key(&mut self, name: &'static str) -> io::Result<()> {
        self.begin_item()?;
        serde_json::to_writer(&mut *self.out, name)?;
        self.out.write_all(b":")
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.open.pop();
        self.out.write_all(b"}")
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin_value()?;
        self.open.push((false, false));
        self.out.write_all(b"[")
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.open.pop();
        self.out.write_all(b"]")
    }

    fn unsigned(&mut self, value: u64) -> io::Result<()> {
        self.scalar(value)
    }

    fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.scalar(value)
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.scalar(value)
    }

    fn text(&mut self, value: &str) -> io::Result<()> {
        self.scalar(value)
    }

    fn unique_text(&mut self, value: &str) -> io::Result<()> {
        self.scalar(value)
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.scalar((first, second))
    }

    fn shared(&mut self, _: SharedValue, write: &mut WriteValue<'_>) -> io::Result<()> {
        write(self)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")
    }
}
