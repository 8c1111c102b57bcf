//! `gpumemtrace-parquet`: writes traces as Parquet tables.
//!
//! `gpumemtrace export parquet` runs this program. It is not part of `gpumemtrace`, because the
//! `parquet` crate and its dependencies are larger than the exports of all other formats.
//! [`exporter`] says what is written, `tables` which columns there are.
#![forbid(unsafe_code)]

mod exporter;
mod file;
mod fill;
mod folder;
mod tables;
mod walk;

fn main() -> std::process::ExitCode {
    gpumemtrace_cli::run_folder_exporter(&exporter::ParquetExporter)
}
