//! Whether the program emptied the cache because memory was short.
//!
//! A recording does not show why a program calls `empty_cache()`. A call that the program also made
//! before memory was short is no reaction to it.

use std::collections::BTreeSet;

/// Follows the calls of `empty_cache()`, and whether memory was short before them.
#[derive(Debug, Default)]
pub(crate) struct PressureWatch {
    /// When the driver first refused memory, a request failed, or the program asked how much is
    /// free.
    short_since_ns: Option<u64>,
    /// The stacks that emptied the cache before that.
    usual_stacks: BTreeSet<u32>,
    /// Calls after it, from other stacks.
    pub(crate) reactions: u64,
}

impl PressureWatch {
    /// Notes that memory was short, or that the program may know how much is free.
    pub(crate) fn note_short(&mut self, time_ns: u64) {
        self.short_since_ns.get_or_insert(time_ns);
    }

    /// Notes a call of `empty_cache()`, which may be known only after later events.
    pub(crate) fn note_empty_cache(&mut self, stack: u32, time_ns: u64) {
        if self.short_since_ns.is_none_or(|since_ns| time_ns < since_ns) {
            self.usual_stacks.insert(stack);
        } else if !self.usual_stacks.contains(&stack) {
            self.reactions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_were_made_before_are_no_reactions() {
        let mut watch = PressureWatch::default();
        watch.note_empty_cache(1, 10);
        watch.note_short(20);
        watch.note_empty_cache(2, 15);
        watch.note_empty_cache(1, 30);
        watch.note_empty_cache(2, 30);
        assert_eq!(watch.reactions, 0);
        watch.note_empty_cache(3, 30);
        assert_eq!(watch.reactions, 1);
    }
}
