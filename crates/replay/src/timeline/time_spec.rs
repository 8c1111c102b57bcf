//! A moment of a run as the user names it: `12.5s` after the start, `step:40`, `mark:NAME`, `peak`
//! or `end`.
//!
//! Steps and marks are known only while events are read, and one [`TimeSpec`] may apply to several
//! traces. It therefore keeps the user's terms; the pass of each trace finds the moment
//! ([`crate::pass::snapshot_schedule`]).

use std::fmt;
use std::str::FromStr;

/// A moment of a run, given by the user. Parses from and formats to the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeSpec {
    /// A time after the start of recording.
    Elapsed {
        /// Nanoseconds since the start of recording.
        time_ns: u64,
    },
    /// The beginning of a step, numbered as in reports.
    Step(u32),
    /// A mark of the program: `NAME`, or `NAME#3` for the third mark of that name.
    Mark(String),
    /// The peak of each device.
    Peak,
    /// The end of the program, before interpreter teardown.
    End,
}

impl TimeSpec {
    /// True from the first event after the moment on. `steps_begun` includes a step that begins at
    /// this event. Always false for marks, which [`crate::timeline::marks::AwaitedMark`]
    /// recognizes, and for the peak and the end, which are known only after the last event.
    pub(crate) fn is_reached(&self, elapsed_ns: u64, steps_begun: u32) -> bool {
        match self {
            Self::Elapsed { time_ns } => elapsed_ns > *time_ns,
            Self::Step(step) => steps_begun >= *step,
            Self::Mark(_) | Self::Peak | Self::End => false,
        }
    }
}

const UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("min", 60e9), ("s", 1e9), ("h", 3600e9)];

impl FromStr for TimeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "{text:?} is not a time: use a time after the start such as 12.5s, 800ms or 3min, \
                 or step:40, mark:NAME, peak or end"
            )
        };
        if let Some(step) = text.strip_prefix("step:") {
            return step.parse().map(Self::Step).map_err(|_| invalid());
        }
        if let Some(name) = text.strip_prefix("mark:") {
            return if name.is_empty() { Err(invalid()) } else { Ok(Self::Mark(name.to_owned())) };
        }
        match text {
            "peak" => return Ok(Self::Peak),
            "end" => return Ok(Self::End),
            _ => {}
        }
        // "ns" comes before "s" in UNITS, as do the other units that end in "s".
        let with_unit = UNITS.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns)));
        let (number, unit_ns) = with_unit.ok_or_else(invalid)?;
        let number: f64 = number.trim_end().parse().map_err(|_| invalid())?;
        let time_ns = number * unit_ns;
        if !(0.0..9e18).contains(&time_ns) {
            return Err(invalid());
        }
        Ok(Self::Elapsed { time_ns: time_ns.round() as u64 })
    }
}

impl fmt::Display for TimeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed { time_ns } => {
                let (unit, ns) = match time_ns {
                    ns if ns % 1_000_000_000 == 0 => ("s", 1_000_000_000),
                    ns if ns % 1_000_000 == 0 => ("ms", 1_000_000),
                    _ => ("ns", 1),
                };
                write!(f, "{}{unit}", time_ns / ns)
            }
            Self::Step(step) => write!(f, "step:{step}"),
            Self::Mark(name) => write!(f, "mark:{name}"),
            Self::Peak => f.write_str("peak"),
            Self::End => f.write_str("end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_steps_and_marks_parse() {
        let at = |time_ns| Ok(TimeSpec::Elapsed { time_ns });
        assert_eq!("12.5s".parse(), at(12_500_000_000));
        assert_eq!("800ms".parse(), at(800_000_000));
        assert_eq!("3min".parse(), at(180_000_000_000));
        assert_eq!("2h".parse(), at(7_200_000_000_000));
        assert_eq!("7us".parse(), at(7_000));
        assert_eq!("7 ns".parse(), at(7));
        assert_eq!("step:40".parse(), Ok(TimeSpec::Step(40)));
        assert_eq!("mark:step: 4s".parse(), Ok(TimeSpec::Mark("step: 4s".to_owned())));
        assert_eq!("peak".parse(), Ok(TimeSpec::Peak));
        assert_eq!("end".parse(), Ok(TimeSpec::End));
        for text in [
            "",
            "12",
            "s",
            "-1s",
            "step:",
            "step:-1",
            "step40",
            "mark:",
            "nans",
            "infs",
            "1e300h",
            "9999999999h",
        ] {
            assert!(text.parse::<TimeSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn time_is_reached_after_it_and_step_at_its_first_event() {
        let (time, step) = (TimeSpec::Elapsed { time_ns: 10 }, TimeSpec::Step(2));
        assert!(!time.is_reached(10, 0) && time.is_reached(11, 0));
        assert!(!step.is_reached(u64::MAX, 1) && step.is_reached(0, 2));
    }

    proptest! {
        #[test]
        fn display_and_parse_round_trip(time_ns in 0u64..1 << 52, step in any::<u32>(), name in ".+") {
            let specs = [TimeSpec::Elapsed { time_ns }, TimeSpec::Step(step), TimeSpec::Mark(name)];
            for spec in specs.into_iter().chain([TimeSpec::Peak, TimeSpec::End]) {
                prop_assert_eq!(spec.to_string().parse(), Ok(spec));
            }
        }

        #[test]
        fn arbitrary_text_parses_without_panic(text in ".*") {
            let _ = text.parse::<TimeSpec>();
        }
    }
}
