//! The keys and words of a snapshot. Their texts have the first ids of the table, in this order.

use super::TextId;

macro_rules! keys {
    ($($constant:ident = $text:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, dead_code)]
        #[repr(u32)]
        enum KeyIndex { $($constant,)* }

        $(#[allow(dead_code, reason = "keys that are known and not used")]
        pub(super) const $constant: TextId = TextId(KeyIndex::$constant as u32);)*

        /// All of them in the order of their ids.
        pub(super) const ALL: &[&str] = &[$($text,)*];
    };
}

keys! {
    EMPTY = "";
    ACTION = "action";
    ADDR = "addr";
    DEVICE_FREE = "device_free";
    SIZE = "size";
    STREAM = "stream";
    TIME_US = "time_us";
    FRAMES = "frames";
    POOL_ID = "pool_id";
    SEGMENT_POOL_ID = "segment_pool_id";
    CATEGORY = "category";
    USER_METADATA = "user_metadata";
    COMPILE_CONTEXT = "compile_context";
    FILENAME = "filename";
    LINE = "line";
    NAME = "name";
    STAGE = "stage";
    DEVICE = "device";
    ADDRESS = "address";
    TOTAL_SIZE = "total_size";
    ALLOCATED_SIZE = "allocated_size";
    ACTIVE_SIZE = "active_size";
    REQUESTED_SIZE = "requested_size";
    SEGMENT_TYPE = "segment_type";
    IS_EXPANDABLE = "is_expandable";
    BLOCKS = "blocks";
    STATE = "state";
    HISTORY = "history";
    REAL_SIZE = "real_size";
    SEGMENTS = "segments";
    DEVICE_TRACES = "device_traces";
    ALLOCATOR_SETTINGS = "allocator_settings";
    EXTERNAL_ANNOTATIONS = "external_annotations";
    HOST_SEGMENTS = "host_segments";
    HOST_TRACES = "host_traces";
    ALLOC_CONF = "PYTORCH_CUDA_ALLOC_CONF";
    MAX_SPLIT_SIZE = "max_split_size";
    EXPANDABLE_SEGMENTS = "expandable_segments";
    ROUNDUP_POWER2_DIVISIONS = "roundup_power2_divisions";
    TRACE_ALLOC_MAX_ENTRIES = "trace_alloc_max_entries";
    TRACE_ALLOC_OVERFLOWED = "trace_alloc_overflowed";
    FORWARD_FRAMES = "forward_frames";
    INTERNAL_METADATA = "internal_metadata";
    VERSION = "version";
    GPUMEMTRACE = "gpumemtrace";
    NO_FILE = "none";
    ACTIVE_ALLOCATED = "active_allocated";
    ACTIVE_PENDING_FREE = "active_pending_free";
    ACTIVE_AWAITING_FREE = "active_awaiting_free";
    INACTIVE = "inactive";
    START = "START";
    END = "END";
    ALLOC = "alloc";
    FREE = "free";
    FREE_REQUESTED = "free_requested";
    FREE_COMPLETED = "free_completed";
    SEGMENT_ALLOC = "segment_alloc";
    SEGMENT_FREE = "segment_free";
    SEGMENT_MAP = "segment_map";
    SEGMENT_UNMAP = "segment_unmap";
    SNAPSHOT = "snapshot";
    WORKSPACE_SNAPSHOT = "workspace_snapshot";
    OOM = "oom";
    ANNOTATE = "annotate";
    USER_DEFINED = "user_defined";
    CAPTURE_STREAM_REUSE = "graph_capture_record_stream_reuse";
    MAX_CACHED_SIZE = "max_cached_size";
}

/// Keys with lists or dictionaries that a trace needs.
pub(super) const WITH_CONTAINERS: &[TextId] = &[
    FORWARD_FRAMES,
    HISTORY,
    BLOCKS,
    SEGMENTS,
    DEVICE_TRACES,
    HOST_TRACES,
    EXTERNAL_ANNOTATIONS,
    ALLOCATOR_SETTINGS,
    ROUNDUP_POWER2_DIVISIONS,
];

/// True for a key of an event, a frame or an annotation that carries nothing for a trace, and is
/// therefore not counted as unknown.
pub(super) fn is_known(key: TextId) -> bool {
    (key.0 as usize) < ALL.len()
}
