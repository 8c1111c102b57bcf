//! Quantities of a whole run or of one device, and their changes.

use std::fmt;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Serialize, Serializer};

use crate::report::{AmountUnit, CauseKind};

/// An amount in both runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AmountChange {
    /// The amount in the first run.
    pub before: u64,
    /// The amount in the second run.
    pub after: u64,
    /// The second minus the first.
    pub change: i64,
}

impl AmountChange {
    /// The change from one amount to the other; saturates.
    #[must_use]
    pub fn new(before: u64, after: u64) -> Self {
        let change = i128::from(after) - i128::from(before);
        let change = change.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Self { before, after, change }
    }
}

/// A total that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TotalChange {
    /// Ordinal of the GPU; `null` for the whole run.
    pub device: Option<u32>,
    /// The quantity that differs.
    pub name: TotalQuantity,
    /// The unit of the amounts.
    pub unit: AmountUnit,
    /// The amount in the first run; `null` if it is unknown.
    pub before: Option<u64>,
    /// The amount in the second run; `null` if it is unknown.
    pub after: Option<u64>,
    /// The second minus the first.
    pub change: Option<i64>,
}

/// A quantity of the whole run or of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TotalQuantity {
    /// The number of steps that ended.
    Steps,
    /// The number of out-of-memory errors.
    Ooms,
    /// Peak of the allocated bytes.
    PeakLive,
    /// Peak of the reserved bytes.
    PeakReserved,
    /// Unused reserved bytes at the peak of reserved bytes.
    Gap,
    /// The part of the gap with one cause.
    GapCause(CauseKind),
    /// Peak bytes of the driver.
    PeakDevice,
    /// The bytes of one owner at the peak of the driver's bytes.
    HeldBy(String),
    /// Live bytes at the end of the last compared step; without steps, at the end.
    Retained,
    /// The peak of the median step.
    PeakPerStep,
    /// Bytes allocated in the median step.
    BytesPerStep,
    /// Allocations in the median step.
    AllocationsPerStep,
}

impl fmt::Display for TotalQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steps => "steps",
            Self::Ooms => "ooms",
            Self::PeakLive => "peak_live_bytes",
            Self::PeakReserved => "peak_reserved_bytes",
            Self::Gap => "gap_bytes",
            Self::GapCause(cause) => return write!(f, "gap.{}", cause.name()),
            Self::PeakDevice => "peak_device_bytes",
            Self::HeldBy(owner) => return write!(f, "held_by.{owner}"),
            Self::Retained => "retained_bytes",
            Self::PeakPerStep => "peak_bytes_per_step",
            Self::BytesPerStep => "bytes_per_step",
            Self::AllocationsPerStep => "allocations_per_step",
        })
    }
}

impl Serialize for TotalQuantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for TotalQuantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "TotalQuantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "`steps`, `ooms`, `peak_live_bytes`, `peak_reserved_bytes`, `gap_bytes` and `gap.CAUSE` (at the peak of \
                reserved bytes), `peak_device_bytes` and `held_by.OWNER` (at that peak), `retained_bytes`, `peak_bytes_per_step`, \
                `bytes_per_step` or `allocations_per_step`."
        })
    }
}

impl TotalQuantity {
    fn unit(&self) -> AmountUnit {
        match self {
            Self::Steps | Self::Ooms => AmountUnit::Count,
            Self::AllocationsPerStep => AmountUnit::Blocks,
            _ => AmountUnit::Bytes,
        }
    }
}

impl TotalChange {
    /// `None` for equal amounts.
    pub(super) fn of(
        device: Option<u8>,
        name: TotalQuantity,
        before: Option<u64>,
        after: Option<u64>,
    ) -> Option<Self> {
        let change = before.zip(after).map(|(before, after)| AmountChange::new(before, after).change);
        let (device, unit) = (device.map(u32::from), name.unit());
        (before != after).then_some(Self { device, name, unit, before, after, change })
    }

    /// False for a part of another quantity.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.name, TotalQuantity::GapCause(_) | TotalQuantity::HeldBy(_))
    }
}
