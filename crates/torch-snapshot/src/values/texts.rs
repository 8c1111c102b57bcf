//! Each distinct text once.

use std::collections::HashMap;
use std::rc::Rc;

/// Longest text that is kept, in bytes; the rest of a longer one is dropped.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 16;
/// Most bytes of all texts; further ones become empty.
const MAX_ALL_BYTES: usize = 256 << 20;

/// A text of a [`TextTable`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct TextId(pub(crate) u32);

/// All texts of a snapshot.
#[derive(Debug)]
pub(crate) struct TextTable {
    ids: HashMap<Rc<str>, TextId>,
    texts: Vec<Rc<str>>,
    bytes: usize,
    /// Texts that are empty because there were too many.
    pub(crate) dropped: u64,
}

impl TextTable {
    /// A table in which the first texts have the first ids.
    pub(crate) fn with_first(first: &[&str]) -> Self {
        let mut table = Self { ids: HashMap::new(), texts: Vec::new(), bytes: 0, dropped: 0 };
        for text in first {
            table.intern(text);
        }
        table
    }

    pub(crate) fn intern(&mut self, text: &str) -> TextId {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        if let Some(known) = self.ids.get(text) {
            return *known;
        }
        if self.bytes + text.len() > MAX_ALL_BYTES {
            self.dropped += 1;
            return self.ids.get("").copied().unwrap_or(TextId(0));
        }
        // What a table entry takes besides the text.
        self.bytes += text.len() + 64;
        let (text, id) = (Rc::<str>::from(text), TextId(self.texts.len() as u32));
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    pub(crate) fn get(&self, id: TextId) -> &str {
        self.texts.get(id.0 as usize).map_or("", |text| text)
    }
}
