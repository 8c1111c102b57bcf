//! What stdout can show: colours, width, characters.
//!
//! The same text goes to terminals, pipes, files and CI logs. [`Style`] decides once, by the
//! conventions of other tools: NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, COLUMNS, TERM, the locale.
//!
//! Not anstream: its automatic choice has colours in CI and does not know FORCE_COLOR.

use std::io::IsTerminal;

use clap::ValueEnum;

use super::marks::{BOLD, DIM, PLAIN, WARN};

/// The value of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On terminals, unless NO_COLOR, TERM=dumb or CI is set; FORCE_COLOR turns colours on
    #[default]
    Auto,
    /// Use colours in any output
    Always,
    /// Do not use colours at all
    Never,
}

/// How text is printed.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent properties")]
pub(crate) struct Style {
    /// Escape sequences for colours may be used.
    pub(crate) color: bool,
    /// The width in columns of charts, tables and, with `wraps`, of all lines.
    pub(crate) width: usize,
    /// Lines longer than `width` are shortened and wrapped. False for a pipe or file without
    /// COLUMNS, so that `grep` and other tools see whole lines.
    pub(crate) wraps: bool,
    /// Only ASCII characters may be drawn.
    pub(crate) ascii: bool,
    /// Rows that lists show, where `--top` sets them.
    pub(crate) top: Option<usize>,
    /// `-v`: also print details of the recording itself.
    #[allow(dead_code, reason = "for the report header")]
    pub(crate) is_verbose: bool,
}

/// The width of a terminal of unknown size, and of charts outside of terminals.
const DEFAULT_WIDTH: usize = 80;
/// The narrowest and the widest layout.
const WIDTHS: (usize, usize) = (40, 200);

impl Style {
    /// A terminal of the default width without colours.
    #[cfg(test)]
    pub(crate) const PLAIN: Self =
        Self { color: false, width: DEFAULT_WIDTH, wraps: true, ascii: false, top: None, is_verbose: false };

    /// Text in a file: no colours, and lines are not wrapped.
    pub(crate) fn for_files() -> Self {
        let width = DEFAULT_WIDTH;
        Self { color: false, width, wraps: false, ascii: false, top: None, is_verbose: false }
    }

    /// Detects the style of stdout.
    pub(crate) fn for_stdout(color: ColorChoice) -> Self {
        let out = std::io::stdout();
        let environment =
            TerminalEnvironment { is_terminal: out.is_terminal(), var: &|name| non_empty_var(name) };
        let detected = terminal_size::terminal_size_of(out).map(|(width, _)| usize::from(width.0));
        Self {
            color: environment.has_color(color),
            width: environment.width(detected),
            wraps: environment.wraps(),
            ascii: environment.is_ascii(),
            top: None,
            is_verbose: false,
        }
    }

    /// The number of rows of a list: `--top`, else `usual`.
    pub(crate) fn row_limit(self, usual: usize) -> usize {
        self.top.unwrap_or(usual)
    }

    /// The replacement for left-out text.
    pub(crate) fn ellipsis(self) -> &'static str {
        if self.ascii { "..." } else { "…" }
    }

    /// Marks text as bold.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    /// Marks text as a warning.
    pub(crate) fn warn(self, text: &str) -> String {
        self.paint(WARN, text)
    }

    /// Marks text as dim.
    pub(crate) fn dim(self, text: &str) -> String {
        self.paint(DIM, text)
    }

    fn paint(self, how: char, text: &str) -> String {
        if self.color { format!("{how}{text}{PLAIN}") } else { text.to_owned() }
    }
}

/// An environment variable that is set and not empty.
fn non_empty_var(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

/// The inputs of [`Style::for_stdout`], replaced in tests.
struct TerminalEnvironment<'a> {
    is_terminal: bool,
    /// Returns an environment variable that is set and not empty.
    var: &'a dyn Fn(&str) -> Option<String>,
}

impl TerminalEnvironment<'_> {
    fn is_set(&self, name: &str) -> bool {
        (self.var)(name).is_some_and(|value| value != "0" && value != "false")
    }

    fn has_color(&self, wanted: ColorChoice) -> bool {
        match wanted {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            // NO_COLOR applies with any value (no-color.org).
            ColorChoice::Auto if (self.var)("NO_COLOR").is_some() => false,
            ColorChoice::Auto if self.is_set("FORCE_COLOR") || self.is_set("CLICOLOR_FORCE") => true,
            ColorChoice::Auto => {
                let is_dumb = (self.var)("TERM").is_some_and(|term| term == "dumb");
                self.is_terminal && !is_dumb && !self.is_set("CI") && !self.is_set("GITHUB_ACTIONS")
            }
        }
    }

    fn columns(&self) -> Option<usize> {
        (self.var)("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|width| *width > 0)
    }

    fn width(&self, detected: Option<usize>) -> usize {
        let detected = detected.filter(|width| self.is_terminal && *width > 0);
        self.columns().or(detected).unwrap_or(DEFAULT_WIDTH).clamp(WIDTHS.0, WIDTHS.1)
    }

    fn wraps(&self) -> bool {
        self.is_terminal || self.columns().is_some()
    }

    fn is_ascii(&self) -> bool {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| (self.var)(name));
        let is_utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        // The Linux console has few glyphs; a dumb terminal may have none.
        let is_poor = (self.var)("TERM").is_some_and(|term| term == "linux" || term == "dumb");
        !is_utf8 || is_poor
    }
}

/// The width of stderr in columns, 80 if it is no terminal.
pub(crate) fn stderr_width() -> usize {
    let detected = terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| usize::from(width.0));
    detected.filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(is_terminal: bool, vars: &[(&str, &str)], read: impl Fn(&TerminalEnvironment<'_>) -> T) -> T {
        let var = |name: &str| {
            vars.iter()
                .find(|(known, value)| *known == name && !value.is_empty())
                .map(|(_, v)| (*v).to_owned())
        };
        read(&TerminalEnvironment { is_terminal, var: &var })
    }

    #[test]
    fn colour_follows_option_then_variables_then_terminal() {
        for (is_terminal, vars, wanted, expected) in [
            (true, &[("TERM", "xterm")][..], ColorChoice::Auto, true),
            (false, &[], ColorChoice::Auto, false),
            (true, &[("NO_COLOR", "1")], ColorChoice::Auto, false),
            (true, &[("NO_COLOR", "")], ColorChoice::Auto, true),
            (true, &[("TERM", "dumb")], ColorChoice::Auto, false),
            (true, &[("CI", "true")], ColorChoice::Auto, false),
            (true, &[("CI", "false")], ColorChoice::Auto, true),
            (true, &[("GITHUB_ACTIONS", "true")], ColorChoice::Auto, false),
            (false, &[("GITHUB_ACTIONS", "true"), ("FORCE_COLOR", "1")], ColorChoice::Auto, true),
            (false, &[("CLICOLOR_FORCE", "1")], ColorChoice::Auto, true),
            (false, &[("CLICOLOR_FORCE", "0")], ColorChoice::Auto, false),
            (false, &[("FORCE_COLOR", "1"), ("NO_COLOR", "1")], ColorChoice::Auto, false),
            (false, &[("NO_COLOR", "1")], ColorChoice::Always, true),
            (true, &[("FORCE_COLOR", "1")], ColorChoice::Never, false),
        ] {
            assert_eq!(with(is_terminal, vars, |s| s.has_color(wanted)), expected, "{is_terminal} {vars:?}");
        }
    }

    #[test]
    fn width_is_columns_then_terminal_then_80() {
        for (is_terminal, columns, own, expected) in [
            (true, "", Some(132), 132),
            (true, "60", Some(132), 60),
            (false, "", None, 80),
            (false, "120", None, 120),
            (false, "", Some(132), 80),
            (true, "", Some(0), 80),
            (true, "nonsense", Some(90), 90),
            (true, "", Some(7), 40),
            (true, "", Some(5000), 200),
        ] {
            assert_eq!(with(is_terminal, &[("COLUMNS", columns)], |s| s.width(own)), expected);
        }
    }

    #[test]
    #[allow(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime")]
    fn pipe_without_columns_is_not_wrapped() {
        for (is_terminal, columns, expected) in [
            (true, "", true),
            (true, "60", true),
            (false, "60", true),
            (false, "", false),
            (false, "0", false),
        ] {
            assert_eq!(with(is_terminal, &[("COLUMNS", columns)], |s| s.wraps()), expected);
        }
    }

    #[test]
    #[allow(clippy::redundant_closure_for_method_calls, reason = "the method is of one lifetime")]
    fn block_characters_need_utf8_locale_and_capable_terminal() {
        for (vars, ascii) in [
            (&[("LANG", "de_DE.UTF-8")][..], false),
            (&[("LANG", "C.utf8")], false),
            (&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")], true),
            (&[("LC_CTYPE", "C.UTF-8"), ("LANG", "C")], false),
            (&[], true),
            (&[("LANG", "C.UTF-8"), ("TERM", "linux")], true),
            (&[("LANG", "C.UTF-8"), ("TERM", "xterm-256color")], false),
        ] {
            assert_eq!(with(true, vars, |s| s.is_ascii()), ascii, "{vars:?}");
        }
    }
}
