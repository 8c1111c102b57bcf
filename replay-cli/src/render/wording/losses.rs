//! What is missing from a trace, as phrases without a full stop.

use gpumemtrace_replay::report::{BlockContent, TraceLoss};

use crate::terminal::format::{format_count, format_number};
use crate::terminal::units::format_bytes;

/// One loss as a phrase.
pub(crate) fn describe_loss(loss: &TraceLoss) -> String {
    match loss {
        TraceLoss::DroppedEvents { events } => format!("the recorder dropped {}", format_count(*events, "event")),
        TraceLoss::MissingEvents { events } => format!("{} missing from the file", count_are(*events, "event")),
        TraceLoss::DroppedParts { parts, events } => format!(
            "the recorder deleted the oldest {} with {} (GPUMEMTRACE_MAX_TOTAL_SIZE); memory allocated in them has no call site",
            format_count(*parts, "part"),
            format_count(*events, "event")
        ),
        TraceLoss::HistoryOverwritten => {
            "the snapshot lacks its oldest events: its ring buffer (max_entries) overwrote them, or the history was \
             cleared"
                .to_owned()
        }
        TraceLoss::AbsentFiles { detail } => detail.clone(),
        TraceLoss::Damage { file, offset_bytes, bytes, detail } => {
            let place = place(file.as_ref(), *offset_bytes);
            format!("damage at {place}, {} unreadable: {detail}", format_bytes(*bytes))
        }
        TraceLoss::MoreDamage { regions } => format_count(*regions, "more damaged region"),
        TraceLoss::CutBlock { file, offset_bytes, content } => {
            let content = match content {
                BlockContent::Metadata => " of metadata",
                BlockContent::Modules => " of modules",
                BlockContent::Other => "",
            };
            format!("the file ends inside a file block{content} at {}", place(file.as_ref(), *offset_bytes))
        }
        TraceLoss::UnknownBlocks { blocks } => {
            format!("{} from a newer recorder and skipped", count_are(*blocks, "file block"))
        }
        TraceLoss::UnknownEvents { events } => {
            format!("{} of unknown kinds and not counted: use a newer gpumemtrace", count_are(*events, "event"))
        }
        TraceLoss::MisdatedEvents { events } => {
            let events = format_count(*events, "event");
            format!("{events} with times outside the run, placed at the time of the previous event")
        }
        TraceLoss::RingUnusable { detail } => format!("the ring file {detail}"),
        TraceLoss::RingForeign => "the ring file belongs to another trace".to_owned(),
        TraceLoss::RingMissing => {
            "the process did not close the trace and its ring file (TRACE.ring) is missing: the last events are lost"
                .to_owned()
        }
        TraceLoss::StoppedEarly { reason } => {
            let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            format!("the recording stopped before the program ended{reason}")
        }
        TraceLoss::TruncatedFile { file_bytes, missing_bytes } => format!(
            "the file is truncated at byte {file_bytes}: {} missing",
            format_bytes(*missing_bytes)
        ),
        TraceLoss::MalformedRingRecords { records } => {
            format!("{} of the ring file cannot be decoded", format_count(*records, "record"))
        }
        TraceLoss::RingBehindTrace { ring_events, trace_events } => format!(
            "the ring file counts {}, but the trace has {}",
            format_count(*ring_events, "event"),
            format_number(*trace_events)
        ),
        TraceLoss::WriteErrors { writes } => format!("{} to the trace file failed", format_count(*writes, "write")),
        TraceLoss::ThreadsWithoutRing { threads } => {
            format!("{} found no free ring buffer", format_count(*threads, "thread"))
        }
        TraceLoss::InternalErrors { errors } => {
            format!("{} of the recorder", format_count(*errors, "internal error"))
        }
        TraceLoss::InterruptedEvents { events } => {
            format!("{} lost where a signal handler interrupted the recorder", format_count(*events, "event"))
        }
        TraceLoss::EventsAfterEnd { events } => {
            format!("{} not recorded: the program used the GPU after its exit handlers had run", count_are(*events, "event"))
        }
        TraceLoss::UndefinedFrames { frames } => {
            let frames = count_are(*frames, "stack frame");
            format!("{frames} not defined in the file: some call sites are unknown")
        }
    }
}

/// `1 event is`, `2 events are`.
fn count_are(number: u64, noun: &str) -> String {
    format!("{} {}", format_count(number, noun), if number == 1 { "is" } else { "are" })
}

/// Offsets have no separators, so that they can be pasted into other tools.
fn place(file: Option<&String>, offset_bytes: u64) -> String {
    let file = file.map(|file| format!(" of {file}")).unwrap_or_default();
    format!("byte {offset_bytes}{file}")
}
