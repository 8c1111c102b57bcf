//! Reads the JSON that `export_chrome_trace` of torch.profiler writes, event by event.
//!
//! Format: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>, with
//! `baseTimeNanoseconds` of Kineto: the moment of the wall clock at which its times are 0.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::path::Path;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::exit::UnreadableInput;

use super::gzip::GzipReader;

/// One event of a profile; what it lacks is `null`.
#[derive(Debug, serde::Deserialize)]
pub(super) struct ProfileEvent {
    #[serde(default)]
    pub(super) ph: String,
    #[serde(default)]
    pub(super) name: Value,
    #[serde(default)]
    pub(super) cat: Value,
    #[serde(default)]
    pub(super) pid: Value,
    #[serde(default)]
    pub(super) tid: Value,
    #[serde(default)]
    ts: Value,
    #[serde(default)]
    dur: Value,
    #[serde(default)]
    pub(super) id: Value,
    #[serde(default)]
    pub(super) args: Option<Map<String, Value>>,
}

impl ProfileEvent {
    /// Nanoseconds since the base of the file; `None` without a time.
    pub(super) fn time_ns(&self) -> Option<i64> {
        nanoseconds(&self.ts)
    }

    /// Duration in nanoseconds; `None` without one.
    pub(super) fn duration_ns(&self) -> Option<u64> {
        u64::try_from(nanoseconds(&self.dur)?).ok()
    }
}

/// A number of microseconds, or a text with one.
fn nanoseconds(value: &Value) -> Option<i64> {
    let microseconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    let nanoseconds = (microseconds * 1000.0).round();
    (nanoseconds.abs() < i64::MAX as f64).then_some(nanoseconds as i64)
}

/// What a file says of its whole.
#[derive(Debug, Default)]
pub(super) struct ProfileHead {
    /// Moment of the wall clock at which the times are 0, in nanoseconds since the Unix epoch.
    pub(super) base_unix_ns: i64,
    /// The rank of the process in a distributed job.
    pub(super) rank: Option<u64>,
}

/// Opens the file at its begin. It may be compressed with gzip.
fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = File::open(path)?;
    let mut magic = [0; 2];
    let is_gzip = file.read(&mut magic)? == 2 && magic == [0x1f, 0x8b];
    file.rewind()?;
    if is_gzip {
        Ok(Box::new(BufReader::new(GzipReader::new(file)?)))
    } else {
        Ok(Box::new(BufReader::new(file)))
    }
}

/// Passes all events of a file in its order. Memory does not grow with their number.
pub(super) fn read_profile(
    path: &Path,
    visit: &mut dyn FnMut(ProfileEvent) -> io::Result<()>,
) -> anyhow::Result<ProfileHead> {
    let unreadable = |why: &dyn fmt::Display| {
        UnreadableInput(format!(
            "{} is not a trace of torch.profiler: {why}; export it again",
            path.display()
        ))
    };
    let file =
        open(path).map_err(|error| UnreadableInput(format!("cannot read {}: {error}", path.display())))?;
    let mut failed = None;
    let mut head = ProfileHead::default();
    let whole = ProfileDocument { head: &mut head, visit, failed: &mut failed };
    let mut json = serde_json::Deserializer::from_reader(file);
    let read = whole.deserialize(&mut json).and_then(|()| json.end());
    if let Some(error) = failed {
        return Err(error.into());
    }
    read.map_err(|error| unreadable(&error))?;
    Ok(head)
}

/// The whole file: an object with `traceEvents`, or only the list of events.
struct ProfileDocument<'a> {
    head: &'a mut ProfileHead,
    visit: &'a mut dyn FnMut(ProfileEvent) -> io::Result<()>,
    /// The error of `visit`, which ends the reading.
    failed: &'a mut Option<io::Error>,
}

impl<'de> DeserializeSeed<'de> for ProfileDocument<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ProfileDocument<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Self { head, visit, failed } = self;
        let mut has_events = false;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    has_events = true;
                    map.next_value_seed(EventList { visit: &mut *visit, failed: &mut *failed })?;
                }
                "baseTimeNanoseconds" => {
                    let base: Value = map.next_value()?;
                    head.base_unix_ns = base.as_i64().unwrap_or(0);
                }
                "distributedInfo" => {
                    let info: Value = map.next_value()?;
                    head.rank = info.get("rank").and_then(Value::as_u64);
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if has_events { Ok(()) } else { Err(M::Error::custom("it has no traceEvents")) }
    }

    fn visit_seq<S: SeqAccess<'de>>(self, events: S) -> Result<(), S::Error> {
        EventList { visit: self.visit, failed: self.failed }.visit_seq(events)
    }
}

/// The list of events.
struct EventList<'a> {
    visit: &'a mut dyn FnMut(ProfileEvent) -> io::Result<()>,
    failed: &'a mut Option<io::Error>,
}

impl<'de> DeserializeSeed<'de> for EventList<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut events: S) -> Result<(), S::Error> {
        while let Some(event) = events.next_element::<ProfileEvent>()? {
            if let Err(error) = (self.visit)(event) {
                *self.failed = Some(error);
                return Err(S::Error::custom("the output failed"));
            }
        }
        Ok(())
    }
}
