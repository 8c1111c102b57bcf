//! The whole snapshot, from the outermost value of the file.

use super::builder::{Fields, SHARED_LIST};
use super::releases::{KeyPlace, find_releases, has_event_key};
use super::snapshot::AllocatorSettings;
use super::{EventRun, SegmentRecord, SnapshotBuilder, TorchSnapshot, Value, keys};
use crate::error::SnapshotError;

/// Highest ordinal of a device; a trace stores it in a byte.
const MAX_DEVICE: usize = 254;
/// Most pieces of consecutive events in the lists of all devices. PyTorch writes one for each.
const MAX_RUNS: usize = 1 << 14;
/// Entries of `roundup_power2_divisions`, for 1 MiB to 32 GiB.
const ROUNDUP_INTERVALS: usize = 16;

impl SnapshotBuilder {
    /// The snapshot, from the outermost value of the file.
    pub(crate) fn finish(mut self, root: Value) -> Result<TorchSnapshot, SnapshotError> {
        self.check_limits()?;
        let fields = Fields(self.pairs(root));
        fields.check_unshared()?;
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
        let traces = self.traces(fields.get(keys::DEVICE_TRACES), &mut strange)?;
        let host_events = self.runs(fields.get(keys::HOST_TRACES), &mut strange);
        let host_events = host_events.map(|run| u64::from(run.count)).sum();
        let settings = self.settings(fields);
        let annotations = self.items(fields.get(keys::EXTERNAL_ANNOTATIONS)).iter();
        let annotations = annotations.filter_map(|item| match item {
            Value::Annotation(at) => self.snapshot.annotations.get(*at as usize).copied(),
            _ => None,
        });
        let annotations = annotations.collect();
        let has_segments = is_list_of_segments || fields.has(keys::SEGMENTS);
        let is_exported = fields.has(keys::GPUMEMTRACE);
        let releases = if is_exported { None } else { self.releases(fields) };
        let snapshot = &mut self.snapshot;
        let mut all: Vec<Option<SegmentRecord>> =
            std::mem::take(&mut snapshot.segments).into_iter().map(Some).collect();
        snapshot.segments = wanted.into_iter().filter_map(|at| all[at].take()).collect();
        let before = snapshot.segments.len();
        snapshot.segments.retain(|segment| usize::from(segment.device) <= MAX_DEVICE);
        strange += before - snapshot.segments.len();
        (snapshot.traces, snapshot.settings, snapshot.annotations) = (traces, settings, annotations);
        snapshot.is_exported = is_exported;
        snapshot.has_segments = has_segments;
        snapshot.releases = releases;
        snapshot.counts.unknown_keys = self.unknown_keys.len() as u64;
        snapshot.counts.strange_entries = strange as u64;
        snapshot.counts.host_events = host_events;
        snapshot.counts.dropped_texts = snapshot.texts.dropped;
        Ok(self.snapshot)
    }

    /// The releases that write these keys. Lists of segments have none that tell, and other tools
    /// write other keys.
    fn releases(&self, root: Fields<'_>) -> Option<(u32, u32)> {
        if self.is_of_profiler || !root.has(keys::DEVICE_TRACES) || !root.has(keys::SEGMENTS) {
            return None;
        }
        let settings = Fields(self.pairs(root.get(keys::ALLOCATOR_SETTINGS)));
        find_releases(|place, key| match place {
            KeyPlace::Root => Some(root.has(key)),
            KeyPlace::Settings => (!settings.0.is_empty()).then(|| settings.has(key)),
            KeyPlace::Event => self.event_keys.map(|bits| has_event_key(bits, key)),
        })
    }

    /// The events of each device. No event may be listed twice: a small file could otherwise stand
    /// for any number of events.
    fn traces(&self, lists: Value, strange: &mut usize) -> Result<Vec<Vec<EventRun>>, SnapshotError> {
        let lists = self.items(lists);
        if lists.len() > MAX_DEVICE + 1 {
            return Err(SnapshotError::TooLarge { what: "devices", limit: MAX_DEVICE as u64 + 1 });
        }
        let (mut traces, mut all) = (Vec::with_capacity(lists.len()), Vec::new());
        for list in lists {
            let runs: Vec<EventRun> = self.runs(*list, strange).take(MAX_RUNS + 1).collect();
            all.extend_from_slice(&runs);
            if all.len() > MAX_RUNS {
                return Err(SnapshotError::TooLarge { what: "pieces of traces", limit: MAX_RUNS as u64 });
            }
            traces.push(runs);
        }
        all.sort_by_key(|run| run.first);
        let overlaps = |pair: &[EventRun]| pair[1].first - pair[0].first < pair[0].count;
        if all.windows(2).any(overlaps) { Err(SHARED_LIST) } else { Ok(traces) }
    }

    /// The events in a list.
    fn runs<'a>(&'a self, list: Value, strange: &'a mut usize) -> impl Iterator<Item = EventRun> + 'a {
        let (whole, items) = match list {
            Value::Trace(run) => (Some(run), &[][..]),
            list => (None, self.items(list)),
        };
        let parts = items.iter().filter_map(|item| match item {
            Value::Run(run) | Value::Trace(run) => Some(*run),
            Value::Event(at) => Some(EventRun { first: *at, count: 1 }),
            _ => {
                *strange += 1;
                None
            }
        });
        whole.into_iter().chain(parts)
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
