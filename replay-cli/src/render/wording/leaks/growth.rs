//! How fast a leak grows, how much it retains, and when memory runs out.

use crate::terminal::units::format_bytes;
use gpumemtrace_replay::report::{GrowsBy, Leak, LeakKind, OomForecast};

use crate::render::wording::moment::format_step;
use crate::terminal::format::{format_count, format_number};

/// No forecast is printed beyond this many steps.
const FAR_STEPS: u64 = 1_000_000;

/// `+4.00 MiB/step (1 block)`, `+8.00 MiB every 4 steps (2 blocks)`. Without steps,
/// `+48.00 MiB over time (12 blocks)`.
pub(crate) fn format_rate(leak: &Leak) -> String {
    let Some(bytes) = leak.bytes_per_step else {
        let blocks = if leak.grows_by == GrowsBy::Size { 0 } else { leak.blocks };
        return format!("+{} over time{}", format_bytes(leak.bytes), format_blocks(blocks as f64));
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
    match (leak.steps_to_oom, &leak.oom_step) {
        (Some(left), _) if left > FAR_STEPS => {
            format!(" No out of memory expected within {} steps.", format_number(FAR_STEPS))
        }
        (Some(_), Some(forecast)) => {
            let together = if is_alone { "" } else { " if all leaks continue" };
            format!(" Out of memory expected {}{together}.", format_forecast(forecast))
        }
        _ => String::new(),
    }
}

/// The forecast of a possible leak, as a sentence; `None` if there is no forecast.
pub(crate) fn describe_possible_forecast(leak: &Leak) -> Option<String> {
    let forecast =
        leak.oom_step.as_ref().filter(|_| leak.steps_to_oom.is_some_and(|left| left <= FAR_STEPS))?;
    Some(format!("If it goes on, out of memory is expected {}.", format_forecast(forecast)))
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
