//! How far a prediction can be relied on, and why not further.

use gpumemtrace_caching_allocator::TorchVersion;

use crate::answer::{PredictionStatus, RecordedStart};

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
    /// The recording shows no request.
    NoHistory,
    /// The recording begins with blocks that exist already. They are taken as they lay, and with
    /// these settings they would have lain elsewhere.
    StartedLate(RecordedStart),
    /// The file fits several releases of PyTorch, and their rules differ for this run.
    ReleaseUnknown {
        /// The oldest of these releases.
        oldest: TorchVersion,
        /// The newest of these releases.
        newest: TorchVersion,
    },
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
    /// The program emptied the cache after memory was short, where it had not before.
    CacheEmptied {
        /// The number of these calls.
        calls: u64,
    },
    /// Another release of PyTorch makes other requests: workspaces and temporary tensors differ.
    OtherVersion {
        /// The release of the recorded run.
        recorded: TorchVersion,
    },
    /// The card may be another model than the recorded one, for which libraries choose other
    /// algorithms.
    OtherModel,
    /// The first attempt at a request for a private pool failed. What follows depends on whether a
    /// graph was being captured, which the recording does not show.
    PoolRefused,
    /// The recorded run failed at a request that gets memory here. What follows is unknown.
    Survived,
    /// The addresses of segments, which the driver chooses, decided between free blocks of equal
    /// size.
    AddressOrder,
    /// Blocks were freed while another stream used them. When they can serve the next request
    /// depends on the speed of the GPU, and so differs between two runs.
    FreedInUse {
        /// The number of these blocks.
        blocks: u64,
    },
    /// The recorded run returned the segments of one private pool, and more could be returned here.
    UnknownRelease,
    /// How much of the card PyTorch cannot get is unknown.
    OutsideUnknown,
    /// A memory fraction is set, and the memory of the card is unknown.
    LimitUnknown,
    /// The driver refused memory in the recorded run, and the memory of the card is unknown.
    CardUnknown {
        /// Requests that it refused at first.
        refused: u64,
    },
    /// The program returned memory of PyTorch's segments. With these settings, the segments may
    /// have other sizes.
    Slept,
    /// Garbage collection acts below a limit, and `set_per_process_memory_fraction()` leaves no
    /// event.
    FractionUnknown,
    /// The release refuses the settings.
    SettingRefused {
        /// Why, in the words of the error.
        why: String,
    },
    /// The release stops with an internal error under these settings (pytorch#134338).
    StopsPyTorch,
    /// The program shares memory with other processes, which the release cannot do with expandable
    /// segments.
    MemoryShared,
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
            Self::LimitUnknown
            | Self::NoHistory
            | Self::SettingRefused { .. }
            | Self::StopsPyTorch
            | Self::MemoryShared
            | Self::NotModelled { .. } => PredictionStatus::Refused,
            _ => PredictionStatus::Indicative,
        }
    }
}
