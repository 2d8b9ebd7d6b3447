//! The Redis store (being built): its settings.

mod config;

pub use config::{Hostname, RedisConfig, RedisConfigError, RedisTls, Secret, Socket};
