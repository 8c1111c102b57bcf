//! Source lines of call sites.
//!
//! A trace names files, and it may come from anywhere: a report must not show the content of a
//! file only because a trace names it. So a line is shown only if all of this holds:
//! * this user recorded the trace on this host;
//! * the file is below a folder that the program ran in, or below an interpreter's library folder
//!   (`lib/python3.12`);
//! * no folder between the two begins with a dot, nor does the file, and the folder of the run is
//!   not below such a folder;
//! * the file is Python text, and the line belongs to the function that the trace names.
//!
//! Folders of `--source` replace the first two conditions.

mod python_text;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::callsite::stable_id;
use gpumemtrace_replay::report::{Site, TraceOrigin};

use crate::help::DISPLAY;
use crate::terminal::escape::escape_text;
use python_text::PythonText;

/// Largest source file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// Longest source line, in characters.
const MAX_LINE_CHARS: usize = 160;

/// Parts of file names that suggest passwords, tokens or keys.
const SECRET_NAMES: &[&str] =
    &["secret", "password", "passwd", "credential", "token", "private_key", "apikey", "api_key", ".env"];
/// Extensions of key files.
const SECRET_EXTENSIONS: &[&str] = &["pem", "key", "p12", "pfx", "kdbx", "netrc"];

/// The option that chooses where source lines may come from.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct SourceArgs {
    /// Show source lines of Python files below DIR, also for traces of others (repeatable)
    ///
    /// Without it, source lines are those below the folder of the run and of Python's libraries,
    /// and only for traces that you recorded on this host.
    #[arg(long = "source", help_heading = DISPLAY, value_name = "DIR")]
    pub(crate) folders: Vec<PathBuf>,
    #[arg(skip)]
    pub(crate) scope: SourceScope,
    /// The files of the traces, where the report has other names for them.
    #[arg(skip)]
    pub(crate) trace_files: Vec<PathBuf>,
}

/// Which of the source lines that may be shown are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SourceScope {
    #[default]
    All,
    /// None of files with names that suggest passwords, tokens or keys.
    NotSecret,
    None,
}

/// Reads source lines. Each file is read once.
pub(crate) struct SourceReader {
    /// Folders of `--source`, resolved.
    asked: Vec<PathBuf>,
    /// Folders of the runs, resolved. Lines that the trace of another user or host names are
    /// withheld.
    folders: Result<Vec<PathBuf>, Withheld>,
    /// Folders that relative paths start at.
    bases: Vec<PathBuf>,
    /// Files that were changed after this are not shown: the run had other lines.
    ended: Option<SystemTime>,
    scope: SourceScope,
    files: HashMap<String, Option<PythonText>>,
    /// Why the first line was withheld that could have been shown.
    withheld: Option<Withheld>,
}

/// Why a source line is not shown although its file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    /// The trace names another host.
    OtherHost,
    /// Another user recorded the trace, or owns its file.
    OtherUser,
    /// The trace does not state its host and user.
    UnknownOrigin,
    /// The file is in no folder that may be shown.
    Outside,
    /// The folder of the run is a hidden one.
    Hidden,
    /// The user wants none (`--no-source`).
    Unwanted,
}

impl Withheld {
    /// One sentence without a full stop.
    pub(crate) fn describe(self) -> String {
        let why = match self {
            Self::OtherHost => "the trace was recorded on another host",
            Self::OtherUser => "the trace was recorded by another user",
            Self::UnknownOrigin => "the trace does not name the host and the user of the run",
            Self::Outside => "some files are hidden, or not below the folder of the run",
            Self::Hidden => "the folder of the run is below a hidden folder",
            Self::Unwanted => return "Source lines left out: --no-source".to_owned(),
        };
        format!("Source lines left out: {why}; --source DIR shows those below DIR")
    }
}

impl SourceReader {
    /// For a report on traces: their paths and origins. `ended` is the end of the first run.
    pub(crate) fn new<'a>(
        traces: impl IntoIterator<Item = (&'a str, &'a TraceOrigin)>,
        ended: Option<SystemTime>,
        args: &SourceArgs,
    ) -> Self {
        let resolve = |folders: &[PathBuf]| -> Vec<PathBuf> {
            folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect()
        };
        let asked = resolve(&args.folders);
        let (mut own, mut foreign) = (Vec::new(), None);
        for (index, (path, origin)) in traces.into_iter().enumerate() {
            let file = args.trace_files.get(index).map_or(Path::new(path), PathBuf::as_path);
            own.extend(origin.folders.iter().map(PathBuf::from));
            foreign = foreign.or_else(|| find_stranger(file, origin));
        }
        let mut bases = asked.clone();
        let folders = if let Some(why) = foreign {
            Err(why)
        } else {
            bases.splice(0..0, own.iter().cloned());
            Ok(resolve(&own).into_iter().filter(|folder| is_own_folder(folder)).collect())
        };
        let withheld = (args.scope == SourceScope::None).then_some(Withheld::Unwanted);
        Self { asked, folders, bases, ended, scope: args.scope, files: HashMap::new(), withheld }
    }

    /// The source line of a site without its indentation; `None` if it may not be shown, if the
    /// file cannot be read or was changed after the run, or if the line is empty.
    pub(crate) fn line_of(&mut self, site: &Site) -> Option<String> {
        let (_, text) = self.text_of(site)?;
        let shown: String = escape_text(text).chars().take(MAX_LINE_CHARS).collect();
        (!shown.is_empty()).then_some(shown)
    }

    /// Identifies the line of a site within its function by its text, so that it is found again
    /// after edits above it; `None` like [`line_of`](Self::line_of). It does not reveal the text.
    pub(crate) fn line_id(&mut self, site: &Site) -> Option<String> {
        let (file, text) = self.text_of(site)?;
        let (line, function) = (site.line?, site.function.as_ref()?);
        let equal_before = file.equal_lines_before(line, function);
        (!text.is_empty()).then(|| stable_id(&[text.as_bytes(), &equal_before.to_le_bytes()]))
    }

    /// The file of a site, and the text of its line.
    fn text_of(&mut self, site: &Site) -> Option<(&PythonText, &str)> {
        let (file, line, function) = (site.file.as_ref()?, site.line?, site.function.as_ref()?);
        match self.scope {
            SourceScope::None => return None,
            SourceScope::NotSecret if looks_secret(file) => return None,
            SourceScope::NotSecret | SourceScope::All => {}
        }
        if !self.files.contains_key(file) {
            let text = self.read(file);
            self.files.insert(file.clone(), text);
        }
        let text = self.files.get(file)?.as_ref()?;
        Some((text, text.line_of_function(line, function)?.trim()))
    }

    /// Why lines of files that exist are missing.
    pub(crate) fn withheld(&self) -> Option<Withheld> {
        self.withheld
    }

    fn read(&mut self, file: &str) -> Option<PythonText> {
        let path = self.resolve(file)?;
        let facts = path.metadata().ok()?;
        if !facts.is_file() || facts.len() > MAX_FILE_BYTES {
            return None;
        }
        if let Err(why) = self.judge_folder(&path) {
            if !is_compiled_code(&path) {
                self.withheld.get_or_insert(why);
            }
            return None;
        }
        if self.ended.zip(facts.modified().ok()).is_some_and(|(ended, at)| at > ended) {
            return None;
        }
        let mut bytes = Vec::new();
        std::fs::File::open(&path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        let text = PythonText::parse(&bytes)?;
        let is_python = matches!(path.extension().and_then(OsStr::to_str), Some("py" | "pyw"));
        (is_python || text.names_interpreter()).then_some(text)
    }

    /// The file without links. A relative path starts at a folder of the run, or of `--source`.
    fn resolve(&self, file: &str) -> Option<PathBuf> {
        let path = Path::new(file);
        if path.is_absolute() {
            return path.canonicalize().ok();
        }
        self.bases.iter().find_map(|base| base.join(path).canonicalize().ok())
    }

    fn judge_folder(&self, path: &Path) -> Result<(), Withheld> {
        let is_below =
            |folder: &PathBuf| path.strip_prefix(folder).is_ok_and(|inside| !has_hidden_part(inside));
        if self.asked.iter().any(is_below) {
            return Ok(());
        }
        let folders = self.folders.as_ref().map_err(|why| *why)?;
        if folders.iter().any(is_below) || is_python_library(path) {
            return Ok(());
        }
        let is_hidden = |base: &PathBuf| has_hidden_part(base) && path.starts_with(base);
        Err(if self.bases.iter().any(is_hidden) { Withheld::Hidden } else { Withheld::Outside })
    }
}

/// Why the trace is not one of this user on this host.
fn find_stranger(trace: &Path, origin: &TraceOrigin) -> Option<Withheld> {
    let (Some(host), Some(user)) = (&origin.host, origin.user_id) else {
        return Some(Withheld::UnknownOrigin);
    };
    if rustix::system::uname().nodename().to_string_lossy() != host.as_str() {
        return Some(Withheld::OtherHost);
    }
    let reader = rustix::process::geteuid().as_raw();
    let is_own = |owner: u32| owner == reader;
    let owns_file = std::fs::metadata(trace).is_ok_and(|facts| is_own(owner_of(&facts)));
    (user != u64::from(reader) || !owns_file).then_some(Withheld::OtherUser)
}

fn owner_of(facts: &std::fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(facts)
}

/// False for folders that a trace may not open to reports: `/`, and those below hidden ones.
fn is_own_folder(folder: &Path) -> bool {
    folder.parent().is_some() && !has_hidden_part(folder)
}

fn has_hidden_part(path: &Path) -> bool {
    path.components()
        .any(|part| matches!(part, Component::Normal(name) if name.as_encoded_bytes().starts_with(b".")))
}

/// True for what `torch.compile` writes (`torchinductor_USER`): no source that a user misses.
fn is_compiled_code(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"torchinductor_"))
}

/// True for a file below `lib/python3.12` and the like, without a hidden folder in between. The
/// folder itself may be below a hidden one, such as `.venv`.
fn is_python_library(path: &Path) -> bool {
    let parts: Vec<&OsStr> = path.components().map(Component::as_os_str).collect();
    let is_library = |pair: &[&OsStr]| {
        let version = pair[1].to_str().and_then(|name| name.strip_prefix("python3"));
        (pair[0] == "lib" || pair[0] == "lib64")
            && version
                .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 't')))
    };
    let library = parts.windows(2).position(is_library);
    library.is_some_and(|at| !has_hidden_part(&parts[at + 2..].iter().collect::<PathBuf>()))
}

/// True if the name of the file suggests that it contains passwords, tokens or keys.
fn looks_secret(file: &str) -> bool {
    let path = Path::new(file_name(file));
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let extension = path.extension().map(|one| one.to_string_lossy().to_lowercase()).unwrap_or_default();
    SECRET_NAMES.iter().any(|part| name.contains(part)) || SECRET_EXTENSIONS.contains(&extension.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_folders_are_known_by_name() {
        for path in
            ["/home/me/.venv/lib/python3.12/site-packages/a.py", "/usr/lib/python3/dist-packages/six.py"]
        {
            assert!(is_python_library(Path::new(path)), "{path}");
        }
        for path in ["/lib/pythonic/a.py", "/v/lib/python3.12/.a/b.py", "/home/me/python3.12/a.py"] {
            assert!(!is_python_library(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn root_and_hidden_folders_are_not_opened() {
        assert!(is_own_folder(Path::new("/work")));
        assert!(!is_own_folder(Path::new("/")) && !is_own_folder(Path::new("/home/me/.ssh")));
    }

    #[test]
    fn names_of_secret_files() {
        for secret in
            ["/work/secrets.py", "api_key.py", ".env", r"C:\a\secret.pem", "/a/My_Credentials.py", "id.pem"]
        {
            assert!(looks_secret(secret), "{secret}");
        }
        for other in ["/work/secrets/train.py", "train.py", "keyboard.py", "environment.py"] {
            assert!(!looks_secret(other), "{other}");
        }
    }
}
