//! A stack for tests: a map of words.

use std::collections::HashMap;

use crate::platform::process_memory::Memory;

/// Words by address. All other addresses cannot be read.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeWords {
    pub(super) words: HashMap<usize, usize>,
    otherwise: Option<usize>,
}

impl FakeWords {
    /// Memory with the same word at every address.
    pub(super) fn all(word: usize) -> Self {
        Self { words: HashMap::new(), otherwise: Some(word) }
    }
}

impl<const N: usize> From<[(usize, usize); N]> for FakeWords {
    fn from(words: [(usize, usize); N]) -> Self {
        Self { words: words.into(), otherwise: None }
    }
}

impl Memory for FakeWords {
    fn read(&self, at: usize, out: &mut [u8]) -> Option<()> {
        let word = self.words.get(&at).copied().or(self.otherwise)?;
        out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
        Some(())
    }
}
