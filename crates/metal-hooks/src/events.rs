//! The events that the hooks produce, and the sink that receives them.

/// First of [`MetalEvent::numbers`] for an import: a buffer over the program's own memory.
pub const IMPORT_NO_COPY: u64 = 0x4d54_0001;
/// First of [`MetalEvent::numbers`] for an import: a texture over an IOSurface.
pub const IMPORT_SURFACE: u64 = 0x4d54_0002;

/// The kinds of events. A kind for a creation has a counterpart for the end of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetalEventKind {
    /// A heap was created.
    HeapCreated,
    /// The end of a heap.
    HeapDestroyed,
    /// A buffer or texture was created inside a heap.
    BlockCreated,
    /// The end of such a buffer or texture.
    BlockDestroyed,
    /// A buffer or texture was created with memory of its own.
    DirectCreated,
    /// The end of such a buffer or texture.
    DirectDestroyed,
    /// A buffer or texture was created over memory that Metal did not allocate.
    Imported,
    /// The end of an import.
    ImportDestroyed,
    /// Memory was marked purgeable, or no longer.
    PurgeableSet,
}

/// One creation, end or state change of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetalEvent {
    /// The operation and the kind of object.
    pub kind: MetalEventKind,
    /// Index of the method in [`crate::METHOD_NAMES`].
    pub method: usize,
    /// Device number, in the order of first sight. `None` beyond 16 devices, or if the object does
    /// not name its device.
    pub device: Option<u8>,
    /// Synthetic address (Metal reports no addresses of heaps); 0 if unknown.
    pub addr: u64,
    /// Size in bytes; 0 if the object does not report it.
    pub bytes: u64,
    /// True if `bytes` is the requested size: the object did not report the allocated size.
    pub is_estimated: bool,
    /// True if the method returned no object. `bytes` is 0 then.
    pub has_failed: bool,
    /// Import: the source ([`IMPORT_NO_COPY`], [`IMPORT_SURFACE`]) and 0. Purgeable state: the new
    /// and the previous state, as Metal numbers them.
    pub numbers: [u64; 2],
    /// Bytes in blocks and in heaps on this device, including this event. Approximate while other
    /// threads allocate.
    pub totals: [u64; 2],
}

/// Reasons for incomplete events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// A method of a class is not swizzled: there are more classes than the fixed tables hold.
    MethodNotSwizzled,
    /// An object does not fit into the object table: its end will not be recorded.
    ObjectNotTracked,
    /// The hook's own part panicked. The program's call was made.
    Panic,
}

/// Receives the events, inside the program's calls and on its threads.
pub trait EventSink: Send + Sync {
    /// Receives one event, in the order of the calls on each thread.
    fn record(&self, event: &MetalEvent);
    /// Something is missing from the events from here on.
    fn lost(&self, loss: Loss);
}
