//! A checked budget as JUnit XML: one test suite per trace, and one test case per limit.
//!
//! Names come from a trace and may hold any character. Characters that XML cannot hold become text
//! such as `\u{1b}`; the writer escapes those with a meaning in XML.

use std::borrow::Borrow;
use std::io::{self, Write};

use gpumemtrace_multirun::{CheckDocument, UnreadableTrace};
use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit};
use quick_xml::Writer;
use quick_xml::events::BytesText;

use super::outcome::{MAX_CONTRIBUTORS, format_numbers, list_contributors, summarize_check};
use super::renderer::{OutputFormat, RenderContext, Renderer};
use crate::terminal::escape::escape_text;

/// The format `junit`, for `check` only.
pub(crate) struct JunitRenderer;

impl OutputFormat for JunitRenderer {
    fn name(&self) -> &'static str {
        "junit"
    }

    fn help(&self) -> &'static str {
        "JUnit XML, one test case per limit"
    }
}

impl Renderer<CheckDocument> for JunitRenderer {
    fn render(
        &self,
        document: &CheckDocument,
        _: &RenderContext<'_>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let written = match document {
            CheckDocument::One(check) => write_suites(std::slice::from_ref(check), &[], out),
            CheckDocument::Several(all) => write_suites(&all.checks, &all.unreadable, out),
        };
        Ok(written?)
    }
}

/// The counts of a suite, or of all.
#[derive(Clone, Copy, Default)]
struct CaseCounts {
    tests: usize,
    failures: usize,
    errors: usize,
    skipped: usize,
}

impl CaseCounts {
    fn of(check: &BudgetCheck) -> Self {
        let number = |which: fn(&CheckedLimit) -> bool| check.budgets.iter().filter(|it| which(it)).count();
        let skipped = number(|outcome| !outcome.fails && outcome.state == CheckState::Unknown);
        Self { tests: check.budgets.len(), failures: number(|outcome| outcome.fails), errors: 0, skipped }
    }

    fn add(self, other: Self) -> Self {
        Self {
            tests: self.tests + other.tests,
            failures: self.failures + other.failures,
            errors: self.errors + other.errors,
            skipped: self.skipped + other.skipped,
        }
    }

    fn attributes(self) -> [(&'static str, String); 5] {
        let Self { tests, failures, errors, skipped } = self;
        let counts =
            [("tests", tests), ("failures", failures), ("errors", errors), ("skipped", skipped), ("time", 0)];
        counts.map(|(name, count)| (name, count.to_string()))
    }
}

/// The counts of the suite of a trace that cannot be read: one test with an error.
const UNREADABLE: CaseCounts = CaseCounts { tests: 1, failures: 0, errors: 1, skipped: 0 };

fn write_suites<C: Borrow<BudgetCheck>>(
    checks: &[C],
    unreadable: &[UnreadableTrace],
    out: &mut dyn Write,
) -> io::Result<()> {
    out.write_all(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")?;
    let counts = checks.iter().map(|check| CaseCounts::of(check.borrow()));
    let counts = counts.chain(unreadable.iter().map(|_| UNREADABLE));
    let all = counts.fold(CaseCounts::default(), CaseCounts::add).attributes();
    let mut writer = Writer::new_with_indent(&mut *out, b' ', 2);
    let suites = writer.create_element("testsuites").with_attributes(as_texts(&all));
    suites.write_inner_content(|writer| {
        checks.iter().try_for_each(|check| write_suite(writer, check.borrow()))?;
        unreadable.iter().try_for_each(|trace| write_unreadable(writer, trace))
    })?;
    out.write_all(b"\n")
}

fn as_texts<'a>(attributes: &'a [(&'static str, String); 5]) -> [(&'static str, &'a str); 5] {
    attributes.each_ref().map(|(name, value)| (*name, value.as_str()))
}

fn write_suite(writer: &mut Writer<impl Write>, check: &BudgetCheck) -> io::Result<()> {
    let name = escape_text(&format!("gpumemtrace check {}", check.trace));
    let counts = CaseCounts::of(check).attributes();
    let suite = writer.create_element("testsuite").with_attribute(("name", &*name));
    suite.with_attributes(as_texts(&counts)).write_inner_content(|writer| {
        check.budgets.iter().try_for_each(|outcome| write_test_case(writer, outcome))?;
        writer.create_element("system-out").write_text_content(BytesText::new(&escape_text(&format!(
            "{}: {}",
            check.budget,
            summarize_check(check)
        ))))?;
        Ok(())
    })?;
    Ok(())
}

fn write_unreadable(writer: &mut Writer<impl Write>, trace: &UnreadableTrace) -> io::Result<()> {
    let (name, why) = (escape_text(&format!("gpumemtrace check {}", trace.path)), escape_text(&trace.why));
    let counts = UNREADABLE.attributes();
    let suite = writer.create_element("testsuite").with_attribute(("name", &*name));
    suite.with_attributes(as_texts(&counts)).write_inner_content(|writer| {
        let attributes = [("classname", "gpumemtrace.budget"), ("name", "readable"), ("time", "0")];
        writer.create_element("testcase").with_attributes(attributes).write_inner_content(|writer| {
            let error = writer.create_element("error").with_attribute(("type", "unreadable"));
            error.with_attribute(("message", &*why)).write_empty()?;
            Ok(())
        })?;
        Ok(())
    })?;
    Ok(())
}

fn write_test_case(writer: &mut Writer<impl Write>, outcome: &CheckedLimit) -> io::Result<()> {
    let (name, message) = (escape_text(&outcome.name), escape_text(&format_numbers(outcome)));
    let attributes = [("classname", "gpumemtrace.budget"), ("name", &*name), ("time", "0")];
    let element = writer.create_element("testcase").with_attributes(attributes);
    match (outcome.fails, outcome.state) {
        (true, state) => {
            let kind = if state == CheckState::Unknown { "unknown" } else { "exceeded" };
            let details = escape_text(
                &std::iter::once(format_numbers(outcome))
                    .chain(list_contributors(outcome, MAX_CONTRIBUTORS).iter().map(ToString::to_string))
                    .collect::<Vec<_>>()
                    .join("; "),
            );
            element.write_inner_content(|writer| {
                let failure = writer.create_element("failure");
                failure
                    .with_attributes([("type", kind), ("message", &*message)])
                    .write_text_content(BytesText::new(&details))?;
                Ok(())
            })?;
        }
        (false, CheckState::Unknown) => {
            element.write_inner_content(|writer| {
                writer.create_element("skipped").with_attribute(("message", &*message)).write_empty()?;
                Ok(())
            })?;
        }
        (false, _) => {
            element.write_inner_content(|writer| {
                writer.create_element("system-out").write_text_content(BytesText::new(&message))?;
                Ok(())
            })?;
        }
    }
    Ok(())
}
