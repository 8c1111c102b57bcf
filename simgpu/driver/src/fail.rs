//! Injected failures: the n-th call of an api returns a code instead of running.
//!
//! Code paths after a failed driver call are the ones that nobody can test on a healthy GPU -> `SIMGPU_FAIL=cuMemAlloc:3,cuMemCreate:1:2`
//! makes the third `cuMemAlloc` and the first `cuMemCreate` fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rc::{OUT_OF_MEMORY, Rc};

/// The planned failures; clones share the counters.
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
    /// Reads `api:n[:code],...`; the code is 2 (out of memory) when it is left out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let plans = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        plans.map(Failure::parse).collect::<Option<Arc<[_]>>>().map(Self)
    }

    /// Whether any failure is planned: the cheap question before the counting one.
    pub(crate) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Counts a call of the exported name `api`; a plan names it with or without its version and `_ptsz` suffix.
    pub(crate) fn hit(&self, api: &str) -> Option<Rc> {
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
        assert_eq!(plans.hit("cuMemAlloc_v2"), None);
        assert_eq!(plans.hit("cuMemCreate"), Some(999));
        assert_eq!(plans.hit("cuMemAlloc_v2"), Some(2));
        assert_eq!(plans.hit("cuMemAlloc_v2"), None);
    }

    #[test]
    fn an_exact_name_does_not_match_its_variants() {
        let plans = Failures::parse("cuMemAllocAsync_ptsz:1:1").unwrap();
        assert_eq!(plans.hit("cuMemAllocAsync"), None);
        assert_eq!(plans.hit("cuMemAllocAsync_ptsz"), Some(1));
    }

    #[test]
    fn malformed_plans_are_refused() {
        for text in
            ["cuMemAlloc", "cuMemAlloc:0", "cuMemAlloc:x", "malloc:1", "cuMemAlloc:1:0", "cuMemAlloc:1:2:3"]
        {
            assert!(Failures::parse(text).is_none(), "{text}");
        }
    }
}
