//! The ground-truth log: one line per memory call, also for failed ones.
//!
//! Tests compare tracers with it, also after SIGKILL. Each line is one `write` to an append-only
//! file under the lock of the change, so lines are complete and in order. `crates/simgpu/README.md`
//! specifies them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

use crate::result_code::Rc;
use crate::state::location::MemoryKind;

/// The fields of a line that depend on the call.
#[derive(Debug, Default)]
pub(crate) struct LogRecord {
    /// Device ordinal; -1 if none.
    pub(crate) device: i32,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// ` key=value` pairs, each with its leading space.
    pub(crate) extra: String,
}

impl LogRecord {
    /// A record for a request of `size` bytes.
    pub(crate) fn for_size(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// A record for an address or a handle.
    pub(crate) fn for_address(addr: u64) -> Self {
        Self { addr, ..Self::default() }
    }

    /// Sets the stream, as the caller passed it.
    pub(crate) fn with_stream(self, stream: u64) -> Self {
        Self { stream, ..self }
    }

    /// Appends ` key=value`, in decimal.
    pub(crate) fn push_field(&mut self, key: &str, value: u64) {
        let _ = write!(self.extra, " {key}={value}");
    }

    /// Appends ` memory=host` or ` memory=managed`, and nothing for device memory.
    pub(crate) fn push_memory(&mut self, memory: MemoryKind) {
        if let Some(name) = memory.log_name() {
            let _ = write!(self.extra, " memory={name}");
        }
    }

    /// Appends the live bytes of host and managed memory, unless they are 0.
    pub(crate) fn push_held(&mut self, (host, managed): (u64, u64)) {
        for (key, bytes) in [("host", host), ("managed", managed)] {
            if bytes > 0 {
                self.push_field(key, bytes);
            }
        }
    }

    /// Appends ` key=value`, in hexadecimal.
    pub(crate) fn push_hex_field(&mut self, key: &str, value: u64) {
        let _ = write!(self.extra, " {key}={value:#x}");
    }
}

/// The open log file.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    pid: u32,
    seq: u64,
    line: String,
}

impl Log {
    /// Opens the log of this process; `%p` in the path is the process id.
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

    /// Writes one line, with one system call.
    pub(crate) fn write(
        &mut self,
        tid: i32,
        api: &str,
        record: &LogRecord,
        rc: Rc,
        ns: u64,
        (used, slack): (u64, u64),
    ) {
        self.seq += 1;
        self.line.clear();
        let LogRecord { device, addr, size, stream, extra, .. } = record;
        let _ = write!(self.line, "{} {} {tid} {api} {device} {addr:#x} {size} ", self.seq, self.pid);
        let _ = match stream {
            0 => write!(self.line, "0"),
            stream => write!(self.line, "{stream:#x}"),
        };
        let _ = writeln!(self.line, " {rc} ns={ns} used={used} slack={slack}{extra}");
        // A full disk must not fail the simulated call; the checker sees the gap in `seq`.
        let _ = self.file.write(self.line.as_bytes());
    }
}
