//! Whether leaks could be assessed, and growth that is not known to be a leak.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{
    AssessmentLimit, AssessmentStatus, GrowingSite, GrowsBy, GrowthClass, LeakAssessment, LeakKind,
};

use super::leaks::name_leaking_memory;
use super::opaque_pools::{describe_opaque_pool, pool_remedy};
use super::sites::short_site;
use crate::terminal::format::{format_count, format_number, format_percent};
use crate::terminal::units::format_bytes;

/// Writes reason and remedy of an assessment.
pub(super) fn fill_assessment(assessment: &mut LeakAssessment) {
    let reasons: Vec<String> = assessment.limits.iter().map(explain_limit).collect();
    let remedies: Vec<&str> = assessment.limits.iter().filter_map(suggest_remedy).collect();
    assessment.reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    assessment.remedy = (!remedies.is_empty()).then(|| remedies.join(" "));
}

/// A clause that says what was not judged.
fn explain_limit(limit: &AssessmentLimit) -> String {
    match limit {
        AssessmentLimit::FewSteps { steps, needed } => {
            let verb = if *steps == 1 { "is" } else { "are" };
            let needed = format_number(*needed);
            format!("{} {verb} too few, at least {needed} are needed", format_count(*steps, "step"))
        }
        AssessmentLimit::FewAllocations { intervals, needed } => format!(
            "the run has no step boundaries and too few allocations ({} of {} needed)",
            format_count(*intervals, "interval"),
            format_number(*needed)
        ),
        AssessmentLimit::NoSteps { intervals, allocations } => format!(
            "no step boundaries were found, so growth was judged over {} of {}",
            format_count(*intervals, "interval"),
            format_count(*allocations, "allocation")
        ),
        AssessmentLimit::NoStacks => {
            "without Python stacks, the layers of a model look like the iterations of a loop".to_owned()
        }
        AssessmentLimit::AfterLastStep { steps, share, .. } => format!(
            "{} of all allocations come after the last of {} and were not judged",
            format_percent(*share),
            format_count(*steps, "step")
        ),
        AssessmentLimit::OpaquePool { device, owner, framework, bytes, .. } => {
            describe_opaque_pool(*device, owner, *framework, *bytes)
        }
        AssessmentLimit::SnapshotHistory { events: 0 } => {
            "the snapshot has no history, only the blocks at its end".to_owned()
        }
        AssessmentLimit::SnapshotHistory { events } => {
            format!("a snapshot shows only its last {}", format_count(*events, "event"))
        }
        AssessmentLimit::MissingEvents => "the trace is incomplete".to_owned(),
        AssessmentLimit::OneStream => "only the blocks of one stream were judged".to_owned(),
    }
}

/// A sentence that says how the next recording can be judged.
fn suggest_remedy(limit: &AssessmentLimit) -> Option<&'static str> {
    match limit {
        AssessmentLimit::FewSteps { .. } => Some("Record more steps."),
        AssessmentLimit::FewAllocations { .. }
        | AssessmentLimit::NoSteps { .. }
        | AssessmentLimit::AfterLastStep { .. } => {
            Some("Call gpumemtrace.step() once per iteration or request to mark steps.")
        }
        AssessmentLimit::NoStacks => Some("Record with --stacks python (the default)."),
        AssessmentLimit::OneStream => Some("Leave out --stream to judge all blocks."),
        AssessmentLimit::OpaquePool { framework, .. } => Some(pool_remedy(*framework)),
        AssessmentLimit::SnapshotHistory { events: 0 } => Some(
            "Call torch.cuda.memory._record_memory_history() before the loop, or record with gpumemtrace run.",
        ),
        AssessmentLimit::SnapshotHistory { .. } => {
            Some("Record the whole run with gpumemtrace run to judge all of it.")
        }
        AssessmentLimit::MissingEvents => None,
    }
}

/// The assessment of a trace; `None` if leaks were not asked for.
pub(crate) fn find_assessment(report: &Report, trace: usize) -> Option<&LeakAssessment> {
    report.leak_assessment.iter().flatten().find(|assessment| assessment.trace == trace)
}

/// The first words of a run without leaks: what the assessment allows to claim.
pub(crate) fn describe_assessment(assessment: &LeakAssessment, place: &str) -> String {
    let reason = assessment.reason.as_deref().unwrap_or("the reason is unknown");
    match assessment.status {
        AssessmentStatus::Assessed if !assessment.growth.is_empty() => {
            let sites = format_count(assessment.growth.len() as u64, "call site");
            format!("No certain leak{place}, but memory grew at {sites}")
        }
        AssessmentStatus::Assessed => format!("No leaks detected{place}"),
        AssessmentStatus::Partly => format!("Leaks were judged in part{place}: {reason}"),
        AssessmentStatus::NotAssessed => format!("Leaks were not judged: {reason}"),
    }
}

/// What kind of growth it is: the begin of its headline.
pub(crate) fn label_growth(class: GrowthClass, grows_by: Option<GrowsBy>) -> &'static str {
    match class {
        GrowthClass::PossibleLeak => "Possible leak",
        GrowthClass::GrowingSizes if grows_by == Some(GrowsBy::Blocks) => "More blocks",
        GrowthClass::GrowingSizes => "Growing sizes",
        GrowthClass::Filling => "Filling",
        GrowthClass::TowardsOom => "Grew until out of memory",
        GrowthClass::Unknown => "Unexplained growth",
    }
}

/// `+24.00 MiB (5 blocks)`, `+24.00 MiB of driver memory on GPU 1`.
pub(crate) fn format_growth((memory, device): (LeakKind, u32), bytes: u64, blocks: Option<u64>) -> String {
    let memory = name_leaking_memory(memory);
    let gpu = if device == 0 { String::new() } else { format!(" on GPU {device}") };
    let blocks = blocks.map(|blocks| format!(" ({})", format_count(blocks, "block"))).unwrap_or_default();
    format!("+{}{memory}{blocks}{gpu}", format_bytes(bytes))
}

/// `Possible leak` and `+24.00 MiB (5 blocks) at train.py:8 in keep()`.
pub(crate) fn headline_growth(growth: &GrowingSite) -> (&'static str, String) {
    let (label, what) = amount_of_growth(growth);
    (label, format!("{what} at {}", short_site(&growth.site)))
}

/// `Possible leak` and `+24.00 MiB (5 blocks)`.
pub(crate) fn amount_of_growth(growth: &GrowingSite) -> (&'static str, String) {
    let label = label_growth(growth.class, growth.grows_by);
    let blocks = (growth.class != GrowthClass::GrowingSizes).then_some(growth.blocks);
    (label, format_growth((growth.memory, growth.device), growth.bytes, blocks))
}

/// What is known of the growth, and what would tell more.
pub(crate) fn explain_growth(growth: &GrowingSite) -> String {
    match growth.class {
        GrowthClass::PossibleLeak => {
            let count = growth.events.unwrap_or(0);
            let (events, each) = (format_count(count, "time"), format_bytes(growth.bytes / count.max(1)));
            let grew = format!("It grew {events}, by {each} on average, and was not freed");
            let is_regular = growth.finding.as_ref().is_some_and(|finding| finding.is_regular);
            let Some(needs) = growth.needs else {
                // Regular growth is not called a leak only if steps and stacks are unknown.
                let doubt = if is_regular {
                    "a cache or one pass of a model grows like this, too"
                } else {
                    "too unevenly to call it a leak"
                };
                return format!("{grew}, but {doubt}.");
            };
            let verb = if needs == 1 { "is" } else { "are" };
            format!("{grew}; {} more {verb} needed to call it a leak.", format_number(needs))
        }
        GrowthClass::GrowingSizes => {
            let rate = growth.bytes_per_step.map(|rate| rate.0.round() as u64);
            let rate = rate.map(|rate| format!("+{}/step. ", format_bytes(rate))).unwrap_or_default();
            let reason = match growth.memory {
                LeakKind::Reserved => {
                    "Free blocks do not fit the next request, so PyTorch reserves more: requests that get \
                     larger, or free blocks of another stream or pool."
                }
                _ if growth.grows_by == Some(GrowsBy::Blocks) => {
                    "Each step leaves more blocks than the one before, and later steps free them: a queue that \
                     gets longer, or longer episodes."
                }
                LeakKind::Tensors | LeakKind::Device | LeakKind::PinnedHost => {
                    "Blocks are freed and allocated again, larger: a history that is extended (torch.cat), \
                     or longer inputs."
                }
            };
            format!("{rate}{reason}")
        }
        GrowthClass::Filling => "It is kept in a container with a limit that is not reached yet.".to_owned(),
        GrowthClass::TowardsOom => "It was still allocated when memory ran out.".to_owned(),
        GrowthClass::Unknown => {
            "Allocated memory grows, but at no single call site; most of it is allocated below this line."
                .to_owned()
        }
    }
}
