//! Stormlog's `TelemetryEvent`, schema version 4.
//!
//! Its loader refuses unknown keys, so everything else goes into `metadata`. A counter may be null,
//! and must be if the capability flag of its series is false.

use serde_json::{Map, Value};

use crate::export::json_object::{insert, uniform_object};
use crate::export::series::KnownSeries;

const SCHEMA_VERSION: u64 = 4;
const COLLECTOR: &str = "gpumemtrace";

/// What all events of a device have in common.
pub(super) struct EventSource<'a> {
    pub(super) session: &'a str,
    pub(super) sampling_interval_ms: u64,
    pub(super) pid: i64,
    pub(super) host: &'a str,
    /// Rank and number of ranks; left out where they are unknown.
    pub(super) rank: Option<(u64, u64)>,
    pub(super) device: u8,
    /// The device's memory, if it is known.
    pub(super) total_bytes: Option<u64>,
    pub(super) known: KnownSeries,
    pub(super) is_metal: bool,
}

/// The counters of an event; `None` where they are unknown.
#[derive(Clone, Copy, Default)]
#[allow(clippy::struct_field_names, reason = "the unit")]
pub(super) struct SampleCounters {
    pub(super) allocated_bytes: Option<u64>,
    pub(super) reserved_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    /// Change of the allocated bytes since the sample before.
    pub(super) change_bytes: Option<i64>,
}

/// An event: its time, its type, and what it has beside the counters.
pub(super) struct EventParts {
    /// Nanoseconds since the Unix epoch.
    pub(super) timestamp_ns: u64,
    pub(super) event_type: &'static str,
    pub(super) counters: SampleCounters,
    pub(super) context: Option<String>,
    /// Members of `metadata`, beside the capabilities.
    pub(super) metadata: Vec<(&'static str, Value)>,
}

impl EventSource<'_> {
    /// The event as an object.
    #[inline(never)]
    pub(super) fn event(&self, parts: EventParts) -> Value {
        let EventParts { timestamp_ns, event_type, counters, context, metadata } = parts;
        let mut event = uniform_object(&[
            ("schema_version", Some(SCHEMA_VERSION)),
            ("timestamp_ns", Some(timestamp_ns)),
            ("sampling_interval_ms", Some(self.sampling_interval_ms)),
            ("device_id", Some(self.device.into())),
            ("allocator_allocated_bytes", counters.allocated_bytes),
            ("allocator_reserved_bytes", counters.reserved_bytes),
            // Blocks in use or with a pending free, and unused parts of segments in use.
            ("allocator_active_bytes", None),
            ("allocator_inactive_bytes", None),
            ("device_used_bytes", counters.used_bytes),
            ("device_free_bytes", None),
            ("device_total_bytes", self.total_bytes),
        ]);
        for (key, text) in [
            ("session_id", Some(self.session)),
            ("event_type", Some(event_type)),
            ("collector", Some(COLLECTOR)),
            ("host", Some(self.host)),
            ("context", context.as_deref()),
        ] {
            insert(&mut event, key, text.into());
        }
        for (key, number) in [("pid", Some(self.pid)), ("allocator_change_bytes", counters.change_bytes)] {
            insert(&mut event, key, number.into());
        }
        if let Some((rank, world_size)) = self.rank {
            insert(&mut event, "rank", rank.into());
            insert(&mut event, "world_size", world_size.into());
        }
        let mut members = Map::new();
        insert(&mut members, "memory_capabilities", self.capabilities());
        for (key, value) in metadata {
            insert(&mut members, key, value);
        }
        insert(&mut event, "metadata", Value::Object(members));
        Value::Object(event)
    }

    /// Which counters the events may have. All keys are required, and no others allowed.
    #[inline(never)]
    fn capabilities(&self) -> Value {
        let mut capabilities = uniform_object(&[
            ("supports_allocator_allocated", self.known.live),
            ("supports_allocator_reserved", self.known.reserved),
            ("supports_allocator_active", false),
            ("supports_allocator_inactive", false),
            ("supports_device_used", self.known.device),
            ("supports_device_free", false),
            ("supports_device_total", self.total_bytes.is_some()),
            ("supports_native_allocator_history", false),
            ("supports_fragmentation_analysis", false),
            ("supports_allocator_attribution", false),
            ("supports_bounded_profiling", false),
        ]);
        for (key, text) in [
            ("backend", if self.is_metal { "mps" } else { "cuda" }),
            ("telemetry_collector", COLLECTOR),
            ("sampling_source", "gpumemtrace.trace"),
        ] {
            insert(&mut capabilities, key, text.into());
        }
        Value::Object(capabilities)
    }
}
