//! What of a report is wanted: devices, lines, and how many rows of each list.
//!
//! Definitions. A row or a finding is of a line if the line itself, or any frame of the stack that is shown with it, fits the pattern
//! ([`crate::budget::SitePattern`]; the `id` of a site fits as well); of a finding of several lines one is enough. An
//! out-of-memory is of a line if it was asked for there, or if one of its rows is.
//!
//! Constraint: rows that are left out are part of sums that stay. Consequence: beside each list stands how many rows of it were left
//! out, and what they come to ([`Omitted`]).

use crate::budget::SitePattern;
use crate::pass::Analysis;
use crate::report::{Cause, Leak, Omitted, Oom, Report, Site, SiteShare, StackFrame};
use crate::state::live_set::LiveSet;
use crate::util::block_totals::saturating_sum;

impl Analysis {
    /// Leaves only these devices: as if nothing had happened on the others. Pinned memory is the host's, so it goes too.
    pub fn keep_devices(&mut self, ordinals: &[u8]) {
        self.devices.retain(|(ordinal, _)| ordinals.contains(ordinal));
        self.ooms.retain(|oom| ordinals.contains(&oom.event.device));
        let counts = self.oom_counts.iter().filter(|(ordinal, _)| ordinals.contains(ordinal));
        self.oom_count = counts.map(|(_, count)| count).sum();
        for phase in &mut self.phases {
            phase.devices.retain(|(ordinal, _)| ordinals.contains(ordinal));
        }
        self.host = LiveSet::default();
        self.host.finish();
    }

    /// False where what is reserved cannot be told of the part that was asked for.
    pub(crate) fn knows_reserved(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.segment_mismatches == 0)
    }
}

/// Lines that are asked for.
#[derive(Clone, Debug)]
pub struct SiteFilter {
    pattern: SitePattern,
    text: String,
}

impl From<&str> for SiteFilter {
    fn from(text: &str) -> Self {
        Self { pattern: SitePattern::new(text), text: text.to_owned() }
    }
}

impl SiteFilter {
    fn has(&self, site: &Site) -> bool {
        site.id == self.text
            || self.pattern.matches_site(site)
            || site.stack.iter().any(|frame: &StackFrame| self.pattern.matches_frame(frame))
    }

    fn has_leak(&self, leak: &Leak) -> bool {
        let members = leak.members.iter().chain(&leak.leaf).chain(&leak.backward_calls);
        self.has(&leak.site) || members.into_iter().any(|site| self.has(site))
    }
}

/// Which rows stay.
enum RowFilter<'a> {
    OfLines(&'a SiteFilter),
    First(usize),
}

impl RowFilter<'_> {
    /// Leaves those rows; what the others come to is added to what was left out before.
    fn cut<T>(
        &self,
        rows: &mut Vec<T>,
        left_out: &mut Option<Omitted>,
        is_it: impl Fn(&SiteFilter, &T) -> bool,
        bytes: impl Fn(&T) -> Option<u64>,
    ) {
        let mut out = Omitted { count: 0, bytes: Some(0) };
        let mut at = 0;
        rows.retain(|row| {
            let stays = match self {
                Self::OfLines(lines) => is_it(lines, row),
                Self::First(most) => at < *most,
            };
            at += 1;
            if !stays {
                out.count += 1;
                out.bytes = out.bytes.zip(bytes(row)).map(|(sum, bytes)| sum.saturating_add(bytes));
            }
            stays
        });
        if let Some(before) = left_out {
            out.count += before.count;
            out.bytes = out.bytes.zip(before.bytes).map(|(a, b)| a.saturating_add(b));
        }
        *left_out = Some(out);
    }

    fn apply(&self, report: &mut Report) {
        let mut outer = report.left_out.take().unwrap_or_default();
        for timeline in report.timelines.iter_mut().flatten().chain(&mut report.timeline) {
            // What they held at each point is what the points hold more than the bands.
            self.cut(
                &mut timeline.bands,
                &mut timeline.left_out,
                |lines, band| lines.has(&band.site),
                |_| None,
            );
        }
        for moment in report.fragmentation.iter_mut().flatten() {
            self.causes(&mut moment.causes);
        }
        for peak in report.peak.iter_mut().flatten() {
            self.shares(&mut peak.sites, &mut peak.left_out);
        }
        for instant in report.instants.iter_mut().flatten() {
            self.shares(&mut instant.sites, &mut instant.left_out);
        }
        for course in report.gap_over_time.iter_mut().flatten() {
            // Means over time are no parts of a sum.
            self.cut(
                &mut course.kept_by,
                &mut course.left_out,
                |lines, keeper| lines.has(&keeper.site),
                |_| None,
            );
        }
        if let Some(ooms) = &mut report.oom {
            for oom in ooms.iter_mut() {
                self.oom(oom);
            }
            self.cut(
                ooms,
                &mut outer.oom,
                |lines, oom| lines.has(&oom.site) || !oom.sites.is_empty() || !oom.growth.is_empty(),
                |_| None,
            );
        }
        if let Some(leaks) = &mut report.leaks {
            self.cut(leaks, &mut outer.leaks, SiteFilter::has_leak, |leak| Some(leak.bytes));
        }
        if let Some(silent) = &mut report.silent_growth {
            self.cut(
                silent,
                &mut outer.silent_growth,
                |lines, one| lines.has(&one.site),
                |one| Some(one.bytes),
            );
        }
        match self {
            Self::First(_) => self.cut(&mut report.phases, &mut outer.phases, |_, _| true, |_| None),
            Self::OfLines(_) => {
                // What a verdict says of a leak that is not shown is not either; its others are of the device.
                let leaks: Vec<&str> = report.leaks.iter().flatten().map(|leak| &*leak.site.id).collect();
                if let Some(verdicts) = &mut report.verdicts {
                    verdicts.retain(|verdict| {
                        let of = verdict.evidence.get("site").and_then(serde_json::Value::as_str);
                        verdict.kind != "leak" || of.is_none_or(|site| leaks.contains(&site))
                    });
                }
            }
        }
        report.left_out = Some(outer);
    }

    fn oom(&self, oom: &mut Oom) {
        self.shares(&mut oom.sites, &mut oom.left_out);
        let named = saturating_sum(oom.sites.iter().map(|one| one.bytes));
        if let Some(out) = &mut oom.left_out {
            // Only the largest are named in any case.
            out.bytes = Some(oom.live_bytes.saturating_sub(named));
        }
        let mut grown = None;
        self.cut(&mut oom.growth, &mut grown, |lines, one| lines.has(&one.site), |one| Some(one.bytes));
        self.causes(&mut oom.unused);
    }

    fn shares(&self, sites: &mut Vec<SiteShare>, left_out: &mut Option<Omitted>) {
        self.cut(sites, left_out, |lines, share| lines.has(&share.site), |share| Some(share.bytes));
    }

    fn causes(&self, causes: &mut [Cause]) {
        for cause in causes.iter_mut().filter(|cause| !cause.culprits.is_empty()) {
            self.cut(
                &mut cause.culprits,
                &mut cause.left_out,
                |lines, one| lines.has(&one.site),
                |one| Some(one.bytes),
            );
            // Of many only the largest are named, with or without a selection.
            let named = saturating_sum(cause.culprits.iter().map(|one| one.bytes));
            if let Some(out) = &mut cause.left_out {
                out.bytes = Some(cause.bytes.saturating_sub(named));
            }
        }
    }
}

/// Leaves the rows and findings of these lines. Sites must have their names by then. False if there are none.
pub fn keep_sites(report: &mut Report, lines: &SiteFilter) -> bool {
    RowFilter::OfLines(lines).apply(report);
    let Report { leaks, silent_growth, oom, peak, fragmentation, timelines, instants, .. } = &*report;
    leaks.iter().flatten().next().is_some()
        || silent_growth.iter().flatten().next().is_some()
        || oom.iter().flatten().next().is_some()
        || peak.iter().flatten().any(|peak| !peak.sites.is_empty())
        || instants.iter().flatten().any(|instant| !instant.sites.is_empty())
        || fragmentation.iter().flatten().flat_map(|m| &m.causes).any(|cause| !cause.culprits.is_empty())
        || timelines.iter().flatten().any(|timeline| !timeline.bands.is_empty())
}

/// Leaves so many rows of each list, the first ones.
pub fn truncate_lists(report: &mut Report, most: usize) {
    RowFilter::First(most).apply(report);
}
