//! Compares decoded line tables with the CPython interpreters that wrote them, for every
//! instruction of some modules of the standard library and of generated code.

#![allow(clippy::print_stderr)] // The test prints which versions it skips.

use std::path::PathBuf;
use std::process::Command;

use gpumemtrace_format::CodeDef;
use gpumemtrace_replay::callsite::line_at;

/// Prints for each code object: first line, table in hexadecimal, and the line of each code unit
/// (0 for none).
const SCRIPT: &str = r"
import argparse, dataclasses, inspect, json, sys, types
import ctypes, random
address_to_line = ctypes.pythonapi.PyCode_Addr2Line
address_to_line.argtypes, address_to_line.restype = [ctypes.py_object, ctypes.c_int], ctypes.c_int
made = []
def at_random(seed):
    # Statements with gaps of 0 to 300 lines, and line numbers that go backwards.
    maker, lines = random.Random(seed), ['def made(x):']
    gap = lambda: '\n' * maker.choice([0, 0, 0, 1, 2, 130, 300])
    for i in range(60):
        lines.append(maker.choice(['  x = (' + gap() + 'x +' + gap() + ' f(' + gap() + '1), x)',
            '  if x:\n    x = 1' + gap() + '\n  else:\n    x = 2', '  for y in x:' + gap() + '\n    x = y',
            '  try:\n    f()' + gap() + '\n  except E:\n    f(' + gap() + 'x)\n  finally:\n    x = 1',
            '  with x as y, y as x:' + gap() + '\n    return x', '  x = [y for' + gap() + ' y in (lambda: ' + gap() + 'x)()]']))
    return compile('\n' * maker.randrange(300) + '\n'.join(lines), 'made.py', 'exec')
exec(compile('def far():\n' + '\n' * 5000 + '  return [\n' + '\n' * 300 + 'x for x in (1,\n2)]\n', 'far.py', 'exec'))
def walk(code):
    size = len(code.co_code)
    if sys.version_info >= (3, 11):
        lines = [p[0] for p in code.co_positions()]
        table = code.co_linetable
    else:
        lines = [None] * (size // 2)
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                lines[unit] = line
        table = code.co_linetable
    # The interpreter's own function, which finds `f_lineno`, must agree.
    for unit, line in enumerate(lines):
        assert max(address_to_line(code, 2 * unit), 0) == (line or 0), (code, unit)
    made.append([code.co_firstlineno, table.hex(), [line or 0 for line in lines]])
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            walk(const)
for module in (argparse, dataclasses, inspect, json):
    with open(module.__file__, encoding='utf-8') as source:
        walk(compile(source.read(), module.__file__, 'exec'))
walk(far.__code__)
for seed in range(20):
    walk(at_random(seed))
print(json.dumps(made))
";

fn interpreter(minor: u16) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let home = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    let versions = home.and_then(|home| std::fs::read_dir(home.join("versions")).ok());
    let installed =
        versions.into_iter().flatten().flatten().map(|entry| entry.path().join("bin").join(&name));
    let candidates = [PathBuf::from(&name), PathBuf::from("python3")].into_iter().chain(installed);
    let is_it = |path: &PathBuf| {
        let output = Command::new(path).args(["-c", "import sys; print(sys.version_info[1])"]).output();
        output.is_ok_and(|output| output.status.success() && output.stdout == format!("{minor}\n").as_bytes())
    };
    candidates.into_iter().find(is_it)
}

fn compare(minor: u16, python: &PathBuf) -> usize {
    let output = Command::new(python).args(["-c", SCRIPT]).output().expect("an interpreter that runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Vec<(i32, String, Vec<u32>)> =
        serde_json::from_slice(&output.stdout).expect("what the script prints");
    let mut compared = 0;
    for (first_line, table, lines) in made {
        let line_table = (0..table.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&table[at..at + 2], 16).unwrap())
            .collect();
        let code = CodeDef { first_line, python: 0x0300 | minor, line_table, ..CodeDef::default() };
        for (unit, line) in lines.iter().enumerate() {
            let found = line_at(&code, unit as i32 * 2).unwrap_or(0);
            assert_eq!(found, *line, "python 3.{minor}, code object at line {first_line}, unit {unit}");
            compared += 1;
        }
    }
    compared
}

#[test]
fn every_instruction_has_the_line_that_its_interpreter_reports() {
    let mut ran = 0;
    for minor in 10..=14 {
        match interpreter(minor) {
            Some(python) => {
                let compared = compare(minor, &python);
                eprintln!("python 3.{minor}: {compared} instructions");
                assert!(compared > 10_000);
                ran += 1;
            }
            None => eprintln!("python 3.{minor}: not installed, skipped"),
        }
    }
    assert!(ran > 0, "no interpreter at all");
}
