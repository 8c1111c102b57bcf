//! The check in each record of a ring, and in what the process says at its end.
//!
//! Constraint: a ring lies on a disk, in the memory of a program that may write anywhere, and a changed size would be believed;
//! but the thread that fills it is the program's. Consequence: the last word of a record, which is written last, has 13 bits to
//! spare, and they are a check of all its words, of its number and of the ring's thread: rotations, and one multiplication. Every
//! single flipped bit is noticed, other damage but for one case in 8192, and what an earlier round left in the place is no record.
//!
//! ```text
//! word 7   bits 48 to 50: state   51 to 63: check
//! check  = (w0 ^ w1 <<< 9 ^ w2 <<< 18 ^ ... ^ w7 <<< 63 ^ number <<< 31 ^ thread) * FACTOR >> 51      w7 without its check
//! end    = kind:u8  check:u24  status:u32      check = (kind ^ status <<< 32 ^ time <<< 17) * FACTOR >> 40
//! ```
//! A call that returns completes its record in place. A process may be killed amid that: meanwhile the state says so, and the check is
//! of words 6 and 7 alone, which do not change.

use crate::event::{RECORD_WORDS, STATE_DONE, STATE_IN_FLIGHT};
use crate::meta::EndReason;
use crate::ring::{END_EXIT, END_QUICK_EXIT, END_STOPPED};

/// Record state: as [`STATE_IN_FLIGHT`], and its words are being replaced. Readers of records see only that.
const STATE_COMPLETING: u16 = 4;
const STATE_AT: u32 = 48;
const CHECK_AT: u32 = 51;
const STATES: u64 = 7;
/// Odd, and nowhere has 13 equal bits in a row: so each bit of what it is multiplied with changes the highest 13.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn check(words: &[u64; RECORD_WORDS], last: u64, number: u64, thread: u32) -> u64 {
    let [a, b, c, d, e, f, g, _] = *words;
    let low = a ^ b.rotate_left(9) ^ c.rotate_left(18) ^ d.rotate_left(27);
    let high = e.rotate_left(36) ^ f.rotate_left(45) ^ g.rotate_left(54) ^ last.rotate_left(63);
    (low ^ high ^ number.rotate_left(31) ^ u64::from(thread)).wrapping_mul(FACTOR) >> CHECK_AT
}

fn state_of(last: u64) -> u16 {
    (last >> STATE_AT & STATES) as u16
}

fn with_state(last: u64, state: u16) -> u64 {
    last & ((1 << STATE_AT) - 1) | u64::from(state) << STATE_AT
}

/// The last word of a record as it stands in the ring: record `number` of this thread's.
#[inline]
pub fn seal(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> u64 {
    // Definitions have no state of their own.
    let state = state_of(words[7]).max(STATE_DONE);
    let last = with_state(words[7], state);
    last | check(words, last, number, thread) << CHECK_AT
}

/// The last word while the words of a record in flight are replaced by these.
#[inline]
pub fn seal_completing(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> u64 {
    let last = with_state(words[7], STATE_COMPLETING);
    last | check(&[0, 0, 0, 0, 0, 0, words[6], 0], last, number, thread) << CHECK_AT
}

/// True for a record that its thread may be completing: its words are not to be relied on.
pub fn is_in_flight(last: u64) -> bool {
    matches!(state_of(last), STATE_IN_FLIGHT | STATE_COMPLETING)
}

/// The last word without its check.
pub fn without_check(last: u64) -> u64 {
    let state = if state_of(last) == STATE_COMPLETING { STATE_IN_FLIGHT } else { state_of(last) };
    with_state(last, state)
}

/// The words that were sealed; `None` if they are not as they were, or of another record.
pub fn unseal(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> Option<[u64; RECORD_WORDS]> {
    let last = words[7] & ((1 << CHECK_AT) - 1);
    let expected = match state_of(last) {
        STATE_DONE | STATE_IN_FLIGHT => check(words, last, number, thread),
        STATE_COMPLETING => check(&[0, 0, 0, 0, 0, 0, words[6], 0], last, number, thread),
        _ => return None,
    };
    let [a, b, c, d, e, f, g, _] = *words;
    (words[7] >> CHECK_AT == expected).then(|| [a, b, c, d, e, f, g, without_check(last)])
}

fn end_check(kind: u32, status: i32, time_ns: u64) -> u64 {
    let mixed = u64::from(kind) ^ u64::from(status as u32) << 32 ^ time_ns.rotate_left(17);
    mixed.wrapping_mul(FACTOR) >> 40
}

/// The word that says how the process ended, at this time.
pub fn end_word(kind: u32, status: i32, time_ns: u64) -> u64 {
    u64::from(kind & 0xff) | end_check(kind, status, time_ns) << 8 | u64::from(status as u32) << 32
}

/// Reads [`end_word`]; `None` if it does not fit the time.
pub fn end_of(word: u64, time_ns: u64) -> Option<EndReason> {
    let (kind, status) = (word as u32 & 0xff, (word >> 32) as i32);
    (word == end_word(kind, status, time_ns)).then(|| end_reason(kind, status))?
}

pub(crate) fn end_reason(kind: u32, status: i32) -> Option<EndReason> {
    match kind {
        END_EXIT => Some(EndReason::Exit),
        END_QUICK_EXIT => Some(EndReason::QuickExit(status)),
        END_STOPPED => Some(EndReason::Stopped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_bit_changes_the_highest_thirteen() {
        for bit in 0..64 {
            let change = (FACTOR << bit) >> CHECK_AT;
            assert!(change != 0 && change != (1 << 13) - 1, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn a_record_comes_back_and_no_flipped_bit_goes_unnoticed(
            words: [u64; 8], in_flight: bool, number: u64, thread: u32,
        ) {
            let state = if in_flight { STATE_IN_FLIGHT } else { STATE_DONE };
            let mut words = words;
            words[7] = with_state(words[7], state);
            let plain = words;
            words[7] = seal(&words, number, thread);
            prop_assert_eq!(unseal(&words, number, thread), Some(plain));
            prop_assert_eq!(is_in_flight(words[7]), in_flight);
            prop_assert_eq!(without_check(words[7]), plain[7]);
            for bit in 0..512 {
                words[bit / 64] ^= 1 << (bit % 64);
                prop_assert_eq!(unseal(&words, number, thread), None, "bit {}", bit);
                words[bit / 64] ^= 1 << (bit % 64);
            }
            for bit in 0..32 {
                prop_assert_eq!(unseal(&words, number, thread ^ 1 << bit), None);
            }
        }

        #[test]
        fn a_record_that_is_being_completed_is_in_flight_whatever_its_words(
            before: [u64; 8], after: [u64; 8], replaced in 0usize..=6, number: u64, thread: u32,
        ) {
            let mut after = after;
            after[6] = before[6];
            let mut words = before;
            words[..replaced].copy_from_slice(&after[..replaced]);
            words[7] = seal_completing(&after, number, thread);
            prop_assert!(is_in_flight(words[7]));
            let read = unseal(&words, number, thread).unwrap();
            prop_assert_eq!(read[..7].to_vec(), words[..7].to_vec());
            prop_assert_eq!(read[7], with_state(after[7], STATE_IN_FLIGHT));
            for bit in 6 * 64..512 {
                words[bit / 64] ^= 1 << (bit % 64);
                prop_assert_eq!(unseal(&words, number, thread), None, "bit {}", bit);
                words[bit / 64] ^= 1 << (bit % 64);
            }
        }

        #[test]
        fn an_end_comes_back_and_no_flipped_bit_goes_unnoticed(status: i32, time_ns: u64, kind in 1u32..4) {
            let word = end_word(kind, status, time_ns);
            prop_assert_eq!(end_of(word, time_ns), end_reason(kind, status));
            for bit in 0..64 {
                prop_assert_eq!(end_of(word ^ 1 << bit, time_ns), None);
                prop_assert_eq!(end_of(word, time_ns ^ 1 << bit), None);
            }
        }
    }

    #[test]
    fn nothing_is_no_record() {
        assert_eq!(unseal(&[0; 8], 0, 0), None);
        assert_eq!(end_of(0, 0), None);
    }
}
