//! The table of call sites.

use std::collections::BTreeMap;

use gpumemtrace_cli::export::LineIds;
use gpumemtrace_replay::report::Site;

use super::text;
use crate::file::cell::Text;
use crate::folder::PartitionFolder;
use crate::tables::sites::SiteRow;
use crate::tables::{known_device, saturated};
use crate::walk::layer_name;
use crate::walk::totals::{AllocatorTotals, LayerOnDevice};

/// Writes the table `sites`, by allocator, device and site.
pub(crate) fn write_sites(
    layers: Vec<(LayerOnDevice, AllocatorTotals)>,
    sites: &BTreeMap<u32, Site>,
    line_ids: &mut LineIds,
    folder: &mut PartitionFolder<'_>,
) -> anyhow::Result<()> {
    let mut table = folder.begin::<SiteRow>()?;
    for ((layer, device), totals) in layers {
        for (number, totals) in totals.into_sites() {
            let site = number.and_then(|number| sites.get(&number));
            table.push(SiteRow {
                site: number.map(i64::from),
                site_id: site.map(|site| Text::from(site.id.as_str())),
                file: text(site.and_then(|site| site.file.as_ref())),
                line: site.and_then(|site| site.line).map(i64::from),
                function: text(site.and_then(|site| site.function.as_ref())),
                source_id: site.and_then(|site| line_ids.of_site(site)).map(Text::from),
                module: text(site.and_then(|site| site.module.as_ref())),
                is_backward: site.is_some_and(|site| site.is_backward),
                layer: layer_name(layer),
                device: known_device(device),
                allocations: saturated(totals.allocated.blocks),
                allocated_bytes: saturated(totals.allocated.bytes),
                frees: saturated(totals.freed.blocks),
                freed_bytes: saturated(totals.freed.bytes),
                peak_blocks: saturated(totals.at_peak.blocks),
                peak_bytes: saturated(totals.at_peak.bytes),
                end_blocks: saturated(totals.live.blocks),
                end_bytes: saturated(totals.live.bytes),
            });
        }
    }
    table.finish()?;
    Ok(())
}
