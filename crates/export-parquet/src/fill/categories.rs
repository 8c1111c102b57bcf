//! The table of categories, from the peaks of the report.

use gpumemtrace_replay::Report;

use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::categories::CategoryRow;
use crate::tables::saturated;

/// Writes the table `categories` of one trace.
pub(crate) fn write_categories(
    report: &Report,
    trace: usize,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<()> {
    let mut table = folder.begin::<CategoryRow>()?;
    for peak in report.peak.iter().flatten().filter(|peak| peak.trace == trace) {
        for share in &peak.categories {
            table.push(CategoryRow {
                device: i64::from(peak.device),
                category: Text::from_static(share.category.name()),
                bytes: saturated(share.bytes),
                blocks: saturated(share.blocks),
            });
        }
    }
    table.finish()?;
    Ok(())
}
