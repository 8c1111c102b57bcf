//! What a terminal can take.
//!
//! Constraint: the same text goes to terminals, pipes, files and logs of CI, of any width and alphabet. Consequence: what is there is
//! found out once, by the rules that other tools follow too, and everything after asks [`Style`].
//!
//! Not anstream: its automatic choice has colours in CI and knows no FORCE_COLOR.

use std::io::IsTerminal;

use clap::ValueEnum;

use super::marks::{BOLD, DIM, PLAIN, WARN};

/// Whether colours are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR, TERM=dumb or CI say otherwise; or where FORCE_COLOR or CLICOLOR_FORCE ask for them
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How text may look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Colours may be used.
    pub(crate) color: bool,
    /// Columns.
    pub(crate) width: usize,
    /// Only ASCII may be drawn.
    pub(crate) ascii: bool,
    /// Rows that lists show, where `--top` sets them.
    pub(crate) top: Option<usize>,
    /// `-v`: also print what is only of interest for the recording itself.
    #[allow(dead_code, reason = "for the report header")]
    pub(crate) is_verbose: bool,
}

/// Columns where nobody says: those of a terminal that nobody has made wider.
const DEFAULT_WIDTH: usize = 80;
/// Columns below which nothing reads well any more, and beyond which lines are hard to follow.
const WIDTHS: (usize, usize) = (40, 200);

impl Style {
    /// Nothing is known.
    #[cfg(test)]
    pub(crate) const PLAIN: Self =
        Self { color: false, width: DEFAULT_WIDTH, ascii: false, top: None, is_verbose: false };

    /// Of stdout.
    pub(crate) fn for_stdout(color: ColorChoice) -> Self {
        let out = std::io::stdout();
        let environment =
            TerminalEnvironment { is_terminal: out.is_terminal(), var: &|name| non_empty_var(name) };
        let detected = terminal_size::terminal_size_of(out).map(|(width, _)| usize::from(width.0));
        Self {
            color: environment.has_color(color),
            width: environment.width(detected),
            ascii: environment.is_ascii(),
            top: None,
            is_verbose: false,
        }
    }

    /// How many rows a list shows that otherwise has so many.
    pub(crate) fn row_limit(self, usual: usize) -> usize {
        self.top.unwrap_or(usual)
    }

    /// Stands for what was left out.
    pub(crate) fn ellipsis(self) -> &'static str {
        if self.ascii { "..." } else { "…" }
    }

    /// Text that stands out.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    /// Text that warns.
    pub(crate) fn warn(self, text: &str) -> String {
        self.paint(WARN, text)
    }

    /// Text that steps back.
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

/// What the style follows from.
struct TerminalEnvironment<'a> {
    is_terminal: bool,
    /// Environment variables that are set and not empty.
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
            // NO_COLOR counts with any value (no-color.org).
            ColorChoice::Auto if (self.var)("NO_COLOR").is_some() => false,
            ColorChoice::Auto if self.is_set("FORCE_COLOR") || self.is_set("CLICOLOR_FORCE") => true,
            ColorChoice::Auto => {
                let is_dumb = (self.var)("TERM").is_some_and(|term| term == "dumb");
                self.is_terminal && !is_dumb && !self.is_set("CI") && !self.is_set("GITHUB_ACTIONS")
            }
        }
    }

    fn width(&self, detected: Option<usize>) -> usize {
        let from_columns =
            (self.var)("COLUMNS").and_then(|columns| columns.parse().ok()).filter(|width| *width > 0);
        let detected = detected.filter(|width| self.is_terminal && *width > 0);
        from_columns.or(detected).unwrap_or(DEFAULT_WIDTH).clamp(WIDTHS.0, WIDTHS.1)
    }

    fn is_ascii(&self) -> bool {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| (self.var)(name));
        let is_utf8 = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        // The console of Linux has few glyphs, a dumb terminal may have none.
        let is_poor = (self.var)("TERM").is_some_and(|term| term == "linux" || term == "dumb");
        !is_utf8 || is_poor
    }
}

/// Columns of the terminal that stderr is, if it is one.
pub(crate) fn stderr_width() -> usize {
    let detected = terminal_size::terminal_size_of(std::io::stderr()).map(|(width, _)| usize::from(width.0));
    detected.filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(is_terminal: bool, vars: &[(&str, &str)], ask: impl Fn(&TerminalEnvironment<'_>) -> T) -> T {
        let var = |name: &str| {
            vars.iter()
                .find(|(known, value)| *known == name && !value.is_empty())
                .map(|(_, v)| (*v).to_owned())
        };
        ask(&TerminalEnvironment { is_terminal, var: &var })
    }

    #[test]
    fn colours_are_where_they_are_wanted() {
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
    fn the_width_is_what_columns_says_else_the_terminals_else_80() {
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
    fn only_a_locale_that_has_them_gets_blocks() {
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
