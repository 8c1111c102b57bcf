//! The monotonic clock, which events read through the processor's counter.
//!
//! Every event carries the time of `CLOCK_MONOTONIC`, and reading it from the kernel's shared page
//! is a good part of an event's cost. If the kernel itself keeps time by the processor's counter, a
//! straight line converts that counter to nanoseconds. The writer thread measures the line about
//! once a second against the kernel's clock. Each new line begins where the old one is, so no
//! thread ever sees time run backwards. If the counter changes its pace, it is not used any more.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::platform;

/// The monotonic clock, in nanoseconds. Usually needs no system call.
#[inline]
pub(crate) fn now_ns() -> u64 {
    kernel_ns(platform::MONOTONIC_CLOCK)
}

/// The wall clock, in nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    kernel_ns(libc::CLOCK_REALTIME)
}

#[inline]
fn kernel_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if CURRENT.load(Ordering::Relaxed) == FORBIDDEN {
        platform::clock_by_system_call(clock, &mut time);
    } else {
        // SAFETY: a valid clock and a buffer of ours.
        unsafe { libc::clock_gettime(clock, &raw mut time) };
    }
    // A preload may replace the clock.
    (time.tv_sec.max(0) as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.max(0) as u64)
}

/// Reads no clock but by system calls from now on. To be called before the program forbids a thread
/// to read the processor's counter (`PR_SET_TSC`): the next reading would end the process.
pub fn stop_reading_counter() {
    CURRENT.store(FORBIDDEN, Ordering::SeqCst);
}

/// The same time as [`now_ns`], to within microseconds, at half the cost.
#[inline]
pub(crate) fn event_ns() -> u64 {
    match LINES.get(CURRENT.load(Ordering::Acquire)) {
        Some(line) => line.load().ns_at(ticks()),
        None => now_ns(),
    }
}

/// Two lines, so that the writer can change one while hooks read the other.
static LINES: [SharedClockLine; 2] = [SharedClockLine::new(), SharedClockLine::new()];
/// The index of the valid line, or [`NO_LINE`], or [`FORBIDDEN`].
static CURRENT: AtomicUsize = AtomicUsize::new(NO_LINE);
const NO_LINE: usize = usize::MAX;
/// A thread of the program may not read the counter. The kernel's shared page reads it, too.
const FORBIDDEN: usize = usize::MAX - 1;

/// Reads the processor's time stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction; `is_counter_trusted` checks that the
    // process may use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// A linear function from ticks of the counter to nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClockLine {
    begin: ClockSample,
    /// Nanoseconds in 2^32 ticks.
    rate: u64,
}

/// The same moment on the counter and on the kernel's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClockSample {
    ticks: u64,
    ns: u64,
}

impl ClockLine {
    #[inline]
    fn ns_at(&self, ticks: u64) -> u64 {
        let since = ticks.saturating_sub(self.begin.ticks);
        self.begin.ns + ((u128::from(since) * u128::from(self.rate)) >> 32) as u64
    }

    /// The line that continues this one at `now`. It reaches the kernel's clock after as much time
    /// as has passed since `before`, if the kernel's clock keeps its pace. Returns `None` if the
    /// counter has changed its pace or time has jumped.
    fn continued(&self, before: ClockSample, now: ClockSample) -> Option<Self> {
        let rate = rate(before, now)?;
        if rate.abs_diff(self.rate) > self.rate / 100 {
            return None;
        }
        let begin = ClockSample { ticks: now.ticks, ns: self.ns_at(now.ticks) };
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

/// A line that one thread writes and all threads may read.
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

/// Time between two calibrations. A hook that is interrupted for longer than this between two loads
/// may record a wrong time.
const CALIBRATION_INTERVAL_NS: u64 = 1_000_000_000;
/// Time from the first clock sample to the second, which gives the first line.
const FIRST_INTERVAL_NS: u64 = 20_000_000;

/// Measures the line about once a second. Owned by the writer thread.
#[derive(Debug)]
pub(crate) struct ClockCalibrator {
    /// The last sample; `None` if the counter is not used.
    last: Option<ClockSample>,
}

impl ClockCalibrator {
    /// Uses the counter if the user allows it and the system trusts it.
    pub(crate) fn new(use_counter: bool) -> Self {
        Self { last: (use_counter && platform::is_counter_trusted()).then(sample_clocks) }
    }

    /// The longest sleep after which the next calibration is not late.
    pub(crate) fn nap_ns(&self) -> u64 {
        let is_first = self.last.is_some() && CURRENT.load(Ordering::Relaxed) == NO_LINE;
        if is_first { FIRST_INTERVAL_NS } else { CALIBRATION_INTERVAL_NS }
    }

    /// Measures a new line if the interval has passed.
    pub(crate) fn calibrate(&mut self) {
        let Some(last) = self.last else { return };
        if now_ns().saturating_sub(last.ns) < self.nap_ns() {
            return;
        }
        let current = CURRENT.load(Ordering::Relaxed);
        if current == FORBIDDEN {
            self.last = None;
            return;
        }
        let now = sample_clocks();
        let line = match LINES.get(current) {
            Some(line) => line.load().continued(last, now),
            None => rate(last, now).map(|rate| ClockLine { begin: now, rate }),
        };
        let next = usize::from(current == 0);
        if let Some(line) = line {
            LINES[next].store(line);
        }
        let next = if line.is_some() { next } else { NO_LINE };
        // Fails if the counter has been forbidden since.
        let is_changed =
            CURRENT.compare_exchange(current, next, Ordering::Release, Ordering::Relaxed).is_ok();
        self.last = line.filter(|_| is_changed).map(|_| now);
    }
}

/// Reads both clocks at once. Takes the closest pair of five, because the thread may be interrupted
/// in between.
fn sample_clocks() -> ClockSample {
    let samples = (0..5).map(|_| {
        let (before, ns, after) = (ticks(), now_ns(), ticks());
        (after.saturating_sub(before), ClockSample { ticks: before.midpoint(after), ns })
    });
    let (_, sample) = samples.min_by_key(|(width, _)| *width).unwrap_or((0, ClockSample { ticks: 0, ns: 0 }));
    sample
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(ticks: u64, ns: u64) -> ClockSample {
        ClockSample { ticks, ns }
    }

    proptest! {
        /// A counter of 1 to 5 GHz against a kernel clock that NTP may steer by up to 500 ppm.
        #[test]
        fn time_is_monotonic_and_stays_near_the_kernel_clock(
            ghz in 1.0f64..5.0,
            steps in prop::collection::vec((1.0f64..3.0, -500i32..=500, 0u64..300), 2..40),
        ) {
            let (mut ticks, mut ns) = (1u64 << 40, 5_000_000_000u64);
            let mut last = sample(ticks, ns);
            let mut line: Option<ClockLine> = None;
            let mut latest = 0;
            for (seconds, ppm, late_ns) in steps {
                let (before, before_ns) = (ticks, ns);
                let passed_ticks = seconds * 1e9 * ghz;
                ticks += passed_ticks as u64;
                ns += (seconds * 1e9 * (1.0 + f64::from(ppm) / 1e6)) as u64;
                if let Some(line) = line {
                    for part in 0..=4u64 {
                        let at = line.ns_at(before + (ticks - before) / 4 * part);
                        prop_assert!(at >= latest);
                        latest = at;
                        let kernel = before_ns + (ns - before_ns) / 4 * part;
                        prop_assert!(at.abs_diff(kernel) < 12_000_000, "{at} {kernel}");
                    }
                }
                // A sample may be a little late.
                let now = sample(ticks, ns - late_ns);
                line = match line {
                    None => rate(last, now).map(|rate| ClockLine { begin: now, rate }),
                    Some(line) => line.continued(last, now),
                };
                prop_assert!(line.is_some());
                last = now;
            }
        }
    }

    #[test]
    fn steady_clock_is_followed_closely() {
        let mut line = ClockLine { begin: sample(0, 0), rate: (1 << 32) / 3 + 100_000 };
        for second in 1..20u64 {
            let (before, now) = (
                sample((second - 1) * 3_000_000_000, (second - 1) * 1_000_000_000),
                sample(second * 3_000_000_000, second * 1_000_000_000),
            );
            line = line.continued(before, now).unwrap();
        }
        assert!(line.ns_at(20 * 3_000_000_000).abs_diff(20 * 1_000_000_000) < 10);
    }

    #[test]
    fn counter_that_changes_pace_is_rejected() {
        let line = ClockLine { begin: sample(0, 0), rate: 1 << 32 };
        assert!(line.continued(sample(0, 0), sample(1_000_000_000, 1_020_000_000)).is_none(), "2% slower");
        assert!(
            line.continued(sample(0, 0), sample(1_000_000_000, 60_000_000_000)).is_none(),
            "slept for a minute"
        );
        assert!(
            line.continued(sample(1_000_000_000, 1_000_000_000), sample(5, 2_000_000_000)).is_none(),
            "set back"
        );
        assert!(line.continued(sample(7, 0), sample(7, 9)).is_none(), "stopped");
    }

    #[test]
    fn event_time_agrees_with_the_kernel_clock() {
        let mut calibrator = ClockCalibrator::new(true);
        if calibrator.last.is_none() {
            // Without a trusted counter, events use the kernel's clock directly.
            assert_eq!(CURRENT.load(Ordering::Relaxed), NO_LINE);
            return;
        }
        let spent = sample_clocks();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = sample_clocks();
        LINES[0].store(ClockLine { begin: now, rate: rate(spent, now).unwrap() });
        CURRENT.store(0, Ordering::Release);
        for _ in 0..1000 {
            let (before, at, after) = (now_ns(), event_ns(), now_ns());
            assert!(before <= at + 100_000 && at <= after + 100_000, "{before} {at} {after}");
        }
        calibrator.last = Some(spent);
        calibrator.calibrate();
        CURRENT.store(NO_LINE, Ordering::Release);
    }
}
