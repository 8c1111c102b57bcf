//! Time in a run: step boundaries, NVTX ranges, phases and marks, and series of values over them.

pub(crate) mod bin_axis;
pub(crate) mod bins;
pub(crate) mod extremes;
pub(crate) mod marks;
pub(crate) mod nvtx_ranges;
pub(crate) mod phase_turns;
pub(crate) mod phases;
pub(crate) mod prescan;
pub(crate) mod steady_steps;
pub(crate) mod step_counter;
pub(crate) mod step_coverage;
pub(crate) mod step_detector;
pub(crate) mod step_growth;
pub(crate) mod step_series;
pub(crate) mod step_times;
pub(crate) mod steps;
pub(crate) mod time_spec;
