//! The table of findings, from the verdicts of the report.

use gpumemtrace_replay::Report;
use serde_json::Value;

use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::findings::FindingRow;

/// Writes the table `findings` of one trace.
pub(crate) fn write_findings(
    report: &Report,
    trace: usize,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<()> {
    let mut table = folder.begin::<FindingRow>()?;
    let verdicts = report.verdicts.iter().flatten().filter(|verdict| verdict.trace == trace);
    for (verdict, place) in verdicts.zip(0..) {
        let json = serde_json::to_value(verdict)?;
        let evidence = json.get("evidence").unwrap_or(&Value::Null);
        let site_id = evidence.get("site").and_then(|site| site.get("id")).and_then(Value::as_str);
        table.push(FindingRow {
            rank_in_report: place,
            severity: Text::from_static(verdict.severity.name()),
            kind: json.get("kind").and_then(Value::as_str).unwrap_or_default().into(),
            device: evidence.get("device").and_then(Value::as_i64),
            summary: Text::from(verdict.summary.as_str()),
            site_id: site_id.map(Text::from),
            evidence_json: Text::from(evidence.to_string()),
        });
    }
    table.finish()?;
    Ok(())
}
