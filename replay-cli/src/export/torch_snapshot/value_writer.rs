//! What the two forms of a snapshot have in common: nested values, written in order.

use std::io;

/// Receives the values of a snapshot. Lists and dicts are written as they come, without a tree.
///
/// In a dict, each value follows a call of [`Self::key`].
pub(super) trait ValueWriter {
    fn begin_dict(&mut self) -> io::Result<()>;
    fn key(&mut self, name: &'static str) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    fn unsigned(&mut self, value: u64) -> io::Result<()>;
    fn boolean(&mut self, value: bool) -> io::Result<()>;
    fn float(&mut self, value: f64) -> io::Result<()>;
    /// A text that is likely to occur again.
    fn text(&mut self, value: &str) -> io::Result<()>;
    /// A text that is unlikely to occur again.
    fn unique_text(&mut self, value: &str) -> io::Result<()>;
    /// Two numbers: a tuple where the form has tuples.
    fn pair(&mut self, first: u64, second: u64) -> io::Result<()>;
    /// A value that may occur again under the same name. `write` writes it; a form that can refer
    /// to earlier values calls it only the first time.
    fn shared(&mut self, name: SharedValue, write: &mut WriteValue<'_>) -> io::Result<()>;
    /// Completes the file after the outermost value.
    fn finish(&mut self) -> io::Result<()>;
}

/// A function that writes one value.
pub(super) type WriteValue<'a> = dyn FnMut(&mut dyn ValueWriter) -> io::Result<()> + 'a;

/// Identifies a value that occurs many times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum SharedValue {
    /// The list of frames of a stack.
    Stack(u32),
    /// A frame, by its number among all frames.
    Frame(u32),
    /// The id of a pool, with both halves in one number.
    Pool(u64),
}
