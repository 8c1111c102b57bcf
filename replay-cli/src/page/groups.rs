//! Live bytes over time by category, stream and pool.

use std::collections::BTreeMap;

use gpumemtrace_replay::DeviceHistory;

use super::columns::Columns;
use super::data::{GroupColumn, GroupsBy, json_word};
use crate::render::wording::fragmentation::{name_pool, name_stream};

/// The ways to divide the live bytes of each bin that the trace knows.
pub(super) fn groups_of_bins(device: &DeviceHistory, columns: &mut Columns) -> Vec<GroupsBy> {
    let categories = device.categories.iter();
    let by_category = categories.map(|(category, bytes)| (json_word(*category).replace('_', " "), bytes));
    let unknown = || "unknown".to_owned();
    let pools = || device.pools.iter();
    let by_stream =
        pools().map(|(pool, bytes)| (pool.map_or_else(unknown, |pool| name_stream(pool.stream)), bytes));
    let by_pool = pools().map(|(pool, bytes)| (pool.as_ref().map_or_else(unknown, name_pool), bytes));
    let all = [
        ("category", sum_by_name(by_category)),
        ("stream", sum_by_name(by_stream)),
        ("pool", sum_by_name(by_pool)),
    ];
    let known = all.into_iter().filter(|(_, sums)| !sums.is_empty());
    known
        .map(|(by, sums)| GroupsBy {
            by,
            groups: sums
                .into_iter()
                .map(|(name, bytes)| GroupColumn { name, bytes: columns.add(bytes) })
                .collect(),
        })
        .collect()
}

fn sum_by_name<'a>(rows: impl Iterator<Item = (String, &'a Vec<u64>)>) -> BTreeMap<String, Vec<u64>> {
    let mut sums: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (name, bytes) in rows {
        let sum = sums.entry(name).or_insert_with(|| vec![0; bytes.len()]);
        for (sum, bytes) in sum.iter_mut().zip(bytes) {
            *sum = sum.saturating_add(*bytes);
        }
    }
    sums
}
