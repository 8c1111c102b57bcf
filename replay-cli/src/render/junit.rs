//! A run held against its budgets, as JUnit's XML: a test case for each budget.
//!
//! Constraint: XML has characters that it cannot hold at all, and names come from a trace. Consequence: all text goes through the
//! writer's escapes, and what is no character of XML becomes a space.

use anyhow::Context;
use gpumemtrace_replay::budget::{Check, Outcome, State};
use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::render::text::check::{MAX_PARTS, conclusion, numbers, parts};
use crate::terminal::layout::printable;

/// The whole file.
pub(crate) fn render(check: &Check) -> anyhow::Result<String> {
    let number = |which: fn(&Outcome) -> bool| {
        check.budgets.iter().filter(|outcome| which(outcome)).count().to_string()
    };
    let (tests, failures) = (check.budgets.len().to_string(), number(|outcome| outcome.fails));
    let skipped = number(|outcome| !outcome.fails && outcome.state == State::Unknown);
    let counts = [
        ("tests", &*tests),
        ("failures", &*failures),
        ("errors", "0"),
        ("skipped", &*skipped),
        ("time", "0"),
    ];
    let name = xml(&format!("gpumemtrace check {}", check.trace));
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    writer.create_element("testsuites").with_attributes(counts).write_inner_content(|writer| {
        let suite =
            writer.create_element("testsuite").with_attribute(("name", &*name)).with_attributes(counts);
        suite.write_inner_content(|writer| {
            check.budgets.iter().try_for_each(|outcome| case(writer, outcome))?;
            writer.create_element("system-out").write_text_content(BytesText::new(&xml(&format!(
                "{}: {}",
                check.budget,
                conclusion(check)
            ))))?;
            Ok(())
        })?;
        Ok(())
    })?;
    let xml = String::from_utf8(writer.into_inner()).context("the XML is no text")?;
    Ok(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{xml}\n"))
}

fn case(writer: &mut Writer<Vec<u8>>, outcome: &Outcome) -> std::io::Result<()> {
    let (name, message) = (xml(&outcome.name), xml(&numbers(outcome)));
    let attributes = [("classname", "gpumemtrace.budget"), ("name", &*name), ("time", "0")];
    let element = writer.create_element("testcase").with_attributes(attributes);
    match (outcome.fails, outcome.state) {
        (true, state) => {
            let kind = if state == State::Unknown { "unknown" } else { "exceeded" };
            let details = xml(&[vec![numbers(outcome)], parts(outcome, MAX_PARTS)].concat().join("; "));
            element.write_inner_content(|writer| {
                let failure = writer.create_element("failure");
                failure
                    .with_attributes([("type", kind), ("message", &*message)])
                    .write_text_content(BytesText::new(&details))?;
                Ok(())
            })?;
        }
        (false, State::Unknown) => {
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

/// Only what XML can hold.
fn xml(text: &str) -> String {
    printable(text).replace(['\u{fffe}', '\u{ffff}'], " ")
}
