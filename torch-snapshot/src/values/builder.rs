//! Recognizes the parts of a snapshot among finished lists and dictionaries.

use std::collections::{HashMap, HashSet};

use gpumemtrace_format::event::{NO_POOL, pack_pool_id};

use super::containers::{ContainerBody, Containers};
use super::snapshot::{AllocatorSettings, Annotation, BlockRecord, EndBlockState, SegmentRecord};
use super::{EventAction, EventRun, StoredEvent, TextId, TorchFrame, TorchSnapshot, TorchStack, Value, keys};
use crate::error::SnapshotError;

/// Highest ordinal of a device; a trace stores it in a byte.
const MAX_DEVICE: usize = 254;
/// Distinct unknown keys that are counted.
const MAX_UNKNOWN_KEYS: usize = 10_000;
/// Entries of `roundup_power2_divisions`, for 1 MiB to 32 GiB.
const ROUNDUP_INTERVALS: usize = 16;

/// Builds a snapshot from the inside out.
#[derive(Debug, Default)]
pub(crate) struct SnapshotBuilder {
    pub(crate) containers: Containers,
    pub(super) snapshot: TorchSnapshot,
    blocks: Vec<BlockRecord>,
    unknown_keys: HashSet<TextId>,
    /// The frame of each text in `forward_frames`; `None` if it is no frame.
    pub(super) forward_frames: HashMap<TextId, Option<TorchFrame>>,
}

/// The values of a dictionary by key.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(&'a [(TextId, Value)]);

impl Fields<'_> {
    pub(super) fn get(self, key: TextId) -> Value {
        self.0.iter().rfind(|(known, _)| *known == key).map_or(Value::Nothing, |(_, value)| *value)
    }

    fn has(self, key: TextId) -> bool {
        self.0.iter().any(|(known, _)| *known == key)
    }

    pub(super) fn number(self, key: TextId) -> u64 {
        self.get(key).as_number().unwrap_or(0)
    }

    /// The pool under the first of the keys that is there.
    fn pool(self, names: [TextId; 2]) -> u64 {
        let mut pools = names.into_iter().filter_map(|key| match self.get(key) {
            Value::Pool(pool) => Some(pool),
            _ => None,
        });
        pools.next().unwrap_or(NO_POOL)
    }
}

impl SnapshotBuilder {
    pub(crate) fn text(&mut self, text: &str) -> Value {
        Value::Text(self.snapshot.texts.intern(text))
    }

    /// The value of a finished list or tuple.
    pub(crate) fn list(&mut self, items: Vec<Value>) -> Result<Value, SnapshotError> {
        match self.recognize_list(&items) {
            Some(value) => Ok(value),
            None => self.containers.add(ContainerBody::List(items)).map(Value::Container),
        }
    }

    /// The value of a list, if it is known.
    pub(crate) fn recognize_list(&mut self, items: &[Value]) -> Option<Value> {
        match items {
            [] => Some(Value::Empty),
            [Value::Run(run)] => Some(Value::Trace(*run)),
            [Value::Event(at)] => Some(Value::Trace(EventRun { first: *at, count: 1 })),
            [Value::Int(_) | Value::Large(_), Value::Int(_) | Value::Large(_)] => {
                let halves = (items[0].as_number(), items[1].as_number());
                Some(match halves {
                    (Some(first), Some(second)) => Value::Pool(pack_pool_id(first, second)),
                    _ => Value::Nothing,
                })
            }
            items => self.stack_of(items).map(Value::Stack),
        }
    }

    /// The stack of these values, if all of them are frames.
    pub(crate) fn stack_of(&mut self, items: &[Value]) -> Option<TorchStack> {
        self.snapshot.stacks.intern_values(items)
    }

    /// The frames of a stack as values.
    pub(crate) fn frames_of(&self, stack: TorchStack) -> Vec<Value> {
        self.snapshot.stacks.frames(stack).map(Value::Frame).collect()
    }

    /// Appends an item to a list; consecutive events become one item.
    pub(crate) fn push_item(items: &mut Vec<Value>, item: Value) {
        let Value::Event(at) = item else { return items.push(item) };
        match items.last_mut() {
            Some(Value::Run(run)) if run.first.checked_add(run.count) == Some(at) => run.count += 1,
            _ => items.push(Value::Run(EventRun { first: at, count: 1 })),
        }
    }

    /// The value of a finished dictionary.
    pub(crate) fn dict(&mut self, pairs: Vec<(TextId, Value)>) -> Result<Value, SnapshotError> {
        if let Some(value) = self.recognize_dict(&pairs)? {
            for (_, value) in pairs {
                self.containers.release(value);
            }
            return Ok(value);
        }
        if pairs.is_empty() {
            return Ok(Value::Empty);
        }
        self.containers.add(ContainerBody::Dict(pairs)).map(Value::Container)
    }

    /// The value of a dictionary, if its keys are those of a known part.
    pub(crate) fn recognize_dict(
        &mut self,
        pairs: &[(TextId, Value)],
    ) -> Result<Option<Value>, SnapshotError> {
        let fields = Fields(pairs);
        let value = if let Some(action) = fields.get(keys::ACTION).as_text() {
            Value::Event(self.add_event(action, fields)?)
        } else if fields.has(keys::FILENAME) && fields.has(keys::NAME) {
            Value::Frame(self.frame(fields))
        } else if fields.has(keys::STAGE) && fields.has(keys::NAME) {
            self.snapshot.annotations.push(Annotation {
                name: fields.get(keys::NAME).as_text().unwrap_or(keys::EMPTY),
                is_begin: fields.get(keys::STAGE).as_text() == Some(keys::START),
                time_us: fields.number(keys::TIME_US),
            });
            Value::Annotation(self.snapshot.annotations.len() as u32 - 1)
        } else if fields.has(keys::TOTAL_SIZE) && fields.has(keys::BLOCKS) {
            let segment = self.segment(fields);
            self.snapshot.segments.push(segment);
            Value::Segment(self.snapshot.segments.len() as u32 - 1)
        } else if fields.has(keys::STATE) && fields.has(keys::SIZE) {
            let block = self.block(fields);
            self.blocks.push(block);
            Value::Block(self.blocks.len() as u32 - 1)
        } else {
            return Ok(None);
        };
        for (key, _) in pairs {
            if !keys::is_known(*key) && self.unknown_keys.len() < MAX_UNKNOWN_KEYS {
                self.unknown_keys.insert(*key);
            }
        }
        Ok(Some(value))
    }

    fn add_event(&mut self, action: TextId, fields: Fields<'_>) -> Result<u32, SnapshotError> {
        let action = match action {
            keys::ALLOC => EventAction::Alloc,
            keys::FREE_REQUESTED => EventAction::FreeRequested,
            keys::FREE_COMPLETED | keys::FREE => EventAction::FreeCompleted,
            keys::SEGMENT_ALLOC => EventAction::SegmentAlloc,
            keys::SEGMENT_FREE => EventAction::SegmentFree,
            keys::SEGMENT_MAP => EventAction::SegmentMap,
            keys::SEGMENT_UNMAP => EventAction::SegmentUnmap,
            keys::SNAPSHOT => EventAction::Snapshot,
            keys::OOM => EventAction::OutOfMemory,
            keys::ANNOTATE | keys::USER_DEFINED => EventAction::Annotate,
            _ => {
                self.snapshot.counts.unknown_events += 1;
                EventAction::Unknown
            }
        };
        let stack = self.stack_of_event(fields);
        let mut labels = [keys::CATEGORY, keys::USER_METADATA].into_iter();
        let addr = if action == EventAction::OutOfMemory { keys::DEVICE_FREE } else { keys::ADDR };
        self.snapshot.events.push(&StoredEvent {
            action,
            addr: fields.number(addr),
            size: fields.number(keys::SIZE),
            stream: fields.number(keys::STREAM),
            pool: fields.pool([keys::POOL_ID, keys::SEGMENT_POOL_ID]),
            time_us: fields.get(keys::TIME_US).as_number(),
            stack,
            label: labels.find_map(|key| fields.get(key).as_text()).unwrap_or(keys::EMPTY),
        })
    }

    fn block(&self, fields: Fields<'_>) -> BlockRecord {
        let state = match fields.get(keys::STATE).as_text() {
            Some(keys::ACTIVE_ALLOCATED) => EndBlockState::Allocated,
            Some(keys::ACTIVE_PENDING_FREE | keys::ACTIVE_AWAITING_FREE) => EndBlockState::PendingFree,
            _ => EndBlockState::Inactive,
        };
        // Until PyTorch 2.0, size and frames of the request are in the first entry of a list.
        let history =
            self.items(fields.get(keys::HISTORY)).first().map_or(&[][..], |entry| self.pairs(*entry));
        let history = Fields(history);
        let requested = fields.get(keys::REQUESTED_SIZE).as_number();
        BlockRecord {
            address: fields.get(keys::ADDRESS).as_number(),
            size: fields.number(keys::SIZE),
            requested: requested.or(history.get(keys::REAL_SIZE).as_number()),
            state,
            stack: fields.get(keys::FRAMES).as_stack().or(history.get(keys::FRAMES).as_stack()),
        }
    }

    fn segment(&self, fields: Fields<'_>) -> SegmentRecord {
        let blocks = self.items(fields.get(keys::BLOCKS)).iter();
        let blocks = blocks.filter_map(|item| match item {
            Value::Block(at) => self.blocks.get(*at as usize).copied(),
            _ => None,
        });
        SegmentRecord {
            device: u8::try_from(fields.number(keys::DEVICE)).unwrap_or(u8::MAX),
            address: fields.number(keys::ADDRESS),
            bytes: fields.number(keys::TOTAL_SIZE),
            stream: fields.number(keys::STREAM),
            pool: fields.pool([keys::SEGMENT_POOL_ID, keys::POOL_ID]),
            is_expandable: fields.get(keys::IS_EXPANDABLE).as_bool() == Some(true),
            stack: fields.get(keys::FRAMES).as_stack(),
            blocks: blocks.collect(),
        }
    }

    /// The items of a list; none for any other value.
    fn items(&self, value: Value) -> &[Value] {
        match value {
            Value::Container(id) => match self.containers.body(id) {
                ContainerBody::List(items) => items,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// The entries of a dictionary; none for any other value.
    fn pairs(&self, value: Value) -> &[(TextId, Value)] {
        match value {
            Value::Container(id) => match self.containers.body(id) {
                ContainerBody::Dict(pairs) => pairs,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// The snapshot, from the outermost value of the file.
    pub(crate) fn finish(mut self, root: Value) -> Result<TorchSnapshot, SnapshotError> {
        let fields = Fields(self.pairs(root));
        let is_list_of_segments = !self.items(root).is_empty()
            && self.items(root).iter().all(|item| matches!(item, Value::Segment(_)));
        if !(fields.has(keys::SEGMENTS) || fields.has(keys::DEVICE_TRACES) || is_list_of_segments) {
            return Err(SnapshotError::OtherContents("it has neither segments nor device_traces"));
        }
        let segments = if is_list_of_segments { root } else { fields.get(keys::SEGMENTS) };
        // Segments elsewhere in the file are not the allocator's.
        let wanted: Vec<usize> = self
            .items(segments)
            .iter()
            .filter_map(|item| match item {
                Value::Segment(at) => Some(*at as usize),
                _ => None,
            })
            .collect();
        let mut strange = self.items(segments).len() - wanted.len();
        let traces = self.items(fields.get(keys::DEVICE_TRACES)).iter();
        let traces: Vec<Vec<EventRun>> = traces.map(|trace| self.runs(*trace, &mut strange)).collect();
        let host = self.runs(fields.get(keys::HOST_TRACES), &mut strange);
        let settings = self.settings(fields);
        let annotations = self.items(fields.get(keys::EXTERNAL_ANNOTATIONS)).iter();
        let annotations = annotations.filter_map(|item| match item {
            Value::Annotation(at) => self.snapshot.annotations.get(*at as usize).copied(),
            _ => None,
        });
        let annotations = annotations.collect();
        let is_exported = fields.has(keys::GPUMEMTRACE);
        if traces.len() > MAX_DEVICE + 1 {
            return Err(SnapshotError::TooLarge { what: "devices", limit: MAX_DEVICE as u64 + 1 });
        }
        let snapshot = &mut self.snapshot;
        let mut all: Vec<Option<SegmentRecord>> =
            std::mem::take(&mut snapshot.segments).into_iter().map(Some).collect();
        snapshot.segments = wanted.into_iter().filter_map(|at| all[at].take()).collect();
        let before = snapshot.segments.len();
        snapshot.segments.retain(|segment| usize::from(segment.device) <= MAX_DEVICE);
        strange += before - snapshot.segments.len();
        (snapshot.traces, snapshot.settings, snapshot.annotations) = (traces, settings, annotations);
        snapshot.is_exported = is_exported;
        snapshot.counts.unknown_keys = self.unknown_keys.len() as u64;
        snapshot.counts.strange_entries = strange as u64;
        snapshot.counts.host_events = host.iter().map(|run| u64::from(run.count)).sum();
        snapshot.counts.dropped_texts = snapshot.texts.dropped;
        Ok(self.snapshot)
    }

    /// The events in a list.
    fn runs(&self, list: Value, strange: &mut usize) -> Vec<EventRun> {
        let items = match list {
            Value::Trace(run) => return vec![run],
            list => self.items(list),
        };
        let runs: Vec<EventRun> = items
            .iter()
            .filter_map(|item| match item {
                Value::Run(run) | Value::Trace(run) => Some(*run),
                Value::Event(at) => Some(EventRun { first: *at, count: 1 }),
                _ => None,
            })
            .collect();
        *strange += items.len() - runs.len();
        runs
    }

    fn settings(&self, root: Fields<'_>) -> AllocatorSettings {
        let fields = Fields(self.pairs(root.get(keys::ALLOCATOR_SETTINGS)));
        let either = |key| match root.get(key) {
            Value::Nothing => fields.get(key),
            value => value,
        };
        let conf = fields.get(keys::ALLOC_CONF).as_text();
        let mut roundup_divisions = Vec::new();
        for (key, value) in self.pairs(fields.get(keys::ROUNDUP_POWER2_DIVISIONS)) {
            let mebibytes =
                self.snapshot.texts.get(*key).parse::<u32>().ok().filter(|size| size.is_power_of_two());
            let index =
                mebibytes.map(|size| size.trailing_zeros() as usize).filter(|at| *at < ROUNDUP_INTERVALS);
            if let Some((index, value)) = index.zip(value.as_number()) {
                roundup_divisions.resize(ROUNDUP_INTERVALS, 0);
                roundup_divisions[index] = value;
            }
        }
        AllocatorSettings {
            conf: conf.map(|conf| self.snapshot.texts.get(conf).to_owned()),
            // -1 if there is none.
            max_split_bytes: fields.get(keys::MAX_SPLIT_SIZE).as_number(),
            expandable_segments: fields.get(keys::EXPANDABLE_SEGMENTS).as_bool() == Some(true),
            roundup_divisions,
            max_entries: either(keys::TRACE_ALLOC_MAX_ENTRIES).as_number(),
            overflowed: either(keys::TRACE_ALLOC_OVERFLOWED).as_bool(),
        }
    }
}
