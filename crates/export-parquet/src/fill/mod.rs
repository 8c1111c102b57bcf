//! Fills the tables with a size that does not depend on the number of events.

pub(crate) mod categories;
pub(crate) mod findings;
pub(crate) mod runs;
pub(crate) mod segments;
pub(crate) mod series;
pub(crate) mod sites;
pub(crate) mod stacks;

use crate::file::cell::Text;

/// An optional text of the report.
fn text(text: Option<&String>) -> Option<Text> {
    text.map(|text| Text::from(text.as_str()))
}
