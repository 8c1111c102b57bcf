//! Masks what looks like a secret in a command line, before it is written anywhere.
//!
//! Traces are kept, attached to bug reports and shared. Programs get passwords and access tokens as
//! options, as `NAME=value`, in URLs and inside scripts (`sh -c '...'`). So the value of a name
//! that sounds secret becomes `***`, and so does text that has the form of a known token. The name
//! stays. In doubt a value is masked, except where machine learning uses the same words:
//! `--max-tokens 512`, `--pad-token '<pad>'`, `--sort-key name`.
//!
//! A value that is not one word or one plain string, such as `$(cat file)`, `'a'"b"` or a string in
//! three quotes, has no end that is sure: everything after its name is masked.
//!
//! The rules are heuristics. A secret under a harmless name, such as `-p hunter2`, stays.

use std::ops::Range;

mod names;
mod values;

use names::is_secret_name;
use values::value_after;

/// What stands for a secret.
const MASK: &str = "***";
/// How far a detector looks ahead, so that the work is linear in the length of an argument.
const MAX_LOOK_AHEAD: usize = 4096;
/// Shortest part without separators in a random token.
const MIN_RANDOM_RUN: usize = 16;
/// Shortest part without separators of a random token that has only lower-case letters.
const MIN_LOWERCASE_RUN: usize = 30;
/// Shortest user name of a URL that is taken for a token.
const MIN_URL_TOKEN: usize = 20;
/// Shortest word after `Bearer` that is taken for a token.
const MIN_BEARER: usize = 8;
/// First characters of well-known tokens.
const TOKEN_PREFIXES: &[&str] = &[
    "hf_",
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "npm_",
    "pypi-",
    "nvapi-",
    "dckr_pat_",
    "AIza",
    "ya29.",
    "lsv2_",
    "gsk_",
    "r8_",
    "eyJ",
    "xapp-",
    "xoxe-",
    "dop_v1_",
    "shpat_",
    "shpss_",
    "SG.",
];
/// Ends of the part of a webhook's address that is no secret.
const WEBHOOKS: &[&str] = &["hooks.slack.com/services/", "/api/webhooks/", ".webhook.office.com/"];
/// Options of a user and a password, as `name:password`.
const USER_OPTIONS: &[&str] = &["-u", "--user", "--users", "--proxy-user"];
/// Begin and end of the lines around a private key.
const PEM_BEGIN: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";
/// First characters of key identifiers of AWS; 16 upper-case letters and digits follow.
const AWS_PREFIXES: &[&str] = &["AKIA", "ASIA"];
const AWS_LEN: usize = 16;

/// The arguments with their secrets masked, in the same number and order.
pub(super) fn mask_secrets(command: &[String]) -> Vec<String> {
    let mut previous = "";
    let mut masked = Vec::with_capacity(command.len());
    for argument in command {
        let is_value = takes_secret(previous) && !is_option(argument);
        masked.push(if is_value && !is_harmless(argument) {
            MASK.to_owned()
        } else if let Some(user) = user_of_credentials(argument).filter(|_| USER_OPTIONS.contains(&previous))
        {
            format!("{user}:{MASK}")
        } else {
            mask_text(argument, is_script_option(previous))
        });
        // A value does not name the next argument, even if its text is the name of a secret.
        previous = if is_value { "" } else { argument };
    }
    masked
}

/// True for an option that takes a secret from the next argument: `--token`.
fn takes_secret(argument: &str) -> bool {
    if argument.eq_ignore_ascii_case("bearer") {
        return true;
    }
    argument.starts_with('-') && argument.bytes().all(is_name_byte) && is_secret_name(argument)
}

/// True for `--name` and `-n`, which cannot be the value of another option.
fn is_option(argument: &str) -> bool {
    argument.starts_with("--") || argument.len() == 2 && argument.starts_with('-')
}

/// The user in `user:password`. Two numbers are IDs of a user and a group.
fn user_of_credentials(text: &str) -> Option<&str> {
    let (user, password) = text.split_once(':')?;
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = !user.is_empty() && !user.contains(['/', ' ', '=', '{', '"', '\'']);
    let is_password = !password.is_empty() && !password.starts_with("//");
    let are_ids = is_number(user) && is_number(password);
    (is_word && is_password && !are_ids).then_some(user)
}

/// True for the option of shells and of Python before a program text: `-c`, `-lc`.
fn is_script_option(argument: &str) -> bool {
    argument.starts_with('-') && !argument.starts_with("--") && argument.ends_with('c')
}

/// True for values that secret names have without being secret: a flag, or a token of a tokenizer.
fn is_harmless(value: &str) -> bool {
    let is_flag =
        ["true", "false", "none", "null", "yes", "no"].iter().any(|flag| value.eq_ignore_ascii_case(flag));
    let is_within = |open, close| value.starts_with(open) && value.ends_with(close);
    value.is_empty() || is_flag || is_within('<', '>') || is_within('[', ']')
}

fn mask_text(text: &str, is_script: bool) -> String {
    let mut secrets = Vec::new();
    find_assignments(text, is_script, &mut secrets);
    find_urls(text, &mut secrets);
    find_webhooks(text, &mut secrets);
    find_users(text, &mut secrets);
    find_private_keys(text, &mut secrets);
    find_tokens(text, &mut secrets);
    secrets.retain(|secret| !secret.is_empty());
    secrets.sort_by_key(|secret| (secret.start, secret.end));
    let mut masked = String::with_capacity(text.len());
    let mut done = 0;
    let mut last_end = None;
    for Range { start, end } in secrets {
        // Secrets that touch or overlap become one.
        if last_end.is_none_or(|last| start > last) {
            masked.push_str(&text[done..start]);
            masked.push_str(MASK);
        }
        done = done.max(end);
        last_end = Some(done);
    }
    masked.push_str(&text[done..]);
    masked
}

/// Finds the values of secret names: `name=value`, `"name": "value"`, `Name: value` and
/// `--name value`.
fn find_assignments(text: &str, is_script: bool, secrets: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    // Hydra marks overrides by a sign.
    let first = end_of_run(bytes, 0, |byte| matches!(byte, b'+' | b'~'));
    let mut at = 0;
    while at < bytes.len() {
        if !is_name_byte(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        at = end_of_run(bytes, start, is_name_byte);
        let before = start.checked_sub(1).map(|index| bytes[index]);
        let is_query_secret =
            matches!(before, Some(b'?' | b'&')) && matches!(&text[start..at], "sig" | "key");
        if !is_query_secret && !is_secret_name(&text[start..at]) {
            continue;
        }
        let value = value_after(bytes, start..at, (start == first, is_script));
        if let Some(value) = value.filter(|value| !is_harmless(&text[value.clone()])) {
            at = at.max(value.end);
            secrets.push(value);
        }
    }
}

/// Finds the secret part of the addresses of webhooks.
fn find_webhooks(text: &str, secrets: &mut Vec<Range<usize>>) {
    for known in WEBHOOKS {
        for (at, _) in text.match_indices(known) {
            let begin = at + known.len();
            let is_in_url = |byte: u8| !byte.is_ascii_whitespace() && !b"\"'<>`".contains(&byte);
            secrets.push(begin..end_of_run(text.as_bytes(), begin, is_in_url));
        }
    }
}

/// Finds passwords in `-u user:password` inside a script.
fn find_users(text: &str, secrets: &mut Vec<Range<usize>>) {
    for (at, space) in text.match_indices([' ', '\t']) {
        let option = text[..at].rsplit(|c: char| c.is_ascii_whitespace()).next().unwrap_or_default();
        if !USER_OPTIONS.contains(&option) {
            continue;
        }
        let begin = at + space.len();
        let begin = end_of_run(text.as_bytes(), begin, |byte| byte == b' ' || byte == b'\'' || byte == b'"');
        let end = end_of_run(text.as_bytes(), begin, |byte| !byte.is_ascii_whitespace());
        if let Some(user) = user_of_credentials(&text[begin..end]) {
            secrets.push(begin + user.len() + 1..end);
        }
    }
}

/// Finds the lines of private keys.
fn find_private_keys(text: &str, secrets: &mut Vec<Range<usize>>) {
    for (at, _) in text.match_indices(PEM_BEGIN) {
        let header = &text[at + PEM_BEGIN.len()..];
        let Some(length) = header.find("-----").filter(|length| header[..*length].ends_with("PRIVATE KEY"))
        else {
            continue;
        };
        let begin = at + PEM_BEGIN.len() + length + 5;
        let end = text[begin..].find(PEM_END).map_or(text.len(), |end| begin + end);
        secrets.push(begin..end);
    }
}

/// Finds passwords in URLs, `scheme://user:password@host`, and tokens in place of a user.
fn find_urls(text: &str, secrets: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(found) = text[at..].find("://") {
        let begin = at + found + 3;
        at = begin;
        let url = &bytes[begin..bytes.len().min(begin + MAX_LOOK_AHEAD)];
        let is_in_url = |byte: u8| !byte.is_ascii_whitespace() && !b"\"'<>`".contains(&byte);
        let host_end = end_of_run(url, 0, |byte| is_in_url(byte) && !b"/?#".contains(&byte));
        let colon = url[..host_end].iter().position(|byte| *byte == b':');
        let sign = url[..host_end].iter().rposition(|byte| *byte == b'@');
        // A password that contains a slash: what follows the colon is no port.
        let is_port = |colon: usize| url[colon + 1..host_end].iter().all(u8::is_ascii_digit);
        let sign = sign.or_else(|| {
            colon.filter(|colon| !is_port(*colon))?;
            url.iter().take_while(|byte| is_in_url(**byte)).position(|byte| *byte == b'@')
        });
        match (colon, sign) {
            (Some(colon), Some(sign)) if colon < sign => secrets.push(begin + colon + 1..begin + sign),
            (_, Some(sign)) if sign >= MIN_URL_TOKEN => secrets.push(begin..begin + sign),
            _ => {}
        }
    }
}

/// Finds text that has the form of a known token, and words after `Bearer`.
fn find_tokens(text: &str, secrets: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !is_name_byte(bytes[at]) {
            at += 1;
            continue;
        }
        let end = end_of_run(bytes, at, is_name_byte);
        find_token(text, at..end, secrets);
        if text[at..end].eq_ignore_ascii_case("bearer") {
            let begin = skip_spaces(bytes, end);
            let word = begin..end_of_run(bytes, begin, |byte| is_name_byte(byte) || b"+/=~".contains(&byte));
            if begin > end && word.len() >= MIN_BEARER {
                secrets.push(word);
            }
        }
        at = end;
    }
}

/// Finds a token at any start in one run of its characters. The prefix is kept.
fn find_token(text: &str, run: Range<usize>, secrets: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    for start in run.clone() {
        if start > run.start && (bytes[start - 1].is_ascii_alphanumeric() || bytes[start - 1] == b'_') {
            continue;
        }
        let rest = &text[start..run.end.min(start + MAX_LOOK_AHEAD)];
        let prefix = TOKEN_PREFIXES.iter().find(|prefix| rest.starts_with(**prefix));
        if let Some(prefix) = prefix.filter(|prefix| is_random(&rest[prefix.len()..])) {
            secrets.push(start + prefix.len()..run.end);
            return;
        }
        let prefix = AWS_PREFIXES.iter().find(|prefix| rest.starts_with(**prefix));
        let is_aws_byte = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let is_aws =
            |prefix: &str| end_of_run(rest.as_bytes(), prefix.len(), is_aws_byte) == prefix.len() + AWS_LEN;
        if let Some(prefix) = prefix.filter(|prefix| is_aws(prefix)) {
            secrets.push(start + prefix.len()..start + prefix.len() + AWS_LEN);
        }
    }
}

/// True for text like a random token: a long part with upper-case letters or digits. Names of
/// models and folders have separators or only lower-case letters.
fn is_random(text: &str) -> bool {
    text.split(['_', '-', '.']).any(|part| {
        let is_mixed = part.bytes().any(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
        part.len() >= if is_mixed { MIN_RANDOM_RUN } else { MIN_LOWERCASE_RUN }
    })
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

fn skip_spaces(bytes: &[u8], at: usize) -> usize {
    end_of_run(bytes, at, |byte| byte.is_ascii_whitespace())
}

/// The first index from `at` on at which `belongs` is false, or the length.
fn end_of_run(bytes: &[u8], at: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let at = at.min(bytes.len());
    bytes[at..].iter().position(|byte| !belongs(*byte)).map_or(bytes.len(), |len| at + len)
}

#[cfg(all(test, not(miri)))]
mod tests;
