//! The injection check on Mach-O programs that zig linked and rcodesign signed
//! (`scripts/generate/macho-samples`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use gpumemtrace_cli::launch::injectable::{
    Advice, BlockReason, CodeSignature, CpuArchitecture, Entitlements, ExecutableKind, FileSystem,
    HostFileSystem, InjectionBlocker, LaunchTarget, MachOSlice, parse_der, parse_plist, read_slices,
};
use proptest::prelude::*;

const CS_RESTRICT: u32 = 0x800;

fn sample(name: &str) -> Vec<u8> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/macho").join(format!("{name}.zlib"));
    let packed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap()
}

/// A made-up file system of a Mac.
#[derive(Default)]
struct Mac {
    files: HashMap<PathBuf, (u32, Vec<u8>)>,
    links: HashMap<PathBuf, PathBuf>,
}

impl Mac {
    fn with(files: &[(&str, &[u8])]) -> Self {
        let file = |(path, bytes): &(&str, &[u8])| (PathBuf::from(path), (0o755, bytes.to_vec()));
        Self { files: files.iter().map(file).collect(), ..Self::default() }
    }

    fn link(mut self, from: &str, to: &str) -> Self {
        self.links.insert(from.into(), to.into());
        self
    }

    fn start(&self, name: &str) -> Option<InjectionBlocker> {
        let search = OsStr::new("/opt/homebrew/bin:/usr/bin:/bin");
        LaunchTarget { name: OsStr::new(name), here: Path::new("/Users/me"), search }.find_blocker(self)
    }

    fn message(&self, name: &str) -> String {
        self.start(name).expect("a blocker").to_string()
    }
}

impl FileSystem for Mac {
    fn behind_links(&self, path: &Path) -> Option<PathBuf> {
        let path = self.links.get(path).cloned().unwrap_or_else(|| path.components().collect());
        self.files.contains_key(&path).then_some(path)
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        Some(self.files.get(&self.behind_links(path)?)?.0)
    }

    fn program(&self, path: &Path) -> Option<ExecutableKind> {
        ExecutableKind::read(&self.files.get(&self.behind_links(path)?)?.1[..])
    }
}

#[test]
fn blockers_follow_from_signatures() {
    let of = |name: &str| {
        let reason = Mac::with(&[("/opt/tool", &sample(name))]).start("/opt/tool").map(|found| found.reason);
        (name.to_owned(), reason)
    };
    let expected = [
        ("plain", None),
        ("for-macos-14", None),
        ("entitled-only", None),
        ("hardened-both", None),
        ("hardened", Some(BlockReason::Hardened)),
        ("hardened-libraries", Some(BlockReason::Hardened)),
        ("hardened-denied", Some(BlockReason::Hardened)),
        ("hardened-nested", Some(BlockReason::Hardened)),
        ("hardened-variables", Some(BlockReason::Validates)),
        ("validates", Some(BlockReason::Validates)),
        ("restrict-segment", Some(BlockReason::Restricted)),
        ("x86_64", Some(BlockReason::Architecture(CpuArchitecture::X86_64))),
        ("arm64e", Some(BlockReason::Architecture(CpuArchitecture::Arm64e))),
        ("universal", Some(BlockReason::Hardened)),
        ("universal-arm64e", Some(BlockReason::Architecture(CpuArchitecture::Arm64e))),
    ];
    for (name, reason) in expected {
        assert_eq!(of(name), (name.to_owned(), reason));
    }
    let kept = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/macho")).unwrap();
    let kept =
        kept.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|kind| kind == "zlib"));
    assert_eq!(kept.count(), expected.len(), "a sample is not in the list");
}

#[test]
fn every_slice_of_a_universal_file_is_read() {
    let of = |name: &str| -> Vec<CpuArchitecture> {
        read_slices(&sample(name)[..]).unwrap().iter().map(|slice| slice.processor).collect()
    };
    assert_eq!(of("universal"), [CpuArchitecture::X86_64, CpuArchitecture::Arm64]);
    assert_eq!(of("universal-arm64e"), [CpuArchitecture::X86_64, CpuArchitecture::Arm64e]);
    let plain = read_slices(&sample("plain")[..]).unwrap().remove(0);
    let signature = plain.signature.expect("the linker signs programs");
    assert!(!signature.is_restricted() && !signature.ignores_variables() && !signature.validates_libraries());
    assert_eq!((signature.is_of_system, signature.entitlements), (false, Entitlements::default()));
    let intel = read_slices(&sample("x86_64")[..]).unwrap();
    let unsigned =
        MachOSlice { processor: CpuArchitecture::X86_64, has_restrict_segment: false, signature: None };
    assert_eq!(intel, [unsigned]);
}

/// The offset of the code directory of a program, found by its magic number.
fn code_directory(program: &[u8]) -> usize {
    program.windows(4).position(|word| word == [0xfa, 0xde, 0x0c, 0x02]).unwrap()
}

#[test]
fn flags_and_platform_are_read_at_the_offsets_of_cs_blobs() {
    // `cs_blobs.h`: magic, length, version, flags; the platform is at offset 38.
    let mut program = sample("plain");
    let at = code_directory(&program);
    let flags = u32::from_be_bytes(*program[at + 12..].first_chunk().unwrap());
    assert_eq!(flags, 0x2_0002, "CS_ADHOC and CS_LINKER_SIGNED");
    program[at + 12..at + 16].copy_from_slice(&(flags | CS_RESTRICT).to_be_bytes());
    let reason =
        |bytes: &[u8]| Mac::with(&[("/opt/tool", bytes)]).start("/opt/tool").map(|found| found.reason);
    assert_eq!(reason(&program), Some(BlockReason::Restricted));
    let mut program = sample("hardened-both");
    let at = code_directory(&program);
    program[at + 38] = 15;
    assert_eq!(reason(&program), Some(BlockReason::System), "in any folder");
    let mut mac = Mac::with(&[("/opt/tool", &sample("plain"))]);
    for mode in [0o4755, 0o2755] {
        mac.files.get_mut(Path::new("/opt/tool")).unwrap().0 = mode;
        assert_eq!(mac.start("/opt/tool").unwrap().reason, BlockReason::SetId);
    }
}

#[test]
fn system_folders_are_guarded_and_user_folders_are_not() {
    let plain = sample("plain");
    for (path, is_guarded) in [
        ("/bin/sh", true),
        ("/sbin/ping", true),
        ("/usr/bin/python3", true),
        ("/usr/sbin/x", true),
        ("/usr/libexec/x", true),
        ("/System/Library/x", true),
        ("/usr/local/bin/python3", false),
        ("/System/Volumes/Data/Users/me/python3", false),
        ("/opt/homebrew/bin/python3", false),
        ("/usrlocal/x", false),
        ("/Users/me/bin/x", false),
    ] {
        let found = Mac::with(&[(path, &plain)]).start(path).map(|found| found.reason);
        assert_eq!(found, is_guarded.then_some(BlockReason::System), "{path}");
    }
}

#[test]
fn every_program_on_the_way_is_checked() {
    let (plain, system) = (sample("plain"), sample("universal-arm64e"));
    let cellar = "/opt/homebrew/Cellar/python@3.12/bin/python3.12";
    let mac = Mac::with(&[
        (cellar, &plain),
        ("/usr/bin/python3", &system),
        ("/usr/bin/env", &system),
        ("/bin/sh", &system),
        ("/Users/me/direct", b"#!/opt/homebrew/bin/python3 -u\n"),
        ("/Users/me/tool.py", b"#!/usr/bin/env -S python3 -u\nimport torch\n"),
        ("/Users/me/a tool", b"#! /usr/bin/env VAR=1 python3\n"),
        ("/Users/me/gone", b"#!/usr/bin/env no-such-python\n"),
        (
            "/Users/me/My Project/torchrun",
            b"#!/bin/sh\n'''exec' \"/opt/homebrew/bin/python3\" \"$0\" \"$@\"\n' '''\n",
        ),
        ("/opt/homebrew/bin/by-name", b"#!/usr/bin/env python3\n"),
        ("/Users/me/nameless", b"python train.py\n"),
        ("/Users/me/of-a-script", b"#!/Users/me/tool.py\n"),
        ("/Users/me/cut", &plain[..20]),
    ])
    .link("/opt/homebrew/bin/python3", cellar)
    .link("/Users/me/venv/bin/python", cellar)
    .link("/Users/me/xcode/bin/python", "/usr/bin/python3");
    // PATH is searched first, then links are resolved.
    assert_eq!(mac.start("python3"), None);
    assert_eq!(mac.start("venv/bin/python"), None);
    assert_eq!(mac.start("./direct"), None);
    assert_eq!(mac.start("no-such-program"), None, "spawning it reports the error");
    assert_eq!(mac.start("./no-such-program"), None);
    assert_eq!(mac.start("./cut"), None, "a truncated file is not judged");

    let xcode = mac.start("xcode/bin/python").unwrap();
    assert_eq!((xcode.program.to_str(), &xcode.advice), (Some("/usr/bin/python3"), &Advice::OtherPython));
    let tool = mac.start("./tool.py").unwrap();
    assert_eq!((tool.program.to_str(), tool.reason), (Some("/usr/bin/env"), BlockReason::System));
    let use_python = "use: gpumemtrace run -- /opt/homebrew/bin/python3 ";
    assert!(mac.message("./tool.py").ends_with(&format!("{use_python}./tool.py")));
    assert!(mac.message("./a tool").ends_with(&format!("{use_python}'./a tool'")));
    assert!(mac.message("My Project/torchrun").ends_with(&format!("{use_python}'My Project/torchrun'")));
    assert!(mac.message("by-name").ends_with(&format!("{use_python}/opt/homebrew/bin/by-name")));
    let page = include_str!("../../docs/mps.md");
    assert!(
        page.contains(&format!("\ngpumemtrace: not recorded: {}\n", mac.message("./tool.py"))),
        "docs/mps.md shows another message"
    );
    // The program that env searches may be missing, or be Apple's again.
    assert_eq!(mac.start("./gone").unwrap().advice, Advice::Behind);
    assert_eq!(mac.start("./of-a-script").unwrap().program.to_str(), Some("/usr/bin/env"));
    let nameless = mac.start("./nameless").unwrap();
    assert_eq!((nameless.program.to_str(), &nameless.advice), (Some("/bin/sh"), &Advice::Behind));
    assert_eq!(mac.start("env").unwrap().advice, Advice::Behind);
    let only_apples = Mac::with(&[
        ("/usr/bin/env", &system),
        ("/usr/bin/python3", &system),
        ("/Users/me/tool.py", b"#!/usr/bin/env python3\n"),
    ]);
    assert_eq!(only_apples.start("./tool.py").unwrap().advice, Advice::Behind);
}

#[test]
fn framework_python_is_judged_by_the_program_it_reexecutes() {
    let versions = "/Library/Frameworks/Python.framework/Versions/3.12";
    let stub = format!("{versions}/bin/python3.12");
    let app = format!("{versions}/Resources/Python.app/Contents/MacOS/Python");
    let (plain, hardened) = (sample("plain"), sample("hardened"));
    assert_eq!(Mac::with(&[(&stub, &plain)]).start(&stub), None);
    assert_eq!(Mac::with(&[(&stub, &plain), (&app, &plain)]).start(&stub), None);
    let found = Mac::with(&[(&stub, &plain), (&app, &hardened)]).start(&stub).unwrap();
    assert_eq!((found.program.to_str(), found.reason), (Some(&app[..]), BlockReason::Hardened));
    let both = sample("hardened-both");
    assert_eq!(
        Mac::with(&[(&stub, &both), (&app, &both)]).start(&stub),
        None,
        "signed like the Python of python.org"
    );
}

#[test]
fn script_that_is_its_own_interpreter_terminates() {
    let mac = Mac::with(&[("/opt/loop", b"#!/opt/loop\n")]);
    assert_eq!(mac.start("/opt/loop"), None);
}

#[test]
fn messages_are_one_line_with_an_advice() {
    for (name, words) in [
        ("hardened", "allow-dyld-environment-variables"),
        ("hardened-variables", "disable-library-validation"),
        ("restrict-segment", "restricted"),
        ("x86_64", "is built for x86_64"),
        ("arm64e", "is built for arm64e"),
    ] {
        let message = Mac::with(&[("/opt/my tool", &sample(name))]).message("/opt/my tool");
        assert!(message.starts_with("/opt/my tool ") && message.contains(words), "{message}");
        assert!(!message.contains('\n') && message.contains("; "), "{message}");
        let sign = "sign a copy of it again: codesign --force --sign - '/opt/my tool'";
        assert!(message.ends_with(sign) || message.ends_with("use an arm64 build of it"), "{message}");
        let python = Mac::with(&[("/opt/python3", &sample(name))]).message("/opt/python3");
        assert!(python.ends_with("use an arm64 Python from Homebrew, conda, uv or python.org"), "{python}");
    }
}

#[test]
fn host_file_system_resolves_path_and_links() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap();
    fs::write(here.join("real"), sample("hardened")).unwrap();
    fs::set_permissions(here.join("real"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("real", here.join("tool")).unwrap();
    // A file on PATH without the executable bit is skipped.
    fs::create_dir(here.join("before")).unwrap();
    fs::write(here.join("before/tool"), sample("plain")).unwrap();
    fs::set_permissions(here.join("before/tool"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let search = std::env::join_paths([here.join("before"), here.clone()]).unwrap();
    let of = |name: &str| {
        LaunchTarget { name: OsStr::new(name), here: &here, search: &search }.find_blocker(&HostFileSystem)
    };
    for name in ["tool", "./tool"] {
        let found = of(name).unwrap();
        assert_eq!((found.program, found.reason), (here.join("real"), BlockReason::Hardened));
    }
    assert_eq!(of("none"), None);
    fs::create_dir(here.join("folder")).unwrap();
    assert_eq!(of("./folder"), None);
}

#[test]
fn only_the_outermost_dictionary_sets_entitlements() {
    let key = "com.apple.security.cs.allow-dyld-environment-variables";
    let given = Entitlements { allows_variables: true, ..Entitlements::default() };
    let none = Entitlements::default();
    for (text, expected) in [
        (format!("<plist version=\"1.0\"><dict><key>{key}</key><true/></dict></plist>"), given),
        (format!("<!DOCTYPE plist><plist><dict>\n<key> {key} </key>\n<true></true></dict></plist>"), given),
        (format!("<plist><dict><key>{key}</key><false/></dict></plist>"), none),
        (format!("<plist><dict><key>{key}</key><string>true</string><true/></dict></plist>"), none),
        (format!("<plist><dict><key>a</key><dict><key>{key}</key><true/></dict></dict></plist>"), none),
        (format!("<plist><dict><key>a</key><string>{key}</string><key>b</key><true/></dict></plist>"), none),
        (format!("<plist><dict><key>a</key><dict><key>{key}</key></dict><true/></dict></plist>"), none),
        (format!("<plist><dict><key>{key}"), none),
        (String::new(), none),
    ] {
        assert_eq!(parse_plist(text.as_bytes()), expected, "{text}");
    }
    assert_eq!(parse_plist(&[0xff; 40]), none);
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = (ExecutableKind::read(&bytes[..]), read_slices(&bytes[..]));
        let _ = (CodeSignature::read(&bytes), parse_plist(&bytes), parse_der(&bytes));
    }

    #[test]
    fn damaged_programs_do_not_panic(
        name in prop_oneof![Just("hardened-both"), Just("universal"), Just("restrict-segment")],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..20),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut program = sample(name);
        let signature = code_directory(&program) - 200;
        for (index, byte, in_signature) in changes {
            // Change headers or the signature: nothing else is read.
            let at = if in_signature { signature + index.index(program.len() - signature) } else { index.index(2048) };
            program[at] = byte;
        }
        if let Some(cut) = cut {
            program.truncate(cut.index(program.len()));
        }
        if let Some(ExecutableKind::MachO(slices)) = ExecutableKind::read(&program[..]) {
            prop_assert!(!slices.is_empty() && slices.len() <= 16);
        }
    }
}
