//! Finds out whether a run ends in steps that make the same requests to PyTorch's allocator.
//!
//! When equal steps bring a model of the allocator back into a state that it was in, it goes
//! through the same states again. So predictions need not go on from there (`crates/whatif`).
//!
//! Constraint: a trace has as many events as it likes, and the equal steps are known only at its
//! end. Consequence: each event of the present step and of the one before it is kept as one number,
//! at most [`MAX_STEP_EVENTS`] of them. Steps with more are equal to none.

use gpumemtrace_format::event::{NO_POOL, SAMPLE_SOURCE_PROGRAM};
use gpumemtrace_format::{Event, EventKind};

/// Most events of a step that is compared.
const MAX_STEP_EVENTS: usize = 1 << 18;
/// The lowest bit of the number of an event: it is no free, so it may need memory.
const NEEDS_MEMORY: u64 = 1;
/// 2^64 over the golden ratio, odd.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step by its events.
#[derive(Debug, Default)]
struct StepEvents {
    /// A number for each event of a block. Allocations count by size and stream, and frees by when
    /// the block was allocated: addresses may rotate among blocks of equal size.
    numbers: Vec<u64>,
    /// It changes segments, uses a private pool, has events of other kinds, or too many.
    is_unlike_others: bool,
}

impl StepEvents {
    #[inline]
    fn push(&mut self, event: &Event, parts: [u64; 3], needs_memory: u64) {
        if self.is_unlike_others || self.numbers.len() >= MAX_STEP_EVENTS {
            self.is_unlike_others = true;
            return;
        }
        let kind = u64::from(event.kind.0) << 16 | u64::from(event.device) << 8 | u64::from(event.flags);
        let number = parts.into_iter().fold(kind, |sum, part| (sum.rotate_left(29) ^ part).wrapping_mul(MIX));
        self.numbers.push(number & !NEEDS_MEMORY | needs_memory);
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.is_unlike_others = false;
    }

    fn equals(&self, other: &Self) -> bool {
        !self.is_unlike_others && !other.is_unlike_others && self.numbers == other.numbers
    }

    /// Whether this is the begin of a step like `other`, and then only frees.
    fn only_frees_after_begin_of(&self, other: &Self) -> bool {
        let pairs = self.numbers.iter().zip(&other.numbers);
        let common = pairs.take_while(|(own, others)| own == others).count();
        !self.is_unlike_others && self.numbers[common..].iter().all(|number| number & NEEDS_MEMORY == 0)
    }
}

/// Compares each step with the one before.
#[derive(Debug, Default)]
pub(crate) struct SteadySteps {
    present: StepEvents,
    before: StepEvents,
    /// Number of the first of the equal steps before the present one.
    first_equal: u32,
}

impl SteadySteps {
    /// Notes the allocation of a block in the present step.
    #[inline]
    pub(crate) fn on_alloc(&mut self, event: &Event) {
        let (requested, stream, pool) =
            event.detail.map_or((0, 0, 0), |detail| (detail.requested_bytes, detail.stream, detail.pool));
        self.present.is_unlike_others |= pool != 0 && pool != NO_POOL;
        self.present.push(event, [event.size, requested, stream], NEEDS_MEMORY);
    }

    /// Notes the free of a block, with the number of block events since its allocation; 0 if
    /// unknown.
    #[inline]
    pub(crate) fn on_free(&mut self, event: &Event, age_events: u64) {
        self.present.push(event, [age_events, 0, 0], 0);
    }

    /// Notes any other event of the present step.
    pub(crate) fn on_other_event(&mut self, event: &Event) {
        let requests_nothing = match event.kind {
            EventKind::PHASE_BEGIN
            | EventKind::PHASE_END
            | EventKind::RANGE_BEGIN
            | EventKind::RANGE_END
            | EventKind::MARK
            | EventKind::HOST_ALLOC
            | EventKind::HOST_FREE
            | EventKind::HOST_REGISTER
            | EventKind::HOST_UNREGISTER => true,
            // The recorder adds these at any time.
            EventKind::MEMORY_SAMPLE => event.aux[1] != SAMPLE_SOURCE_PROGRAM,
            _ => false,
        };
        self.present.is_unlike_others |= !requests_nothing;
    }

    /// Begins step `step`, and compares the one before it with its predecessor.
    pub(crate) fn begin_step(&mut self, step: u32) {
        if !self.present.equals(&self.before) {
            self.first_equal = step.saturating_sub(1);
        }
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
    }

    /// The first of the equal steps that the run ends with; `None` if it does not. The last step is
    /// the begin of one, and may end with frees of other blocks.
    pub(crate) fn finish(&self, steps: u32) -> Option<u32> {
        let is_steady = steps > self.first_equal + 1 && self.present.only_frees_after_begin_of(&self.before);
        (is_steady && !self.before.is_unlike_others).then_some(self.first_equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first equal step of a run. Each text is a step: a letter allocates, a capital frees, `!`
    /// makes a segment, and `-` is a mark.
    fn first_equal(steps: &[&str]) -> Option<u32> {
        let mut steady = SteadySteps::default();
        for (step, number) in steps.iter().zip(0..) {
            if number > 0 {
                steady.begin_step(number);
            }
            for letter in step.bytes() {
                let event = |kind| Event { size: u64::from(letter), ..Event::new(kind) };
                match letter {
                    b'!' => steady.on_other_event(&event(EventKind::SEGMENT_ALLOC)),
                    b'-' => steady.on_other_event(&event(EventKind::MARK)),
                    b'A'..=b'Z' => steady.on_free(&event(EventKind::BLOCK_FREE), u64::from(letter)),
                    _ => steady.on_alloc(&event(EventKind::BLOCK_ALLOC)),
                }
            }
        }
        steady.finish(steps.len() as u32 - 1)
    }

    #[test]
    fn equal_steps_at_the_end_are_found() {
        assert_eq!(first_equal(&["w", "xabA!", "bcBC", "b-cBC", "bcBC", ""]), Some(2));
        assert_eq!(first_equal(&["w", "bcBC", "bcBC", "bcBC", "bcW"]), Some(1), "only frees follow");
        assert_eq!(first_equal(&["w", "bcBC", "bcBC", "bcBC", "bcd"]), None, "one more block");
        assert_eq!(first_equal(&["w", "bcBC", "bcBC", "bcBC", "!"]), None, "one more segment");
        assert_eq!(first_equal(&["w", "bcBC", "bcBC", "bcBCd", "bc"]), None, "only one such step");
        assert_eq!(first_equal(&["w", "b!B", "b!B", "b!B", ""]), None, "new segments");
        assert_eq!(first_equal(&["w"]), None, "no steps");
    }

    #[test]
    fn sizes_streams_and_pools_of_requests_count() {
        let with = |size: u64, detail: gpumemtrace_format::Detail| {
            let mut steady = SteadySteps::default();
            for step in 0..4 {
                let last = step == 2;
                let size = if last { size } else { 512 };
                let usual = gpumemtrace_format::Detail { requested_bytes: 500, stream: 0, pool: 0 };
                let detail = Some(if last { detail } else { usual });
                steady.on_alloc(&Event {
                    addr: step.into(),
                    size,
                    detail,
                    ..Event::new(EventKind::BLOCK_ALLOC)
                });
                steady.begin_step(step + 1);
            }
            steady.finish(4)
        };
        let detail =
            |requested_bytes, stream, pool| gpumemtrace_format::Detail { requested_bytes, stream, pool };
        assert_eq!(with(512, detail(500, 0, 0)), Some(0));
        for other in
            [with(1024, detail(500, 0, 0)), with(512, detail(501, 0, 0)), with(512, detail(500, 1, 0))]
        {
            assert_eq!(other, None);
        }
        assert_eq!(with(512, detail(500, 0, 3)), None);
    }
}
