//! Why a request failed, and which remedies would have helped.
//!
//! At that moment the trace shows the request, the live blocks, PyTorch's reserved bytes, the
//! driver memory of this process, and the size of the device if the metadata has it. PyTorch
//! returns its own cache before it reports out of memory, so free bytes that remain reserved lie in
//! segments with live blocks. [`super::oom_growth`] finds the lines that grew, and
//! [`super::oom_remedies`] judges what would have helped.

use crate::assemble::fragmentation::causes;
use crate::assemble::oom_growth::growth_towards_oom;
use crate::assemble::oom_remedies::{MemoryAtOom, remedies};
use crate::pass::{Analysis, OomRecord};
use crate::report::{Oom, OomCause, RefusedRequest, SiteShare, StepPeakBytes};

/// All described out-of-memory errors of a trace.
pub(crate) fn ooms(trace: usize, analysis: &Analysis) -> Vec<Oom> {
    analysis.ooms.iter().map(|record| oom(trace, analysis, record)).collect()
}

impl Analysis {
    /// The last request of a library that the driver refused for lack of memory; `None` if it
    /// refused none.
    pub fn last_refused_request(&self) -> Option<RefusedRequest> {
        let call = self.last_refused_call?;
        let site = self.symbols.stack_info(call.stack).site;
        Some(RefusedRequest {
            site: self.symbols.site(site, Some(call.stack)),
            requested_bytes: call.requested_bytes,
            time_ns: call.time_ns.saturating_sub(self.start_ns),
            step: self.step_source().map(|_| call.step),
        })
    }
}

fn oom(trace: usize, analysis: &Analysis, record: &OomRecord) -> Oom {
    let symbols = &analysis.symbols;
    let ordinal = record.event.device;
    let requested = record.event.size;
    let reserved = record.event.aux[1];
    let capacity = analysis.capacity(ordinal);
    let free = capacity.map(|capacity| capacity.saturating_sub(record.device_bytes.max(reserved)));
    let grows_segment = record.grows_segment();
    let driver_free = free.map(|free| record.driver_free_bytes(free));
    let shortfall = driver_free.map(|free| record.needed_bytes().saturating_sub(free));
    let shortfall = shortfall.filter(|bytes| *bytes > 0 && !grows_segment);
    let memory = MemoryAtOom { capacity, free, shortfall, gap: reserved.saturating_sub(record.live) };
    let lines = growth_towards_oom(analysis, record);
    let sites = record.sites.iter().map(|(site, held)| SiteShare {
        site: symbols.site(*site, None),
        bytes: held.bytes,
        blocks: held.blocks,
        categories: None,
        phases: None,
    });
    Oom {
        trace,
        device: u32::from(ordinal),
        time_ns: record.event.time_ns.saturating_sub(analysis.start_ns),
        step: analysis.reported_step(record.step),
        requested_bytes: requested,
        site: symbols.site(symbols.stack_info(record.stack).site, Some(record.stack)),
        live_bytes: record.live,
        reserved_bytes: reserved,
        device_free_bytes: free,
        driver_free_bytes: driver_free,
        segment_bytes: (!record.is_of_driver && !grows_segment).then(|| record.needed_bytes()),
        shortfall_bytes: shortfall,
        earlier_peak: record.earlier_peak.and_then(|(step, live_bytes)| {
            Some(StepPeakBytes { step: analysis.reported_step(step)?, live_bytes })
        }),
        device_total_bytes: capacity,
        cause: cause((requested, record.needed_bytes()), memory),
        why: String::new(),
        largest_free_block_bytes: record.gap.largest_free,
        remedies: remedies(analysis, record, memory, &lines),
        sites: sites.collect(),
        unused_causes: causes(analysis, &record.gap),
        growth: lines.growth,
        unchanged: lines.unchanged,
        recovered: recovered(analysis, record),
        omitted: None,
    }
}

/// `needed`: what the driver must have free for the request.
fn cause((requested, needed): (u64, u64), memory: MemoryAtOom) -> OomCause {
    let MemoryAtOom { capacity, free, gap, .. } = memory;
    match (capacity, free) {
        (Some(capacity), _) if requested > capacity => OomCause::ExceedsDevice,
        (_, Some(free)) if free >= needed => OomCause::OtherLimit,
        (_, Some(free)) if gap.saturating_add(free) >= requested && gap > 0 => OomCause::NoFittingBlock,
        (_, Some(_)) => OomCause::DeviceFull,
        (_, None) if gap >= requested => OomCause::NoFittingBlock,
        (_, None) => OomCause::Unknown,
    }
}

/// Whether the program went on: it allocated more blocks. A process that failed and did not was
/// ended by the error.
fn recovered(analysis: &Analysis, record: &OomRecord) -> Option<bool> {
    let (_, device) = analysis.devices.iter().find(|(ordinal, _)| *ordinal == record.event.device)?;
    if device.main().allocated() > record.allocated {
        return Some(true);
    }
    let is_last = analysis.ooms.last().is_some_and(|last| last.event.seq == record.event.seq)
        && analysis.oom_count == analysis.ooms.len() as u64;
    match (is_last, analysis.ended_with_error()) {
        (false, _) => Some(true),
        (true, true) => Some(false),
        (true, false) => None,
    }
}
