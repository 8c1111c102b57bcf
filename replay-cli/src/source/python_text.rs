//! Which function of a Python file a line belongs to.
//!
//! This is no parser of Python. It knows where statements begin, from strings, comments, brackets
//! and continued lines, and which `def` and `class` statements enclose a statement, by indentation.

/// The text of a Python file.
pub(super) struct PythonText {
    lines: Vec<Line>,
}

struct Line {
    text: String,
    /// Columns of indentation, if a statement begins on this line.
    statement: Option<usize>,
}

impl PythonText {
    /// `None` for bytes that are not UTF-8, or that contain NUL.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))?;
        let mut state = State::default();
        let lines = text.lines().map(|line| Line { statement: state.pass_line(line), text: line.to_owned() });
        Some(Self { lines: lines.collect() })
    }

    /// True if the first line names Python as the interpreter of the file.
    pub(super) fn names_interpreter(&self) -> bool {
        self.lines.first().is_some_and(|line| line.text.starts_with("#!") && line.text.contains("python"))
    }

    /// The text of a line (the first is 1) if it is part of this function. `function` is a name as
    /// CPython has it, qualified (`Model.step`, `fit.<locals>.<lambda>`) or not.
    pub(super) fn line_of_function(&self, line: u32, function: &str) -> Option<&str> {
        let at = (line as usize).checked_sub(1)?;
        let text = &self.lines.get(at)?.text;
        let begin = (0..=at).rev().find(|line| self.lines[*line].statement.is_some())?;
        self.belongs_to(begin, function).then_some(text.as_str())
    }

    /// The number of earlier lines of this function with the same text as this line of it.
    pub(super) fn equal_lines_before(&self, line: u32, function: &str) -> usize {
        let at = (line as usize).saturating_sub(1);
        let Some(text) = self.lines.get(at).map(|line| line.text.trim()) else { return 0 };
        let numbers = (1..line).zip(&self.lines);
        let equal = numbers.filter(|(_, other)| other.text.trim() == text);
        equal.filter(|(number, _)| self.line_of_function(*number, function).is_some()).count()
    }

    /// True if the statement that begins on this line is part of the function, or its header.
    fn belongs_to(&self, begin: usize, function: &str) -> bool {
        let (outer, name) = function.rsplit_once('.').unwrap_or(("", function));
        let enclosing = self.enclosing_names(begin);
        match name.strip_prefix('<') {
            None => {
                let name = name_before_dynamo(name);
                enclosing.first() == Some(&name) || self.header_name(begin) == Some(name)
            }
            Some("module>") => enclosing.is_empty(),
            Some("lambda>") => self.has_word(begin, "lambda") && is_inside(outer, &enclosing),
            Some("listcomp>" | "dictcomp>" | "setcomp>" | "genexpr>") => {
                self.has_word(begin, "for") && is_inside(outer, &enclosing)
            }
            Some(_) => false,
        }
    }

    /// The names of the functions and classes around a statement, innermost first.
    fn enclosing_names(&self, begin: usize) -> Vec<&str> {
        let mut names = Vec::new();
        let Some(mut indentation) = self.lines[begin].statement else { return names };
        for line in self.lines[..begin].iter().rev() {
            if indentation == 0 {
                break;
            }
            if let Some(columns) = line.statement.filter(|columns| *columns < indentation) {
                indentation = columns;
                names.extend(defined_name(&line.text));
            }
        }
        names
    }

    /// The name that the statement defines, or that a decorator on this line is for.
    fn header_name(&self, begin: usize) -> Option<&str> {
        let statements = self.lines[begin..].iter().filter(|line| line.statement.is_some());
        let header = statements.map(|line| line.text.trim_start()).find(|text| !text.starts_with('@'))?;
        defined_name(header)
    }

    /// True if the statement that begins on this line contains a word.
    fn has_word(&self, begin: usize, word: &str) -> bool {
        let more = self.lines[begin + 1..].iter().take_while(|line| line.statement.is_none());
        let is_name_part = |c: char| c.is_alphanumeric() || c == '_';
        std::iter::once(&self.lines[begin])
            .chain(more)
            .any(|line| line.text.split(|c: char| !is_name_part(c)).any(|part| part == word))
    }
}

/// `fit` for `torch_dynamo_resume_in_fit_at_12`, which is the rest of `fit` after a graph break.
fn name_before_dynamo(name: &str) -> &str {
    let inner = name.strip_prefix("torch_dynamo_resume_in_").and_then(|rest| rest.rsplit_once("_at_"));
    inner.map_or(name, |(name, _)| name)
}

/// True if a qualified outer name (`fit.<locals>`) is that of the innermost enclosing function.
/// Before CPython 3.11, names have no outer part.
fn is_inside(outer: &str, enclosing: &[&str]) -> bool {
    let name = outer.rsplit('.').find(|part| *part != "<locals>").unwrap_or_default();
    name.is_empty() || name.starts_with('<') || enclosing.contains(&name)
}

/// The name in a `def` or `class` statement.
fn defined_name(statement: &str) -> Option<&str> {
    let text = statement.trim_start();
    let text = text.strip_prefix("async ").map_or(text, str::trim_start);
    let rest = ["def", "class"].iter().find_map(|word| text.strip_prefix(word))?;
    let name = rest.strip_prefix([' ', '\t'])?.trim_start();
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
    (end > 0).then(|| &name[..end])
}

/// What a line may continue.
#[derive(Default)]
struct State {
    /// The number of brackets that are open.
    depth: usize,
    /// The quotes that end an open string.
    string: Option<&'static str>,
    /// The last line ended in a backslash.
    is_continued: bool,
}

impl State {
    /// Columns of indentation if a statement begins on this line.
    fn pass_line(&mut self, line: &str) -> Option<usize> {
        let text = line.trim_start();
        let is_inside = self.depth > 0 || self.string.is_some() || self.is_continued;
        let begins = !is_inside && !text.is_empty() && !text.starts_with('#');
        self.is_continued = false;
        self.pass_text(line);
        let columns = |columns, c| if c == '\t' { columns / 8 * 8 + 8 } else { columns + 1 };
        begins.then(|| line[..line.len() - text.len()].chars().fold(0, columns))
    }

    fn pass_text(&mut self, line: &str) {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let mut length = c.len_utf8();
            match (self.string, c) {
                (_, '\\') => match rest[1..].chars().next() {
                    Some(escaped) => length += escaped.len_utf8(),
                    None => self.is_continued = true,
                },
                (Some(quotes), _) if rest.starts_with(quotes) => {
                    self.string = None;
                    length = quotes.len();
                }
                (None, '#') => return,
                (None, '(' | '[' | '{') => self.depth += 1,
                (None, ')' | ']' | '}') => self.depth = self.depth.saturating_sub(1),
                (None, '"' | '\'') => {
                    let quotes = ["\"\"\"", "'''", "\"", "'"];
                    self.string = quotes.into_iter().find(|quotes| rest.starts_with(quotes));
                    length = self.string.map_or(length, str::len);
                }
                _ => {}
            }
            rest = &rest[length..];
        }
        // Only a backslash carries a string with one quote to the next line.
        if !self.is_continued && self.string.is_some_and(|quotes| quotes.len() == 1) {
            self.string = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"import torch
x = torch.ones(1)
KEEP = [torch.ones(i)
        for i in range(3)]
class Model:
    size = torch.ones(2)

    @property
    def weight(self,
               scale=1):
        """A text:
def other():
        """
        if scale:
            return torch.ones(
                3)
# a comment
        return [torch.ones(i) for i in 'x)']

    async def step(self):
        run = lambda: torch.ones(4)
        def inner(): return torch.ones(5)
        text = "a \
def b"
        return run()
y = torch.ones(6)
"#;

    #[test]
    fn lines_belong_to_their_functions() {
        let text = PythonText::parse(TEXT.as_bytes()).unwrap();
        for (line, function, belongs) in [
            (2, "<module>", true),
            (4, "<module>", true),
            (4, "<listcomp>", true),
            (2, "<listcomp>", false),
            (2, "train", false),
            (6, "Model", true),
            (6, "<module>", false),
            (8, "Model.weight", true),
            (10, "weight", true),
            (12, "other", false),
            (12, "weight", true),
            (16, "Model.weight", true),
            (18, "Model.weight.<locals>.<listcomp>", true),
            (18, "Model.step.<locals>.<listcomp>", false),
            (18, "step", false),
            (21, "Model.step.<locals>.<lambda>", true),
            (21, "<lambda>", true),
            (18, "<lambda>", false),
            (22, "inner", true),
            (22, "step", true),
            (24, "step", true),
            (25, "torch_dynamo_resume_in_step_at_21", true),
            (26, "<module>", true),
            (26, "step", false),
            (27, "<module>", false),
            (0, "<module>", false),
        ] {
            assert_eq!(text.line_of_function(line, function).is_some(), belongs, "{line} {function}");
        }
    }

    #[test]
    fn equal_lines_of_a_function_are_counted() {
        let text = "def f():\n    x = a()\n    y = 1\n    x = a()\ndef g():\n    x = a()\n";
        let text = PythonText::parse(text.as_bytes()).unwrap();
        let before = [(2, "f"), (4, "f"), (6, "g"), (9, "f")];
        assert_eq!(before.map(|(line, function)| text.equal_lines_before(line, function)), [0, 1, 0, 0]);
    }

    #[test]
    fn other_files_are_no_python_text() {
        assert!(PythonText::parse(b"\xff\xfe").is_none() && PythonText::parse(b"a\0b").is_none());
        assert!(PythonText::parse(b"#!/usr/bin/env python3\n").unwrap().names_interpreter());
    }
}
