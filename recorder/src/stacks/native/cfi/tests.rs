use proptest::prelude::*;

use super::*;

/// Addresses of the tables, and of the code that they describe.
const FRAMES_AT: usize = 0x50_0000;
const HEADER_AT: usize = 0x51_0000;
const CODE_AT: usize = 0x40_0000;
/// Size of each function in bytes.
const FUNCTION: usize = 0x100;

// Instructions of call frame information.
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_REGISTER: u8 = 0x0d;
const DEF_CFA_OFFSET: u8 = 0x0e;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const EXPRESSION: u8 = 0x10;
const UNDEFINED: u8 = 0x07;
const ADVANCE: u8 = 0x40;
const OFFSET: u8 = 0x80;
// Registers of aarch64.
const FP: u8 = 29;
const LR: u8 = 30;
// Operations of expressions.
const DEREF: u8 = 0x06;
const AND: u8 = 0x1a;
const PLUS: u8 = 0x22;
const SHL: u8 = 0x24;
const GE: u8 = 0x2a;
const LITERAL: u8 = 0x30;
const BREG: u8 = 0x70;

/// Unwind tables of functions with the given instructions.
struct FakeTables {
    frames: Vec<u8>,
    header: Vec<u8>,
}

impl FakeTables {
    fn x86_64(is_signal: bool, functions: &[&[u8]]) -> Self {
        // The caller's frame is the stack pointer plus 8, with the return address below.
        Self::new(16, is_signal, &[DEF_CFA, 7, 8, OFFSET | 16, 1], functions)
    }

    fn aarch64(functions: &[&[u8]]) -> Self {
        Self::new(30, false, &[DEF_CFA, 31, 0], functions)
    }

    fn new(return_register: u8, is_signal: bool, initial: &[u8], functions: &[&[u8]]) -> Self {
        let mut frames = Vec::new();
        let augmentation: &[u8] = if is_signal { b"zRS\0" } else { b"zR\0" };
        // Version, augmentation, code unit 1, data unit -8, return address register, relative
        // addresses.
        let common = [&[1], augmentation, &[1, 0x78, return_register, 1, 0x1b], initial].concat();
        let entry = |frames: &mut Vec<u8>, id: u32, body: &[u8]| {
            let padding = (4 - body.len() % 4) % 4;
            frames.extend(((body.len() + padding + 4) as u32).to_le_bytes());
            frames.extend(id.to_le_bytes());
            frames.extend(body);
            frames.resize(frames.len() + padding, 0);
        };
        entry(&mut frames, 0, &common);
        let mut rows = Vec::new();
        for (number, instructions) in functions.iter().enumerate() {
            let (code, at) = (CODE_AT + number * FUNCTION, frames.len());
            let relative = (code as i64 - (FRAMES_AT + at + 8) as i64) as i32;
            let body =
                [&relative.to_le_bytes()[..], &(FUNCTION as u32).to_le_bytes(), &[0], instructions].concat();
            entry(&mut frames, at as u32 + 4, &body);
            let from_header = |address: usize| (address as i64 - HEADER_AT as i64) as i32;
            rows.extend(from_header(code).to_le_bytes());
            rows.extend(from_header(FRAMES_AT + at).to_le_bytes());
        }
        let mut header = vec![1, 0x1b, 0x03, 0x3b];
        header.extend(((FRAMES_AT as i64 - HEADER_AT as i64 - 4) as i32).to_le_bytes());
        header.extend((functions.len() as u32).to_le_bytes());
        header.extend(rows);
        Self { frames, header }
    }

    fn rule(&self, registers: DwarfRegisters, at: (usize, bool)) -> Option<UnwindRule> {
        let bytes_from = |address: usize| match address {
            FRAMES_AT.. if address < HEADER_AT => self.frames.get(address - FRAMES_AT..),
            HEADER_AT.. => self.header.get(address - HEADER_AT..),
            _ => Some(&[0x90; 16][..]),
        };
        read_rule_at(registers, HEADER_AT, bytes_from, at)
    }

    /// The rule for a return address in the first function.
    fn rule_x86(&self, offset: usize) -> UnwindRule {
        self.rule(DwarfRegisters::X86_64, (CODE_AT + offset, false)).unwrap()
    }
}

/// `DW_CFA_def_cfa_expression` or another instruction with an expression.
fn with_expression(head: &[u8], expression: &[u8]) -> Vec<u8> {
    [head, &[expression.len() as u8], expression].concat()
}

#[test]
fn each_row_of_a_function_gives_its_own_rule() {
    // push rbp; mov rbp, rsp, as compilers error_text it.
    let tables = FakeTables::x86_64(
        false,
        &[&[ADVANCE | 1, DEF_CFA_OFFSET, 16, OFFSET | 6, 2, ADVANCE | 3, DEF_CFA_REGISTER, 6]],
    );
    let plain = UnwindRule { method: UnwindMethod::FromSp, offset: 8, ra_at: -8, ..UnwindRule::default() };
    assert_eq!(tables.rule_x86(1), plain);
    let pushed = UnwindRule { offset: 16, flags: UnwindRule::SAVES_FP, fp_at: -16, ..plain };
    assert_eq!(tables.rule_x86(2), pushed);
    assert_eq!(tables.rule_x86(5), UnwindRule { method: UnwindMethod::FromFp, ..pushed });
    // An interrupted instruction counts at its own address, a return address at the call before it.
    assert_eq!(tables.rule(DwarfRegisters::X86_64, (CODE_AT + 1, true)), Some(pushed));
    assert_eq!(
        tables.rule_x86(FUNCTION),
        UnwindRule { method: UnwindMethod::FromFp, ..pushed },
        "the last instruction"
    );
}

#[test]
fn function_is_found_among_many() {
    let bodies: Vec<[u8; 2]> = (2..40).map(|words| [DEF_CFA_OFFSET, words]).collect();
    let tables = FakeTables::x86_64(false, &bodies.iter().map(|body| &body[..]).collect::<Vec<_>>());
    for (number, body) in bodies.iter().enumerate() {
        assert_eq!(tables.rule_x86(number * FUNCTION + 50).offset, i32::from(body[1]));
    }
}

#[test]
fn undefined_return_address_means_outermost() {
    assert_eq!(FakeTables::x86_64(false, &[&[UNDEFINED, 16]]).rule_x86(4), UnwindRule::OUTERMOST);
}

#[test]
fn code_without_table_entry_is_outermost() {
    let tables = FakeTables::x86_64(false, &[&[]]);
    assert_eq!(
        tables.rule(DwarfRegisters::X86_64, (CODE_AT + 2 * FUNCTION, false)),
        Some(UnwindRule::OUTERMOST)
    );
    assert_eq!(tables.rule(DwarfRegisters::X86_64, (CODE_AT - 64, false)), Some(UnwindRule::OUTERMOST));
    assert_eq!(tables.rule(DwarfRegisters::AARCH64, (CODE_AT - 64, false)), None);
}

#[test]
fn function_that_aligns_its_stack() {
    // CFA = *(rbp - 8); rbp saved at rbp.
    let body = [
        with_expression(&[DEF_CFA_EXPRESSION], &[BREG + 6, 0x78, DEREF]),
        with_expression(&[EXPRESSION, 6], &[BREG + 6, 0]),
    ]
    .concat();
    let flags = UnwindRule::SAVES_FP | UnwindRule::FP_FROM_BASE;
    let expected =
        UnwindRule { method: UnwindMethod::DerefFp, offset: -8, flags, deref_add: 0, fp_at: 0, ra_at: -8 };
    assert_eq!(FakeTables::x86_64(false, &[&body]).rule_x86(4), expected);
}

#[test]
fn signal_frame() {
    // As in glibc: registers at offsets from rsp, in the context that the kernel stored.
    let from_sp =
        |register: u8, at: [u8; 2]| with_expression(&[EXPRESSION, register], &[BREG + 7, at[0], at[1]]);
    let body = [
        with_expression(&[DEF_CFA_EXPRESSION], &[BREG + 7, 0xa0, 0x01, DEREF]),
        from_sp(6, [0xf8, 0x00]),
        from_sp(7, [0xa0, 0x01]),
        from_sp(16, [0xa8, 0x01]),
    ]
    .concat();
    let flags =
        UnwindRule::SAVES_FP | UnwindRule::FP_FROM_BASE | UnwindRule::RA_FROM_BASE | UnwindRule::IS_SIGNAL;
    let expected = UnwindRule {
        method: UnwindMethod::DerefSp,
        offset: 160,
        flags,
        deref_add: 0,
        fp_at: 120,
        ra_at: 168,
    };
    assert_eq!(FakeTables::x86_64(true, &[&body]).rule_x86(4), expected);
}

#[test]
fn procedure_linkage_table() {
    // CFA = rsp + 8 + ((rip & 15) >= 11) * 8
    let expression = [BREG + 7, 8, BREG + 16, 0, LITERAL + 15, AND, LITERAL + 11, GE, LITERAL + 3, SHL, PLUS];
    let body = with_expression(&[DEF_CFA_EXPRESSION], &expression);
    let tables = FakeTables::x86_64(false, &[&body]);
    let offset = |at| tables.rule(DwarfRegisters::X86_64, (CODE_AT + at, true)).unwrap().offset;
    assert_eq!([offset(0), offset(10), offset(11), offset(16)], [8, 8, 16, 8]);
}

#[test]
fn other_forms_use_the_complete_unwinder() {
    let odd: [&[u8]; 5] = [
        &[DEF_CFA, 3, 16],                                         // from rbx
        &with_expression(&[DEF_CFA_EXPRESSION], &[BREG + 3, 0]),   // also from rbx
        &with_expression(&[DEF_CFA_EXPRESSION], &[PLUS]),          // nothing on the stack
        &with_expression(&[EXPRESSION, 6], &[BREG + 6, 0, DEREF]), // rbp through another word
        &[0x0a, 0x0b, 0x0b],                                       // one pop too many
    ];
    for body in odd {
        assert_eq!(FakeTables::x86_64(false, &[body]).rule_x86(4), UnwindRule::FALLBACK, "{body:?}");
    }
}

#[test]
fn aarch64_link_register_is_saved() {
    // stp x29, x30, [sp, -32]!: both at the bottom of the frame.
    let tables = FakeTables::aarch64(&[
        &[ADVANCE | 4, DEF_CFA_OFFSET, 32, OFFSET | FP, 4, OFFSET | LR, 3],
        &[UNDEFINED, 30],
    ]);
    let rule = |at| tables.rule(DwarfRegisters::AARCH64, (CODE_AT + at, false)).unwrap();
    let flags = UnwindRule::SAVES_FP;
    let saved =
        UnwindRule { method: UnwindMethod::FromSp, offset: 32, flags, deref_add: 0, fp_at: -32, ra_at: -24 };
    assert_eq!(rule(8), saved);
    assert_eq!(rule(4), UnwindRule::FALLBACK, "the return address is still in the register");
    assert_eq!(rule(FUNCTION + 8), UnwindRule::OUTERMOST);
}

proptest! {
    #[test]
    fn random_instructions_are_read_without_panic(body: Vec<u8>, at in 0usize..FUNCTION, interrupted: bool) {
        let tables = FakeTables::x86_64(false, &[&body]);
        tables.rule(DwarfRegisters::X86_64, (CODE_AT + at, interrupted));
    }

    #[test]
    fn damaged_tables_are_read_without_panic(
        frames: Vec<u8>, header: Vec<u8>, changes: Vec<(usize, u8)>, at in 0usize..4 * FUNCTION
    ) {
        let mut tables = FakeTables::x86_64(false, &[&[DEF_CFA_OFFSET, 16], &[OFFSET | 6, 2], &[]]);
        for (place, byte) in changes {
            let part = if place % 2 == 0 { &mut tables.frames } else { &mut tables.header };
            let place = place / 2 % part.len();
            part[place] = byte;
        }
        tables.rule(DwarfRegisters::X86_64, (CODE_AT + at, false));
        FakeTables { frames, header }.rule(DwarfRegisters::X86_64, (CODE_AT + at, false));
    }
}
