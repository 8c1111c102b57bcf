//! Converts the unwind tables of a module into rules.
//!
//! Hooks read the tables, and nothing may be allocated there; the tables come from many compilers.
//! So `gimli` reads them in place, with its rows on the stack. A row that no [`UnwindRule`] can
//! express becomes [`UnwindRule::FALLBACK`]; no frame is ever guessed. Expressions are evaluated as
//! long as the result is a register plus a constant, or the word there plus a constant. That covers
//! procedure linkage tables, functions that align their stack, and the kernel's signal frames.

use gimli::{
    BaseAddresses, CfaRule, DW_EH_PE_udata2, DW_EH_PE_udata4, DwEhPe, EhFrame, EhFrameHdr, EndianSlice,
    Expression, LittleEndian, Operation, Register, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

use super::rule::{UnwindMethod, UnwindRule};

/// The DWARF numbers of the registers that rules use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DwarfRegisters {
    fp: Register,
    sp: Register,
    ra: Register,
    /// True if calls put the return address into a register, which the function must save.
    has_link_register: bool,
}

impl DwarfRegisters {
    /// The registers of x86-64.
    pub(crate) const X86_64: Self =
        Self { fp: Register(6), sp: Register(7), ra: Register(16), has_link_register: false };
    /// The registers of aarch64.
    pub(crate) const AARCH64: Self =
        Self { fp: Register(29), sp: Register(31), ra: Register(30), has_link_register: true };
    /// The registers of this machine.
    #[cfg(not(target_vendor = "apple"))]
    pub(crate) const HERE: Self = if cfg!(target_arch = "aarch64") { Self::AARCH64 } else { Self::X86_64 };
}

type TableBytes<'a> = EndianSlice<'a, LittleEndian>;

/// Storage on the stack: more rules than a function has registers to save, and the states that it
/// may push.
struct OnStackStorage;

impl UnwindContextStorage<usize> for OnStackStorage {
    type Rules = [(Register, RegisterRule<usize>); 36];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

type UnwindRow = UnwindTableRow<usize, OnStackStorage>;

/// The code of a signal return: `mov rax, 15; syscall`.
const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Reads the rule for a code address. Returns `None` if the tables do not contain the address.
///
/// `header_at` is the address of `.eh_frame_hdr`; `bytes_from` returns the loaded bytes from an
/// address on.
pub(crate) fn read_rule_at<'a>(
    registers: DwarfRegisters,
    header_at: usize,
    bytes_from: impl Fn(usize) -> Option<&'a [u8]>,
    (pc, is_interrupted): (usize, bool),
) -> Option<UnwindRule> {
    let table = bytes_from(header_at)?;
    // No linker writes entry counts of more than 32 bits or below 0, and gimli would multiply them.
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
    // A call may be the last instruction of a function, so its own address lies before its return
    // address.
    let address = (pc as u64).wrapping_sub(u64::from(!is_interrupted));
    let entry_at = header.table()?.lookup(address, &bases).ok()?.direct().ok()?;
    let offset = usize::try_from(entry_at.checked_sub(frames_at)?).ok()?;
    if offset >= bytes.len() {
        return None;
    }
    let entry = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
    if !entry.contains(address) {
        // Code without an entry is outermost, except for the code that a signal handler returns to.
        let code = bytes_from(pc)?;
        return (!registers.has_link_register && !code.starts_with(&SIGNAL_RETURN))
            .then_some(UnwindRule::OUTERMOST);
    }
    let mut context = UnwindContext::<usize, OnStackStorage>::new_in();
    let Ok(row) = entry.unwind_info_for_address(&frames, &bases, &mut context, address) else {
        return Some(UnwindRule::FALLBACK);
    };
    if entry.cie().return_address_register() != registers.ra {
        return Some(UnwindRule::FALLBACK);
    }
    let is_signal = entry.is_signal_trampoline();
    let reader = ExpressionReader { frames: &frames, registers, pc, encoding: entry.cie().encoding() };
    Some(rule_from_row(registers, row, &reader, is_signal, is_interrupted).unwrap_or(UnwindRule::FALLBACK))
}

/// Converts a row of the tables. Returns `None` if a rule cannot express it.
fn rule_from_row(
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
            rule.method = match *register {
                register if register == registers.sp => UnwindMethod::FromSp,
                register if register == registers.fp => UnwindMethod::FromFp,
                _ => return None,
            };
            *register
        }
        CfaRule::Expression(expression) => match expressions.evaluate(expression)? {
            ExpressionValue::Register { register, add } => {
                rule.offset = i32::try_from(add).ok()?;
                rule.method =
                    if register == registers.sp { UnwindMethod::FromSp } else { UnwindMethod::FromFp };
                register
            }
            ExpressionValue::Loaded { register, at, add } => {
                rule.offset = i32::try_from(at).ok()?;
                rule.deref_add = i16::try_from(add).ok()?;
                rule.method =
                    if register == registers.sp { UnwindMethod::DerefSp } else { UnwindMethod::DerefFp };
                register
            }
            ExpressionValue::NativeMemoEntry(_) => return None,
        },
    };
    // The offset of a saved register, and whether it counts from the base instead of the caller's
    // frame.
    let saved_at = |saved: &RegisterRule<usize>| match saved {
        RegisterRule::Offset(offset) => Some((i16::try_from(*offset).ok()?, false)),
        RegisterRule::Expression(expression) => match expressions.evaluate(expression)? {
            ExpressionValue::Register { register, add } if register == base => {
                Some((i16::try_from(add).ok()?, true))
            }
            _ => None,
        },
        _ => None,
    };
    match row.register(registers.ra) {
        Some(RegisterRule::Undefined) => return Some(UnwindRule::OUTERMOST),
        // The return address is still in the register, which is impossible in a frame that has
        // called another.
        None | Some(RegisterRule::SameValue) if registers.has_link_register || is_interrupted => return None,
        None => return None,
        Some(saved) => {
            let (at, from_base) = saved_at(&saved)?;
            rule.ra_at = at;
            rule.flags |= if from_base { UnwindRule::RA_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.fp) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => {}
        Some(saved) => {
            let (at, from_base) = saved_at(&saved)?;
            rule.fp_at = at;
            rule.flags |= UnwindRule::SAVES_FP | if from_base { UnwindRule::FP_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.sp) {
        None | Some(RegisterRule::ValOffset(0)) => {}
        // A signal frame saves the stack pointer, and the caller's frame begins where it points.
        Some(RegisterRule::Expression(expression)) => {
            let saved = expressions.evaluate(&expression)?;
            let same = ExpressionValue::Register { register: base, add: i64::from(rule.offset) };
            if saved != same
                || !matches!(rule.method, UnwindMethod::DerefSp | UnwindMethod::DerefFp)
                || rule.deref_add != 0
            {
                return None;
            }
        }
        Some(_) => return None,
    }
    rule.flags |= if is_signal { UnwindRule::IS_SIGNAL } else { 0 };
    Some(rule)
}

/// The value of an expression that is known without reading memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ExpressionValue {
    NativeMemoEntry(i64),
    /// Stack or frame pointer plus a constant.
    Register {
        register: Register,
        add: i64,
    },
    /// The word at a register plus a constant, plus another constant.
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
    /// The value of the program counter in an expression.
    pc: usize,
    encoding: gimli::Encoding,
}

impl ExpressionReader<'_, '_> {
    fn evaluate(&self, expression: &UnwindExpression<usize>) -> Option<ExpressionValue> {
        self.run(expression.get(self.frames).ok()?)
    }

    fn run(&self, expression: Expression<TableBytes<'_>>) -> Option<ExpressionValue> {
        const MAX_STACK: usize = 8;
        let mut stack = [ExpressionValue::NativeMemoEntry(0); MAX_STACK];
        let mut depth = 0;
        let mut operations = expression.operations(self.encoding);
        while let Some(operation) = operations.next().ok()? {
            let (taken, value) = match (operation, &stack[..depth]) {
                (Operation::RegisterOffset { register, offset, .. }, _) => {
                    (0, self.register_value(register, offset)?)
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

    fn register_value(&self, register: Register, add: i64) -> Option<ExpressionValue> {
        if register == self.registers.ra && !self.registers.has_link_register {
            return Some(ExpressionValue::NativeMemoEntry((self.pc as i64).wrapping_add(add)));
        }
        (register == self.registers.sp || register == self.registers.fp)
            .then_some(ExpressionValue::Register { register, add })
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
