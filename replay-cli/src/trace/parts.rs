//! The files of a trace in parts, found and read as one trace.
//!
//! The user names the last part. Its metadata holds the trace ID and the part number. The other
//! parts are the files beside it with that ID in their name and in their metadata. Missing parts,
//! dropped by the recorder or removed since, are reported. Blocks do not depend on the file they
//! lie in, so the parts are read one after the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::FILE_HEADER_BYTES;
use gpumemtrace_format::index::{IndexLocation, locate_index};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_replay::ingest::FileSpan;

/// One file of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PartFile {
    pub(crate) path: PathBuf,
    /// The bytes to read; the file may be longer by now.
    pub(crate) len_bytes: u64,
}

/// All files of a trace, in reading order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TraceParts {
    /// The definitions, then the parts; the file that the user named is the last one.
    pub(crate) files: Vec<PartFile>,
    /// The missing files, a sentence each.
    pub(crate) absent: Vec<String>,
}

impl TraceParts {
    /// Finds the files that belong to `path`, of which `len_bytes` are to be read.
    pub(crate) fn find(path: &Path, len_bytes: u64) -> Self {
        let named = PartFile { path: path.to_owned(), len_bytes };
        let alone = Self { files: vec![named.clone()], absent: Vec::new() };
        let Some(meta) = read_first_meta(path) else { return alone };
        let (Some(number @ 1..), Some(id)) = (meta.number("part"), meta.text("trace_id")) else {
            return alone;
        };
        let discovery = PartDiscovery::beside(path, id, number);
        let mut parts = Self { files: Vec::new(), absent: Vec::new() };
        let dropped = discovery.count_dropped_parts();
        match discovery.stacks {
            Some(stacks) => parts.add(stacks),
            None => parts.absent.push(
                "the stacks file of this trace (named *.stacks.trace) is not beside it: no event has a call site"
                    .to_owned(),
            ),
        }
        let gone: Vec<u64> =
            (dropped + 1..number).filter(|part| !discovery.parts.contains_key(part)).collect();
        if let [first, .., last] | [first @ last] = gone[..] {
            let (count, s) = (gone.len(), if gone.len() == 1 { "" } else { "s" });
            parts.absent.push(format!(
                "{count} part{s} from {first} to {last} not found beside this trace: their events are missing"
            ));
        }
        discovery.parts.into_values().for_each(|part| parts.add(part));
        parts.files.push(named);
        parts
    }

    fn add(&mut self, path: PathBuf) {
        // A killed program may leave half a block; the reader would take the next file for its
        // rest.
        if let Ok(file) = File::open(&path)
            && let Ok(facts) = file.metadata()
        {
            let len_bytes =
                locate_file_index(&file, facts.len()).map_or(facts.len(), |places| places.whole_bytes);
            self.files.push(PartFile { path, len_bytes });
        }
    }

    /// Opens all files as one trace, from its start.
    pub(crate) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        let mut all: Box<dyn Read + Send> = Box::new(io::empty());
        for (number, part) in self.files.iter().enumerate() {
            let mut file = File::open(&part.path)?.take(part.len_bytes);
            if number > 0 {
                io::copy(&mut file.by_ref().take(FILE_HEADER_BYTES as u64), &mut io::sink())?;
            }
            all = if number == 0 { Box::new(file) } else { Box::new(all.chain(file)) };
        }
        Ok(all)
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

/// The metadata in the first block of a file.
fn read_first_meta(path: &Path) -> Option<Meta> {
    // Checked before opening it, because opening a pipe blocks.
    let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
    let file = is_file.then(|| File::open(path)).and_then(Result::ok)?;
    match TraceReader::new(file).ok()?.next()? {
        Item::Meta(meta) => Some(meta),
        _ => None,
    }
}

/// The files beside a part that belong to the same trace.
#[derive(Default)]
pub(crate) struct PartDiscovery {
    /// The definitions that all parts refer to.
    pub(crate) stacks: Option<PathBuf>,
    /// Earlier parts, by number.
    pub(crate) parts: BTreeMap<u64, PathBuf>,
}

impl PartDiscovery {
    /// Searches the folder of part `number` of trace `id` for earlier parts and the stacks file.
    pub(crate) fn beside(path: &Path, id: &str, number: u64) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut discovery = Self::default();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            discovery.inspect(&entry.path(), id, number);
        }
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
        if !(is_stacks || number.is_some_and(|number| number < before)) {
            return;
        }
        let Some(meta) = read_first_meta(path).filter(|meta| meta.text("trace_id") == Some(id)) else {
            return;
        };
        match number {
            Some(number) if meta.number("part") == Some(number) => {
                self.parts.insert(number, path.to_owned());
            }
            None if is_stacks => self.stacks = Some(path.to_owned()),
            _ => {}
        }
    }

    /// The number of parts that the recorder dropped, from the metadata of the stacks file.
    fn count_dropped_parts(&self) -> u64 {
        let Some(file) = self.stacks.as_ref().and_then(|path| File::open(path).ok()) else { return 0 };
        let Ok(reader) = TraceReader::new(file) else { return 0 };
        let dropped = reader.without_events().filter_map(|item| match item {
            Item::Meta(meta) => meta.number("dropped_parts"),
            _ => None,
        });
        dropped.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
