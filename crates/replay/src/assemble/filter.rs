//! Limits a report to devices, to call sites, or to the first rows of each list.
//!
//! A row matches a call site pattern ([`crate::budget::SitePattern`], or the `id` of a site) if its
//! site or any frame of the stack shown with it does. A leak also matches by one of its members, an
//! out-of-memory error by one of its rows. Removed rows are part of sums that stay, so each list
//! counts them and their bytes ([`Omitted`]).

use crate::budget::SitePattern;
use crate::pass::Analysis;
use crate::report::{
    Cause, Leak, Omitted, OmittedLists, Oom, Report, Site, SiteShare, StackFrame, VerdictEvidence,
};
use crate::state::live_set::LiveSet;
use crate::util::block_totals::saturating_sum;

impl Analysis {
    /// Removes all other devices, and pinned host memory.
    pub fn keep_devices(&mut self, ordinals: &[u8]) {
        self.devices.retain(|(ordinal, _)| ordinals.contains(ordinal));
        self.ooms.retain(|oom| ordinals.contains(&oom.event.device));
        self.setting_effects.retain(|effects| ordinals.iter().any(|one| u32::from(*one) == effects.device));
        let counts = self.oom_counts.iter().filter(|(ordinal, _)| ordinals.contains(ordinal));
        self.oom_count = counts.map(|(_, count)| count).sum();
        for phase in &mut self.phases {
            phase.devices.retain(|(ordinal, _)| ordinals.contains(ordinal));
        }
        self.host = LiveSet::default();
        self.host.finish(|_, _| None);
    }

    /// False if reserved bytes are unknown for the analysed stream.
    pub(crate) fn knows_reserved(&self) -> bool {
        self.stream.as_ref().is_none_or(|stream| stream.segment_mismatches == 0)
    }
}

/// A pattern of call sites to keep.
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
    fn matches(&self, site: &Site) -> bool {
        site.id == self.text
            || self.pattern.matches_site(site)
            || site.stack.iter().any(|frame: &StackFrame| self.pattern.matches_frame(frame))
    }

    fn matches_leak(&self, leak: &Leak) -> bool {
        let members = leak.members.iter().chain(&leak.leaf).chain(&leak.backward_calls);
        self.matches(&leak.site) || members.into_iter().any(|site| self.matches(site))
    }
}

/// The rows to keep.
enum RowFilter<'a> {
    Matching(&'a SiteFilter),
    First(usize),
}

impl RowFilter<'_> {
    /// Removes the other rows, and adds them to those that were omitted before.
    fn retain<T>(
        &self,
        rows: &mut Vec<T>,
        omitted: &mut Option<Omitted>,
        is_match: impl Fn(&SiteFilter, &T) -> bool,
        bytes: impl Fn(&T) -> Option<u64>,
    ) {
        let mut out = Omitted { count: 0, bytes: Some(0) };
        let mut at = 0;
        rows.retain(|row| {
            let stays = match self {
                Self::Matching(pattern) => is_match(pattern, row),
                Self::First(most) => at < *most,
            };
            at += 1;
            if !stays {
                out.count += 1;
                out.bytes = out.bytes.zip(bytes(row)).map(|(sum, bytes)| sum.saturating_add(bytes));
            }
            stays
        });
        if let Some(before) = omitted {
            out.count += before.count;
            out.bytes = out.bytes.zip(before.bytes).map(|(a, b)| a.saturating_add(b));
        }
        *omitted = Some(out);
    }

    fn apply(&self, report: &mut Report) {
        let mut outer = report.omitted.take().unwrap_or_default();
        for timeline in report.timelines.iter_mut().flatten().chain(&mut report.timeline) {
            self.retain(
                &mut timeline.bands,
                &mut timeline.omitted,
                |pattern, band| pattern.matches(&band.site),
                |_| None,
            );
        }
        for moment in report.fragmentation.iter_mut().flatten() {
            self.causes(&mut moment.causes);
        }
        for peak in report.peak.iter_mut().flatten() {
            self.shares(&mut peak.sites, &mut peak.omitted);
        }
        for snapshot in report.snapshots.iter_mut().flatten() {
            self.shares(&mut snapshot.sites, &mut snapshot.omitted);
        }
        for history in report.fragmentation_over_time.iter_mut().flatten() {
            // Means over time do not sum to anything.
            self.retain(
                &mut history.pinned_by,
                &mut history.omitted,
                |pattern, one| pattern.matches(&one.site),
                |_| None,
            );
        }
        if let Some(ooms) = &mut report.oom {
            for oom in ooms.iter_mut() {
                self.oom(oom);
            }
            let has_match = |pattern: &SiteFilter, oom: &Oom| {
                pattern.matches(&oom.site) || !oom.sites.is_empty() || !oom.growth.is_empty()
            };
            self.retain(ooms, &mut outer.oom, has_match, |_| None);
        }
        self.growth(report, &mut outer);
        match self {
            Self::First(_) => self.retain(&mut report.phases, &mut outer.phases, |_, _| true, |_| None),
            Self::Matching(_) => keep_verdicts_of_rows(report),
        }
        report.omitted = Some(outer);
    }

    /// Leaks, and other growth.
    fn growth(&self, report: &mut Report, outer: &mut OmittedLists) {
        if let Some(leaks) = &mut report.leaks {
            self.retain(leaks, &mut outer.leaks, SiteFilter::matches_leak, |leak| Some(leak.bytes));
        }
        for assessment in report.leak_assessment.iter_mut().flatten() {
            self.retain(
                &mut assessment.growth,
                &mut assessment.omitted,
                |pattern, one| pattern.matches(&one.site),
                |one| Some(one.bytes),
            );
        }
        if let Some(benign) = &mut report.benign_growth {
            self.retain(
                benign,
                &mut outer.benign_growth,
                |pattern, one| pattern.matches(&one.site),
                |one| Some(one.bytes),
            );
        }
    }

    fn oom(&self, oom: &mut Oom) {
        self.shares(&mut oom.sites, &mut oom.omitted);
        let named = saturating_sum(oom.sites.iter().map(|one| one.bytes));
        if let Some(out) = &mut oom.omitted {
            // The list has only the largest, with or without a filter.
            out.bytes = Some(oom.live_bytes.saturating_sub(named));
        }
        let mut grown = None;
        self.retain(
            &mut oom.growth,
            &mut grown,
            |pattern, one| pattern.matches(&one.site),
            |one| Some(one.bytes),
        );
        let mut unchanged = None;
        self.retain(
            &mut oom.unchanged,
            &mut unchanged,
            |pattern, one| pattern.matches(&one.site),
            |one| Some(one.bytes),
        );
        self.causes(&mut oom.unused_causes);
    }

    fn shares(&self, sites: &mut Vec<SiteShare>, omitted: &mut Option<Omitted>) {
        self.retain(sites, omitted, |pattern, share| pattern.matches(&share.site), |share| Some(share.bytes));
    }

    fn causes(&self, causes: &mut [Cause]) {
        for cause in causes.iter_mut().filter(|cause| !cause.culprits.is_empty()) {
            self.retain(
                &mut cause.culprits,
                &mut cause.omitted,
                |pattern, one| pattern.matches(&one.site),
                |one| Some(one.bytes),
            );
            // The list has only the largest, with or without a filter.
            let named = saturating_sum(cause.culprits.iter().map(|one| one.bytes));
            if let Some(out) = &mut cause.omitted {
                out.bytes = Some(cause.bytes.saturating_sub(named));
            }
        }
    }
}

/// Removes the verdicts on call sites that the report no longer lists. The others are about the
/// device.
fn keep_verdicts_of_rows(report: &mut Report) {
    let leaks: Vec<&str> = report.leaks.iter().flatten().map(|leak| &*leak.site.id).collect();
    let growth = report.leak_assessment.iter().flatten().flat_map(|one| &one.growth);
    let growing: Vec<&str> = growth.map(|growth| &*growth.site.id).collect();
    if let Some(verdicts) = &mut report.verdicts {
        verdicts.retain(|verdict| match &verdict.evidence {
            VerdictEvidence::Leak { site, .. } => leaks.contains(&&*site.id),
            VerdictEvidence::Growth { site, .. } => growing.contains(&&*site.id),
            _ => true,
        });
    }
}

/// Keeps the rows and leaks that match. Native sites must have names by then. False if nothing
/// matches.
pub fn keep_sites(report: &mut Report, pattern: &SiteFilter) -> bool {
    RowFilter::Matching(pattern).apply(report);
    let Report { leaks, benign_growth, oom, peak, fragmentation, timelines, snapshots, .. } = &*report;
    leaks.iter().flatten().next().is_some()
        || benign_growth.iter().flatten().next().is_some()
        || oom.iter().flatten().next().is_some()
        || peak.iter().flatten().any(|peak| !peak.sites.is_empty())
        || snapshots.iter().flatten().any(|snapshot| !snapshot.sites.is_empty())
        || fragmentation.iter().flatten().flat_map(|m| &m.causes).any(|cause| !cause.culprits.is_empty())
        || timelines.iter().flatten().any(|timeline| !timeline.bands.is_empty())
}

/// Keeps the first rows of each list, at most this many.
pub fn truncate_lists(report: &mut Report, most: usize) {
    RowFilter::First(most).apply(report);
}
