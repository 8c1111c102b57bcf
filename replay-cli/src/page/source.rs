//! The source lines that the page shows: those that a report shows, and none of files that look
//! secret.

use std::path::Path;

use gpumemtrace_format::source_path::file_name;
use gpumemtrace_replay::report::{Site, TraceInfo};

use crate::render::text::sources_of_report;
use crate::source::{SourceArgs, SourceReader};

/// Parts of file names that suggest passwords, tokens or keys.
const SECRET_NAMES: &[&str] =
    &["secret", "password", "passwd", "credential", "token", "private_key", "apikey", "api_key", ".env"];
/// Extensions of key files.
const SECRET_EXTENSIONS: &[&str] = &["pem", "key", "p12", "pfx", "kdbx", "netrc"];

/// Reads source lines, unless the user wants none.
pub(super) struct SourceLines {
    reader: Option<SourceReader>,
}

impl SourceLines {
    pub(super) fn new(wanted: Option<&SourceArgs>, traces: &[TraceInfo]) -> Self {
        Self { reader: wanted.map(|args| sources_of_report(traces, args)) }
    }

    /// The source line of a site, if it may be shown and can be read.
    pub(super) fn line_of(&mut self, site: &Site) -> Option<String> {
        let is_secret = site.file.as_deref().is_some_and(looks_secret);
        self.reader.as_mut().filter(|_| !is_secret)?.line_of(site)
    }

    /// Why source lines are missing, as a sentence.
    pub(super) fn missing(&self) -> Option<String> {
        match &self.reader {
            None => Some("Source lines are not embedded (--no-source).".to_owned()),
            Some(reader) => reader.withheld().map(|withheld| format!("{}.", withheld.describe())),
        }
    }
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
