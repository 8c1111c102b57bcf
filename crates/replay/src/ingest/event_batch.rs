//! The decoded events of one block, or of a part of it, prepared for the merger.
//!
//! Decoded events pass from one processor's cache to another's, and the first access to each waits
//! for that. [`EventBatch::new`] therefore runs on the thread that decoded them and notes where
//! sequence numbers follow one another. The merger then works with these notes alone.

use std::ops::Range;

use gpumemtrace_format::{Event, NO_SEQ};

/// Events with consecutive sequence numbers: `events[begin..end]`. An event without a number is a
/// piece of its own.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) first_seq: u64,
    pub(crate) begin: usize,
    pub(crate) end: usize,
}

/// Events of one block, split into ascending runs, and these into pieces.
#[derive(Debug)]
pub(crate) struct EventBatch {
    pub(crate) events: Vec<Event>,
    pub(crate) pieces: Vec<Piece>,
    /// The first piece of each run.
    run_starts: Vec<usize>,
    /// Runs with events that were not passed on.
    pub(crate) pending_runs: usize,
    /// For the receiver of the events.
    pub(crate) needs_check: bool,
}

impl EventBatch {
    /// Splits `events` into runs. `needs_check` is passed on with each slice of them.
    pub(crate) fn new(events: Vec<Event>, needs_check: bool) -> Self {
        let (mut pieces, mut run_starts) = (Vec::<Piece>::new(), Vec::new());
        let mut last_seq = NO_SEQ;
        for piece in events.chunk_by(|a, b| b.seq != NO_SEQ && b.seq == a.seq.wrapping_add(1)) {
            let first_seq = piece[0].seq;
            if pieces.is_empty() || first_seq <= last_seq {
                run_starts.push(pieces.len());
            }
            let begin = pieces.last().map_or(0, |piece| piece.end);
            pieces.push(Piece { first_seq, begin, end: begin + piece.len() });
            last_seq = piece[piece.len() - 1].seq;
        }
        Self { pending_runs: run_starts.len(), events, pieces, run_starts, needs_check }
    }

    /// The pieces of each run.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.run_starts.iter().skip(1).copied().chain([self.pieces.len()]);
        self.run_starts.iter().copied().zip(ends).map(|(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpumemtrace_format::EventKind;

    #[test]
    fn runs_ascend_and_pieces_have_no_gaps() {
        let seqs = [4, 5, 9, 9, 10, NO_SEQ, NO_SEQ, 2];
        let events = seqs.map(|seq| Event { seq, ..Event::new(EventKind::MARK) });
        let batch = EventBatch::new(events.to_vec(), false);
        let pieces: Vec<_> =
            batch.pieces.iter().map(|piece| (piece.first_seq, piece.begin..piece.end)).collect();
        let expected = [(4, 0..2), (9, 2..3), (9, 3..5), (NO_SEQ, 5..6), (NO_SEQ, 6..7), (2, 7..8)];
        assert_eq!(pieces, expected);
        assert_eq!(batch.runs().collect::<Vec<_>>(), [0..2, 2..4, 4..5, 5..6]);
    }
}
