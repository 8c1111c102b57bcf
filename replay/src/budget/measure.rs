//! The measured value of each budget's quantity.

use crate::budget::pattern::SitePattern;
use crate::compare::{ComparedRange, LineProfile, Profile};
use crate::report::Leak;
use crate::util::block_totals::BlockTotals;

/// Most lines named with a budget.
const MAX_NAMED: usize = 3;
/// Below this many steps no growth can be told.
const FEW_STEPS: u32 = 5;

const NO_STEPS: &str = "no steps were recognised in this run";
const NO_TORCH: &str = "PyTorch's allocator was not seen in this trace";

/// Something that a number is made of: a line by its index in the profile, or what it is called.
pub(super) type Contribution = (Result<usize, String>, u64);

/// A number, on which device, and what it is made of.
pub(super) struct BudgetValue {
    pub(super) device: Option<u8>,
    pub(super) value: u64,
    pub(super) of: Vec<Contribution>,
}

/// Or why it is not known.
pub(super) type MeasureResult = Result<BudgetValue, String>;

pub(super) struct BudgetMeasurer<'a> {
    profile: &'a Profile<'a>,
    steps: Option<ComparedRange>,
}

impl<'a> BudgetMeasurer<'a> {
    pub(super) fn new(profile: &'a Profile<'a>) -> Self {
        Self { profile, steps: profile.steps.and_then(ComparedRange::of_run) }
    }

    fn steps(&self) -> Result<ComparedRange, String> {
        self.steps.ok_or_else(|| match self.profile.steps {
            None => NO_STEPS.to_owned(),
            Some(_) => "no step ended in this run".to_owned(),
        })
    }

    /// A quantity by its name in the profile, of the device that has most.
    fn total(&self, name: &str, why: &str) -> Result<(u8, u64), String> {
        let all = self.profile.devices.iter();
        let known = all.filter_map(|(device, profile)| Some((*device, *profile.totals.get(name)?)));
        most(known).ok_or_else(|| why.to_owned())
    }

    pub(super) fn peak_live(&self) -> MeasureResult {
        let (device, value) = self.total("peak_live_bytes", NO_TORCH)?;
        Ok(BudgetValue { device: Some(device), value, of: self.held_at_peak(device) })
    }

    pub(super) fn peak_reserved(&self) -> MeasureResult {
        let (device, value) = self.total("peak_reserved_bytes", NO_TORCH)?;
        let gap = self.profile.devices[&device].totals.get("gap_bytes").copied().unwrap_or(0);
        let parts = [("what tensors asked for", value.saturating_sub(gap)), ("reserved and unused", gap)];
        let parts = parts.into_iter().map(|(name, bytes)| (Err(name.to_owned()), bytes));
        Ok(BudgetValue { device: Some(device), value, of: largest(parts) })
    }

    pub(super) fn peak_device(&self) -> MeasureResult {
        let (device, value) =
            self.total("peak_device_bytes", "no memory of the driver was seen in this trace")?;
        Ok(BudgetValue { device: Some(device), value, of: self.parts(device, "held_by.") })
    }

    pub(super) fn gap(&self) -> MeasureResult {
        let (device, value) = self.total("gap_bytes", NO_TORCH)?;
        Ok(BudgetValue { device: Some(device), value, of: self.parts(device, "gap.") })
    }

    fn parts(&self, device: u8, prefix: &str) -> Vec<Contribution> {
        let totals = self.profile.devices.get(&device).map(|profile| &profile.totals);
        let parts = totals
            .into_iter()
            .flatten()
            .filter_map(|(name, bytes)| Some((name.strip_prefix(prefix)?, *bytes)));
        largest(parts.map(|(name, bytes)| (Err(name.replace('_', " ")), bytes)))
    }

    fn held_at_peak(&self, device: u8) -> Vec<Contribution> {
        largest(self.lines(device, |_| true).map(|(index, line)| (Ok(index), line.at_peak.bytes)))
    }

    fn lines(
        &self,
        device: u8,
        which: impl Fn(&LineProfile) -> bool,
    ) -> impl Iterator<Item = (usize, &crate::compare::LineOnDevice)> {
        let lines = self.profile.lines.iter().enumerate().filter(move |(_, line)| which(line));
        lines.filter_map(move |(index, line)| Some((index, line.devices.get(&device)?)))
    }

    pub(super) fn leak_count(&self) -> MeasureResult {
        self.leaks(self.profile.leaks.len() as u64)
    }

    pub(super) fn leak_rate(&self) -> MeasureResult {
        let rates: Option<Vec<f64>> =
            self.profile.leaks.iter().map(|leak| leak.bytes_per_step.map(|rate| rate.0)).collect();
        let rates = rates.ok_or_else(|| NO_STEPS.to_owned())?;
        self.leaks(rates.iter().sum::<f64>().ceil() as u64)
    }

    fn leaks(&self, value: u64) -> MeasureResult {
        // What is found is known; that there is nothing is known only where it could have been seen.
        if self.profile.leaks.is_empty() {
            match self.profile.steps {
                None => return Err(NO_STEPS.to_owned()),
                Some(steps @ 0..FEW_STEPS) => {
                    return Err(format!("{steps} steps are too few to tell growth from a start"));
                }
                Some(_) => {}
            }
        }
        let line = |leak: &Leak| self.profile.lines.iter().position(|line| line.site.id == leak.site.id);
        let named = self.profile.leaks.iter().map(|leak| {
            let bytes = leak.bytes_per_step.map_or(leak.bytes, |rate| rate.0 as u64);
            (line(leak).ok_or_else(|| crate::report::display::format_site(&leak.site)), bytes)
        });
        Ok(BudgetValue { device: None, value, of: named.collect() })
    }

    pub(super) fn step_peak(&self) -> MeasureResult {
        let steps = self.steps()?;
        let all =
            self.profile.devices.iter().map(|(device, profile)| (*device, steps.median(&profile.peak).bytes));
        let (device, value) = most(all).ok_or(NO_TORCH)?;
        Ok(BudgetValue { device: Some(device), value, of: Vec::new() })
    }

    pub(super) fn step_allocated(&self, of: fn(BlockTotals) -> u64) -> MeasureResult {
        let steps = self.steps()?;
        let all = self
            .profile
            .devices
            .iter()
            .map(|(device, profile)| (*device, of(steps.median(&profile.allocated))));
        let (device, value) = most(all).ok_or(NO_TORCH)?;
        let lines =
            self.lines(device, |_| true).map(|(index, line)| (Ok(index), of(steps.median(&line.allocated))));
        Ok(BudgetValue { device: Some(device), value, of: largest(lines) })
    }

    pub(super) fn site_at_peak(&self, pattern: &SitePattern) -> MeasureResult {
        self.site(pattern, |line| line.at_peak.bytes)
    }

    pub(super) fn site_retained(&self, pattern: &SitePattern) -> MeasureResult {
        self.site(pattern, |line| {
            self.steps.map_or(line.end, |steps| steps.retained(&line.held, &line.held).0).bytes
        })
    }

    pub(super) fn site_allocated(&self, pattern: &SitePattern, of: fn(BlockTotals) -> u64) -> MeasureResult {
        let steps = self.steps()?;
        self.site(pattern, |line| of(steps.median(&line.allocated)))
    }

    fn site(
        &self,
        pattern: &SitePattern,
        of: impl Fn(&crate::compare::LineOnDevice) -> u64,
    ) -> MeasureResult {
        let fits = |line: &LineProfile| pattern.matches_site(&line.site);
        if !self.profile.lines.iter().any(|line| !line.devices.is_empty() && fits(line)) {
            return Err("no line that allocated fits the pattern".to_owned());
        }
        let sum =
            |device: u8| self.lines(device, fits).fold(0u64, |sum, (_, line)| sum.saturating_add(of(line)));
        let all = self.profile.devices.keys().map(|device| (*device, sum(*device)));
        let (device, value) = most(all).ok_or(NO_TORCH)?;
        let lines = self.lines(device, fits).map(|(index, line)| (Ok(index), of(line)));
        Ok(BudgetValue { device: Some(device), value, of: largest(lines) })
    }
}

/// Of equals the first.
fn most(all: impl Iterator<Item = (u8, u64)>) -> Option<(u8, u64)> {
    all.max_by_key(|(device, value)| (*value, std::cmp::Reverse(*device)))
}

fn largest(all: impl Iterator<Item = Contribution>) -> Vec<Contribution> {
    let mut all: Vec<Contribution> = all.filter(|(_, bytes)| *bytes > 0).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(MAX_NAMED);
    all
}
