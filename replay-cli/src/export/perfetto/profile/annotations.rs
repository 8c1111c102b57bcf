//! From the arguments of a JSON event to debug annotations.

use serde_json::Value;

use crate::export::perfetto::track_events::event;
use crate::export::protobuf::Message;

/// The numbers of fields of `DebugAnnotation`.
mod annotation {
    pub(super) const BOOL: u32 = 2;
    pub(super) const UINT: u32 = 3;
    pub(super) const INT: u32 = 4;
    pub(super) const DOUBLE: u32 = 5;
    pub(super) const STRING: u32 = 6;
    pub(super) const NAME: u32 = 10;
    pub(super) const DICT_ENTRIES: u32 = 11;
    pub(super) const ARRAY_VALUES: u32 = 12;
}

/// Attaches an argument to an event.
pub(super) fn add_argument(event: &mut Message, name: &str, value: &Value) {
    let mut annotation = Message::new();
    annotation.str(annotation::NAME, name);
    add_value(&mut annotation, value);
    event.message(event::DEBUG_ANNOTATIONS, &annotation);
}

/// `null` stays without a value. The JSON reader limits the depth.
fn add_value(annotation: &mut Message, value: &Value) {
    match value {
        Value::Null => {}
        Value::Bool(is_true) => {
            annotation.uint(annotation::BOOL, u64::from(*is_true));
        }
        Value::Number(number) => {
            if let Some(number) = number.as_i64() {
                annotation.int(annotation::INT, number);
            } else if let Some(number) = number.as_u64() {
                annotation.uint(annotation::UINT, number);
            } else if let Some(number) = number.as_f64() {
                annotation.double(annotation::DOUBLE, number);
            }
        }
        Value::String(text) => {
            annotation.str(annotation::STRING, text);
        }
        Value::Array(values) => {
            for value in values {
                let mut element = Message::new();
                add_value(&mut element, value);
                annotation.message(annotation::ARRAY_VALUES, &element);
            }
        }
        Value::Object(entries) => {
            for (name, value) in entries {
                let mut entry = Message::new();
                entry.str(annotation::NAME, name);
                add_value(&mut entry, value);
                annotation.message(annotation::DICT_ENTRIES, &entry);
            }
        }
    }
}
