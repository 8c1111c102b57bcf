//! Writes the rows of one table to one Parquet file, on a thread of its own.
//!
//! A row group has a million rows, and its columns lie one after the other. The rows arrive in
//! batches of a few thousand. So every column encodes and compresses its pages into its own memory,
//! and the end of the row group copies the finished columns to the file. Memory is one uncompressed
//! page per column and the compressed row group, whatever the number of rows.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use parquet::basic::{Compression, Repetition, ZstdLevel};
use parquet::column::page::PageWriter;
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnPath, Type};

use super::table::{RowBuffer, TableRow};

/// Rows of a row group.
pub(crate) const GROUP_ROWS: usize = 1 << 20;
/// Rows of a batch. A column of it is smaller than what the C library takes from the system anew.
const BATCH_ROWS: usize = 1 << 13;
/// Batches that wait for the thread.
const BATCHES_AHEAD: usize = 2;
const ZSTD_LEVEL: i32 = 3;
/// Columns by which readers skip row groups. The others have no minimum and maximum, which cost
/// time and would exclude nothing.
const STATISTICS: [&str; 10] = [
    "seq",
    "time_ns",
    "step",
    "device",
    "start_seq",
    "start_ns",
    "start_step",
    "end_seq",
    "end_ns",
    "end_step",
];

/// A table that is being written.
pub(crate) struct TableWriter<R: TableRow> {
    batch: R::Buffer,
    batch_rows: usize,
    rows: u64,
    sender: SyncSender<FilledBatch<R::Buffer>>,
    returned: Receiver<R::Buffer>,
    thread: JoinHandle<anyhow::Result<()>>,
}

/// Some rows, and their number.
struct FilledBatch<B> {
    rows: usize,
    values: B,
}

impl<R: TableRow + 'static> TableWriter<R> {
    /// Starts to write a file, which must not exist.
    pub(crate) fn create(path: &Path, metadata: Vec<KeyValue>) -> anyhow::Result<Self> {
        let (sender, batches) = sync_channel(BATCHES_AHEAD);
        let (return_batch, returned) = sync_channel(BATCHES_AHEAD + 1);
        let file = TableFile::<R>::create(path, metadata)?;
        let write = move || file.write(&batches, &return_batch);
        let thread = std::thread::Builder::new().name(R::TABLE.to_owned()).spawn(write)?;
        Ok(Self { batch: R::Buffer::default(), batch_rows: 0, rows: 0, sender, returned, thread })
    }

    /// Adds a row. An error of the file shows in [`Self::finish`].
    #[inline]
    pub(crate) fn push(&mut self, row: R) {
        self.batch.push(row);
        self.batch_rows += 1;
        if self.batch_rows == BATCH_ROWS {
            self.send_batch();
        }
    }

    #[inline(never)] // Once per thousands of rows.
    fn send_batch(&mut self) {
        let next = self.returned.try_recv().unwrap_or_default();
        let values = std::mem::replace(&mut self.batch, next);
        let rows = std::mem::take(&mut self.batch_rows);
        self.rows += rows as u64;
        // The receiver is gone after an error, which `finish` returns.
        let _ = self.sender.send(FilledBatch { rows, values });
    }

    /// Completes the file and returns its number of rows.
    pub(crate) fn finish(mut self) -> anyhow::Result<u64> {
        if self.batch_rows > 0 {
            self.send_batch();
        }
        drop(self.sender);
        self.thread.join().map_err(|_| anyhow!("the thread that writes {} failed", R::TABLE))??;
        Ok(self.rows)
    }
}

/// The file of a table.
struct TableFile<R> {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    row: std::marker::PhantomData<fn(R)>,
}

impl<R: TableRow> TableFile<R> {
    fn create(path: &Path, metadata: Vec<KeyValue>) -> anyhow::Result<Self> {
        let error = || format!("cannot write {}", path.display());
        let file = File::create_new(path).with_context(error)?;
        let properties = Arc::new(writer_properties::<R>(metadata)?);
        let file =
            SerializedFileWriter::new(file, Arc::new(schema::<R>()?), properties).with_context(error)?;
        Ok(Self { path: path.to_owned(), file, row: std::marker::PhantomData })
    }

    /// Writes all batches, and returns their buffers.
    fn write(
        mut self,
        batches: &Receiver<FilledBatch<R::Buffer>>,
        return_batch: &SyncSender<R::Buffer>,
    ) -> anyhow::Result<()> {
        let mut next = batches.recv().ok();
        while let Some(first) = next.take() {
            let rows = std::iter::once(first).chain(batches.iter());
            next = self
                .write_row_group(rows, return_batch)
                .map(|()| batches.recv().ok())
                .with_context(|| format!("cannot write {}", self.path.display()))?;
        }
        self.file.close().with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(())
    }

    /// Writes batches until the row group is full.
    fn write_row_group(
        &mut self,
        batches: impl Iterator<Item = FilledBatch<R::Buffer>>,
        return_batch: &SyncSender<R::Buffer>,
    ) -> anyhow::Result<()> {
        let properties = self.file.properties().clone();
        let columns = self.file.schema_descr().columns().to_vec();
        let mut memory: Vec<_> = columns.iter().map(|_| TrackedWrite::new(Vec::new())).collect();
        let writers = columns.iter().zip(&mut memory).map(|(column, memory)| {
            let pages: Box<dyn PageWriter + '_> = Box::new(SerializedPageWriter::new(memory));
            get_column_writer(column.clone(), properties.clone(), pages)
        });
        let mut writers: Vec<ColumnWriter<'_>> = writers.collect();
        let mut rows = 0;
        for mut batch in batches {
            batch.values.write(&mut writers.iter_mut())?;
            batch.values.clear();
            let _ = return_batch.try_send(batch.values);
            rows += batch.rows;
            if rows >= GROUP_ROWS {
                break;
            }
        }
        let closed: Result<Vec<_>, _> = writers.into_iter().map(ColumnWriter::close).collect();
        let mut group = self.file.next_row_group()?;
        for (memory, closed) in memory.into_iter().zip(closed?) {
            group.append_column(&Bytes::from(memory.into_inner()?), closed)?;
        }
        group.close()?;
        Ok(())
    }
}

fn schema<R: TableRow>() -> anyhow::Result<Type> {
    let mut fields = Vec::new();
    for column in R::columns() {
        fields.push((column.field)(column.name)?);
    }
    Ok(super::cell::group_field("schema", fields, None, Repetition::REQUIRED)?)
}

fn writer_properties<R: TableRow>(metadata: Vec<KeyValue>) -> anyhow::Result<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(format!("gpumemtrace {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(GROUP_ROWS + BATCH_ROWS))
        .set_key_value_metadata(Some(metadata));
    for name in STATISTICS {
        properties =
            properties.set_column_statistics_enabled(ColumnPath::from(name), EnabledStatistics::Chunk);
    }
    for column in R::columns() {
        if let Some(encoding) = column.encoding {
            let path = ColumnPath::from(column.name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, encoding);
        }
    }
    Ok(properties.build())
}
