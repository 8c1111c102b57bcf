//! Time.
//!
//! Constraint: every event carries the time, `CLOCK_MONOTONIC`, and asking the kernel's shared page for it is a good part of
//! what an event costs. Consequence: where the kernel itself keeps time by the processor's counter, a straight line leads from
//! that counter to nanoseconds. The writer thread measures the line, about once a second, against the kernel's clock; each new
//! line begins where the old one is, so no thread ever sees time run backwards. If the counter does not run as it did, its use
//! ends for good.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::platform;

/// `CLOCK_MONOTONIC`, in nanoseconds. The kernel answers from its shared page, without a system call, where it can.
#[inline]
pub(crate) fn now_ns() -> u64 {
    of_kernel(platform::CLOCK)
}

/// Wall clock, in nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    of_kernel(libc::CLOCK_REALTIME)
}

#[inline]
fn of_kernel(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a buffer of ours.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same as [`now_ns`], to within microseconds, in half the time.
#[inline]
pub(crate) fn event_ns() -> u64 {
    match LINES.get(CURRENT.load(Ordering::Acquire)) {
        Some(line) => line.load().at(ticks()),
        None => now_ns(),
    }
}

/// Two, so that one can be changed while hooks read the other.
static LINES: [SharedClockLine; 2] = [SharedClockLine::new(), SharedClockLine::new()];
/// Which of them is valid; [`NO_LINE`] if none is.
static CURRENT: AtomicUsize = AtomicUsize::new(NO_LINE);
const NO_LINE: usize = usize::MAX;

/// The processor's counter.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: an instruction of every x86-64; used where the process may use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Nanoseconds by ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClockLine {
    /// Where it begins.
    begin: ClockSample,
    /// Nanoseconds of 2^32 ticks.
    rate: u64,
}

/// One moment on both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClockSample {
    ticks: u64,
    ns: u64,
}

impl ClockLine {
    #[inline]
    fn at(&self, ticks: u64) -> u64 {
        let since = ticks.saturating_sub(self.begin.ticks);
        self.begin.ns + ((u128::from(since) * u128::from(self.rate)) >> 32) as u64
    }

    /// The line that goes on from this one at `now` and meets the kernel's clock when as much time again has passed, if that
    /// goes on as fast as it did since `before`. `None` if the counter does not run as it did, or time has jumped.
    fn bend(&self, before: ClockSample, now: ClockSample) -> Option<Self> {
        let rate = rate(before, now)?;
        if rate.abs_diff(self.rate) > self.rate / 100 {
            return None;
        }
        let begin = ClockSample { ticks: now.ticks, ns: self.at(now.ticks) };
        let ahead_ns = i128::from(begin.ns) - i128::from(now.ns);
        let correction = (ahead_ns << 32) / i128::from(now.ticks - before.ticks);
        let rate = u64::try_from(i128::from(rate) - correction).ok()?;
        (rate.abs_diff(self.rate) <= self.rate / 50).then_some(Self { begin, rate })
    }
}

fn rate(from: ClockSample, to: ClockSample) -> Option<u64> {
    let ticks = to.ticks.checked_sub(from.ticks).filter(|ticks| *ticks > 0)?;
    let ns = to.ns.checked_sub(from.ns)?;
    u64::try_from((u128::from(ns) << 32) / u128::from(ticks)).ok()
}

/// A line that one thread writes and all may read.
#[derive(Debug)]
struct SharedClockLine {
    ticks: AtomicU64,
    ns: AtomicU64,
    rate: AtomicU64,
}

impl SharedClockLine {
    const fn new() -> Self {
        Self { ticks: AtomicU64::new(0), ns: AtomicU64::new(0), rate: AtomicU64::new(0) }
    }

    #[inline]
    fn load(&self) -> ClockLine {
        let begin =
            ClockSample { ticks: self.ticks.load(Ordering::Relaxed), ns: self.ns.load(Ordering::Relaxed) };
        ClockLine { begin, rate: self.rate.load(Ordering::Relaxed) }
    }

    fn store(&self, line: ClockLine) {
        self.ticks.store(line.begin.ticks, Ordering::Relaxed);
        self.ns.store(line.begin.ns, Ordering::Relaxed);
        self.rate.store(line.rate, Ordering::Relaxed);
    }
}

/// Between two looks at the kernel's clock. A hook that is interrupted for so long between two loads may record a wrong time.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
/// From the first look to the second, which gives the first line.
const FIRST_LOOK_NS: u64 = 20_000_000;

/// Keeps the line; the writer thread has it.
#[derive(Debug)]
pub(crate) struct ClockCalibrator {
    /// The last look; `None` if the counter is not used.
    last: Option<ClockSample>,
}

impl ClockCalibrator {
    /// `use_counter` is what the user wants.
    pub(crate) fn new(use_counter: bool) -> Self {
        Self { last: (use_counter && platform::is_counter_trusted()).then(look) }
    }

    /// How long a sleep may be so that the next look is not late.
    pub(crate) fn nap_ns(&self) -> u64 {
        let is_first = self.last.is_some() && CURRENT.load(Ordering::Relaxed) == NO_LINE;
        if is_first { FIRST_LOOK_NS } else { LOOK_EVERY_NS }
    }

    /// To be called now and then.
    pub(crate) fn keep(&mut self) {
        let Some(last) = self.last else { return };
        if now_ns() - last.ns < self.nap_ns() {
            return;
        }
        let now = look();
        let current = CURRENT.load(Ordering::Relaxed);
        let line = match LINES.get(current) {
            Some(line) => line.load().bend(last, now),
            None => rate(last, now).map(|rate| ClockLine { begin: now, rate }),
        };
        let next = usize::from(current == 0);
        if let Some(line) = line {
            LINES[next].store(line);
        }
        CURRENT.store(if line.is_some() { next } else { NO_LINE }, Ordering::Release);
        self.last = line.map(|_| now);
    }
}

/// Both clocks at once: the closest of a few tries, because the thread may be interrupted between the two.
fn look() -> ClockSample {
    let tries = (0..5).map(|_| {
        let (before, ns, after) = (ticks(), now_ns(), ticks());
        (after.saturating_sub(before), ClockSample { ticks: before.midpoint(after), ns })
    });
    let (_, moment) = tries.min_by_key(|(width, _)| *width).unwrap_or((0, ClockSample { ticks: 0, ns: 0 }));
    moment
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moment(ticks: u64, ns: u64) -> ClockSample {
        ClockSample { ticks, ns }
    }

    proptest! {
        /// A counter of 1 to 5 GHz against a kernel clock that is steered by up to 500 ppm, as NTP may.
        #[test]
        fn time_never_runs_backwards_and_stays_near_the_kernel(
            ghz in 1.0f64..5.0,
            steps in prop::collection::vec((1.0f64..3.0, -500i32..=500, 0u64..300), 2..40),
        ) {
            let (mut ticks, mut ns) = (1u64 << 40, 5_000_000_000u64);
            let mut last = moment(ticks, ns);
            let mut line: Option<ClockLine> = None;
            let mut latest = 0;
            for (seconds, ppm, late_ns) in steps {
                let (before, before_ns) = (ticks, ns);
                let passed_ticks = seconds * 1e9 * ghz;
                ticks += passed_ticks as u64;
                ns += (seconds * 1e9 * (1.0 + f64::from(ppm) / 1e6)) as u64;
                if let Some(line) = line {
                    for part in 0..=4u64 {
                        let at = line.at(before + (ticks - before) / 4 * part);
                        prop_assert!(at >= latest);
                        latest = at;
                        let kernel = before_ns + (ns - before_ns) / 4 * part;
                        prop_assert!(at.abs_diff(kernel) < 12_000_000, "{at} {kernel}");
                    }
                }
                // A look may be a little late.
                let now = moment(ticks, ns - late_ns);
                line = match line {
                    None => rate(last, now).map(|rate| ClockLine { begin: now, rate }),
                    Some(line) => line.bend(last, now),
                };
                prop_assert!(line.is_some());
                last = now;
            }
        }
    }

    #[test]
    fn a_steady_clock_is_followed_closely() {
        let mut line = ClockLine { begin: moment(0, 0), rate: (1 << 32) / 3 + 100_000 };
        for second in 1..20u64 {
            let (before, now) = (
                moment((second - 1) * 3_000_000_000, (second - 1) * 1_000_000_000),
                moment(second * 3_000_000_000, second * 1_000_000_000),
            );
            line = line.bend(before, now).unwrap();
        }
        assert!(line.at(20 * 3_000_000_000).abs_diff(20 * 1_000_000_000) < 10);
    }

    #[test]
    fn a_counter_that_changes_its_pace_is_not_used_any_more() {
        let line = ClockLine { begin: moment(0, 0), rate: 1 << 32 };
        assert!(line.bend(moment(0, 0), moment(1_000_000_000, 1_020_000_000)).is_none(), "2 percent slower");
        assert!(
            line.bend(moment(0, 0), moment(1_000_000_000, 60_000_000_000)).is_none(),
            "slept for a minute"
        );
        assert!(
            line.bend(moment(1_000_000_000, 1_000_000_000), moment(5, 2_000_000_000)).is_none(),
            "set back"
        );
        assert!(line.bend(moment(7, 0), moment(7, 9)).is_none(), "stands");
    }

    #[test]
    fn the_time_of_events_is_the_kernels() {
        let mut keeper = ClockCalibrator::new(true);
        if keeper.last.is_none() {
            // No such counter here: events take the kernel's clock as it is.
            assert_eq!(CURRENT.load(Ordering::Relaxed), NO_LINE);
            return;
        }
        // As if the last look were two seconds ago.
        let spent = moment(look().ticks, now_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = look();
        LINES[0].store(ClockLine { begin: now, rate: rate(spent, now).unwrap() });
        CURRENT.store(0, Ordering::Release);
        for _ in 0..1000 {
            let (before, at, after) = (now_ns(), event_ns(), now_ns());
            assert!(before <= at + 100_000 && at <= after + 100_000, "{before} {at} {after}");
        }
        keeper.last = Some(spent);
        keeper.keep();
        CURRENT.store(NO_LINE, Ordering::Release);
    }
}
