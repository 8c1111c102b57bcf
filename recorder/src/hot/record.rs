//! Builds event records and stores them in the calling thread's ring buffer.
//!
//! This code runs inside the program's own driver calls, possibly under the program's locks. In the
//! steady state it takes no lock, allocates nothing and makes no system call
//! (`tests/steady_state.rs` runs it under seccomp). An event that cannot be recorded is counted.
//!
//! A driver call is published in the ring before it is made and completed after it returns. If the
//! process is killed in between, the trace still contains the call, marked as in flight.
//!
//! Order: a call that releases memory takes its sequence number before the call; everything else
//! takes it afterwards. So an address is always freed in the trace before it is handed out again.

use std::sync::atomic::Ordering;

use gpumemtrace_format::event::{Event, MARK_NAMED, MARK_STEP, RECORD_WORDS, STATE_DONE};
use gpumemtrace_format::ring::{encode_code_head_record, encode_native_node_record, encode_py_node_record};
use gpumemtrace_format::{ApiId, CodeId, Counter, Detail, EventKind, NO_DEVICE, NativeNode, NodeId, PyNode};

use super::autograd::stack_inside_backward;
use super::event_name::EventName;
use super::event_text::EventText;
use super::pending_markers::{MarkerKind, MarkerSink};
use super::thread_state::ThreadState;
use crate::config::NativeStacks;
use crate::platform::clock::event_ns;
use crate::platform::this_thread;
use crate::session::Session;
use crate::session::thread_block::{ThreadBlock, ThreadRingProducer};
use crate::stacks::cache::FrameKey;
use crate::stacks::python::Interpreter;
use crate::stacks::python::code::SCRATCH_BYTES;

/// What a hook knows about an event before the recorder adds order, time, thread and stacks.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// The kind of event to record.
    pub kind: EventKind,
    /// The driver entry point that was called.
    pub api: ApiId,
    /// Device ordinal, or `NO_DEVICE` if unknown.
    pub device: u8,
    /// Address of the memory concerned, or 0.
    pub addr: u64,
    /// Size of the memory in bytes.
    pub size: u64,
    /// Two numbers with a meaning of their own for each kind; see the specification of the format.
    pub aux: [u64; 2],
    /// Flag bits, stored in the event unchanged.
    pub flags: u8,
    /// What PyTorch's tracker adds to a block. [`crate::begin_call`] ignores it.
    pub detail: Option<Detail>,
}

impl Draft {
    /// A draft with a kind and an entry point, without a device, and with zeros elsewhere.
    pub fn new(kind: EventKind, api: ApiId) -> Self {
        Self { kind, api, device: NO_DEVICE, addr: 0, size: 0, aux: [0; 2], flags: 0, detail: None }
    }
}

/// Records an event. Returns `None` if the thread has no ring or the recording has ended.
#[inline]
pub(crate) fn record_event_inside(
    state: &ThreadState,
    session: &'static Session,
    draft: &Draft,
) -> Option<()> {
    let block = state.block(session)?;
    let _guard = session.enter_to_record(block.producer.index())?;
    let (python_stack, native_stack) = capture_stacks(state, session, block, draft.kind);
    let now_ns = event_ns();
    if block.producer.reserve(session, 1 + u64::from(draft.detail.is_some()), now_ns) {
        let mut event = event_from(draft, now_ns, python_stack, native_stack);
        event.seq = session.rings.next_seq().fetch_add(1, Ordering::Relaxed);
        if let Some(detail) = event.separate_detail_record() {
            block.producer.put(&detail);
        }
        block.producer.push(&event.to_words());
    } else {
        session.rings.count(Counter::DroppedEvents);
    }
    Some(())
}

/// Records an event with a name. The id of the name goes into `aux[place]`.
pub(crate) fn record_named_event_inside(
    state: &ThreadState,
    session: &'static Session,
    draft: &Draft,
    (name, place): (&EventName, usize),
) {
    let id = state.block(session).and_then(|block| {
        let _guard = session.enter_hook(block.producer.index())?;
        define_name(session, block, name)
    });
    let mut draft = *draft;
    draft.aux[place] = id.map_or(0, |id| u64::from(id.0));
    record_event_inside(state, session, &draft);
}

/// Records an event with a text. The id of the text goes into `aux[0]`.
pub(crate) fn record_text_event_inside(
    state: &ThreadState,
    session: &'static Session,
    draft: &Draft,
    text: &[u8],
) {
    let id = state.block(session).and_then(|block| {
        let _guard = session.enter_hook(block.producer.index())?;
        let text = EventText::new(text);
        let payload = text.payload();
        define_payload(session, &mut block.producer, payload, |id| {
            encode_code_head_record(id, payload.len(), 0, 0, text.is_truncated())
        })
    });
    let draft = Draft { aux: [id.map_or(0, |id| u64::from(id.0)), draft.aux[1]], ..*draft };
    record_event_inside(state, session, &draft);
}

/// The event that begins a step.
pub(crate) fn step_draft() -> Draft {
    Draft { aux: [MARK_STEP, 0], ..Draft::new(EventKind::MARK, ApiId::default()) }
}

/// Records the begin of a phase, or a mark. `thread` is the thread that made it; 0 stands for the
/// calling thread.
pub(crate) fn record_marker_inside(
    state: &ThreadState,
    session: &'static Session,
    (kind, thread): (MarkerKind, u32),
    name: &EventName,
) {
    let (draft, place) = match kind {
        MarkerKind::Phase => {
            let draft = Draft::new(EventKind::PHASE_BEGIN, ApiId::default());
            (Draft { aux: [0, u64::from(thread)], ..draft }, 0)
        }
        MarkerKind::Mark => {
            (Draft { aux: [MARK_NAMED, 0], ..Draft::new(EventKind::MARK, ApiId::default()) }, 1)
        }
    };
    record_named_event_inside(state, session, &draft, (name, place));
}

/// Records pending markers in front of a session's first event.
pub(crate) struct PendingMarkerWriter<'a> {
    state: &'a ThreadState,
    session: &'static Session,
    thread: u32,
}

impl<'a> PendingMarkerWriter<'a> {
    pub(crate) fn new(state: &'a ThreadState, session: &'static Session) -> Self {
        Self { state, session, thread: this_thread() }
    }
}

impl MarkerSink for PendingMarkerWriter<'_> {
    fn add_step(&mut self) {
        record_event_inside(self.state, self.session, &step_draft());
    }

    fn add_marker(&mut self, kind: MarkerKind, thread: u32, name: &EventName) {
        let thread = if thread == self.thread { 0 } else { thread };
        record_marker_inside(self.state, self.session, (kind, thread), name);
    }

    fn count_lost(&mut self, count: u64) {
        for _ in 0..count.min(1 << 20) {
            self.session.rings.count(Counter::DroppedEvents);
        }
    }
}

fn define_name(session: &Session, block: &mut ThreadBlock, name: &EventName) -> Option<CodeId> {
    // No code object lies at address 1.
    let key = FrameKey { code: 1, instr: 0, tag: name.hash() };
    if let Some(id) = block.codes.lookup(&key) {
        return Some(id);
    }
    let payload = name.payload();
    let id = define_payload(session, &mut block.producer, payload, |id| {
        encode_code_head_record(id, payload.len(), 0, 0, name.is_truncated())
    })?;
    block.codes.insert(&key, id);
    Some(id)
}

pub(super) fn event_from(draft: &Draft, now_ns: u64, python_stack: NodeId, native_stack: NodeId) -> Event {
    Event {
        time_ns: now_ns,
        device: draft.device,
        api: draft.api,
        flags: draft.flags,
        addr: draft.addr,
        size: draft.size,
        aux: draft.aux,
        python_stack,
        native_stack,
        detail: draft.detail,
        ..Event::new(draft.kind)
    }
}

/// Captures the Python and the native stack of the calling thread, as far as they are recorded.
///
/// A thread that computes a node of the backward pass gets the forward stack of that node, below
/// its own Python frames if it has some ([`super::autograd`]).
#[inline]
pub(super) fn capture_stacks(
    state: &ThreadState,
    session: &Session,
    block: &mut ThreadBlock,
    kind: EventKind,
) -> (NodeId, NodeId) {
    let own = match &session.python {
        Some(interpreter) => capture_python_stack(session, interpreter, block),
        None => NodeId::NONE,
    };
    let python = match (own, state.autograd_stack.get()) {
        (own, NodeId::NONE) => own,
        (NodeId::NONE, forward) => forward,
        (own, forward) => stack_inside_backward(session, block, (own, forward)).unwrap_or(own),
    };
    let is_wanted = match session.native {
        NativeStacks::None => false,
        NativeStacks::Owners => kind.is_driver_call() && !kind.is_ordered_before_call(),
        // The Python line shows where a block was freed. PyTorch's functions below it would cost as
        // much again.
        NativeStacks::All => {
            python == NodeId::NONE || !matches!(kind, EventKind::BLOCK_FREE | EventKind::BLOCK_FREE_COMPLETED)
        }
    };
    let native = if is_wanted { capture_native_stack(session, block) } else { NodeId::NONE };
    (python, native)
}

#[inline]
pub(crate) fn capture_python_stack(
    session: &Session,
    interpreter: &Interpreter,
    block: &mut ThreadBlock,
) -> NodeId {
    let ThreadBlock { producer, python, codes, scratch, .. } = block;
    let change = interpreter.find_change(python);
    if change.is_truncated {
        session.rings.count(Counter::TruncatedStacks);
    }
    python.apply(change, |parent, frame| {
        let code = if let Some(code) = codes.lookup(frame) {
            code
        } else {
            let code = define_code(session, interpreter, producer, frame, scratch)?;
            codes.insert(frame, code);
            code
        };
        let id = NodeId(session.next_py_node.fetch_add(1, Ordering::Relaxed));
        let node = PyNode {
            id,
            parent,
            code,
            offset_bytes: interpreter.offset_in_code(frame),
            link: interpreter.link_of(frame),
        };
        push_definition(session, producer, &encode_py_node_record(node)).then_some(id)
    })
}

/// Records a code object under a new id. Returns the id of "unknown" if it cannot be read, and
/// `None` if the ring has no space.
#[cold]
fn define_code(
    session: &Session,
    interpreter: &Interpreter,
    producer: &mut ThreadRingProducer,
    frame: &FrameKey,
    scratch: &mut [u8; SCRATCH_BYTES],
) -> Option<CodeId> {
    let Some(copied) = interpreter.copy_code(frame, scratch) else {
        session.rings.count(Counter::UnreadableFrames);
        return Some(CodeId::UNKNOWN);
    };
    let payload = &scratch[..copied.len];
    define_payload(session, producer, payload, |id| {
        encode_code_head_record(id, copied.len, copied.first_line, interpreter.version(), copied.is_truncated)
    })
}

/// Records a definition that takes several records under a new id. They become visible together.
fn define_payload(
    session: &Session,
    producer: &mut ThreadRingProducer,
    payload: &[u8],
    head: impl FnOnce(CodeId) -> [u64; RECORD_WORDS],
) -> Option<CodeId> {
    let chunks = payload.chunks(gpumemtrace_format::ring::DATA_BYTES_PER_RECORD);
    if !producer.reserve(session, 1 + chunks.len() as u64, event_ns()) {
        return None;
    }
    let id = CodeId(session.next_code.fetch_add(1, Ordering::Relaxed));
    producer.put(&head(id));
    for chunk in chunks {
        let mut words = [0u64; 8];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(8)) {
            let mut full = [0; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(full);
        }
        words[7] = u64::from(EventKind::CODE_DATA.0) | u64::from(STATE_DONE) << 48;
        producer.put(&words);
    }
    producer.publish();
    Some(id)
}

#[inline(never)]
fn capture_native_stack(session: &Session, block: &mut ThreadBlock) -> NodeId {
    let ThreadBlock { producer, native, .. } = block;
    let captured = native.capture(|parent, frame| {
        let id = NodeId(session.next_native_node.fetch_add(1, Ordering::Relaxed));
        let node = NativeNode { id, parent, return_address: frame.instr as u64 };
        push_definition(session, producer, &encode_native_node_record(node, frame.tag)).then_some(id)
    });
    if captured.is_truncated {
        session.rings.count(Counter::TruncatedStacks);
    }
    captured.node
}

/// Records a definition of one record. Returns false if the ring has no space.
pub(crate) fn push_definition(
    session: &Session,
    producer: &mut ThreadRingProducer,
    words: &[u64; 8],
) -> bool {
    let has_space = producer.reserve(session, 1, event_ns());
    if has_space {
        producer.push(words);
    }
    has_space
}
