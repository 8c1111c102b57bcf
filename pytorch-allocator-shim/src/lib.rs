//! pytorch-allocator-shim
