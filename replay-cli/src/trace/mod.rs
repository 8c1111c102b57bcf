//! Access to traces on disk: opening them, finding their parts, reading their index.

pub(crate) mod bytes;
pub(crate) mod find;
pub(crate) mod foreign_file;
pub(crate) mod many;
pub(crate) mod open;
pub(crate) mod parts;
pub(crate) mod progress;
pub(crate) mod quick_info;
pub(crate) mod ring;
pub(crate) mod summary;
