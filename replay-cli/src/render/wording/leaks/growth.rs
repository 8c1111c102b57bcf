//! How fast a leak grows, how much it retains, and when memory runs out.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::{GrowsBy, Leak, LeakKind, OomForecast};

use crate::render::wording::moment::format_step;
use crate::terminal::format::{format_count, format_number};

/// No forecast is printed beyond this many steps.
const FAR_STEPS: u64 = 1_000_000;
/// Without steps, none is printed beyond this many days.
const FAR_DAYS: u64 = 30;
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// `+4.00 MiB/step (1 block)`, `+8.00 MiB every 4 steps (2 blocks)`. Without steps,
/// `+48.00 MiB over time (12 blocks, about 1.20 MiB/s)`.
pub(crate) fn format_rate(leak: &Leak) -> String {
    let Some(bytes) = leak.bytes_per_step else {
        let blocks = (leak.grows_by == GrowsBy::Blocks).then(|| format_count(leak.blocks, "block"));
        let rate = leak.bytes_per_second.and_then(|bytes| format_rate_in_time(bytes.0));
        let details: Vec<String> = blocks.into_iter().chain(rate).collect();
        let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
        return format!("+{} over time{details}", format_bytes(leak.bytes));
    };
    let blocks = leak.blocks_per_step.map_or(0.0, |blocks| blocks.0);
    if let Some(period) = leak.period_steps.filter(|period| *period > 1) {
        let over_period = |rate: f64| (rate * period as f64).round();
        let bytes = format_bytes(over_period(bytes.0) as u64);
        return format!("+{bytes} every {period} steps{}", format_blocks(over_period(blocks)));
    }
    let about = if leak.is_regular { "" } else { "about " };
    format!("{about}+{}/step{}", format_bytes(bytes.0.round() as u64), format_blocks(blocks))
}

/// `about 1.20 MiB/s`, or per minute or hour if that is less than 1 MiB. `None` for less than a
/// byte an hour.
fn format_rate_in_time(bytes_per_second: f64) -> Option<String> {
    let units = [("s", 1.0), ("min", 60.0), ("h", 3600.0)].map(|(unit, s)| (unit, bytes_per_second * s));
    let (unit, bytes) = units.into_iter().find(|(_, bytes)| *bytes >= 1024.0 * 1024.0).unwrap_or(units[2]);
    (bytes >= 1.0).then(|| format!("about {}/{unit}", format_bytes(bytes.round() as u64)))
}

/// ` (1 block)`, ` (0.25 blocks)`; empty for 0, which is growth of one block.
fn format_blocks(blocks: f64) -> String {
    if blocks == 0.0 {
        String::new()
    } else if blocks.fract() == 0.0 {
        format!(" ({})", format_count(blocks as u64, "block"))
    } else {
        format!(" ({blocks:.2} blocks)")
    }
}

/// `12 blocks (48.00 MiB) live at the end of step 11, growing since step 0`.
pub(crate) fn describe_growth(leak: &Leak) -> String {
    let last = match leak.last_step {
        Some(_) => format_step("at the end of step ", leak.last_step),
        None => "near the end of the run".to_owned(),
    };
    let since = format_step(", growing since step ", leak.first_step);
    let bytes = format_bytes(leak.bytes);
    match (leak.kind, leak.grows_by) {
        (LeakKind::Reserved, _) => return format!("{bytes} more unused {last}{since}"),
        (LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost, GrowsBy::Size) => {
            return format!("{bytes} larger {last}{since}");
        }
        (LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost, GrowsBy::Blocks) => {}
    }
    let blocks = format_count(leak.blocks, "block");
    format!("{blocks} ({bytes}) live {last}{since}")
}

/// `4.00 MiB to 4.10 MiB/step`, the 95% interval of the rate; `None` if it is unknown.
pub(crate) fn format_rate_interval(leak: &Leak) -> Option<String> {
    let [least, most] = leak.bytes_per_step_interval?.map(|bytes| format_bytes(bytes.0.round() as u64));
    Some(if least == most { format!("exactly {least}/step") } else { format!("{least} to {most}/step") })
}

/// A sentence that begins with a space; empty if there is no forecast. The forecast assumes that
/// all leaks of the device continue.
pub(crate) fn describe_forecast(leak: &Leak, is_alone: bool) -> String {
    match forecast_of(leak) {
        Some(Ok(when)) => {
            let together = if is_alone { "" } else { " if all leaks continue" };
            format!(" Out of memory expected {when}{together}.")
        }
        Some(Err(far)) => format!(" No out of memory expected within {far}."),
        None => String::new(),
    }
}

/// The forecast of a possible leak, as a sentence; `None` if there is no forecast.
pub(crate) fn describe_possible_forecast(leak: &Leak) -> Option<String> {
    let when = forecast_of(leak)?.ok()?;
    Some(format!("If growth continues, out of memory is expected {when}."))
}

/// `40 s`, `23 min`, `2.5 h`, `3 days`: as precise as a forecast.
pub(crate) fn round_duration(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    let units = [("s", 1.0, 90.0), ("min", 60.0, 90.0), ("h", 3600.0, 48.0)];
    let fitting = units.into_iter().find(|(_, length, most)| seconds / length < *most);
    match fitting {
        Some(("h", length, _)) => format!("{:.1} h", seconds / length),
        Some((unit, length, _)) => format!("{:.0} {unit}", seconds / length),
        None => format!("{} days", ns / DAY_NS),
    }
}

/// When the device is full: `near step 6,141 (between 5,221 and 7,061)`, without steps `about 2 h
/// after the start`. As an error: how long it will not be. `None` if nothing is known.
fn forecast_of(leak: &Leak) -> Option<Result<String, String>> {
    Some(match (leak.steps_to_oom, &leak.oom_step, leak.oom_elapsed_ns) {
        (Some(left), ..) if left > FAR_STEPS => Err(format!("{} steps", format_number(FAR_STEPS))),
        (Some(_), Some(forecast), _) => Ok(format_forecast(forecast)),
        (None, None, Some(elapsed_ns)) if elapsed_ns > FAR_DAYS * DAY_NS => Err(format!("{FAR_DAYS} days")),
        (None, None, Some(elapsed_ns)) => Ok(format!("about {} after the start", round_duration(elapsed_ns))),
        _ => return None,
    })
}

/// `near step 6,141 (between 5,221 and 7,061)`.
fn format_forecast(forecast: &OomForecast) -> String {
    let expected = format!("near step {}", format_number(forecast.expected));
    let earliest = format_number(forecast.earliest);
    match forecast.latest {
        Some(latest) if latest == forecast.earliest => expected,
        Some(latest) => format!("{expected} (between {earliest} and {})", format_number(latest)),
        None => format!("{expected} (not before {earliest})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_have_a_readable_unit() {
        let rates = [6e7, 2e4, 600.0, 0.01, 0.0001].map(format_rate_in_time);
        let expected = ["about 57.22 MiB/s", "about 1.14 MiB/min", "about 2.06 MiB/h", "about 36 B/h"];
        assert_eq!(rates.iter().flatten().collect::<Vec<_>>(), expected);
        let times = [40, 1380, 9000, 3 * 86_400].map(|seconds| round_duration(seconds * 1_000_000_000));
        assert_eq!(times, ["40 s", "23 min", "2.5 h", "3 days"]);
    }
}
