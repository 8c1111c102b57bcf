//! Who holds the blocks of a site, as the program's own Python found it out (`gpumemtrace run --holders`).
//!
//! Definitions. A *look* is one `holders` event, with the `holder` events behind it. Each of those is of one block's site: that of
//! the block which is live at its address then; where there is none, it is not believed, and counted. A leak has the holders of the
//! last look that knew one of its sites, of all its sites; what they hold is as of that look, and not of the end.
//!
//! Constraint: the texts come from the program. Consequence: what does not read as documented is counted and left out, and as many
//! looks and rows are kept as anybody reads.

use std::collections::BTreeMap;

use gpumemtrace_format::{CodeId, Event, EventKind};
use serde::Deserialize;

use crate::callsite::symbols::SiteId;
use crate::event_analysis::{EventAnalysis, EventContext};
use crate::ingest::definitions::Definitions;
use crate::report::{Holder, HolderCoverage, HolderScan, ScanTrigger, UnresolvedBlocks, UnresolvedReason};

/// Most looks that are kept: the last ones.
const MAX_LOOKS: usize = 64;
/// Most rows of one site.
const MAX_ROWS: usize = 64;
/// Most sites.
const MAX_SITES: usize = 10_000;
/// Most holders that one leak names.
const MAX_HOLDERS: usize = 50;

/// What the text of a `holders` event says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ScanText {
    when: Option<String>,
    leaks: Option<u64>,
    report_ns: Option<u64>,
    walk_ns: Option<u64>,
    limit_ns: Option<u64>,
    objects: Option<u64>,
    cut: Option<bool>,
    failed: Option<String>,
    unwritten: Option<u64>,
}

/// What the text of a `holder` event says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HolderText {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    items: Option<u64>,
    chain: Vec<String>,
    why: Option<String>,
}

#[derive(Clone, Debug)]
struct Scan {
    number: u64,
    time_ns: u64,
    step: u32,
    /// `None` where it does not read as documented.
    text: Option<ScanText>,
    lost_blocks: u64,
}

#[derive(Clone, Debug)]
struct HolderRecord {
    text: HolderText,
    blocks: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct SiteHolders {
    look: u64,
    rows: Vec<HolderRecord>,
}

/// The looks of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct HolderScans {
    /// The last ones.
    kept: Vec<Scan>,
    /// With those that are not kept.
    count: u64,
    sites: BTreeMap<(u8, SiteId), SiteHolders>,
}

impl HolderScans {
    /// A look begins.
    pub(crate) fn look(&mut self, event: &Event, (time_ns, step): (u64, u32), definitions: &Definitions) {
        if self.kept.len() == MAX_LOOKS {
            self.kept.remove(0);
        }
        let text: Option<ScanText> = text_of(event, definitions);
        let lost_blocks = text.as_ref().and_then(|text| text.unwritten).unwrap_or(0);
        self.kept.push(Scan { number: self.count, time_ns, step, text, lost_blocks });
        self.count += 1;
    }

    /// What it found of one site, if the block is still there.
    pub(crate) fn holder(&mut self, event: &Event, site: Option<SiteId>, definitions: &Definitions) {
        let Some(look) = self.kept.last_mut() else { return };
        let (blocks, bytes) = (event.aux[1], event.size);
        let has_room = |place: &(u8, SiteId)| self.sites.len() < MAX_SITES || self.sites.contains_key(place);
        let Some(place) = site.map(|site| (event.device, site)).filter(has_room) else {
            look.lost_blocks = look.lost_blocks.saturating_add(blocks);
            return;
        };
        let of_site = self.sites.entry(place).or_default();
        if of_site.look != look.number {
            *of_site = SiteHolders { look: look.number, rows: Vec::new() };
        }
        let unread = || HolderText {
            why: Some(UnresolvedReason::Unreadable.name().to_owned()),
            ..HolderText::default()
        };
        let text = text_of(event, definitions).unwrap_or_else(unread);
        if of_site.rows.len() < MAX_ROWS {
            of_site.rows.push(HolderRecord { text, blocks, bytes });
        } else if let Some(last) = of_site.rows.last_mut() {
            let text = HolderText {
                why: Some(UnresolvedReason::NotListed.name().to_owned()),
                ..HolderText::default()
            };
            let (blocks, bytes) = (last.blocks.saturating_add(blocks), last.bytes.saturating_add(bytes));
            *last = HolderRecord { text, blocks, bytes };
        }
    }

    /// Who holds the blocks of these sites; `None` where nobody looked.
    pub(crate) fn of_sites(
        &self,
        device: u8,
        sites: impl Iterator<Item = SiteId>,
    ) -> Option<(Vec<Holder>, HolderCoverage)> {
        let of_sites: Vec<&SiteHolders> = sites
            .filter_map(|site| self.sites.get(&(device, site)))
            .filter(|of| !of.rows.is_empty())
            .collect();
        let look = of_sites.iter().map(|of| of.look).max()?;
        let mut seen =
            HolderCoverage { scan: look, blocks: 0, bytes: 0, named_blocks: 0, unresolved: Vec::new() };
        let mut holders: Vec<Holder> = Vec::new();
        for row in of_sites.iter().filter(|of| of.look == look).flat_map(|of| &of.rows) {
            seen.blocks = seen.blocks.saturating_add(row.blocks);
            seen.bytes = seen.bytes.saturating_add(row.bytes);
            if let Some(name) = row.text.name.as_ref().filter(|_| row.text.why.is_none()) {
                seen.named_blocks = seen.named_blocks.saturating_add(row.blocks);
                add_holder(&mut holders, name, row);
            } else {
                let why = row.text.why.as_deref().and_then(UnresolvedReason::from_name);
                let why = why.unwrap_or(UnresolvedReason::Unreadable);
                add_unresolved(&mut seen.unresolved, why, row.blocks, row.bytes);
            }
        }
        holders.sort_by(|a, b| (b.bytes, &a.name, &a.chain).cmp(&(a.bytes, &b.name, &b.chain)));
        for left in holders.drain(holders.len().min(MAX_HOLDERS)..) {
            seen.named_blocks = seen.named_blocks.saturating_sub(left.blocks);
            add_unresolved(&mut seen.unresolved, UnresolvedReason::NotListed, left.blocks, left.bytes);
        }
        seen.unresolved.sort_by(|a, b| (b.blocks, a.why).cmp(&(a.blocks, b.why)));
        Some((holders, seen))
    }

    /// What there is to say of the looks themselves; `None` where there was none.
    pub(crate) fn report(&self, trace: usize, start_ns: u64, has_steps: bool) -> Vec<HolderScan> {
        let of = |look: &Scan| {
            let text = look.text.clone().unwrap_or_default();
            HolderScan {
                trace,
                scan: look.number,
                trigger: text.when.as_deref().and_then(ScanTrigger::from_name),
                time_ns: look.time_ns.saturating_sub(start_ns),
                step: has_steps.then_some(u64::from(look.step)),
                leaks: text.leaks,
                report_ns: text.report_ns,
                walk_ns: text.walk_ns,
                limit_ns: text.limit_ns,
                objects: text.objects,
                is_cut: text.cut,
                lost_blocks: look.lost_blocks,
                failed: text.failed.or_else(|| look.text.is_none().then(|| "unreadable".to_owned())),
            }
        };
        self.kept.iter().map(of).collect()
    }
}

impl EventAnalysis for HolderScans {
    fn takes(&self, kind: EventKind) -> bool {
        matches!(kind, EventKind::HOLDERS | EventKind::HOLDER)
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        if event.kind == EventKind::HOLDERS {
            self.look(event, (context.time_ns, context.step), context.definitions);
        } else {
            let site = context.live.site_of_live_block(event.device, event.addr);
            self.holder(event, site, context.definitions);
        }
    }
}

fn add_holder(holders: &mut Vec<Holder>, name: &str, row: &HolderRecord) {
    let same = holders
        .iter_mut()
        .find(|one| one.name == name && one.type_name == row.text.kind && one.chain == row.text.chain);
    if let Some(one) = same {
        one.blocks = one.blocks.saturating_add(row.blocks);
        one.bytes = one.bytes.saturating_add(row.bytes);
        return;
    }
    holders.push(Holder {
        name: name.to_owned(),
        type_name: row.text.kind.clone(),
        items: row.text.items,
        chain: row.text.chain.clone(),
        blocks: row.blocks,
        bytes: row.bytes,
    });
}

fn add_unresolved(all: &mut Vec<UnresolvedBlocks>, why: UnresolvedReason, blocks: u64, bytes: u64) {
    if let Some(one) = all.iter_mut().find(|one| one.why == why) {
        one.blocks = one.blocks.saturating_add(blocks);
        one.bytes = one.bytes.saturating_add(bytes);
    } else {
        all.push(UnresolvedBlocks { why, blocks, bytes });
    }
}

fn text_of<T: serde::de::DeserializeOwned>(event: &Event, definitions: &Definitions) -> Option<T> {
    let code = definitions.codes.get(&CodeId(u32::try_from(event.aux[0]).ok()?))?;
    serde_json::from_str(&code.name).ok()
}

#[cfg(test)]
mod tests;
