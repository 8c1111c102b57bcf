//! The parameters of a stream, drawn from its seed.

use crate::dice::Dice;

const GIB: u64 = 1 << 30;
/// Most bytes that a leak may hold in the end, before rounding.
const MAX_LEAKED_BYTES: u64 = 12 * GIB;
const MAX_STEPS: u64 = 5000;
const MIN_STEPS: u64 = 10;

/// What the truth about a stream is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StreamClass {
    Leaky,
    Healthy,
    /// Memory that may be a leak or not: the events are the same.
    Ambiguous,
    /// Leaky, and the run goes on until the device is full.
    UntilFull,
}

impl StreamClass {
    /// Of 20 streams 9 are leaky, 9 healthy, one ambiguous, and one fills its device.
    pub fn of_seed(seed: u64) -> Self {
        match seed % 20 {
            0..9 => Self::Leaky,
            9..18 => Self::Healthy,
            18 => Self::Ambiguous,
            _ => Self::UntilFull,
        }
    }
}

/// The signs by which the analysis can detect steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StepsBy {
    Marks,
    Optimizer,
    /// Nothing but allocations that recur.
    Period,
    /// Nothing: a server whose requests need different numbers of allocations.
    Requests,
}

/// How a trace ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ending {
    /// Everything is freed, then the process exits.
    Teardown,
    /// The process exits with all its blocks.
    Exit,
    /// The process is killed within a step, and the trace has no end.
    Killed,
}

/// Parameters of the whole run.
#[derive(Clone, Copy, Debug)]
pub struct StreamPlan {
    pub class: StreamClass,
    pub steps: u64,
    /// Step by which bounded memory has reached its bound.
    pub fill_by: u64,
    pub steps_by: StepsBy,
    pub ending: Ending,
    /// True if blocks have a stream and segments are reported.
    pub has_tracker: bool,
    pub has_native_stacks: bool,
    pub device_bytes: u64,
    /// Time of a step beside its events. Some steps are much slower.
    pub step_ns: u64,
}

/// Where a leak allocates, and what else allocates there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeakPlace {
    /// A line that allocates nothing else.
    OwnLine,
    /// A line whose other blocks are freed within the step.
    BesideTemporaries,
    /// A line that also replaces a block in each step.
    BesideReplaced,
    /// A helper function whose other callers allocate and free.
    SharedHelper,
    /// The same line calls two library functions: one leaks, one allocates and frees.
    OwnStack,
    /// An autograd graph: many lines in the same steps, below one line.
    RetainedGraph,
    /// Memory of the driver that another library takes.
    DriverMemory,
    PinnedHost,
}

/// When a leak allocates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeakTiming {
    /// At multiples of `period` steps.
    Regular,
    /// In each step with a probability of one in `period`.
    Irregular,
    /// Every `period` steps, and more blocks each time.
    Accelerating,
    /// In each iteration of a validation loop, which runs every `period` steps.
    InRounds,
}

/// The parameters of a leak.
#[derive(Clone, Copy, Debug)]
pub struct LeakPlan {
    pub place: LeakPlace,
    pub timing: LeakTiming,
    pub period: u64,
    pub start: u64,
    /// Bytes of each block.
    pub bytes: u64,
    pub has_varying_sizes: bool,
    pub blocks: u64,
    /// Events in the run; of an irregular leak, on average.
    pub planned_events: u64,
    /// Lines of a retained graph, else 1.
    pub lines: u64,
    /// Iterations of a round, else 1.
    pub rounds: u64,
    /// Line in `/work/leak.py` where the report must place it.
    pub line: i32,
}

/// Ranges from which the number of leak events is drawn, by bucket.
const EVENT_RANGES: [(u64, u64); 6] = [(2, 5), (6, 9), (10, 19), (20, 49), (50, 199), (200, 4000)];

impl StreamPlan {
    /// The plan of a stream and its leaks. The first leak determines the number of steps.
    pub fn draw(class: StreamClass, dice: &mut Dice) -> (Self, Vec<LeakPlan>) {
        let steps_by = match dice.below(10) {
            0..4 => StepsBy::Marks,
            4..7 => StepsBy::Optimizer,
            7 => StepsBy::Period,
            _ => StepsBy::Requests,
        };
        let ending = match dice.below(8) {
            0..5 => Ending::Teardown,
            5 => Ending::Exit,
            _ => Ending::Killed,
        };
        let mut plan = Self {
            class,
            steps: dice.log(MIN_STEPS, MAX_STEPS),
            fill_by: 0,
            steps_by,
            ending,
            has_tracker: dice.one_in(2),
            has_native_stacks: dice.one_in(2),
            device_bytes: dice.pick(&[16, 24, 40, 80, 80, 141]) * GIB,
            step_ns: dice.log(10_000, 100_000_000),
        };
        let mut leaks = Vec::new();
        match class {
            StreamClass::Leaky => leaks = plan.draw_leaks(dice),
            StreamClass::UntilFull => leaks = vec![plan.draw_until_full(dice)],
            StreamClass::Healthy | StreamClass::Ambiguous => {}
        }
        let fill_tenths = if class == StreamClass::UntilFull { 1 } else { 6 };
        plan.fill_by = (plan.steps * fill_tenths / 10).max(1);
        (plan, leaks)
    }

    fn draw_leaks(&mut self, dice: &mut Dice) -> Vec<LeakPlan> {
        let (least, most) = EVENT_RANGES[dice.below(EVENT_RANGES.len() as u64) as usize];
        let mut events = dice.log(least, most);
        let mut period = if dice.one_in(2) { 1 } else { dice.log(2, 50) };
        let start_percent = if dice.one_in(3) { 0 } else { dice.below(60) };
        let steps = |events: u64, period: u64| (events * period * 100).div_ceil(100 - start_percent);
        while steps(events, period) < MIN_STEPS {
            period += 1;
        }
        while steps(events, period) > MAX_STEPS && period > 1 {
            period -= 1;
        }
        events = events.min(MAX_STEPS * (100 - start_percent) / 100);
        // The run ends at any time within the last period.
        self.steps = steps(events, period).min(MAX_STEPS) + dice.below(period);
        let start = self.steps.saturating_sub(events * period);
        let mut leaks = vec![self.draw_leak(dice, (period, start), 30)];
        if dice.one_in(5) {
            for number in 1..dice.within(2, 4) as i32 {
                let start = dice.below(self.steps * 6 / 10);
                let most_period = ((self.steps - start) / 2).clamp(1, 50);
                let period = if dice.one_in(2) { 1 } else { dice.log(1, most_period) };
                leaks.push(self.draw_leak(dice, (period, start), 30 + number));
            }
        }
        leaks
    }

    fn draw_leak(&self, dice: &mut Dice, (period, start): (u64, u64), line: i32) -> LeakPlan {
        let place = match dice.below(20) {
            0..4 => LeakPlace::OwnLine,
            4..7 => LeakPlace::BesideTemporaries,
            7..9 => LeakPlace::BesideReplaced,
            9..12 => LeakPlace::SharedHelper,
            12..15 => LeakPlace::OwnStack,
            15..18 => LeakPlace::RetainedGraph,
            18 => LeakPlace::DriverMemory,
            _ => LeakPlace::PinnedHost,
        };
        let events = ((self.steps - start) / period).max(1);
        let is_of_torch = !matches!(place, LeakPlace::DriverMemory | LeakPlace::PinnedHost);
        let timing = match dice.below(12) {
            0..2 if period > 1 => LeakTiming::Irregular,
            2 if place != LeakPlace::RetainedGraph && events >= 4 => LeakTiming::Accelerating,
            3 if is_of_torch => LeakTiming::InRounds,
            _ => LeakTiming::Regular,
        };
        let is_graph = place == LeakPlace::RetainedGraph;
        let lines = if is_graph { dice.log(4, if self.steps > 1000 { 8 } else { 30 }) } else { 1 };
        let rounds = match timing {
            LeakTiming::InRounds => dice.log(2, if is_graph || self.steps > 1000 { 6 } else { 30 }),
            _ => 1,
        };
        let blocks = if dice.one_in(3) { dice.within(2, 8) } else { 1 };
        let blocks_per_event =
            blocks * lines * rounds * if timing == LeakTiming::Accelerating { 5 } else { 1 };
        let most = (MAX_LEAKED_BYTES / (events * blocks_per_event)).clamp(512, 64 << 20);
        LeakPlan {
            place,
            timing,
            period,
            start,
            bytes: dice.log(1, most / 512) * 512,
            has_varying_sizes: is_of_torch && dice.one_in(3),
            blocks,
            lines,
            rounds,
            planned_events: events,
            line,
        }
    }

    /// A leak that fills its device after 40 to 1,500 steps. The run may last twice as long, since
    /// blocks that are cached serve it, too.
    fn draw_until_full(&mut self, dice: &mut Dice) -> LeakPlan {
        self.steps_by = if dice.one_in(2) { StepsBy::Marks } else { StepsBy::Optimizer };
        self.ending = Ending::Killed;
        self.has_tracker = false;
        self.steps = dice.log(60, 1500);
        let period = if dice.one_in(2) { 1 } else { dice.log(2, (self.steps / 30).max(2)) };
        let start = dice.below(self.steps / 10);
        let mut leak = self.draw_leak(dice, (period, start), 30);
        leak.timing = if dice.one_in(5) { LeakTiming::Irregular } else { LeakTiming::Regular };
        if leak.place == LeakPlace::PinnedHost {
            leak.place = LeakPlace::OwnLine;
        }
        leak.rounds = 1;
        // The leak fills at least 25 segments, of 2 MiB or 20 MiB.
        let (least, small) = (if leak.bytes > 1 << 20 { 500 << 20 } else { 50 << 20 }, leak.bytes);
        let blocks_per_event = leak.blocks_per_event();
        let events = self.steps / period;
        leak.bytes = small.max(least / (blocks_per_event * events)).next_multiple_of(512);
        leak
    }
}

impl LeakPlan {
    /// Blocks of one event before acceleration.
    pub fn blocks_per_event(&self) -> u64 {
        self.blocks * self.lines * self.rounds
    }
}
