//! How one frame leads to its caller: a rule of twelve bytes, and its application.
//!
//! A frame may cost a few nanoseconds, and a wrong step would read memory that is not the stack. So
//! a rule expresses only what compilers really emit: the caller's frame at an offset from the stack
//! or frame pointer, perhaps through one load. Everything else is [`UnwindMethod::Fallback`]. A
//! rule reads through [`Memory`], which refuses addresses outside of the stack, and every step must
//! lead outwards.

use crate::platform::process_memory::Memory;

/// The registers of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct UnwindFrame {
    /// Program counter: a return address, or the instruction that a signal interrupted.
    pub pc: usize,
    /// Stack pointer of the frame.
    pub sp: usize,
    /// Frame pointer of the frame.
    pub fp: usize,
    /// True if `pc` is the interrupted instruction itself. A return address is the instruction
    /// after the call.
    pub is_interrupted: bool,
}

/// How the caller's frame (the "canonical frame address") is computed.
///
/// The order matters: rules that load a word come after those that do not, and rules without a
/// caller come last. Rules that start from the frame pointer have odd values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
#[cfg_attr(
    all(target_vendor = "apple", not(test)),
    allow(dead_code, reason = "only unwind tables give some of these rules")
)]
#[repr(u8)]
pub(crate) enum UnwindMethod {
    /// `sp + offset`, without a load.
    #[default]
    FromSp = 0,
    /// `fp + offset`, without a load.
    FromFp = 1,
    /// `*(sp + offset) + deref_add`, with one load.
    DerefSp = 2,
    /// `*(fp + offset) + deref_add`, with one load.
    DerefFp = 3,
    /// The frame has no caller.
    Outermost = 4,
    /// The tables contain a rule that this form cannot express.
    Fallback = 5,
    /// There are no tables for this address.
    NoTables = 6,
}

/// How to get from one frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct UnwindRule {
    /// The offset for `method`.
    pub offset: i32,
    /// How the caller's frame is computed.
    pub method: UnwindMethod,
    /// A combination of [`UnwindRule::SAVES_FP`] and the constants after it.
    pub flags: u8,
    /// Added to the word that was loaded.
    pub deref_add: i16,
    /// Offset at which the frame pointer was saved.
    pub fp_at: i16,
    /// Offset of the return address.
    pub ra_at: i16,
}

/// Why there is no next frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnwindStop {
    /// The outermost frame was reached.
    Outermost,
    /// The next frame lies outside the thread's stack, does not lie further out, or has no known
    /// code.
    Invalid,
    /// The complete unwinder is needed.
    Fallback,
}

/// Two words of the stack that led to a frame, with their values.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct CheckedWords {
    /// Addresses of the return address and of the saved frame pointer (or of the return address
    /// again).
    pub addresses: [usize; 2],
    /// The values of both words.
    pub values: [usize; 2],
}

impl CheckedWords {
    /// The return address alone.
    pub(crate) fn without_fp(&self) -> Self {
        Self { addresses: [self.addresses[0]; 2], values: [self.values[0]; 2] }
    }
}

/// One step from a frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnwindStep {
    /// The registers of the caller.
    pub frame: UnwindFrame,
    /// The words that led to the caller.
    pub words: CheckedWords,
}

impl UnwindRule {
    /// Flag: the function saved the frame pointer.
    pub(crate) const SAVES_FP: u8 = 1;
    /// Flag: `fp_at` counts from the register of `method`, not from the caller's frame.
    pub(crate) const FP_FROM_BASE: u8 = 2;
    /// Flag: `ra_at` counts from the register of `method`, not from the caller's frame.
    pub(crate) const RA_FROM_BASE: u8 = 4;
    /// Flag: a signal interrupted the caller.
    pub(crate) const IS_SIGNAL: u8 = 8;
    /// The rule of the outermost frame.
    pub(crate) const OUTERMOST: Self =
        Self { method: UnwindMethod::Outermost, offset: 0, flags: 0, deref_add: 0, fp_at: 0, ra_at: 0 };
    /// The rule for addresses without tables. The complete unwinder would read the code there,
    /// which may not be mapped.
    pub(crate) const NO_TABLES: Self = Self { method: UnwindMethod::NoTables, ..Self::OUTERMOST };
    /// The rule for frames that only the complete unwinder can follow.
    #[cfg_attr(
        all(target_vendor = "apple", not(test)),
        allow(dead_code, reason = "only unwind tables give this rule")
    )]
    pub(crate) const FALLBACK: Self = Self { method: UnwindMethod::Fallback, ..Self::OUTERMOST };

    /// The rule of a function that keeps a frame pointer, which points to the saved frame pointer
    /// and the return address beside it. The same on x86-64 and aarch64.
    #[cfg(any(target_vendor = "apple", test))]
    pub(crate) const FRAME_POINTER: Self = Self {
        method: UnwindMethod::FromFp,
        offset: 16,
        flags: Self::SAVES_FP,
        fp_at: -16,
        ra_at: -8,
        deref_add: 0,
    };

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether the caller is found through the frame pointer.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    pub(crate) fn uses_fp(&self) -> bool {
        self.method < UnwindMethod::Outermost && self.starts_from_fp()
    }

    /// Whether the function saved its caller's frame pointer, or has no caller.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    pub(crate) fn saves_fp(&self) -> bool {
        self.has(Self::SAVES_FP) || self.method == UnwindMethod::Outermost
    }

    /// Computes the caller of a frame.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "part of the loop over all frames")]
    pub(crate) fn step<M: Memory>(&self, memory: &M, frame: &UnwindFrame) -> Result<UnwindStep, UnwindStop> {
        if self.method >= UnwindMethod::Outermost {
            return Err(match self.method {
                UnwindMethod::Outermost => UnwindStop::Outermost,
                UnwindMethod::Fallback => UnwindStop::Fallback,
                _ => UnwindStop::Invalid,
            });
        }
        let base = self.base(frame);
        let mut caller = base.wrapping_add_signed(self.offset as isize);
        if self.method >= UnwindMethod::DerefSp {
            let word = memory.word(caller).ok_or(UnwindStop::Invalid)?;
            caller = word.wrapping_add_signed(self.deref_add as isize);
        }
        if caller <= frame.sp {
            return Err(if self.has(Self::IS_SIGNAL) { UnwindStop::Fallback } else { UnwindStop::Invalid });
        }
        let from = |flag: u8| if self.has(flag) { base } else { caller };
        let ra_at = from(Self::RA_FROM_BASE).wrapping_add_signed(self.ra_at as isize);
        let return_address = memory.word(ra_at).ok_or(UnwindStop::Invalid)?;
        let (fp_at, fp_value, fp) = if self.has(Self::SAVES_FP) {
            let at = from(Self::FP_FROM_BASE).wrapping_add_signed(self.fp_at as isize);
            let fp = memory.word(at).ok_or(UnwindStop::Invalid)?;
            (at, fp, fp)
        } else {
            (ra_at, return_address, frame.fp)
        };
        let is_interrupted = self.has(Self::IS_SIGNAL);
        Ok(UnwindStep {
            frame: UnwindFrame { pc: without_signature(return_address), sp: caller, fp, is_interrupted },
            words: CheckedWords { addresses: [ra_at, fp_at], values: [return_address, fp_value] },
        })
    }

    /// The address of the word that must be loaded to find the caller's frame, if there is one.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    pub(crate) fn deref_address(&self, frame: &UnwindFrame) -> Option<usize> {
        (self.method >= UnwindMethod::DerefSp && self.method < UnwindMethod::Outermost)
            .then(|| self.base(frame).wrapping_add_signed(self.offset as isize))
    }

    /// The register that `method` starts from.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn base(&self, frame: &UnwindFrame) -> usize {
        if self.starts_from_fp() { frame.fp } else { frame.sp }
    }

    /// Tests the number, because a match compiles to a jump table.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as above")]
    fn starts_from_fp(&self) -> bool {
        self.method as u8 & UnwindMethod::FromFp as u8 != 0
    }
}

/// Removes the signature that aarch64 may store in the upper bits of a saved return address.
#[inline(always)]
#[allow(clippy::inline_always, reason = "nothing, or one instruction")]
pub(crate) fn without_signature(address: usize) -> usize {
    if cfg!(target_arch = "aarch64") { address & 0x0000_ffff_ffff_ffff } else { address }
}

#[cfg(test)]
mod tests {
    use super::super::fake_words::FakeWords;
    use super::*;
    use proptest::prelude::*;

    const FRAME: UnwindFrame = UnwindFrame { pc: 1, sp: 0x1000, fp: 0x1040, is_interrupted: false };

    #[test]
    fn step_from_stack_pointer() {
        let rule =
            UnwindRule { method: UnwindMethod::FromSp, offset: 0x20, ra_at: -8, ..UnwindRule::default() };
        let words = FakeWords::from([(0x1018, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1020, fp: 0x1040, is_interrupted: false });
        assert_eq!(step.words, CheckedWords { addresses: [0x1018; 2], values: [77; 2] });
    }

    #[test]
    fn step_from_frame_pointer() {
        let rule = UnwindRule::FRAME_POINTER;
        let words = FakeWords::from([(0x1040, 0x2000), (0x1048, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1050, fp: 0x2000, is_interrupted: false });
        assert_eq!(step.words, CheckedWords { addresses: [0x1048, 0x1040], values: [77, 0x2000] });
    }

    #[test]
    fn step_through_a_loaded_word() {
        let flags = UnwindRule::SAVES_FP | UnwindRule::FP_FROM_BASE;
        let rule = UnwindRule {
            method: UnwindMethod::DerefFp,
            offset: -8,
            flags,
            deref_add: 0,
            fp_at: 0,
            ra_at: -8,
        };
        let words = FakeWords::from([(0x1038, 0x1090), (0x1040, 0x2000), (0x1088, 77)]);
        let step = rule.step(&words, &FRAME).unwrap();
        assert_eq!(step.frame, UnwindFrame { pc: 77, sp: 0x1090, fp: 0x2000, is_interrupted: false });
        assert_eq!(rule.deref_address(&FRAME), Some(0x1038));
    }

    #[test]
    fn invalid_step_is_refused() {
        let rule =
            UnwindRule { method: UnwindMethod::FromSp, offset: 0x20, ra_at: -8, ..UnwindRule::default() };
        assert_eq!(rule.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Invalid));
        let inwards = UnwindRule { offset: -8, ..rule };
        assert_eq!(inwards.step(&FakeWords::from([(0xff0, 1)]), &FRAME), Err(UnwindStop::Invalid));
        assert_eq!(UnwindRule::FALLBACK.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Fallback));
        assert_eq!(UnwindRule::OUTERMOST.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Outermost));
        assert_eq!(UnwindRule::NO_TABLES.step(&FakeWords::from([]), &FRAME), Err(UnwindStop::Invalid));
    }

    proptest! {
        #[test]
        fn any_rule_is_applied_without_panic(
            method in 0usize..7, offset: i32, flags in 0u8..16, deref_add: i16, fp_at: i16, ra_at: i16,
            pc: usize, sp: usize, fp: usize, word: usize,
        ) {
            let method = [UnwindMethod::FromSp, UnwindMethod::FromFp, UnwindMethod::DerefSp, UnwindMethod::DerefFp, UnwindMethod::Outermost, UnwindMethod::Fallback, UnwindMethod::NoTables][method];
            let rule = UnwindRule { offset, method, flags, deref_add, fp_at, ra_at };
            let frame = UnwindFrame { pc, sp, fp, is_interrupted: false };
            if let Ok(step) = rule.step(&FakeWords::all(word), &frame) {
                prop_assert!(step.frame.sp > sp, "a step leads outwards");
            }
        }
    }
}
