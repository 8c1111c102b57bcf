//! A checked budget as JUnit XML: one test case per limit.
//!
//! Names come from a trace and may hold any character. Characters that XML cannot hold become text
//! such as `\u{1b}`; the writer escapes those with a meaning in XML.

use std::io::{self, Write};

use gpumemtrace_replay::budget::{BudgetCheck, CheckState, CheckedLimit};
use quick_xml::Writer;
use quick_xml::events::BytesText;

use super::outcome::{MAX_CONTRIBUTORS, format_numbers, list_contributors, summarize_check};
use super::{OutputFormat, RenderContext, Renderer};
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

impl Renderer<BudgetCheck> for JunitRenderer {
    fn render(&self, check: &BudgetCheck, _: &RenderContext<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        Ok(write_suites(check, out)?)
    }
}

fn write_suites(check: &BudgetCheck, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")?;
    let number = |which: fn(&CheckedLimit) -> bool| {
        check.budgets.iter().filter(|outcome| which(outcome)).count().to_string()
    };
    let (tests, failures) = (check.budgets.len().to_string(), number(|outcome| outcome.fails));
    let skipped = number(|outcome| !outcome.fails && outcome.state == CheckState::Unknown);
    let counts = [
        ("tests", &*tests),
        ("failures", &*failures),
        ("errors", "0"),
        ("skipped", &*skipped),
        ("time", "0"),
    ];
    let name = escape_text(&format!("gpumemtrace check {}", check.trace));
    let mut writer = Writer::new_with_indent(&mut *out, b' ', 2);
    writer.create_element("testsuites").with_attributes(counts).write_inner_content(|writer| {
        let suite =
            writer.create_element("testsuite").with_attribute(("name", &*name)).with_attributes(counts);
        suite.write_inner_content(|writer| {
            check.budgets.iter().try_for_each(|outcome| write_test_case(writer, outcome))?;
            writer.create_element("system-out").write_text_content(BytesText::new(&escape_text(
                &format!("{}: {}", check.budget, summarize_check(check)),
            )))?;
            Ok(())
        })?;
        Ok(())
    })?;
    out.write_all(b"\n")
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
