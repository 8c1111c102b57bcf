//! Finds the first event after a moment.

use gpumemtrace_format::{Event, EventKind, NO_DEVICE};

use crate::ingest::definitions::Definitions;
use crate::pass::Analysis;
use crate::timeline::marks::{AwaitedMark, mark_name};
use crate::timeline::time_spec::TimeSpec;

/// Recognizes the first event after a moment of the run.
#[derive(Debug)]
pub(super) enum MomentDetector {
    /// A time or a step.
    At(TimeSpec),
    Mark(AwaitedMark),
    /// The peak of PyTorch's blocks on a device: the number of block events up to it.
    BlockEvents {
        device: u8,
        left: u64,
    },
    /// The end of the program: before the event of this number.
    Event(u64),
    /// The end of the recording.
    Never,
    /// The moment was passed.
    Past,
}

impl MomentDetector {
    /// The moment of `spec` in an analysed run.
    pub(super) fn new(spec: &TimeSpec, analysis: &Analysis) -> Self {
        let at_ns =
            |time_ns: u64| Self::At(TimeSpec::Elapsed { time_ns: time_ns.saturating_sub(analysis.start_ns) });
        match spec {
            TimeSpec::Elapsed { .. } | TimeSpec::Step(_) => Self::At(spec.clone()),
            TimeSpec::Mark(name) => Self::Mark(AwaitedMark::new(name)),
            TimeSpec::End => analysis.end.next_seq.map_or(Self::Never, Self::Event),
            TimeSpec::Peak => {
                let known = analysis.devices.iter().filter(|(ordinal, _)| *ordinal != NO_DEVICE);
                let highest = known.rev().max_by_key(|(_, state)| state.main().peak().live);
                match highest {
                    Some((device, state)) if state.has_torch() => {
                        Self::BlockEvents { device: *device, left: state.torch.peak_event() }
                    }
                    Some((_, state)) => at_ns(state.main().peak().time_ns),
                    None => at_ns(analysis.start_ns),
                }
            }
        }
    }

    /// True from the first event after the moment on. `time_ns` is since the start of recording;
    /// `step` includes a step that begins at the event.
    pub(super) fn is_past(
        &mut self,
        event: &Event,
        time_ns: u64,
        step: u32,
        definitions: &Definitions,
    ) -> bool {
        let is_past = match self {
            Self::Past | Self::BlockEvents { left: 0, .. } => true,
            Self::Never => false,
            Self::Event(seq) => event.seq >= *seq,
            Self::At(spec) => spec.is_reached(time_ns, step),
            Self::Mark(awaited) => mark_name(event, definitions).is_some_and(|name| awaited.observe(name)),
            Self::BlockEvents { device, left } => {
                let is_block = matches!(event.kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE);
                *left -= u64::from(is_block && event.device == *device);
                false
            }
        };
        if is_past {
            *self = Self::Past;
        }
        is_past
    }
}
