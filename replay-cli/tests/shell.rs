//! Completions and manual pages, as shells and `man` read them.

use std::process::{Command, Output};

fn gpumemtrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpumemtrace")).args(arguments).output().expect("the command is built")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn bash_completes_commands_and_options() {
    let script = stdout(&gpumemtrace(&["completions", "bash"]));
    let ask = |words: &[&str]| {
        let last = words.len() - 1;
        let ask = format!(
            "{script}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n_gpumemtrace gpumemtrace '{}' '{}'\necho ${{COMPREPLY[@]}}",
            words.join(" "),
            words[last],
            words[last - 1],
        );
        stdout(&Command::new("bash").args(["-c", &ask]).output().expect("bash is here")).trim().to_owned()
    };
    assert_eq!(ask(&["gpumemtrace", "rep"]), "replay");
    assert_eq!(ask(&["gpumemtrace", "replay", "--le"]), "--leaks");
}

#[test]
fn every_shell_gets_a_script_that_knows_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&gpumemtrace(&["completions", shell]));
        for command in ["replay", "compare", "check", "doctor"] {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    assert_eq!(gpumemtrace(&["completions", "none"]).status.code(), Some(2));
}

#[test]
fn manual_pages_are_named_and_list_the_options() {
    let first = stdout(&gpumemtrace(&["man"]));
    assert!(first.contains(".TH gpumemtrace 1"), "{first}");
    assert!(first.contains("gpumemtrace\\-replay(1)") && first.contains("Exit codes"), "{first}");
    assert!(!first.contains("probe"), "what is hidden stays so");
    let replay = stdout(&gpumemtrace(&["man", "replay"]));
    assert!(replay.contains(".TH gpumemtrace-replay 1"), "{replay}");
    assert!(replay.contains("\\-\\-fragmentation") && replay.contains(env!("CARGO_PKG_VERSION")), "{replay}");
    let refused = gpumemtrace(&["man", "nothing"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr),
        "gpumemtrace: there is no command nothing; `gpumemtrace --help` lists them\n"
    );
}
