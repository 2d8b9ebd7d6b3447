//! An answer as protobuf, behind the prefix of a gRPC frame, from what the limiter says.
//!
//! prost would want a message of owned texts and lists, an allocation each, to read it twice: for its length and for its bytes.
//! This writes the same bytes once, in place, and copies them into a buffer of just their length. That they are the same
//! is what the tests say.

use bytes::Bytes;
use prost::Message;
use prost_types::Struct;
use smallvec::SmallVec;

use super::{headers::Header, unary::PREFIX_BYTES, wire};
use crate::limiter::{Answer, Status};

/// Nearly all answers are shorter; longer ones are allocated once more.
type Out = SmallVec<[u8; 512]>;

/// A field's number and how it is written, as they precede it: all numbers here are below 16.
const fn varint(field: u8) -> u8 {
    field << 3
}

const fn delimited(field: u8) -> u8 {
    field << 3 | 2
}

/// `RateLimitResponse` in a frame.
pub(super) fn framed(answer: &Answer<'_>, headers: &[Header<'_>], metadata: Option<&Struct>) -> Bytes {
    let mut out = Out::from_slice(&[0; PREFIX_BYTES]);
    put_number(&mut out, varint(1), code(answer.refused));
    for status in &answer.statuses {
        put_message(&mut out, delimited(2), |out| put_status(out, status));
    }
    for header in headers {
        put_message(&mut out, delimited(3), |out| {
            put_bytes(out, delimited(1), header.name.as_bytes());
            put_bytes(out, delimited(2), &header.value);
        });
    }
    if let Some(metadata) = metadata {
        put_message(&mut out, delimited(6), |out| out.extend_from_slice(&metadata.encode_to_vec()));
    }
    let length = u32::try_from(out.len() - PREFIX_BYTES)
        .expect("an answer is no longer than its question, some headers aside");
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    Bytes::copy_from_slice(&out)
}

/// `DescriptorStatus`
fn put_status(out: &mut Out, status: &Status<'_>) {
    put_number(out, varint(1), code(status.over));
    if let Some((requests, unit, name)) = status.limit {
        put_message(out, delimited(2), |out| {
            put_number(out, varint(1), requests.into());
            // `Unit` has the numbers of the wire.
            put_number(out, varint(2), unit as u64);
            put_bytes(out, delimited(3), name.unwrap_or_default().as_bytes());
        });
    }
    put_number(out, varint(3), status.remaining.into());
    if let Some(reset_us) = status.reset_us {
        let duration = wire::duration(reset_us);
        put_message(out, delimited(4), |out| {
            put_number(out, varint(1), duration.seconds.unsigned_abs());
            put_number(out, varint(2), duration.nanos.unsigned_abs().into());
        });
    }
}

fn code(over: bool) -> u64 {
    wire::code(over) as u64
}

/// What is at its default is not written, as everywhere in proto3.
fn put_number(out: &mut Out, key: u8, number: u64) {
    if number > 0 {
        out.push(key);
        put_varint(out, number);
    }
}

fn put_bytes(out: &mut Out, key: u8, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.push(key);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
}

/// A message within, which is written also where it is empty.
fn put_message(out: &mut Out, key: u8, write: impl FnOnce(&mut Out)) {
    out.push(key);
    let at = out.len();
    write(out);
    // Its length comes before it; nearly always that is one byte.
    let mut length = Out::new();
    put_varint(&mut length, (out.len() - at) as u64);
    out.insert_from_slice(at, &length);
}

fn put_varint(out: &mut Out, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;
    use crate::{
        limit::Few,
        rules::Unit,
        service::{headers::Value, unary},
    };

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(1), Just(127), Just(128), Just(1 << 52), 0..=u64::MAX >> 12]
    }

    fn statuses() -> impl Strategy<Value = Status<'static>> {
        let names = [None, Some(""), Some("a name"), Some("umlauts: \u{e4}\u{f6}\u{fc}")];
        let name = prop_oneof![proptest::sample::select(names.to_vec()), Just(Some(LONG))];
        let limit = (any::<u32>(), proptest::sample::select(Unit::ALL.to_vec()), name);
        let reset_us = proptest::option::of(numbers());
        (any::<bool>(), proptest::option::of(limit), numbers(), reset_us).prop_map(
            |(over, limit, remaining, reset_us)| {
                let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
                Status { over, limit, remaining, reset_us }
            },
        )
    }

    const LONG: &str = str_of_x();

    const fn str_of_x() -> &'static str {
        const BYTES: [u8; 300] = [b'x'; 300];
        match str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => "",
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_written_as_prost_writes_it(
            refused: bool,
            statuses in proptest::collection::vec(statuses(), 0..70),
            values in proptest::collection::vec("[ -~]{0,300}", 0..4),
            degraded: bool,
        ) {
            let mut answer = Answer::of_headers(refused, None, None);
            answer.statuses = statuses.into_iter().collect();
            let names = ["RateLimit", "", LONG, "Retry-After"];
            let headers: Few<Header<'_>> = names
                .into_iter()
                .zip(&values)
                .map(|(name, value)| Header { name, value: Value::from_slice(value.as_bytes()) })
                .collect();
            let number = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(1.5)) };
            let metadata =
                degraded.then(|| Struct { fields: [("store".to_owned(), number)].into_iter().collect() });
            let written = framed(&answer, &headers, metadata.as_ref());
            let mut response = wire::response(&answer, &headers);
            response.dynamic_metadata = metadata;
            prop_assert_eq!(written, unary::framed(&response));
        }
    }

    #[test]
    fn an_empty_answer_says_ok() {
        let mut answer = Answer::of_headers(false, None, None);
        assert_eq!(&framed(&answer, &[], None)[..], [0, 0, 0, 0, 2, 8, 1]);
        answer.statuses = smallvec![Status { over: true, limit: None, remaining: 0, reset_us: Some(0) }];
        assert_eq!(&framed(&answer, &[], None)[5..], [8, 1, 0x12, 4, 8, 2, 0x22, 0]);
    }
}
