//! JSON objects for the formats of other tools.
//!
//! They are built as values, by functions that are not inlined: structures for the schemas of other
//! tools, or collecting into maps, would add 100 kB to the command.

use serde_json::{Map, Value};

/// An object with these members.
pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let mut map = Map::new();
    for (key, value) in members {
        insert(&mut map, key, value);
    }
    Value::Object(map)
}

/// An object with members of one type.
pub(super) fn uniform_object<T: Copy + Into<Value>>(members: &[(&str, T)]) -> Map<String, Value> {
    let mut map = Map::new();
    for (key, value) in members {
        insert(&mut map, key, (*value).into());
    }
    map
}

/// Adds a member, or replaces it.
#[inline(never)]
pub(super) fn insert(map: &mut Map<String, Value>, key: &str, value: Value) {
    map.insert(key.to_owned(), value);
}
