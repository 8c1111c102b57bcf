//! Parquet files of typed rows: schema, row groups, and a thread that encodes.

pub(crate) mod cell;
pub(crate) mod frames;
pub(crate) mod table;
pub(crate) mod writer;
