//! The types that a column can have, and the buffers of their values.
//!
//! A [`Cell`] is the value of one row in one field. Its buffer holds the values of many rows in the
//! form that the low-level writer of the `parquet` crate takes. That is the values without nulls,
//! and a level per row that says whether there is a value.

use std::sync::Arc;

use parquet::basic::{ConvertedType, Encoding, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::{ColumnWriter, ColumnWriterImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::Type;

/// The writers of the leaf columns of a row group, in the order of the schema.
pub(crate) type LeafWriters<'a, 'w> = std::slice::IterMut<'a, ColumnWriter<'w>>;

/// The value of one row in one field.
pub(crate) trait Cell: Sized {
    type Buffer: CellBuffer<Self>;
    /// The SQL type, for the documentation.
    #[cfg(test)]
    const SQL_TYPE: &'static str;
    /// True if a value can be null.
    #[cfg(test)]
    const IS_OPTIONAL: bool;
    /// The encoding of its leaf columns; `None` for a dictionary.
    const ENCODING: Option<Encoding>;

    /// The field in the schema of the file.
    fn field(name: &str) -> Result<Type>;
}

/// The values of one field in many rows.
pub(crate) trait CellBuffer<C>: Default + Send {
    fn push(&mut self, cell: C);
    /// Writes all values to the leaf columns of the field.
    fn write(&self, leaves: &mut LeafWriters<'_, '_>) -> Result<()>;
    /// Removes all values and keeps the memory.
    fn clear(&mut self);
}

/// The values of a column that cannot be null.
pub(crate) struct Required<D: DataType>(Vec<D::T>);

/// The values of a column that can be null.
pub(crate) struct Optional<D: DataType> {
    values: Vec<D::T>,
    rows: usize,
    /// Per row 1 for a value and 0 for null. Empty while all rows are equal in this, as in most
    /// batches of most columns.
    levels: Vec<i16>,
}

impl<D: DataType> Optional<D> {
    #[inline(never)] // Few batches need levels.
    fn push_level(&mut self, level: i16) {
        if self.levels.is_empty() {
            self.levels.resize(self.rows, i16::from(!self.values.is_empty()));
        }
        self.levels.push(level);
    }
}

impl<D: DataType> Default for Required<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: DataType> Default for Optional<D> {
    fn default() -> Self {
        Self { values: Vec::new(), rows: 0, levels: Vec::new() }
    }
}

/// The next leaf column, which must have the type `D`.
pub(super) fn next_leaf<'a, 'w, D: DataType>(
    leaves: &mut LeafWriters<'a, 'w>,
) -> Result<&'a mut ColumnWriterImpl<'w, D>> {
    let leaf = leaves.next().and_then(|leaf| D::get_column_writer_mut(leaf));
    leaf.ok_or_else(|| ParquetError::General("the schema does not match the row".to_owned()))
}

impl<D: DataType, C: Into<D::T>> CellBuffer<C> for Required<D>
where
    D::T: Send,
{
    #[inline]
    fn push(&mut self, cell: C) {
        self.0.push(cell.into());
    }

    fn write(&self, leaves: &mut LeafWriters<'_, '_>) -> Result<()> {
        next_leaf::<D>(leaves)?.write_batch(&self.0, None, None).map(drop)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl<D: DataType, C: Into<D::T>> CellBuffer<Option<C>> for Optional<D>
where
    D::T: Send,
{
    #[inline]
    fn push(&mut self, cell: Option<C>) {
        if let Some(value) = cell {
            if !self.levels.is_empty() || self.values.len() < self.rows {
                self.push_level(1);
            }
            self.values.push(value.into());
        } else if !self.levels.is_empty() || !self.values.is_empty() {
            self.push_level(0);
        }
        self.rows += 1;
    }

    fn write(&self, leaves: &mut LeafWriters<'_, '_>) -> Result<()> {
        let uniform = || vec![i16::from(!self.values.is_empty()); self.rows];
        let levels = if self.levels.is_empty() { &uniform() } else { &self.levels };
        next_leaf::<D>(leaves)?.write_batch(&self.values, Some(levels), None).map(drop)
    }

    fn clear(&mut self) {
        self.values.clear();
        self.rows = 0;
        self.levels.clear();
    }
}

/// Text of a cell. A copy of it costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text(bytes::Bytes);

impl Text {
    pub(crate) const fn from_static(text: &'static str) -> Self {
        Self(bytes::Bytes::from_static(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.to_owned().into())
    }
}

impl From<Text> for ByteArray {
    fn from(text: Text) -> Self {
        text.0.into()
    }
}

/// Implements [`Cell`] for a type and its optional form.
macro_rules! cells {
    ($($cell:ty: $data:ty, $sql:literal, $physical:expr, $encoding:expr, $logical:expr;)*) => {$(
        impl Cell for $cell {
            type Buffer = Required<$data>;
            #[cfg(test)]
            const SQL_TYPE: &'static str = $sql;
            #[cfg(test)]
            const IS_OPTIONAL: bool = false;
            const ENCODING: Option<Encoding> = $encoding;

            fn field(name: &str) -> Result<Type> {
                leaf_field(name, $physical, $logical, Repetition::REQUIRED)
            }
        }

        impl Cell for Option<$cell> {
            type Buffer = Optional<$data>;
            #[cfg(test)]
            const SQL_TYPE: &'static str = $sql;
            #[cfg(test)]
            const IS_OPTIONAL: bool = true;
            const ENCODING: Option<Encoding> = $encoding;

            fn field(name: &str) -> Result<Type> {
                leaf_field(name, $physical, $logical, Repetition::OPTIONAL)
            }
        }
    )*};
}

cells! {
    i64: Int64Type, "BIGINT", Physical::INT64, Some(Encoding::DELTA_BINARY_PACKED), None;
    Text: ByteArrayType, "VARCHAR", Physical::BYTE_ARRAY, None, Some(LogicalType::String);
    f64: DoubleType, "DOUBLE", Physical::DOUBLE, Some(Encoding::PLAIN), None;
    bool: BoolType, "BOOLEAN", Physical::BOOLEAN, Some(Encoding::RLE), None;
}

/// A field that is one leaf column.
pub(super) fn leaf_field(
    name: &str,
    physical: Physical,
    logical: Option<LogicalType>,
    repetition: Repetition,
) -> Result<Type> {
    // Readers of old files look at the converted type alone.
    let converted = if logical.is_some() { ConvertedType::UTF8 } else { ConvertedType::NONE };
    Type::primitive_type_builder(name, physical)
        .with_logical_type(logical)
        .with_converted_type(converted)
        .with_repetition(repetition)
        .build()
}

/// A group of fields.
pub(super) fn group_field(
    name: &str,
    fields: Vec<Type>,
    logical: Option<LogicalType>,
    repetition: Repetition,
) -> Result<Type> {
    let converted = if logical.is_some() { ConvertedType::LIST } else { ConvertedType::NONE };
    Type::group_type_builder(name)
        .with_fields(fields.into_iter().map(Arc::new).collect())
        .with_logical_type(logical)
        .with_converted_type(converted)
        .with_repetition(repetition)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_say_which_rows_have_a_value() {
        for cells in [
            vec![],
            vec![Some(1)],
            vec![None],
            vec![Some(1), Some(2)],
            vec![None, None, Some(3), None],
            vec![Some(1), None, Some(3)],
        ] {
            let mut buffer = Optional::<Int64Type>::default();
            // A buffer is used again.
            for _ in 0..2 {
                CellBuffer::<Option<i64>>::clear(&mut buffer);
                for cell in &cells {
                    let cell: Option<i64> = *cell;
                    buffer.push(cell);
                }
                let expected: Vec<i16> = cells.iter().map(|cell| i16::from(cell.is_some())).collect();
                let is_mixed = expected.contains(&0) && expected.contains(&1);
                assert_eq!(buffer.levels, if is_mixed { expected } else { Vec::new() }, "{cells:?}");
                assert_eq!(buffer.values, cells.iter().flatten().copied().collect::<Vec<_>>());
                assert_eq!(buffer.rows, cells.len());
            }
        }
    }
}
