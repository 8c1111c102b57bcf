//! Compares the traces of two runs rank by rank, on all cores. Each thread has one pair in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gpumemtrace_multirun::{RankComparison, RankMerger, UnpairedTrace, UnreadableTrace};

use super::{CompareArgs, PairOptions, compare_traces};
use crate::exit::UnreadableInput;
use crate::symbolize::Resolver;
use crate::trace::many::{name_left_out, read_many};
use crate::trace::open::TraceSource;

/// The traces of two runs, by rank.
#[derive(Default)]
struct RankPairing {
    pairs: Vec<(u64, [PathBuf; 2])>,
    unpaired: Vec<UnpairedTrace>,
    unreadable: Vec<UnreadableTrace>,
}

impl RankPairing {
    fn of(runs: [&[PathBuf]; 2]) -> Self {
        let mut this = Self::default();
        let mut by_rank: [BTreeMap<u64, Vec<&PathBuf>>; 2] = Default::default();
        for (run, files) in runs.into_iter().enumerate() {
            for file in files {
                let meta = TraceSource::find(file).and_then(|(source, _)| source.read_first_meta());
                match meta.map(|meta| meta.number("rank")) {
                    Ok(Some(rank)) => by_rank[run].entry(rank).or_default().push(file),
                    Ok(None) => this.leave_out(run, None, &[file]),
                    Err(UnreadableInput(why)) => {
                        this.unreadable.push(UnreadableTrace { path: file.display().to_string(), why });
                    }
                }
            }
        }
        let ranks: BTreeSet<u64> = by_rank.iter().flat_map(BTreeMap::keys).copied().collect();
        for rank in ranks {
            let [before, after] =
                by_rank.each_ref().map(|files| files.get(&rank).map_or(&[][..], Vec::as_slice));
            if let ([before], [after]) = (before, after) {
                this.pairs.push((rank, [before, after].map(|path| (*path).clone())));
            } else {
                this.leave_out(0, Some(rank), before);
                this.leave_out(1, Some(rank), after);
            }
        }
        this
    }

    fn leave_out(&mut self, run: usize, rank: Option<u64>, files: &[&PathBuf]) {
        let is_repeated = files.len() > 1;
        let unpaired =
            |file: &&PathBuf| UnpairedTrace { run, rank, path: file.display().to_string(), is_repeated };
        self.unpaired.extend(files.iter().map(unpaired));
    }
}

/// The merged comparison, and whether any pair has what `--fail-on` names.
pub(super) fn compare_ranks(
    args: &CompareArgs,
    runs: [&[PathBuf]; 2],
    options: &PairOptions,
) -> Result<(bool, RankComparison), UnreadableInput> {
    let RankPairing { pairs, unpaired, mut unreadable } = RankPairing::of(runs);
    let (mut merger, mut fails) = (RankMerger::default(), false);
    read_many(
        &pairs,
        args.jobs.pace(&args.reading, "ranks"),
        Resolver::for_user,
        |resolver, (_, [before, after])| compare_traces([before, after], options, resolver),
        |results| {
            for (index, result) in results {
                match result {
                    Ok(comparison) => {
                        fails |= args.fails(&comparison);
                        merger.add(pairs[index].0, &comparison);
                    }
                    Err(trace) => unreadable.push(trace),
                }
            }
        },
    );
    unreadable.sort();
    name_left_out(unreadable.iter().map(|trace| &*trace.why));
    let ranks = merger.finish(unpaired, unreadable);
    if ranks.pairs.is_empty() {
        let [before, after] = [&args.before, &args.after].map(|path| path.display());
        return Err(UnreadableInput(format!(
            "no rank has one readable trace in {before} and one in {after}"
        )));
    }
    Ok((fails, ranks))
}
