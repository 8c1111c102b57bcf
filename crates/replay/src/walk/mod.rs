//! Walks the events of an analysed run again, for exports.
//!
//! The first pass has found the step rule, the peak and all stacks, so the second one can give each
//! event its step and its stack. It attributes backward events as the first pass did. Memory grows
//! with the live blocks, not with the events. `crates/replay/tests/history/walk.rs` compares the
//! live blocks with the report.

mod blocks;
pub(crate) mod live_segments;
mod window;

use std::ops::ControlFlow;

use gpumemtrace_format::event::MARK_NAMED;
use gpumemtrace_format::reader::{OpenError, TraceBytes};
use gpumemtrace_format::{CodeId, Event, EventKind};

use crate::callsite::autograd::AutogradTracker;
use crate::ingest::definitions::Definitions;
use crate::ingest::{TraceHead, metal_totals, read_event_slices};
use crate::pass::Analysis;
use crate::report::{Site, WalkEnd, WalkedEvent};
use crate::timeline::nvtx_ranges::StepRangeNames;
use crate::timeline::steps::StepClock;
use crate::timeline::time_spec::TimeSpec;
use crate::util::ids::StackId;
use blocks::{BlockOrigin, LiveBlockTable};
use window::MomentDetector;

impl Analysis {
    /// Passes the events of the run to `visit`, in order, until it breaks or the window ends.
    ///
    /// The window begins after `since` and ends at `until`; `None` for the begin and the end of the
    /// run. The moment of a time is after all events up to it, that of a step before its first
    /// event, that of a mark before it. `peak` is after the event that reached the highest peak
    /// among the devices. Events before the window are passed too ([`WalkedEvent::is_inside`]).
    ///
    /// `open` and `head` must be those of the analysed trace. Fails if it cannot be opened.
    pub fn walk(
        &mut self,
        open: &dyn Fn() -> std::io::Result<Box<dyn TraceBytes>>,
        head: &TraceHead,
        (since, until): (Option<&TimeSpec>, Option<&TimeSpec>),
        visit: &mut dyn FnMut(&WalkedEvent<'_>) -> ControlFlow<()>,
    ) -> Result<WalkEnd, OpenError> {
        let names = StepRangeNames::new(self.symbols.definitions().codes.values());
        let mut clock = StepClock::new(self.step_rule);
        let mut backward = AutogradTracker::default();
        let mut totals = metal_totals::MetalTotals::new(&self.meta);
        let mut begin = since.map(|spec| MomentDetector::new(spec, self));
        let mut end_at = until.map(|spec| MomentDetector::new(spec, self));
        let mut blocks = LiveBlockTable::default();
        let (mut time_ns, mut step) = (0, 0);
        let mut end = WalkEnd { since_reached: since.is_none(), ..WalkEnd::default() };
        let start_ns = self.start_ns;
        let symbols = &mut self.symbols;
        read_event_slices(open, head, &mut |events| {
            for event in totals.fill_totals(events) {
                let (stack, info) = backward.resolve_stack(event, symbols);
                time_ns = time_ns.max(event.time_ns.saturating_sub(start_ns));
                step += u32::from(clock.begins_step(event, stack, names.step_hint(event, info.step_hint)));
                let is_past = |moment: &mut Option<MomentDetector>| {
                    moment
                        .as_mut()
                        .is_some_and(|moment| moment.is_past(event, time_ns, step, symbols.definitions()))
                };
                if is_past(&mut end_at) {
                    end.until_reached = true;
                    return ControlFlow::Break(());
                }
                end.since_reached |= is_past(&mut begin);
                let origin = BlockOrigin { stack: stack.0, site: info.site.0, time_ns, step };
                let changes = blocks.on_event(event, origin);
                let is_inside = end.since_reached;
                if is_inside {
                    end.events += 1;
                    end.span_ns = Some((end.span_ns.map_or(time_ns, |(first, _)| first), time_ns));
                }
                let site = info.site.0;
                let name = name_of_event(event, symbols.definitions());
                visit(&WalkedEvent { event, time_ns, step, stack: stack.0, site, name, is_inside, changes })?;
            }
            ControlFlow::Continue(())
        })?;
        // The peak and the end may lie at the last event.
        end.until_reached |= until.is_none_or(|spec| matches!(spec, TimeSpec::Peak | TimeSpec::End));
        end.live = blocks.into_sorted();
        Ok(end)
    }

    /// The call sites of stacks, with all frames, in the same order. Native frames have no names
    /// until [`symbolize_sites`](crate::symbolize_sites).
    pub fn sites_of_stacks(&self, stacks: &[u32]) -> Vec<Site> {
        let site = |stack: &u32| {
            let stack = StackId(*stack);
            self.symbols.site(self.symbols.stack_info(stack).site, Some(stack))
        };
        stacks.iter().map(site).collect()
    }
}

/// The name of a mark, of a phase or of an NVTX range that begins.
#[inline]
fn name_of_event<'a>(event: &Event, definitions: &'a Definitions) -> Option<&'a str> {
    let code = match event.kind {
        EventKind::MARK if event.aux[0] == MARK_NAMED => event.aux[1],
        EventKind::PHASE_BEGIN | EventKind::RANGE_BEGIN => event.aux[0],
        _ => return None,
    };
    definitions.codes.get(&CodeId(code as u32)).map(|code| code.name.as_str())
}
