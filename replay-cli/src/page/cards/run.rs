//! The recording: versions, settings, losses, notes; what a maintainer asks for in a bug report.

use gpumemtrace_format::TrackerState;
use gpumemtrace_replay::report::{Device, Losses, PluggableMode, TraceInfo};

use super::element::{Content, Element, Node, element, facts, list};
use super::{CardTrace, nodes, paragraph};
use crate::render::wording::recording::describe_end;
use crate::render::wording::steps::describe_steps;
use crate::source::Withheld;
use crate::terminal::format::{format_count, format_duration, format_number, format_utc};

type Fact<'a> = (&'a str, String);

/// The cards of the view.
pub(super) fn cards(trace: &CardTrace<'_>) -> Vec<Node> {
    let info = &trace.report.traces[trace.trace];
    let mut cards = vec![
        card("Program", facts_list(&program_facts(info))),
        card("Completeness", loss_facts(info)),
        card("Versions and settings", facts_list(&version_facts(info))),
        card("Steps", facts_list(&step_facts(trace))),
    ];
    let devices = trace.report.devices.iter().filter(|device| device.trace == trace.trace);
    cards.extend(devices.map(device_card));
    let events: Vec<(String, String)> = info
        .events
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| (name.replace('_', " "), format_number(*count)))
        .collect();
    let events: Vec<Fact<'_>> = events.iter().map(|(name, count)| (name.as_str(), count.clone())).collect();
    cards.push(card("Recorded events", facts_list(&events)));
    nodes(cards)
}

/// What the page leaves out, which depends on its size.
pub(in crate::page) fn page_card(reductions: &[String], withheld: Option<Withheld>) -> Node {
    let mut lines = reductions.to_vec();
    if lines.is_empty() {
        lines.push("Nothing was merged or left out to keep the page small.".to_owned());
    }
    lines.extend(withheld.map(|withheld| format!("{}.", withheld.describe())));
    Node::Element(card("This page", list("advice", lines)))
}

fn card(title: &str, content: impl Content) -> Element {
    element("section").class("card").add(element("h2").add(title)).add(content)
}

fn facts_list(rows: &[Fact<'_>]) -> Element {
    facts("run-facts", rows)
}

fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

fn program_facts(info: &TraceInfo) -> Vec<Fact<'static>> {
    let started = info.started_unix_ns.map(format_utc);
    let mut list = vec![
        ("Trace", info.path.clone()),
        ("Command", known(info.command.as_ref().map(|command| command.join(" ")))),
        ("Host", known(info.host.as_ref())),
        ("Process", known(info.pid)),
        ("Started", known(started)),
        ("Duration", known(info.duration_ns.map(format_duration))),
        ("End", describe_end(info)),
    ];
    list.extend(info.rank.map(|rank| ("Rank", format!("{rank} of {}", known(info.world_size)))));
    list
}

fn version_facts(info: &TraceInfo) -> Vec<Fact<'static>> {
    let conf = info.allocator_conf.clone().unwrap_or_else(|| "not set, or unknown".to_owned());
    let mut list = vec![
        ("gpumemtrace", env!("CARGO_PKG_VERSION").to_owned()),
        ("PyTorch", known(info.torch.as_ref())),
        ("Python", known(info.python.as_ref())),
        ("CUDA driver", known(info.cuda_driver.as_ref())),
        ("CUDA runtime", known(info.cuda_runtime.as_ref())),
        ("PYTORCH_ALLOC_CONF", conf),
        ("Recorded by", known(info.mode.as_ref().map(|mode| mode.join(" ")))),
        ("PyTorch's trace tracker", known(info.torch_tracker.map(TrackerState::name))),
    ];
    list.extend(info.pluggable.map(|mode| ("Pluggable allocator", PluggableMode::name(mode).to_owned())));
    list
}

fn loss_facts(info: &TraceInfo) -> Element {
    let Losses {
        dropped_events,
        corrupt_blocks,
        truncated_stacks,
        unresolved_frames,
        uncovered_calls,
        in_flight_calls,
        tracker_mismatches,
    } = info.losses;
    let losses = [
        ("dropped events", dropped_events),
        ("corrupt blocks", corrupt_blocks),
        ("truncated stacks", truncated_stacks),
        ("unresolved frames", unresolved_frames),
        ("uncovered calls", uncovered_calls),
        ("in flight calls", in_flight_calls),
        ("tracker mismatches", tracker_mismatches),
    ];
    let losses = losses.into_iter().filter(|(_, count)| *count > 0);
    let losses: Vec<Fact<'_>> = losses.map(|(name, count)| (name, format_number(count))).collect();
    let notes = info.notes.iter().map(|note| note.message.as_str());
    let messages: Vec<&str> = info.incomplete.iter().map(|loss| loss.message.as_str()).chain(notes).collect();
    let state = if info.complete { "complete" } else { "incomplete" };
    element("div")
        .add(paragraph(format!("The trace is {state}.")))
        .add((!losses.is_empty()).then(|| facts_list(&losses)))
        .add((!messages.is_empty()).then(|| list("advice", messages)))
}

fn step_facts(trace: &CardTrace<'_>) -> Vec<Fact<'static>> {
    let Some(steps) = trace.report.steps.as_ref().filter(|steps| steps.source.is_some()) else {
        return vec![("Found by", "no steps were found".to_owned())];
    };
    let mut list =
        vec![("Found by", describe_steps(steps)), ("Steps begun", known(steps.count.map(format_number)))];
    if trace.trace != 0 {
        list.push(("Note", "the report describes the steps of the first trace".to_owned()));
    }
    list
}

fn device_card(device: &Device) -> Element {
    let bytes = |bytes: Option<u64>| known(bytes.map(|bytes| format!("{} B", format_number(bytes))));
    let residual = device.residual.as_ref().map(|residual| {
        let samples = format_count(residual.samples, "measurement");
        format!(", from {samples} by {}", residual.source.name())
    });
    let mut list = vec![
        ("Name".to_owned(), known(device.name.as_ref())),
        ("Memory".to_owned(), bytes(device.total_bytes)),
        ("Peak allocated".to_owned(), bytes(device.peak.live_bytes)),
        ("Peak reserved".to_owned(), bytes(device.peak.reserved_bytes)),
        ("Peak of the driver".to_owned(), bytes(device.peak.device_bytes)),
        ("Allocated at the end".to_owned(), bytes(device.end.live_bytes)),
        ("Outside recorded calls".to_owned(), bytes(device.residual_bytes) + &residual.unwrap_or_default()),
    ];
    let ledger = device.ledger.iter();
    list.extend(ledger.map(|held| (format!("Owner: {}", held.owner), bytes(Some(held.bytes)))));
    let list: Vec<Fact<'_>> = list.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    card(&format!("GPU {}", device.device), facts_list(&list))
}
