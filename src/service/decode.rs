//! A question out of the bytes of `RateLimitRequest`.
//!
//! prost makes a message of it, of which the limiter's words are made then: twice the lists, and texts that are copied. This
//! reads what Envoy sends straight into the limiter's words. What is not plain (a field that we do not know, a message within
//! that comes twice and is to be merged, a number that is too long, bytes that are none of ours) it leaves to prost, who
//! takes it or says what is wrong with it. So both take the same messages and find the same in them, which the tests hold.

use bytes::Bytes;

use crate::{
    limit::Entry,
    limiter::{Descriptor, Override, Question},
};

/// Some of a message that is not read yet.
struct Rest<'m> {
    message: &'m Bytes,
    at: usize,
    end: usize,
}

/// The question of a message; `None` where prost has to see it.
pub(super) fn question(message: &Bytes) -> Option<Question> {
    let mut question = Question::default();
    let mut rest = Rest { message, at: 0, end: message.len() };
    while let Some(key) = rest.key() {
        match key {
            0x0a => question.domain = rest.bytes().filter(|text| str::from_utf8(text).is_ok())?,
            0x12 => question.descriptors.push(descriptor(rest.within()?)?),
            // What is longer than 32 bits is cut off, as everywhere in protobuf.
            0x18 => question.hits = rest.varint()? as u32,
            _ => return None,
        }
    }
    Some(question)
}

fn descriptor(mut rest: Rest<'_>) -> Option<Descriptor> {
    let mut descriptor = Descriptor::default();
    while let Some(key) = rest.key() {
        match key {
            0x0a => descriptor.entries.push(entry(rest.within()?)?),
            0x12 if descriptor.limit.is_none() => descriptor.limit = Some(limit(rest.within()?)?),
            0x1a if descriptor.hits.is_none() => descriptor.hits = Some(wrapped(rest.within()?)?),
            0x20 => descriptor.refund = rest.varint()? != 0,
            _ => return None,
        }
    }
    Some(descriptor)
}

fn entry(mut rest: Rest<'_>) -> Option<Entry> {
    let mut entry = Entry { key: Bytes::new(), value: Bytes::new() };
    while let Some(key) = rest.key() {
        match key {
            0x0a => entry.key = rest.bytes()?,
            0x12 => entry.value = rest.bytes()?,
            _ => return None,
        }
    }
    Some(entry)
}

fn limit(mut rest: Rest<'_>) -> Option<Override> {
    let mut limit = Override { requests: 0, unit: 0 };
    while let Some(key) = rest.key() {
        match key {
            0x08 => limit.requests = rest.varint()? as u32,
            0x10 => limit.unit = rest.varint()? as i32,
            _ => return None,
        }
    }
    Some(limit)
}

/// `UInt64Value`
fn wrapped(mut rest: Rest<'_>) -> Option<u64> {
    let mut number = 0;
    while let Some(key) = rest.key() {
        match key {
            0x08 => number = rest.varint()?,
            _ => return None,
        }
    }
    Some(number)
}

impl<'m> Rest<'m> {
    /// The next byte as the number of a field and how it is written; `None` at the end.
    fn key(&mut self) -> Option<u8> {
        let key = *self.message[..self.end].get(self.at)?;
        self.at += 1;
        Some(key)
    }

    /// Up to ten bytes, of which the last holds one bit.
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.key()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (shift < 63 || byte < 2).then_some(number);
            }
        }
        None
    }

    /// What the next bytes are the length of.
    fn within(&mut self) -> Option<Rest<'m>> {
        let length = usize::try_from(self.varint()?).ok()?;
        let at = self.at;
        self.at = at.checked_add(length).filter(|end| *end <= self.end)?;
        Some(Rest { message: self.message, at, end: self.at })
    }

    /// The same as a part of the message.
    fn bytes(&mut self) -> Option<Bytes> {
        self.within().map(|within| within.message.slice(within.at..within.end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};
    use prost::Message;

    use super::*;
    use crate::{
        proto::envoy::{
            extensions::common::ratelimit::v3::{
                RateLimitDescriptor,
                rate_limit_descriptor::{Entry as ProtoEntry, RateLimitOverride},
            },
            service::ratelimit::v3::RateLimitRequest,
        },
        service::wire,
    };

    fn requests() -> impl Strategy<Value = RateLimitRequest> {
        let text = || vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let entry = (text(), text()).prop_map(|(key, value)| ProtoEntry { key, value });
        let limit = (any::<u32>(), any::<i32>())
            .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        let descriptor = (vec(entry, 0..6), option::of(limit), option::of(any::<u64>()), any::<bool>())
            .prop_map(|(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            });
        (".{0,20}", vec(descriptor, 0..6), any::<u32>()).prop_map(|(domain, descriptors, hits_addend)| {
            RateLimitRequest { domain, descriptors, hits_addend }
        })
    }

    /// Whatever is read here, prost reads likewise; what is plain, is read here.
    fn agrees(bytes: Vec<u8>) -> bool {
        let bytes = Bytes::from(bytes);
        let by_prost = RateLimitRequest::decode(bytes.clone()).map(wire::question);
        let Some(question) = question(&bytes) else { return false };
        assert_eq!(
            format!("{question:?}"),
            format!("{:?}", by_prost.expect("prost takes it, too")),
            "{bytes:?}"
        );
        true
    }

    /// A field as it stands on the wire: one of a message, or one that it does not know.
    fn field() -> impl Strategy<Value = Vec<u8>> {
        let varint = prop_oneof![any::<u64>(), 0..300_u64].prop_map(|number| {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(number, &mut bytes);
            bytes
        });
        let number = (0..6_u8, varint).prop_map(|(field, varint)| [vec![field << 3], varint].concat());
        let leaf = prop_oneof![
            number,
            (0..6_u8, vec(any::<u8>(), 0..9)).prop_map(|(field, bytes)| delimited(field, &bytes)),
            vec(any::<u8>(), 0..4),
        ];
        leaf.prop_recursive(3, 24, 5, |inner| {
            (0..6_u8, vec(inner, 0..5)).prop_map(|(field, fields)| delimited(field, &fields.concat()))
        })
    }

    fn delimited(field: u8, bytes: &[u8]) -> Vec<u8> {
        [&[field << 3 | 2, u8::try_from(bytes.len()).unwrap_or(0x7f)], bytes].concat()
    }

    proptest! {
        #[test]
        fn what_envoy_sends_is_read_here_as_prost_reads_it(request in requests()) {
            prop_assert!(agrees(request.encode_to_vec()), "it is plain");
        }

        #[test]
        fn fields_in_any_order_repeated_unknown_or_of_the_wrong_type_are_read_as_prost_reads_them(
            fields in vec(field(), 0..6),
        ) {
            agrees(fields.concat());
        }

        #[test]
        fn a_message_that_is_cut_off_or_has_a_byte_changed_is_read_as_prost_reads_it(
            request in requests(),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let mut bytes = request.encode_to_vec();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                agrees(bytes[..at].to_vec());
                bytes[at] = byte;
                agrees(bytes);
            }
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_prost() {
        for bytes in [
            &b"\x0a\x02\xff\xfe"[..],
            b"\x22\x00",
            b"\x12\x04\x12\x00\x12\x00",
            b"\x12\x04\x1a\x00\x1a\x00",
            b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00",
            b"\x0a\x05four",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x8a\x00",
        ] {
            assert!(question(&Bytes::from_static(bytes)).is_none(), "{bytes:?}");
        }
        let empty = question(&Bytes::new()).unwrap();
        assert!(empty.domain.is_empty() && empty.descriptors.is_empty());
    }
}
