//! How one frame leads to the next: a rule of twelve bytes, and its application.
//!
//! Constraint: a frame may cost a few nanoseconds, and a wrong step would read memory that is not the stack. Consequence: a
//! rule is only what compilers really emit (the caller's frame at an offset from the stack or frame pointer, perhaps through
//! one load); everything else is [`UnwindMethod::Fallback`]. It is applied through [`Memory`], which refuses what lies outside the
//! stack, and a step must lead outwards.

use crate::platform::process_memory::Memory;

/// Registers of a frame that is being left.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct UnwindFrame {
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
pub(crate) enum UnwindMethod {
    /// At an offset from the stack pointer.
    #[default]
    FromSp = 0,
    /// At an offset from the frame pointer.
    FromFp = 1,
    /// In the word at an offset from the stack pointer.
    DerefSp = 2,
    /// In the word at an offset from the frame pointer.
    DerefFp = 3,
    /// There is no caller.
    Outermost = 4,
    /// The tables say something that this form cannot.
    Fallback = 5,
    /// There are no tables: whatever this address is, nobody knows what called it.
    NoTables = 6,
}

/// From one frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct UnwindRule {
    /// Offset for `how`.
    pub offset: i32,
    /// Where the caller's frame begins.
    pub how: UnwindMethod,
    /// Some of [`UnwindRule::SAVES_FP`] and the others.
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
pub(crate) enum UnwindStop {
    /// The outermost frame was reached.
    Outermost,
    /// The next frame lies outside the thread's stack, does not lie further out, or is at an address of no known code.
    Astray,
    /// This form of rule does not do here.
    Fallback,
}

/// Two words of the stack that led to a frame, and what they held.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct CheckedWords {
    /// Where the return address is, and where the frame pointer was saved (or the return address again).
    pub at: [usize; 2],
    /// What was there.
    pub held: [usize; 2],
}

/// A step outwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnwindStep {
    /// The caller.
    pub frame: UnwindFrame,
    /// What led to it.
    pub seen: CheckedWords,
}

impl UnwindRule {
    /// The frame pointer was saved.
    pub(crate) const SAVES_FP: u8 = 1;
    /// It lies at an offset from the register of `how`, not from the caller's frame.
    pub(crate) const FP_FROM_BASE: u8 = 2;
    /// So does the return address.
    pub(crate) const RA_FROM_BASE: u8 = 4;
    /// The caller was interrupted by a signal.
    pub(crate) const IS_SIGNAL: u8 = 8;
    /// Of the outermost frame.
    pub(crate) const OUTERMOST: Self =
        Self { how: UnwindMethod::Outermost, offset: 0, flags: 0, then: 0, fp_at: 0, ra_at: 0 };
    /// For addresses of no known code. The complete unwinder would look at the code itself, which may not even be there.
    pub(crate) const NO_TABLES: Self = Self { how: UnwindMethod::NoTables, ..Self::OUTERMOST };
    /// For what only the complete unwinder can follow.
    pub(crate) const FALLBACK: Self = Self { how: UnwindMethod::Fallback, ..Self::OUTERMOST };

    /// Of a function that keeps a frame pointer: it points to where the caller's was saved, beside the return address. So it is on
    /// x86-64 and on aarch64.
    #[cfg(any(target_vendor = "apple", test))]
    pub(crate) const FRAME_POINTER: Self =
        Self { how: UnwindMethod::FromFp, offset: 16, flags: Self::SAVES_FP, fp_at: -16, ra_at: -8, then: 0 };

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The caller of a frame.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    pub(crate) fn step<M: Memory>(&self, memory: &M, frame: &UnwindFrame) -> Result<UnwindStep, UnwindStop> {
        if self.how >= UnwindMethod::Outermost {
            return Err(match self.how {
                UnwindMethod::Outermost => UnwindStop::Outermost,
                UnwindMethod::Fallback => UnwindStop::Fallback,
                _ => UnwindStop::Astray,
            });
        }
        let base = self.base(frame);
        let mut caller = base.wrapping_add_signed(self.offset as isize);
        if self.how >= UnwindMethod::DerefSp {
            let word = memory.word(caller).ok_or(UnwindStop::Astray)?;
            caller = word.wrapping_add_signed(self.then as isize);
        }
        if caller <= frame.sp {
            return Err(if self.has(Self::IS_SIGNAL) { UnwindStop::Fallback } else { UnwindStop::Astray });
        }
        let from = |flag: u8| if self.has(flag) { base } else { caller };
        let ra_at = from(Self::RA_FROM_BASE).wrapping_add_signed(self.ra_at as isize);
        let held = memory.word(ra_at).ok_or(UnwindStop::Astray)?;
        let (fp_at, fp_held, fp) = if self.has(Self::SAVES_FP) {
            let at = from(Self::FP_FROM_BASE).wrapping_add_signed(self.fp_at as isize);
            let fp = memory.word(at).ok_or(UnwindStop::Astray)?;
            (at, fp, fp)
        } else {
            (ra_at, held, frame.fp)
        };
        let is_interrupted = self.has(Self::IS_SIGNAL);
        Ok(UnwindStep {
            frame: UnwindFrame { pc: without_signature(held), sp: caller, fp, is_interrupted },
            seen: CheckedWords { at: [ra_at, fp_at], held: [held, fp_held] },
        })
    }

    /// Where the word is through which the caller of a frame is found, if there is one.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn through(&self, frame: &UnwindFrame) -> Option<usize> {
        (self.how >= UnwindMethod::DerefSp && self.how < UnwindMethod::Outermost)
            .then(|| self.base(frame).wrapping_add_signed(self.offset as isize))
    }

    /// By the number, because a choice between names becomes a jump through a table.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn base(&self, frame: &UnwindFrame) -> usize {
        if self.how as u8 & UnwindMethod::FromFp as u8 != 0 { frame.fp } else { frame.sp }
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
    use super::super::fake::FakeWords;
    use super::*;
    use proptest::prelude::*;

    const FRAME: UnwindFrame = UnwindFrame { pc: 1, sp: 0x1000, fp: 0x1040, is_interrupted: false };

    #[test]
    fn a_frame_without_a_frame_pointer() {
        let rule = UnwindRule { how: UnwindMethod::FromSp, offset: 0x20, ra_at: -8, ..UnwindRule::default() };
        let words = FakeWords::from([(0x1018, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1020, fp: 0x1040, is_interrupted: false });
        assert_eq!(step.seen, CheckedWords { at: [0x1018; 2], held: [77; 2] });
    }

    #[test]
    fn a_frame_with_one() {
        let rule = UnwindRule::FRAME_POINTER;
        let words = FakeWords::from([(0x1040, 0x2000), (0x1048, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1050, fp: 0x2000, is_interrupted: false });
        assert_eq!(step.seen, CheckedWords { at: [0x1048, 0x1040], held: [77, 0x2000] });
    }

    #[test]
    fn a_frame_that_was_aligned() {
        let flags = UnwindRule::SAVES_FP | UnwindRule::FP_FROM_BASE;
        let rule = UnwindRule { how: UnwindMethod::DerefFp, offset: -8, flags, then: 0, fp_at: 0, ra_at: -8 };
        let words = FakeWords::from([(0x1038, 0x1090), (0x1040, 0x2000), (0x1088, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1090, fp: 0x2000, is_interrupted: false });
        assert_eq!(rule.through(&FRAME), Some(0x1038));
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let rule = UnwindRule { how: UnwindMethod::FromSp, offset: 0x20, ra_at: -8, ..UnwindRule::default() };
        assert_eq!(rule.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Astray));
        let inwards = UnwindRule { offset: -8, ..rule };
        assert_eq!(inwards.step(&FakeWords::from([(0xff0, 1)]), &FRAME), Err(UnwindStop::Astray));
        assert_eq!(UnwindRule::FALLBACK.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Fallback));
        assert_eq!(UnwindRule::OUTERMOST.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Outermost));
        assert_eq!(UnwindRule::NO_TABLES.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Astray));
    }

    proptest! {
        #[test]
        fn any_rule_at_any_place_is_followed_without_panic(
            how in 0usize..7, offset: i32, flags in 0u8..16, then: i16, fp_at: i16, ra_at: i16,
            pc: usize, sp: usize, fp: usize, word: usize,
        ) {
            let how = [UnwindMethod::FromSp, UnwindMethod::FromFp, UnwindMethod::DerefSp, UnwindMethod::DerefFp, UnwindMethod::Outermost, UnwindMethod::Fallback, UnwindMethod::NoTables][how];
            let rule = UnwindRule { offset, how, flags, then, fp_at, ra_at };
            let frame = UnwindFrame { pc, sp, fp, is_interrupted: false };
            if let Ok(step) = rule.step(&FakeWords::all(word), &frame) {
                prop_assert!(step.frame.sp > sp, "a step leads outwards");
            }
        }
    }
}
