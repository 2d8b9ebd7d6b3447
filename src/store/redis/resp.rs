//! The protocol that Redis speaks, RESP2, as far as we hear and say it.
//!
//! Whoever answers at the other end may be a broken proxy, another kind of server, or a Redis that somebody else owns. So
//! nothing that arrives is believed before it is read, and what it announces is held against a bound *when it is
//! announced*: a text of 999,999,999,999 bytes is refused at its first line, not after memory has been set aside or a
//! timeout has passed. A reader that calls itself for each list in a list would let a reply of some thousand brackets
//! overflow the stack, which no one can catch; so [`Scanner`] counts open lists in an array of [`DEPTH_MAX`] places.
//!
//! ```text
//! +text  -error  :7  $3 abc  $-1  *2 ..  *-1
//! ```
//!
//! A reply is read in two steps. The scanner finds where it ends, and looks at each byte once however it arrives, in
//! pieces or whole. What it has passed is a [`Frame`]: bytes that are one well-formed reply, which are then read where they
//! lie ([`Token`]) or copied into a [`Value`] for those who want a tree. RESP3 is never asked for, so its types are mistakes.

mod scan;
mod frame;
mod value;
mod write;

pub(super) use frame::{Frame, Token};
pub(super) use scan::{Bounds, Malformed, Scanner};
pub(super) use value::Value;
pub(super) use write::{list, number, text, words};

#[cfg(test)]
mod tests;
