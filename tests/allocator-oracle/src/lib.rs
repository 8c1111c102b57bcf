//! Compares a model of PyTorch's CUDA caching allocator with the real one.
//!
//! A [`RequestGenerator`] makes requests from a seed. The program in `native/` serves them with the
//! `libc10_cuda.so` of an installed wheel on the simulated GPU, and writes one [`OracleEvent`] per
//! block, segment and error. A [`ModelledAllocator`] serves the same requests, and [`compare`]
//! stops at the first event that differs. README.md describes the two text formats.

mod compare;
mod device;
mod event;
mod generate;
mod native;
mod random;
mod request;
mod text;

pub use compare::{Agreement, Disagreement, EventsInOrder, ModelledAllocator, compare};
pub use device::FirstFitDevice;
pub use event::{EventReader, OracleEvent, STATISTICS, SegmentChange};
pub use generate::{RequestFeature, RequestGenerator};
pub use native::{NativeAllocator, NativeRun};
pub use request::{
    AllocationNumber, OracleRequest, PoolNumber, RequestReader, StreamHeader, StreamNumber, write_header,
};
pub use text::TextError;
