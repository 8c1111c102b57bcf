//! The table of formats: the commands below `export`, in the order of its help.

use clap::{ArgMatches, Command};

use super::exporter::{ExportFormat, Exporter};
use super::program::ExportProgram;
use super::{csv, firefox, folded, perfetto, pprof, speedscope, svg, torch_snapshot};

/// The formats that this program writes.
pub(crate) static FORMATS: &[FormatRow] = &[
    FormatRow::of::<torch_snapshot::PickledSnapshot>(),
    FormatRow::of::<torch_snapshot::JsonSnapshot>(),
    FormatRow::of::<perfetto::PerfettoExporter>(),
    FormatRow::of::<folded::FoldedExporter>(),
    FormatRow::of::<speedscope::SpeedscopeExporter>(),
    FormatRow::of::<pprof::PprofExporter>(),
    FormatRow::of::<firefox::FirefoxExporter>(),
    FormatRow::of::<csv::CsvSitesExporter>(),
    FormatRow::of::<csv::CsvTimelineExporter>(),
    FormatRow::of::<svg::SvgExporter>(),
];

/// The formats that other programs write, after those of [`FORMATS`].
pub(crate) static PROGRAMS: &[ExportProgram] = &[ExportProgram {
    name: "parquet",
    help: "A folder of Parquet tables, for DuckDB, pandas, Polars and Spark",
    example: "parquet 'run.rank*.trace' --run-name nightly-41 -o archive",
    program: "gpumemtrace-parquet",
}];

/// One format, whatever its type.
pub(crate) struct FormatRow {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) example: &'static str,
    pub(crate) suffix: &'static str,
    pub(crate) shows_code: bool,
    add_options: fn(Command) -> Command,
    read_options: fn(&ArgMatches) -> Result<Box<dyn Exporter>, clap::Error>,
}

impl FormatRow {
    const fn of<F: ExportFormat + 'static>() -> Self {
        Self {
            name: F::NAME,
            help: F::HELP,
            example: F::EXAMPLE,
            suffix: F::SUFFIX,
            shows_code: F::SHOWS_CODE,
            add_options: F::augment_args,
            read_options: |matches| Ok(Box::new(F::from_arg_matches(matches)?)),
        }
    }

    /// Adds the options that only this format has.
    pub(crate) fn add_options(&self, command: Command) -> Command {
        (self.add_options)(command)
    }

    /// The exporter with the options of the command line.
    pub(crate) fn exporter(&self, matches: &ArgMatches) -> Result<Box<dyn Exporter>, clap::Error> {
        (self.read_options)(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_suffixes_are_unique_and_examples_name_their_format() {
        let rows = FORMATS.iter().map(|row| (row.name, row.example));
        let rows: Vec<_> = rows.chain(PROGRAMS.iter().map(|row| (row.name, row.example))).collect();
        let names: BTreeSet<&str> = rows.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), rows.len());
        let suffixes: BTreeSet<&str> = FORMATS.iter().map(|row| row.suffix).collect();
        assert_eq!(suffixes.len(), FORMATS.len());
        for (name, example) in rows {
            assert_eq!(example.split(' ').next(), Some(name));
        }
    }
}
