//! The check in each record of a ring and in the end word.
//!
//! A ring lies on a disk and in the memory of a program that may write anywhere, so a reader must
//! detect a changed size. The traced thread seals every record, so sealing takes a few rotations
//! and one multiplication. The last word of a record, which is written last, holds 13 bits of check
//! over all its words, its number and the ring's thread. It detects every single flipped bit and a
//! leftover of an earlier round; of other damage it misses one case in 8192.
//!
//! ```text
//! word 7   bits 48 to 50: state   51 to 63: check
//! check  = (w0 ^ w1 <<< 9 ^ w2 <<< 18 ^ ... ^ w7 <<< 63 ^ number <<< 31 ^ thread) * FACTOR >> 51
//!          with w7 without its check
//! end    = kind:u8  check:u24  status:u32      check = (kind ^ status <<< 32 ^ time <<< 17) * FACTOR >> 40
//! ```
//! A call that returns completes its record in place, and the process may be killed meanwhile.
//! Until the record is complete, its state says so and the check covers words 6 and 7 only, which
//! do not change.

use crate::event::{RECORD_WORDS, STATE_DONE, STATE_IN_FLIGHT, STATE_LEFT};
use crate::meta::EndReason;
use crate::ring::{END_EXIT, END_QUICK_EXIT, END_STOPPED};

/// Record state: in flight, and its words are being replaced. [`unseal`] returns it as
/// [`STATE_IN_FLIGHT`].
const STATE_COMPLETING: u16 = 4;
const STATE_AT: u32 = 48;
const CHECK_AT: u32 = 51;
const STATE_MASK: u64 = 7;
/// Odd, and without 13 equal bits in a row: each bit of the other factor changes the highest 13
/// bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn check(words: &[u64; RECORD_WORDS], last: u64, number: u64, thread: u32) -> u64 {
    let [a, b, c, d, e, f, g, _] = *words;
    let low = a ^ b.rotate_left(9) ^ c.rotate_left(18) ^ d.rotate_left(27);
    let high = e.rotate_left(36) ^ f.rotate_left(45) ^ g.rotate_left(54) ^ last.rotate_left(63);
    (low ^ high ^ number.rotate_left(31) ^ u64::from(thread)).wrapping_mul(FACTOR) >> CHECK_AT
}

fn state_of(last: u64) -> u16 {
    (last >> STATE_AT & STATE_MASK) as u16
}

fn with_state(last: u64, state: u16) -> u64 {
    last & ((1 << STATE_AT) - 1) | u64::from(state) << STATE_AT
}

/// The last word of record `number` in the ring of this thread, with its check.
#[inline]
pub fn seal(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> u64 {
    // Definitions have no state: they are complete.
    let state = state_of(words[7]).max(STATE_DONE);
    let last = with_state(words[7], state);
    last | check(words, last, number, thread) << CHECK_AT
}

/// The last word while a record in flight is replaced by these words.
#[inline]
pub fn seal_completing(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> u64 {
    let last = with_state(words[7], STATE_COMPLETING);
    last | check(&[0, 0, 0, 0, 0, 0, words[6], 0], last, number, thread) << CHECK_AT
}

/// True for a record in flight: its thread may be replacing its words.
pub fn is_in_flight(last: u64) -> bool {
    matches!(state_of(last), STATE_IN_FLIGHT | STATE_COMPLETING)
}

/// The last word without its check, as [`unseal`] returns it.
pub fn clear_check(last: u64) -> u64 {
    let state = if state_of(last) == STATE_COMPLETING { STATE_IN_FLIGHT } else { state_of(last) };
    with_state(last, state)
}

/// The words of record `number` in the ring of this thread; `None` if they are damaged or of
/// another record.
pub fn unseal(words: &[u64; RECORD_WORDS], number: u64, thread: u32) -> Option<[u64; RECORD_WORDS]> {
    let last = words[7] & ((1 << CHECK_AT) - 1);
    let expected = match state_of(last) {
        STATE_DONE | STATE_IN_FLIGHT | STATE_LEFT => check(words, last, number, thread),
        STATE_COMPLETING => check(&[0, 0, 0, 0, 0, 0, words[6], 0], last, number, thread),
        _ => return None,
    };
    let [a, b, c, d, e, f, g, _] = *words;
    (words[7] >> CHECK_AT == expected).then(|| [a, b, c, d, e, f, g, clear_check(last)])
}

fn end_check(kind: u32, status: i32, time_ns: u64) -> u64 {
    let mixed = u64::from(kind) ^ u64::from(status as u32) << 32 ^ time_ns.rotate_left(17);
    mixed.wrapping_mul(FACTOR) >> 40
}

/// The end word: how the process ended, with a check that covers the time of the end too.
pub fn encode_end_word(kind: u32, status: i32, time_ns: u64) -> u64 {
    u64::from(kind & 0xff) | end_check(kind, status, time_ns) << 8 | u64::from(status as u32) << 32
}

/// Decodes an end word; `None` if the process has not recorded an end, or if the check fails.
pub fn decode_end_word(word: u64, time_ns: u64) -> Option<EndReason> {
    let (kind, status) = (word as u32 & 0xff, (word >> 32) as i32);
    (word == encode_end_word(kind, status, time_ns)).then(|| end_reason(kind, status))?
}

fn end_reason(kind: u32, status: i32) -> Option<EndReason> {
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
    fn every_bit_changes_the_check() {
        for bit in 0..64 {
            let change = (FACTOR << bit) >> CHECK_AT;
            assert!(change != 0 && change != (1 << 13) - 1, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn record_round_trips_and_every_flipped_bit_is_detected(
            words: [u64; 8], state in STATE_DONE..=STATE_LEFT, number: u64, thread: u32,
        ) {
            let mut words = words;
            words[7] = with_state(words[7], state);
            let plain = words;
            words[7] = seal(&words, number, thread);
            prop_assert_eq!(unseal(&words, number, thread), Some(plain));
            prop_assert_eq!(is_in_flight(words[7]), state == STATE_IN_FLIGHT);
            prop_assert_eq!(clear_check(words[7]), plain[7]);
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
        fn record_being_completed_reads_as_in_flight(
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
        fn end_word_round_trips_and_every_flipped_bit_is_detected(status: i32, time_ns: u64, kind in 1u32..4) {
            let word = encode_end_word(kind, status, time_ns);
            prop_assert_eq!(decode_end_word(word, time_ns), end_reason(kind, status));
            for bit in 0..64 {
                prop_assert_eq!(decode_end_word(word ^ 1 << bit, time_ns), None);
                prop_assert_eq!(decode_end_word(word, time_ns ^ 1 << bit), None);
            }
        }
    }

    #[test]
    fn zeros_are_no_record_and_no_end() {
        assert_eq!(unseal(&[0; 8], 0, 0), None);
        assert_eq!(decode_end_word(0, 0), None);
    }
}
