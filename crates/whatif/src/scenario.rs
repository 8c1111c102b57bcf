//! What is asked: settings, a version of PyTorch, and a card.

use gpumemtrace_caching_allocator::{
    EqualSizeOrder, Rules, Settings, SettingsBeside, SettingsError, TorchVersion,
};

use crate::device::{AddressOrder, PredictedDevice};
use crate::prediction::Prediction;
use crate::reliance::Doubt;

/// First minor version that can share blocks of expandable segments with other processes
/// (pytorch#130890).
const SHARES_EXPANDABLE_SINCE: u32 = 5;

/// Settings, a version of PyTorch, and a card.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
    pub setting: String,
    /// The release with the rules.
    pub version: TorchVersion,
    /// Bytes of the card's memory; `None` if unknown, and then not limited.
    pub card_bytes: Option<u64>,
    /// The card may be another model than that of the recorded run.
    pub is_other_model: bool,
    settings: Settings,
    /// Why the release refuses the settings; `None` if it does not.
    refusal: Option<SettingsError>,
}

impl Scenario {
    /// Reads the settings as this release of PyTorch does.
    pub fn new(setting: &str, version: TorchVersion, card_bytes: Option<u64>) -> Result<Self, SettingsError> {
        let settings = Settings::parse(setting, version)?;
        Ok(Self {
            setting: setting.to_owned(),
            version,
            card_bytes,
            is_other_model: false,
            settings,
            refusal: None,
        })
    }

    /// [`new`](Self::new), or a scenario whose row says why the release refuses the settings.
    pub fn new_or_refused(setting: &str, version: TorchVersion, card_bytes: Option<u64>) -> Self {
        Self::new(setting, version, card_bytes).unwrap_or_else(|error| Self {
            setting: setting.to_owned(),
            version,
            card_bytes,
            is_other_model: false,
            settings: Settings::default(),
            refusal: Some(error),
        })
    }

    /// The same on a card of this size.
    #[must_use]
    pub fn on_card(&self, card_bytes: u64) -> Self {
        Self { card_bytes: Some(card_bytes), ..self.clone() }
    }

    /// True if both ask for the same.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.version, self.card_bytes) == (other.version, other.card_bytes)
            && (&self.settings, &self.refusal) == (&other.settings, &other.refusal)
    }

    /// The part of the card that PyTorch may reserve, if the settings limit it.
    pub fn memory_fraction(&self) -> Option<f64> {
        self.settings.memory_fraction.filter(|fraction| *fraction < 1.0)
    }

    /// Whether garbage is collected from a part of a limit on, and the settings have no limit. The
    /// program may have set one, which leaves no event.
    pub(crate) fn has_hidden_fraction(&self) -> bool {
        self.settings.gc_threshold > 0.0 && self.settings.memory_fraction.is_none()
    }

    /// Whether there is a limit that depends on the card, and the card is unknown.
    pub(crate) fn has_unknown_limit(&self) -> bool {
        self.memory_fraction().is_some() && self.card_bytes.is_none()
    }

    /// Why a program cannot run so. `shares_memory`: it shares PyTorch's memory with other
    /// processes.
    pub(crate) fn exclusions(&self, shares_memory: bool) -> Vec<Doubt> {
        let refusal = self.refusal.as_ref().map(|error| Doubt::SettingRefused { why: error.to_string() });
        let stops = self.settings.stops_pytorch(self.version).then_some(Doubt::StopsPyTorch);
        let cannot_share =
            self.settings.expandable_segments && self.version.minor() < SHARES_EXPANDABLE_SINCE;
        let shared = (cannot_share && shares_memory).then_some(Doubt::MemoryShared);
        [refusal, stops, shared].into_iter().flatten().collect()
    }

    /// Whether another release would treat the requests of this run differently.
    /// `has_private_pools`: some of them are for private pools.
    pub(crate) fn differs_in(&self, other: TorchVersion, has_private_pools: bool) -> bool {
        let Ok(other) = Self::new(&self.setting, other, self.card_bytes) else { return true };
        other.settings != self.settings
            || other.rules_in_effect(has_private_pools) != self.rules_in_effect(has_private_pools)
    }

    /// The rules of the release, without those that cannot matter. A prediction has one active pool
    /// at a time, and no pool with `use_on_oom`.
    fn rules_in_effect(&self, has_private_pools: bool) -> Rules {
        let oldest = TorchVersion::all().next().unwrap_or(TorchVersion::LATEST);
        let plain = Rules::of_version(oldest);
        let mut rules = Rules::of_version(self.version);
        rules.routing = plain.routing;
        rules.fallback_pools = plain.fallback_pools;
        rules.fallback_expands = plain.fallback_expands;
        if !has_private_pools {
            rules.private_pools_expand = plain.private_pools_expand;
            rules.empties_unused_pools = plain.empties_unused_pools;
            rules.pools_allow_release = plain.pools_allow_release;
        }
        let has_one_division = (0..u64::BITS).any(|log2| self.settings.roundup.divisions_for(1 << log2) == 1);
        if !has_one_division {
            rules.one_division_keeps_size = plain.one_division_keeps_size;
        }
        if self.settings.memory_fraction != Some(1.0) {
            rules.full_fraction_is_no_limit = plain.full_fraction_is_no_limit;
        }
        rules
    }

    /// Settings in the text that may matter, and that the model does not know.
    pub fn not_modelled(&self) -> Vec<&'static str> {
        let is_async = self.settings.is_async_backend.then_some("backend");
        self.settings.not_modelled.iter().copied().chain(is_async).collect()
    }

    /// Whether the addresses of segments can decide between free blocks.
    pub(crate) fn may_address_decide(&self) -> bool {
        self.refusal.is_none()
            && match Rules::of_version(self.version).equal_size_order {
                EqualSizeOrder::ByAddress => true,
                EqualSizeOrder::ByBlockNumber => false,
                EqualSizeOrder::BySegmentNumber => self.settings.expandable_segments,
            }
    }

    /// The settings, if a prediction of `other` may stand for this scenario as long as no request
    /// tells them apart.
    pub(crate) fn settings_beside(&self, other: &Self) -> Option<SettingsBeside> {
        let is_same_run = (self.version, self.card_bytes) == (other.version, other.card_bytes);
        let are_accepted = self.refusal.is_none() && other.refusal.is_none();
        SettingsBeside::new(&self.settings, &other.settings).filter(|_| is_same_run && are_accepted)
    }

    /// The prediction, unless the release refuses the settings.
    pub(crate) fn begin_if_accepted(&self) -> Option<Prediction> {
        self.refusal.is_none().then(|| self.begin(AddressOrder::AsRecorded))
    }

    pub(crate) fn begin(&self, order: AddressOrder) -> Prediction {
        let device = PredictedDevice::new(self.card_bytes, order);
        Prediction::new(device, self.settings.clone(), Rules::of_version(self.version))
    }
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
