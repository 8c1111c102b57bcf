//! The memory of the GPU at an out-of-memory error, as bars.

use gpumemtrace_replay::report::{CauseKind, Oom};

use super::element::{Color, Element, element, swatch};
use super::{exact_bytes, known_bytes};
use crate::render::wording::Vocabulary;
use crate::render::wording::fragmentation::name_cause;
use crate::terminal::format::format_percent;
use crate::terminal::units::format_bytes;

struct OomPart {
    label: String,
    bytes: u64,
    /// `None` for memory that this process had not taken.
    color: Option<&'static str>,
}

/// The whole GPU at that moment; the parts sum up to its size.
pub(super) fn device_bar(oom: &Oom, words: &Vocabulary) -> Element {
    let parts = parts_of_device(oom, words);
    let whole = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes));
    let size = oom.device_total_bytes.map(|total| format!("of {}", format_bytes(total)));
    let size = size.unwrap_or_else(|| "of unknown size".to_owned());
    let title = element("strong").add(format!("GPU {} {size}", oom.device));
    let rounding = rounding_bytes(oom).map(|bytes| {
        let text = format!("; {} of the allocated memory is rounding", format_bytes(bytes));
        element("span").class("muted").add(text)
    });
    let label: Vec<String> =
        parts.iter().map(|part| format!("{} {}", part.label, format_bytes(part.bytes))).collect();
    let bar = element("div").class("whole-bar tall").with("role", "img").with("aria-label", label.join(", "));
    let segments = parts.iter().map(|part| {
        let title = format!("{}: {}", part.label, exact_bytes(part.bytes));
        let segment = element("span").with("title", title).wide(share(part.bytes, whole));
        match part.color {
            Some(name) => segment.colored(Color::Part(name)),
            None => segment.class("hatched"),
        }
    });
    let legend = parts.iter().map(|part| {
        let color = part.color.map(|name| swatch(Color::Part(name)));
        let percent = if whole > 0 { format_percent(share(part.bytes, whole)) } else { "unknown".to_owned() };
        element("li")
            .with("title", exact_bytes(part.bytes))
            .add(color.unwrap_or_else(|| element("span").class("swatch hatched")))
            .add(format!("{} ", part.label))
            .add(element("strong").add(format_bytes(part.bytes)))
            .add(element("span").class("muted").add(percent))
    });
    element("figure")
        .class("oom-device")
        .add(element("figcaption").add(title).add(rounding))
        .add(bar.add(segments.collect::<Vec<_>>()))
        .add(element("ul").class("band-legend").add(legend.collect::<Vec<_>>()))
}

fn parts_of_device(oom: &Oom, words: &Vocabulary) -> Vec<OomPart> {
    let unused = oom.reserved_bytes.saturating_sub(oom.live_bytes);
    let part = |label: &str, bytes: u64, color| OomPart { label: label.to_owned(), bytes, color };
    let mut parts = vec![part("allocated", oom.live_bytes, Some("live"))];
    // Rounding is inside the allocated blocks.
    let causes = || oom.unused_causes.iter().filter(|cause| cause.cause != CauseKind::Rounding);
    if causes().fold(0u64, |sum, cause| sum.saturating_add(cause.bytes)) == unused {
        parts.extend(causes().map(|cause| OomPart {
            label: name_cause(cause.cause, words),
            bytes: cause.bytes,
            color: Some(cause.cause.name()),
        }));
    } else {
        parts.push(part("reserved but unused", unused, Some(CauseKind::Cache.name())));
    }
    if let (Some(total), Some(free)) = (oom.device_total_bytes, oom.device_free_bytes) {
        let other = total.saturating_sub(oom.reserved_bytes).saturating_sub(free);
        if other > 0 {
            parts.push(part("other memory of this process", other, Some("residual")));
        }
        parts.push(part("not taken by this process", free, None));
    }
    parts
}

fn rounding_bytes(oom: &Oom) -> Option<u64> {
    let rounding = oom.unused_causes.iter().find(|cause| cause.cause == CauseKind::Rounding)?;
    Some(rounding.bytes).filter(|bytes| *bytes > 0)
}

/// The request and the free memory that could have served it, on one scale.
pub(super) fn request_bars(oom: &Oom, reserver: &str) -> Element {
    let rows = [
        ("Requested".to_owned(), Some(oom.requested_bytes), Color::Theme("critical")),
        (
            format!("Largest free block of {reserver}"),
            oom.largest_free_block_bytes,
            Color::Part(CauseKind::Cache.name()),
        ),
        ("Free, not reserved".to_owned(), oom.device_free_bytes, Color::Theme("muted")),
    ];
    let most = rows.iter().filter_map(|(_, bytes, _)| *bytes).max().unwrap_or(0);
    rows.into_iter().fold(element("div").class("request-bars"), |bars, (name, bytes, color)| {
        let bar = bytes.filter(|bytes| *bytes > 0);
        let bar = bar.map(|bytes| element("span").wide(share(bytes, most)).colored(color));
        let track = element("span").class("track").with("aria-hidden", "true").add(bar);
        let number = element("span").class("number").add(known_bytes(bytes));
        bars.add(element("span").add(name)).add(number).add(track)
    })
}

fn share(bytes: u64, whole: u64) -> f64 {
    bytes as f64 / whole.max(1) as f64
}
