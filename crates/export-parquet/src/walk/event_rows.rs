//! An event as a row: which fields of each kind mean what.

use gpumemtrace_format::event::NO_POOL;
use gpumemtrace_format::{Event, EventKind};
use gpumemtrace_replay::Analysis;
use gpumemtrace_replay::report::WalkedEvent;

use crate::file::cell::Text;
use crate::tables::events::EventRow;
use crate::tables::known_device;

/// Kinds of events with a `size` that is a value, a flag or a limit.
const SIZE_IS_NO_SIZE: [EventKind; 5] = [
    EventKind::POOL_CREATE,
    EventKind::POOL_SET,
    EventKind::POOL_GET,
    EventKind::GRAPH_INSTANTIATE,
    EventKind::CONTEXT_LIMIT,
];

/// What the fields of a kind mean.
struct KindFields {
    name: Text,
    /// The bits of the known fields.
    known: u8,
}

/// A field that events of a kind have.
#[derive(Clone, Copy)]
enum Field {
    Address,
    Size,
    /// `aux1` is what PyTorch has reserved.
    Reserved,
    /// `aux0` is a stream.
    Stream,
    /// `aux1` is a pool of PyTorch.
    Pool,
    /// The event is a call of the driver.
    Call,
}

impl KindFields {
    fn new(kind: EventKind) -> Self {
        let row = EventKind::TABLE.iter().find(|row| row.kind == kind);
        let is_known = |field: &str| field != "0";
        let is_block = matches!(kind, EventKind::BLOCK_ALLOC | EventKind::BLOCK_FREE);
        let is_torch_place = matches!(
            kind,
            EventKind::BLOCK_FREE_COMPLETED
                | EventKind::SEGMENT_ALLOC
                | EventKind::SEGMENT_FREE
                | EventKind::SEGMENT_MAP
                | EventKind::SEGMENT_UNMAP
                | EventKind::TORCH_ANNOTATE
        );
        let is_async = matches!(kind, EventKind::ASYNC_ALLOC | EventKind::ASYNC_FREE);
        let has_address = row.is_some_and(|row| is_known(row.addr));
        let has_size = row.is_some_and(|row| is_known(row.size));
        let fields = [
            // The address of an error is a number of bytes.
            (Field::Address, has_address && kind != EventKind::BLOCK_OOM),
            (Field::Size, has_size && !SIZE_IS_NO_SIZE.contains(&kind)),
            (Field::Reserved, is_block || kind == EventKind::BLOCK_OOM),
            (Field::Stream, is_torch_place || is_async),
            (Field::Pool, is_torch_place),
            (Field::Call, kind.is_driver_call()),
        ];
        let known = fields.iter().filter(|(_, is_known)| *is_known).map(|(field, _)| field.bit());
        Self {
            name: kind.name().map_or_else(|| format!("kind_{}", kind.0).into(), Text::from_static),
            known: known.fold(0, |all, bit| all | bit),
        }
    }

    #[inline]
    fn has(&self, field: Field) -> bool {
        self.known & field.bit() != 0
    }
}

impl Field {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Makes rows of events.
pub(crate) struct EventRows {
    kinds: Vec<KindFields>,
    /// Names of the functions of the driver, by number.
    apis: Vec<Text>,
    has_steps: bool,
    /// Numbers above the range of a column, which are null.
    pub(crate) omitted_numbers: u64,
}

impl EventRows {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        Self {
            kinds: (0..=u8::MAX).map(|kind| KindFields::new(EventKind(kind))).collect(),
            apis: analysis.meta.list("apis").iter().map(|name| Text::from(name.as_str())).collect(),
            has_steps: analysis.step_source().is_some(),
            omitted_numbers: 0,
        }
    }

    /// The number of a step; `None` in a run without steps.
    #[inline]
    pub(crate) fn step(&self, step: u32) -> Option<i64> {
        self.has_steps.then_some(i64::from(step))
    }

    /// A number as BIGINT; `None` above its range, which is counted.
    #[inline]
    pub(crate) fn number(&mut self, value: u64) -> Option<i64> {
        let number = i64::try_from(value).ok();
        self.omitted_numbers += u64::from(number.is_none());
        number
    }

    /// A pool of PyTorch; `None` if it is unknown.
    fn pool(&mut self, pool: u64) -> Option<i64> {
        if pool == NO_POOL { None } else { self.number(pool) }
    }

    #[inline]
    pub(crate) fn row(&mut self, walked: &WalkedEvent<'_>) -> EventRow {
        let event: &Event = walked.event;
        let kind = &self.kinds[usize::from(event.kind.0)];
        let [has_address, has_size, has_reserved, has_stream, has_pool, is_call] =
            [Field::Address, Field::Size, Field::Reserved, Field::Stream, Field::Pool, Field::Call]
                .map(|field| kind.has(field));
        let returned = !event.in_flight;
        let (stream, pool) = match event.detail {
            Some(detail) => (self.number(detail.stream), self.pool(detail.pool)),
            None => (
                if has_stream { self.number(event.aux[0]) } else { None },
                if has_pool { self.pool(event.aux[1]) } else { None },
            ),
        };
        EventRow {
            // A number that is out of range says that the call did not return.
            seq: i64::try_from(event.seq).ok(),
            time_ns: i64::try_from(walked.time_ns).unwrap_or(i64::MAX),
            step: self.step(walked.step),
            kind: self.kinds[usize::from(event.kind.0)].name.clone(),
            device: known_device(event.device),
            address: if has_address && returned { self.number(event.addr) } else { None },
            size_bytes: if has_size { self.number(event.size) } else { None },
            requested_bytes: event.detail.and_then(|detail| self.number(detail.requested_bytes)),
            reserved_bytes: if has_reserved { self.number(event.aux[1]) } else { None },
            stream,
            pool,
            stack: i64::from(walked.stack),
            thread: i64::from(event.thread.0),
            api: self.apis.get(usize::from(event.api.0)).filter(|_| is_call).cloned(),
            result: (is_call && returned).then_some(i64::from(event.result)),
            name: walked.name.map(Text::from),
        }
    }
}
