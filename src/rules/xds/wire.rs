//! The generated messages of discovery, under the names of their packages.
//!
//! They stand here and not in `proto`, since that is the limiter's outer side, and rules are below the limiter.

#![expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its comments stand in proto/"
)]

include!(concat!(env!("OUT_DIR"), "/discovery/mod.rs"));
