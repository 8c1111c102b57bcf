//! Finds the smallest card that holds a run, in a few passes over its events.
//!
//! Each pass predicts the run on several cards at once. The first pass takes cards that double in
//! size. Later ones divide the range between the largest card that was too small and the smallest
//! that was not.

/// Memory of cards is tried in multiples of this, as the driver hands it out.
const STEP_BYTES: u64 = 2 << 20;
/// The smallest and the largest card that are tried.
const SMALLEST_BYTES: u64 = 64 << 20;
const LARGEST_BYTES: u64 = 1 << 40;
/// The most cards per pass.
const CARDS: u64 = 15;

/// The search for one setting.
#[derive(Clone, Copy, Debug, Default)]
pub struct CardSearch {
    /// The largest card below `works_bytes` that was too small.
    pub fails_bytes: Option<u64>,
    /// The smallest card such that it and each larger one that was tried hold the run.
    pub works_bytes: Option<u64>,
}

impl CardSearch {
    /// Cards to try next, ascending. Empty at the end of the search.
    pub fn next_cards(&self) -> Vec<u64> {
        match (self.fails_bytes, self.works_bytes) {
            (None, None) => std::iter::successors(Some(SMALLEST_BYTES), |bytes| bytes.checked_mul(2))
                .take_while(|bytes| *bytes <= LARGEST_BYTES)
                .collect(),
            // Not even the largest one holds the run.
            (Some(_), None) => Vec::new(),
            (fails, Some(works)) => cards_between(fails.unwrap_or(0), works),
        }
    }

    /// Notes the answers for the cards of [`next_cards`](Self::next_cards), in its order.
    pub fn note(&mut self, answers: &[(u64, bool)]) {
        for (card_bytes, works) in answers.iter().rev() {
            if !works {
                self.fails_bytes = Some(*card_bytes);
                return;
            }
            self.works_bytes = Some(*card_bytes);
        }
    }
}

/// Cards that divide a range evenly.
fn cards_between(fails_bytes: u64, works_bytes: u64) -> Vec<u64> {
    let steps = (works_bytes - fails_bytes) / STEP_BYTES;
    let cards = CARDS.min(steps.saturating_sub(1));
    (1..=cards).map(|number| fails_bytes + steps * number / (cards + 1) * STEP_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where exactly the cards of at least `needed_bytes` hold the run. Returns the
    /// passes, too.
    fn search(needed_bytes: u64) -> (CardSearch, usize) {
        let mut search = CardSearch::default();
        for passes in 0.. {
            let cards = search.next_cards();
            if cards.is_empty() {
                return (search, passes);
            }
            assert!(cards.is_sorted() && cards.len() <= CARDS as usize);
            let answers = cards.iter().map(|bytes| (*bytes, *bytes >= needed_bytes));
            search.note(&answers.collect::<Vec<_>>());
        }
        unreachable!("the search ends")
    }

    #[test]
    fn search_finds_the_smallest_card() {
        for needed_bytes in [1, 2 << 20, 3 << 20, 64 << 20, 65 << 20, 1_234_567_890, 85_017_493_504, 1 << 40]
        {
            let (search, passes) = search(needed_bytes);
            assert_eq!(search.works_bytes, Some(needed_bytes.next_multiple_of(STEP_BYTES)));
            assert_eq!(search.fails_bytes.unwrap_or(0) + STEP_BYTES, search.works_bytes.unwrap_or(0));
            assert!(passes <= 6, "{passes} passes for {needed_bytes}");
        }
        let (too_large, passes) = search((1 << 40) + 1);
        assert_eq!((too_large.works_bytes, passes), (None, 1));
    }

    #[test]
    fn search_is_above_the_largest_card_that_fails() {
        let mut search = CardSearch { fails_bytes: Some(0), works_bytes: Some(16 * STEP_BYTES) };
        let cards = search.next_cards();
        // A run may fail on a card, though it fits on a smaller one.
        let answers: Vec<_> = cards.iter().map(|bytes| (*bytes, *bytes != 9 * STEP_BYTES)).collect();
        search.note(&answers);
        assert_eq!((search.fails_bytes, search.works_bytes), (Some(9 * STEP_BYTES), Some(10 * STEP_BYTES)));
        assert_eq!(search.next_cards(), [0; 0]);
    }
}
