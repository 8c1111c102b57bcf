//! Names for the native addresses that a report shows.
//!
//! Constraint: a name costs a look into a library of up to gigabytes, and a trace has far more
//! addresses than a report shows. Consequence: analyses work on addresses; names come last, for the
//! sites of a finished report alone, each address once. Who reads libraries is behind
//! [`Symbolizer`]: nothing here opens a file. What `symbolize` wrote into the trace goes before it.

use gpumemtrace_format::{FrameLink, ModuleDef, NamedFrame};

use crate::callsite::code_origin::is_system_source;
use crate::callsite::mixed_stack::{MixedFrame, loops, merge};
use crate::ingest::definitions::Definitions;
use crate::pass::Analysis;
use crate::report::Section;
use crate::report::{
    FrameKind, Naming, NamingReason, Report, Site, StackFrame, StackOrder, UnnamedReason, VerdictEvidence,
};
use crate::util::seeded_map::SeededMap;

/// Whoever knows names.
pub trait Symbolizer {
    /// The frames at an address of a module, innermost first and at least one. `address` is as the
    /// module's file counts (load bias taken off), inside of the instruction in question.
    fn resolve(&mut self, module: &ModuleDef, address: u64) -> Result<Vec<NamedFrame>, UnnamedReason>;
}

/// What of a report will be shown.
#[derive(Clone, Copy, Debug)]
pub struct NameScope<'a> {
    /// These; all if there are none.
    pub sections: &'a [Section],
    /// Only so many sites of each list.
    pub most_sites: usize,
    /// Their stacks too.
    pub stacks: bool,
    /// Also of stacks that have Python frames the native ones.
    pub mixed: bool,
}

impl NameScope<'_> {
    /// All there is.
    pub const ALL: NameScope<'static> =
        NameScope { sections: &[], most_sites: usize::MAX, stacks: true, mixed: true };

    fn has(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }
}

/// The names at a return address, from the trace itself or from `resolver`.
pub fn symbolize_address(
    definitions: &Definitions,
    return_address: u64,
    resolver: &mut dyn Symbolizer,
) -> Result<Vec<NamedFrame>, UnnamedReason> {
    let call = return_address.saturating_sub(1);
    let module = definitions.module_at(call).ok_or(UnnamedReason::NoModule)?;
    let address = call.wrapping_sub(module.load_bias);
    let known = definitions.names.get(&module.build_id).and_then(|names| names.get(&address));
    match known.filter(|frames| !module.build_id.is_empty() && !frames.is_empty()) {
        Some(frames) => Ok(frames.clone()),
        None => resolver.resolve(module, address),
    }
}

/// Names what will be shown of a report on these analyses, and says in it what has no name.
pub fn symbolize_report(
    report: &mut Report,
    analyses: &[Analysis],
    scope: NameScope<'_>,
    resolver: &mut dyn Symbolizer,
) {
    let mut namers: Vec<TraceNamer<'_>> = analyses.iter().map(TraceNamer::new).collect();
    for (trace, site) in sites(report, scope) {
        let Some(namer) = namers.get_mut(trace) else { continue };
        namer.site(site, scope, resolver);
    }
    for (info, namer) in report.traces.iter_mut().zip(namers) {
        info.symbols = namer.finish();
    }
}

/// Names these sites of one trace, and says what has no name; `None` where nothing was to be named.
pub fn symbolize_sites<'a>(
    sites: impl Iterator<Item = &'a mut Site>,
    analysis: &Analysis,
    scope: NameScope<'_>,
    resolver: &mut dyn Symbolizer,
) -> Option<Naming> {
    let mut namer = TraceNamer::new(analysis);
    sites.for_each(|site| namer.site(site, scope, resolver));
    namer.finish()
}

/// Every site that will be shown, with the index of its trace.
fn sites<'a>(report: &'a mut Report, scope: NameScope<'_>) -> Vec<(usize, &'a mut Site)> {
    let most = scope.most_sites;
    let mut all: Vec<(usize, &mut Site)> = Vec::new();
    all.extend(report.steps.iter_mut().filter_map(|steps| steps.site.as_mut()).map(|site| (0, site)));
    if scope.has(Section::Timeline) {
        for timeline in report.timeline.iter_mut().chain(report.timelines.iter_mut().flatten()) {
            let trace = timeline.trace;
            all.extend(timeline.bands.iter_mut().take(most).map(|band| (trace, &mut band.site)));
        }
    }
    if scope.has(Section::Leaks) {
        for leak in report.leaks.iter_mut().flatten() {
            let trace = leak.trace;
            all.push((trace, &mut leak.site));
            all.extend(leak.freed_siblings.site.iter_mut().map(|site| (trace, site)));
            all.extend(leak.members.iter_mut().take(most).map(|site| (trace, site)));
        }
    }
    for snapshot in report.snapshots.iter_mut().flatten() {
        all.extend(snapshot.sites.iter_mut().take(most).map(|share| (snapshot.trace, &mut share.site)));
    }
    if scope.has(Section::Fragmentation) {
        for history in report.fragmentation_over_time.iter_mut().flatten() {
            all.extend(history.pinned_by.iter_mut().take(most).map(|one| (history.trace, &mut one.site)));
        }
        for moment in report.fragmentation.iter_mut().flatten() {
            for cause in &mut moment.causes {
                all.extend(cause.culprits.iter_mut().take(most).map(|share| (moment.trace, &mut share.site)));
            }
        }
    }
    if scope.has(Section::Peak) {
        for peak in report.peak.iter_mut().flatten() {
            all.extend(peak.sites.iter_mut().take(most).map(|share| (peak.trace, &mut share.site)));
            let changes = peak.since_previous_step.iter_mut().flat_map(|since| &mut since.changes);
            all.extend(changes.take(most).map(|change| (peak.trace, &mut change.site)));
        }
    }
    if scope.has(Section::Oom) {
        for oom in report.oom.iter_mut().flatten() {
            let trace = oom.trace;
            all.push((trace, &mut oom.site));
            all.extend(oom.sites.iter_mut().take(most).map(|share| (trace, &mut share.site)));
        }
    }
    for verdict in report.verdicts.iter_mut().flatten() {
        let trace = verdict.trace;
        all.extend(verdict_sites(&mut verdict.evidence).into_iter().map(|site| (trace, site)));
    }
    all
}

/// The sites that the sentence of a verdict names.
fn verdict_sites(evidence: &mut VerdictEvidence) -> Vec<&mut Site> {
    match evidence {
        VerdictEvidence::Leak { site, .. }
        | VerdictEvidence::Oom { site, .. }
        | VerdictEvidence::CreepEarly { site, .. } => vec![site],
        VerdictEvidence::FailedCalls { site, .. } => site.iter_mut().map(|site| &mut **site).collect(),
        VerdictEvidence::TransientSpike { more_by_site, .. } => {
            more_by_site.iter_mut().map(|more| &mut more.site).collect()
        }
        _ => Vec::new(),
    }
}

/// The names of one trace.
struct TraceNamer<'a> {
    definitions: &'a Definitions,
    known: SeededMap<u64, Result<Vec<NamedFrame>, UnnamedReason>>,
    approximate_stacks: u64,
}

impl<'a> TraceNamer<'a> {
    fn new(analysis: &'a Analysis) -> Self {
        Self {
            definitions: analysis.symbols.definitions(),
            known: SeededMap::default(),
            approximate_stacks: 0,
        }
    }

    fn names(&mut self, return_address: u64, resolver: &mut dyn Symbolizer) -> &[NamedFrame] {
        let definitions = self.definitions;
        let names = self
            .known
            .entry(return_address)
            .or_insert_with(|| symbolize_address(definitions, return_address, resolver));
        names.as_deref().unwrap_or_default()
    }

    fn site(&mut self, site: &mut Site, scope: NameScope<'_>, resolver: &mut dyn Symbolizer) {
        if site.address != 0 {
            let names = self.names(site.address, resolver);
            let own = names.iter().find(|frame| !is_system_source(&frame.file));
            if let Some(frame) = own.or(names.first()) {
                (site.function, site.file, site.line) = parts(frame);
            }
        }
        let has = |kind| site.stack.iter().any(|frame| frame.kind == kind);
        if scope.stacks && has(FrameKind::Native) && (scope.mixed || !has(FrameKind::Python)) {
            self.stack(site, resolver);
        }
    }

    fn stack(&mut self, site: &mut Site, resolver: &mut dyn Symbolizer) {
        let (native, python): (Vec<StackFrame>, Vec<StackFrame>) =
            std::mem::take(&mut site.stack).into_iter().partition(|frame| frame.kind == FrameKind::Native);
        let names: Vec<Vec<NamedFrame>> = native
            .iter()
            .map(|frame| match frame.address {
                0 => Vec::new(),
                address => self.names(address, resolver).to_vec(),
            })
            .collect();
        let loops = loops(names.iter().map(|names| names.iter().map(|frame| &*frame.function)));
        let links: Vec<FrameLink> = python.iter().map(|frame| frame.link).collect();
        let merged = merge(&loops, &links);
        if !python.is_empty() {
            site.stack_order =
                Some(if merged.is_exact { StackOrder::Exact } else { StackOrder::Approximate });
            self.approximate_stacks += u64::from(!merged.is_exact);
        }
        for slot in merged.slots {
            match slot {
                MixedFrame::Python(at) => site.stack.push(python[at].clone()),
                MixedFrame::Native(at) => expand(&mut site.stack, &native[at], &names[at]),
            }
        }
    }

    /// `None` where nothing was to be named.
    fn finish(self) -> Option<Naming> {
        let mut naming = Naming {
            addresses: self.known.len() as u64,
            approximate_stacks: self.approximate_stacks,
            ..Naming::default()
        };
        let mut reasons: SeededMap<(Option<String>, UnnamedReason), u64> = SeededMap::default();
        for (address, names) in &self.known {
            let Err(why) = names else { continue };
            let module = self.definitions.module_at(address.saturating_sub(1));
            *reasons.entry((module.map(|module| module.path.clone()), *why)).or_default() += 1;
            naming.unresolved += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        naming.reasons = reasons
            .into_iter()
            .map(|((module, why), addresses)| NamingReason { module, why, addresses })
            .collect();
        (naming.addresses > 0).then_some(naming)
    }
}

/// A native frame with its names: what was inlined at its address comes before it.
fn expand(stack: &mut Vec<StackFrame>, frame: &StackFrame, names: &[NamedFrame]) {
    if names.is_empty() {
        stack.push(frame.clone());
    }
    for (at, name) in names.iter().enumerate() {
        let (function, file, line) = parts(name);
        stack.push(StackFrame {
            function,
            file,
            line,
            is_inlined: at + 1 < names.len(),
            is_own: frame.is_own && !is_system_source(&name.file),
            ..frame.clone()
        });
    }
}

fn parts(frame: &NamedFrame) -> (Option<String>, Option<String>, Option<u32>) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (text(&frame.function), text(&frame.file), (frame.line > 0).then_some(frame.line))
}
