//! The hot path: from a hook to a record in the ring.
//!
//! Constraint: this runs inside the program's own calls, possibly under its locks. Consequence: no lock, no allocation, no
//! system call in the steady state; what cannot be recorded is counted. A driver call is shown in the ring *before* it is
//! made and completed after it returned, so that a process killed in between has still left the call.
//!
//! Order: what gives memory back takes its place in the order before the call, everything else after it. So whatever the
//! threads do, an address is freed in the trace before it is handed out again.

use std::path::Path;
use std::sync::atomic::Ordering;

use gpumemtrace_format::event::{Event, RECORD_WORDS, STATE_DONE};
use gpumemtrace_format::ring::{encode_code_head_record, encode_native_node_record, encode_py_node_record};
use gpumemtrace_format::{
    ApiId, CodeId, Counter, Detail, EventKind, NO_DEVICE, NO_SEQ, NativeNode, NodeId, PyNode,
};

use crate::clock::event_ns;
use crate::config::NativeStacks;
use crate::current::running;
use crate::name::Name;
use crate::protocol::ring::RingWords;
use crate::python::Interpreter;
use crate::session::Session;
use crate::shared::Ring;
use crate::stack_cache::FrameKey;
use crate::text::Text;
use crate::thread::{Lane, Local, ThreadBlock, with_local};

/// What a hook knows before the call.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// What.
    pub kind: EventKind,
    /// Entry point.
    pub api: ApiId,
    /// Device ordinal, if known.
    pub device: u8,
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// By kind.
    pub aux: [u64; 2],
    /// As in the event.
    pub flags: u8,
    /// What PyTorch's tracker knows of it. For [`event`] only.
    pub detail: Option<Detail>,
}

impl Draft {
    /// A draft of which only this much is known.
    pub fn new(kind: EventKind, api: ApiId) -> Self {
        Self { kind, api, device: NO_DEVICE, addr: 0, size: 0, aux: [0; 2], flags: 0, detail: None }
    }
}

/// A driver call that has been shown and is about to be made. Must be finished; a call that never returns is left as it is,
/// which is the truth.
#[derive(Debug)]
#[must_use]
pub struct Call {
    session: &'static Session,
    ring: Ring,
    index: usize,
    number: u64,
    event: Event,
}

/// Shows a driver call. `None`: not recorded (recording is off, or this is a call within a call); just make the call.
#[inline]
pub fn begin(draft: &Draft) -> Option<Call> {
    with_local(|local| {
        let session = enter(local)?;
        let call = begin_inside(local, session, draft);
        // Stays set while the driver runs: calls it makes itself are not the program's.
        local.busy.set(call.is_some());
        call
    })
}

fn begin_inside(local: &Local, session: &'static Session, draft: &Draft) -> Option<Call> {
    let block = local.block(session)?;
    let index = block.lane.index();
    let _inside = session.go_inside(index)?;
    let (python_stack, native_stack) = stacks(local, session, block, draft.kind);
    if !block.lane.reserve(session, 1) {
        session.shared.count(Counter::DroppedEvents);
        return None;
    }
    let ring = *block.lane.ring()?;
    let mut event = event_from(draft, python_stack, native_stack);
    event.in_flight = true;
    if draft.kind.is_ordered_before_call() {
        event.seq = session.shared.next_seq().fetch_add(1, Ordering::Relaxed);
    }
    let number = block.lane.push(&event.to_words());
    Some(Call { session, ring, index, number, event })
}

impl Call {
    /// Completes the record of a call that returned. `fill` adds what the call gave.
    #[inline]
    pub fn finish(mut self, result: u16, fill: impl FnOnce(&mut Event)) {
        // When the recording ended meanwhile, the call stays in the trace as one that had not returned.
        if let Some(_inside) = self.session.go_inside(self.index) {
            self.event.result = result;
            self.event.in_flight = false;
            fill(&mut self.event);
            if self.event.seq == NO_SEQ {
                self.event.seq = self.session.shared.next_seq().fetch_add(1, Ordering::Relaxed);
                self.event.time_ns = event_ns();
            }
            self.ring.complete(self.number, &self.event.to_words());
        }
        with_local(|local| local.busy.set(false));
    }
}

/// Records something that has happened.
#[inline]
pub fn event(draft: &Draft) {
    with_local(|local| {
        let Some(session) = enter(local) else { return };
        event_inside(local, session, draft);
        local.busy.set(false);
    });
}

#[inline]
pub(crate) fn event_inside(local: &Local, session: &'static Session, draft: &Draft) -> Option<()> {
    let block = local.block(session)?;
    let _inside = session.go_inside(block.lane.index())?;
    let (python_stack, native_stack) = stacks(local, session, block, draft.kind);
    if block.lane.reserve(session, 1 + u64::from(draft.detail.is_some())) {
        let mut event = event_from(draft, python_stack, native_stack);
        event.seq = session.shared.next_seq().fetch_add(1, Ordering::Relaxed);
        if let Some(detail) = event.separate_detail_record() {
            block.lane.put(&detail);
        }
        block.lane.push(&event.to_words());
    } else {
        session.shared.count(Counter::DroppedEvents);
    }
    Some(())
}

/// Records something that has happened and has a name, which goes in place of the first number by kind. Numbers in the name
/// become `#`: what counts up would be another name each time.
pub fn named_event(draft: &Draft, name: &[u8]) {
    with_local(|local| {
        let Some(session) = enter(local) else { return };
        named_event_inside(local, session, draft, (&Name::new(name), 0));
        local.busy.set(false);
    });
}

/// Records something that has happened and has a text, as it is, which goes in place of the first number by kind.
pub fn text_event(draft: &Draft, text: &[u8]) {
    with_local(|local| {
        let Some(session) = enter(local) else { return };
        let id = local.block(session).and_then(|block| {
            let _inside = session.go_inside(block.lane.index())?;
            let text = Text::new(text);
            let payload = text.payload();
            define_payload(session, &mut block.lane, payload, |id| {
                encode_code_head_record(id, payload.len(), 0, 0, text.is_cut())
            })
        });
        let draft = Draft { aux: [id.map_or(0, |id| u64::from(id.0)), draft.aux[1]], ..*draft };
        event_inside(local, session, &draft);
        local.busy.set(false);
    });
}

/// The name goes in place of this number by kind.
pub(crate) fn named_event_inside(
    local: &Local,
    session: &'static Session,
    draft: &Draft,
    (name, place): (&Name, usize),
) {
    let id = local.block(session).and_then(|block| {
        let _inside = session.go_inside(block.lane.index())?;
        define_name(session, block, name)
    });
    let mut draft = *draft;
    draft.aux[place] = id.map_or(0, |id| u64::from(id.0));
    event_inside(local, session, &draft);
}

fn define_name(session: &Session, block: &mut ThreadBlock, name: &Name) -> Option<CodeId> {
    // No code object lies at this address.
    let key = FrameKey { code: 1, instr: 0, tag: name.hash() };
    if let Some(id) = block.codes.lookup(&key) {
        return Some(id);
    }
    let payload = name.payload();
    let id = define_payload(session, &mut block.lane, payload, |id| {
        encode_code_head_record(id, payload.len(), 0, 0, name.is_cut())
    })?;
    block.codes.insert(&key, id);
    Some(id)
}

/// True while something is being recorded: what is no use of a GPU must not begin it.
pub fn is_recording() -> bool {
    running().is_some()
}

/// True while a recording may still begin, or runs.
pub fn may_record() -> bool {
    is_recording() || crate::current::may_start()
}

/// Where what is being recorded goes: the trace's own name, which with parts is that of the last.
pub fn trace_path() -> Option<&'static Path> {
    running().map(|session| session.path.as_path())
}

/// Counts something outside of any event.
pub fn count(counter: Counter) {
    if let Some(session) = running() {
        session.shared.count(counter);
    }
}

/// After a panic was caught at an entry point: the thread must not stay marked as inside.
pub fn leave_after_panic() {
    count(Counter::InternalErrors);
    with_local(|local| local.busy.set(false));
}

/// Marks the thread as inside a hook, unless it is already or recording is off.
#[inline]
pub(crate) fn enter(local: &Local) -> Option<&'static Session> {
    if local.busy.get() {
        count(Counter::NestedCalls);
        return None;
    }
    local.busy.set(true);
    let session = running().or_else(|| crate::said::start(local));
    if session.is_none() {
        local.busy.set(false);
    }
    session
}

fn event_from(draft: &Draft, python_stack: NodeId, native_stack: NodeId) -> Event {
    Event {
        time_ns: event_ns(),
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

/// The ids of the calling thread's stacks. Without Python frames of its own, it may work for a line that has some.
#[inline]
fn stacks(local: &Local, session: &Session, block: &mut ThreadBlock, kind: EventKind) -> (NodeId, NodeId) {
    let own = match &session.python {
        Some(interpreter) => python_stack(session, interpreter, block),
        None => NodeId::NONE,
    };
    let python = if own == NodeId::NONE { local.works_for.get() } else { own };
    let is_wanted = match session.native {
        NativeStacks::None => false,
        NativeStacks::Owners => kind.is_driver_call() && !kind.is_ordered_before_call(),
        // Whose line it was tells where a block went back; through which functions of PyTorch's it went costs as much again.
        NativeStacks::All => {
            python == NodeId::NONE || !matches!(kind, EventKind::BLOCK_FREE | EventKind::BLOCK_FREE_COMPLETED)
        }
    };
    let native = if is_wanted { native_stack(session, block) } else { NodeId::NONE };
    (python, native)
}

#[inline]
pub(crate) fn python_stack(session: &Session, interpreter: &Interpreter, block: &mut ThreadBlock) -> NodeId {
    let ThreadBlock { lane, python, codes, scratch, .. } = block;
    let change = interpreter.look(python);
    if change.truncated {
        session.shared.count(Counter::TruncatedStacks);
    }
    python.follow(change, |parent, frame| {
        let code = if let Some(code) = codes.lookup(frame) {
            code
        } else {
            let code = define_code(session, interpreter, lane, frame, scratch)?;
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
        define(session, lane, &encode_py_node_record(node)).then_some(id)
    })
}

/// Records a code object under a new id; the id of "unknown" if it cannot be read, `None` if there is no room.
#[cold]
fn define_code(
    session: &Session,
    interpreter: &Interpreter,
    lane: &mut Lane,
    frame: &FrameKey,
    scratch: &mut [u8; crate::python::code::SCRATCH_BYTES],
) -> Option<CodeId> {
    let Some(copied) = interpreter.copy_code(frame, scratch) else {
        session.shared.count(Counter::UnreadableFrames);
        return Some(CodeId::UNKNOWN);
    };
    let payload = &scratch[..copied.len];
    define_payload(session, lane, payload, |id| {
        encode_code_head_record(id, copied.len, copied.first_line, interpreter.version(), copied.truncated)
    })
}

/// Records a definition of several records under a new id.
fn define_payload(
    session: &Session,
    lane: &mut Lane,
    payload: &[u8],
    head: impl FnOnce(CodeId) -> [u64; RECORD_WORDS],
) -> Option<CodeId> {
    let chunks = payload.chunks(gpumemtrace_format::ring::DATA_BYTES_PER_RECORD);
    if !lane.reserve(session, 1 + chunks.len() as u64) {
        return None;
    }
    let id = CodeId(session.next_code.fetch_add(1, Ordering::Relaxed));
    lane.put(&head(id));
    for chunk in chunks {
        let mut words = [0u64; 8];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(8)) {
            let mut full = [0; 8];
            full[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(full);
        }
        words[7] = u64::from(EventKind::CODE_DATA.0) | u64::from(STATE_DONE) << 48;
        lane.put(&words);
    }
    lane.publish();
    Some(id)
}

#[inline(never)]
fn native_stack(session: &Session, block: &mut ThreadBlock) -> NodeId {
    let ThreadBlock { lane, native, .. } = block;
    let found = native.find(|parent, frame| {
        let id = NodeId(session.next_native_node.fetch_add(1, Ordering::Relaxed));
        let node = NativeNode { id, parent, return_address: frame.instr as u64 };
        define(session, lane, &encode_native_node_record(node)).then_some(id)
    });
    if found.is_truncated {
        session.shared.count(Counter::TruncatedStacks);
    }
    found.node
}

pub(crate) fn define(session: &Session, lane: &mut Lane, words: &[u64; 8]) -> bool {
    let room = lane.reserve(session, 1);
    if room {
        lane.push(words);
    }
    room
}
