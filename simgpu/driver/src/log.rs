//! The ground-truth log: one line per call that changed or tried to change memory.
//!
//! It is the oracle of tracers that are tested by killing the program -> every line is one `write` to an append-only file, made under
//! the lock of the change, so that what is in the file happened, in that order. `simgpu/README.md` specifies the line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

use crate::rc::Rc;

/// What a line says beyond who called.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Ordinal; -1 where no device is concerned.
    pub(crate) device: i32,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// ` key=value` pairs, each with its leading space.
    pub(crate) extra: String,
}

impl Record {
    /// A request for some bytes.
    pub(crate) fn bytes(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// A call about an address or a handle.
    pub(crate) fn about(addr: u64) -> Self {
        Self { addr, ..Self::default() }
    }

    /// With the stream that the caller passed.
    pub(crate) fn on(self, stream: u64) -> Self {
        Self { stream, ..self }
    }

    /// Adds a number.
    pub(crate) fn note(&mut self, key: &str, value: u64) {
        let _ = write!(self.extra, " {key}={value}");
    }

    /// Adds an address or a handle.
    pub(crate) fn note_hex(&mut self, key: &str, value: u64) {
        let _ = write!(self.extra, " {key}={value:#x}");
    }
}

/// The open file.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    pid: u32,
    seq: u64,
    line: String,
}

impl Log {
    /// Opens the file of this process; `%p` in its name is the process id.
    pub(crate) fn open(path: &str) -> Option<Self> {
        let pid = std::process::id();
        let path = path.replace("%p", &pid.to_string());
        match File::options().append(true).create(true).open(&path) {
            Ok(file) => Some(Self { file, pid, seq: 0, line: String::new() }),
            Err(error) => {
                simgpu_common::warn(
                    "SIMGPU_LOG",
                    &path,
                    &format!("a file that can be written ({error})"),
                    "no log",
                );
                None
            }
        }
    }

    /// Writes one line.
    pub(crate) fn write(
        &mut self,
        tid: i32,
        api: &str,
        record: &Record,
        rc: Rc,
        ns: u64,
        (used, slack): (u64, u64),
    ) {
        self.seq += 1;
        self.line.clear();
        let Record { device, addr, size, stream, extra, .. } = record;
        let _ = write!(self.line, "{} {} {tid} {api} {device} {addr:#x} {size} ", self.seq, self.pid);
        let _ = match stream {
            0 => write!(self.line, "0"),
            stream => write!(self.line, "{stream:#x}"),
        };
        let _ = writeln!(self.line, " {rc} ns={ns} used={used} slack={slack}{extra}");
        // A full disk must not fail the simulated call; the checker sees the gap in the sequence.
        let _ = self.file.write(self.line.as_bytes());
    }
}
