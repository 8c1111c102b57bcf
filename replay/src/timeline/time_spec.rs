//! A moment of a run, as people name it: `12.5s` from the start of recording, `step:40`, or `mark:NAME`.
//!
//! Constraint: a step or a mark is told only while events are read, and the same words go to several traces. Consequence: a moment is
//! kept as it was named, and each trace finds out for itself when it has come ([`TimeSpec::has_come`]).

use std::fmt;
use std::str::FromStr;

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeSpec {
    /// So long after the start of recording.
    Elapsed {
        /// How long.
        time_ns: u64,
    },
    /// When this step begins, counted as reports count them.
    Step(u32),
    /// When the program made the mark of this name (`crate::timeline::marks`).
    Mark(String),
}

impl TimeSpec {
    /// True from the first event on that is not before it. `elapsed_ns` is that event's, `steps_begun` includes it. Marks say so
    /// themselves.
    pub(crate) fn has_come(&self, elapsed_ns: u64, steps_begun: u32) -> bool {
        match self {
            Self::Elapsed { time_ns } => elapsed_ns > *time_ns,
            Self::Step(step) => steps_begun >= *step,
            Self::Mark(_) => false,
        }
    }
}

const UNITS: [(&str, f64); 6] =
    [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("min", 60e9), ("s", 1e9), ("h", 3600e9)];

impl FromStr for TimeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "{text:?} is no moment: give a time from the start, such as 12.5s, 800ms or 3min, or step:40, or mark:NAME"
            )
        };
        if let Some(step) = text.strip_prefix("step:") {
            return step.parse().map(Self::Step).map_err(|_| refused());
        }
        if let Some(name) = text.strip_prefix("mark:") {
            return if name.is_empty() { Err(refused()) } else { Ok(Self::Mark(name.to_owned())) };
        }
        // Each unit is tried before those that end like it.
        let with_unit = UNITS.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, *ns)));
        let (number, unit_ns) = with_unit.ok_or_else(refused)?;
        let number: f64 = number.trim_end().parse().map_err(|_| refused())?;
        let time_ns = number * unit_ns;
        if !(0.0..9e18).contains(&time_ns) {
            return Err(refused());
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn moments_are_understood() {
        let at = |time_ns| Ok(TimeSpec::Elapsed { time_ns });
        assert_eq!("12.5s".parse(), at(12_500_000_000));
        assert_eq!("800ms".parse(), at(800_000_000));
        assert_eq!("3min".parse(), at(180_000_000_000));
        assert_eq!("2h".parse(), at(7_200_000_000_000));
        assert_eq!("7us".parse(), at(7_000));
        assert_eq!("7 ns".parse(), at(7));
        assert_eq!("step:40".parse(), Ok(TimeSpec::Step(40)));
        assert_eq!("mark:step: 4s".parse(), Ok(TimeSpec::Mark("step: 4s".to_owned())));
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
    fn what_happens_at_the_moment_is_still_before_it_and_a_step_begins_with_its_first_event() {
        let (at, step) = (TimeSpec::Elapsed { time_ns: 10 }, TimeSpec::Step(2));
        assert!(!at.has_come(10, 0) && at.has_come(11, 0));
        assert!(!step.has_come(u64::MAX, 1) && step.has_come(0, 2));
    }

    proptest! {
        #[test]
        fn every_moment_is_read_as_it_is_written(time_ns in 0u64..1 << 52, step in any::<u32>(), name in ".+") {
            for when in [TimeSpec::Elapsed { time_ns }, TimeSpec::Step(step), TimeSpec::Mark(name)] {
                prop_assert_eq!(when.to_string().parse(), Ok(when));
            }
        }

        #[test]
        fn no_text_is_too_strange(text in ".*") {
            let _ = text.parse::<TimeSpec>();
        }
    }
}
