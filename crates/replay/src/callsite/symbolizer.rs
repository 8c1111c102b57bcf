//! Symbolizes native addresses, call sites and stacks.
//!
//! Constraint: symbolizing an address may read a library of gigabytes, and a trace has far more
//! addresses than a report shows. Consequence: analyses work on addresses, and [`TraceNamer`]
//! resolves those of a finished report, each once. Names that `gpumemtrace symbolize` wrote into
//! the trace take precedence. The crate opens no files; the caller implements [`Symbolizer`].
//! `crates/replay/tests/naming.rs` checks which addresses are resolved.

use gpumemtrace_format::{FrameLink, ModuleDef, NamedFrame};

use crate::callsite::code_origin::is_system_source;
use crate::callsite::mixed_stack::{MixedFrame, find_eval_loops, merge_stacks};
use crate::ingest::definitions::Definitions;
use crate::report::{FrameKind, Naming, NamingReason, Section, Site, StackFrame, StackOrder, UnnamedReason};
use crate::util::seeded_map::SeededMap;

/// Resolves addresses to names, typically by reading symbol tables and debug information.
pub trait Symbolizer {
    /// The frames at `address` in `module`, innermost first and at least one. The address is
    /// relative to the module's file (load bias subtracted) and points into the call instruction.
    fn resolve(&mut self, module: &ModuleDef, address: u64) -> Result<Vec<NamedFrame>, UnnamedReason>;
}

/// The part of a report to symbolize: what will be shown.
#[derive(Clone, Copy, Debug)]
pub struct NameScope<'a> {
    /// Sections to symbolize; empty for all.
    pub sections: &'a [Section],
    /// Limit of the sites of each list.
    pub max_sites: usize,
    /// Symbolize the native frames of stacks too, not only sites.
    pub stacks: bool,
    /// With `stacks`: also if the stack has Python frames.
    pub mixed: bool,
}

impl NameScope<'_> {
    /// All sections, sites and stacks of the report.
    pub const ALL: NameScope<'static> =
        NameScope { sections: &[], max_sites: usize::MAX, stacks: true, mixed: true };

    pub(crate) fn includes(&self, section: Section) -> bool {
        self.sections.is_empty() || self.sections.contains(&section)
    }
}

/// The names at a return address: those stored in the trace, else from `resolver`.
pub fn symbolize_address(
    definitions: &Definitions,
    return_address: u64,
    resolver: &mut dyn Symbolizer,
) -> Result<Vec<NamedFrame>, UnnamedReason> {
    let call = return_address.saturating_sub(1);
    let module = definitions.module_at(call).ok_or(UnnamedReason::NoModule)?;
    let address = call.wrapping_sub(module.load_bias);
    let stored = definitions.names.get(&module.build_id).and_then(|names| names.get(&address));
    match stored.filter(|frames| !module.build_id.is_empty() && !frames.is_empty()) {
        Some(frames) => Ok(frames.clone()),
        None => resolver.resolve(module, address),
    }
}

/// Names the sites of one trace and remembers each result.
pub(crate) struct TraceNamer<'a> {
    definitions: &'a Definitions,
    /// Results by return address.
    resolved: SeededMap<u64, Result<Vec<NamedFrame>, UnnamedReason>>,
    approximate_stacks: u64,
}

impl<'a> TraceNamer<'a> {
    pub(crate) fn new(definitions: &'a Definitions) -> Self {
        Self { definitions, resolved: SeededMap::default(), approximate_stacks: 0 }
    }

    /// The names at a return address; empty if there are none.
    fn names_at(&mut self, return_address: u64, resolver: &mut dyn Symbolizer) -> &[NamedFrame] {
        let definitions = self.definitions;
        let names = self
            .resolved
            .entry(return_address)
            .or_insert_with(|| symbolize_address(definitions, return_address, resolver));
        names.as_deref().unwrap_or_default()
    }

    /// Names the site, and with it the native frames of its stack if `scope` has them.
    pub(crate) fn name_site(&mut self, site: &mut Site, scope: NameScope<'_>, resolver: &mut dyn Symbolizer) {
        if site.address != 0 {
            let names = self.names_at(site.address, resolver);
            let not_system = names.iter().find(|frame| !is_system_source(&frame.file));
            if let Some(frame) = not_system.or(names.first()) {
                (site.function, site.file, site.line) = site_fields(frame);
            }
        }
        let has = |kind| site.stack.iter().any(|frame| frame.kind == kind);
        // Native frames without an address have their names and their place already.
        let has_address = site.stack.iter().any(|frame| frame.address != 0);
        if scope.stacks && has_address && has(FrameKind::Native) && (scope.mixed || !has(FrameKind::Python)) {
            self.name_stack(site, resolver);
        }
    }

    /// Names the native frames of the stack and merges it into call order.
    fn name_stack(&mut self, site: &mut Site, resolver: &mut dyn Symbolizer) {
        let (native, python): (Vec<StackFrame>, Vec<StackFrame>) =
            std::mem::take(&mut site.stack).into_iter().partition(|frame| frame.kind == FrameKind::Native);
        let names: Vec<Vec<NamedFrame>> = native
            .iter()
            .map(|frame| match frame.address {
                0 => Vec::new(),
                address => self.names_at(address, resolver).to_vec(),
            })
            .collect();
        let loops = find_eval_loops(names.iter().map(|names| names.iter().map(|frame| &*frame.function)));
        let links: Vec<FrameLink> = python.iter().map(|frame| frame.link).collect();
        let merged = merge_stacks(&loops, &links);
        if !python.is_empty() {
            site.stack_order =
                Some(if merged.is_exact { StackOrder::Exact } else { StackOrder::Approximate });
            self.approximate_stacks += u64::from(!merged.is_exact);
        }
        for slot in merged.slots {
            match slot {
                MixedFrame::Python(at) => site.stack.push(python[at].clone()),
                MixedFrame::Native(at) => push_named_frames(&mut site.stack, &native[at], &names[at]),
            }
        }
    }

    /// The summary; `None` if no address was resolved.
    pub(crate) fn finish(self) -> Option<Naming> {
        let mut naming = Naming {
            addresses: self.resolved.len() as u64,
            approximate_stacks: self.approximate_stacks,
            ..Naming::default()
        };
        let mut reasons: SeededMap<(Option<String>, UnnamedReason), u64> = SeededMap::default();
        for (address, names) in &self.resolved {
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

/// Appends a native frame with its names; functions inlined at its address come first.
fn push_named_frames(stack: &mut Vec<StackFrame>, frame: &StackFrame, names: &[NamedFrame]) {
    if names.is_empty() {
        stack.push(frame.clone());
    }
    for (at, name) in names.iter().enumerate() {
        let (function, file, line) = site_fields(name);
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

/// Function, file and line; `None` for empty ones.
fn site_fields(frame: &NamedFrame) -> (Option<String>, Option<String>, Option<u32>) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (text(&frame.function), text(&frame.file), (frame.line > 0).then_some(frame.line))
}
