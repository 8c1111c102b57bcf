//! How one frame leads to the next: a rule of twelve bytes, and its application.
//!
//! Constraint: a frame may cost a few nanoseconds, and a wrong step would read memory that is not the stack. Consequence: a
//! rule is only what compilers really emit (the caller's frame at an offset from the stack or frame pointer, perhaps through
//! one load); everything else is [`How::Slowly`]. It is applied through [`Memory`], which refuses what lies outside the
//! stack, and a step must lead outwards.

use crate::platform::process_memory::Memory;

/// Registers of a frame that is being left.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Frame {
    /// Where it runs: a return address, or the instruction that a signal interrupted.
    pub pc: usize,
    /// Its stack pointer.
    pub sp: usize,
    /// Its frame pointer.
    pub fp: usize,
    /// Whether `pc` is the interrupted instruction itself. A return address is the one after the call.
    pub is_interrupted: bool,
}

/// Where the caller's frame begins (the "canonical frame address"). What goes through a word comes after what does not, and
/// what leads nowhere comes last; what starts from the frame pointer is odd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[repr(u8)]
pub(crate) enum How {
    /// At an offset from the stack pointer.
    #[default]
    FromSp = 0,
    /// At an offset from the frame pointer.
    FromFp = 1,
    /// In the word at an offset from the stack pointer.
    ThroughSp = 2,
    /// In the word at an offset from the frame pointer.
    ThroughFp = 3,
    /// There is no caller.
    End = 4,
    /// The tables say something that this form cannot.
    Slowly = 5,
    /// There are no tables: whatever this address is, nobody knows what called it.
    Unknown = 6,
}

/// From one frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Rule {
    /// Offset for `how`.
    pub offset: i32,
    /// Where the caller's frame begins.
    pub how: How,
    /// Some of [`Rule::SAVES_FP`] and the others.
    pub flags: u8,
    /// Added to a word that was loaded.
    pub then: i16,
    /// Where the frame pointer was saved.
    pub fp_at: i16,
    /// Where the return address is.
    pub ra_at: i16,
}

/// What keeps a step from being made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The outermost frame was reached.
    End,
    /// The next frame lies outside the thread's stack, does not lie further out, or is at an address of no known code.
    Astray,
    /// This form of rule does not do here.
    Slowly,
}

/// Two words of the stack that led to a frame, and what they held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Seen {
    /// Where the return address is, and where the frame pointer was saved (or the return address again).
    pub at: [usize; 2],
    /// What was there.
    pub held: [usize; 2],
}

/// A step outwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// The caller.
    pub frame: Frame,
    /// What led to it.
    pub seen: Seen,
}

impl Rule {
    /// The frame pointer was saved.
    pub(crate) const SAVES_FP: u8 = 1;
    /// It lies at an offset from the register of `how`, not from the caller's frame.
    pub(crate) const FP_FROM_BASE: u8 = 2;
    /// So does the return address.
    pub(crate) const RA_FROM_BASE: u8 = 4;
    /// The caller was interrupted by a signal.
    pub(crate) const IS_SIGNAL: u8 = 8;
    /// Of the outermost frame.
    pub(crate) const END: Self = Self { how: How::End, offset: 0, flags: 0, then: 0, fp_at: 0, ra_at: 0 };
    /// For addresses of no known code. The complete unwinder would look at the code itself, which may not even be there.
    pub(crate) const UNKNOWN: Self = Self { how: How::Unknown, ..Self::END };
    /// For what only the complete unwinder can follow.
    pub(crate) const SLOWLY: Self = Self { how: How::Slowly, ..Self::END };

    /// Of a function that keeps a frame pointer: it points to where the caller's was saved, beside the return address. So it is on
    /// x86-64 and on aarch64.
    #[cfg(any(target_vendor = "apple", test))]
    pub(crate) const FRAME_POINTER: Self =
        Self { how: How::FromFp, offset: 16, flags: Self::SAVES_FP, fp_at: -16, ra_at: -8, then: 0 };

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The caller of a frame.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    pub(crate) fn step<M: Memory>(&self, memory: &M, frame: &Frame) -> Result<Step, Stop> {
        if self.how >= How::End {
            return Err(match self.how {
                How::End => Stop::End,
                How::Slowly => Stop::Slowly,
                _ => Stop::Astray,
            });
        }
        let base = self.base(frame);
        let mut caller = base.wrapping_add_signed(self.offset as isize);
        if self.how >= How::ThroughSp {
            let word = memory.word(caller).ok_or(Stop::Astray)?;
            caller = word.wrapping_add_signed(self.then as isize);
        }
        if caller <= frame.sp {
            return Err(if self.has(Self::IS_SIGNAL) { Stop::Slowly } else { Stop::Astray });
        }
        let from = |flag: u8| if self.has(flag) { base } else { caller };
        let ra_at = from(Self::RA_FROM_BASE).wrapping_add_signed(self.ra_at as isize);
        let held = memory.word(ra_at).ok_or(Stop::Astray)?;
        let (fp_at, fp_held, fp) = if self.has(Self::SAVES_FP) {
            let at = from(Self::FP_FROM_BASE).wrapping_add_signed(self.fp_at as isize);
            let fp = memory.word(at).ok_or(Stop::Astray)?;
            (at, fp, fp)
        } else {
            (ra_at, held, frame.fp)
        };
        let is_interrupted = self.has(Self::IS_SIGNAL);
        Ok(Step {
            frame: Frame { pc: without_signature(held), sp: caller, fp, is_interrupted },
            seen: Seen { at: [ra_at, fp_at], held: [held, fp_held] },
        })
    }

    /// Where the word is through which the caller of a frame is found, if there is one.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn through(&self, frame: &Frame) -> Option<usize> {
        (self.how >= How::ThroughSp && self.how < How::End)
            .then(|| self.base(frame).wrapping_add_signed(self.offset as isize))
    }

    /// By the number, because a choice between names becomes a jump through a table.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn base(&self, frame: &Frame) -> usize {
        if self.how as u8 & How::FromFp as u8 != 0 { frame.fp } else { frame.sp }
    }
}

/// On aarch64 a saved return address may carry a signature in the bits that no address of a program uses.
#[inline(always)]
#[allow(clippy::inline_always, reason = "nothing, or one instruction")]
pub(crate) fn without_signature(address: usize) -> usize {
    if cfg!(target_arch = "aarch64") { address & 0x0000_ffff_ffff_ffff } else { address }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Words;
    use super::*;
    use proptest::prelude::*;

    const FRAME: Frame = Frame { pc: 1, sp: 0x1000, fp: 0x1040, is_interrupted: false };

    #[test]
    fn a_frame_without_a_frame_pointer() {
        let rule = Rule { how: How::FromSp, offset: 0x20, ra_at: -8, ..Rule::default() };
        let words = Words::from([(0x1018, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, Frame { pc: 77, sp: 0x1020, fp: 0x1040, is_interrupted: false });
        assert_eq!(step.seen, Seen { at: [0x1018; 2], held: [77; 2] });
    }

    #[test]
    fn a_frame_with_one() {
        let rule = Rule::FRAME_POINTER;
        let words = Words::from([(0x1040, 0x2000), (0x1048, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, Frame { pc: 77, sp: 0x1050, fp: 0x2000, is_interrupted: false });
        assert_eq!(step.seen, Seen { at: [0x1048, 0x1040], held: [77, 0x2000] });
    }

    #[test]
    fn a_frame_that_was_aligned() {
        let flags = Rule::SAVES_FP | Rule::FP_FROM_BASE;
        let rule = Rule { how: How::ThroughFp, offset: -8, flags, then: 0, fp_at: 0, ra_at: -8 };
        let words = Words::from([(0x1038, 0x1090), (0x1040, 0x2000), (0x1088, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, Frame { pc: 77, sp: 0x1090, fp: 0x2000, is_interrupted: false });
        assert_eq!(rule.through(&FRAME), Some(0x1038));
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let rule = Rule { how: How::FromSp, offset: 0x20, ra_at: -8, ..Rule::default() };
        assert_eq!(rule.step(&Words::from([]), &FRAME), Err(Stop::Astray));
        let inwards = Rule { offset: -8, ..rule };
        assert_eq!(inwards.step(&Words::from([(0xff0, 1)]), &FRAME), Err(Stop::Astray));
        assert_eq!(Rule::SLOWLY.step(&Words::from([]), &FRAME), Err(Stop::Slowly));
        assert_eq!(Rule::END.step(&Words::from([]), &FRAME), Err(Stop::End));
        assert_eq!(Rule::UNKNOWN.step(&Words::from([]), &FRAME), Err(Stop::Astray));
    }

    proptest! {
        #[test]
        fn any_rule_at_any_place_is_followed_without_panic(
            how in 0usize..7, offset: i32, flags in 0u8..16, then: i16, fp_at: i16, ra_at: i16,
            pc: usize, sp: usize, fp: usize, word: usize,
        ) {
            let how = [How::FromSp, How::FromFp, How::ThroughSp, How::ThroughFp, How::End, How::Slowly, How::Unknown][how];
            let rule = Rule { offset, how, flags, then, fp_at, ra_at };
            let frame = Frame { pc, sp, fp, is_interrupted: false };
            if let Ok(step) = rule.step(&Words::all(word), &frame) {
                prop_assert!(step.frame.sp > sp, "a step leads outwards");
            }
        }
    }
}
