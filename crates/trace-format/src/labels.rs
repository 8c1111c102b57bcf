//! Labels of a run: what a user, a scheduler or a launcher names it by, as `key=value`.

/// Most labels of a trace.
pub const MAX_LABELS: usize = 32;
/// Longest key and value, in bytes.
const MAX_KEY_BYTES: usize = 63;
const MAX_VALUE_BYTES: usize = 255;

/// A label: its key and its value.
pub type Label = (String, String);

/// Parses `key=value`. A key has letters, digits, `_`, `.` and `-`, and begins with a letter. A
/// value has no commas and no control characters, so that labels can be listed.
///
/// # Errors
///
/// Says what is wrong, without naming the option or variable.
pub fn parse_label(text: &str) -> Result<Label, String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    let is_key_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !key.starts_with(|c: char| c.is_ascii_alphabetic()) || !key.chars().all(is_key_char) {
        return Err(format!(
            "the key {key:?} must begin with a letter and have only letters, digits, _, . and -"
        ));
    }
    if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
        return Err(format!(
            "the label {key:?} is too long: a key has at most {MAX_KEY_BYTES} bytes, a value {MAX_VALUE_BYTES}"
        ));
    }
    if value.is_empty() || value.contains(|c: char| c == ',' || c.is_control()) {
        return Err(format!(
            "the value of the label {key:?} is empty, or has a comma or a control character"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses labels with commas between them: `team=nlp,experiment=lr-3`.
///
/// # Errors
///
/// The first label that is wrong, or too many labels.
pub fn parse_labels(text: &str) -> Result<Vec<Label>, String> {
    let labels: Vec<Label> = text.split(',').map(parse_label).collect::<Result<_, _>>()?;
    if labels.len() > MAX_LABELS {
        return Err(format!("there are {} labels, and {MAX_LABELS} are allowed", labels.len()));
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_pairs_with_plain_keys() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(parse_labels("team=nlp,lr=3e-4"), Ok(vec![pair("team", "nlp"), pair("lr", "3e-4")]));
        assert_eq!(parse_label("a.b-c_d=x=y z"), Ok(pair("a.b-c_d", "x=y z")));
        for wrong in [
            "team",
            "=nlp",
            "9a=b",
            "a b=c",
            "team=",
            "team=a,b",
            "team=a\nb",
            &format!("{}=b", "a".repeat(64)),
        ] {
            assert!(parse_label(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse_labels(&vec!["a=b"; MAX_LABELS + 1].join(",")).is_err());
        assert!(parse_labels("a=b,,c=d").is_err());
    }
}
