//! Writes values as pickles of every protocol, as CPython does.

use serde_json::Value;

/// Items of one APPENDS or SETITEMS.
const BATCH: usize = 1000;

/// How a pickle is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickleStyle {
    pub(crate) protocol: u8,
    /// Texts, and lists of frames or texts, are written once and referred to.
    pub(crate) shares: bool,
}

/// Pickles a value. Lists of two numbers under a key that ends in `pool_id` become tuples.
pub(crate) fn pickle(value: &Value, style: PickleStyle) -> Vec<u8> {
    let mut writer =
        PickleWriter { out: vec![0x80, style.protocol], style, memo: Vec::new(), known: Vec::new() };
    if style.protocol >= 4 {
        writer.out.push(0x95);
        writer.out.extend_from_slice(&u64::MAX.to_le_bytes());
    }
    writer.put(value, false);
    writer.out.push(b'.');
    writer.out
}

struct PickleWriter {
    out: Vec<u8>,
    style: PickleStyle,
    /// What has an entry of the memo, by number.
    memo: Vec<()>,
    /// Shared values and their entries.
    known: Vec<(String, u32)>,
}

impl PickleWriter {
    fn memoize(&mut self) -> u32 {
        let at = self.memo.len() as u32;
        self.memo.push(());
        match self.style.protocol {
            4.. => self.out.push(0x94),
            _ if at < 256 => self.out.extend_from_slice(&[b'q', at as u8]),
            _ => {
                self.out.push(b'r');
                self.out.extend_from_slice(&at.to_le_bytes());
            }
        }
        at
    }

    fn get(&mut self, at: u32) {
        if let Ok(at) = u8::try_from(at) {
            self.out.extend_from_slice(&[b'h', at]);
        } else {
            self.out.push(b'j');
            self.out.extend_from_slice(&at.to_le_bytes());
        }
    }

    /// Refers to an equal value that was written before. The key is its JSON.
    fn put_known(&mut self, key: &str) -> bool {
        let known = self.known.iter().find(|(known, _)| known == key).map(|(_, at)| *at);
        known.inspect(|at| self.get(*at)).is_some()
    }

    fn put(&mut self, value: &Value, is_tuple: bool) {
        match value {
            Value::Null => self.out.push(b'N'),
            Value::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Value::Number(number) => self.put_number(number),
            Value::String(text) => self.put_text(text),
            Value::Array(items) if is_tuple && items.len() == 2 => {
                for item in items {
                    self.put(item, false);
                }
                self.out.push(0x86);
                self.memoize();
            }
            Value::Array(items) => {
                let is_list_of_lines = |item: &Value| item.get("filename").is_some() || item.is_string();
                let is_shared = self.style.shares && items.first().is_some_and(is_list_of_lines);
                let key = value.to_string();
                if is_shared && self.put_known(&key) {
                    return;
                }
                self.out.push(b']');
                let at = self.memoize();
                if is_shared {
                    self.known.push((key, at));
                }
                for batch in items.chunks(BATCH) {
                    if let [item] = batch {
                        self.put(item, false);
                        self.out.push(b'a');
                        continue;
                    }
                    self.out.push(b'(');
                    for item in batch {
                        self.put(item, false);
                    }
                    self.out.push(b'e');
                }
            }
            Value::Object(pairs) => {
                self.out.push(b'}');
                self.memoize();
                if pairs.is_empty() {
                    return;
                }
                self.out.push(b'(');
                for (key, value) in pairs {
                    self.put_text(key);
                    self.put(value, key.ends_with("pool_id"));
                }
                self.out.push(b'u');
            }
        }
    }

    fn put_number(&mut self, number: &serde_json::Number) {
        if let Some(number) = number.as_i64() {
            match (u8::try_from(number), u16::try_from(number), i32::try_from(number)) {
                (Ok(number), ..) => self.out.extend_from_slice(&[b'K', number]),
                (_, Ok(number), _) => {
                    self.out.push(b'M');
                    self.out.extend_from_slice(&number.to_le_bytes());
                }
                (_, _, Ok(number)) => {
                    self.out.push(b'J');
                    self.out.extend_from_slice(&number.to_le_bytes());
                }
                _ => {
                    self.out.extend_from_slice(&[0x8a, 8]);
                    self.out.extend_from_slice(&number.to_le_bytes());
                }
            }
        } else if let Some(number) = number.as_u64() {
            self.out.extend_from_slice(&[0x8a, 9]);
            self.out.extend_from_slice(&number.to_le_bytes());
            self.out.push(0);
        } else {
            self.out.push(b'G');
            self.out.extend_from_slice(&number.as_f64().unwrap().to_be_bytes());
        }
    }

    fn put_text(&mut self, text: &str) {
        let key = format!("{text:?}");
        if self.style.shares && self.put_known(&key) {
            return;
        }
        if self.style.protocol >= 4 && text.len() < 256 {
            self.out.extend_from_slice(&[0x8c, text.len() as u8]);
        } else {
            self.out.push(b'X');
            self.out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
        self.out.extend_from_slice(text.as_bytes());
        let at = self.memoize();
        if self.style.shares {
            self.known.push((key, at));
        }
    }
}
