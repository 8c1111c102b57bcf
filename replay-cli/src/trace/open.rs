//! Opens a trace: its files, the ring file beside it, and the recorder's lock.
//!
//! The recorder may still write the trace. So the ring file is read first: an event that moves into
//! the trace meanwhile is then seen twice, which is harmless, instead of never. And every pass over
//! the trace ends at the same length.

use std::fs::{File, TryLockError};
use std::io::{Cursor, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use gpumemtrace_format::Meta;
use gpumemtrace_format::reader::{Item, OpenError, TraceBytes, TraceReader};
use gpumemtrace_replay::{Input, RingFile};
use gpumemtrace_torch_snapshot::{SNIFF_BYTES, SnapshotError, looks_like_snapshot, transcode};

use crate::exit::UnreadableInput;
use crate::terminal::status_line;
use crate::trace::foreign_file::describe_foreign_file;
use crate::trace::parts::TraceParts;
use crate::trace::progress::{ProgressLine, ReadCounter};
use crate::trace::ring::read_ring;

/// A trace on disk that can be read several times.
pub(crate) struct TraceSource {
    pub(crate) parts: TraceParts,
    /// The path as the user typed it.
    pub(crate) name: String,
    is_locked: bool,
    /// The trace that was made of a snapshot of PyTorch; `None` if the file is a trace itself.
    snapshot: Option<Arc<[u8]>>,
    counter: Arc<ReadCounter>,
}

impl TraceSource {
    /// Finds the files of a trace and reads its ring file. Fails for anything but a regular file.
    pub(crate) fn find(path: &Path) -> Result<(Self, RingFile), UnreadableInput> {
        let name = path.display().to_string();
        let refuse = |why: String| UnreadableInput(format!("{name} {why}"));
        // Checked before opening it, because opening a pipe blocks until it has a writer.
        let facts = std::fs::metadata(path).map_err(|error| refuse(describe_open_error(&error)))?;
        if !facts.is_file() && !facts.is_dir() {
            return Err(refuse("is not a regular file; save the trace to a file first".to_owned()));
        }
        let file = File::open(path).map_err(|error| refuse(describe_open_error(&error)))?;
        let facts = file.metadata().map_err(|error| refuse(format!("cannot be read: {error}")))?;
        if facts.is_dir() {
            return Err(refuse("is a directory; give the trace file in it".to_owned()));
        }
        if begins_like_summary(&file) {
            return Err(refuse("is a summary of traces, which gpumemtrace ranks reads".to_owned()));
        }
        if let Some(why) = describe_foreign_file(path, &file) {
            return Err(refuse(why));
        }
        if begins_like_snapshot(&file) {
            return Ok((Self::of_snapshot(path, file, facts.len())?, RingFile::Absent));
        }
        let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        let ring = read_ring(path);
        let length_bytes = file.metadata().map_or(facts.len(), |facts| facts.len());
        let (parts, counter) = (TraceParts::find(path, file, length_bytes, is_locked), Arc::default());
        Ok((Self { parts, name, is_locked, snapshot: None, counter }, ring))
    }

    /// Reads a snapshot of PyTorch and keeps the trace that is made of it.
    fn of_snapshot(path: &Path, file: File, length_bytes: u64) -> Result<Self, UnreadableInput> {
        let name = path.display().to_string();
        let counter: Arc<ReadCounter> = Arc::default();
        let _progress =
            status_line::is_terminal().then(|| ProgressLine::start(&name, length_bytes, counter.clone()));
        let trace = transcode(&mut counter.begin(file));
        let trace =
            trace.map_err(|error| UnreadableInput(format!("{name} {}", describe_snapshot_error(&error))))?;
        let parts = TraceParts { files: Vec::new(), absent: Vec::new() };
        Ok(Self { parts, name, is_locked: false, snapshot: Some(trace.into()), counter })
    }

    /// True if the file is a snapshot of PyTorch.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Opens the whole trace from its start, and restarts the progress counter.
    pub(crate) fn open(&self) -> std::io::Result<Box<dyn TraceBytes>> {
        match &self.snapshot {
            Some(trace) => Ok(Box::new(self.counter.begin(Cursor::new(trace.clone())))),
            None => Ok(Box::new(self.counter.begin(self.parts.open()?))),
        }
    }

    /// Shows a progress line on stderr until the return value is dropped.
    pub(crate) fn progress(&self) -> ProgressLine {
        ProgressLine::start(&self.name, self.len_bytes(), self.counter.clone())
    }

    /// Length of the trace with all its parts, without the ring file.
    pub(crate) fn len_bytes(&self) -> u64 {
        match &self.snapshot {
            Some(trace) => trace.len() as u64,
            None => self.parts.files.iter().map(|part| part.len_bytes).sum(),
        }
    }

    /// Calls `read` with this trace and its ring file, and names the trace in its errors.
    pub(crate) fn with_input<T>(
        &self,
        ring: RingFile,
        read: impl FnOnce(Input<'_>) -> Result<T, OpenError>,
    ) -> Result<T, UnreadableInput> {
        let open = || self.open();
        let (files, absent) = (self.parts.spans(), self.parts.absent.clone());
        let input = Input { path: &self.name, open: &open, ring, is_locked: self.is_locked, files, absent };
        read(input)
            .map_err(|error| UnreadableInput(format!("{} {}", self.name, describe_format_error(&error))))
    }

    /// The metadata before the first event, at least up to the rank.
    pub(crate) fn read_first_meta(&self) -> Result<Meta, UnreadableInput> {
        let refuse =
            |error: &OpenError| UnreadableInput(format!("{} {}", self.name, describe_format_error(error)));
        let source = self.open().map_err(|error| refuse(&error.into()))?;
        let mut meta = Meta::default();
        for item in TraceReader::new(source).map_err(|error| refuse(&error))? {
            match item {
                Item::Meta(more) => meta.merge(more),
                Item::Events(_) | Item::End(_) => break,
                _ => {}
            }
            if meta.number("rank").is_some() {
                break;
            }
        }
        Ok(meta)
    }

    /// True if the recorder held the file when it was found.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// True if this is the path of a snapshot of PyTorch.
pub(crate) fn is_snapshot_file(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
    is_file && File::open(path).is_ok_and(|file| begins_like_snapshot(&file))
}

/// True if the file begins like a summary, as `ranks -o` writes it.
pub(crate) fn begins_like_summary(file: &File) -> bool {
    const START: &[u8] = b"{\"schema\":\"gpumemtrace.summary\"";
    let mut first = [0; START.len()];
    file.read_exact_at(&mut first, 0).is_ok() && first == *START
}

/// True if a file is no trace and its first bytes are those of a snapshot.
fn begins_like_snapshot(file: &File) -> bool {
    let mut first = [0; SNIFF_BYTES];
    let mut filled = 0;
    while let Ok(read @ 1..) = file.read_at(&mut first[filled..], filled as u64) {
        filled += read;
    }
    looks_like_snapshot(&first[..filled])
}

fn describe_open_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "does not exist; the recorder creates run.trace in the program's current directory, at its first GPU \
             call"
                .to_owned()
        }
        ErrorKind::PermissionDenied => {
            "cannot be read: only its owner has access; ask them, or use sudo".to_owned()
        }
        _ => format!("cannot be opened: {error}"),
    }
}

fn describe_snapshot_error(error: &SnapshotError) -> String {
    match error {
        SnapshotError::OtherContents(_) | SnapshotError::NoneInArchive { .. } => {
            format!("{error}; give the file that torch.cuda.memory._dump_snapshot() wrote")
        }
        error => error.to_string(),
    }
}

fn describe_format_error(error: &OpenError) -> String {
    match error {
        OpenError::NotATrace => {
            format!(
                "{error}, and no snapshot of PyTorch; give the file that the recorder wrote, such as run.trace"
            )
        }
        error => error.to_string(),
    }
}
