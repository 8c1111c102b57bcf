//! Which names of options, variables and fields belong to secrets.

/// Last words of names that belong to secrets.
const SECRET_WORDS: &[&str] = &[
    "passphrase",
    "passcode",
    "pwd",
    "pw",
    "passwort",
    "secrets",
    "cred",
    "credential",
    "credentials",
    "creds",
    "authtoken",
    "accesstoken",
    "apitoken",
    "hftoken",
    "secretkey",
    "accesskey",
    "privatekey",
    "authkey",
    "authorization",
    "oauth",
    "dsn",
    "jwt",
    "cookie",
    "bearer",
];
/// Endings of last words of names that belong to secrets: `dbpassword`, `clientsecret`.
const SECRET_ENDINGS: &[&str] = &["password", "passwd", "secret", "apikey"];
/// Words before `key` in names of secrets. Without one, a key is a name: `--sort-key`.
const SECRET_KEYS: &[&str] = &[
    "api",
    "secret",
    "access",
    "private",
    "auth",
    "encryption",
    "account",
    "signing",
    "subscription",
    "service",
    "master",
    "storage",
    "shared",
    "session",
    "license",
    "wandb",
    "openai",
    "anthropic",
    "hf",
    "huggingface",
    "comet",
    "neptune",
    "ssh",
];
/// Words before `token` in names of tokens that are text, not secrets.
const TEXT_TOKENS: &[&str] = &[
    "pad",
    "eos",
    "bos",
    "unk",
    "unknown",
    "sep",
    "cls",
    "mask",
    "image",
    "img",
    "video",
    "audio",
    "vision",
    "speech",
    "text",
    "special",
    "start",
    "end",
    "stop",
    "begin",
    "first",
    "last",
    "next",
    "prev",
    "previous",
    "prefix",
    "suffix",
    "middle",
    "per",
    "by",
    "max",
    "min",
    "num",
    "n",
    "number",
    "count",
    "think",
    "thinking",
    "tool",
    "assistant",
    "system",
    "fim",
    "im",
    "eot",
    "eod",
    "eom",
    "blank",
    "null",
    "dummy",
    "extra",
    "added",
    "new",
    "single",
    "multi",
    "class",
    "cross",
    "sub",
    "register",
    "target",
    "source",
    "src",
    "tgt",
    "lang",
    "language",
    "decoder",
    "forced",
    "separator",
    "delimiter",
    "trigger",
    "placeholder",
    "initializer",
    "init",
    "instance",
    "modifier",
    "learnable",
    "task",
    "patch",
    "time",
    "distillation",
    "position",
    "drop",
    "skip",
];
/// Words before `pass` in names of passwords. Without one, a pass goes over data.
const SECRET_PASSES: &[&str] = &[
    "db", "database", "user", "mysql", "postgres", "pg", "redis", "mongo", "smtp", "mail", "email", "ftp",
    "http", "proxy", "admin", "root", "sudo", "login", "key", "store",
];
/// Words before `auth`, `pat` and `signature` in names of secrets.
const OTHER_SECRETS: &[(&str, &[&str])] = &[
    ("auth", &["basic", "http", "proxy", "api"]),
    ("pat", &["github", "gh", "gitlab", "azure", "ado"]),
    ("signature", &["amz", "goog"]),
];
/// Last words that say nothing about what a name is.
const NEUTRAL_WORDS: &[&str] = &[
    "prod",
    "production",
    "dev",
    "staging",
    "test",
    "read",
    "write",
    "ro",
    "rw",
    "old",
    "value",
    "b64",
    "base64",
];
/// First words of flags, which have no value.
const FLAG_WORDS: &[&str] = &[
    "no", "use", "ask", "prompt", "disable", "enable", "has", "show", "hide", "is", "without", "allow",
    "require", "needs",
];
/// Every secret name contains one of these, in lower case.
const STEMS: &[&str] = &[
    "pass",
    "pw",
    "secret",
    "token",
    "key",
    "auth",
    "cred",
    "cookie",
    "jwt",
    "bearer",
    "pat",
    "signature",
    "dsn",
];
/// Variables of the shell: folders, not passwords.
const FOLDER_VARIABLES: &[&str] = &["PWD", "OLDPWD"];
/// Longer names are not looked at.
const MAX_NAME_BYTES: usize = 128;

/// True if the value of a name is probably a secret: `--api-key`, `HF_TOKEN`, `db.password`.
pub(super) fn is_secret_name(name: &str) -> bool {
    if name.len() > MAX_NAME_BYTES || FOLDER_VARIABLES.contains(&name) {
        return false;
    }
    let lower = name.to_ascii_lowercase();
    if !STEMS.iter().any(|stem| lower.contains(stem)) {
        return false;
    }
    let mut words = split_words(name);
    while let Some(last) = words.last_mut() {
        let len = last.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        last.truncate(len);
        if !last.is_empty() && !NEUTRAL_WORDS.contains(&last.as_str()) {
            break;
        }
        words.pop();
    }
    let Some(last) = words.last().map(String::as_str) else { return false };
    if words.len() > 1 && FLAG_WORDS.contains(&words[0].as_str()) {
        return false;
    }
    let before = words.len().checked_sub(2).map(|index| words[index].as_str());
    let is_after = |list: &[&str]| before.is_some_and(|word| list.contains(&word));
    match last {
        "token" => !is_after(TEXT_TOKENS),
        "key" => is_after(SECRET_KEYS),
        "pass" => before.is_none() || is_after(SECRET_PASSES),
        "auth" if before.is_none() => true,
        _ => {
            SECRET_WORDS.contains(&last)
                || SECRET_ENDINGS.iter().any(|ending| last.ends_with(ending))
                || OTHER_SECRETS.iter().any(|(word, list)| *word == last && is_after(list))
        }
    }
}

/// The words of a name in lower case: `--apiKey`, `API_KEY` and `api.key` all give `api`, `key`.
fn split_words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for c in name.chars() {
        let is_separator = matches!(c, '-' | '_' | '.');
        if is_separator || c.is_ascii_uppercase() && was_lower {
            words.push(std::mem::take(&mut word));
        }
        if !is_separator {
            word.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}
