//! How far a prediction can be relied on, and why not further.

use crate::answer::PredictionStatus;

/// Why a row is not exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// With the recorded settings, the model reserves other bytes than the recorded run did.
    ModelDiffers {
        /// Bytes of segments in the model.
        predicted_bytes: u64,
        /// Bytes of segments in the recording.
        recorded_bytes: u64,
    },
    /// The recording begins after the first allocation, or lost events.
    Incomplete,
    /// Blocks without a known requested size and stream.
    WithoutDetail {
        /// Number of these blocks.
        blocks: u64,
    },
    /// The program asked the driver for free memory, and may have acted on the answer.
    MemoryQueries {
        /// The number of these calls.
        calls: u64,
    },
    /// The recorded run had out-of-memory errors, and went on.
    Ooms {
        /// The number of these errors.
        errors: u64,
    },
    /// The recorded run failed at a request that gets memory here. What follows is unknown.
    Survived,
    /// It depends on the addresses that the driver chooses.
    AddressOrder,
    /// The recorded run returned the segments of one private pool, and more could be returned here.
    UnknownRelease,
    /// How much of the card PyTorch cannot get is unknown.
    OutsideUnknown,
    /// Settings that the model does not know.
    NotModelled {
        /// The names of these settings.
        settings: Vec<&'static str>,
    },
}

impl Doubt {
    /// The status of a row with this doubt.
    pub(crate) fn status(&self) -> PredictionStatus {
        match self {
            Self::NotModelled { .. } => PredictionStatus::Refused,
            _ => PredictionStatus::Indicative,
        }
    }
}
