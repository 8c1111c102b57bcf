//! A trace that was written in parts: which files belong together, and how they read as one.
//!
//! Constraint: parts have names that only their recorder knows, a folder may hold the parts of many traces, and some may have
//! been dropped, by the recorder or by somebody else. Consequence: the file that the user names says which trace and which
//! part it is; the others are found by the trace's id in their names and believed only if they say the same. What is not
//! there is told. Blocks need nothing of the file they lie in, so the parts are read one behind the other.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::FILE_HEADER_BYTES;
use gpumemtrace_format::index::{Places, locate};
use gpumemtrace_format::reader::{Item, TraceReader};
use gpumemtrace_replay::input::FileSpan;

/// One file of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PartFile {
    /// Where.
    pub(crate) path: PathBuf,
    /// How much of it is read.
    pub(crate) len_bytes: u64,
}

/// All files of a trace, in the order in which they are read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TraceParts {
    /// Definitions first, the file that was named last.
    pub(crate) files: Vec<PartFile>,
    /// What is not there, a sentence each.
    pub(crate) absent: Vec<String>,
}

impl TraceParts {
    /// Those that belong to a file of this length.
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
                "the file with the stacks of this trace (its name has .stacks. in it) is not beside it: no event has a call site"
                    .to_owned(),
            ),
        }
        let gone: Vec<u64> =
            (dropped + 1..number).filter(|part| !discovery.parts.contains_key(part)).collect();
        if let [first, .., last] | [first @ last] = gone[..] {
            let (count, s) = (gone.len(), if gone.len() == 1 { "" } else { "s" });
            parts.absent.push(format!(
                "{count} part{s} from {first} to {last} not found beside it: their events are missing"
            ));
        }
        discovery.parts.into_values().for_each(|part| parts.add(part));
        parts.files.push(named);
        parts
    }

    fn add(&mut self, path: PathBuf) {
        // A program that was killed may have left half a block; the next file must not be taken for its other half.
        if let Ok(file) = File::open(&path)
            && let Ok(facts) = file.metadata()
        {
            let len_bytes = locate_index(&file, facts.len()).map_or(facts.len(), |places| places.whole_bytes);
            self.files.push(PartFile { path, len_bytes });
        }
    }

    /// All of them as one trace, from its start.
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

    /// Where in the whole each file begins.
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

/// Where the sums of a file are.
pub(crate) fn locate_index(file: &File, len_bytes: u64) -> Option<Places> {
    locate(len_bytes, |at, buffer| file.read_exact_at(buffer, at).is_ok())
}

/// What a file says of itself in its first block.
fn read_first_meta(path: &Path) -> Option<Meta> {
    // Asked before it is opened: a pipe would be waited for.
    let is_file = std::fs::metadata(path).is_ok_and(|facts| facts.is_file());
    let file = is_file.then(|| File::open(path)).and_then(Result::ok)?;
    match TraceReader::new(file).ok()?.next()? {
        Item::Meta(meta) => Some(meta),
        _ => None,
    }
}

/// Files of the same trace.
#[derive(Default)]
pub(crate) struct PartDiscovery {
    /// What its parts refer to.
    pub(crate) stacks: Option<PathBuf>,
    /// By number.
    pub(crate) parts: BTreeMap<u64, PathBuf>,
}

impl PartDiscovery {
    /// Those beside a part of a trace, and before it.
    pub(crate) fn beside(path: &Path, id: &str, number: u64) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut discovery = Self::default();
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            discovery.inspect(&entry.path(), id, number);
        }
        discovery
    }

    /// `before`: only earlier parts are looked for.
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

    /// How many the recorder has dropped, as it says itself.
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
