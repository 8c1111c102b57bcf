//! The rows of the tables. `docs/exports/parquet-columns.md` has their columns, in this order and
//! with these sentences (checked by `docs.rs`).

pub(crate) mod allocations;
pub(crate) mod categories;
#[cfg(test)]
mod docs;
pub(crate) mod events;
pub(crate) mod findings;
pub(crate) mod runs;
pub(crate) mod segments;
pub(crate) mod series;
pub(crate) mod sites;
pub(crate) mod stacks;
pub(crate) mod steps;

/// The version of the tables, in the metadata of every file. It changes when a column is removed
/// or changes its meaning.
pub(crate) const SCHEMA_VERSION: &str = "1";
/// The name of the tables, in the metadata of every file.
pub(crate) const SCHEMA_NAME: &str = "gpumemtrace.tables";

/// A number of a trace as SQL's BIGINT; `None` above its range, which only damaged traces have.
#[inline]
pub(crate) fn number(value: u64) -> Option<i64> {
    i64::try_from(value).ok()
}

/// A sum as BIGINT. Sums of sizes saturate.
pub(crate) fn saturated(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// An ordinal; `None` for an unknown device.
#[inline]
pub(crate) fn known_device(device: u8) -> Option<i64> {
    (device != gpumemtrace_format::NO_DEVICE).then_some(i64::from(device))
}
