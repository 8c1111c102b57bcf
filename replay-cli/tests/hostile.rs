//! Hostile text never controls a terminal. Every command and output format reads a trace in which
//! all texts hold escape sequences, direction marks and line breaks. So do file names and
//! arguments.
//!
//! The list of commands comes from the command itself: a new one fails here until it has a row.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use gpumemtrace_format::block::{BlockKind, encode_block};
use gpumemtrace_format::definitions::encode_names;
use gpumemtrace_format::{
    AddressNames, Counters, End, EndReason, EventKind, MetaValue, ModuleNames, NamedFrame, NodeId,
};
use gpumemtrace_synthetic::Synthetic;

/// A window title, colours, C1 controls, direction marks, separators, characters without a glyph,
/// noncharacters, our own marks for bold text, a forged line, and markup.
const EVIL: &str = "\u{1b}]0;title\u{7}\u{1b}[31m\u{1b}[1m\u{9b}2J\u{9d}\u{8}\u{7f}\r\t\nforged: line\u{202a}\u{202e}\u{2066}\
    \u{2069}\u{200e}\u{200f}\u{61c}\u{2028}\u{2029}\u{200b}\u{2060}\u{feff}\u{e0001}\u{fffe}\u{ffff}M\u{fdd0}N\u{fdd1}O\u{fdd4}P\
    <script>alert(1)</script>]]>&|`\"'";

/// The colours of `terminal/layout.rs`, and those that clap adds to usage errors.
const COLORS: [&str; 8] = [
    "\u{1b}[1m",
    "\u{1b}[1;33m",
    "\u{1b}[2m",
    "\u{1b}[0m",
    "\u{1b}[4m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
];

fn evil(what: &str) -> String {
    format!("{what}{EVIL}")
}

/// [`EVIL`] as part of a file name.
fn evil_name(what: &str) -> String {
    evil(what).replace('/', "")
}

/// True for what must never be printed. Written down once more, independently of the command.
fn is_harmful(c: char) -> bool {
    let is_ignorable = matches!(
        u32::from(c),
        0xad | 0x61c | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfe00..=0xfe0f | 0xfeff | 0xfff9..=0xfffb
            | 0xe0000..=0xe0fff | 0xfdd0..=0xfdef | 0xfffe..=0xffff
    );
    c != '\n' && (c.is_control() || is_ignorable)
}

/// What is wrong with an output; `None` if nothing is.
fn find_harm(bytes: &[u8], has_colors: bool) -> Option<String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Some("no UTF-8".to_owned()) };
    let mut text = text.to_owned();
    let around = |text: &str, at: usize| {
        let begin = text[..at].char_indices().rev().nth(300).map_or(0, |(at, _)| at);
        format!("after {:?}", &text[begin..at])
    };
    if let Some(at) = text.find("M\u{1b}[") {
        return Some(format!("a name sets the style {}", around(&text, at)));
    }
    if has_colors {
        for color in COLORS {
            text = text.replace(color, "");
        }
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| is_harmful(*c)) {
        return Some(format!("prints {c:?} {}", around(&text, at)));
    }
    if let Some(at) = text.find("MN") {
        return Some(format!("a name loses a mark {}", around(&text, at)));
    }
    let is_forged = text.lines().any(|line| line.trim_start().starts_with("forged:"));
    is_forged.then(|| format!("a name forges a line: {text}"))
}

/// A run of two devices that leaks, fails to allocate, and has a name of every kind.
fn hostile_run() -> Synthetic {
    let mut run = Synthetic::train(12, |run, step, train| {
        let hook = run.frame(train, &format!("/work/{}.py", evil("hooks")), &evil("Keeper.hook"), 7);
        run.alloc(hook, 4 << 20);
        let name = |run: &mut Synthetic, what: &str| {
            run.frame(NodeId::NONE, "", &evil(what), 1);
            u64::from(run.codes.iter().find(|code| code.name == evil(what)).expect("just added").id.0)
        };
        let (mark, phase, range) = (name(run, "mark"), name(run, "phase"), name(run, "range"));
        run.event(EventKind::MARK, 0, 0, [2, mark], hook);
        run.event(EventKind::PHASE_BEGIN, 0, 0, [phase, 0], hook);
        run.event(EventKind::RANGE_BEGIN, 0, 0, [range, 0], hook);
        run.event(EventKind::RANGE_END, 0, 0, [0, 0], hook);
        run.event(EventKind::PHASE_END, 0, 0, [0, 0], hook);
        if step == 11 {
            run.oom(hook, 1 << 40);
            let last = run
                .events
                .iter()
                .rfind(|event| event.kind == EventKind::BLOCK_ALLOC)
                .map_or(0, |event| event.addr);
            let summary =
                serde_json::json!({ "when": "exit", "leaks": 1, "failed": evil("failed") }).to_string();
            let holder = serde_json::json!({
                "name": evil("holder"), "type": evil("type"), "items": 5, "chain": [evil("chain")],
            });
            let mut texts = Vec::new();
            for text in [summary, holder.to_string()] {
                run.frame(NodeId::NONE, "", &text, 1);
                texts.push(u64::from(
                    run.codes.iter().find(|code| code.name == text).expect("just added").id.0,
                ));
            }
            run.event(EventKind::HOLDERS, 0, 0, [texts[0], 0], NodeId::NONE);
            run.event(EventKind::HOLDER, last, 4 << 20, [texts[1], 1], NodeId::NONE);
        }
    });
    run.call_driver_from(&format!("/lib/{}", evil("module.so")));
    let hook = NodeId(run.nodes.len() as u32);
    run.alloc(hook, 64 << 20);
    let meta = &mut run.meta;
    for key in [
        "host",
        "torch",
        "torch_cuda",
        "python",
        "cuda_driver",
        "allocator_conf",
        "allocator_conf_generic",
        "git_commit",
        "stacks",
        "on_full",
        "tool",
        "wait_status",
        "pluggable",
        "rings",
        "attached",
        "device.0.name",
    ] {
        meta.set_text(key, evil(key));
    }
    for key in ["command", "notes", "uncovered", "apis", "mode"] {
        meta.set_list(key, vec![evil(key), evil(&format!("{key} again"))]);
    }
    meta.set(&evil("key"), MetaValue::Text(evil("value")));
    meta.set(&evil("device.1."), MetaValue::List(vec![evil("item")]));
    run
}

/// The trace as a file, with hostile counters and names of native functions.
fn hostile_trace(run: &Synthetic) -> Vec<u8> {
    let frame = |what: &str| NamedFrame {
        function: evil(what).into(),
        file: evil("/src/native.cpp").into(),
        line: 3,
    };
    let names = ModuleNames {
        build_id: vec![7; 20],
        addresses: vec![AddressNames { address: 0xf, frames: vec![frame("native_function")] }],
    };
    let mut file = run.file_without_end(100);
    file.extend(encode_block(BlockKind::NAMES, &encode_names(&[names]), 3));
    let mut counters = Counters::default();
    counters.other.push((evil("counter"), 7));
    let (reason, message) = (EndReason::Stopped, evil("message"));
    let end = End { reason, events: run.events.len() as u64, time_ns: run.time_ns, message, counters };
    file.extend(encode_block(BlockKind::END, &end.encode(), 3));
    file
}

struct HostileFolder {
    root: tempfile::TempDir,
}

impl HostileFolder {
    fn new() -> Self {
        let this = Self { root: tempfile::tempdir().unwrap() };
        std::fs::create_dir(this.folder()).unwrap();
        let run = hostile_run();
        std::fs::write(this.path("run.trace"), hostile_trace(&run)).unwrap();
        let mut fewer = hostile_run();
        fewer.events.truncate(fewer.events.len() / 2);
        std::fs::write(this.path("other.trace"), hostile_trace(&fewer)).unwrap();
        // The last of three parts, with an unreadable part and damage.
        let mut part = hostile_run();
        part.meta.set_number("part", 3);
        let id = part.meta.text("trace_id").unwrap()[..8].to_owned();
        let mut bytes = hostile_trace(&part);
        bytes.extend(EVIL.bytes());
        std::fs::write(this.path("part.trace"), bytes).unwrap();
        std::fs::write(this.folder().join(format!("{}.{id}.part2.trace", evil_name("run"))), EVIL).unwrap();
        std::fs::write(this.path("notes"), EVIL).unwrap();
        // More ranks than one report takes, and the same once more with half of the events.
        for (folder, mut run) in [("many", hostile_run()), ("again", fewer)] {
            std::fs::create_dir(this.folder().join(folder)).unwrap();
            for rank in 0..17 {
                run.meta.set_number("rank", rank);
                let name = evil_name(&format!("rank{rank}")) + ".trace";
                std::fs::write(this.folder().join(folder).join(name), hostile_trace(&run)).unwrap();
            }
        }
        for folder in ["many", "again"] {
            let run = this.folder().join("archive/_summaries").join(format!("run={}", evil_name(folder)));
            std::fs::create_dir_all(&run).unwrap();
            let mut ranks = command(false, None, &this.folder());
            ranks.arg("ranks").arg(this.folder().join(folder));
            ranks.arg("-o").arg(run.join("rank=0.summary")).output().unwrap();
        }
        std::fs::write(this.path("budget"), "[peak]\nlive = \"1B\"\nreserved = \"1TiB\"\ndevice = \"1B\"\n")
            .unwrap();
        std::fs::write(this.path("wrong"), format!("[peak]\n\"{}\" = 1\n", EVIL.replace(['"', '\n'], "")))
            .unwrap();
        this
    }

    fn folder(&self) -> std::path::PathBuf {
        self.root.path().join(evil_name("folder"))
    }

    fn path(&self, name: &str) -> String {
        self.folder().join(evil_name(name)).display().to_string()
    }
}

fn command(color: bool, columns: Option<&str>, cache: &Path) -> Command {
    let mut command = Command::cargo_bin("gpumemtrace").expect("our own binary");
    for name in ["NO_COLOR", "TERM", "LD_PRELOAD", "COLUMNS", "CI", "FORCE_COLOR"] {
        command.env_remove(name);
    }
    command.env("LC_ALL", "C.UTF-8").env("GPUMEMTRACE_CACHE", cache).timeout(Duration::from_mins(2));
    columns.map(|columns| command.env("COLUMNS", columns));
    if color {
        command.env("FORCE_COLOR", "1").env("CLICOLOR_FORCE", "1");
    }
    command
}

/// The words that stand for files and hostile text in [`ROWS`].
fn fill(words: &str, files: &HostileFolder) -> Vec<String> {
    let word = |word: &str| match word {
        "EVIL" => evil("argument"),
        "--EVIL" => evil("--option"),
        "NOFILE" => files.path("nothing"),
        word if word.starts_with("FOLDER") => {
            let rest = word.trim_start_matches("FOLDER").replace("EVIL", &evil_name("x"));
            format!("{}{rest}", files.folder().display())
        }
        word => match word.strip_prefix('@') {
            Some(name) => files.path(name),
            None => word.to_owned(),
        },
    };
    words.split_whitespace().map(word).collect()
}

/// What to call each command with. `@name` is a file with a hostile name.
const ROWS: &[(&str, &[&str])] = &[
    (
        "replay",
        &[
            "@run.trace",
            "@run.trace -v",
            "@run.trace --leaks --peak --timeline --fragmentation --oom -v",
            "@run.trace --peak --blocks --stacks",
            "@run.trace --json",
            "@run.trace @other.trace",
            "@part.trace",
            "@part.trace --json",
            "@run.trace --follow",
            "@run.trace --site EVIL",
            "@run.trace --at EVIL",
            "@run.trace --since EVIL",
            "@run.trace --rank 3",
            "@run.trace --user-code EVIL",
            "@run.trace --units EVIL",
            "@run.trace --at mark:EVIL",
            "@notes",
            "NOFILE",
            "EVIL",
            "@run.trace --at 3 --json",
            "@run.trace --json",
            "FOLDER",
            "FOLDER FOLDER/many --json",
            "FOLDER/many",
            "FOLDER/many --leaks",
            "FOLDER/EVIL*",
        ],
    ),
    (
        "compare",
        &[
            "FOLDER/many FOLDER/again",
            "FOLDER/many FOLDER/again --json",
            "FOLDER FOLDER/many",
            "FOLDER/none* FOLDER",
            "@run.trace @other.trace",
            "@run.trace @other.trace --top 1000",
            "@run.trace @other.trace --json",
            "@part.trace @run.trace",
            "@run.trace @other.trace --json",
            "@run.trace NOFILE",
        ],
    ),
    (
        "check",
        &[
            "@run.trace --budget @budget",
            "@run.trace --budget @budget --json",
            "@run.trace --budget @budget --markdown -",
            "@run.trace --budget @budget --junit -",
            "@run.trace --budget @wrong",
            "@run.trace --budget NOFILE",
            "@part.trace --budget @budget",
            "@run.trace --budget @written --write --force",
            "@run.trace --budget @written --write",
            "@run.trace --budget @written",
            "FOLDER --budget @budget",
            "FOLDER --budget @budget --json",
            "FOLDER --budget @budget --markdown -",
            "FOLDER --budget @budget --junit -",
            "FOLDER/many/* --budget @all --write --force",
        ],
    ),
    (
        "html",
        &[
            "@run.trace -o @page.html",
            "@part.trace @run.trace -o @page.html",
            "@run.trace -o EVIL/x",
            "FOLDER/many -o @page.html",
            "NOFILE",
        ],
    ),
    (
        "info",
        &["@run.trace", "@run.trace --verify -v", "@part.trace", "@part.trace --verify", "@notes", "NOFILE"],
    ),
    ("dump", &["@run.trace", "@run.trace --stacks --totals", "@part.trace --stacks", "NOFILE"]),
    // `FORMAT` is each format in turn.
    (
        "export",
        &[
            "FORMAT @run.trace -o @exported",
            "FORMAT @run.trace @other.trace -o @exported",
            "FORMAT @part.trace -o @exported --around peak",
            "FORMAT @run.trace -o EVIL/x",
            "FORMAT @run.trace -o @exported --run-name EVIL",
            "FORMAT @run.trace --since mark:EVIL",
            "FORMAT @run.trace --around EVIL",
            "FORMAT NOFILE",
            "EVIL @run.trace",
        ],
    ),
    (
        "symbolize",
        &[
            "@run.trace -o @copy.trace --force",
            "@run.trace -o @copy.trace",
            "@part.trace -o @copy.trace --force",
            "NOFILE",
        ],
    ),
    ("simulate", &["-- EVIL", "--card EVIL -- true", "-- ./EVIL"]),
    ("run", &["-- EVIL", "-o @out.trace -- true", "-o EVIL/a/b.trace -- true", "--stacks EVIL -- true"]),
    // With a trace, it would run until it is stopped; `metrics_have_escapes` does that.
    ("serve-metrics", &["NOFILE", "@wrong", "@run.trace --listen EVIL", "@run.trace --listen 0.0.0.0:0"]),
    ("doctor", &["EVIL", "--python EVIL", "--output EVIL/x"]),
    ("doctor-probe", &["EVIL"]),
    (
        "whatif",
        &[
            "@run.trace",
            "@run.trace --alloc-conf expandable_segments:True --torch 2.9 -v",
            "@run.trace --json",
            "@run.trace --alloc-conf EVIL",
            "@run.trace --card EVIL",
            "@run.trace --torch EVIL",
            "@run.trace --gpu EVIL",
            "@run.trace --json",
            "@part.trace",
            "NOFILE",
        ],
    ),
    (
        "ranks",
        &[
            "@run.trace @other.trace",
            "@run.trace @part.trace EVIL",
            "@run.trace --json",
            "@run.trace -o EVIL",
            "@run.trace --jobs EVIL",
            "EVIL",
        ],
    ),
    (
        "history",
        &[
            "FOLDER/archive",
            "FOLDER/archive --top 1",
            "FOLDER/archive --html -o @archive.html",
            "FOLDER/archive --html -o EVIL/x",
            "FOLDER/archive --run EVIL",
            "FOLDER",
            "NOFILE",
        ],
    ),
    (
        "fit",
        &[
            "@run.trace",
            "@run.trace --alloc-conf expandable_segments:True --torch 2.9 -v",
            "@run.trace --json",
            "@run.trace --alloc-conf EVIL",
            "@run.trace --torch EVIL",
            "@run.trace --gpu EVIL",
            "@run.trace --json",
            "@part.trace",
            "NOFILE",
        ],
    ),
    ("leak-candidates", &["@run.trace", "@part.trace", "NOFILE"]),
    ("completions", &["bash", "fish", "zsh", "EVIL"]),
    ("schema", &["largest", "EVIL"]),
    ("man", &["", "replay", "EVIL"]),
    ("help", &["", "replay", "EVIL"]),
];

/// The formats of `export`, as completions for bash list them.
fn export_formats() -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let script = command(false, None, folder.path()).args(["completions", "bash"]).output().unwrap().stdout;
    let script = String::from_utf8(script).unwrap();
    let command = |line: &str| {
        line.trim().strip_prefix("gpumemtrace__subcmd__export,")?.strip_suffix(')').map(str::to_owned)
    };
    script.lines().filter_map(command).collect()
}

#[test]
fn every_command_has_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let script = command(false, None, folder.path()).args(["completions", "bash"]).output().unwrap().stdout;
    let script = String::from_utf8(script).unwrap();
    // The script names hidden commands too.
    let commands =
        script.lines().filter_map(|line| line.trim().strip_prefix("gpumemtrace,")?.strip_suffix(')'));
    let rows: BTreeSet<&str> = ROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(commands.collect::<BTreeSet<_>>(), rows);
}

/// Runs commands with all their rows. Returns what they print and must not print.
fn problems_of(files: &HostileFolder, is_chosen: impl Fn(&str) -> bool) -> Vec<String> {
    let cache = files.root.path().join("cache");
    let mut problems = Vec::new();
    let formats = export_formats();
    assert!(formats.len() > 3, "{formats:?}");
    for (name, rows) in ROWS.iter().filter(|(name, _)| is_chosen(name)) {
        let each_format = |words: &str| {
            let formats: Vec<&str> = formats.iter().map(String::as_str).collect();
            let formats = if words.contains("FORMAT") { formats } else { vec![""] };
            formats.into_iter().map(|format| words.replace("FORMAT", format)).collect::<Vec<_>>()
        };
        for words in &rows.iter().chain(&["--EVIL"]).flat_map(|words| each_format(words)).collect::<Vec<_>>()
        {
            for (color, columns) in [(false, None), (true, Some("60")), (true, None)] {
                let mut command = command(color, columns, &cache);
                let done: Output = command
                    .current_dir(files.root.path())
                    .arg(name)
                    .args(fill(words, files))
                    .output()
                    .unwrap();
                for (stream, bytes) in [("stdout", &done.stdout), ("stderr", &done.stderr)] {
                    let harm = find_harm(bytes, color);
                    problems.extend(harm.map(|harm| format!("{name} {words}: {stream} {harm}")));
                }
                if done.status.code() == Some(101) {
                    problems.push(format!("{name} {words}: panicked"));
                }
            }
        }
    }
    problems
}

#[test]
fn no_export_prints_what_steers_a_terminal() {
    assert_eq!(problems_of(&HostileFolder::new(), |name| name == "export"), Vec::<String>::new());
}

#[test]
fn no_other_command_prints_what_steers_a_terminal() {
    let files = HostileFolder::new();
    let mut problems = problems_of(&files, |name| name != "export");
    // The data are base64, a line each.
    let page = std::fs::read_to_string(files.path("page.html")).unwrap();
    let text: Vec<&str> = page.lines().filter(|line| !line.starts_with("<script type=")).collect();
    problems.extend(find_harm(text.join("\n").as_bytes(), false).map(|harm| format!("the page {harm}")));
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn json_keeps_hostile_names_exactly() {
    let files = HostileFolder::new();
    let mut command = command(false, None, files.root.path());
    let done = command.args(["replay", "--json", &files.path("run.trace")]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["traces"][0]["path"], files.path("run.trace"));
    assert_eq!(report["traces"][0]["command"][0], evil("command"));
    assert!(report.to_string().contains("Keeper.hook"));
}

/// Formats with readers that know escapes; in the others, names are raw bytes of a table.
#[test]
fn tables_and_json_of_export_have_escapes() {
    let files = HostileFolder::new();
    let run =
        |words: &str| command(false, None, files.root.path()).args(fill(words, &files)).output().unwrap();
    for format in ["csv-sites", "csv-timeline", "svg"] {
        run(&format!("export {format} @run.trace -o @exported"));
        // RFC 4180 ends lines with CR LF.
        let written = std::fs::read_to_string(files.path("exported")).unwrap().replace("\r\n", "\n");
        assert_eq!(find_harm(written.as_bytes(), false), None, "{format}");
    }
    let sites = run("export csv-sites @run.trace -o -").stdout;
    assert!(String::from_utf8(sites).unwrap().contains("Keeper.hook\\u{1b}]0;title\\u{7}"));
}

#[test]
fn text_shows_names_with_escapes() {
    let files = HostileFolder::new();
    let run = |words: &str| {
        let mut command = command(false, None, files.root.path());
        String::from_utf8(command.args(fill(words, &files)).output().unwrap().stdout).unwrap()
    };
    for (words, what) in [
        ("info @run.trace", "recorder counter counter\\u{1b}]0;title\\u{7}"),
        ("info --verify @run.trace", "recorder counter counter\\u{1b}]0;title\\u{7}"),
        ("info @run.trace", "key\\u{1b}]0;title\\u{7}"),
        ("dump @run.trace", "# meta \"key\\u{1b}]0;title\\u{7}"),
        ("dump --stacks @run.trace", "Keeper.hook\\u{1b}]0;title\\u{7}"),
        ("replay --leaks @run.trace", "Keeper.hook\\u{1b}]0;title\\u{7}"),
        ("check --junit - --budget @budget @run.trace", "\\u{202e}"),
        ("check --markdown - --budget @budget @run.trace", "\\u{202e}"),
    ] {
        assert!(run(words).contains(what), "{words}: {}", run(words));
    }
}

#[test]
fn metrics_have_escapes() {
    let files = HostileFolder::new();
    let mut server = std::process::Command::new(assert_cmd::cargo::cargo_bin("gpumemtrace"))
        .args([
            "serve-metrics",
            "--listen",
            "127.0.0.1:0",
            &files.path("run.trace"),
            &files.path("part.trace"),
        ])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect(&line);
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let body = text.split_once("\r\n\r\n").expect("a head and a body").1;
    assert_eq!(find_harm(body.as_bytes(), false), None, "{body}");
    assert!(body.contains("host=\"host\\\\u{1b}]0;title"), "{body}");
}
