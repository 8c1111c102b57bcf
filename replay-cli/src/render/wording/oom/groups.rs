//! Equal out-of-memory errors as one.

use gpumemtrace_replay::report::Oom;

use crate::render::wording::Vocabulary;
use crate::render::wording::moment::{format_moment, format_step};
use crate::terminal::format::format_count;

/// Errors of one device with the same call site, size, reason and outcome.
pub(crate) struct OomGroup<'a> {
    pub(crate) first: &'a Oom,
    pub(crate) last: &'a Oom,
    pub(crate) count: u64,
}

/// Groups errors. Those that ended the run come first, the others in the order of their first one.
pub(crate) fn group_ooms<'a>(ooms: &[&'a Oom]) -> Vec<OomGroup<'a>> {
    let key = |oom: &Oom| (oom.device, oom.requested_bytes, oom.cause, oom.recovered, oom.site.id.clone());
    let mut groups: Vec<OomGroup<'a>> = Vec::new();
    for oom in ooms {
        match groups.iter_mut().find(|group| key(group.first) == key(oom)) {
            Some(group) => {
                group.last = oom;
                group.count += 1;
            }
            None => groups.push(OomGroup { first: oom, last: oom, count: 1 }),
        }
    }
    groups.sort_by_key(|group| group.first.recovered != Some(false));
    groups
}

impl OomGroup<'_> {
    /// `1.5 s in, step 40`, or of several errors `5 times, 1.5 s in, step 40 to 9.1 s in, step 88`.
    pub(crate) fn describe_moments(&self, words: &Vocabulary) -> String {
        let last = format_moment(words, self.last.time_ns, self.last.step);
        if self.count == 1 {
            return last;
        }
        let first = format_moment(words, self.first.time_ns, self.first.step);
        format!("{}, {first} to {last}", format_count(self.count, "time"))
    }

    /// ` in step 40`, or of several errors ` in steps 40 to 88`; empty without steps.
    pub(crate) fn describe_steps(&self) -> String {
        if self.first.step == self.last.step {
            return format_step(" in step ", self.last.step);
        }
        format!("{}{}", format_step(" in steps ", self.first.step), format_step(" to ", self.last.step))
    }
}
