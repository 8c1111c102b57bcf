//! From the unwind tables of a module to a rule.
//!
//! Constraint: the tables are read inside the hook, where nothing may be allocated, and they were written by many compilers.
//! Consequence: `gimli` reads them in place, with room for its rows on the stack. What does not have the form of a [`Rule`]
//! becomes [`Rule::SLOWLY`]: a frame is never guessed. Expressions are followed as far as their result is a register plus a
//! constant, or the word there plus a constant; that covers procedure linkage tables, functions that align their stack, and
//! the kernel's signal frames.

use gimli::{
    BaseAddresses, CfaRule, DW_EH_PE_udata2, DW_EH_PE_udata4, DwEhPe, EhFrame, EhFrameHdr, EndianSlice,
    Expression, LittleEndian, Operation, Register, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow,
};

use super::rule::{How, Rule};

/// The registers that matter here, by their DWARF numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    fp: Register,
    sp: Register,
    ra: Register,
    /// Whether the return address is a register that a function must save, instead of a place on the stack.
    links: bool,
}

impl Registers {
    /// x86-64.
    pub(crate) const X86_64: Self = Self { fp: Register(6), sp: Register(7), ra: Register(16), links: false };
    /// aarch64.
    pub(crate) const AARCH64: Self =
        Self { fp: Register(29), sp: Register(31), ra: Register(30), links: true };
    /// Of this machine.
    pub(crate) const HERE: Self = if cfg!(target_arch = "aarch64") { Self::AARCH64 } else { Self::X86_64 };
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Room for more rules than a function has registers to save, and for states that it may push.
struct OnTheStack;

impl UnwindContextStorage<usize> for OnTheStack {
    type Rules = [(Register, RegisterRule<usize>); 36];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

type Row = UnwindTableRow<usize, OnTheStack>;

/// `mov rax, 15; syscall`.
const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// The rule for an address. `None`: the tables do not know it.
///
/// `header_at` is where `.eh_frame_hdr` is loaded; `bytes_from` gives what is loaded from an address on.
pub(crate) fn rule_at<'a>(
    registers: Registers,
    header_at: usize,
    bytes_from: impl Fn(usize) -> Option<&'a [u8]>,
    (pc, is_interrupted): (usize, bool),
) -> Option<Rule> {
    let table = bytes_from(header_at)?;
    // Numbers of entries of more than 32 bits, or below 0, which no linker writes: gimli multiplies them.
    if ![DW_EH_PE_udata2, DW_EH_PE_udata4].contains(&DwEhPe(table.get(2)? & 0x0f)) {
        return Some(Rule::SLOWLY);
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
        return (!registers.links && !code.starts_with(&SIGNAL_RETURN)).then_some(Rule::END);
    }
    let mut context = UnwindContext::<usize, OnTheStack>::new_in();
    let Ok(row) = entry.unwind_info_for_address(&frames, &bases, &mut context, wanted) else {
        return Some(Rule::SLOWLY);
    };
    if entry.cie().return_address_register() != registers.ra {
        return Some(Rule::SLOWLY);
    }
    let is_signal = entry.is_signal_trampoline();
    let reader = Expressions { frames: &frames, registers, pc, encoding: entry.cie().encoding() };
    Some(from_row(registers, row, &reader, is_signal, is_interrupted).unwrap_or(Rule::SLOWLY))
}

/// `None`: not in this form.
fn from_row(
    registers: Registers,
    row: &Row,
    expressions: &Expressions<'_, '_>,
    is_signal: bool,
    is_interrupted: bool,
) -> Option<Rule> {
    let mut rule = Rule::default();
    let base = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            rule.offset = i32::try_from(*offset).ok()?;
            rule.how = match *register {
                register if register == registers.sp => How::FromSp,
                register if register == registers.fp => How::FromFp,
                _ => return None,
            };
            *register
        }
        CfaRule::Expression(expression) => match expressions.value(expression)? {
            Value::Register { register, add } => {
                rule.offset = i32::try_from(add).ok()?;
                rule.how = if register == registers.sp { How::FromSp } else { How::FromFp };
                register
            }
            Value::Loaded { register, at, add } => {
                rule.offset = i32::try_from(at).ok()?;
                rule.then = i16::try_from(add).ok()?;
                rule.how = if register == registers.sp { How::ThroughSp } else { How::ThroughFp };
                register
            }
            Value::Known(_) => return None,
        },
    };
    // Where something was saved: the offset, and whether it counts from the base and not from the caller's frame.
    let place = |saved: &RegisterRule<usize>| match saved {
        RegisterRule::Offset(offset) => Some((i16::try_from(*offset).ok()?, false)),
        RegisterRule::Expression(expression) => match expressions.value(expression)? {
            Value::Register { register, add } if register == base => Some((i16::try_from(add).ok()?, true)),
            _ => None,
        },
        _ => None,
    };
    match row.register(registers.ra) {
        Some(RegisterRule::Undefined) => return Some(Rule::END),
        // The register itself holds it still: in no frame that has called another.
        None | Some(RegisterRule::SameValue) if registers.links || is_interrupted => return None,
        None => return None,
        Some(saved) => {
            let (at, from_base) = place(&saved)?;
            rule.ra_at = at;
            rule.flags |= if from_base { Rule::RA_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.fp) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => {}
        Some(saved) => {
            let (at, from_base) = place(&saved)?;
            rule.fp_at = at;
            rule.flags |= Rule::SAVES_FP | if from_base { Rule::FP_FROM_BASE } else { 0 };
        }
    }
    match row.register(registers.sp) {
        None | Some(RegisterRule::ValOffset(0)) => {}
        // A signal frame says where the stack pointer was saved, and that the caller's frame begins where it points.
        Some(RegisterRule::Expression(expression)) => {
            let saved = expressions.value(&expression)?;
            let same = Value::Register { register: base, add: i64::from(rule.offset) };
            if saved != same || !matches!(rule.how, How::ThroughSp | How::ThroughFp) || rule.then != 0 {
                return None;
            }
        }
        Some(_) => return None,
    }
    rule.flags |= if is_signal { Rule::IS_SIGNAL } else { 0 };
    Some(rule)
}

/// What an expression stands for, without any memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Known(i64),
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

impl Value {
    fn plus(self, more: i64) -> Self {
        match self {
            Self::Known(value) => Self::Known(value.wrapping_add(more)),
            Self::Register { register, add } => Self::Register { register, add: add.wrapping_add(more) },
            Self::Loaded { register, at, add } => Self::Loaded { register, at, add: add.wrapping_add(more) },
        }
    }
}

struct Expressions<'a, 'f> {
    frames: &'f EhFrame<Slice<'a>>,
    registers: Registers,
    /// What the program counter is in an expression.
    pc: usize,
    encoding: gimli::Encoding,
}

impl Expressions<'_, '_> {
    fn value(&self, expression: &UnwindExpression<usize>) -> Option<Value> {
        self.follow(expression.get(self.frames).ok()?)
    }

    fn follow(&self, expression: Expression<Slice<'_>>) -> Option<Value> {
        const DEEPEST: usize = 8;
        let mut stack = [Value::Known(0); DEEPEST];
        let mut depth = 0;
        let mut operations = expression.operations(self.encoding);
        while let Some(operation) = operations.next().ok()? {
            let (taken, value) = match (operation, &stack[..depth]) {
                (Operation::RegisterOffset { register, offset, .. }, _) => {
                    (0, self.register(register, offset)?)
                }
                (Operation::UnsignedConstant { value }, _) => (0, Value::Known(value as i64)),
                (Operation::SignedConstant { value }, _) => (0, Value::Known(value)),
                (Operation::PlusConstant { value }, [.., top]) => (1, top.plus(value as i64)),
                (Operation::Deref { size: 8, space: false, .. }, [.., Value::Register { register, add }]) => {
                    (1, Value::Loaded { register: *register, at: *add, add: 0 })
                }
                (Operation::Plus, [.., left, Value::Known(right)]) => (2, left.plus(*right)),
                (Operation::Plus, [.., Value::Known(left), right]) => (2, right.plus(*left)),
                (Operation::Minus, [.., left, Value::Known(right)]) => (2, left.plus(right.wrapping_neg())),
                (Operation::And, [.., Value::Known(left), Value::Known(right)]) => {
                    (2, Value::Known(left & right))
                }
                (Operation::Ge, [.., Value::Known(left), Value::Known(right)]) => {
                    (2, Value::Known(i64::from(left >= right)))
                }
                (Operation::Shl, [.., Value::Known(left), Value::Known(right)]) => {
                    (2, Value::Known(left.checked_shl(u32::try_from(*right).ok()?)?))
                }
                _ => return None,
            };
            depth -= taken;
            *stack.get_mut(depth)? = value;
            depth += 1;
        }
        depth.checked_sub(1).map(|top| stack[top])
    }

    fn register(&self, register: Register, add: i64) -> Option<Value> {
        if register == self.registers.ra && !self.registers.links {
            return Some(Value::Known((self.pc as i64).wrapping_add(add)));
        }
        (register == self.registers.sp || register == self.registers.fp)
            .then_some(Value::Register { register, add })
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
