//! Named marks of the program (`gpumemtrace_mark`).
//!
//! Definition: the state at a mark is the state after all events before it. `mark:NAME` selects the
//! first mark of that name and `mark:NAME#3` the third. If a mark's own name ends in `#3`, the same
//! text also selects that mark.
//!
//! The number of marks is unbounded. [`MarkLog`] keeps the first [`MAX_LISTED_MARKS`] and counts
//! the rest; [`AwaitedMark`] counts the marks of a name only if the user selected one of them.

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::{CodeId, Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext};
use crate::ingest::definitions::Definitions;

/// Limit of marks that a report lists.
pub(crate) const MAX_LISTED_MARKS: usize = 1000;

/// A mark that the program set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MarkRecord {
    /// The name given by the program; empty if the trace lacks its definition.
    pub name: String,
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
}

/// The marks of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct MarkLog {
    /// The first [`MAX_LISTED_MARKS`] marks, in order.
    pub first: Vec<MarkRecord>,
    /// Count of all marks.
    pub count: u64,
}

impl MarkLog {
    pub(crate) fn add(&mut self, mark: MarkRecord) {
        self.count += 1;
        if self.first.len() < MAX_LISTED_MARKS {
            self.first.push(mark);
        }
    }

    /// The number of marks beyond the first ones.
    pub(crate) fn unlisted(&self) -> u64 {
        self.count - self.first.len() as u64
    }
}

impl EventAnalysis for MarkLog {
    fn takes(&self, kind: EventKind) -> bool {
        kind == EventKind::MARK
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        if let Some(name) = mark_name(event, context.definitions) {
            let EventContext { time_ns, step, .. } = *context;
            self.add(MarkRecord { name: name.to_owned(), time_ns, step });
        }
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}

/// The name of a mark; `None` if the event is not a named mark.
pub(crate) fn mark_name<'a>(event: &Event, definitions: &'a Definitions) -> Option<&'a str> {
    let is_named_mark = event.kind == EventKind::MARK && event.aux[0] == MARK_NAMED;
    let code = || definitions.codes.get(&CodeId(event.aux[1] as u32));
    is_named_mark.then(|| code().map_or("", |code| code.name.as_str()))
}

/// Recognizes the mark that the user selected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AwaitedMark {
    /// `NAME` or `NAME#NUMBER`.
    selector: String,
    /// Marks of the selector's name so far, if it has a number.
    count: u64,
    is_reached: bool,
}

impl AwaitedMark {
    /// Awaits the mark that `selector` names, which does not include `mark:`.
    pub(crate) fn new(selector: &str) -> Self {
        Self { selector: selector.to_owned(), count: 0, is_reached: false }
    }

    /// Observes the next mark of the run. True if it is the awaited one, at most once.
    pub(crate) fn observe(&mut self, name: &str) -> bool {
        if self.is_reached {
            return false;
        }
        let numbered = self.selector.rsplit_once('#');
        let number =
            numbered.filter(|(base, _)| *base == name).and_then(|(_, number)| number.parse::<u64>().ok());
        self.count += u64::from(number.is_some());
        self.is_reached = self.selector == name || number == Some(self.count) && self.count > 0;
        self.is_reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching_indices(selector: &str, names: &[&str]) -> Vec<usize> {
        let mut awaited = AwaitedMark::new(selector);
        (0..names.len()).filter(|index| awaited.observe(names[*index])).collect()
    }

    #[test]
    fn selector_matches_first_mark_of_name_or_the_numbered_one() {
        let names = ["load", "epoch", "epoch 2", "epoch", "epoch", "epoch#2"];
        assert_eq!(matching_indices("epoch", &names), [1]);
        assert_eq!(matching_indices("epoch#2", &names), [3]);
        assert_eq!(matching_indices("epoch#1", &names), [1]);
        assert_eq!(matching_indices("epoch#4", &names), [0; 0]);
        assert_eq!(matching_indices("epoch#0", &names), [0; 0]);
        assert_eq!(matching_indices("epoch 2", &names), [2]);
        assert_eq!(matching_indices("epoch#2", &names[5..]), [0], "a mark named epoch#2");
        assert_eq!(matching_indices("none", &names), [0; 0]);
    }

    #[test]
    fn mark_log_counts_marks_beyond_its_limit() {
        let mut marks = MarkLog::default();
        for step in 0..MAX_LISTED_MARKS as u32 + 7 {
            marks.add(MarkRecord { name: "m".into(), time_ns: 0, step });
        }
        assert_eq!((marks.first.len(), marks.count), (MAX_LISTED_MARKS, MAX_LISTED_MARKS as u64 + 7));
    }
}
