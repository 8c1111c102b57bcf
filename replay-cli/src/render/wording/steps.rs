//! The source of step boundaries, as a phrase.

use gpumemtrace_replay::Report;
use gpumemtrace_replay::report::{OptimizerMethod, StepSource, Steps};

use super::sites::short_site;
use crate::terminal::escape::escape_text;
use crate::terminal::format::format_count;

/// `optimizer.step() at train.py:43 in train()`. Step 0 comes before the first mark or range.
pub(crate) fn describe_steps(steps: &Steps) -> String {
    let Some(source) = steps.source else { return "none found".to_owned() };
    let name = name_step_source(source);
    match source {
        StepSource::Optimizer => {
            let name = match steps.optimizer_call {
                Some(OptimizerMethod::ZeroGrad) => "zero_grad()",
                Some(OptimizerMethod::Step) | None => name,
            };
            let site = steps.site.as_ref().map(|site| format!(" at {}", short_site(site)));
            format!("{name}{}", site.unwrap_or_default())
        }
        StepSource::Marks => format!("{name}; step 0 is before the first call"),
        StepSource::Nvtx => {
            let range = steps.range.as_deref().unwrap_or("unknown");
            format!("{name} \"{}\"; step 0 is before the first", escape_text(range))
        }
        StepSource::Period => match &steps.site {
            Some(site) => format!("detected from repeated calls at {}", short_site(site)),
            None => name.to_owned(),
        },
    }
}

/// What begins a step.
pub(crate) fn name_step_source(source: StepSource) -> &'static str {
    match source {
        StepSource::Marks => "gpumemtrace.step()",
        StepSource::Nvtx => "NVTX ranges",
        StepSource::Optimizer => "optimizer.step()",
        StepSource::Period => "detected from repeating allocations",
    }
}

/// The number of steps of a trace; `None` if no step boundaries were found. The report has the
/// steps of its first trace, and those of the others only in its ranks.
pub(crate) fn count_steps(report: &Report, trace: usize) -> Option<u64> {
    if trace == 0 {
        let steps = report.steps.as_ref()?;
        return steps.source.and(steps.count);
    }
    report.ranks.as_ref()?.rows.iter().find(|row| row.trace == trace)?.steps
}

/// ` over 12 steps (step boundary: optimizer.step() at train.py:43 in train())`, or with another
/// preposition. The report has the step boundary of its first trace.
pub(crate) fn describe_basis(preposition: &str, report: &Report, trace: usize) -> String {
    let steps = count_steps(report, trace).map(|count| format_count(count, "step"));
    match (steps, report.steps.as_ref().filter(|_| trace == 0)) {
        (Some(count), Some(steps)) => {
            format!("{preposition}{count} (step boundary: {})", describe_steps(steps))
        }
        (Some(count), None) => format!("{preposition}{count}"),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_zero_is_explained_where_programs_number_steps_themselves() {
        let describe = |source, range: Option<&str>| {
            let range = range.map(str::to_owned);
            describe_steps(&Steps { source, count: Some(40), site: None, optimizer_call: None, range })
        };
        let marks = "gpumemtrace.step(); step 0 is before the first call";
        assert_eq!(describe(Some(StepSource::Marks), None), marks);
        let ranges = "NVTX ranges \"step #\"; step 0 is before the first";
        assert_eq!(describe(Some(StepSource::Nvtx), Some("step #")), ranges);
        assert_eq!(describe(Some(StepSource::Period), None), "detected from repeating allocations");
        assert_eq!(describe(None, None), "none found");
    }
}
