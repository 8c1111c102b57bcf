//! Exact states of a device's allocator at some moments of the run, for viewers.
//!
//! States are kept at the observations of the gap ([`crate::fragmentation::history`]), which visit
//! every block anyway, at out-of-memory errors and marks, and at the key moments. Memory is
//! limited: when [`MAX_BLOCKS`] or [`MAX_INTERVALS`] are exceeded, every other interval is dropped.
//! Of marks the first ones are kept; of errors the first ones and the last.

use crate::device::placed_blocks::PlacedBlocks;
use crate::fragmentation::AllocatorSnapshot;
use crate::state::segments::Segment;

/// Limit of states at even distances.
const MAX_INTERVALS: usize = 48;
/// Limit of blocks in all of them, and of blocks at errors and marks.
const MAX_BLOCKS: usize = 1 << 19;
/// Limit of states at marks, and of those at errors.
const MAX_MOMENTS: usize = 16;

/// Why a state was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyframeReason {
    /// The first moment of most allocated bytes.
    Peak,
    /// The first moment of most reserved bytes.
    PeakReserved,
    /// The first moment of most unused reserved bytes.
    LargestGap,
    /// The end of the program.
    End,
    /// An out-of-memory error that PyTorch reported.
    OutOfMemory,
    /// A mark of the program.
    Mark,
    /// One of the moments at even distances.
    Interval,
}

/// The state of the allocator at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Keyframe {
    pub why: KeyframeReason,
    pub time_ns: u64,
    /// Number of steps begun.
    pub step: u32,
    /// Number of events of PyTorch's blocks on the device up to it.
    pub block_events: u64,
    pub reserved: u64,
    /// Segments by address; empty without PyTorch's tracker.
    pub segments: Vec<Segment>,
    /// Live blocks by address; their stacks are those of the pass.
    pub blocks: PlacedBlocks,
}

/// The states that are kept.
#[derive(Debug, Default)]
pub(crate) struct Keyframes {
    all: Vec<Keyframe>,
    /// Those at even distances, each with the number of its event.
    intervals: Vec<(u64, Keyframe)>,
    marks: Vec<Keyframe>,
    errors: Vec<Keyframe>,
    /// Number of errors and marks without a state.
    omitted: u64,
    /// Distance of the intervals in events: that of the observations of the gap, or some of it.
    stride: u64,
}

impl Keyframes {
    /// Raises the distance of the intervals to that of the observations of the gap.
    pub(crate) fn set_stride(&mut self, stride: u64) {
        if stride > self.stride {
            self.stride = stride;
            self.intervals.retain(|(event, _)| event.is_multiple_of(stride));
        }
    }

    /// Keeps a state at one of the even distances, after `event` events, or skips it. Each is also
    /// an observation of the gap. Call [`Self::set_stride`] before.
    pub(crate) fn add_interval(&mut self, event: u64, snapshot: AllocatorSnapshot<'_>, step: u32) {
        if !event.is_multiple_of(self.stride) {
            return;
        }
        self.intervals.push((event, Keyframe::new(KeyframeReason::Interval, snapshot, step)));
        let is_over_limit = |intervals: &[(u64, Keyframe)]| {
            let blocks: usize = intervals.iter().map(|(_, one)| one.blocks.len()).sum();
            intervals.len() > 1 && (intervals.len() > MAX_INTERVALS || blocks > MAX_BLOCKS)
        };
        while is_over_limit(&self.intervals) {
            self.set_stride(self.stride * 2);
        }
    }

    /// True if the state of `blocks` blocks at another mark or error may be kept. Another error
    /// takes the place of the one before if there is no room for both.
    pub(crate) fn take_room(&mut self, why: KeyframeReason, blocks: u64) -> bool {
        let is_full = |states: &[Keyframe]| {
            let kept = count_blocks(states) as u64;
            states.len() >= MAX_MOMENTS || kept.saturating_add(blocks) > MAX_BLOCKS as u64
        };
        if why == KeyframeReason::Mark {
            self.omitted += u64::from(is_full(&self.marks));
            return !is_full(&self.marks);
        }
        while is_full(&self.errors) && self.errors.pop().is_some() {
            self.omitted += 1;
        }
        true
    }

    /// Keeps the state at a mark or an error, for which there is room.
    pub(crate) fn add_moment(&mut self, why: KeyframeReason, snapshot: AllocatorSnapshot<'_>, step: u32) {
        let states = if why == KeyframeReason::Mark { &mut self.marks } else { &mut self.errors };
        states.push(Keyframe::new(why, snapshot, step));
    }

    /// Number of errors and marks without a state.
    pub(crate) fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Keeps the state at a key moment.
    pub(crate) fn add_key_moment(&mut self, why: KeyframeReason, snapshot: AllocatorSnapshot<'_>, step: u32) {
        self.all.push(Keyframe::new(why, snapshot, step));
    }

    /// Sorts the states by time.
    pub(crate) fn sort(&mut self) {
        self.all.extend(self.intervals.drain(..).map(|(_, one)| one));
        self.all.append(&mut self.marks);
        self.all.append(&mut self.errors);
        self.all.sort_by_key(|one| one.time_ns);
    }

    /// The states by time. Complete after [`Self::sort`].
    pub(crate) fn into_all(self) -> Vec<Keyframe> {
        self.all
    }
}

fn count_blocks(states: &[Keyframe]) -> usize {
    states.iter().map(|one| one.blocks.len()).sum()
}

impl Keyframe {
    fn new(why: KeyframeReason, snapshot: AllocatorSnapshot<'_>, step: u32) -> Self {
        let AllocatorSnapshot { time_ns, block_events, reserved, mut segments, mut blocks, .. } = snapshot;
        segments.shrink_to_fit();
        if !blocks.is_sorted_by_key(|(addr, _)| *addr) {
            blocks.to_mut().sort_unstable_by_key(|(addr, _)| *addr);
        }
        let places = blocks.iter().map(|(addr, block)| (*addr, block.bytes, block.stack.0));
        let blocks = PlacedBlocks::pack(places);
        Self { why, time_ns, step, block_events, reserved, segments, blocks }
    }
}
