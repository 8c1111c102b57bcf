//! Opening a trace: the file, the ring beside it, and whether the recorder still holds it.
//!
//! Constraint: the file may still be written while it is read. Consequence: the ring is read first (what moves into the trace
//! meanwhile is then seen twice, which is harmless, and not never), and the trace is read up to one fixed length each time.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumemtrace_format::reader::OpenError;
use gpumemtrace_format::ring::{PAGE_BYTES, RingImage};
use gpumemtrace_replay::{Input, RingFile};

use crate::exit::UnreadableInput;
use crate::trace::parts::TraceParts;
use crate::trace::progress::{ProgressLine, ReadCounter};

/// A trace that was found.
pub(crate) struct TraceSource {
    /// The file, and those that belong to it.
    pub(crate) parts: TraceParts,
    /// As the user named it.
    pub(crate) name: String,
    is_locked: bool,
    counter: Arc<ReadCounter>,
}

impl TraceSource {
    /// Finds it and looks at what stands beside it.
    pub(crate) fn find(path: &Path) -> Result<(Self, RingFile), UnreadableInput> {
        let name = path.display().to_string();
        let refuse = |why: String| UnreadableInput(format!("{name} {why}"));
        // Asked before it is opened: opening a pipe waits for whoever writes into it.
        let facts = std::fs::metadata(path).map_err(|error| refuse(describe_open_error(&error)))?;
        if !facts.is_file() && !facts.is_dir() {
            return Err(refuse("is not a regular file; a trace is read twice, so save it first".to_owned()));
        }
        let file = File::open(path).map_err(|error| refuse(describe_open_error(&error)))?;
        let facts = file.metadata().map_err(|error| refuse(format!("cannot be read: {error}")))?;
        if facts.is_dir() {
            return Err(refuse("is a directory; give the trace file in it".to_owned()));
        }
        let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        let ring = read_ring(&ring_path(path));
        let length_bytes = file.metadata().map_or(facts.len(), |facts| facts.len());
        let (parts, counter) = (TraceParts::find(path, length_bytes), Arc::default());
        Ok((Self { parts, name, is_locked, counter }, ring))
    }

    /// Opens it from its start.
    pub(crate) fn open(&self) -> std::io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.counter.begin(self.parts.open()?)))
    }

    /// Says on the terminal how far the reading of it is, until what is returned is dropped.
    pub(crate) fn progress(&self) -> ProgressLine {
        let length_bytes = self.parts.files.iter().map(|part| part.len_bytes).sum();
        ProgressLine::start(&self.name, length_bytes, self.counter.clone())
    }

    /// Hands it to the analyses.
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

    /// True while the recorder writes it.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }
}

/// Where the ring of a trace is.
pub(crate) fn ring_path(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".ring");
    PathBuf::from(name)
}

/// What stands beside a trace.
pub(crate) fn read_ring(path: &Path) -> RingFile {
    match read_ring_bytes(path) {
        Ok(bytes) => match RingImage::decode(&bytes) {
            Ok(image) => RingFile::Loaded(Box::new(image)),
            Err(error) => RingFile::Unusable(error.to_string()),
        },
        Err(why) => why,
    }
}

/// The file as far as its first page says that there is something; no more of it than that page until it has been checked.
fn read_ring_bytes(path: &Path) -> Result<Vec<u8>, RingFile> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => RingFile::Absent,
        _ => RingFile::Unusable(format!("cannot be read ({error})")),
    };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(RingFile::Unusable("is not a regular file".to_owned()));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::with_capacity(PAGE_BYTES);
    file.by_ref().take(PAGE_BYTES as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    let all = RingImage::file_bytes(&bytes).map_err(|error| RingFile::Unusable(error.to_string()))?;
    file.take(all - bytes.len() as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn describe_open_error(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => {
            "does not exist; the traced program writes run.trace into its current directory, at its first \
                                GPU call"
                .to_owned()
        }
        ErrorKind::PermissionDenied => {
            "may not be read: traces are readable by their owner only; ask them, or use sudo".to_owned()
        }
        _ => format!("cannot be opened: {error}"),
    }
}

fn describe_format_error(error: &OpenError) -> String {
    match error {
        OpenError::NotATrace => {
            format!(
                "{error} (it does not begin like one); give the file that the traced program wrote, such as run.trace"
            )
        }
        error => error.to_string(),
    }
}
