//! The axis along which the bins of a timeline have equal width.
//!
//! Bins of equal time would give a run of ten short steps 1% of the bins, and the import of PyTorch
//! before them and the teardown most of the rest. Bins of equal numbers of events would put an hour
//! without events into one bin, which then shows the maximum of what lies around the pause. So a
//! position is the time plus a constant for each event. The constant makes all events of the trace
//! as long as the run and as long again, because one device mostly has a part of them. A loop has
//! about the same number of events in each step, so its bins are even in steps, too.
//!
//! Events of the same time have the same position. So the border of two bins is a moment: the state
//! there is the state after all events before it.

/// Events count this many times the length of the run.
const EVENTS_SHARE: u64 = 2;
/// Length of an event if the number of events is unknown.
const DEFAULT_EVENT_NS: u64 = 1 << 14;

/// Positions of the events of one live set. Units are nanoseconds, of events as of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinAxis {
    /// Length of the run; 0 if unknown.
    span_ns: u64,
    event_ns: u64,
    /// Length of all events so far.
    events_ns: u64,
    /// Time and position before those of the last event.
    before: (u64, u64),
    /// Time and position of the last event.
    now: (u64, u64),
}

impl Default for BinAxis {
    fn default() -> Self {
        Self::for_run(0, 0)
    }
}

impl BinAxis {
    /// The axis of a run of the given length and number of events; each is 0 if unknown.
    pub(crate) fn for_run(span_ns: u64, events: u64) -> Self {
        let event_ns = span_ns.saturating_mul(EVENTS_SHARE).checked_div(events).filter(|_| span_ns > 0);
        let event_ns = event_ns.unwrap_or(DEFAULT_EVENT_NS).max(1);
        Self { span_ns, event_ns, events_ns: 0, before: (0, 0), now: (0, 0) }
    }

    /// The axis of a part of this run, before its first event. `span_ns` is its length, 0 if
    /// unknown.
    pub(crate) fn for_part(&self, span_ns: u64) -> Self {
        Self { span_ns, event_ns: self.event_ns, ..Self::for_run(0, 0) }
    }

    /// The width at which about `bins` bins suffice for the run; 1 if its length is unknown.
    pub(crate) fn width_for(&self, bins: usize) -> u64 {
        self.span_ns.saturating_mul(2) / bins as u64 + 1
    }

    /// As [`Self::width_for`], but no event skips a bin.
    pub(crate) fn coarse_width_for(&self, bins: usize) -> u64 {
        self.width_for(bins).max(self.event_ns)
    }

    /// Passes an event. Returns its position.
    ///
    /// The sums wrap only in a damaged trace: its times or its number of events are far above what
    /// its head says. The events then fall into wrong bins, but into bins that exist.
    #[inline]
    pub(crate) fn advance(&mut self, time_ns: u64) -> u64 {
        self.events_ns = self.events_ns.wrapping_add(self.event_ns);
        if time_ns > self.now.0 {
            self.before = self.now;
            self.now = (time_ns, time_ns.wrapping_add(self.events_ns));
        }
        self.now.1
    }

    /// Position of the last event.
    pub(crate) fn position(&self) -> u64 {
        self.now.1
    }

    /// The time of a position between those of the last two events. The last event itself comes
    /// not before this time, and all earlier ones do.
    pub(crate) fn time_of(&self, position: u64) -> u64 {
        let (time_ns, passed) = self.before;
        time_ns.saturating_add(position.saturating_sub(passed)).min(self.now.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn border_separates_events_by_position_as_by_time(
            pauses in proptest::collection::vec(0u64..1000, 1..100),
            border in 0u64..20_000,
        ) {
            let mut axis = BinAxis::for_run(50_000, 1000);
            let (mut time_ns, mut earlier, mut border_ns) = (5, Vec::new(), None);
            for pause_ns in pauses {
                time_ns += pause_ns;
                let position = axis.advance(time_ns);
                if position >= border && border_ns.is_none() {
                    border_ns = Some(axis.time_of(border));
                }
                earlier.push((time_ns, position));
            }
            for (time_ns, position) in earlier {
                prop_assert_eq!(position >= border, border_ns.is_some_and(|border_ns| time_ns >= border_ns));
            }
        }
    }

    #[test]
    fn events_and_pauses_both_have_room() {
        // 1,000 events in a millisecond, in the middle of a second.
        let mut axis = BinAxis::for_run(1_000_000_000, 1000);
        let first = axis.advance(1);
        let before = axis.advance(500_000_000) - first;
        (1..=1000).for_each(|event| _ = axis.advance(500_000_000 + event * 1000));
        let burst = axis.position() - first - before;
        let after = axis.advance(1_000_000_000) - first - before - burst;
        assert!(burst > before && burst > after, "{before} {burst} {after}");
        assert!(burst < 3 * (before + after), "{before} {burst} {after}");
    }
}
