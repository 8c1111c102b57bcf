//! Reads the JSON form of a snapshot.

use std::fmt;
use std::io::{BufRead, BufReader};

use serde::de::{DeserializeSeed, Deserializer as _, Error as _, MapAccess, SeqAccess, Visitor};

use crate::error::SnapshotError;
use crate::json_strings::StringLimit;
use crate::values::{SnapshotBuilder, TextId, Value};

/// Reads one JSON value and returns it. Nesting is limited to 128 levels by the parser.
pub(crate) fn read_json(
    bytes: &mut dyn BufRead,
    builder: &mut SnapshotBuilder,
) -> Result<Value, SnapshotError> {
    let mut parser = serde_json::Deserializer::from_reader(BufReader::new(StringLimit::new(bytes)));
    let mut refused = None;
    let visitor = ValueVisitor { builder, refused: &mut refused };
    let value = parser.deserialize_any(visitor).and_then(|value| parser.end().map(|()| value));
    match (value, refused) {
        (_, Some(error)) => Err(error),
        (Ok(value), None) => Ok(value),
        (Err(error), None) if error.is_io() => Err(SnapshotError::Io(error.into())),
        (Err(error), None) => Err(SnapshotError::Json(error.to_string())),
    }
}

/// Passes each value to the builder as soon as it is complete.
struct ValueVisitor<'a> {
    builder: &'a mut SnapshotBuilder,
    /// Why the builder refused a value; the parser's errors are texts.
    refused: &'a mut Option<SnapshotError>,
}

impl ValueVisitor<'_> {
    fn nested(&mut self) -> ValueVisitor<'_> {
        ValueVisitor { builder: self.builder, refused: self.refused }
    }

    fn accept<E: serde::de::Error>(self, value: Result<Value, SnapshotError>) -> Result<Value, E> {
        value.map_err(|error| {
            *self.refused = Some(error);
            E::custom("refused")
        })
    }
}

impl<'de> DeserializeSeed<'de> for ValueVisitor<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Large(value), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(self.builder.text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self.nested())? {
            let had = items.len();
            SnapshotBuilder::push_item(&mut items, item);
            if items.len() > had
                && let Err(error) = self.builder.containers.charge(1)
            {
                return self.accept(Err(error));
            }
        }
        self.builder.containers.discharge_values(items.len());
        let value = self.builder.list(items);
        self.accept(value)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut dict: A) -> Result<Value, A::Error> {
        let mut pairs: Vec<(TextId, Value)> = Vec::new();
        while let Some(key) = dict.next_key_seed(self.nested())? {
            let key = key.as_text().ok_or_else(|| A::Error::custom("a key is not a string"))?;
            let value = dict.next_value_seed(self.nested())?;
            pairs.push((key, value));
            if let Err(error) = self.builder.containers.charge(1) {
                return self.accept(Err(error));
            }
        }
        self.builder.containers.discharge_values(pairs.len());
        let value = self.builder.dict(pairs);
        self.accept(value)
    }
}
