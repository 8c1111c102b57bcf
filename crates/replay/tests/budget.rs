//! Budget checks: a run meets the budget written from it and exceeds any limit that is one lower.
//! Unknown quantities never pass silently.

use std::fmt::Write as _;

use gpumemtrace_format::NodeId;
use gpumemtrace_replay::budget::{
    Budget, BudgetCheck, BudgetQuantity, CheckState, UnknownValue, check, draft_budget,
};
use gpumemtrace_replay::compare::{PerStepTotals, Profile};
use gpumemtrace_replay::{Analysis, report};
use gpumemtrace_synthetic::Synthetic;
use proptest::prelude::*;

fn analysed(run: &Synthetic) -> (Analysis, PerStepTotals) {
    gpumemtrace_synthetic::analyse_by_steps(&run.file(1000)).expect("a trace")
}

fn checked(run: &Synthetic, budget: &str) -> BudgetCheck {
    let (analysis, amounts) = analysed(run);
    let profile = Profile::new(&analysis, &amounts);
    check(&profile, &budget.parse::<Budget>().unwrap_or_else(|why| panic!("{why}\n{budget}")), "budget.toml")
}

fn written(run: &Synthetic) -> String {
    let (analysis, amounts) = analysed(run);
    let draft = draft_budget(&Profile::new(&analysis, &amounts));
    let mut text = "tolerance = \"1 %\"\n".to_owned();
    for (quantity, value) in &draft.values {
        if let (Ok(value), true) = (value, *quantity != BudgetQuantity::StepAllocations) {
            let _ = writeln!(text, "{quantity} = {value}");
        }
    }
    for site in &draft.sites {
        let pattern = serde_json::to_string(&site.pattern).expect("JSON");
        let _ = writeln!(text, "[[site]]\nmatch = {pattern}\npeak = {}", site.peak_bytes);
        if let Some(bytes) = site.bytes_per_step {
            let _ = writeln!(text, "bytes_per_step = {bytes}");
        }
    }
    text
}

/// A training with a hook that leaks `bytes` per step, and a function with a name that needs
/// quoting.
fn hooked(steps: u64, bytes: u64) -> Synthetic {
    Synthetic::train(steps, |run, _, train| {
        let hook = run.frame(train, "/work/it's a \"file\"\\.py", "hook.<locals>.<lambda>", 7);
        let odd = run.alloc(hook, 3 << 20);
        run.release(odd, train);
        if bytes > 0 {
            let keep = run.frame(train, "/work/hooks.py", "Keeper.hook", 9);
            run.alloc(keep, bytes);
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn run_meets_its_own_budget_and_exceeds_each_limit_less_one(steps in 0u64..30, bytes in 0u64..(4 << 20)) {
        let run = hooked(steps, bytes);
        let budget = written(&run);
        let outcome = checked(&run, &budget);
        prop_assert!(outcome.passed, "{budget}\n{:#?}", outcome.budgets);
        prop_assert!(outcome.budgets.iter().all(|one| one.state == CheckState::Kept && one.measured == Some(one.limit)));
        // Lower each limit in turn by one, without a tolerance.
        let strict = budget.replace("tolerance = \"1 %\"", "tolerance = 0");
        let lines: Vec<&str> = strict.lines().collect();
        let mut exceeded = 0;
        for (at, line) in lines.iter().enumerate() {
            let Some((key, value)) = line.split_once(" = ").filter(|(key, _)| !key.starts_with('#')) else { continue };
            let number = value.split_whitespace().next().and_then(|value| value.parse::<u64>().ok());
            let Some(limit) = number.filter(|limit| *limit > 0) else { continue };
            let mut less: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            less[at] = format!("{key} = {}", limit - 1);
            let outcome = checked(&run, &less.join("\n"));
            let failed: Vec<_> = outcome.budgets.iter().filter(|one| one.fails).collect();
            prop_assert_eq!(failed.len(), 1, "{}", line);
            prop_assert_eq!((failed[0].state, failed[0].over_by, failed[0].measured), (CheckState::Exceeded, Some(1), Some(limit)));
            exceeded += 1;
        }
        prop_assert!(exceeded >= 3);
    }
}

#[test]
fn tolerance_applies_per_limit_or_by_default_but_not_to_leaks() {
    let run = hooked(20, 1 << 20);
    let (analysis, _amounts) = analysed(&run);
    let live = report(std::slice::from_ref(&analysis), &[]).devices[0].peak.live_bytes.unwrap();
    let fails = |budget: String| !checked(&run, &budget).passed;
    let limit = live - live / 100;
    assert!(!fails(format!("tolerance = '2 %'\n[peak]\nlive = {limit}\n")));
    assert!(fails(format!("tolerance = '0.5 %'\n[peak]\nlive = {limit}\n")));
    assert!(fails(format!("tolerance = '2 %'\n[peak]\nlive = {{ limit = {limit}, tolerance = 0 }}\n")));
    assert!(!fails(format!("[peak]\nlive = {{ limit = {}, tolerance = 512 }}\n", live - 512)));
    assert!(fails(format!("[peak]\nlive = {{ limit = {}, tolerance = 511 }}\n", live - 512)));
    let rate = |text: &str| fails(format!("tolerance = '1 GiB'\n[leaks]\nbytes_per_step = {text}\n"));
    assert!(rate("0") && rate("1048575") && !rate("1048576"));
    assert!(!rate("{ limit = 0, tolerance = '1 MiB' }"));
}

#[test]
fn exceeded_leak_budget_names_the_line() {
    let outcome = checked(&hooked(20, 1 << 20), "[leaks]\ncount = 0\nbytes_per_step = 0\n");
    for budget in &outcome.budgets {
        assert_eq!((budget.state, budget.fails), (CheckState::Exceeded, true));
        let site = budget.contributors[0].site.as_ref().unwrap();
        assert_eq!((site.file.as_deref(), site.line), (Some("/work/hooks.py"), Some(9)));
        assert_eq!(budget.contributors[0].amount, 1 << 20);
    }
}

#[test]
fn unknown_quantity_fails_with_a_reason_unless_it_may_pass() {
    let mut once = Synthetic::new();
    let line = once.frame(NodeId::NONE, "/work/once.py", "<module>", 3);
    once.alloc(line, 4096);
    let budget =
        "[step]\npeak = '1 GiB'\n[leaks]\ncount = 5\n[[site]]\nmatch = 'gone.py:3'\npeak = '1 GiB'\n";
    let outcome = checked(&once, budget);
    let unknown: Vec<_> = outcome
        .budgets
        .iter()
        .map(|one| (&*one.name, one.fails, one.why.as_ref().map(|why| why.fact)))
        .collect();
    assert_eq!(
        unknown,
        [
            ("leaks.count", true, Some(UnknownValue::NoSteps)),
            ("step.peak", true, Some(UnknownValue::NoSteps)),
            ("site[gone.py:3].peak", true, Some(UnknownValue::NoMatchingSite)),
        ]
    );
    assert!(outcome.budgets.iter().all(|one| one.state == CheckState::Unknown && one.measured.is_none()));
    let may_pass = checked(&once, &format!("if_unknown = 'pass'\n{budget}"));
    assert!(may_pass.passed && may_pass.budgets.iter().all(|one| one.state == CheckState::Unknown));
    let one = "[step]\npeak = { limit = 5, if_unknown = 'pass' }\nbytes = 5\n";
    let fails: Vec<bool> = checked(&once, one).budgets.iter().map(|one| one.fails).collect();
    assert_eq!(fails, [false, true]);
    // Three steps are too few to judge that there is no leak.
    let few = checked(&hooked(3, 0), "[leaks]\ncount = 0\n");
    assert_eq!(few.budgets[0].why.as_ref().unwrap().fact, UnknownValue::TooFewSteps { steps: 3 });
}
