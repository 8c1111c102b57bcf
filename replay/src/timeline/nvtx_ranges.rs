//! NVTX ranges: which of them are steps.
//!
//! Constraint: any library may open ranges of any name, one for each operator if it likes. Consequence: a range is a step only
//! if its name says so: it has "step", "iter" or "batch" in it and not "epoch" (upper or lower case). Of several such names the
//! outermost counts, then the most frequent, then the first.
//!
//! Names come under ids of their own for each thread; they are one by content.

use gpumemtrace_format::{CodeDef, CodeId, Event, EventKind, ThreadId};

use crate::util::seeded_map::SeededMap;

/// Fewest ranges of a name that make steps.
const MIN_RANGES: u64 = 3;

/// The names of ranges that may be steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepRangeNames {
    by_id: SeededMap<CodeId, u16>,
    /// The name of each number, from 1.
    names: Vec<String>,
}

impl StepRangeNames {
    /// From all definitions: a name is one that is no Python code.
    pub(crate) fn new<'a>(codes: impl Iterator<Item = &'a CodeDef>) -> Self {
        let mut names: Vec<(&CodeDef, CodeId)> = codes
            .filter(|code| code.python == 0 && is_step(&code.name))
            .map(|code| (code, code.id))
            .collect();
        // Ascending, so that the numbers do not depend on a hash map's order.
        names.sort_unstable_by_key(|(_, id)| *id);
        let mut known: SeededMap<&str, u16> = SeededMap::default();
        let mut step_names = Self::default();
        for (code, id) in names {
            let next = known.len() as u16 + 1;
            if next == u16::MAX {
                break;
            }
            let number = *known.entry(&code.name).or_insert(next);
            if number == next {
                step_names.names.push(code.name.clone());
            }
            step_names.by_id.insert(id, number);
        }
        step_names
    }

    /// One more id of a name that has a number.
    pub(crate) fn learn(&mut self, code: &CodeDef) {
        if code.python == 0
            && let Some(at) = self.names.iter().position(|name| *name == code.name)
        {
            self.by_id.insert(code.id, at as u16 + 1);
        }
    }

    /// The number of the name of a range that begins here and may be a step; 0 for all else.
    #[inline]
    pub(crate) fn begun_by(&self, event: &Event) -> u16 {
        if event.kind != EventKind::RANGE_BEGIN || self.names.is_empty() {
            return 0;
        }
        self.by_id.get(&CodeId(event.aux[0] as u32)).copied().unwrap_or(0)
    }

    /// The name of a number.
    pub(crate) fn name(&self, number: u16) -> Option<&str> {
        self.names.get(usize::from(number).wrapping_sub(1)).map(String::as_str)
    }

    /// What an event says of steps: the number of the range's name where one begins, the optimizer line of its stack elsewhere.
    #[inline]
    pub(crate) fn or_optimizer(&self, event: &Event, optimizer: u16) -> u16 {
        if event.kind == EventKind::RANGE_BEGIN { self.begun_by(event) } else { optimizer }
    }
}

fn is_step(name: &str) -> bool {
    let name = name.to_lowercase();
    !name.contains("epoch") && ["step", "iter", "batch"].iter().any(|word| name.contains(word))
}

#[derive(Clone, Copy, Debug)]
struct RangeUse {
    count: u64,
    depth: u32,
    first: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct RangeDetector {
    depths: SeededMap<ThreadId, u32>,
    seen: SeededMap<u16, RangeUse>,
    events: u64,
}

impl RangeDetector {
    /// Takes an event; `name` is what [`StepRangeNames::begun_by`] says of it.
    pub(crate) fn event(&mut self, event: &Event, name: u16) {
        self.events += 1;
        let depth = match event.kind {
            EventKind::RANGE_BEGIN => {
                let depth = self.depths.entry(event.thread).or_default();
                let of_this = *depth;
                // One that another thread may end has no end here.
                *depth += u32::from(event.aux[1] == 0);
                of_this
            }
            EventKind::RANGE_END => {
                let depth = self.depths.entry(event.thread).or_default();
                *depth = depth.saturating_sub(1);
                return;
            }
            _ => return,
        };
        if name != 0 {
            let new = RangeUse { count: 0, depth, first: self.events };
            let seen = self.seen.entry(name).or_insert(new);
            seen.count += 1;
            seen.depth = seen.depth.min(depth);
        }
    }

    /// The name whose ranges are steps.
    pub(crate) fn steps(&self) -> Option<u16> {
        let often = self.seen.iter().filter(|(_, seen)| seen.count >= MIN_RANGES);
        often
            .min_by_key(|(_, seen)| (seen.depth, std::cmp::Reverse(seen.count), seen.first))
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

    /// Ranges as a string: a letter opens the range of that number, a dot closes one.
    fn steps_of(names: &StepRangeNames, ranges: &str) -> Option<u16> {
        let mut detector = RangeDetector::default();
        for char in ranges.chars() {
            let event = match char.to_digit(10) {
                Some(name) => event(EventKind::RANGE_BEGIN, name),
                None => event(EventKind::RANGE_END, 0),
            };
            detector.event(&event, names.begun_by(&event));
        }
        detector.steps()
    }

    #[test]
    fn the_outermost_range_that_is_called_a_step_counts() {
        let names = names(&["epoch #", "Train step #", "optimizer.step", "forward", "micro_batch"]);
        let step = "2.4.3..".replace("2.4.3..", "24.3.5.5..");
        let training = format!("1{}.1{}.", step.repeat(5), step.repeat(5));
        assert_eq!(steps_of(&names, &training), Some(names.begun_by(&event(EventKind::RANGE_BEGIN, 2))));
        assert_eq!(steps_of(&names, "4.4.4.4."), None, "nothing says step");
        assert_eq!(steps_of(&names, "2.2."), None, "too few");
    }

    #[test]
    fn the_same_name_under_two_ids_is_one() {
        let names = names(&["step", "other", "step"]);
        let of = |id| names.begun_by(&event(EventKind::RANGE_BEGIN, id));
        assert_eq!((of(1), of(2)), (of(3), 0));
        assert_eq!(names.begun_by(&event(EventKind::BLOCK_ALLOC, 1)), 0);
    }
}
