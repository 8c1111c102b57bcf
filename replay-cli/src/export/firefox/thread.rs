//! A device as a thread of the profile.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::markers::MarkerTable;
use super::rows::AllocationRows;
use super::tables::SharedTables;
use super::units::{milliseconds, safe_address};
use crate::export::stacks::NamedStacks;

/// Allocations and frees of a device. Each free has the address of its allocation, so viewers can
/// tell what is retained.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NativeAllocations {
    length: usize,
    time: Vec<f64>,
    weight: Vec<i64>,
    weight_type: &'static str,
    stack: Vec<Option<usize>>,
    memory_address: Vec<u64>,
    thread_id: Vec<u32>,
}

impl NativeAllocations {
    /// `offset_ns`: the start of the run in the profile.
    pub(super) fn new(
        rows: AllocationRows,
        offset_ns: u64,
        stacks: &NamedStacks,
        tables: &mut SharedTables,
    ) -> Self {
        let time = |time_ns: &u64| milliseconds(offset_ns.saturating_add(*time_ns));
        let mut numbers: BTreeMap<u32, Option<usize>> = BTreeMap::new();
        let mut number_of =
            |stack: &u32| *numbers.entry(*stack).or_insert_with(|| tables.stack(stacks.frames(*stack)));
        Self {
            length: rows.times_ns.len(),
            time: rows.times_ns.iter().map(time).collect(),
            weight: rows.weights_bytes,
            weight_type: "bytes",
            stack: rows.stacks.iter().map(&mut number_of).collect(),
            memory_address: rows.addresses.iter().map(|address| safe_address(*address)).collect(),
            thread_id: rows.threads,
        }
    }
}

/// A device of a process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeviceThread {
    pub(super) name: String,
    pub(super) process_name: String,
    pub(super) process_type: &'static str,
    pub(super) process_startup_time: f64,
    pub(super) process_shutdown_time: Option<f64>,
    pub(super) register_time: f64,
    pub(super) unregister_time: Option<f64>,
    pub(super) paused_ranges: [u8; 0],
    pub(super) show_markers_in_timeline: bool,
    pub(super) is_main_thread: bool,
    pub(super) pid: String,
    /// Unique in the profile.
    pub(super) tid: usize,
    /// No samples of time were taken.
    pub(super) samples: Value,
    pub(super) markers: MarkerTable,
    pub(super) native_allocations: NativeAllocations,
}

/// A table of samples without rows.
pub(super) fn no_samples() -> Value {
    json!({ "length": 0, "stack": [], "time": [], "weight": null, "weightType": "samples" })
}
