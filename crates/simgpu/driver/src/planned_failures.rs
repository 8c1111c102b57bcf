//! Injected failures: the n-th call of a function returns a code instead of running.
//!
//! `SIMGPU_FAIL=cuMemAlloc:3,cuMemCreate:1:2` makes the third `cuMemAlloc` and the first
//! `cuMemCreate` fail. This tests error paths that a healthy GPU never takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::result_code::{OUT_OF_MEMORY, Rc};

/// Planned failures; clones share the counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failures(Arc<[Failure]>);

#[derive(Debug)]
struct Failure {
    api: String,
    nth: u64,
    rc: Rc,
    seen: AtomicU64,
}

impl Failures {
    /// Parses `api:n[:code],...`; the default code is 2 (out of memory). `None` if malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let plans = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        plans.map(Failure::parse).collect::<Option<Arc<[_]>>>().map(Self)
    }

    /// Returns whether any failure is planned; cheaper than [`count_call`](Self::count_call).
    pub(crate) fn has_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Counts a call of export `api` and returns its planned code. Plans name a function with or
    /// without version and `_ptsz` suffix.
    pub(crate) fn count_call(&self, api: &str) -> Option<Rc> {
        let base = crate::names::base_name(api);
        let mut answer = None;
        for plan in self.0.iter().filter(|plan| plan.api == api || plan.api == base) {
            if plan.seen.fetch_add(1, Ordering::Relaxed) + 1 == plan.nth {
                answer = Some(plan.rc);
            }
        }
        answer
    }
}

impl Failure {
    fn parse(entry: &str) -> Option<Self> {
        let mut parts = entry.split(':');
        let api = parts.next().filter(|api| api.starts_with("cu"))?.to_owned();
        let nth = parts.next()?.parse().ok().filter(|&nth| nth > 0)?;
        let rc = parts.next().map_or(Some(OUT_OF_MEMORY), |code| code.parse().ok().filter(|&rc| rc > 0))?;
        parts.next().is_none().then_some(Self { api, nth, rc, seen: AtomicU64::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_nth_call_fails() {
        let plans = Failures::parse("cuMemAlloc:2,cuMemCreate:1:999").unwrap();
        assert_eq!(plans.count_call("cuMemAlloc_v2"), None);
        assert_eq!(plans.count_call("cuMemCreate"), Some(999));
        assert_eq!(plans.count_call("cuMemAlloc_v2"), Some(2));
        assert_eq!(plans.count_call("cuMemAlloc_v2"), None);
    }

    #[test]
    fn exact_name_does_not_match_its_variants() {
        let plans = Failures::parse("cuMemAllocAsync_ptsz:1:1").unwrap();
        assert_eq!(plans.count_call("cuMemAllocAsync"), None);
        assert_eq!(plans.count_call("cuMemAllocAsync_ptsz"), Some(1));
    }

    #[test]
    fn malformed_plan_is_refused() {
        for text in
            ["cuMemAlloc", "cuMemAlloc:0", "cuMemAlloc:x", "malloc:1", "cuMemAlloc:1:0", "cuMemAlloc:1:2:3"]
        {
            assert!(Failures::parse(text).is_none(), "{text}");
        }
    }
}
