//! Many ranks of two runs: how much each quantity and call site changed over the ranks.

use gpumemtrace_multirun::{ChangeSpread, RankComparison, UnpairedTrace};
use gpumemtrace_replay::report::{AmountUnit, Quantity};

use super::leak_word;
use crate::render::wording::comparison::format_change;
use crate::render::wording::ranks::format_ranks;
use crate::render::wording::sites::short_site;
use crate::render::wording::{Vocabulary, name_total};
use crate::terminal::escape::escape_text;
use crate::terminal::format::{format_count, format_number, put_line};
use crate::terminal::layout;
use crate::terminal::marks::HANG;
use crate::terminal::style::Style;
use crate::terminal::units::format_bytes;

/// Most paths of traces without a rank, and most leaks, without `--top`.
const MAX_ROWS: usize = 10;
/// Columns of the names of quantities.
const NAME_WIDTH: usize = 32;
/// Columns of each number.
const NUMBER_WIDTH: usize = 14;

/// The ranks, what is missing, and what differs, with at most `most` call sites.
pub(in crate::render::text) fn render_ranks(ranks: &RankComparison, most: usize, style: Style) -> String {
    let mut out = String::new();
    let differ = ranks.pairs.iter().filter(|pair| pair.differs).count() as u64;
    let count = format_count(ranks.pairs.len() as u64, "rank");
    let found = match differ {
        0 => "no difference".to_owned(),
        1 => "1 differs".to_owned(),
        _ => format!("{} differ", format_number(differ)),
    };
    put_line(&mut out, format_args!("{}", style.bold(&format!("{count} compared: {found}"))));
    render_gaps(&mut out, ranks, style);
    for note in &ranks.notes {
        let (of_ranks, message) = (format_ranks(&note.ranks), &note.note.message);
        put_line(&mut out, format_args!("  {HANG}Note for {of_ranks}: {message}."));
    }
    render_leaks(&mut out, ranks, style);
    render_totals(&mut out, ranks, style);
    render_lines(&mut out, ranks, most, style);
    layout::finish_text(&out, style)
}

fn render_gaps(out: &mut String, ranks: &RankComparison, style: Style) {
    let mut warn = |text: String| put_line(out, format_args!("  {HANG}{}", style.warn(&format!("! {text}"))));
    if !ranks.unreadable.is_empty() {
        warn(format!("{} cannot be read", format_count(ranks.unreadable.len() as u64, "trace")));
    }
    let incomplete: Vec<u64> =
        ranks.pairs.iter().filter(|pair| !pair.complete).map(|pair| pair.rank).collect();
    if !incomplete.is_empty() {
        warn(format!("incomplete, so that numbers are lower bounds: {}", format_ranks(&incomplete)));
    }
    for (run, name) in ["first", "second"].into_iter().enumerate() {
        let of_run = |is_repeated: bool| {
            let these =
                ranks.unpaired.iter().filter(move |one| one.run == run && one.is_repeated == is_repeated);
            let mut found: Vec<u64> = these.filter_map(|one| one.rank).collect();
            found.dedup();
            found
        };
        let (alone, repeated) = (of_run(false), of_run(true));
        if !alone.is_empty() {
            warn(format!("only in the {name} run: {}", format_ranks(&alone)));
        }
        if !repeated.is_empty() {
            warn(format!(
                "several traces of one rank in the {name} run, not compared: {}",
                format_ranks(&repeated)
            ));
        }
    }
    let unnamed: Vec<&UnpairedTrace> = ranks.unpaired.iter().filter(|one| one.rank.is_none()).collect();
    for one in unnamed.iter().take(style.row_limit(MAX_ROWS)) {
        warn(format!("without a rank, not compared: {}", escape_text(&one.path)));
    }
    if let Some(more) = unnamed.len().checked_sub(style.row_limit(MAX_ROWS)).filter(|more| *more > 0) {
        warn(format!("{} without a rank", format_count(more as u64, "more trace")));
    }
}

fn render_leaks(out: &mut String, ranks: &RankComparison, style: Style) {
    if ranks.leaks.is_empty() {
        return;
    }
    out.push('\n');
    put_line(out, format_args!("{}", style.bold("Leaks")));
    let most = style.row_limit(MAX_ROWS);
    for leak in ranks.leaks.iter().take(most) {
        let word = leak_word(leak.status, style);
        let rate = match leak.most_bytes_per_step {
            Some(Quantity(rate)) if rate >= 0.0 => format!("+{}/step at ", format_bytes(rate as u64)),
            _ => String::new(),
        };
        let (site, ranks) = (short_site(&leak.site), format_ranks(&leak.ranks));
        put_line(out, format_args!("  {word}: {HANG}{rate}{site}: {ranks}"));
    }
    if let Some(more) = ranks.leaks.len().checked_sub(most).filter(|more| *more > 0) {
        put_line(out, format_args!("  and {}", format_count(more as u64, "more leak")));
    }
}

fn render_totals(out: &mut String, ranks: &RankComparison, style: Style) {
    if ranks.totals.is_empty() {
        return;
    }
    let all = ranks.pairs.len() as u64;
    let title = style.bold(&format!("{:<NAME_WIDTH$}", "Change over the ranks"));
    out.push('\n');
    put_line(out, format_args!("{title}{:>NUMBER_WIDTH$}{:>NUMBER_WIDTH$}", "median", "largest"));
    for total in &ranks.totals {
        let name = format!("  {}", name_total(&total.name, &[Vocabulary::CUDA, Vocabulary::CUDA]));
        let known = format!("  (known in {} of {})", format_number(total.known), format_count(all, "rank"));
        let Some(spread) = total.change else {
            put_line(out, format_args!("{name:<NAME_WIDTH$}{:>NUMBER_WIDTH$}", "unknown"));
            continue;
        };
        let change = |change: i64| format_change(change, total.unit == AmountUnit::Bytes);
        let (median, largest) = (change(spread.median), describe_extremes(&spread, change));
        let known = if total.known == all { "" } else { &known };
        put_line(out, format_args!("{name:<NAME_WIDTH$}{median:>NUMBER_WIDTH$}{largest}{known}"));
    }
}

/// The change furthest from 0 with its rank, and the largest one in the other direction.
fn describe_extremes(spread: &ChangeSpread, format: impl Fn(i64) -> String) -> String {
    let most = (spread.most, spread.most_rank);
    let least = (spread.least, spread.least_rank);
    let is_decrease = least.0.unsigned_abs() > most.0.unsigned_abs();
    let ((first, first_rank), (other, other_rank)) = if is_decrease { (least, most) } else { (most, least) };
    let of_rank = if first == 0 { String::new() } else { format!("  rank {first_rank}") };
    let is_opposite = first.signum() * other.signum() < 0;
    let opposite = if is_opposite { format!(", {} rank {other_rank}", format(other)) } else { String::new() };
    format!("{:>NUMBER_WIDTH$}{of_rank}{opposite}", format(first))
}

fn render_lines(out: &mut String, ranks: &RankComparison, most: usize, style: Style) {
    if ranks.lines.is_empty() {
        return;
    }
    let title =
        style.bold(&format!("{:<NUMBER_WIDTH$}", format_count(ranks.lines.len() as u64, "call site")));
    out.push('\n');
    put_line(
        out,
        format_args!(
            "{title}{:>NUMBER_WIDTH$}{:>NUMBER_WIDTH$}{:>NUMBER_WIDTH$}  (median of these ranks)",
            "at peak", "retained", "per step"
        ),
    );
    for line in ranks.lines.iter().take(most) {
        let share = match line.ranks.len() {
            all if all == ranks.pairs.len() => "all ranks".to_owned(),
            1 => format!("rank {}", line.ranks[0]),
            some => format!("{} ranks", format_number(some as u64)),
        };
        let [at_peak, retained] =
            [line.at_peak_bytes, line.retained_bytes].map(|change| format_change(change.median, true));
        let per_step =
            line.bytes_per_step.map(|change| format_change(change.median, true)).unwrap_or_default();
        put_line(
            out,
            format_args!(
                "{share:<NUMBER_WIDTH$}{at_peak:>NUMBER_WIDTH$}{retained:>NUMBER_WIDTH$}{per_step:>NUMBER_WIDTH$}  {HANG}{}",
                short_site(&line.site)
            ),
        );
    }
    if let Some(more) = ranks.lines.len().checked_sub(most).filter(|more| *more > 0) {
        let more = format_count(more as u64, "more call site");
        put_line(out, format_args!("  and {more} (--top N lists more)"));
    }
}
