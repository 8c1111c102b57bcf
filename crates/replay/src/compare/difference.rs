//! The comparison of two runs. `gpumemtrace schema comparison` prints its JSON Schema.
//!
//! Equal quantities are absent: two equal runs have four empty lists.

use schemars::JsonSchema;
use serde::Serialize;

use super::backends::{Backend, BackendComparison};
use super::profile::Profile;
use super::totals::{AmountChange, TotalChange, TotalQuantity};
use crate::report::json_enum::json_enum;
use crate::report::{
    ComparedSteps, Leak, LeakKind, LeakShape, PluggableMode, Quantity, Site, StepSource, TraceLoss,
    TraceOrigin, Worded,
};

/// The comparison of two traces.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Comparison {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.comparison"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The first and the second run.
    pub runs: [ComparedRun; 2],
    /// The steps that were compared; `null` if none were.
    pub steps: Option<ComparedSteps>,
    /// What was not compared, and why.
    pub notes: Vec<Worded<ComparisonNote>>,
    /// True if any of the lists below has an entry.
    pub differs: bool,
    /// The totals that differ.
    pub totals: Vec<TotalChange>,
    /// Totals that are known in both runs and equal, once for each device.
    #[serde(skip)]
    pub equal_totals: Vec<TotalQuantity>,
    /// Call sites that differ, largest change first.
    pub lines: Vec<LineChange>,
    /// Leaks that are new, gone, not judged in one of the runs, or grow at another rate.
    pub leaks: Vec<LeakChange>,
    /// Call sites with more or fewer out-of-memory errors.
    pub ooms: Vec<OomChange>,
    /// Leaks and reserved memory across backends; absent if both runs use the same backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub across_backends: Option<BackendComparison>,
}

/// Something that was not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ComparisonNote {
    /// The runs find their steps in different ways, so steps were not compared.
    StepSourcesDiffer {
        /// The source of the first run.
        before: StepSource,
        /// The source of the second run.
        after: StepSource,
    },
    /// Neither run has steps, so the runs were compared as a whole.
    NoSteps,
    /// One run has no steps, so steps were not compared.
    NoStepsInRun {
        /// The run without steps: 0 or 1.
        run: usize,
    },
    /// Leaks of runs without steps depend on times and were not compared.
    LeaksNotCompared {
        /// The number of leaks in the first run.
        before: usize,
        /// The number of leaks in the second run.
        after: usize,
    },
}

/// One of the compared runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ComparedRun {
    /// The path as given.
    pub path: String,
    /// Decides which source files may be shown.
    #[serde(skip)]
    pub origin: TraceOrigin,
    /// The command line of the traced program.
    pub command: Option<Vec<String>>,
    /// The version of PyTorch.
    pub torch: Option<String>,
    /// What begins a step; `null` without steps.
    pub step_source: Option<StepSource>,
    /// The number of steps that ended.
    pub steps: Option<u64>,
    /// True if nothing is missing from the trace.
    pub complete: bool,
    /// What is missing from the trace.
    pub incomplete: Vec<Worded<TraceLoss>>,
    /// The backend of the run.
    pub backend: Backend,
    /// How gpumemtrace's pluggable allocator was used; `null` if it was not.
    pub pluggable: Option<PluggableMode>,
}

impl ComparedRun {
    pub(super) fn of(profile: &Profile<'_>) -> Self {
        let analysis = profile.analysis;
        Self {
            path: analysis.path.clone(),
            origin: TraceOrigin::of(&analysis.meta),
            command: Some(analysis.meta.list("command").to_vec()).filter(|command| !command.is_empty()),
            torch: analysis.meta.text("torch").map(str::to_owned),
            step_source: analysis.step_source(),
            steps: profile.steps.map(u64::from),
            complete: analysis.incomplete.is_empty(),
            incomplete: analysis.incomplete.iter().cloned().map(Worded::from).collect(),
            backend: Backend::of(analysis),
            pluggable: analysis.pluggable(),
        }
    }
}

json_enum! {
    /// How a call site or a leak changed. Leaks are listed in this order.
    enum ChangeStatus {
        /// Only the second run has it.
        Appeared = "appeared",
        /// The second run has more.
        Grew = "grew",
        /// The runs differ, and neither has more.
        Changed = "changed",
        /// The second run has less.
        Shrank = "shrank",
        /// Only the first run has it.
        Disappeared = "disappeared",
        /// A leak of one run that was not judged in the other.
        Unjudged = "unjudged",
    }
}

/// A call site that differs on one device.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LineChange {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The change of the first amount below that differs.
    pub status: ChangeStatus,
    /// The call site in the first run.
    pub before: Option<Site>,
    /// The call site in the second run.
    pub after: Option<Site>,
    /// Bytes at the device's peak of allocated bytes.
    pub at_peak_bytes: AmountChange,
    /// Blocks at that peak.
    pub at_peak_blocks: AmountChange,
    /// Live bytes at the end of the last compared step; without steps, at the end.
    pub retained_bytes: AmountChange,
    /// Live blocks at that moment.
    pub retained_blocks: AmountChange,
    /// The growth of its live bytes in each run.
    pub growth_bytes_per_step: Option<[Quantity; 2]>,
    /// Bytes allocated in the median step.
    pub bytes_per_step: Option<AmountChange>,
    /// Allocations in the median step.
    pub allocations_per_step: Option<AmountChange>,
    /// Allocations in the whole run; `null` with steps.
    pub allocations: Option<AmountChange>,
    /// The number of steps with different allocations.
    pub steps_that_differ: Option<u64>,
}

impl LineChange {
    /// The call site in the second run, else in the first.
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

    /// The sort key: bytes that stay weigh more than bytes that are freed in their step.
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

/// A leak in one of the runs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeakSide {
    /// The call site that leaks.
    pub site: Site,
    /// The same as in the report.
    pub shape: LeakShape,
    /// Bytes at the end of the last complete step of that run.
    pub bytes: u64,
    /// Its growth in bytes.
    pub bytes_per_step: Option<Quantity>,
    /// Its growth in blocks.
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

/// A leak that differs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LeakChange {
    /// Ordinal of the GPU.
    pub device: u32,
    /// The memory that leaks.
    pub kind: LeakKind,
    /// The change of its rate.
    pub status: ChangeStatus,
    /// The leak in the first run.
    pub before: Option<LeakSide>,
    /// The leak in the second run.
    pub after: Option<LeakSide>,
}

impl LeakChange {
    pub(super) fn bytes(&self) -> u64 {
        [&self.before, &self.after].into_iter().flatten().map(|side| side.bytes).max().unwrap_or(0)
    }
}

/// A call site with more or fewer out-of-memory errors.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OomChange {
    /// The call site in the first run.
    pub before: Option<Site>,
    /// The call site in the second run.
    pub after: Option<Site>,
    /// The number of errors, among the first 64 of each run.
    pub count: AmountChange,
}

/// What can be worse in the second run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worsening {
    /// There are more leaks, or a total is larger. More steps are no growth, and neither is a
    /// larger gap within the same reserved bytes.
    Growth,
    /// A peak of a device is higher.
    Peak,
    /// A leak appeared or grew.
    Leaks,
    /// There are more out-of-memory errors.
    Ooms,
}

impl Comparison {
    pub(super) fn new(runs: [ComparedRun; 2], notes: Vec<ComparisonNote>) -> Self {
        Self {
            schema: "gpumemtrace.comparison",
            version: 1,
            runs,
            steps: None,
            notes: notes.into_iter().map(Worded::from).collect(),
            differs: false,
            totals: Vec::new(),
            equal_totals: Vec::new(),
            lines: Vec::new(),
            leaks: Vec::new(),
            ooms: Vec::new(),
            across_backends: None,
        }
    }

    pub(super) fn conclude(&mut self) {
        let is_empty =
            self.totals.is_empty() && self.lines.is_empty() && self.leaks.is_empty() && self.ooms.is_empty();
        self.differs = !is_empty;
    }

    /// All sites of run 0 or 1.
    pub fn sites_of(&mut self, run: usize) -> impl Iterator<Item = &mut Site> {
        fn side<'a, T>(run: usize, before: &'a mut Option<T>, after: &'a mut Option<T>) -> Option<&'a mut T> {
            if run == 0 { before.as_mut() } else { after.as_mut() }
        }
        let lines =
            self.lines.iter_mut().filter_map(move |line| side(run, &mut line.before, &mut line.after));
        let leaks =
            self.leaks.iter_mut().filter_map(move |leak| side(run, &mut leak.before, &mut leak.after));
        let ooms = self.ooms.iter_mut().filter_map(move |oom| side(run, &mut oom.before, &mut oom.after));
        let across = self.across_backends.iter_mut().flat_map(move |across| across.sites_of(run));
        lines.chain(leaks.map(|leak| &mut leak.site)).chain(ooms).chain(across)
    }

    /// True if the second run is worse in this.
    pub fn is_worse_in(&self, kind: Worsening) -> bool {
        match kind {
            Worsening::Growth => self.has_growth(),
            Worsening::Peak => self.has_higher_peak(),
            Worsening::Leaks => self.has_more_leaks(),
            Worsening::Ooms => self.grew(|quantity| *quantity == TotalQuantity::Ooms),
        }
    }

    fn has_more_leaks(&self) -> bool {
        self.leaks.iter().any(|leak| matches!(leak.status, ChangeStatus::Appeared | ChangeStatus::Grew))
    }

    fn has_higher_peak(&self) -> bool {
        self.grew(|quantity| {
            matches!(
                quantity,
                TotalQuantity::PeakLive
                    | TotalQuantity::PeakReserved
                    | TotalQuantity::PeakDevice
                    | TotalQuantity::PeakPerStep
            )
        })
    }

    fn has_growth(&self) -> bool {
        self.has_more_leaks()
            || self.grew(|quantity| !matches!(quantity, TotalQuantity::Steps | TotalQuantity::Gap))
    }

    fn grew(&self, which: impl Fn(&TotalQuantity) -> bool) -> bool {
        let whole = self.totals.iter().filter(|total| total.is_whole() && which(&total.name));
        // An unknown amount is less than any known one.
        whole.into_iter().any(|total| total.after > total.before)
    }
}
