//! The comparison of two runs, as `--json` prints it. `docs/comparison.schema.json` is the same for other languages.
//!
//! Constraint: as for [`mod@crate::report`]. Consequence: what is unknown is `null`, what does not differ is not there, and two runs
//! that do not differ have four empty lists.

use serde::Serialize;

use super::backends::BackendComparison;
use super::profile::Profile;
use crate::report::display::Vocabulary;
use crate::report::{Leak, Quantity, Site};

/// Two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Always `gpumemtrace.comparison`.
    pub schema: &'static str,
    /// Of this layout.
    pub version: u32,
    /// The one before and the one after.
    pub runs: [ComparedRun; 2],
    /// The steps that were held against each other; `null` where none were.
    pub steps: Option<ComparedSteps>,
    /// What the reader should know: one sentence each.
    pub notes: Vec<String>,
    /// True if any of the lists below has something.
    pub differs: bool,
    /// Quantities of the whole that differ.
    pub totals: Vec<TotalChange>,
    /// Lines that differ, largest change first.
    pub lines: Vec<LineChange>,
    /// Findings that appeared, went, or grow at another rate.
    pub leaks: Vec<LeakChange>,
    /// Lines that ran out of memory more or less often.
    pub ooms: Vec<OomChange>,
    /// What leaked and what was pinned; only where the runs are on different backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub across: Option<BackendComparison>,
}

/// One of them.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRun {
    /// As given.
    pub path: String,
    /// Its command line.
    pub command: Option<Vec<String>>,
    /// Version.
    pub torch: Option<String>,
    /// How steps were told.
    pub step_source: Option<&'static str>,
    /// How many ended.
    pub steps: Option<u64>,
    /// True when nothing is missing.
    pub complete: bool,
    /// What is, one sentence each.
    pub incomplete: Vec<String>,
    /// What things are called in it.
    #[serde(skip)]
    pub words: Vocabulary,
}

impl ComparedRun {
    pub(super) fn of(profile: &Profile<'_>) -> Self {
        let analysis = profile.analysis;
        Self {
            path: analysis.path.clone(),
            command: Some(analysis.meta.list("command").to_vec()).filter(|command| !command.is_empty()),
            torch: analysis.meta.text("torch").map(str::to_owned),
            step_source: analysis.step_source.name(),
            steps: profile.steps.map(u64::from),
            complete: analysis.incomplete.is_empty(),
            incomplete: analysis.incomplete.clone(),
            words: analysis.vocabulary(),
        }
    }
}

/// The steps that were compared, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ComparedSteps {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// How many.
    pub count: u64,
}

/// What became of a line or a finding. Findings are listed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeStatus {
    /// Only the second run has it.
    Appeared,
    /// More in the second run.
    Grew,
    /// Neither more nor less, and not the same.
    Changed,
    /// Less in the second run.
    Shrank,
    /// Only the first run has it.
    Disappeared,
}

/// A number in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AmountChange {
    /// In the first.
    pub before: u64,
    /// In the second.
    pub after: u64,
    /// Second minus first.
    pub change: i64,
}

impl AmountChange {
    /// From one to the other.
    pub(crate) fn new(before: u64, after: u64) -> Self {
        let change = i128::from(after) - i128::from(before);
        let change = change.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Self { before, after, change }
    }
}

/// A quantity of the whole run or of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TotalChange {
    /// Ordinal; `null` for the whole run.
    pub device: Option<u32>,
    /// `peak_live_bytes`, `peak_reserved_bytes`, `peak_device_bytes`, `held_by.*` (at the peak of device bytes), `gap_bytes` and
    /// `gap.*` (at the peak of reserved bytes), `retained_bytes`, `peak_bytes_per_step`, `bytes_per_step`, `allocations_per_step`,
    /// `steps`, `ooms`.
    pub name: String,
    /// `bytes`, `blocks` or `count`.
    pub unit: &'static str,
    /// In the first run; `null` where it is not known.
    pub before: Option<u64>,
    /// In the second.
    pub after: Option<u64>,
    /// Second minus first.
    pub change: Option<i64>,
}

impl TotalChange {
    /// `None` where nothing differs.
    pub(super) fn of(
        device: Option<u8>,
        name: &str,
        unit: &'static str,
        before: Option<u64>,
        after: Option<u64>,
    ) -> Option<Self> {
        let change = before.zip(after).map(|(before, after)| AmountChange::new(before, after).change);
        let device = device.map(u32::from);
        (before != after).then(|| Self { device, name: name.to_owned(), unit, before, after, change })
    }

    /// True for what is no part of another quantity.
    pub(crate) fn is_whole(&self) -> bool {
        !self.name.contains('.')
    }
}

/// A line on a device.
#[derive(Clone, Debug, Serialize)]
pub struct LineChange {
    /// Ordinal.
    pub device: u32,
    /// By the first of the quantities below, in their order, of which there is more or less.
    pub status: ChangeStatus,
    /// In the first run.
    pub before: Option<Site>,
    /// In the second run.
    pub after: Option<Site>,
    /// Held at the device's peak of live bytes.
    pub at_peak_bytes: AmountChange,
    /// In so many blocks.
    pub at_peak_blocks: AmountChange,
    /// Live at the end of the last step that is compared; without steps, at the end.
    pub retained_bytes: AmountChange,
    /// In so many blocks.
    pub retained_blocks: AmountChange,
    /// Growth of what it holds, in bytes per step: before and after.
    pub growth_bytes_per_step: Option<[Quantity; 2]>,
    /// Allocated in a step: the median.
    pub bytes_per_step: Option<AmountChange>,
    /// In so many allocations.
    pub allocations_per_step: Option<AmountChange>,
    /// In the whole run; only where there are no steps.
    pub allocations: Option<AmountChange>,
    /// In how many steps it does not allocate the same.
    pub steps_that_differ: Option<u64>,
}

impl LineChange {
    /// What it is called: in the second run, if it is there.
    pub fn site(&self) -> Option<&Site> {
        self.after.as_ref().or(self.before.as_ref())
    }

    fn changes(&self) -> impl Iterator<Item = i64> {
        let always = [self.at_peak_bytes, self.retained_bytes, self.at_peak_blocks, self.retained_blocks];
        let by_steps = [self.bytes_per_step, self.allocations_per_step, self.allocations];
        always.into_iter().chain(by_steps.into_iter().flatten()).map(|change| change.change)
    }

    pub(super) fn direction(&self) -> ChangeStatus {
        match self.changes().find(|change| *change != 0) {
            Some(change) if change > 0 => ChangeStatus::Grew,
            Some(_) => ChangeStatus::Shrank,
            None => ChangeStatus::Changed,
        }
    }

    /// By what it is sorted: bytes that stay go before bytes that come and go.
    pub(super) fn weight(&self) -> (u64, u64) {
        let lasting = self.at_peak_bytes.change.unsigned_abs().max(self.retained_bytes.change.unsigned_abs());
        (lasting, self.bytes_per_step.map_or(0, |change| change.change.unsigned_abs()))
    }

    pub(super) fn place(&self) -> (Option<String>, Option<u32>, String) {
        let site = self.site();
        let id = site.map(|site| site.id.clone()).unwrap_or_default();
        (site.and_then(|site| site.file.clone()), site.and_then(|site| site.line), id)
    }
}

/// A finding in one of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct LeakSide {
    /// Whose.
    pub site: Site,
    /// As in the report.
    pub shape: &'static str,
    /// At the end of the last complete step of that run.
    pub bytes: u64,
    /// Growth.
    pub bytes_per_step: Option<Quantity>,
    /// Growth.
    pub blocks_per_step: Option<Quantity>,
}

impl LeakSide {
    pub(super) fn of(leak: &Leak) -> Self {
        Self {
            site: leak.site.clone(),
            shape: leak.shape,
            bytes: leak.bytes,
            bytes_per_step: leak.bytes_per_step,
            blocks_per_step: leak.blocks_per_step,
        }
    }

    pub(super) fn rate(&self) -> (Option<f64>, Option<f64>) {
        (self.bytes_per_step.map(|rate| rate.0), self.blocks_per_step.map(|rate| rate.0))
    }
}

/// A finding that is not the same in both.
#[derive(Clone, Debug, Serialize)]
pub struct LeakChange {
    /// Ordinal.
    pub device: u32,
    /// `tensors`, `device`, `pinned_host` or `reserved`.
    pub kind: &'static str,
    /// By its rate.
    pub status: ChangeStatus,
    /// In the first run.
    pub before: Option<LeakSide>,
    /// In the second run.
    pub after: Option<LeakSide>,
}

impl LeakChange {
    pub(super) fn bytes(&self) -> u64 {
        [&self.before, &self.after].into_iter().flatten().map(|side| side.bytes).max().unwrap_or(0)
    }
}

/// A line that ran out of memory more or less often.
#[derive(Clone, Debug, Serialize)]
pub struct OomChange {
    /// In the first run.
    pub before: Option<Site>,
    /// In the second run.
    pub after: Option<Site>,
    /// How often, of the first ones of each run.
    pub count: AmountChange,
}

impl Comparison {
    pub(super) fn new(runs: [ComparedRun; 2], notes: Vec<String>) -> Self {
        Self {
            schema: "gpumemtrace.comparison",
            version: 1,
            runs,
            steps: None,
            notes,
            differs: false,
            totals: Vec::new(),
            lines: Vec::new(),
            leaks: Vec::new(),
            ooms: Vec::new(),
            across: None,
        }
    }

    pub(super) fn conclude(&mut self) {
        let is_empty =
            self.totals.is_empty() && self.lines.is_empty() && self.leaks.is_empty() && self.ooms.is_empty();
        self.differs = !is_empty;
    }

    /// All sites of one of the runs: 0 or 1.
    pub fn sites_of(&mut self, run: usize) -> impl Iterator<Item = &mut Site> {
        fn side<'a, T>(run: usize, before: &'a mut Option<T>, after: &'a mut Option<T>) -> Option<&'a mut T> {
            if run == 0 { before.as_mut() } else { after.as_mut() }
        }
        let lines =
            self.lines.iter_mut().filter_map(move |line| side(run, &mut line.before, &mut line.after));
        let leaks =
            self.leaks.iter_mut().filter_map(move |leak| side(run, &mut leak.before, &mut leak.after));
        let ooms = self.ooms.iter_mut().filter_map(move |oom| side(run, &mut oom.before, &mut oom.after));
        let across = self.across.iter_mut().flat_map(move |across| across.sites_of(run));
        lines.chain(leaks.map(|leak| &mut leak.site)).chain(ooms).chain(across)
    }

    /// True if a leak appeared or grew.
    pub fn has_more_leaks(&self) -> bool {
        self.leaks.iter().any(|leak| matches!(leak.status, ChangeStatus::Appeared | ChangeStatus::Grew))
    }

    /// True if the program ran out of memory more often.
    pub fn has_more_ooms(&self) -> bool {
        self.grew(|name| name == "ooms")
    }

    /// True if a peak of a device is higher.
    pub fn has_higher_peak(&self) -> bool {
        self.grew(|name| name.starts_with("peak_"))
    }

    /// True if any of that, or another quantity of the whole is larger. More steps are no growth, and neither is a larger gap in
    /// no more reserved bytes.
    pub fn has_growth(&self) -> bool {
        self.has_more_leaks() || self.grew(|name| name != "steps" && name != "gap_bytes")
    }

    fn grew(&self, which: impl Fn(&str) -> bool) -> bool {
        let whole = self.totals.iter().filter(|total| total.is_whole() && which(&total.name));
        // What was not there before and is now, is more too.
        whole.into_iter().any(|total| total.after > total.before)
    }
}
