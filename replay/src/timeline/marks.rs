//! Moments that the program gave names to (`gpumemtrace_mark`).
//!
//! Definition. The state at a mark is that after every event before it. `mark:NAME` is the first mark of that name, `mark:NAME#3` the
//! third; of a name that itself ends like that, the name as it stands is meant too.
//!
//! Constraint: a program may make as many as it likes. Consequence: the first [`MOST`] are kept for the timeline, the others counted;
//! which one of its name a mark is is counted only for those that somebody asked for.

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::{CodeId, Event, EventKind};

use crate::event_analysis::{EventAnalysis, EventContext};
use crate::ingest::definitions::Definitions;

/// Most marks that a report lists.
pub(crate) const MOST: usize = 1000;

/// A mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MarkRecord {
    /// As the program called it; empty where the trace does not have it.
    pub name: String,
    /// When.
    pub time_ns: u64,
    /// Steps begun.
    pub step: u32,
}

/// All of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct MarkLog {
    /// The first ones.
    pub first: Vec<MarkRecord>,
    /// How many there were.
    pub count: u64,
}

impl MarkLog {
    pub(crate) fn note(&mut self, mark: MarkRecord) {
        self.count += 1;
        if self.first.len() < MOST {
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
        if let Some(name) = name_of(event, context.definitions) {
            let EventContext { time_ns, step, .. } = *context;
            self.note(MarkRecord { name: name.to_owned(), time_ns, step });
        }
    }

    fn restart(&mut self) {
        *self = Self::default();
    }
}

/// The name of a mark; `None` if the event is none.
pub(crate) fn name_of<'a>(event: &Event, definitions: &'a Definitions) -> Option<&'a str> {
    let is_one = event.kind == EventKind::MARK && event.aux[0] == MARK_NAMED;
    let code = || definitions.codes.get(&CodeId(event.aux[1] as u32));
    is_one.then(|| code().map_or("", |code| code.name.as_str()))
}

/// Waits for a mark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AwaitedMark {
    asked: String,
    seen: u64,
    has_come: bool,
}

impl AwaitedMark {
    /// As it was asked for, without `mark:`.
    pub(crate) fn new(asked: &str) -> Self {
        Self { asked: asked.to_owned(), seen: 0, has_come: false }
    }

    /// A mark has come; true if it is this one, once.
    pub(crate) fn is_it(&mut self, name: &str) -> bool {
        if self.has_come {
            return false;
        }
        let numbered = self.asked.rsplit_once('#');
        let number =
            numbered.filter(|(base, _)| *base == name).and_then(|(_, number)| number.parse::<u64>().ok());
        self.seen += u64::from(number.is_some());
        self.has_come = self.asked == name || number == Some(self.seen) && self.seen > 0;
        self.has_come
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(asked: &str, names: &[&str]) -> Vec<usize> {
        let mut awaited = AwaitedMark::new(asked);
        (0..names.len()).filter(|at| awaited.is_it(names[*at])).collect()
    }

    #[test]
    fn a_mark_is_the_first_of_its_name_unless_a_number_says_which() {
        let names = ["load", "epoch", "epoch 2", "epoch", "epoch", "epoch#2"];
        assert_eq!(which("epoch", &names), [1]);
        assert_eq!(which("epoch#2", &names), [3]);
        assert_eq!(which("epoch#1", &names), [1]);
        assert_eq!(which("epoch#4", &names), [0; 0]);
        assert_eq!(which("epoch#0", &names), [0; 0]);
        assert_eq!(which("epoch 2", &names), [2]);
        assert_eq!(which("epoch#2", &names[5..]), [0], "that is its name");
        assert_eq!(which("none", &names), [0; 0]);
    }

    #[test]
    fn more_than_a_report_lists_are_counted() {
        let mut marks = MarkLog::default();
        for step in 0..MOST as u32 + 7 {
            marks.note(MarkRecord { name: "m".into(), time_ns: 0, step });
        }
        assert_eq!((marks.first.len(), marks.count), (MOST, MOST as u64 + 7));
    }
}
