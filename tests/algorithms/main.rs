//! The algorithms, through every implementation there is: the pure functions, the memory store and the Lua in a real
//! Redis.
//!
//! [`worlds`] gives the three the same face. [`cases`] is one table of named cases that drives all of them. [`agree`]
//! lets them run random histories and demands equal verdicts, states and expiries. [`bounds`] holds the pure functions to
//! the design's table of bounds, [`late`] to that when hits come back late; what holds for them holds for the others, since they agree. [`memory`] and [`lua`] are
//! about what each store has for itself, [`batch`] about requests that share a call of the script.

#[path = "../support/redis.rs"]
mod redis;
mod worlds;
mod cases;
mod agree;
mod bounds;
mod late;
mod memory;
mod lua;
mod batch;
