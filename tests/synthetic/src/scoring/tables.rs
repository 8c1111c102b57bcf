//! The tables of `docs/accuracy.md`.

use std::fmt::Write;

use super::counts::{CONFIDENCE_BINS, Counts, EVENT_BUCKETS, ForecastCounts, LeakCounts, Share};
use super::goals::goals;
use crate::streams::plan::StreamClass;

/// A number with separators of thousands.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn percent(share: Share) -> String {
    share.value().map_or_else(|| "-".to_owned(), |value| format!("{:.2}%", value * 100.0))
}

/// All tables as Markdown.
pub fn markdown(counts: &Counts) -> String {
    let mut out = String::new();
    write_goals(&mut out, counts);
    write_leaks(&mut out, counts);
    write_steps(&mut out, counts);
    write_healthy(&mut out, counts);
    write_calibration(&mut out, counts);
    write_forecasts(&mut out, counts);
    write_ambiguous(&mut out, counts);
    out
}

fn write_goals(out: &mut String, counts: &Counts) {
    let of = |class| number(counts.streams.get(&class).copied().unwrap_or(0));
    let _ = writeln!(
        out,
        "{} streams: {} leaky, {} healthy, {} ambiguous, {} until the device is full.\n\n\
         | goal | at least | measured | of | |\n|---|---|---|---|---|",
        number(counts.streams.values().sum()),
        of(StreamClass::Leaky),
        of(StreamClass::Healthy),
        of(StreamClass::Ambiguous),
        of(StreamClass::UntilFull),
    );
    for goal in goals(counts) {
        let result = if goal.is_met_within(0.0) { "met" } else { "**missed**" };
        let _ = writeln!(
            out,
            "| {} | {}% | {} | {} | {result} |",
            goal.name,
            goal.least * 100.0,
            percent(goal.measured),
            number(goal.measured.of)
        );
    }
}

fn leak_columns(counts: &LeakCounts) -> String {
    format!(
        "{} | {} | {} | {} | {} | {}",
        number(counts.found.of),
        percent(counts.found),
        counts.growth,
        counts.denied,
        percent(counts.rate),
        percent(counts.details)
    )
}

fn write_leaks(out: &mut String, counts: &Counts) {
    let _ = writeln!(
        out,
        "\n### Leaks by number of leak events\n\n\
         | leak events | leaks | found | missed, named as growth | missed, health claimed | rate within 5% \
         | period and leaf right |\n\
         |---|---|---|---|---|---|---|"
    );
    for (name, of) in EVENT_BUCKETS.iter().zip(&counts.by_events) {
        let _ = writeln!(out, "| {name} | {} |", leak_columns(of));
    }
    let _ = writeln!(
        out,
        "\n### Leaks by property\n\nLeaks of 6 events or more; the last two columns are those of 20 or more.\n\n\
         | property | value | leaks | found | growth | health claimed | rate within 5% \
         | period and leaf right | from 20 | found |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for ((name, value), [from_6, from_20]) in &counts.by_property {
        let _ = writeln!(
            out,
            "| {name} | {} | {} | {} | {} |",
            words(value),
            leak_columns(from_6),
            number(from_20.found.of),
            percent(from_20.found)
        );
    }
}

fn write_steps(out: &mut String, counts: &Counts) {
    let _ = writeln!(out, "\n| steps from | leaky streams | step count right |\n|---|---|---|");
    for (steps_by, share) in &counts.steps {
        let name = words(&format!("{steps_by:?}"));
        let _ = writeln!(out, "| {name} | {} | {} |", number(share.of), percent(*share));
    }
}

/// A variant's name as words: `SharedHelper` is `shared helper`.
pub fn words(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

fn write_healthy(out: &mut String, counts: &Counts) {
    let _ = writeln!(out, "\n### Healthy streams\n\n| steps | streams | without a finding |\n|---|---|---|");
    for (name, share) in &counts.healthy {
        let _ = writeln!(out, "| {name} | {} | {} |", number(share.of), percent(*share));
    }
    let _ = writeln!(out, "\n| main part | streams | without a finding |\n|---|---|---|");
    for (name, share) in &counts.healthy_by_part {
        let _ = writeln!(out, "| {} | {} | {} |", name.replace('_', " "), number(share.of), percent(*share));
    }
    let alarms: u64 = counts.alarms.values().sum();
    let _ = writeln!(
        out,
        "\nOf {} findings in leaky and healthy streams, {} are at planted lines. False findings, of all\n\
         classes but the last, are in these files ({} in all):\n\n| file | findings |\n|---|---|",
        number(counts.true_findings.of),
        number(counts.true_findings.good),
        number(alarms)
    );
    for (file, count) in &counts.alarms {
        let _ = writeln!(out, "| `{}` | {} |", file.trim_start_matches("/work/"), number(*count));
    }
}

fn write_calibration(out: &mut String, counts: &Counts) {
    let _ = writeln!(
        out,
        "\n### Calibration of confidence\n\n\
         | confidence | findings | mean confidence | true |\n|---|---|---|---|"
    );
    let mut from = 0.0;
    for ((to, share), sum) in CONFIDENCE_BINS.iter().zip(counts.confidence).zip(counts.confidence_sum) {
        if share.of > 0 {
            let mean = sum / share.of as f64;
            let _ =
                writeln!(out, "| {from} to {to} | {} | {mean:.3} | {} |", number(share.of), percent(share));
        }
        from = *to;
    }
}

fn forecast_columns(counts: &ForecastCounts) -> String {
    let mut widths = counts.widths.clone();
    widths.sort_by(f64::total_cmp);
    let quantile = |tenths: usize| {
        let at = (widths.len() * tenths / 10).min(widths.len().saturating_sub(1));
        widths.get(at).map_or_else(|| "-".to_owned(), |width| format!("{:.0}%", width * 100.0))
    };
    format!(
        "{} | {} | {} | {} | {} | {} | {}",
        number(counts.given.of),
        percent(counts.given),
        percent(counts.covered),
        percent(counts.near),
        quantile(5),
        quantile(9),
        counts.open
    )
}

fn write_forecasts(out: &mut String, counts: &Counts) {
    let columns = "forecasts asked | given | interval has the true step | expected step within 10% \
                   | median width | 90% of widths below | no latest step |\n|---|---|---|---|---|---|---|---|";
    let _ = writeln!(out, "\n### Step of the out-of-memory error\n\n| cut at | {columns}");
    for (cut, of) in &counts.forecasts {
        let _ = writeln!(out, "| {cut}% | {} |", forecast_columns(of));
    }
    let _ = writeln!(out, "\n| all cuts | {columns}");
    for ((name, value), of) in &counts.forecasts_by_property {
        let _ = writeln!(out, "| {name}: {} | {} |", words(value), forecast_columns(of));
    }
}

fn write_ambiguous(out: &mut String, counts: &Counts) {
    let _ = writeln!(out, "\n### Ambiguous streams\n\n| memory | streams | reported in |\n|---|---|---|");
    for (name, classes) in &counts.ambiguous {
        let list: Vec<String> = classes.iter().map(|(class, count)| format!("{class} {count}")).collect();
        let streams: u64 = classes.values().sum();
        let _ = writeln!(out, "| {} | {} | {} |", name.replace('_', " "), number(streams), list.join(", "));
    }
}
