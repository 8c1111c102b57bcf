//! The files of a trace in parts, found and read as one trace.
//!
//! The user names the last part. Its metadata holds the trace ID and the part number. The other
//! parts are the files beside it with that ID in their name and in their metadata. Missing parts,
//! dropped by the recorder or removed since, are reported,
//! and so are unreadable ones. Blocks do not depend on the file they
//! lie in, so the parts are read one after the other. A finished file ends in a TAIL; one without
//! it was cut.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::{BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, MAX_PAYLOAD_BYTES};
use gpumemtrace_format::index::{IndexLocation, TAIL_BYTES, TraceTail, locate_index};
use gpumemtrace_format::reader::{Item, OpenError, TraceBytes, TraceReader};
use gpumemtrace_replay::ingest::FileSpan;

use super::bytes::{FileBytes, JoinedBytes};

/// One file of a trace.
#[derive(Clone, Debug)]
pub(crate) struct PartFile {
    pub(crate) path: PathBuf,
    /// The bytes to read; the file may be longer by now.
    pub(crate) len_bytes: u64,
    /// The open file of a trace that is or was still written: the recorder may rename or delete it.
    held: Option<Arc<File>>,
}

/// All files of a trace, in reading order.
#[derive(Clone, Debug)]
pub(crate) struct TraceParts {
    /// The definitions, then the parts; the file that the user named is the last one.
    pub(crate) files: Vec<PartFile>,
    /// The files that are missing, cut or unreadable, a sentence each.
    pub(crate) absent: Vec<String>,
}

impl PartFile {
    pub(crate) fn open(&self) -> io::Result<File> {
        match &self.held {
            Some(file) => file.try_clone(),
            None => File::open(&self.path),
        }
    }
}

/// Most files of a trace that are kept open. A process may open 1,024 as a rule.
const MAX_HELD: usize = 256;

impl TraceParts {
    /// Finds the files that belong to `file`, of which `len_bytes` are to be read. It was opened at
    /// `path`, where the recorder may have started the next part since. `is_live` if the trace is
    /// still written.
    pub(crate) fn find(path: &Path, file: File, len_bytes: u64, is_live: bool) -> Self {
        let file = Arc::new(file);
        let held = (is_live || !is_file_at(path, &file)).then(|| file.clone());
        let named = PartFile { path: path.to_owned(), len_bytes, held };
        let alone = Self { files: vec![named.clone()], absent: Vec::new() };
        let Ok(Some(meta)) = first_meta_of(&file) else { return alone };
        let (Some(number @ 1..), Some(id)) = (meta.number("part"), meta.text("trace_id")) else {
            return alone;
        };
        let discovery = PartDiscovery::beside(path, id, number);
        let is_kept = is_live && discovery.parts.len() < MAX_HELD;
        let mut parts = Self { files: Vec::new(), absent: Vec::new() };
        let dropped = discovery.count_dropped_parts();
        let is_known = |part: &u64| {
            discovery.parts.contains_key(part) || discovery.unreadable.contains_key(&Some(*part))
        };
        let gone: Vec<u64> = (dropped + 1..number).filter(|part| !is_known(part)).collect();
        for (part, (path, why)) in &discovery.unreadable {
            let effect = match part {
                Some(_) => "its events are missing",
                None => "call sites are unknown",
            };
            parts.absent.push(format!("{} {why}: {effect}", path.display()));
        }
        match discovery.stacks {
            // The recorder finishes this file before it closes the trace, and no sooner.
            Some(stacks) if is_closed(&file, len_bytes) => parts.add_finished(&stacks, "call sites are unknown", is_kept),
            Some(stacks) => drop(parts.add(&stacks, is_kept)),
            None if discovery.unreadable.contains_key(&None) => {}
            None => parts.absent.push(
                "the stacks file of this trace (named *.stacks.trace) is not beside it: no event has a call site"
                    .to_owned(),
            ),
        }
        if let [first, .., last] | [first @ last] = gone[..] {
            let (count, s) = (gone.len(), if gone.len() == 1 { "" } else { "s" });
            parts.absent.push(format!(
                "{count} part{s} from {first} to {last} not found beside this trace: their events are missing"
            ));
        }
        for part in discovery.parts.into_values() {
            parts.add_finished(&part, "events are missing", is_kept);
        }
        parts.files.push(named);
        parts
    }

    /// Adds a file that the recorder finished. If its end is missing, it was cut since.
    fn add_finished(&mut self, path: &Path, effect: &str, is_kept: bool) {
        if self.add(path, is_kept) == Some(false) {
            self.absent.push(format!(
                "{} was cut or changed, because it does not end in its last block: {effect}",
                path.display()
            ));
        }
    }

    /// Adds a file. Returns whether the recorder finished it, or `None` if it is gone by now.
    fn add(&mut self, path: &Path, is_kept: bool) -> Option<bool> {
        let file = Arc::new(File::open(path).ok()?);
        let len_bytes = file.metadata().ok()?.len();
        // A killed program may leave half a block; the reader would take the next file for its
        // rest.
        let whole_bytes = locate_file_index(&file, len_bytes).map_or(len_bytes, |places| places.whole_bytes);
        let is_finished = has_tail(&file, len_bytes);
        let held = is_kept.then_some(file);
        self.files.push(PartFile { path: path.to_owned(), len_bytes: whole_bytes, held });
        Some(is_finished)
    }

    /// Opens all files as one trace, from its start.
    pub(crate) fn open(&self) -> io::Result<Box<dyn TraceBytes>> {
        let open = |(number, part): (usize, &PartFile)| {
            let begin = if number > 0 { FILE_HEADER_BYTES as u64 } else { 0 };
            Ok(FileBytes::new(part.open()?, begin, part.len_bytes))
        };
        Ok(Box::new(JoinedBytes(self.files.iter().enumerate().map(open).collect::<io::Result<_>>()?)))
    }

    /// The position of each file in the whole trace.
    pub(crate) fn spans(&self) -> Vec<FileSpan> {
        let (mut spans, mut start) = (Vec::new(), 0);
        for part in &self.files {
            let skipped = if start == 0 { 0 } else { FILE_HEADER_BYTES as u64 };
            spans.push(FileSpan { name: part.path.display().to_string(), start, skipped });
            start += part.len_bytes.saturating_sub(skipped);
        }
        spans
    }
}

/// Finds the index at the end of a file; `None` if the last block is no TAIL.
pub(crate) fn locate_file_index(file: &File, len_bytes: u64) -> Option<IndexLocation> {
    locate_index(len_bytes, |at, buffer| file.read_exact_at(buffer, at).is_ok())
}

/// True if the last block of a file is a TAIL.
fn has_tail(file: &File, len_bytes: u64) -> bool {
    let mut last = [0; TAIL_BYTES];
    let at = len_bytes.checked_sub(TAIL_BYTES as u64);
    at.is_some_and(|at| file.read_exact_at(&mut last, at).is_ok())
        && TraceTail::from_last_bytes(&last).is_some()
}

/// True if the first `len_bytes` of a trace contain the block END.
fn is_closed(file: &File, len_bytes: u64) -> bool {
    locate_file_index(file, len_bytes).is_some_and(|places| places.end.is_some())
}

/// True if this file lies at `path`, as far as that can be read.
fn is_file_at(path: &Path, file: &File) -> bool {
    let identity = |facts: Metadata| (facts.dev(), facts.ino());
    let (here, there) = (file.metadata().map(identity), std::fs::metadata(path).map(identity));
    here.is_ok_and(|here| there.is_ok_and(|there| here == there))
}

/// The bytes in which the first block of a file lies, however long the file is.
pub(crate) fn first_block(file: File) -> FileBytes {
    FileBytes::new(file, 0, (FILE_HEADER_BYTES + BLOCK_HEADER_BYTES + MAX_PAYLOAD_BYTES) as u64)
}

/// The ID of a trace in several files, and which part of it this file is. `None` for other files.
pub(crate) fn read_part(path: &Path) -> Option<(String, u64)> {
    let meta = read_first_meta(path).ok()??;
    let number = meta.number("part").filter(|number| *number > 0)?;
    Some((meta.text("trace_id")?.to_owned(), number))
}

/// The metadata in the first block of a file; `None` if that block is damaged. Fails with a phrase
/// if the file cannot be read as a trace.
fn read_first_meta(path: &Path) -> Result<Option<Meta>, String> {
    // Checked before opening it, because opening a pipe blocks.
    if !std::fs::metadata(path).map_err(|error| unreadable(&error))?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    first_meta_of(&File::open(path).map_err(|error| unreadable(&error))?)
}

fn first_meta_of(file: &File) -> Result<Option<Meta>, String> {
    let file = file.try_clone().map_err(|error| unreadable(&error))?;
    let mut reader = TraceReader::new(first_block(file)).map_err(|error| match error {
        OpenError::Empty => "is empty".to_owned(),
        error => error.to_string(),
    })?;
    Ok(match reader.next() {
        Some(Item::Meta(meta)) => Some(meta),
        _ => None,
    })
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read ({error})")
}

/// The files beside a part that belong to the same trace.
#[derive(Default)]
pub(crate) struct PartDiscovery {
    /// The definitions that all parts refer to.
    pub(crate) stacks: Option<PathBuf>,
    /// Earlier parts, by number.
    pub(crate) parts: BTreeMap<u64, PathBuf>,
    /// Files with such a name that cannot be read, and why: parts by number, the stacks file at
    /// `None`.
    pub(crate) unreadable: BTreeMap<Option<u64>, (PathBuf, String)>,
}

impl PartDiscovery {
    /// Searches the folder of part `number` of trace `id` for earlier parts and the stacks file.
    pub(crate) fn beside(path: &Path, id: &str, number: u64) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut discovery = Self::default();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            discovery.inspect(&entry.path(), id, number);
        }
        let Self { stacks, parts, unreadable } = &mut discovery;
        unreadable.retain(|part, _| match part {
            Some(number) => !parts.contains_key(number),
            None => stacks.is_none(),
        });
        discovery
    }

    /// Adds the file if it is the stacks file or a part with a number below `before`.
    fn inspect(&mut self, path: &Path, id: &str, before: u64) {
        let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else { return };
        let short = id.get(..8).unwrap_or(id);
        let Some((_, what)) = name.split_once(&format!(".{short}.")) else { return };
        let number = what.strip_prefix("part").map(|rest| rest.split('.').next().unwrap_or_default());
        let number = number.and_then(|number| number.parse::<u64>().ok());
        let is_stacks = what == "stacks" || what.starts_with("stacks.");
        if !(is_stacks || number.is_some_and(|number| (1..before).contains(&number))) {
            return;
        }
        let is_ours = match read_first_meta(path) {
            Ok(Some(meta)) => {
                meta.text("trace_id") == Some(id) && (is_stacks || meta.number("part") == number)
            }
            // Only the name shows that it is ours. The reader reports the damage.
            Ok(None) => true,
            Err(why) => {
                self.unreadable.insert(number, (path.to_owned(), why));
                false
            }
        };
        match number {
            _ if !is_ours => {}
            Some(number) => drop(self.parts.insert(number, path.to_owned())),
            None => self.stacks = Some(path.to_owned()),
        }
    }

    /// The number of parts that the recorder dropped, from the metadata of the stacks file.
    fn count_dropped_parts(&self) -> u64 {
        let Some(file) = self.stacks.as_ref().and_then(|path| File::open(path).ok()) else { return 0 };
        let bytes = FileBytes::new(file, 0, u64::MAX);
        let Ok(reader) = TraceReader::new(bytes) else { return 0 };
        let dropped = reader.passing_holes().without_events().filter_map(|item| match item {
            Item::Meta(meta) => meta.number("dropped_parts"),
            _ => None,
        });
        dropped.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
