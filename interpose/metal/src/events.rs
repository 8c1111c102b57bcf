//! What is told of Metal's memory, and to whom.

/// `Happening::import`: the program's own memory, made a buffer.
pub const IMPORT_NO_COPY: u64 = 0x4d54_0001;
/// `Happening::import`: an IOSurface, made a texture.
pub const IMPORT_SURFACE: u64 = 0x4d54_0002;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A heap was made.
    Heap,
    /// It ends.
    HeapEnds,
    /// A buffer or a texture was made inside a heap.
    Block,
    /// It ends.
    BlockEnds,
    /// A buffer or a texture was made that has memory of its own.
    Direct,
    /// It ends.
    DirectEnds,
    /// A buffer or a texture was made of memory that Metal did not allocate.
    Import,
    /// It ends.
    ImportEnds,
    /// Memory was marked.
    Purgeable,
}

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Happening {
    /// What.
    pub what: What,
    /// Place of the method in [`crate::NAMES`].
    pub method: usize,
    /// By the order in which devices were first seen; `None`: there are more than 16, or the object does not tell.
    pub device: Option<u8>,
    /// Where it lies, in numbers of our own; 0: nobody knows.
    pub addr: u64,
    /// Bytes; 0: the object does not tell.
    pub bytes: u64,
    /// The object has not said what it takes, only what was asked for.
    pub is_estimated: bool,
    /// True where the method gave nothing. No bytes are known of it.
    pub has_failed: bool,
    /// Of an import, its kind; of a mark, what was asked for and what was before, as Metal counts them.
    pub numbers: [u64; 2],
    /// Bytes of blocks and of heaps on this device, with this one; other threads may be at it too.
    pub held: [u64; 2],
}

/// What could not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// A class's method is not watched: there are more classes than anybody has.
    Method,
    /// There is no memory to remember an object in: its end will not be told.
    Object,
    /// We failed; the program's call went through.
    Panic,
}

/// Who is told. Called inside the program's calls, on its threads.
pub trait Sink: Send + Sync {
    /// Something happened.
    fn record(&self, happening: &Happening);
    /// Something is missing from here on.
    fn lost(&self, lost: Lost);
}
