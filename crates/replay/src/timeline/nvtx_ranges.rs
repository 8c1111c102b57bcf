//! Step detection from NVTX ranges.
//!
//! Any library may open ranges of any name, for example one per operator. A range therefore counts
//! as a step only if its name contains "step", "iter" or "batch", but not "epoch" (ignoring case).
//! Of several such names, [`RangeDetector`] selects the outermost, then the most frequent, then the
//! first. The recorder gives each thread its own id for a name; [`StepRangeNames`] maps equal names
//! to one number.

use gpumemtrace_format::{CodeDef, CodeId, Event, EventKind, ThreadId};

use crate::util::seeded_map::SeededMap;

/// A name must begin this many ranges to count as a step.
const MIN_RANGES: u64 = 3;

/// The names of ranges that may be steps, numbered from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepRangeNames {
    by_id: SeededMap<CodeId, u16>,
    /// Index `n - 1` has the name with number `n`.
    names: Vec<String>,
}

impl StepRangeNames {
    /// Collects the names among all definitions; code objects of Python are not names of ranges.
    pub(crate) fn new<'a>(codes: impl Iterator<Item = &'a CodeDef>) -> Self {
        let mut names: Vec<(&CodeDef, CodeId)> = codes
            .filter(|code| code.python == 0 && is_step_name(&code.name))
            .map(|code| (code, code.id))
            .collect();
        // Sorted, so that the numbers do not depend on the iteration order of a hash map.
        names.sort_unstable_by_key(|(_, id)| *id);
        let mut numbers: SeededMap<&str, u16> = SeededMap::default();
        let mut step_names = Self::default();
        for (code, id) in names {
            let next = numbers.len() as u16 + 1;
            if next == u16::MAX {
                break;
            }
            let number = *numbers.entry(&code.name).or_insert(next);
            if number == next {
                step_names.names.push(code.name.clone());
            }
            step_names.by_id.insert(id, number);
        }
        step_names
    }

    /// Adds the id of `code` if its name already has a number.
    pub(crate) fn add_id(&mut self, code: &CodeDef) {
        if code.python == 0
            && let Some(index) = self.names.iter().position(|name| *name == code.name)
        {
            self.by_id.insert(code.id, index as u16 + 1);
        }
    }

    /// The number of the name if `event` begins a range that may be a step; else 0.
    #[inline]
    pub(crate) fn number_at_begin(&self, event: &Event) -> u16 {
        if event.kind != EventKind::RANGE_BEGIN || self.names.is_empty() {
            return 0;
        }
        self.by_id.get(&CodeId(event.aux[0] as u32)).copied().unwrap_or(0)
    }

    /// The name with this number.
    pub(crate) fn name(&self, number: u16) -> Option<&str> {
        self.names.get(usize::from(number).wrapping_sub(1)).map(String::as_str)
    }

    /// The step hint of an event; 0 for none. If the event begins a range, this is the number of
    /// the range's name, else `of_stack`, the hint of its stack. The step source decides which of
    /// the two meanings counts.
    #[inline]
    pub(crate) fn step_hint(&self, event: &Event, of_stack: u16) -> u16 {
        if event.kind == EventKind::RANGE_BEGIN { self.number_at_begin(event) } else { of_stack }
    }
}

fn is_step_name(name: &str) -> bool {
    let name = name.to_lowercase();
    !name.contains("epoch") && ["step", "iter", "batch"].iter().any(|word| name.contains(word))
}

#[derive(Clone, Copy, Debug)]
struct RangeUse {
    count: u64,
    /// Smallest nesting depth of these ranges; 0 is outermost.
    depth: u32,
    /// Number of the event that began the first range.
    first_event: u64,
}

/// Counts the ranges of each name and their nesting depth.
#[derive(Debug, Default)]
pub(crate) struct RangeDetector {
    /// Open ranges by thread.
    depths: SeededMap<ThreadId, u32>,
    uses: SeededMap<u16, RangeUse>,
    events: u64,
}

impl RangeDetector {
    /// Observes an event. `name` is its [`StepRangeNames::number_at_begin`].
    pub(crate) fn on_event(&mut self, event: &Event, name: u16) {
        self.events += 1;
        let depth = match event.kind {
            EventKind::RANGE_BEGIN => {
                let open = self.depths.entry(event.thread).or_default();
                let depth = *open;
                // A start/end range may end on another thread and does not nest.
                *open += u32::from(event.aux[1] == 0);
                depth
            }
            EventKind::RANGE_END => {
                let depth = self.depths.entry(event.thread).or_default();
                *depth = depth.saturating_sub(1);
                return;
            }
            _ => return,
        };
        if name != 0 {
            let new = RangeUse { count: 0, depth, first_event: self.events };
            let range_use = self.uses.entry(name).or_insert(new);
            range_use.count += 1;
            range_use.depth = range_use.depth.min(depth);
        }
    }

    /// The name with ranges that are steps.
    pub(crate) fn find_step_name(&self) -> Option<u16> {
        let frequent = self.uses.iter().filter(|(_, range_use)| range_use.count >= MIN_RANGES);
        frequent
            .min_by_key(|(_, range_use)| {
                (range_use.depth, std::cmp::Reverse(range_use.count), range_use.first_event)
            })
            .map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> StepRangeNames {
        let codes: Vec<CodeDef> = texts
            .iter()
            .zip(1u32..)
            .map(|(name, id)| CodeDef { id: CodeId(id), name: (*name).to_owned(), ..CodeDef::default() })
            .collect();
        StepRangeNames::new(codes.iter())
    }

    fn event(kind: EventKind, name: u32) -> Event {
        Event { aux: [u64::from(name), 0], ..Event::new(kind) }
    }

    /// `ranges` is a sequence of events: a digit begins the range with that name id, a dot ends
    /// one.
    fn detect(names: &StepRangeNames, ranges: &str) -> Option<u16> {
        let mut detector = RangeDetector::default();
        for char in ranges.chars() {
            let event = match char.to_digit(10) {
                Some(name) => event(EventKind::RANGE_BEGIN, name),
                None => event(EventKind::RANGE_END, 0),
            };
            detector.on_event(&event, names.number_at_begin(&event));
        }
        detector.find_step_name()
    }

    #[test]
    fn outermost_range_named_like_a_step_is_selected() {
        let names = names(&["epoch #", "Train step #", "optimizer.step", "forward", "micro_batch"]);
        let step = "2.4.3..".replace("2.4.3..", "24.3.5.5..");
        let training = format!("1{}.1{}.", step.repeat(5), step.repeat(5));
        assert_eq!(detect(&names, &training), Some(names.number_at_begin(&event(EventKind::RANGE_BEGIN, 2))));
        assert_eq!(detect(&names, "4.4.4.4."), None, "no name of a step");
        assert_eq!(detect(&names, "2.2."), None, "fewer than MIN_RANGES");
    }

    #[test]
    fn equal_names_with_different_ids_share_a_number() {
        let names = names(&["step", "other", "step"]);
        let number = |id| names.number_at_begin(&event(EventKind::RANGE_BEGIN, id));
        assert_eq!((number(1), number(2)), (number(3), 0));
        assert_eq!(names.number_at_begin(&event(EventKind::BLOCK_ALLOC, 1)), 0);
    }
}
