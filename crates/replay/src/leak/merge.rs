//! Makes findings of candidates: sites that grow together, below one line, are one leak.
//!
//! * Candidates that grow in the same steps are one finding if they are one autograd graph
//!   ([`retained_graph`]) or are reported under the same line ([`blame`](crate::leak::blame)). A
//!   graph needs four growth steps, and so do [`MIN_LOCKSTEP_SITES`] sites under one line. Other
//!   findings need [`MIN_EVENTS`].
//! * Other candidates *join* a finding if they were allocated below its line while it grew: a
//!   member of a graph that is saved only now and then has too few growth steps of its own.
//! * Weak candidates that join no finding, and findings of too few events, are possible leaks. One
//!   that is small beside another, grows with it and is in the same function, belongs to it: the
//!   loss and the graph that it keeps.
//!
//! The cost is O(candidates x findings). `tests/leaks/cases.rs` has a case for each rule.

use crate::callsite::symbols::StackSymbols;
use crate::leak::blame::{BlamedLine, blame_candidate, grown_stacks};
use crate::leak::candidate::Candidate;
use crate::leak::growth::MIN_IRREGULAR_EVENTS;
use crate::leak::retained_graph::{self, RetainedGraph};
use crate::state::live_set::LiveSet;
use crate::util::block_totals::saturating_sum;
use crate::util::ids::{SiteId, StackId};

/// Growth steps that a finding of fewer than [`MIN_LOCKSTEP_SITES`] sites needs: a single site may
/// be a queue that happens to fill up. At 9, `tests/leaks/accuracy.rs` misses planted leaks.
const MIN_EVENTS: usize = 6;
/// A possible leak of at most 1/100 of another one's bytes may belong to it
/// (`leaks::doubts::small_growth_of_the_same_function_is_not_a_second_finding`).
const MAX_JOINED_DIVISOR: u64 = 100;
/// Sites under one line that grow in the same steps and need no more than four growth steps.
const MIN_LOCKSTEP_SITES: usize = 3;

/// Sites that grow together, with the line they are reported under.
pub(super) struct Finding {
    pub(super) place: BlamedLine,
    /// Never empty; the first decides about period and confidence.
    pub(super) members: Vec<Candidate>,
    /// For a retained graph: where its blocks come from, most bytes first.
    pub(super) sources: Option<Vec<(SiteId, StackId)>>,
}

impl Finding {
    fn bytes(&self) -> u64 {
        saturating_sum(self.members.iter().map(|member| member.leaked.bytes))
    }

    /// How often something stayed.
    pub(super) fn events(&self) -> usize {
        self.members[0].growth_count()
    }

    /// How many more events are needed to call this a leak; `None` if it grew often enough, but too
    /// unevenly.
    pub(super) fn missing_events(&self) -> Option<usize> {
        let needed = if self.members[0].growth().period.is_some() || self.events() < MIN_EVENTS {
            MIN_EVENTS
        } else {
            MIN_IRREGULAR_EVENTS
        };
        needed.checked_sub(self.events()).filter(|missing| *missing > 0)
    }

    fn is_leak(&self) -> bool {
        let main = &self.members[0];
        !main.is_weak
            && (self.sources.is_some()
                || self.members.len() >= MIN_LOCKSTEP_SITES
                || main.growth_count() >= MIN_EVENTS)
    }

    /// True if `candidate` was allocated below the line of this finding, while it grew. What grows
    /// more often is not a part of it.
    fn includes(&self, symbols: &StackSymbols, candidate: &Candidate) -> bool {
        let main = &self.members[0];
        let most_often = self.members.iter().map(Candidate::growth_count).max().unwrap_or(0);
        if candidate.growth_count() > 2 * most_often {
            return false;
        }
        let (first, period) = (main.first_step(), main.growth().period.unwrap_or(1) as u64);
        let grows_with = candidate.first_step() + period * u64::from(main.stride) >= first
            && candidate.last_step <= main.last_step;
        let is_below = || {
            let stacks = grown_stacks(symbols, candidate);
            !stacks.is_empty()
                && stacks.iter().all(|stack| stack.lines.iter().any(|user| user.site == self.place.common))
        };
        grows_with && is_below()
    }
}

/// Findings, and possible leaks.
pub(super) struct MergedFindings {
    pub(super) leaks: Vec<Finding>,
    pub(super) possible: Vec<Finding>,
}

/// Makes findings of `candidates`, which have the most bytes first.
pub(super) fn merge_candidates(
    live_set: &LiveSet,
    symbols: &StackSymbols,
    candidates: Vec<Candidate>,
) -> MergedFindings {
    let (weak, mut strong): (Vec<Candidate>, Vec<Candidate>) =
        candidates.into_iter().partition(|candidate| candidate.is_weak);
    let mut leaks = Vec::new();
    while let Some(graph) = retained_graph::take_graph(live_set, symbols, &mut strong) {
        add_graph(&mut leaks, graph);
    }
    let graphs = leaks.len();
    let mut rest = Vec::new();
    for candidate in strong.into_iter().chain(weak) {
        if let Some(graph) = leaks[..graphs].iter_mut().find(|graph| graph.includes(symbols, &candidate)) {
            graph.members.push(candidate);
        } else {
            rest.push(candidate);
        }
    }
    let mut others = group_by_line(live_set, symbols, rest);
    let (found, unsure): (Vec<Finding>, Vec<Finding>) = others.drain(..).partition(Finding::is_leak);
    leaks.extend(found);
    let mut possible = Vec::new();
    for finding in unsure {
        let joined = leaks
            .iter_mut()
            .find(|leak| finding.members.iter().all(|candidate| leak.includes(symbols, candidate)));
        match joined {
            Some(leak) => leak.members.extend(finding.members),
            None => possible.push(finding),
        }
    }
    MergedFindings { leaks, possible: join_small(symbols, possible) }
}

/// Makes small findings members of larger ones that grow in the same steps in the same function.
fn join_small(symbols: &StackSymbols, findings: Vec<Finding>) -> Vec<Finding> {
    let mut sorted = findings;
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.bytes()));
    let mut joined: Vec<Finding> = Vec::new();
    for finding in sorted {
        let belongs_to = |larger: &&mut Finding| {
            let (key, of_larger) = (finding.members[0].lockstep_key(), larger.members[0].lockstep_key());
            finding.bytes() <= larger.bytes() / MAX_JOINED_DIVISOR
                && key == of_larger
                && symbols.is_same_function(finding.place.line, larger.place.line)
        };
        match joined.iter_mut().find(belongs_to) {
            Some(larger) => larger.members.extend(finding.members),
            None => joined.push(finding),
        }
    }
    joined
}

/// Adds a graph to the one that is reported under the same line, if there is one: a part of a graph
/// may be kept at other times.
fn add_graph(graphs: &mut Vec<Finding>, graph: RetainedGraph) {
    let RetainedGraph { place, members, sources } = graph;
    let Some(known) = graphs.iter_mut().find(|known| known.place.line == place.line) else {
        graphs.push(Finding { place, members, sources: Some(sources) });
        return;
    };
    known.members.extend(members);
    let listed = known.sources.get_or_insert_default();
    for (site, stack) in sources {
        if listed.iter().all(|(known, _)| *known != site) {
            listed.push((site, stack));
        }
    }
}

/// Groups candidates that are reported under the same line, and grow in the same steps or were
/// allocated at the same line.
fn group_by_line(live_set: &LiveSet, symbols: &StackSymbols, candidates: Vec<Candidate>) -> Vec<Finding> {
    let mut groups: Vec<Finding> = Vec::new();
    for candidate in candidates {
        let place = blame_candidate(live_set, symbols, &candidate);
        let group = groups.iter_mut().find(|group| {
            let grows_with = |member: &Candidate| {
                member.lockstep_key() == candidate.lockstep_key() || member.site == candidate.site
            };
            group.place.common == place.common && group.members.iter().any(grows_with)
        });
        match group {
            Some(group) => group.members.push(candidate),
            None => groups.push(Finding { place, members: vec![candidate], sources: None }),
        }
    }
    groups
}
