//! Holders of the blocks of a stack, found by a scan in the program (`gpumemtrace run
//! --holders`).
//!
//! Definitions. A *scan* is one `holders` event and the `holder` events that follow it. Each
//! `holder` event names a block by address and belongs to the stack of the live block there.
//! Without a live block, its blocks count as lost. A leak has the holders of the last scan with
//! rows for any of its stacks, over all its stacks. Their bytes are as of that scan, not as of the
//! end of the run. A scan replaces an earlier one only if it names at least half as many blocks: at
//! exit, few of them may be left.
//!
//! The texts come from the program. Malformed texts are counted as unreadable, and the numbers of
//! scans, stacks and rows are limited, so that a program cannot fill the reader's memory.

use std::collections::BTreeMap;

use gpumemtrace_format::{CodeId, Event, EventKind};
use serde::Deserialize;

use crate::event_analysis::{EventAnalysis, EventContext, EventTime};
use crate::ingest::definitions::Definitions;
use crate::report::{Holder, HolderCoverage, HolderScan, ScanTrigger, UnresolvedBlocks, UnresolvedReason};
use crate::util::ids::StackId;

/// Limit of scans; the last ones are kept.
const MAX_SCANS: usize = 64;
/// Limit of the rows of one stack.
const MAX_ROWS: usize = 64;
/// Limit of stacks with holders.
const MAX_STACKS: usize = 10_000;
/// Limit of the holders listed for one leak.
const MAX_HOLDERS: usize = 50;

/// The JSON text of a `holders` event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ScanText {
    when: Option<String>,
    leaks: Option<u64>,
    report_ns: Option<u64>,
    walk_ns: Option<u64>,
    limit_ns: Option<u64>,
    spent_ns: Option<u64>,
    elapsed_ns: Option<u64>,
    objects: Option<u64>,
    cut: Option<bool>,
    failed: Option<String>,
    unwritten: Option<u64>,
}

/// The JSON text of a `holder` event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HolderText {
    name: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    items: Option<u64>,
    limit_items: Option<u64>,
    chain: Vec<String>,
    why: Option<String>,
}

impl HolderText {
    fn is_named(&self) -> bool {
        self.name.is_some() && self.why.is_none()
    }
}

#[derive(Clone, Debug)]
struct Scan {
    number: u64,
    time: EventTime,
    /// `None` if it is malformed.
    text: Option<ScanText>,
    /// Blocks without a live block at their address, or not written by the program.
    lost_blocks: u64,
}

#[derive(Clone, Debug)]
struct HolderRecord {
    text: HolderText,
    blocks: u64,
    bytes: u64,
}

/// The rows of one stack in one scan.
#[derive(Clone, Debug, Default)]
struct StackHolders {
    scan: u64,
    rows: Vec<HolderRecord>,
}

impl StackHolders {
    /// The number of blocks with a known holder.
    fn named_blocks(&self) -> u64 {
        let named = self.rows.iter().filter(|row| row.text.is_named());
        named.fold(0, |sum, row| sum.saturating_add(row.blocks))
    }
}

/// The last scan that has rows for a stack, and the scan before it that the report may show.
#[derive(Clone, Debug, Default)]
struct StackScans {
    last: StackHolders,
    earlier: StackHolders,
}

impl StackScans {
    /// The rows of a scan, which is the last one.
    fn rows_of_scan(&mut self, scan: u64) -> &mut Vec<HolderRecord> {
        if self.last.scan != scan {
            if self.last.named_blocks() >= self.earlier.named_blocks().div_ceil(2) {
                self.earlier = std::mem::take(&mut self.last);
            }
            self.last = StackHolders { scan, rows: Vec::new() };
        }
        &mut self.last.rows
    }
}

/// The scans of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct HolderScans {
    /// The last [`MAX_SCANS`] scans.
    recent: Vec<Scan>,
    /// Count of all scans.
    count: u64,
    /// Holders by device and stack.
    stacks: BTreeMap<(u8, StackId), StackScans>,
}

impl HolderScans {
    /// Begins a scan at a `holders` event.
    pub(crate) fn begin_scan(&mut self, event: &Event, time: EventTime, definitions: &Definitions) {
        if self.recent.len() == MAX_SCANS {
            self.recent.remove(0);
        }
        let text: Option<ScanText> = parse_text(event, definitions);
        let lost_blocks = text.as_ref().and_then(|text| text.unwritten).unwrap_or(0);
        self.recent.push(Scan { number: self.count, time, text, lost_blocks });
        self.count += 1;
    }

    /// Adds a `holder` event to the current scan. `stack` is that of the live block at its address.
    pub(crate) fn add_holder(&mut self, event: &Event, stack: Option<StackId>, definitions: &Definitions) {
        let Some(scan) = self.recent.last_mut() else { return };
        let (blocks, bytes) = (event.aux[1], event.size);
        let has_room = |key: &(u8, StackId)| self.stacks.len() < MAX_STACKS || self.stacks.contains_key(key);
        let Some(key) = stack.map(|stack| (event.device, stack)).filter(has_room) else {
            scan.lost_blocks = scan.lost_blocks.saturating_add(blocks);
            return;
        };
        let rows = self.stacks.entry(key).or_default().rows_of_scan(scan.number);
        let unreadable = || HolderText {
            why: Some(UnresolvedReason::Unreadable.name().to_owned()),
            ..HolderText::default()
        };
        let text = parse_text(event, definitions).unwrap_or_else(unreadable);
        if rows.len() < MAX_ROWS {
            rows.push(HolderRecord { text, blocks, bytes });
        } else if let Some(last) = rows.last_mut() {
            let text = HolderText {
                why: Some(UnresolvedReason::NotListed.name().to_owned()),
                ..HolderText::default()
            };
            let (blocks, bytes) = (last.blocks.saturating_add(blocks), last.bytes.saturating_add(bytes));
            *last = HolderRecord { text, blocks, bytes };
        }
    }

    /// The holders of the blocks of these stacks, most bytes first; `None` if no scan names one.
    pub(crate) fn holders_of_stacks(
        &self,
        device: u8,
        stacks: impl Iterator<Item = StackId>,
    ) -> Option<(Vec<Holder>, HolderCoverage)> {
        let by_stack: Vec<&StackHolders> = stacks
            .filter_map(|stack| self.stacks.get(&(device, stack)))
            .flat_map(|scans| [&scans.earlier, &scans.last])
            .filter(|holders| !holders.rows.is_empty())
            .collect();
        let shown = choose_scan(&by_stack)?;
        let mut coverage =
            HolderCoverage { scan: shown, blocks: 0, bytes: 0, named_blocks: 0, unresolved: Vec::new() };
        let mut holders: Vec<Holder> = Vec::new();
        for row in by_stack.iter().filter(|one| one.scan == shown).flat_map(|one| &one.rows) {
            coverage.blocks = coverage.blocks.saturating_add(row.blocks);
            coverage.bytes = coverage.bytes.saturating_add(row.bytes);
            if let Some(name) = row.text.name.as_ref().filter(|_| row.text.is_named()) {
                coverage.named_blocks = coverage.named_blocks.saturating_add(row.blocks);
                merge_holder(&mut holders, name, row);
            } else {
                let why = row.text.why.as_deref().and_then(UnresolvedReason::from_name);
                let why = why.unwrap_or(UnresolvedReason::Unreadable);
                merge_unresolved(&mut coverage.unresolved, why, row.blocks, row.bytes);
            }
        }
        holders.sort_by(|a, b| (b.bytes, &a.name, &a.chain).cmp(&(a.bytes, &b.name, &b.chain)));
        for omitted in holders.drain(holders.len().min(MAX_HOLDERS)..) {
            coverage.named_blocks = coverage.named_blocks.saturating_sub(omitted.blocks);
            merge_unresolved(
                &mut coverage.unresolved,
                UnresolvedReason::NotListed,
                omitted.blocks,
                omitted.bytes,
            );
        }
        coverage.unresolved.sort_by(|a, b| (b.blocks, a.why).cmp(&(a.blocks, b.why)));
        Some((holders, coverage))
    }

    /// The scans in the form of the report.
    pub(crate) fn report(&self, trace: usize, start_ns: u64, has_steps: bool) -> Vec<HolderScan> {
        let row = |scan: &Scan| {
            let text = scan.text.clone().unwrap_or_default();
            HolderScan {
                trace,
                scan: scan.number,
                trigger: text.when.as_deref().and_then(ScanTrigger::from_name),
                time_ns: scan.time.time_ns.saturating_sub(start_ns),
                step: has_steps.then_some(u64::from(scan.time.step)),
                leaks: text.leaks,
                report_ns: text.report_ns,
                walk_ns: text.walk_ns,
                limit_ns: text.limit_ns,
                spent_ns: text.spent_ns,
                elapsed_ns: text.elapsed_ns,
                objects: text.objects,
                is_cut: text.cut,
                lost_blocks: scan.lost_blocks,
                failed: text.failed.or_else(|| scan.text.is_none().then(|| "unreadable".to_owned())),
            }
        };
        self.recent.iter().map(row).collect()
    }
}

impl EventAnalysis for HolderScans {
    fn takes(&self, kind: EventKind) -> bool {
        matches!(kind, EventKind::HOLDERS | EventKind::HOLDER)
    }

    fn on_event(&mut self, event: &Event, context: &EventContext<'_>) {
        if event.kind == EventKind::HOLDERS {
            self.begin_scan(event, context.time(), context.definitions);
        } else {
            let stack = context.live.stack_of_live_block(event.device, event.addr);
            self.add_holder(event, stack, context.definitions);
        }
    }
}

/// The last of the scans that names at least half as many blocks as another.
fn choose_scan(by_stack: &[&StackHolders]) -> Option<u64> {
    let mut named: BTreeMap<u64, u64> = BTreeMap::new();
    for holders in by_stack {
        let blocks = named.entry(holders.scan).or_default();
        *blocks = blocks.saturating_add(holders.named_blocks());
    }
    let most = named.values().max()?.div_ceil(2);
    named.iter().rev().find(|(_, blocks)| **blocks >= most).map(|(scan, _)| *scan)
}

/// Adds a row to the holder with the same name, type and chain.
fn merge_holder(holders: &mut Vec<Holder>, name: &str, row: &HolderRecord) {
    let same = holders.iter_mut().find(|holder| {
        holder.name == name && holder.type_name == row.text.kind && holder.chain == row.text.chain
    });
    if let Some(holder) = same {
        holder.blocks = holder.blocks.saturating_add(row.blocks);
        holder.bytes = holder.bytes.saturating_add(row.bytes);
        return;
    }
    holders.push(Holder {
        name: name.to_owned(),
        type_name: row.text.kind.clone(),
        items: row.text.items,
        limit_items: row.text.limit_items,
        chain: row.text.chain.clone(),
        blocks: row.blocks,
        bytes: row.bytes,
    });
}

/// Adds blocks to the row with the same reason.
fn merge_unresolved(rows: &mut Vec<UnresolvedBlocks>, why: UnresolvedReason, blocks: u64, bytes: u64) {
    if let Some(row) = rows.iter_mut().find(|row| row.why == why) {
        row.blocks = row.blocks.saturating_add(blocks);
        row.bytes = row.bytes.saturating_add(bytes);
    } else {
        rows.push(UnresolvedBlocks { why, blocks, bytes });
    }
}

/// The JSON text of a `holders` or `holder` event; `None` if it is missing or malformed.
fn parse_text<T: serde::de::DeserializeOwned>(event: &Event, definitions: &Definitions) -> Option<T> {
    let code = definitions.codes.get(&CodeId(u32::try_from(event.aux[0]).ok()?))?;
    serde_json::from_str(&code.name).ok()
}

#[cfg(test)]
mod tests;
