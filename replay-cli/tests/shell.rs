//! Shell completions and manual pages, as shells and `man` read them.

use std::process::{Command, Output};

fn gpumemtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpumemtrace")).args(arguments).output().expect("gpumemtrace runs")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn bash_completes_commands_and_options() {
    let script = stdout(&gpumemtrace(&["completions", "bash"]));
    let complete = |words: &[&str]| {
        let last = words.len() - 1;
        let command = format!(
            "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n_gpumemtrace gpumemtrace '{}' '{}'\necho ${{COMPREPLY[@]}}",
            words.join(" "),
            words[last],
            words[last - 1],
        );
        stdout(&Command::new("bash").args(["-c", &command]).output().expect("bash runs")).trim().to_owned()
    };
    assert_eq!(complete(&["gpumemtrace", "rep"]), "replay");
    assert_eq!(complete(&["gpumemtrace", "replay", "--le"]), "--leaks");
    assert_eq!(complete(&["gpumemtrace", "export", "perf"]), "perfetto");
    assert_eq!(complete(&["gpumemtrace", "export", "folded", "--we"]), "--weight");
    assert_eq!(complete(&["gpumemtrace", "export", "parquet", "--run"]), "--run-name");
}

#[test]
fn completions_of_every_shell_list_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&gpumemtrace(&["completions", shell]));
        for command in ["replay", "compare", "check", "doctor"] {
            assert!(script.contains(command), "{command} is missing for {shell}");
        }
    }
    assert_eq!(gpumemtrace(&["completions", "none"]).status.code(), Some(2));
}

#[test]
fn manual_pages_have_names_and_list_options() {
    let first = stdout(&gpumemtrace(&["man"]));
    assert!(first.contains(".TH gpumemtrace 1"), "{first}");
    assert!(first.contains("gpumemtrace\\-replay(1)") && first.contains("Exit codes"), "{first}");
    assert!(!first.contains("probe") && !first.contains("candidates"), "hidden commands are listed");
    let replay = stdout(&gpumemtrace(&["man", "replay"]));
    assert!(replay.contains(".TH gpumemtrace-replay 1"), "{replay}");
    assert!(replay.contains("\\-\\-fragmentation") && replay.contains(env!("CARGO_PKG_VERSION")), "{replay}");
    let perfetto = stdout(&gpumemtrace(&["man", "export", "perfetto"]));
    assert!(perfetto.contains(".TH gpumemtrace-export-perfetto 1"), "{perfetto}");
    assert!(perfetto.contains("\\-\\-torch\\-profile") && !perfetto.contains("\\-\\-weight"), "{perfetto}");
    for (words, error) in [
        (&["man", "nothing"][..], "there is no command nothing; gpumemtrace --help lists all"),
        (&["man", "export", "none"], "there is no command export none; gpumemtrace export --help lists all"),
    ] {
        let refused = gpumemtrace(words);
        assert_eq!(refused.status.code(), Some(2));
        assert_eq!(String::from_utf8_lossy(&refused.stderr), format!("gpumemtrace: {error}\n"));
    }
}
