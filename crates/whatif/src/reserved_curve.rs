//! Reserved bytes over time, in a bounded number of spans.

use gpumemtrace_replay::report::ReservedCurve;

/// Most spans of a curve.
const MAX_SPANS: usize = 256;

/// Collects the most bytes of segments in each span of time. All spans are equally long. When there
/// would be too many, each two become one.
#[derive(Clone, Debug, Default)]
pub(crate) struct CurveCollector {
    /// The spans so far, from time 0 on.
    peak_bytes: Vec<u64>,
    /// A span is 2 to this power nanoseconds long.
    log2_span_ns: u32,
    /// Bytes of segments now.
    reserved_bytes: u64,
    /// When they were last noted.
    time_ns: u64,
}

impl CurveCollector {
    /// Notes how many bytes are reserved from a moment on. Moments come in order.
    pub(crate) fn note(&mut self, time_ns: u64, reserved_bytes: u64) {
        self.time_ns = time_ns;
        if reserved_bytes != self.reserved_bytes {
            self.go_on_to(time_ns);
            self.reserved_bytes = reserved_bytes;
            if let Some(peak_bytes) = self.peak_bytes.last_mut() {
                *peak_bytes = reserved_bytes.max(*peak_bytes);
            }
        }
    }

    /// The curve up to the last moment that was noted.
    pub(crate) fn curve(&self) -> ReservedCurve {
        let mut whole = self.clone();
        whole.go_on_to(self.time_ns);
        ReservedCurve { span_ns: 1 << whole.log2_span_ns, peak_bytes: whole.peak_bytes }
    }

    /// Extends the curve to the span of a moment.
    fn go_on_to(&mut self, time_ns: u64) {
        while time_ns >> self.log2_span_ns >= MAX_SPANS as u64 {
            let pairs = self.peak_bytes.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0));
            self.peak_bytes = pairs.collect();
            self.log2_span_ns += 1;
        }
        let spans = (time_ns >> self.log2_span_ns) as usize + 1;
        if spans > self.peak_bytes.len() {
            self.peak_bytes.resize(spans, self.reserved_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(steps: &[(u64, u64)]) -> ReservedCurve {
        let mut collector = CurveCollector::default();
        for (time_ns, reserved_bytes) in steps {
            collector.note(*time_ns, *reserved_bytes);
        }
        collector.curve()
    }

    #[test]
    fn spans_hold_their_most_and_start_with_what_was_reserved() {
        let curve = curve(&[(2, 10), (3, 4), (3, 30), (5, 0), (7, 0)]);
        assert_eq!(curve.span_ns, 1);
        assert_eq!(curve.peak_bytes, [0, 0, 10, 30, 30, 30, 0, 0]);
    }

    #[test]
    fn long_runs_have_longer_spans_and_the_same_peak() {
        let steps: Vec<(u64, u64)> = (0..10_000).map(|step| (step * 1_000, step % 777)).collect();
        let curve = curve(&[&steps[..], &[(10_000_000, steps[9_999].1)]].concat());
        assert!((129..=256).contains(&curve.peak_bytes.len()), "{}", curve.peak_bytes.len());
        assert_eq!(curve.peak_bytes.len() as u64, 10_000_000 / curve.span_ns + 1);
        for (place, peak_bytes) in curve.peak_bytes.iter().enumerate() {
            let span = place as u64 * curve.span_ns..(place as u64 + 1) * curve.span_ns;
            let within = steps.iter().filter(|(time_ns, _)| span.contains(time_ns)).map(|(_, bytes)| *bytes);
            let before = steps.iter().rfind(|(time_ns, _)| *time_ns <= span.start).map(|(_, bytes)| *bytes);
            assert_eq!(*peak_bytes, within.chain(before).max().unwrap());
        }
    }

    #[test]
    fn run_without_segments_is_empty_and_any_time_is_taken() {
        assert_eq!(curve(&[]).peak_bytes, [0]);
        assert_eq!(curve(&[(1, 5), (u64::MAX, 5)]).peak_bytes.len(), 256);
    }
}
