//! What several test binaries need.

pub(crate) mod redis;
pub(crate) mod tollgate;
