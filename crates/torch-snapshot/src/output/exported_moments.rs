//! Phases, steps and marks in a snapshot that `gpumemtrace export torch-snapshot` wrote.
//!
//! PyTorch has no entries for them, so the export writes each as a `user_defined` entry with a
//! text. They are read in the order of the entries. Phases of one name end each other, so each
//! name has a thread of its own.

use gpumemtrace_format::event::{MARK_NAMED, MARK_STEP};
use gpumemtrace_format::{CodeId, Event, EventKind, NodeId, ThreadId};

use super::stack_tree::StackTree;

/// Phases are on threads of this number and above.
const FIRST_PHASE_THREAD: u32 = 2000;

/// The event of a trace for the text of an entry; `None` for other texts.
pub(super) fn event_of_moment(text: &str, tree: &mut StackTree) -> Option<Event> {
    if let Some(step) = text.strip_prefix("step ").and_then(|rest| rest.strip_suffix(" begins")) {
        let is_number = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
        return is_number.then(|| Event { aux: [MARK_STEP, 0], ..Event::new(EventKind::MARK) });
    }
    if let Some(name) = text.strip_prefix("mark ") {
        let CodeId(name) = tree.name(name);
        return Some(Event { aux: [MARK_NAMED, u64::from(name)], ..Event::new(EventKind::MARK) });
    }
    let phase = text.strip_prefix("phase ")?;
    let (name, kind) = match (phase.strip_suffix(" begins"), phase.strip_suffix(" ends")) {
        (Some(name), _) => (name, EventKind::PHASE_BEGIN),
        (_, Some(name)) => (name, EventKind::PHASE_END),
        (None, None) => return None,
    };
    let CodeId(name) = tree.name(name);
    let aux = if kind == EventKind::PHASE_BEGIN { [u64::from(name), 0] } else { [0; 2] };
    let thread = ThreadId(FIRST_PHASE_THREAD.saturating_add(name));
    Some(Event { thread, aux, python_stack: NodeId::NONE, ..Event::new(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_export_become_events_and_others_do_not() {
        let mut tree = StackTree::new();
        let mut kind = |text| event_of_moment(text, &mut tree).map(|event| (event.kind, event.aux));
        assert_eq!(kind("phase a begins begins"), Some((EventKind::PHASE_BEGIN, [1, 0])));
        assert_eq!(kind("phase a begins ends"), Some((EventKind::PHASE_END, [0, 0])));
        assert_eq!(kind("mark x"), Some((EventKind::MARK, [MARK_NAMED, 2])));
        assert_eq!(kind("step 12 begins"), Some((EventKind::MARK, [MARK_STEP, 0])));
        for text in ["", "step", "step x begins", "phase", "phase x", "my text"] {
            assert_eq!(kind(text), None, "{text}");
        }
    }
}
