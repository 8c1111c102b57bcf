//! From the unwind tables of a module to a rule.
//!
//! Constraint: the tables are read inside the hook, where nothing may be allocated, and they were written by many compilers.
//! Consequence: `gimli` reads them in place, with room for its rows on the stack. What does not have the form of a [`UnwindRule`]
//! becomes [`UnwindRule::FALLBACK`]: a frame is never guessed. Expressions are followed as far as their result is a register plus a
//! constant, or the word there plus a constant; that covers procedure linkage tables, functions that align their stack, and
//! the kernel's signal frames.

use gimli::{
    BaseAddresses, CfaRule, DW_EH_PE_udata2, DW_EH_PE_udata4, DwEhPe, EhFrame, EhFrameHdr, EndianSlice,
    Expression, LittleEndian, Operation, Register, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

use super::rule::{UnwindMethod, UnwindRule};

/// The registers that matter here, by their DWARF numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DwarfRegisters {
    fp: Register,
    sp: Register,
    ra: Register,
    /// Whether the return address is a register that a function must save, instead of a place on the stack.
    links: bool,
}

impl DwarfRegisters {
    /// x86-64.
    pub(crate) const X86_64: Self = Self { fp: Register(6), sp: Register(7), ra: Register(16), links: false };
    /// aarch64.
    pub(crate) const AARCH64: Self =
        Self { fp: Register(29), sp: Register(31), ra: Register(30), links: true };
    /// Of this machine.
    pub(crate) const HERE: Self = if cfg!(target_arch = "aarch64") { Self::AARCH64 } else { Self::X86_64 };
}

type TableBytes<'a> = EndianSlice<'a, LittleEndian>;

/// Room for more rules than a function has registers to save, and for states that it may push.
struct OnStackStorage;

impl UnwindContextStorage<usize> for OnStackStorage {
    type Rules = [(Register, RegisterRule<usize>); 36];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

type UnwindRow = UnwindTableRow<usize, OnStackStorage>;

/// `mov rax, 15; syscall`.
const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The rule for an address. `None`: the tables do not know it.
///
/// `header_at` is where `.eh_frame_hdr` is loaded; `bytes_from` gives what is loaded from an address on.
pub(crate) fn rule_at<'a>(
    registers: DwarfRegisters,
    header_at: usize,
    bytes_from: impl Fn(usize) -> Option<&'a [u8]>,
    (pc, is_interrupted): (usize, bool),
) -> Option<UnwindRule> {
    let table = bytes_from(header_at)?;
    // Numbers of entries of more than 32 bits, or below 0, which no linker writes: gimli multiplies them.
    if ![DW_EH_PE_udata2, DW_EH_PE_udata4].contains(&DwEhPe(table.get(2)? & 0x0f)) {
        return Some(UnwindRule::FALLBACK);
    }
    let header = EhFrameHdr::new(table, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header_at as u64);
    let header = header.parse(&bases, 8).ok()?;
    let frames_at = header.eh_frame_ptr().direct().ok()?;
    let bytes = bytes_from(frames_at as usize)?;
    let frames = EhFrame::new(bytes, LittleEndian);
    let bases = bases.set_eh_frame(frames_at);
    // A call may be the last instruction of a function: what belongs to it lies before its return address.
    let wanted = (pc as u64).wrapping_sub(u64::from(!is_interrupted));
    let entry_at = header.table()?.lookup(wanted, &bases).ok()?.direct().ok()?;
    let offset = usize::try_from(entry_at.checked_sub(frames_at)?).ok()?;
    if offset >= bytes.len() {
        return None;
    }
    let entry = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
    if !entry.contains(wanted) {
        // No frame leads further, unless it is the one that a signal's handler returns to.
        let code = bytes_from(pc)?;
        return (!registers.links && !code.starts_with(&SIGNAL_RETURN)).then_some(UnwindRule::OUTERMOST);
    }
    let mut context = UnwindContext::<usize, OnStackStorage>::new_in();
    let Ok(row) = entry.unwind_info_for_address(&frames, &bases, &mut context, wanted) else {
        return Some(UnwindRule::FALLBACK);
    };
    if entry.cie().return_address_register() != registers.ra {
        return Some(UnwindRule::FALLBACK);
    }
    let is_signal = entry.is_signal_trampoline();
    let reader = ExpressionReader { frames: &frames, registers, pc, encoding: entry.cie().encoding() };
    Some(from_row(registers, row, &reader, is_signal, is_interrupted).unwrap_or(UnwindRule::FALLBACK))
}

/// `None`: not in this form.
fn from_row(
    registers: DwarfRegisters,
    row: &UnwindRow,
    expressions: &ExpressionReader<'_, '_>,
    is_signal: bool,
    is_interrupted: bool,
) -> Option<UnwindRule> {
    let mut rule = UnwindRule::default();
    let base = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            rule.offset = i32::try_from(*offset).ok()?;
            rule.how = match *register {
                register if register == registers.sp => UnwindMethod::FromSp,
                register if register == registers.fp => UnwindMethod::FromFp,
                _ => return None,
            };
            *register
        }
        CfaRule::Expression(expression) => match expressions.value(expression)? {
            ExpressionValue::Register { register, add } => {
                rule.offset = i32::try_from(add).ok()?;
                rule.how = if register == registers.sp { UnwindMethod::FromSp } else { UnwindMethod::FromFp };
                register
            }
            ExpressionValue::Loaded { register, at, add } => {
                rule.offset = i32::try_from(at).ok()?;
                rule.then = i16::try_from(add).ok()?;
                rule.how =
                    if register == registers.sp { UnwindMethod::DerefSp } else { UnwindMethod::DerefFp };
                register
            }
            ExpressionValue::NativeMemoEntry(_) => return None,
        },
    };
    // Where something was saved: the offset, and whether it counts from the base and not from the caller's frame.
    let place = |saved: &RegisterRule<usize>| match saved {
        RegisterRule::Offset(offset) => Some((i16::try_from(*offset).ok()?, false)),
        RegisterRule::Expression(expression) => match expressions.value(expression)? {
            ExpressionValue::Register { register, add } if register == base => {
                Some((i16::try_from(add).ok()?, true))
            }
            _ => None,
        },
        _ => None,
    };
    match row.register(registers.ra) {
        Some(RegisterRule::Undefined) => return Some(UnwindRule::OUTERMOST),
        // The register itself holds it still: in no frame that has called another.
        None | Some(RegisterRule::SameValue) if registers.links || is_interrupted => return None,
        None => return None,
        Some(saved) => {
            let (at, from_base) = place(&saved)?;
            rule.ra_at = at;
            rule.flags |= if from_base { UnwindRule::RA_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.fp) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => {}
        Some(saved) => {
            let (at, from_base) = place(&saved)?;
            rule.fp_at = at;
            rule.flags |= UnwindRule::SAVES_FP | if from_base { UnwindRule::FP_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.sp) {
        None | Some(RegisterRule::ValOffset(0)) => {}
        // A signal frame says where the stack pointer was saved, and that the caller's frame begins where it points.
        Some(RegisterRule::Expression(expression)) => {
            let saved = expressions.value(&expression)?;
            let same = ExpressionValue::Register { register: base, add: i64::from(rule.offset) };
            if saved != same
                || !matches!(rule.how, UnwindMethod::DerefSp | UnwindMethod::DerefFp)
                || rule.then != 0
            {
                return None;
            }
        }
        Some(_) => return None,
    }
    rule.flags |= if is_signal { UnwindRule::IS_SIGNAL } else { 0 };
    Some(rule)
}

/// What an expression stands for, without any memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpressionValue {
    NativeMemoEntry(i64),
    /// The stack or frame pointer plus a constant.
    Register {
        register: Register,
        add: i64,
    },
    /// The word at a register plus a constant, plus another.
    Loaded {
        register: Register,
        at: i64,
        add: i64,
    },
}

impl ExpressionValue {
    fn plus(self, more: i64) -> Self {
        match self {
            Self::NativeMemoEntry(value) => Self::NativeMemoEntry(value.wrapping_add(more)),
            Self::Register { register, add } => Self::Register { register, add: add.wrapping_add(more) },
            Self::Loaded { register, at, add } => Self::Loaded { register, at, add: add.wrapping_add(more) },
        }
    }
}

struct ExpressionReader<'a, 'f> {
    frames: &'f EhFrame<TableBytes<'a>>,
    registers: DwarfRegisters,
    /// What the program counter is in an expression.
    pc: usize,
    encoding: gimli::Encoding,
}

impl ExpressionReader<'_, '_> {
    fn value(&self, expression: &UnwindExpression<usize>) -> Option<ExpressionValue> {
        self.follow(expression.get(self.frames).ok()?)
    }

    fn follow(&self, expression: Expression<TableBytes<'_>>) -> Option<ExpressionValue> {
        const DEEPEST: usize = 8;
        let mut stack = [ExpressionValue::NativeMemoEntry(0); DEEPEST];
        let mut depth = 0;
        let mut operations = expression.operations(self.encoding);
        while let Some(operation) = operations.next().ok()? {
            let (taken, value) = match (operation, &stack[..depth]) {
                (Operation::RegisterOffset { register, offset, .. }, _) => {
                    (0, self.register(register, offset)?)
                }
                (Operation::UnsignedConstant { value }, _) => {
                    (0, ExpressionValue::NativeMemoEntry(value as i64))
                }
                (Operation::SignedConstant { value }, _) => (0, ExpressionValue::NativeMemoEntry(value)),
                (Operation::PlusConstant { value }, [.., top]) => (1, top.plus(value as i64)),
                (
                    Operation::Deref { size: 8, space: false, .. },
                    [.., ExpressionValue::Register { register, add }],
                ) => (1, ExpressionValue::Loaded { register: *register, at: *add, add: 0 }),
                (Operation::Plus, [.., left, ExpressionValue::NativeMemoEntry(right)]) => {
                    (2, left.plus(*right))
                }
                (Operation::Plus, [.., ExpressionValue::NativeMemoEntry(left), right]) => {
                    (2, right.plus(*left))
                }
                (Operation::Minus, [.., left, ExpressionValue::NativeMemoEntry(right)]) => {
                    (2, left.plus(right.wrapping_neg()))
                }
                (
                    Operation::And,
                    [.., ExpressionValue::NativeMemoEntry(left), ExpressionValue::NativeMemoEntry(right)],
                ) => (2, ExpressionValue::NativeMemoEntry(left & right)),
                (
                    Operation::Ge,
                    [.., ExpressionValue::NativeMemoEntry(left), ExpressionValue::NativeMemoEntry(right)],
                ) => (2, ExpressionValue::NativeMemoEntry(i64::from(left >= right))),
                (
                    Operation::Shl,
                    [.., ExpressionValue::NativeMemoEntry(left), ExpressionValue::NativeMemoEntry(right)],
                ) => (2, ExpressionValue::NativeMemoEntry(left.checked_shl(u32::try_from(*right).ok()?)?)),
                _ => return None,
            };
            depth -= taken;
            *stack.get_mut(depth)? = value;
            depth += 1;
        }
        depth.checked_sub(1).map(|top| stack[top])
    }

    fn register(&self, register: Register, add: i64) -> Option<ExpressionValue> {
        if register == self.registers.ra && !self.registers.links {
            return Some(ExpressionValue::NativeMemoEntry((self.pc as i64).wrapping_add(add)));
        }
        (register == self.registers.sp || register == self.registers.fp)
            .then_some(ExpressionValue::Register { register, add })
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
