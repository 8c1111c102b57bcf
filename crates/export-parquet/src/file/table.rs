//! The definition of a table by one list of fields.

use parquet::basic::Encoding;
use parquet::errors::Result;
use parquet::schema::types::Type;

use super::cell::LeafWriters;

/// A row of a table.
pub(crate) trait TableRow: Sized {
    type Buffer: RowBuffer<Self>;
    /// The name of the table, and of its folder.
    const TABLE: &'static str;
    /// The columns in order.
    fn columns() -> Vec<TableColumn>;
}

/// The rows of a table, column by column.
pub(crate) trait RowBuffer<R>: Default + Send {
    fn push(&mut self, row: R);
    /// Writes all rows to the leaf columns of a row group.
    fn write(&self, leaves: &mut LeafWriters<'_, '_>) -> Result<()>;
    /// Removes all rows and keeps the memory.
    fn clear(&mut self);
}

/// A column of a table.
pub(crate) struct TableColumn {
    pub(crate) name: &'static str,
    /// The field in the schema of the file; never fails, because the names are valid.
    pub(crate) field: fn(&str) -> Result<Type>,
    /// The encoding of its leaf columns; `None` for a dictionary.
    pub(crate) encoding: Option<Encoding>,
    #[cfg(test)]
    pub(crate) sql_type: &'static str,
    #[cfg(test)]
    pub(crate) is_optional: bool,
    /// What a value means, in Markdown.
    #[cfg(test)]
    pub(crate) meaning: &'static str,
}

/// Defines a row, its buffer and its columns.
///
/// ```text
/// table! {
///     "name", Row, Buffer {
///         /// What a value means.
///         field: type,
///         field: type = ENCODING,
///     }
/// }
/// ```
macro_rules! table {
    (
        $(#[$attribute:meta])*
        $table:literal, $row:ident, $buffer:ident {
            $($(#[doc = $meaning:literal])* $field:ident: $cell:ty $(= $encoding:expr)?,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) struct $row {
            $($(#[doc = $meaning])* pub(crate) $field: $cell,)*
        }

        #[derive(Default)]
        pub(crate) struct $buffer {
            $($field: <$cell as $crate::file::cell::Cell>::Buffer,)*
        }

        impl $crate::file::table::RowBuffer<$row> for $buffer {
            #[inline]
            fn push(&mut self, row: $row) {
                use $crate::file::cell::CellBuffer as _;
                $(self.$field.push(row.$field);)*
            }

            fn write(
                &self,
                leaves: &mut $crate::file::cell::LeafWriters<'_, '_>,
            ) -> parquet::errors::Result<()> {
                $($crate::file::cell::CellBuffer::<$cell>::write(&self.$field, leaves)?;)*
                Ok(())
            }

            fn clear(&mut self) {
                $($crate::file::cell::CellBuffer::<$cell>::clear(&mut self.$field);)*
            }
        }

        impl $crate::file::table::TableRow for $row {
            type Buffer = $buffer;
            const TABLE: &'static str = $table;

            fn columns() -> Vec<$crate::file::table::TableColumn> {
                use $crate::file::cell::Cell;
                vec![$($crate::file::table::TableColumn {
                    name: stringify!($field),
                    field: <$cell as Cell>::field,
                    encoding: {
                        let default = <$cell as Cell>::ENCODING;
                        $(let default = { let _ = default; $encoding };)?
                        default
                    },
                    #[cfg(test)]
                    sql_type: <$cell as Cell>::SQL_TYPE,
                    #[cfg(test)]
                    is_optional: <$cell as Cell>::IS_OPTIONAL,
                    #[cfg(test)]
                    meaning: concat!($($meaning),*),
                },)*]
            }
        }
    };
}
pub(crate) use table;
