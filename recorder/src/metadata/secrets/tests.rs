use super::*;
use proptest::prelude::*;

const HF: &str = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789";
const GITHUB: &str = "ghp_0123456789abcdefABCDEF0123456789abcd";

fn masked(command: &[&str]) -> Vec<String> {
    mask_secrets(&command.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
}

#[test]
fn values_of_secret_names_are_masked() {
    for (command, expected) in [
        (&["--token", "abc"][..], &["--token", "***"][..]),
        (&["--token=abc", "x"], &["--token=***", "x"]),
        (&["--token=", "x"], &["--token=", "x"]),
        (&["--epochs", "3", "--token"], &["--epochs", "3", "--token"]),
        (&["--token", "--epochs", "3"], &["--token", "--epochs", "3"]),
        (&["--token", "-v", "x"], &["--token", "-v", "x"]),
        (&["--password", "-strange-", "x"], &["--password", "***", "x"]),
        (&["--password=two words"], &["--password=***"]),
        (&["-password", "abc"], &["-password", "***"]),
        (&["--api-key", "X"], &["--api-key", "***"]),
        (&["--apiKey=X", "--wandb_api_key=X"], &["--apiKey=***", "--wandb_api_key=***"]),
        (&["--db.pass", "X", "--auth", "X"], &["--db.pass", "***", "--auth", "***"]),
        (&["env", "HF_TOKEN=abc", "python"], &["env", "HF_TOKEN=***", "python"]),
        (&["AWS_SECRET_ACCESS_KEY=a/b+c"], &["AWS_SECRET_ACCESS_KEY=***"]),
        (&["+trainer.token=abc", "db.password=a,b"], &["+trainer.token=***", "db.password=***"]),
        (&["-H", "Authorization: Bearer abc"], &["-H", "Authorization: ***"]),
        (&["--header=X-Api-Key: abc"], &["--header=X-Api-Key: ***"]),
        (&["Bearer", "abc"], &["Bearer", "***"]),
        (&[r#"{"api_key": "a b", "n": 1}"#], &[r#"{"api_key": "***", "n": 1}"#]),
        (&[r#"{\"token\":\"abc\"}"#], &[r#"{\"token\":\"***\"}"#]),
        (&["kwargs={token:abc,epochs:3}"], &["kwargs={token:***,epochs:3}"]),
        (&["https://host/data?token=abc&part=1"], &["https://host/data?token=***&part=1"]),
        (&["https://a.net/b?sv=1&sig=abc%3D"], &["https://a.net/b?sv=1&sig=***"]),
        (
            &["sh", "-c", "HF_TOKEN=abc python train.py --password 'a b' --epochs 3"],
            &["sh", "-c", "HF_TOKEN=*** python train.py --password '***' --epochs 3"],
        ),
        (
            &["python", "-c", "os.environ['HF_TOKEN'] = 'abc'; login(token=b\"abc\", n=1)"],
            &["python", "-c", "os.environ['HF_TOKEN'] = '***'; login(token=b\"***\", n=1)"],
        ),
        (&["sh", "-c", "curl -H \"X-Api-Key: abc\" host"], &["sh", "-c", "curl -H \"X-Api-Key: ***\" host"]),
    ] {
        assert_eq!(masked(command), expected);
    }
}

#[test]
fn known_tokens_and_passwords_in_urls_are_masked_anywhere() {
    for (argument, expected) in [
        (HF.to_owned(), "hf_***"),
        (format!("x={GITHUB},y"), "x=ghp_***,y"),
        (format!("--note=my key {GITHUB}."), "--note=my key ghp_***"),
        ("-pAKIAIOSFODNN7EXAMPLE".to_owned(), "-pAKIAIOSFODNN7EXAMPLE"),
        ("id:AKIAIOSFODNN7EXAMPLE".to_owned(), "id:AKIA***"),
        ("sk-proj-Ab12Cd34Ef56Gh78Ij90_x".to_owned(), "sk-***"),
        ("curl: Bearer abcdefgh12=".to_owned(), "curl: Bearer ***"),
        ("postgres://me:pa@ss@db:5432/x".to_owned(), "postgres://me:***@db:5432/x"),
        ("redis://:abc@host".to_owned(), "redis://:***@host"),
        ("amqp://me:a/b@host/x".to_owned(), "amqp://me:***@host/x"),
        ("https://0123456789abcdef0123456789abcdef@host/1".to_owned(), "https://***@host/1"),
    ] {
        assert_eq!(masked(&[&argument]), [expected]);
    }
}

#[test]
fn what_is_no_secret_stays() {
    for command in [
        &["python", "train.py", "--tokenizer", "bert", "--max-tokens", "512", "--num-tokens=8"][..],
        &["--keyboard", "de", "--pass-through", "x", "--passes", "3", "--author", "me", "--secretary", "x"],
        &["--pad-token", "<pad>", "--eos_token=</s>", "--mask_token=[MASK]", "--placeholder_token", "toy"],
        &["--token", "<|im_end|>", "--use_auth_token", "data", "--use-auth-token=True", "--password=none"],
        &["--sort-key", "name", "--key", "name", "--key=name", "monkey=1", "--forward-pass", "2"],
        &["--password-file", "/run/pw", "--token_id=5", "--api-key-env", "NAME", "--secret-name", "x"],
        &["PWD=/home/me", "OLDPWD=/", "TOKENIZERS_PARALLELISM=false", "PYTHONHASHSEED=0"],
        &["http://localhost:8080/v1@2", "git@github.com:me/x", "ssh://git@host/x", "image:tag@sha256:0123"],
        &[
            "hf_internal_testing_tiny_random_model",
            "hf_model_v2_large",
            "task-sk-learn-version-2",
            "sk-learn-v2",
        ],
        &["-m", "torch.distributed.run", "--master-port=29500", "--rdzv-id", "0123456789abcdef0123"],
        &["--prompt", "The key: keep the token count, secrets and the bearer of news"],
        &[
            "-p",
            "8080",
            "-k",
            "x",
            "-c",
            "print('tokens:', 3)",
            "C:\\keys\\x",
            "ключ=значение",
            "",
            "-",
            "--",
        ],
    ] {
        assert_eq!(masked(command), command);
    }
}

#[test]
fn every_claimed_form_is_masked() {
    for command in [
        &["db={user: bob, password: hunter2SECRET}"][..],
        &["--cfg", "user: bob\npassword: hunter2SECRET\nepochs: 3\n"],
        &["--cfg", "user: bob\npassword: \"hunter2SECRET\"\n"],
        &["curl", "-u", "bob:hunter2SECRET"],
        &["sh", "-c", "curl -u bob:hunter2SECRET h"],
        &["https://h/?key=hunter2SECRET"],
        &["--mysql-pw", "hunter2SECRET"],
        &["https://hooks.slack.com/services/T00/B00/hunter2SECRET"],
        &["https://discord.com/api/webhooks/123/hunter2SECRET"],
        &["SENTRY_DSN=https://hunter2SECRET@o1.ingest.sentry.io/1"],
        &["--dsn", "https://hunter2SECRET@o1.ingest.sentry.io/1"],
        &["<password>hunter2SECRET</password>"],
        &["password%3Dhunter2SECRET"],
        &["%22password%22%3A%22hunter2SECRET%22"],
        &["-----BEGIN RSA PRIVATE KEY-----\nhunter2SECRET\n-----END RSA PRIVATE KEY-----"],
        &["--pem", "-----BEGIN PRIVATE KEY-----\nhunter2SECRET\nhunter2SECRET"],
        &["sh", "-c", "cat <<E\npassword: hunter2SECRET\nE"],
        &["sh", "-c", "read PASSWORD <<< hunter2SECRET"],
        &["sh", "-c", "set password hunter2SECRET"],
        &["python", "-c", "os.environ.setdefault('HF_TOKEN', 'hunter2SECRET')"],
        &["python", "-c", "os.putenv('TOKEN','hunter2SECRET')"],
        &["python", "-c", "token: str = 'hunter2SECRET'"],
        &["python", "-c", "login('bob', password=\n  'hunter2SECRET')"],
    ] {
        assert!(!masked(command).join(" ").contains("hunter2"), "{:?}", masked(command));
    }
    for token in ["ghp_", "github_pat_", "hf_", "dop_v1_", "shpat_", "sk-ant-api03-"] {
        let token = format!("{token}{}", "abcdefghij".repeat(4));
        assert!(!masked(&[&token])[0].contains("abcdefghij"), "{token}");
    }
}

#[test]
fn what_looks_like_credentials_stays() {
    for command in [
        &["docker", "run", "-u", "1000:1000"][..],
        &["python", "-u", "train.py"],
        &["--user", "http://host:80/x"],
        &["curl", "https://host/?keyboard=de"],
        &["-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----"],
        &["sh", "-c", "set -e; python train.py --epochs 3"],
    ] {
        assert_eq!(masked(command), command);
    }
}

/// Values of a secret as shells and Python read them; `@` stands for it.
const VALUES: &[&str] = &[
    "@",
    "'@'",
    "\"@\"",
    "$'@'",
    "'''@'''",
    "\"\"\"@\"\"\"",
    "b'@'",
    "f\"@\"",
    "('@')",
    "'a b @'",
    "\"abc\"'@'",
    "abc'@'",
    "abc\"@\"",
    "'a''@'",
    "'a' '@'",
    "'a' + '@'",
    "\"a\\\"@\"",
    "'a'@",
    "'a'\\\n'@'",
    "$(echo @)",
    "$(cat <<E\n@\nE\n)",
    "`echo @`",
    "${X:-@}",
    "abc\\ @",
    "abc\\\n@",
    "\\\n@",
    "rb'@'",
    "('a'\n '@')",
];

/// A program text that gives a secret to a name.
fn script(secret: &'static str) -> impl Strategy<Value = Vec<String>> {
    let names = prop::sample::select(vec!["PASSWORD", "db_password", "hf_token", "API_KEY", "clientSecret"]);
    let values = prop::sample::select(VALUES).prop_map(move |form| form.replace('@', secret));
    let before = prop::sample::select(vec!["", "cd /x; ", "export A=1 && ", "import os; ", "x = 'y'\n"]);
    let after = prop::sample::select(vec!["", " cmd --lr 1", "; echo", "\n", " && ls"]);
    (names, values, before, after, 0..9).prop_map(|(name, value, before, after, form)| {
        let (program, text) = match form {
            0 => ("sh", format!("{name}={value}")),
            1 => ("sh", format!("export {name}={value}")),
            2 => ("sh", format!("cmd --{name} {value}")),
            3 => ("sh", format!("cmd --{name}={value}")),
            4 => ("python", format!("{name} = {value}")),
            5 => ("python", format!("login({name}={value})")),
            6 => ("python", format!("os.environ['{name}'] = {value}")),
            7 => ("python", format!("os.environ.setdefault(\"{name}\", {value})")),
            _ => ("python", format!("d = {{'{name}': {value}}}")),
        };
        vec![program.to_owned(), "-c".to_owned(), format!("{before}{text}{after}")]
    })
}

/// An option with a value that is no secret.
fn plain_option() -> impl Strategy<Value = Vec<String>> {
    let name = prop::sample::select(vec![
        "--tokenizer",
        "--max-tokens",
        "--pass-through",
        "--author",
        "--lr",
        "--data",
        "--sort-key",
        "-o",
    ]);
    (name, "[a-z0-9/._ ]{0,20}", any::<bool>()).prop_map(|(name, value, is_joined)| {
        if is_joined { vec![format!("{name}={value}")] } else { vec![name.to_owned(), value] }
    })
}

/// An option with a value that is a secret.
fn secret_option(secret: &'static str) -> impl Strategy<Value = Vec<String>> {
    let names =
        vec!["--token", "--password", "--api-key", "--hf_token", "-secret", "--x.accessToken", "--db-passwd"];
    (prop::sample::select(names), 0..7).prop_map(move |(name, form)| match form {
        0 => vec![name.to_owned(), secret.to_owned()],
        1 => vec![format!("{name}={secret}")],
        2 => vec![format!("train {name} {secret} --lr 1")],
        3 => vec![format!("{{\"{}\": \"{secret}\"}}", name.trim_start_matches('-'))],
        4 => vec![format!("ftp://user:{secret}@host/")],
        5 => vec![format!("http://host/?x=1&{}={secret}&y=2", name.trim_start_matches('-'))],
        _ => vec![format!("{}='{secret}' train", name.trim_start_matches('-'))],
    })
}

proptest! {
    #[test]
    fn secrets_in_scripts_vanish_however_they_are_quoted(command in script("Zq7-XkW_9")) {
        let masked = mask_secrets(&command);
        prop_assert!(!masked[2].contains("Zq7-XkW_9"), "{:?} became {:?}", command[2], masked[2]);
    }

    #[test]
    fn any_bytes_are_accepted_and_masking_again_changes_nothing(
        command in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6),
    ) {
        let command: Vec<String> =
            command.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
        let once = mask_secrets(&command);
        prop_assert_eq!(once.len(), command.len());
        prop_assert_eq!(&mask_secrets(&once), &once);
    }

    #[test]
    fn any_mixture_of_signs_and_names_is_accepted(
        command in prop::collection::vec(
            "((--|-|)(token|api_key|Bearer|PWD|password|x|hf_A0bcdefghijklmnopq|a://b|pad-token)[=:@ \"'\\\\\\]\\[<>é&,]{0,3}){0,6}",
            0..5,
        ),
    ) {
        prop_assert_eq!(mask_secrets(&command).len(), command.len());
    }

    #[test]
    fn secrets_vanish_and_everything_else_stays(
        options in prop::collection::vec(
            prop_oneof![
                plain_option().prop_map(|words| (words, false)),
                secret_option("Zq7-XkW_9").prop_map(|words| (words, true)),
            ],
            0..8,
        ),
    ) {
        let command: Vec<String> = options.iter().flat_map(|(words, _)| words.clone()).collect();
        let mut masked = mask_secrets(&command).into_iter();
        for (words, is_secret) in options {
            for word in words {
                let now = masked.next().unwrap();
                prop_assert!(!now.contains("Zq7-XkW_9"), "{}", now);
                // The name stays, and so does what follows the value.
                let expected = word.replace("Zq7-XkW_9", MASK);
                let name = now.strip_suffix(MASK).filter(|name| name.ends_with('='));
                let rest_is_masked = is_secret && name.is_some_and(|name| expected.starts_with(name));
                prop_assert!(now == expected || rest_is_masked, "{} became {}", word, now);
            }
        }
    }
}
