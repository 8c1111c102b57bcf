//! Measures the quantities of a budget in a run.

use super::outcome::{ContributorName, UnknownValue};
use crate::budget::pattern::SitePattern;
use crate::compare::{ComparedRange, LineProfile, Profile, TotalQuantity};
use crate::report::{AmountUnit, Leak, Site};
use crate::util::block_totals::BlockTotals;

/// Most parts of a value that are reported.
const MAX_CONTRIBUTORS: usize = 3;
/// With fewer steps, growth cannot be judged.
const FEW_STEPS: u32 = 5;

/// What a part of a value is.
#[derive(Clone, Debug)]
pub(super) enum ContributorSource {
    /// A call site, by its index in the profile.
    Line(usize),
    /// A call site that is not in the profile.
    Site(Box<Site>),
    /// Something without a call site.
    Named(ContributorName),
}

impl ContributorSource {
    /// Orders parts of equal size.
    fn order(&self) -> (usize, Option<&ContributorName>) {
        match self {
            Self::Line(line) => (*line, None),
            Self::Site(_) => (usize::MAX, None),
            Self::Named(name) => (usize::MAX, Some(name)),
        }
    }
}

/// A part of a value, with its amount.
pub(super) type Contribution = (ContributorSource, u64);

/// A measured value, its device, and its largest parts.
pub(super) struct BudgetValue {
    pub(super) device: Option<u8>,
    pub(super) value: u64,
    pub(super) contributors: Vec<Contribution>,
    /// `None` for the unit of the value.
    pub(super) contributor_unit: Option<AmountUnit>,
}

impl BudgetValue {
    fn new(device: u8, value: u64, contributors: Vec<Contribution>) -> Self {
        Self { device: Some(device), value, contributors, contributor_unit: None }
    }
}

pub(super) type MeasureResult = Result<BudgetValue, UnknownValue>;

pub(super) struct BudgetMeasurer<'a> {
    profile: &'a Profile<'a>,
    steps: Option<ComparedRange>,
}

impl<'a> BudgetMeasurer<'a> {
    pub(super) fn new(profile: &'a Profile<'a>) -> Self {
        Self { profile, steps: profile.steps.and_then(ComparedRange::of_run) }
    }

    fn steps(&self) -> Result<ComparedRange, UnknownValue> {
        self.steps.ok_or(match self.profile.steps {
            None => UnknownValue::NoSteps,
            Some(_) => UnknownValue::NoStepEnded,
        })
    }

    /// The largest value of a quantity on any device.
    fn total(&self, quantity: &TotalQuantity, unknown: UnknownValue) -> Result<(u8, u64), UnknownValue> {
        let all = self.profile.devices.iter();
        let known = all.filter_map(|(device, profile)| Some((*device, *profile.totals.get(quantity)?)));
        largest_device(known).ok_or(unknown)
    }

    pub(super) fn peak_live(&self) -> MeasureResult {
        let (device, value) = self.total(&TotalQuantity::PeakLive, UnknownValue::NoTorch)?;
        Ok(BudgetValue::new(device, value, self.held_at_peak(device)))
    }

    pub(super) fn peak_reserved(&self) -> MeasureResult {
        let (device, value) = self.total(&TotalQuantity::PeakReserved, UnknownValue::NoTorch)?;
        let gap = self.profile.devices[&device].totals.get(&TotalQuantity::Gap).copied().unwrap_or(0);
        let parts = [(ContributorName::Requested, value.saturating_sub(gap)), (ContributorName::Unused, gap)];
        Ok(BudgetValue::new(device, value, largest_named(parts.into_iter())))
    }

    pub(super) fn peak_device(&self) -> MeasureResult {
        let (device, value) = self.total(&TotalQuantity::PeakDevice, UnknownValue::NoDriverMemory)?;
        let owner = |quantity: &TotalQuantity| match quantity {
            TotalQuantity::HeldBy(owner) => Some(ContributorName::Owner(owner.clone())),
            _ => None,
        };
        Ok(BudgetValue::new(device, value, self.parts(device, owner)))
    }

    pub(super) fn gap(&self) -> MeasureResult {
        let (device, value) = self.total(&TotalQuantity::Gap, UnknownValue::NoTorch)?;
        let cause = |quantity: &TotalQuantity| match quantity {
            TotalQuantity::GapCause(cause) => Some(ContributorName::Cause(*cause)),
            _ => None,
        };
        Ok(BudgetValue::new(device, value, self.parts(device, cause)))
    }

    fn parts(
        &self,
        device: u8,
        name: impl Fn(&TotalQuantity) -> Option<ContributorName>,
    ) -> Vec<Contribution> {
        let totals = self.profile.devices.get(&device).map(|profile| &profile.totals);
        let parts = totals.into_iter().flatten();
        largest_named(parts.filter_map(|(quantity, bytes)| Some((name(quantity)?, *bytes))))
    }

    fn held_at_peak(&self, device: u8) -> Vec<Contribution> {
        largest(self.lines(device, |_| true).map(|(line, on)| (line, on.at_peak.bytes)))
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
        let rates = rates.ok_or(UnknownValue::NoSteps)?;
        self.leaks(rates.iter().sum::<f64>().ceil() as u64)
    }

    fn leaks(&self, value: u64) -> MeasureResult {
        // Without leaks, the value is known only if a leak could have been found.
        if self.profile.leaks.is_empty() {
            match self.profile.steps {
                None => return Err(UnknownValue::NoSteps),
                Some(steps @ 0..FEW_STEPS) => return Err(UnknownValue::TooFewSteps { steps }),
                Some(_) => {}
            }
        }
        let line = |leak: &Leak| self.profile.lines.iter().position(|line| line.site.id == leak.site.id);
        let contributor = |leak: &Leak| {
            let source = match line(leak) {
                Some(line) => ContributorSource::Line(line),
                None => ContributorSource::Site(Box::new(Site { stack: Vec::new(), ..leak.site.clone() })),
            };
            (source, leak.bytes_per_step.map_or(leak.bytes, |rate| rate.0 as u64))
        };
        Ok(BudgetValue {
            device: None,
            value,
            contributors: self.profile.leaks.iter().map(contributor).collect(),
            contributor_unit: Some(AmountUnit::BytesPerStep),
        })
    }

    pub(super) fn step_peak(&self) -> MeasureResult {
        let steps = self.steps()?;
        let all =
            self.profile.devices.iter().map(|(device, profile)| (*device, steps.median(&profile.peak).bytes));
        let (device, value) = largest_device(all).ok_or(UnknownValue::NoTorch)?;
        Ok(BudgetValue::new(device, value, Vec::new()))
    }

    pub(super) fn step_allocated(&self, of: fn(BlockTotals) -> u64) -> MeasureResult {
        let steps = self.steps()?;
        let all = self
            .profile
            .devices
            .iter()
            .map(|(device, profile)| (*device, of(steps.median(&profile.allocated))));
        let (device, value) = largest_device(all).ok_or(UnknownValue::NoTorch)?;
        let lines = self.lines(device, |_| true).map(|(line, on)| (line, of(steps.median(&on.allocated))));
        Ok(BudgetValue::new(device, value, largest(lines)))
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
            return Err(UnknownValue::NoMatchingSite);
        }
        let sum =
            |device: u8| self.lines(device, fits).fold(0u64, |sum, (_, line)| sum.saturating_add(of(line)));
        let all = self.profile.devices.keys().map(|device| (*device, sum(*device)));
        let (device, value) = largest_device(all).ok_or(UnknownValue::NoTorch)?;
        let lines = self.lines(device, fits).map(|(line, on)| (line, of(on)));
        Ok(BudgetValue::new(device, value, largest(lines)))
    }
}

/// The device with the largest value; of equal values the first.
fn largest_device(all: impl Iterator<Item = (u8, u64)>) -> Option<(u8, u64)> {
    all.max_by_key(|(device, value)| (*value, std::cmp::Reverse(*device)))
}

fn largest(lines: impl Iterator<Item = (usize, u64)>) -> Vec<Contribution> {
    largest_of(lines.map(|(line, amount)| (ContributorSource::Line(line), amount)))
}

fn largest_named(parts: impl Iterator<Item = (ContributorName, u64)>) -> Vec<Contribution> {
    largest_of(parts.map(|(name, amount)| (ContributorSource::Named(name), amount)))
}

fn largest_of(all: impl Iterator<Item = Contribution>) -> Vec<Contribution> {
    let mut all: Vec<Contribution> = all.filter(|(_, amount)| *amount > 0).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.order().cmp(&b.0.order())));
    all.truncate(MAX_CONTRIBUTORS);
    all
}
