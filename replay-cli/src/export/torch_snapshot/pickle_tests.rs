//! A reader of the opcodes that `memory_viz` knows reads back what the writer wrote.

use proptest::prelude::*;
use serde_json::{Map, Number, Value};

use super::super::json_values::JsonWriter;
use super::*;

/// Decodes a pickle with the opcodes of the viewer only. Returns the value and the largest batch.
fn unpickle(bytes: &[u8]) -> (Value, usize) {
    let (mut stack, mut marks, mut memo) = (Vec::<Value>::new(), Vec::new(), Vec::new());
    let (mut at, mut largest_batch) = (0, 0);
    let mut take = |len: usize| {
        at += len;
        &bytes[at - len..at]
    };
    assert_eq!(take(2), [0x80, 4]);
    loop {
        let opcode = take(1)[0];
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        match opcode {
            b'}' => stack.push(Value::Object(Map::new())),
            b']' => stack.push(Value::Array(Vec::new())),
            b'(' => marks.push(stack.len()),
            b'e' => {
                let items = stack.split_off(marks.pop().unwrap());
                largest_batch = largest_batch.max(items.len());
                stack.last_mut().unwrap().as_array_mut().unwrap().extend(items);
            }
            b'u' => {
                let items = stack.split_off(marks.pop().unwrap());
                largest_batch = largest_batch.max(items.len() / 2);
                let dict = stack.last_mut().unwrap().as_object_mut().unwrap();
                for pair in items.chunks(2) {
                    dict.insert(pair[0].as_str().unwrap().to_owned(), pair[1].clone());
                }
            }
            0x86 => {
                let pair = stack.split_off(stack.len() - 2);
                stack.push(Value::Array(pair));
            }
            0x88 => stack.push(Value::Bool(true)),
            0x89 => stack.push(Value::Bool(false)),
            b'K' => stack.push(number(take(1)).into()),
            b'M' => stack.push(number(take(2)).into()),
            b'J' => stack.push(number(take(4)).into()),
            0x8a => {
                let len = usize::from(take(1)[0]);
                let long = take(len);
                assert!(long[len - 1] < 0x80, "a number must not be negative");
                stack.push(number(&long[..len.min(8)]).into());
            }
            b'G' => {
                let float = f64::from_be_bytes(take(8).try_into().unwrap());
                stack.push(Number::from_f64(float).map_or(Value::Null, Value::Number));
            }
            0x8c | b'X' => {
                let len = number(take(if opcode == b'X' { 4 } else { 1 })) as usize;
                stack.push(std::str::from_utf8(take(len)).unwrap().into());
            }
            0x94 => memo.push(stack.last().unwrap().clone()),
            b'h' => stack.push(memo[usize::from(take(1)[0])].clone()),
            b'j' => stack.push(memo[number(take(4)) as usize].clone()),
            b'.' => {
                assert_eq!((stack.len(), at), (1, bytes.len()));
                return (stack.pop().unwrap(), largest_batch);
            }
            _ => panic!("the viewer does not know opcode {opcode:#x}"),
        }
    }
}

const KEYS: [&str; 4] = ["action", "frames", "\"\\\n\u{1}", "é\u{10ffff}"];

fn write_value(value: &Value, out: &mut dyn ValueWriter) -> io::Result<()> {
    match value {
        Value::Object(items) => {
            out.begin_dict()?;
            for (key, item) in items {
                out.key(KEYS[KEYS.iter().position(|known| known == key).unwrap()])?;
                write_value(item, out)?;
            }
            out.end_dict()
        }
        // A list of two numbers stands for a pair, one with a leading number for a shared value.
        Value::Array(items) => match items.as_slice() {
            [Value::Number(first), Value::Number(second)] => {
                out.pair(first.as_u64().unwrap(), second.as_u64().unwrap())
            }
            [Value::Number(name), ..] => {
                let name = SharedValue::Stack(name.as_u64().unwrap() as u32);
                out.shared(name, &mut |out| write_list(items, out))
            }
            _ => write_list(items, out),
        },
        Value::String(text) if text.len() > 300 => out.unique_text(text),
        Value::String(text) => out.text(text),
        Value::Number(number) if number.is_u64() => out.unsigned(number.as_u64().unwrap()),
        Value::Number(number) => out.float(number.as_f64().unwrap()),
        Value::Bool(value) => out.boolean(*value),
        Value::Null => unreachable!("snapshots have no null"),
    }
}

fn write_list(items: &[Value], out: &mut dyn ValueWriter) -> io::Result<()> {
    out.begin_list()?;
    for item in items {
        write_value(item, out)?;
    }
    out.end_list()
}

fn pickled(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = PickleWriter::new(&mut bytes).unwrap();
    write_value(value, &mut writer).unwrap();
    writer.finish().unwrap();
    bytes
}

fn values() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        0u64..300,
        0xff00u64..0x1_0100,
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (1u32..64).prop_map(|bit| (1 << bit) - 1),
    ];
    let leaf = prop_oneof![
        numbers.prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(|number| (f64::from(number) + 0.25).into()),
        prop_oneof![".{0,8}", "a{250,260}", "b{301,400}"].prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 200, 12, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..12)
                .prop_filter("names of shared values", |items| !items.first().is_some_and(Value::is_number))
                .prop_map(Value::from),
            proptest::collection::btree_map(proptest::sample::select(&KEYS[..]), inner, 0..4).prop_map(
                |map| map
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect::<Map<_, _>>()
                    .into()
            ),
        ]
    })
}

proptest! {
    #[test]
    fn values_are_read_back(value in values()) {
        let (read, _) = unpickle(&pickled(&value));
        prop_assert_eq!(&read, &value);
        let mut text = Vec::new();
        let mut writer = JsonWriter::new(&mut text);
        write_value(&value, &mut writer).unwrap();
        writer.finish().unwrap();
        prop_assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), value);
    }
}

#[test]
fn long_lists_are_added_in_batches_and_repeated_values_once() {
    for count in [0, 1, 999, 1000, 1001, 2000, 2001] {
        let item = serde_json::json!([7, "a text that occurs often", { "action": "alloc" }, []]);
        let value = Value::Array(std::iter::once(Value::Bool(true)).chain(vec![item; count]).collect());
        let bytes = pickled(&value);
        let (read, largest_batch) = unpickle(&bytes);
        assert!(read == value && largest_batch <= 1000, "{count} items");
        assert!(bytes.len() < 100 + 3 * count, "{count} items take {} bytes", bytes.len());
    }
}

#[test]
fn pairs_are_tuples() {
    let mut bytes = Vec::new();
    let mut writer = PickleWriter::new(&mut bytes).unwrap();
    writer.pair(0, 70_000).unwrap();
    writer.finish().unwrap();
    assert_eq!(bytes, b"\x80\x04K\x00Jp\x11\x01\x00\x86.");
}
