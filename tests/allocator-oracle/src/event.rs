//! What an allocator does, and the text format of its log.

use std::fmt;
use std::io::BufRead;

use anyhow::Result;

use crate::request::StreamNumber;
use crate::text::{LineFields, TextError};

/// The values of a line of statistics, in order.
///
/// The peaks of inactive parts are left out: they depend on the order in which frees complete.
pub const STATISTICS: [&str; 18] = [
    "allocated_bytes.current",
    "allocated_bytes.peak",
    "reserved_bytes.current",
    "reserved_bytes.peak",
    "active_bytes.current",
    "active_bytes.peak",
    "requested_bytes.current",
    "requested_bytes.peak",
    "allocation.current",
    "allocation.peak",
    "segment.current",
    "segment.peak",
    "active.current",
    "active.peak",
    "inactive_split_bytes.current",
    "inactive_split.current",
    "num_alloc_retries",
    "num_ooms",
];

/// What happened to a segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SegmentChange {
    /// The device allocated it.
    Allocated,
    /// It was returned to the device.
    Freed,
    /// A part of an expandable segment got memory.
    Mapped,
    /// A part of an expandable segment lost its memory.
    Unmapped,
}

/// One line of an allocator's log. Addresses are relative to the device's first address;
/// reservations begin at 5 TiB.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OracleEvent {
    /// The address that an allocation request got.
    Allocated(u64),
    /// An allocation request failed.
    OutOfMemory {
        /// Free memory of the device.
        free_bytes: u64,
    },
    /// A segment, or a part of one, came or went.
    Segment {
        /// What happened to it.
        change: SegmentChange,
        /// Index of the request that caused it.
        request: u64,
        /// Relative address of the segment, or of the part.
        addr: u64,
        /// Bytes of the segment, or of the part.
        bytes: u64,
        /// The stream of its blocks.
        stream: StreamNumber,
    },
    /// The last event of a freed block completed. Frees that complete at once are not logged.
    FreeCompleted {
        /// Index of the request during which the allocator noticed.
        request: u64,
        /// Relative address of the block.
        addr: u64,
    },
    /// The statistics, named by [`STATISTICS`].
    Statistics([u64; STATISTICS.len()]),
}

impl SegmentChange {
    const ALL: [(&'static str, Self); 4] =
        [("+", Self::Allocated), ("-", Self::Freed), ("<", Self::Mapped), (">", Self::Unmapped)];
}

impl fmt::Display for OracleEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocated(addr) => write!(formatter, "a {addr:x}"),
            Self::OutOfMemory { free_bytes } => write!(formatter, "o {free_bytes}"),
            Self::Segment { change, request, addr, bytes, stream } => {
                let kind = SegmentChange::ALL.iter().find(|row| row.1 == *change).map_or("", |row| row.0);
                write!(formatter, "{kind} {request} {addr:x} {bytes} {}", stream.0)
            }
            Self::FreeCompleted { request, addr } => write!(formatter, "c {request} {addr:x}"),
            Self::Statistics(values) => {
                formatter.write_str("k")?;
                values.iter().try_for_each(|value| write!(formatter, " {value}"))
            }
        }
    }
}

impl OracleEvent {
    /// Reads one line, without its end.
    pub fn parse(line: &str) -> Result<Self, TextError> {
        let (kind, mut fields) = LineFields::new(line);
        let event = match kind {
            "a" => Self::Allocated(fields.hex()?),
            "o" => Self::OutOfMemory { free_bytes: fields.parse()? },
            "c" => Self::FreeCompleted { request: fields.parse()?, addr: fields.hex()? },
            "k" => {
                let mut values = [0; STATISTICS.len()];
                for value in &mut values {
                    *value = fields.parse()?;
                }
                Self::Statistics(values)
            }
            _ => {
                let row =
                    SegmentChange::ALL.iter().find(|row| row.0 == kind).ok_or_else(|| fields.error())?;
                Self::Segment {
                    change: row.1,
                    request: fields.parse()?,
                    addr: fields.hex()?,
                    bytes: fields.parse()?,
                    stream: StreamNumber(fields.parse()?),
                }
            }
        };
        fields.finish(event)
    }
}

/// Reads the lines of a log.
#[derive(Debug)]
pub struct EventReader<R> {
    input: R,
    line: String,
}

impl<R: BufRead> EventReader<R> {
    /// Reads from the first line on.
    pub fn new(input: R) -> Self {
        Self { input, line: String::new() }
    }
}

impl<R: BufRead> Iterator for EventReader<R> {
    type Item = Result<OracleEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line.clear();
        match self.input.read_line(&mut self.line) {
            Ok(0) => None,
            Ok(_) => Some(OracleEvent::parse(self.line.trim_end_matches('\n')).map_err(Into::into)),
            Err(error) => Some(Err(error.into())),
        }
    }
}
