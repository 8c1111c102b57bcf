//! Recognizes the parts of a snapshot among finished lists and dictionaries.

use std::collections::HashSet;

use gpumemtrace_format::event::{NO_POOL, pack_pool_id};

use super::containers::{ContainerBody, Containers};
use super::forward::ForwardStacks;
use super::lists::{ListTable, MAX_LISTED};
use super::releases::event_key_bits;
use super::snapshot::{Annotation, BlockRecord, EndBlockState, SegmentRecord};
use super::{EventAction, EventRun, StoredEvent, TextId, TorchSnapshot, TorchStack, Value, keys};
use crate::error::SnapshotError;

/// Distinct unknown keys that are counted.
const MAX_UNKNOWN_KEYS: usize = 10_000;
/// Most blocks, most segments and most annotations of a file.
const MAX_PARTS: usize = 1 << 21;

pub(super) const SHARED_LIST: SnapshotError = SnapshotError::OtherContents("two parts of it share one list");

/// Builds a snapshot from the inside out.
#[derive(Debug, Default)]
pub(crate) struct SnapshotBuilder {
    pub(crate) containers: Containers,
    pub(super) snapshot: TorchSnapshot,
    /// `None` after a segment took the block.
    blocks: Vec<Option<BlockRecord>>,
    pub(super) unknown_keys: HashSet<TextId>,
    pub(super) text_lists: ListTable,
    scratch: Vec<u32>,
    pub(super) forward: ForwardStacks,
    /// Keys of the first event that tell releases apart.
    pub(super) event_keys: Option<u32>,
    /// Events have categories: PyTorch's memory profiler wrote them, not its allocator.
    pub(super) is_of_profiler: bool,
}

/// The values of a dictionary by key.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [(TextId, Value)]);

impl Fields<'_> {
    pub(super) fn get(self, key: TextId) -> Value {
        self.0.iter().rfind(|(known, _)| *known == key).map_or(Value::Nothing, |(_, value)| *value)
    }

    pub(super) fn has(self, key: TextId) -> bool {
        self.0.iter().any(|(known, _)| *known == key)
    }

    pub(super) fn number(self, key: TextId) -> u64 {
        self.get(key).as_number().unwrap_or(0)
    }

    /// Refuses a list that belongs to a finished part, where a trace would need it.
    pub(super) fn check_unshared(self) -> Result<(), SnapshotError> {
        let is_lost =
            |(key, value): &(TextId, Value)| *value == Value::Released && keys::WITH_CONTAINERS.contains(key);
        if self.0.iter().any(is_lost) { Err(SHARED_LIST) } else { Ok(()) }
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
            [Value::Text(_), ..] => self.text_list(items),
            items => self.stack_of(items).map(Value::Stack),
        }
    }

    /// The list of the texts among these values, if the others are numbers.
    fn text_list(&mut self, items: &[Value]) -> Option<Value> {
        self.scratch.clear();
        for item in items {
            match item {
                Value::Text(text) => self.scratch.push(text.0),
                Value::Nothing | Value::Bool(_) | Value::Int(_) | Value::Large(_) | Value::Float(_) => {}
                _ => return None,
            }
        }
        Some(Value::TextList(self.text_lists.intern(&self.scratch)))
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

    /// The value of a finished dictionary. No memo may refer to the values in it.
    pub(crate) fn dict(&mut self, pairs: Vec<(TextId, Value)>) -> Result<Value, SnapshotError> {
        if let Some(value) = self.recognize_dict(&pairs)? {
            for (_, value) in pairs {
                self.containers.release(value);
            }
            return Ok(value);
        }
        self.unknown_dict(pairs)
    }

    /// The value of a dictionary that is no known part.
    pub(crate) fn unknown_dict(&mut self, pairs: Vec<(TextId, Value)>) -> Result<Value, SnapshotError> {
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
        self.check_limits()?;
        let fields = Fields(pairs);
        fields.check_unshared()?;
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
            let segment = self.segment(fields)?;
            self.snapshot.segments.push(segment);
            Value::Segment(self.snapshot.segments.len() as u32 - 1)
        } else if fields.has(keys::STATE) && fields.has(keys::SIZE) {
            let block = self.block(fields);
            self.blocks.push(Some(block));
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

    /// Refuses a file with more parts than memory is spent on.
    pub(super) fn check_limits(&self) -> Result<(), SnapshotError> {
        let TorchSnapshot { stacks, segments, annotations, .. } = &self.snapshot;
        if stacks.is_full() || self.text_lists.is_full || self.forward.merged_frames > MAX_LISTED {
            return Err(SnapshotError::TooLarge {
                what: "frames in distinct stacks",
                limit: MAX_LISTED as u64,
            });
        }
        if self.blocks.len().max(segments.len()).max(annotations.len()) >= MAX_PARTS {
            return Err(SnapshotError::TooLarge {
                what: "blocks, segments or annotations",
                limit: MAX_PARTS as u64,
            });
        }
        Ok(())
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
            keys::WORKSPACE_SNAPSHOT => {
                self.snapshot.has_npu_events = true;
                EventAction::Snapshot
            }
            keys::OOM => EventAction::OutOfMemory,
            keys::ANNOTATE | keys::USER_DEFINED => EventAction::Annotate,
            _ => {
                self.snapshot.counts.unknown_events += 1;
                EventAction::Unknown
            }
        };
        if self.event_keys.is_none() {
            self.event_keys = Some(event_key_bits(|key| fields.has(key)));
            self.is_of_profiler = fields.has(keys::CATEGORY);
        }
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

    fn segment(&mut self, fields: Fields<'_>) -> Result<SegmentRecord, SnapshotError> {
        Ok(SegmentRecord {
            device: u8::try_from(fields.number(keys::DEVICE)).unwrap_or(u8::MAX),
            address: fields.number(keys::ADDRESS),
            bytes: fields.number(keys::TOTAL_SIZE),
            stream: fields.number(keys::STREAM),
            pool: fields.pool([keys::SEGMENT_POOL_ID, keys::POOL_ID]),
            is_expandable: fields.get(keys::IS_EXPANDABLE).as_bool() == Some(true),
            stack: fields.get(keys::FRAMES).as_stack(),
            blocks: self.take_blocks(fields.get(keys::BLOCKS))?,
        })
    }

    /// The blocks in a list. They belong to one segment, so a second one is refused. Otherwise a
    /// small file could name one long list in many segments.
    fn take_blocks(&mut self, list: Value) -> Result<Vec<BlockRecord>, SnapshotError> {
        let Value::Container(id) = list else { return Ok(Vec::new()) };
        let items = self.containers.take_items(id);
        let mut blocks = Vec::with_capacity(items.len());
        for item in items {
            if let Value::Block(at) = item {
                let block = self.blocks.get_mut(at as usize).and_then(Option::take);
                blocks.push(block.ok_or(SHARED_LIST)?);
            }
        }
        Ok(blocks)
    }

    /// The items of a list; none for any other value.
    pub(super) fn items(&self, value: Value) -> &[Value] {
        match value {
            Value::Container(id) => match self.containers.body(id) {
                ContainerBody::List(items) => items,
                _ => &[],
            },
            _ => &[],
        }
    }

    /// The entries of a dictionary; none for any other value.
    pub(super) fn pairs(&self, value: Value) -> &[(TextId, Value)] {
        match value {
            Value::Container(id) => match self.containers.body(id) {
                ContainerBody::Dict(pairs) => pairs,
                _ => &[],
            },
            _ => &[],
        }
    }
}
