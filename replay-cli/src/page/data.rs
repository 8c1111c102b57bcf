//! What the page contains, as JSON. `web/src/data/page_data.ts` describes each field.

use serde::Serialize;

use super::cards::{Node, TraceCards};
use super::columns::Column;

#[derive(Debug, Serialize)]
pub(super) struct PageData<'a> {
    pub version: u32,
    pub traces: Vec<TraceData>,
    /// The text of each trace.
    pub cards: &'a [TraceCards],
    pub rank_cards: &'a [Node],
    /// What was merged or left out.
    pub page_card: Node,
    pub compare: Option<ComparedTraces>,
    /// The trace that the page shows first.
    pub first_trace: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct ComparedTraces {
    pub before: usize,
    pub after: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct TraceData {
    pub path: String,
    pub rank: Option<u64>,
    pub end_ns: u64,
    pub steps: Option<StepData>,
    pub marks: Vec<MarkData>,
    pub phases: Vec<PhaseData>,
    pub frames: Vec<FrameData>,
    pub nodes: NodeColumns,
    pub stacks: StackColumns,
    pub sites: Vec<SiteData>,
    pub devices: Vec<DeviceData>,
}

#[derive(Debug, Serialize)]
pub(super) struct StepData {
    pub source: String,
    pub count: u32,
    pub start_ns: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct MarkData {
    pub name: String,
    pub time_ns: u64,
    pub step: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct PhaseData {
    pub name: String,
    pub begin_ns: Column,
    pub end_ns: Column,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) struct FrameData {
    pub kind: &'static str,
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub is_user: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct NodeColumns {
    pub parent: Column,
    pub frame: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct StackColumns {
    pub node: Column,
    pub site: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct SiteData {
    pub id: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub function: Option<String>,
    pub module: Option<String>,
    pub is_backward: bool,
    pub label: String,
    pub source: Option<String>,
    pub category: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceData {
    pub ordinal: u8,
    pub name: Option<String>,
    pub total_bytes: Option<u64>,
    pub layer: &'static str,
    pub series: SeriesColumns,
    pub bins: BinColumns,
    pub blocks: BlockColumns,
    pub gap: Option<GapColumns>,
    pub keyframes: Vec<KeyframeData>,
}

#[derive(Debug, Serialize)]
pub(super) struct SeriesColumns {
    pub edges_ns: Column,
    pub live_min: Column,
    pub live_max: Column,
    pub reserved_min: Column,
    pub reserved_max: Column,
    pub device_min: Column,
    pub device_max: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct BinColumns {
    pub edges_ns: Column,
    pub time_ns: Column,
    pub live: Column,
    pub sites: Vec<SiteColumn>,
    pub others: Column,
    pub other_sites: u64,
    pub groups: Vec<GroupsBy>,
}

/// Another way to divide the live bytes.
#[derive(Debug, Serialize)]
pub(super) struct GroupsBy {
    pub by: &'static str,
    pub groups: Vec<GroupColumn>,
}

#[derive(Debug, Serialize)]
pub(super) struct GroupColumn {
    pub name: String,
    pub bytes: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct SiteColumn {
    pub site: usize,
    pub bytes: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct BlockColumns {
    pub edges_ns: Column,
    pub bins: u16,
    pub birth: Column,
    pub death: Column,
    pub stack: Column,
    pub bytes: Column,
    pub count: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct GapColumns {
    pub time_ns: Column,
    pub reserved: Column,
    pub live: Column,
    pub gap: Column,
    pub causes: Vec<CauseColumn>,
}

#[derive(Debug, Serialize)]
pub(super) struct CauseColumn {
    pub cause: String,
    pub bytes: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct KeyframeData {
    pub time_ns: u64,
    pub step: Option<u64>,
    pub why: &'static str,
    pub live_bytes: u64,
    pub reserved_bytes: u64,
    pub segments: Option<SegmentColumns>,
    pub blocks: PlacedBlockColumns,
}

#[derive(Debug, Serialize)]
pub(super) struct SegmentColumns {
    pub addr: Column,
    pub bytes: Column,
    pub stream: Column,
    pub pool: Column,
    pub is_expandable: Column,
}

#[derive(Debug, Serialize)]
pub(super) struct PlacedBlockColumns {
    pub addr: Column,
    pub bytes: Column,
    pub stack: Column,
}

/// The word that the report has for a value.
pub(super) fn json_word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
