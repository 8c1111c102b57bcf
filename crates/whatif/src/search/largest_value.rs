//! The largest value of a program's argument that a card holds: the document, and the search.

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{FailedRequest, ReservedRange};

/// The name of the document that `gpumemtrace simulate --vary --json` prints.
pub const LARGEST_SCHEMA: &str = "gpumemtrace.largest";
/// The version of the document. Keys may be added without a new one.
pub const LARGEST_VERSION: u32 = 1;

/// The runs of a program on a simulated card with different values of one argument.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(title = "gpumemtrace simulate --vary", extend("$id" = "urn:gpumemtrace:largest:1"))]
pub struct LargestAnswer {
    /// The name of this format.
    #[schemars(extend("const" = "gpumemtrace.largest"))]
    pub schema: &'static str,
    /// The version of this format.
    #[schemars(extend("const" = 1))]
    pub version: u32,
    /// The name of the argument.
    pub argument: String,
    /// The name of the simulated card.
    pub card: String,
    /// Bytes of its memory.
    pub card_bytes: u64,
    /// Number of cards that the program saw.
    pub devices: u32,
    /// Optimizer steps after which each run ended; runs without an optimizer end by themselves.
    pub steps: u32,
    /// The version of PyTorch.
    pub torch: Option<String>,
    /// The result for each setting, in the order of the command line.
    pub settings: Vec<LargestOfSetting>,
}

/// The largest value with one setting of PyTorch's allocator.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LargestOfSetting {
    /// The value of `PYTORCH_ALLOC_CONF`; `null` for the settings of the environment.
    pub setting: Option<String>,
    /// The largest value that fits; `null` if none does.
    pub largest: Option<u64>,
    /// All runs, by ascending value.
    pub runs: Vec<ValueRun>,
}

impl LargestOfSetting {
    /// The run with the largest value that fits.
    pub fn best(&self) -> Option<&ValueRun> {
        self.runs.iter().find(|run| Some(run.value) == self.largest)
    }
}

/// One run of the program.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ValueRun {
    /// The value of the argument.
    pub value: u64,
    /// The run had no out-of-memory error.
    pub fits: bool,
    /// The peak of allocated memory, of the device where it is highest.
    pub peak_allocated_bytes: u64,
    /// The peak of reserved memory, of the device where it is highest.
    pub peak_reserved_bytes: u64,
    /// The same over several orders of the addresses that the driver gives to segments; `null` if
    /// no address can decide, and except for the largest value.
    pub peak_reserved_range: Option<ReservedRange>,
    /// Memory of the card that nothing used at the peak, of the device where it is lowest; `null`
    /// if unknown.
    pub headroom_bytes: Option<u64>,
    /// The first request that failed; `null` if none did.
    pub first_failure: Option<FailedRequest>,
}

/// Searches the largest number from 0 to `last` that works, if all smaller ones work too.
///
/// It starts at a guess, doubles the distance from it until the answers differ, and then halves the
/// range between them.
#[derive(Clone, Copy, Debug)]
pub struct LargestSearch {
    last: u64,
    guess: u64,
    stride: u64,
    /// The largest number so far that works.
    pub works: Option<u64>,
    /// The smallest number so far that fails.
    pub fails: Option<u64>,
}

impl LargestSearch {
    /// A search that tries the guess first.
    pub fn new(last: u64, guess: u64) -> Self {
        Self { last, guess: guess.min(last), stride: 1, works: None, fails: None }
    }

    /// The number to try next; `None` at the end of the search.
    pub fn next_number(&self) -> Option<u64> {
        match (self.works, self.fails) {
            (None, None) => Some(self.guess),
            (Some(works), None) if works == self.last => None,
            (Some(works), None) => Some(works.saturating_add(self.stride).min(self.last)),
            (None, Some(0)) => None,
            (None, Some(fails)) => Some(fails.saturating_sub(self.stride)),
            (Some(works), Some(fails)) if fails - works <= 1 => None,
            (Some(works), Some(fails)) => Some(works + (fails - works) / 2),
        }
    }

    /// Notes whether the number of [`next_number`](Self::next_number) works.
    pub fn note(&mut self, number: u64, works: bool) {
        if self.works.is_some() || self.fails.is_some() {
            self.stride = self.stride.saturating_mul(2);
        }
        if works {
            self.works = Some(number);
        } else {
            self.fails = Some(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the search finds if exactly the numbers below `fails` work, and how often it asks.
    fn search(last: u64, guess: u64, fails: u64) -> (Option<u64>, u32) {
        let mut search = LargestSearch::new(last, guess);
        let mut asked = 0;
        while let Some(number) = search.next_number() {
            assert!(number <= last && Some(number) != search.works && Some(number) != search.fails);
            search.note(number, number < fails);
            asked += 1;
        }
        (search.works, asked)
    }

    #[test]
    fn search_finds_the_largest_number_that_works() {
        for last in [0, 1, 2, 7, 511] {
            for guess in [0, 1, 5, 300, 600] {
                for fails in 0..=last + 1 {
                    let (found, asked) = search(last, guess, fails);
                    assert_eq!(found, fails.checked_sub(1), "{last} {guess} {fails}");
                    assert!(asked <= 21, "{asked} runs for {last} {guess} {fails}");
                }
            }
        }
        let (found, asked) = search(u64::MAX, 0, 1_000_000);
        assert_eq!(found, Some(999_999));
        assert!(asked <= 42, "{asked}");
    }

    #[test]
    fn good_guess_takes_two_runs() {
        assert_eq!(search(511, 37, 38), (Some(37), 2));
        assert_eq!(search(511, 511, 600), (Some(511), 1));
    }
}
