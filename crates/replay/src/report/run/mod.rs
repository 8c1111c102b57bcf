//! Values over the events of a run: for reports, viewers and exports.

mod follow;
mod history;
mod timeline;
mod walk;

pub use self::follow::{DeviceBytes, DeviceGauges, LevelGauge, RunGauges, RunView};
pub use self::history::{BlockSum, GapPoint, SegmentPlace};
pub use self::timeline::{
    ComparedSteps, Mark, OptimizerMethod, Phase, PhaseOnDevice, StepSource, Steps, Timeline, TimelineBand,
    TimelinePoint,
};
pub use self::walk::{
    BlockChange, BlockLayer, SegmentChange, WalkEnd, WalkedBlock, WalkedEvent, WalkedSegment,
};
