//! A list of frames as a value of a column: three leaf columns.

use parquet::basic::{Encoding, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::errors::Result;
use parquet::schema::types::Type;

use super::cell::{Cell, CellBuffer, LeafWriters, Text, group_field, leaf_field, next_leaf};

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FrameCell {
    pub(crate) function: Option<Text>,
    /// Source file, or shared library.
    pub(crate) file: Option<Text>,
    pub(crate) line: Option<i64>,
}

/// The frames of many stacks.
///
/// A repetition level is 0 for the first frame of a stack, else 1. A definition level is 0 for a
/// stack without frames, 1 for an unknown value of a frame, and 2 for a known one.
#[derive(Default)]
pub(crate) struct FrameLists {
    repetition: Vec<i16>,
    functions: LeafValues<ByteArray>,
    files: LeafValues<ByteArray>,
    lines: LeafValues<i64>,
}

/// One value of each frame, without nulls, and the definition levels.
struct LeafValues<T> {
    values: Vec<T>,
    definition: Vec<i16>,
}

impl<T> Default for LeafValues<T> {
    fn default() -> Self {
        Self { values: Vec::new(), definition: Vec::new() }
    }
}

impl<T> LeafValues<T> {
    fn push(&mut self, value: Option<T>) {
        self.definition.push(1 + i16::from(value.is_some()));
        self.values.extend(value);
    }

    fn clear(&mut self) {
        self.values.clear();
        self.definition.clear();
    }
}

impl Cell for Vec<FrameCell> {
    type Buffer = FrameLists;
    #[cfg(test)]
    const SQL_TYPE: &'static str = "STRUCT(function VARCHAR, file VARCHAR, line BIGINT)[]";
    #[cfg(test)]
    const IS_OPTIONAL: bool = false;
    const ENCODING: Option<Encoding> = None;

    fn field(name: &str) -> Result<Type> {
        let text =
            |name| leaf_field(name, Physical::BYTE_ARRAY, Some(LogicalType::String), Repetition::OPTIONAL);
        let line = leaf_field("line", Physical::INT64, None, Repetition::OPTIONAL)?;
        let frame = vec![text("function")?, text("file")?, line];
        let element = group_field("element", frame, None, Repetition::REQUIRED)?;
        let list = group_field("list", vec![element], None, Repetition::REPEATED)?;
        group_field(name, vec![list], Some(LogicalType::List), Repetition::REQUIRED)
    }
}

impl CellBuffer<Vec<FrameCell>> for FrameLists {
    fn push(&mut self, frames: Vec<FrameCell>) {
        if frames.is_empty() {
            self.repetition.push(0);
            self.functions.definition.push(0);
            self.files.definition.push(0);
            self.lines.definition.push(0);
        }
        for (index, frame) in frames.into_iter().enumerate() {
            self.repetition.push(i16::from(index > 0));
            self.functions.push(frame.function.map(ByteArray::from));
            self.files.push(frame.file.map(ByteArray::from));
            self.lines.push(frame.line);
        }
    }

    fn write(&self, leaves: &mut LeafWriters<'_, '_>) -> Result<()> {
        let repetition = Some(self.repetition.as_slice());
        for text in [&self.functions, &self.files] {
            let leaf = next_leaf::<ByteArrayType>(leaves)?;
            leaf.write_batch(&text.values, Some(&text.definition), repetition)?;
        }
        let leaf = next_leaf::<Int64Type>(leaves)?;
        leaf.write_batch(&self.lines.values, Some(&self.lines.definition), repetition).map(drop)
    }

    fn clear(&mut self) {
        self.repetition.clear();
        self.functions.clear();
        self.files.clear();
        self.lines.clear();
    }
}
