//! The source of step boundaries, as a phrase.

use gpumemtrace_replay::report::{StepSource, Steps};

use super::sites::short_site;
use crate::terminal::marks::sanitize;

/// `optimizer.step() at train.py:43 in train()`. Step 0 comes before the first mark or range.
pub(crate) fn describe_steps(steps: &Steps) -> String {
    let Some(source) = steps.source else { return "none found".to_owned() };
    let name = name_step_source(source);
    match source {
        StepSource::Optimizer => {
            let site = steps.site.as_ref().map(|site| format!(" at {}", short_site(site)));
            format!("{name}{}", site.unwrap_or_default())
        }
        StepSource::Marks => format!("{name}; step 0 is before the first call"),
        StepSource::Nvtx => {
            let range = steps.range.as_deref().unwrap_or("unknown");
            format!("{name} \"{}\"; step 0 is before the first", sanitize(range))
        }
        StepSource::Period => name.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_zero_is_explained_where_programs_number_steps_themselves() {
        let describe = |source, range: Option<&str>| {
            let range = range.map(str::to_owned);
            describe_steps(&Steps { source, count: Some(40), site: None, range })
        };
        let marks = "gpumemtrace.step(); step 0 is before the first call";
        assert_eq!(describe(Some(StepSource::Marks), None), marks);
        let ranges = "NVTX ranges \"step #\"; step 0 is before the first";
        assert_eq!(describe(Some(StepSource::Nvtx), Some("step #")), ranges);
        assert_eq!(describe(Some(StepSource::Period), None), "detected from repeating allocations");
        assert_eq!(describe(None, None), "none found");
    }
}
