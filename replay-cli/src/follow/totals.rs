//! The line of a running program: the most important part first, cut to the width of the terminal.

use gpumemtrace_replay::report::{DeviceBytes, RunView};

use crate::terminal::format::{format_count, format_duration, format_number, format_percent};
use crate::terminal::units::format_bytes;

const SEPARATOR: &str = "; ";

/// A part of the line. Those with a low rank are taken first, as long as they fit.
struct Clause {
    rank: usize,
    text: String,
    /// The rank of a part without which this one has no meaning.
    needs: Option<usize>,
}

/// The line of a program: what was found, its GPUs, its steps. At most `width` characters, if the
/// first part fits.
pub(super) fn format_line(label: Option<&str>, finding: &[String], view: &RunView, width: usize) -> String {
    let mut clauses: Vec<Clause> = Vec::new();
    let mut add = |rank, needs, text: String| clauses.push(Clause { rank, text, needs });
    finding.iter().enumerate().for_each(|(at, text)| add(2 * at, None, text.clone()));
    let mut devices: Vec<(&u8, &DeviceBytes)> = view.devices.iter().collect();
    // The fullest GPU first.
    devices.sort_by(|(_, one), (_, other)| share_of(other).total_cmp(&share_of(one)));
    for (at, (ordinal, bytes)) in devices.into_iter().enumerate() {
        let rank = 1 + 10 * at;
        add(rank, None, format!("GPU {ordinal}: {}", describe_driver(bytes)));
        if let Some((allocated, reserved)) = bytes.allocated.zip(bytes.reserved) {
            let (allocated, reserved) = (format_bytes(allocated), format_bytes(reserved));
            add(rank + 3, Some(rank), format!("allocated {allocated}, reserved {reserved}"));
        }
    }
    if let Some(steps) = view.steps {
        add(3, None, format!("step {}", format_number(u64::from(steps))));
    }
    // The last to be taken.
    add(usize::MAX - 1, None, format_duration(view.span_ns));
    add(usize::MAX, None, format_count(view.events, "event"));
    let prefix = label.map(|label| format!("{label}: ")).unwrap_or_default();
    prefix.clone() + &select(&clauses, width.saturating_sub(prefix.chars().count())).join(SEPARATOR)
}

/// The parts that fit, in their order. The most important one is always among them.
fn select(clauses: &[Clause], width: usize) -> Vec<&str> {
    let mut by_rank: Vec<&Clause> = clauses.iter().collect();
    by_rank.sort_by_key(|clause| clause.rank);
    let (mut ranks, mut length): (Vec<usize>, usize) = (Vec::new(), 0);
    for clause in by_rank {
        let separator = if ranks.is_empty() { 0 } else { SEPARATOR.len() };
        let with_it = length + separator + clause.text.chars().count();
        let is_meaningful = clause.needs.is_none_or(|needed| ranks.contains(&needed));
        if ranks.is_empty() || is_meaningful && with_it <= width {
            ranks.push(clause.rank);
            length = with_it;
        }
    }
    let shown = clauses.iter().filter(|clause| ranks.contains(&clause.rank));
    shown.map(|clause| clause.text.as_str()).collect()
}

fn share_of(bytes: &DeviceBytes) -> f64 {
    bytes.total.map_or(0.0, |total| bytes.driver as f64 / total.max(1) as f64)
}

/// `driver 1.20 GiB of 8.00 GiB (15%)`: what the program has from the driver, and its share.
fn describe_driver(bytes: &DeviceBytes) -> String {
    let driver = format_bytes(bytes.driver);
    match bytes.total {
        Some(total) => {
            format!("driver {driver} of {} ({})", format_bytes(total), format_percent(share_of(bytes)))
        }
        None => format!("driver {driver}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn important_parts_stay_in_a_narrow_terminal() {
        let mib = |number: u64| number << 20;
        let bytes = |driver, total| DeviceBytes {
            allocated: Some(mib(90)),
            reserved: Some(mib(driver)),
            driver: mib(driver),
            total,
        };
        let view = RunView {
            events: 1234,
            span_ns: 80_000_000_000,
            steps: Some(340),
            devices: [(0, bytes(100, None)), (1, bytes(512, Some(mib(1024))))].into(),
        };
        let finding = ["full in 12 min".to_owned(), "likely leak at train.py:7".to_owned()];
        let line = |width| format_line(None, &finding, &view, width);
        assert_eq!(
            line(500),
            "full in 12 min; likely leak at train.py:7; GPU 1: driver 512.00 MiB of 1.00 GiB (50%); allocated 90.00 \
             MiB, reserved 512.00 MiB; GPU 0: driver 100.00 MiB; allocated 90.00 MiB, reserved 100.00 MiB; step 340; \
             1 min 20 s; 1,234 events"
        );
        assert_eq!(
            line(100),
            "full in 12 min; likely leak at train.py:7; GPU 1: driver 512.00 MiB of 1.00 GiB (50%); step 340"
        );
        assert_eq!(line(70), "full in 12 min; GPU 1: driver 512.00 MiB of 1.00 GiB (50%); step 340");
        assert_eq!(line(5), "full in 12 min");
        assert!(format_line(Some("rank0"), &[], &view, 500).starts_with("rank0: GPU 1: driver"));
    }
}
