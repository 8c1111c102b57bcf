//! Where the steps of a run come from.

use gpumemtrace_replay::report::Steps;

use crate::render::text::sites::short_site;
use crate::terminal::marks::sanitize;

/// `optimizer.step() at train.py:43 in train()`. Step 0 comes before the first mark or range.
pub(super) fn describe_step_source(steps: &Steps) -> String {
    match (steps.source, &steps.site) {
        (Some("optimizer"), Some(site)) => format!("optimizer.step() at {}", short_site(site)),
        (Some("optimizer"), None) => "optimizer.step()".to_owned(),
        (Some("marks"), _) => "gpumemtrace.step(); step 0 is before the first call".to_owned(),
        (Some("nvtx"), _) => {
            let name = steps.range.as_deref().unwrap_or("unknown");
            format!("NVTX ranges \"{}\"; step 0 is before the first", sanitize(name))
        }
        (Some("period"), _) => "detected from repeating allocations".to_owned(),
        (Some(source), _) => source.to_owned(),
        (None, _) => "none found".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_zero_is_explained_where_programs_number_steps_themselves() {
        let describe = |source, range: Option<&str>| {
            let range = range.map(str::to_owned);
            describe_step_source(&Steps { source, count: Some(40), site: None, range })
        };
        assert_eq!(describe(Some("marks"), None), "gpumemtrace.step(); step 0 is before the first call");
        let ranges = "NVTX ranges \"step #\"; step 0 is before the first";
        assert_eq!(describe(Some("nvtx"), Some("step #")), ranges);
        assert_eq!(describe(Some("period"), None), "detected from repeating allocations");
        assert_eq!(describe(None, None), "none found");
    }
}
