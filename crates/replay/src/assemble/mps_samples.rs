//! PyTorch's own memory counters, for the report.

use crate::ingest::metal_totals;
use crate::pass::Analysis;
use crate::report::{SampledPoint, SampledRange, TorchMemory};
use crate::state::mps_samples::{MpsSamples, SampleRange};

/// `None` for a trace without samples, unless it is of Metal.
pub(super) fn torch_memory(trace: usize, analysis: &Analysis) -> Option<TorchMemory> {
    let memory = analysis.analyses.find::<MpsSamples>()?;
    if memory.samples == 0 && !metal_totals::is_metal(&analysis.meta) {
        return None;
    }
    let points = memory.points();
    Some(TorchMemory {
        trace,
        source: "torch.mps",
        device: points.iter().rev().find_map(|point| point.exact).map(|exact| u32::from(exact.device)),
        samples: memory.samples,
        tensor_bytes: memory.tensors.map(range),
        driver_bytes: memory.driver.map(range),
        unrecorded_bytes: memory.beyond_metal.map(range),
        unused_buffer_bytes: memory.kept.map(range),
        points: points
            .iter()
            .map(|point| SampledPoint {
                time_ns: point.time_ns.saturating_sub(analysis.start_ns),
                step: analysis.reported_step(point.step),
                tensor_bytes: point.tensors,
                driver_bytes: point.driver,
                metal_bytes: point.exact.map(|exact| exact.bytes),
                heap_bytes: point.exact.map(|exact| exact.heaps),
                buffer_bytes: point.exact.map(|exact| exact.buffers),
            })
            .collect(),
    })
}

fn range<T>(of: SampleRange<T>) -> SampledRange<T> {
    SampledRange { samples: of.samples, least: of.least, most: of.most, last: of.last }
}
