//! What is asked: settings, a version of PyTorch, and a card.

use gpumemtrace_caching_allocator::{EqualSizeOrder, Rules, Settings, SettingsError, TorchVersion};

use crate::device::{AddressOrder, PredictedDevice};
use crate::prediction::Prediction;

/// Settings, a version of PyTorch, and a card.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The value of `PYTORCH_ALLOC_CONF`; empty for the defaults.
    pub setting: String,
    /// The release with the rules.
    pub version: TorchVersion,
    /// Bytes of the card's memory; `None` if unknown, and then not limited.
    pub card_bytes: Option<u64>,
    settings: Settings,
}

impl Scenario {
    /// Reads the settings as this release of PyTorch does.
    pub fn new(setting: &str, version: TorchVersion, card_bytes: Option<u64>) -> Result<Self, SettingsError> {
        let settings = Settings::parse(setting, version)?;
        Ok(Self { setting: setting.to_owned(), version, card_bytes, settings })
    }

    /// The same on a card of this size.
    #[must_use]
    pub fn on_card(&self, card_bytes: u64) -> Self {
        Self { card_bytes: Some(card_bytes), ..self.clone() }
    }

    /// True if both ask for the same.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.version, self.card_bytes) == (other.version, other.card_bytes)
            && self.settings == other.settings
    }

    /// Settings in the text that may matter, and that the model does not know.
    pub fn not_modelled(&self) -> Vec<&'static str> {
        let is_async = self.settings.is_async_backend.then_some("backend");
        self.settings.not_modelled.iter().copied().chain(is_async).collect()
    }

    /// The predictions that must agree: a second one with other addresses, where these matter.
    pub(crate) fn begin_all(&self) -> Vec<Prediction> {
        let orders: &[_] = if self.depends_on_addresses() {
            &[AddressOrder::AsRecorded, AddressOrder::Descending]
        } else {
            &[AddressOrder::AsRecorded]
        };
        orders.iter().map(|order| self.begin(*order)).collect()
    }

    /// Whether the addresses that the driver gives can decide which block serves a request.
    /// Expandable segments have no number, so among several of one stream the address decides.
    fn depends_on_addresses(&self) -> bool {
        match Rules::of_version(self.version).equal_size_order {
            EqualSizeOrder::ByAddress => true,
            EqualSizeOrder::ByBlockNumber | EqualSizeOrder::BySegmentNumber => {
                self.settings.expandable_segments
            }
        }
    }

    pub(crate) fn begin(&self, order: AddressOrder) -> Prediction {
        let device = PredictedDevice::new(self.card_bytes, order);
        Prediction::new(device, self.settings.clone(), Rules::of_version(self.version))
    }
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
