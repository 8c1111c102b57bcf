//! Metadata of a trace: facts about the process, the machine and the libraries.
//!
//! Most facts need files or the list of loaded modules, and some need the driver. The thread that
//! starts the session collects only what identifies the trace ([`header`]). The writer thread adds
//! the rest in a second block ([`late_metadata`]), and the driver's facts when they have arrived
//! ([`driver_facts`]). A fact that cannot be found out is left out, and readers show it as unknown.

use std::path::Path;
use std::sync::OnceLock;

use gpumemtrace_format::{Meta, ModuleDef};

use crate::config::{FullRingPolicy, NativeStacks, RecorderConfig, StackConfig};
use crate::platform::{self, clock};

mod secrets;

/// Most bytes of the command line that are recorded: a block of metadata must stay below 1 MiB.
const MAX_COMMAND_BYTES: usize = 64 << 10;

/// Callbacks into the hooks, for facts that the recorder cannot know.
///
/// The callbacks run on the writer thread, and must not wait for a lock that a program may hold.
/// Only [`add_metadata`](Self::add_metadata) and the two for samples may: they run on a thread of
/// their own.
#[derive(Clone, Copy, Debug)]
pub struct HookCallbacks {
    /// Adds driver version, device sizes and the like to the metadata.
    pub add_metadata: fn(&mut Meta),
    /// Adds how the calls are intercepted. Its result is a key that changes when the metadata does.
    pub add_hook_mode: fn(&mut Meta) -> u8,
    /// Names of the entry points, indexed by `ApiId`. The first name is unused.
    pub api_names: &'static [&'static str],
    /// Returns the number of driver calls that went past the hooks.
    pub uncovered_calls: fn() -> u64,
    /// Returns the names of the functions that those calls went to.
    pub uncovered_names: fn() -> Vec<String>,
    /// Prepares the sampling, once, before the first sample is due. False if there will be none.
    pub prepare_samples: fn() -> bool,
    /// Records values that are sampled, not intercepted. Runs about once a second after the first
    /// event, until it returns false.
    pub record_samples: fn() -> bool,
}

static CALLBACKS: OnceLock<HookCallbacks> = OnceLock::new();

/// Registers the callbacks of the hooks. Only the first registration counts.
pub fn register_callbacks(callbacks: HookCallbacks) {
    let _ = CALLBACKS.set(callbacks);
}

/// How the calls are intercepted; `None` if that has not changed since `last`.
pub(crate) fn mode_if_changed(last: &mut Option<u8>) -> Option<Meta> {
    let mut meta = Meta::default();
    let now = (CALLBACKS.get()?.add_hook_mode)(&mut meta);
    (last.replace(now) != Some(now)).then_some(meta)
}

/// Number of driver calls that went past the hooks so far.
pub(crate) fn uncovered_calls() -> u64 {
    CALLBACKS.get().map_or(0, |callbacks| (callbacks.uncovered_calls)())
}

/// A metadata block with the names of the functions that those calls went to.
pub(crate) fn uncovered_names() -> Meta {
    let mut meta = Meta::default();
    meta.set_list(
        "uncovered",
        CALLBACKS.get().map_or_else(Vec::new, |callbacks| (callbacks.uncovered_names)()),
    );
    meta
}

/// Prepares the sampling. False if there will be no samples.
pub(crate) fn prepare_samples() -> bool {
    CALLBACKS.get().is_some_and(|callbacks| (callbacks.prepare_samples)())
}

/// Records values that are sampled, not intercepted. False if there will never be any.
pub(crate) fn record_samples() -> bool {
    CALLBACKS.get().is_some_and(|callbacks| (callbacks.record_samples)())
}

/// The host name; empty if it is unknown.
pub(crate) fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the length is that of the buffer.
    let result = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) };
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    if result == 0 { String::from_utf8_lossy(&name[..len]).into_owned() } else { String::new() }
}

/// The working directory, and the one that the shell started the program in if it differs.
fn working_folders() -> Vec<String> {
    let here = std::env::current_dir().ok().and_then(|folder| folder.into_os_string().into_string().ok());
    let start =
        std::env::var("PWD").ok().filter(|folder| folder.starts_with('/') && Some(folder) != here.as_ref());
    here.into_iter().chain(start).collect()
}

/// The first metadata block, written before any event.
pub(crate) fn header(
    config: &RecorderConfig,
    pid: u32,
    host: &str,
    trace_id: [u8; 16],
    note: Option<String>,
) -> Meta {
    let mut meta = Meta::default();
    meta.set_text("trace_id", format!("{:032x}", u128::from_be_bytes(trace_id)));
    meta.set_text("tool", concat!("gpumemtrace ", env!("CARGO_PKG_VERSION")));
    meta.set_number("pid", u64::from(pid));
    if !host.is_empty() {
        meta.set_text("host", host);
    }
    // A reader shows source lines only of the same user, and from these folders.
    // SAFETY: always succeeds.
    meta.set_number("user_id", u64::from(unsafe { libc::geteuid() }));
    meta.set_list("folders", working_folders());
    let place = &config.place;
    let ranks = [("rank", place.rank), ("local_rank", place.local_rank), ("world_size", place.world_size)];
    for (key, number) in ranks.into_iter().filter_map(|(key, number)| Some((key, number?))) {
        meta.set_number(key, number);
    }
    if config.records_command_line {
        meta.set_list("command", recorded_command(platform::command_line()));
    } else {
        meta.set_text("command_line", "not recorded");
    }
    meta.set_number("started_unix_ns", clock::unix_ns());
    meta.set_number("started_ns", clock::now_ns());
    if let Some(commit) = std::env::var("GPUMEMTRACE_GIT_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        meta.set_text("git_commit", commit);
    }
    if !config.labels.is_empty() {
        meta.set_list("labels", config.labels.iter().map(|(key, value)| format!("{key}={value}")).collect());
    }
    if std::env::var_os("GPUMEMTRACE_HOLDERS").is_some() {
        meta.set_number("holders", 1);
    }
    let stacks = match config.stacks {
        StackConfig { python: true, native: NativeStacks::All } => "both",
        StackConfig { python: true, .. } => "python",
        StackConfig { python: false, native: NativeStacks::None } => "none",
        StackConfig { python: false, .. } => "native",
    };
    meta.set_text("stacks", stacks);
    meta.set_text("on_full", if config.on_full == FullRingPolicy::Block { "block" } else { "drop" });
    // The release of PyTorch, which decides between them, may still be unknown.
    for (key, variable) in
        [("allocator_conf", "PYTORCH_CUDA_ALLOC_CONF"), ("allocator_conf_generic", "PYTORCH_ALLOC_CONF")]
    {
        if let Ok(value) = std::env::var(variable) {
            meta.set_text(key, value);
        }
    }
    if let Some(callbacks) = CALLBACKS.get() {
        meta.set_list("apis", callbacks.api_names.iter().map(|name| (*name).to_owned()).collect());
    }
    if let Some(note) = note {
        meta.set_list("notes", vec![note]);
    }
    meta
}

/// The command line as it is recorded: without secrets, and cut after [`MAX_COMMAND_BYTES`].
fn recorded_command(mut command: Vec<String>) -> Vec<String> {
    // A title that the program has set, as workers of Ray do, is padded with NULs.
    if command.first().is_some_and(|title| !title.is_empty()) && command[1..].iter().all(String::is_empty) {
        command.truncate(1);
    }
    let mut bytes = 0;
    let is_kept = |argument: &&String| {
        let fits = bytes < MAX_COMMAND_BYTES;
        bytes += argument.len() + 1;
        fits
    };
    let kept = command.iter().take_while(is_kept).count();
    let omitted = command.len() - kept;
    command.truncate(kept);
    // One argument may be larger than the limit. The first cut limits the work; the second one
    // must not cut a secret in two, so it comes after masking.
    for argument in &mut command {
        argument.truncate(argument.floor_char_boundary(2 * MAX_COMMAND_BYTES));
    }
    let mut command = secrets::mask_secrets(&command);
    for argument in command.iter_mut().filter(|argument| argument.len() > MAX_COMMAND_BYTES) {
        argument.truncate(argument.floor_char_boundary(MAX_COMMAND_BYTES));
        argument.push_str("...");
    }
    if omitted > 0 {
        command.push(format!("... ({omitted} more arguments)"));
    }
    command
}

/// The second metadata block, collected by the writer thread.
pub(crate) fn late_metadata(python_version: Option<String>) -> Meta {
    let mut meta = Meta::default();
    if let Some(version) = python_version {
        meta.set_text("python", version);
    }
    let modules = platform::loaded_modules();
    if let Some((version, cuda)) = torch_version(&modules) {
        meta.set_text("torch", version);
        if let Some(cuda) = cuda {
            meta.set_text("torch_cuda", cuda);
        }
    }
    let mut runtimes: Vec<&str> =
        modules.iter().filter_map(|module| file_name(module).strip_prefix("libcudart.so.")).collect();
    // One version may be loaded from two files.
    runtimes.sort_unstable();
    runtimes.dedup();
    if !runtimes.is_empty() {
        meta.set_text("cuda_runtime", runtimes.join(", "));
    }
    meta
}

/// What the driver and the devices say about themselves. For the thread that may be stuck.
pub(crate) fn driver_facts() -> Meta {
    let mut meta = Meta::default();
    if let Some(callbacks) = CALLBACKS.get() {
        (callbacks.add_metadata)(&mut meta);
    }
    meta
}

/// The interpreter's version as `major.minor.patch`, from its `Py_Version` symbol.
pub(crate) fn python_version() -> Option<String> {
    let at = platform::find_symbol(c"Py_Version")?;
    // SAFETY: `Py_Version` is an unsigned long constant of the interpreter.
    let hex = unsafe { *(at as *const libc::c_ulong) };
    Some(format!("{}.{}.{}", hex >> 24 & 0xff, hex >> 16 & 0xff, hex >> 8 & 0xff))
}

fn file_name(module: &ModuleDef) -> &str {
    module.path.rsplit('/').next().unwrap_or_default()
}

/// Reads PyTorch's version file: `torch/version.py`, next to `torch/lib/libc10.so`.
fn torch_version(modules: &[ModuleDef]) -> Option<(String, Option<String>)> {
    let library = modules.iter().find(|module| file_name(module) == platform::LIBC10)?;
    read_torch_version(Path::new(&library.path))
}

/// Reads PyTorch's version and CUDA version from the installation that contains `library` in its
/// `lib` folder.
pub fn read_torch_version(library: &Path) -> Option<(String, Option<String>)> {
    let package = library.parent()?.parent()?;
    let text = std::fs::read_to_string(package.join("version.py")).ok()?;
    Some((assigned_string(&text, "__version__")?, assigned_string(&text, "cuda")))
}

/// The string that a line assigns to `name`: `name = '1.2'` or `name: Optional[str] = '1.2'`.
fn assigned_string(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (annotation, value) = rest.split_once('=')?;
        if !(annotation.trim().is_empty() || annotation.starts_with(':')) {
            return None;
        }
        let value = value.trim().trim_matches(['\'', '"']);
        (!value.is_empty() && value != "None").then(|| value.to_owned())
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn torch_version_file_is_read_in_old_and_new_form() {
        let new = "from typing import Optional\n__all__ = ['__version__']\n__version__ = '2.15.0+cu132'\ndebug = False\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n";
        assert_eq!(assigned_string(new, "__version__").as_deref(), Some("2.15.0+cu132"));
        assert_eq!(assigned_string(new, "cuda").as_deref(), Some("13.2"));
        assert_eq!(assigned_string(new, "hip"), None);
        assert_eq!(assigned_string("cuda = '12.1'\n", "cuda").as_deref(), Some("12.1"));
    }

    #[test]
    fn long_command_line_is_cut_and_still_decodes() {
        let long = |count: usize| "é".repeat(count);
        for command in [
            vec!["python".to_owned(), long(1 << 20), "last".to_owned()],
            (0..200_000).map(|number| format!("file-{number}")).collect(),
            vec![String::new(); 2 << 20],
        ] {
            let omitted = command.len();
            let recorded = recorded_command(command);
            let mut meta = Meta::default();
            meta.set_list("command", recorded.clone());
            assert_eq!(Meta::decode(&meta.encode()).unwrap().list("command"), recorded);
            let omitted = omitted - (recorded.len() - 1);
            assert_eq!(recorded.last().unwrap(), &format!("... ({omitted} more arguments)"));
        }
        let short = ["python", "train.py", ""].map(str::to_owned).to_vec();
        assert_eq!(recorded_command(short.clone()), short);
    }

    #[test]
    fn title_of_a_process_loses_its_padding() {
        let mut padded = vec![String::new(); 4096];
        padded[0] = "ray::Worker.train".to_owned();
        assert_eq!(recorded_command(padded), ["ray::Worker.train"]);
    }

    #[test]
    fn own_command_line_and_host_are_found() {
        assert!(!platform::command_line().is_empty());
        assert!(!host_name().is_empty());
    }
}
