//! Finds the traces that a command wrote, and notes in its own trace how the command ended.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::SystemTime;

use gpumemtrace_format::Meta;
use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::index::{TAIL_BYTES, TraceTail};
use gpumemtrace_format::reader::{Item, TraceReader};

use crate::launch::output_pattern::OutputPattern;
use crate::terminal::stderr::print_message;

const ZSTD_LEVEL: i32 = 3;

/// The names under which the command may write traces.
pub(super) struct ExpectedTraces {
    pub(super) patterns: Vec<OutputPattern>,
    /// The user gave a relative name, so a command that changes its folder writes elsewhere.
    pub(super) is_relative: bool,
}

impl ExpectedTraces {
    pub(super) fn new(here: &Path, given: Option<PathBuf>) -> Self {
        let from_env = std::env::var_os("GPUMEMTRACE_OUTPUT").filter(|name| !name.is_empty());
        let named = given.or_else(|| from_env.map(PathBuf::from));
        let is_relative = named.as_ref().is_none_or(|name| name.is_relative());
        let path = named.map_or_else(|| here.to_owned(), |name| here.join(name));
        // The recorder's names without a given one: job, host and rank may be in the middle.
        let names = if super::names_folder(&path) {
            vec![path.join("run.trace"), path.join("run.%j.trace")]
        } else {
            vec![path]
        };
        Self { patterns: names.iter().filter_map(|name| OutputPattern::new(name)).collect(), is_relative }
    }

    /// The existing traces of these names, each with inode and modification time.
    pub(super) fn find_traces(&self) -> Vec<(PathBuf, u64, SystemTime)> {
        let mut found: Vec<(PathBuf, u64, SystemTime)> = Vec::new();
        for pattern in &self.patterns {
            let entries = fs::read_dir(&pattern.folder).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| pattern.matches(&entry.file_name().to_string_lossy())) {
                let path = entry.path();
                // Checked before opening it, because opening a pipe blocks.
                let Some(facts) = path.metadata().ok().filter(fs::Metadata::is_file) else { continue };
                if File::open(&path).is_ok_and(|file| TraceReader::new(file).is_ok()) {
                    found.push((path, facts.ino(), facts.modified().unwrap_or(SystemTime::UNIX_EPOCH)));
                }
            }
        }
        found.sort();
        found.dedup();
        found
    }
}

/// Prints and returns the new traces, and appends the wait status to the command's own trace.
pub(super) fn finish_traces(
    expected: &ExpectedTraces,
    before: &[(PathBuf, u64, SystemTime)],
    pid: u64,
    status: ExitStatus,
    here: &Path,
) -> Vec<PathBuf> {
    let is_new = |inode: &u64, modified: &SystemTime| {
        !before.iter().any(|(_, known, when)| known == inode && when == modified)
    };
    let new: Vec<PathBuf> = expected
        .find_traces()
        .into_iter()
        .filter(|(_, inode, modified)| is_new(inode, modified))
        .map(|(path, ..)| path)
        .collect();
    for path in &new {
        let name = path.strip_prefix(here).unwrap_or(path);
        let shown = name.display();
        if is_locked(path) {
            print_message(format_args!(
                "gpumemtrace: {shown} is still being written by a child process of the command"
            ));
            continue;
        }
        if let Err(error) = append_wait_status(path, pid, status) {
            print_message(format_args!(
                "gpumemtrace: {shown}: cannot add the exit status of the command: {error:#}"
            ));
        }
        let argument = shell_word(name.as_os_str());
        print_message(format_args!("gpumemtrace: wrote {shown}; next: gpumemtrace replay {argument}"));
    }
    new
}

/// A word that a shell reads as this name, and that the command does not take for an option. Names
/// that are no text need the quotes of bash and zsh.
fn shell_word(name: &OsStr) -> String {
    let prefix = if name.as_bytes().starts_with(b"-") { "./" } else { "" };
    let is_plain = |c: char| c.is_alphanumeric() || "-_./,:@%+=".contains(c);
    match name.to_str().filter(|text| !text.contains(char::is_control)) {
        Some(text) if text.chars().all(is_plain) => format!("{prefix}{text}"),
        Some(text) => format!("{prefix}'{}'", text.replace('\'', r"'\''")),
        None => {
            let byte = |byte: &u8| match byte {
                b'\\' | b'\'' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                other => format!("\\x{other:02x}"),
            };
            format!("{prefix}$'{}'", name.as_bytes().iter().map(byte).collect::<String>())
        }
    }
}

fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Whether the trace is of another host, which may share the folder and have equal process IDs.
fn is_of_other_host(meta: &Meta) -> bool {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    meta.text("host").zip(own).is_some_and(|(host, own)| host != own.trim_end())
}

/// Appends the wait status, which only the parent knows, if the trace is of process `pid`.
fn append_wait_status(path: &Path, pid: u64, status: ExitStatus) -> anyhow::Result<()> {
    let mut meta = Meta::default();
    for item in TraceReader::new(File::open(path)?)?.without_events() {
        match item {
            Item::Meta(more) => meta.merge(more),
            // A reader would take the new block for the rest of the truncated one.
            Item::TruncatedBlock { .. } => return Ok(()),
            _ => {}
        }
    }
    if meta.number("pid") != Some(pid) || is_of_other_host(&meta) {
        return Ok(());
    }
    let text = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => return Ok(()),
    };
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    // Some file systems have no locks; the process with this ID has ended.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        return Err(std::io::Error::from(TryLockError::WouldBlock).into());
    }
    let mut note = Meta::default();
    note.set_text("wait_status", text);
    let mut blocks = encode_block(BlockKind::META, &note.encode(), ZSTD_LEVEL);
    // TAIL points at the index and must stay the last block, so write a new one behind the note.
    let mut last = [0; TAIL_BYTES];
    let has_tail =
        file.seek(SeekFrom::End(-(TAIL_BYTES as i64))).is_ok() && file.read_exact(&mut last).is_ok();
    if let Some(tail) = TraceTail::from_last_bytes(&last).filter(|_| has_tail) {
        blocks.extend(tail.moved_by((TAIL_BYTES + blocks.len()) as u64).encode_block());
    }
    file.write_all(&blocks)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_command_can_be_pasted_into_a_shell() {
        for (text, word) in [
            ("run.rank3.trace", "run.rank3.trace"),
            ("my run.trace", "'my run.trace'"),
            ("$(reboot);.trace", "'$(reboot);.trace'"),
            ("it's.trace", r"'it'\''s.trace'"),
            ("-x.trace", "./-x.trace"),
            ("a\nb", r"$'a\x0ab'"),
        ] {
            assert_eq!(shell_word(text.as_ref()), word);
        }
        assert_eq!(shell_word(OsStr::from_bytes(b"caf\xe9'.trace")), r"$'caf\xe9\'.trace'");
    }
}
