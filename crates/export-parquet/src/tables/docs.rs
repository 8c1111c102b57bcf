//! The tables of columns in `docs/exports/parquet-columns.md` are those of the code.

use std::fmt::Write as _;

use super::allocations::AllocationRow;
use super::categories::CategoryRow;
use super::events::EventRow;
use super::findings::FindingRow;
use super::runs::RunRow;
use super::segments::SegmentRow;
use super::series::SeriesRow;
use super::sites::SiteRow;
use super::stacks::StackRow;
use super::steps::StepRow;
use crate::file::table::TableRow;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/exports/parquet-columns.md");

fn columns<R: TableRow>(page: &mut String) {
    write!(page, "## {}\n\n| column | type | meaning |\n|---|---|---|\n", R::TABLE).unwrap();
    for column in R::columns() {
        let null = if column.is_optional { ", null" } else { "" };
        let meaning: Vec<&str> = column.meaning.split_whitespace().collect();
        let (name, sql_type) = (column.name, column.sql_type);
        writeln!(page, "| `{name}` | {sql_type}{null} | {} |", meaning.join(" ")).unwrap();
    }
}

#[test]
fn page_has_the_columns_of_all_tables() {
    let mut tables: [String; 10] = Default::default();
    let [runs, events, allocations, stacks, sites, steps, series, segments, findings, categories] =
        &mut tables;
    columns::<RunRow>(runs);
    columns::<EventRow>(events);
    columns::<AllocationRow>(allocations);
    columns::<StackRow>(stacks);
    columns::<SiteRow>(sites);
    columns::<StepRow>(steps);
    columns::<SeriesRow>(series);
    columns::<SegmentRow>(segments);
    columns::<FindingRow>(findings);
    columns::<CategoryRow>(categories);
    let page = std::fs::read_to_string(PAGE).unwrap_or_default();
    let missing: Vec<String> = tables.into_iter().filter(|table| !page.contains(table)).collect();
    assert!(missing.is_empty(), "docs/exports/parquet-columns.md must contain:\n\n{}", missing.join("\n"));
}
