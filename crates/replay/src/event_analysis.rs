//! The interface of analyses that take rare events: all but block allocations and frees.
//!
//! To add an analysis, write one file that implements [`EventAnalysis`], and add one row to the
//! table in `pass/event_analyses.rs`. Its rows appear in JSON under the key of its section; the
//! command's table of sections adds the text. `replay-cli/src/render/extension_tests.rs` adds an
//! analysis and an output in this way.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use gpumemtrace_format::{Event, EventKind};

use crate::ingest::definitions::Definitions;
use crate::report::{Section, SectionData};
use crate::util::ids::StackId;

/// An analysis and its section.
#[derive(Clone, Copy, Debug)]
pub struct AnalysisRow {
    /// The section that its rows are in; [`Section::Extra`] for a key of its own.
    pub section: Section,
    /// Creates the analysis at the start of a trace.
    pub start: fn() -> Box<dyn EventAnalysis>,
}

/// An analysis that takes events other than block allocations and frees.
pub trait EventAnalysis: Any + Debug {
    /// True for the kinds of event that it takes. Called once per kind and trace.
    fn takes(&self, kind: EventKind) -> bool;

    /// Takes an event. Times ascend.
    fn on_event(&mut self, event: &Event, context: &EventContext<'_>);

    /// Forgets all events so far: the analysed part of the run begins here.
    fn restart(&mut self) {}

    /// Its row of an [`Section::Extra`] section; `None` for no row. `trace` is the index in
    /// `traces`, `start_ns` the zero of the times in the report.
    fn section(&self, _trace: usize, _start_ns: u64) -> Option<Arc<dyn SectionData>> {
        None
    }
}

/// When an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventTime {
    /// Nanoseconds on the clock of the trace.
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
}

/// The state of the pass at an event.
pub struct EventContext<'a> {
    /// The time of the event, never before that of an earlier one.
    pub time_ns: u64,
    /// The number of steps begun.
    pub step: u32,
    /// Code objects, stacks and modules of the trace.
    pub definitions: &'a Definitions,
    /// The live blocks at the event.
    pub(crate) live: &'a dyn LiveBlockLookup,
}

impl EventContext<'_> {
    /// The time of the event in nanoseconds and steps.
    pub(crate) fn time(&self) -> EventTime {
        EventTime { time_ns: self.time_ns, step: self.step }
    }
}

/// What an analysis can ask about the live blocks.
pub(crate) trait LiveBlockLookup {
    /// The call site of the live block at an address.
    fn stack_of_live_block(&self, device: u8, addr: u64) -> Option<StackId>;

    /// The levels of the only device with memory, on Metal. `None` if several have memory or its
    /// ordinal is unknown.
    fn only_metal_device(&self) -> Option<MetalLevels>;
}

/// The bytes of recorded Metal calls on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MetalLevels {
    /// Ordinal of the device.
    pub device: u8,
    /// Bytes of all calls.
    pub bytes: u64,
    /// Bytes of the heaps themselves, used or not.
    pub heaps: u64,
    /// Bytes of buffers and textures in heaps.
    pub buffers: u64,
}
