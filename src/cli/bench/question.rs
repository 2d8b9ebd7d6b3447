//! The bytes of a request, with another key each time.
//!
//! A client that builds and encodes a message for each request spends more on that than on sending it. All requests of a
//! run are equal but for the digits of their key, which have leading zeros so that all are of one length: they are
//! encoded once, and only the digits are written anew.

use bytes::Bytes;
use prost::Message;

use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

/// What stands in a descriptor for the digits of a key.
pub(super) const KEY: &str = "{key}";

/// A flag for compression and a length stand before each message of gRPC.
pub(super) const PREFIX_BYTES: usize = 5;

/// A request with a number for `{key}`.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// As gRPC frames it.
    framed: Bytes,
    /// Where digits stand, each key's from the first to the last, one key after the other.
    digits: Vec<usize>,
    width: usize,
}

impl Question {
    /// `keys` is how many there are, at least 1; it decides how many digits each has.
    pub(super) fn new(request: &RateLimitRequest, keys: u64) -> Self {
        let width = keys.saturating_sub(1).checked_ilog10().map_or(1, |log| log as usize + 1);
        let [zeros, ones] = ["0", "1"].map(|digit| framed(&with_key(request, &digit.repeat(width))));
        // What differs is the digits.
        let digits = (0..zeros.len()).filter(|&at| zeros[at] != ones[at]).collect();
        Self { framed: zeros.into(), digits, width }
    }

    /// Whether requests differ at all.
    pub(super) fn has_key(&self) -> bool {
        !self.digits.is_empty()
    }

    /// The bytes of a request about a key.
    pub(super) fn about(&self, key: u64) -> Bytes {
        if !self.has_key() {
            return self.framed.clone();
        }
        let mut bytes = self.framed.to_vec();
        for place in self.digits.chunks_exact(self.width) {
            let mut rest = key;
            for &at in place.iter().rev() {
                bytes[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        bytes.into()
    }
}

/// A message as gRPC frames it: not compressed, its length, itself.
fn framed(message: &RateLimitRequest) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    // A command line is shorter than 4 GiB.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &bytes].concat()
}

fn with_key(request: &RateLimitRequest, digits: &str) -> RateLimitRequest {
    let mut request = request.clone();
    for entry in request.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
        entry.key = replaced(&entry.key, digits);
        entry.value = replaced(&entry.value, digits);
    }
    request
}

fn replaced(text: &Bytes, digits: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = &text[..];
    while let Some(at) = rest.windows(KEY.len()).position(|window| window == KEY.as_bytes()) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(digits.as_bytes());
        rest = &rest[at + KEY.len()..];
    }
    out.extend_from_slice(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::Entry,
    };

    fn request(entries: &[&[(&str, &str)]]) -> RateLimitRequest {
        let entry = |(key, value): &(&str, &str)| Entry {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
        };
        let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            hits_addend: Some(300),
            ..RateLimitDescriptor::default()
        };
        let descriptors = entries.iter().map(descriptor).collect();
        RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }
    }

    #[test]
    fn a_key_stands_wherever_it_is_written() {
        let template = request(&[&[("user", "{key}"), ("{key}", "a-{key}{key}")], &[("path", "/x")]]);
        let question = Question::new(&template, 1_000);
        assert!(question.has_key());
        for (key, digits) in [(0, "000"), (7, "007"), (999, "999"), (120, "120")] {
            let wanted =
                request(&[&[("user", digits), (digits, &format!("a-{digits}{digits}"))], &[("path", "/x")]]);
            let bytes = question.about(key);
            assert_eq!(bytes[..PREFIX_BYTES], [&[0][..], &(bytes.len() as u32 - 5).to_be_bytes()].concat());
            assert_eq!(RateLimitRequest::decode(&bytes[PREFIX_BYTES..]), Ok(wanted), "{key}");
        }
    }

    #[test]
    fn all_requests_are_of_one_length() {
        for (keys, width) in [(1, 1), (10, 1), (11, 2), (1_000_000, 6), (u64::MAX, 20)] {
            let question = Question::new(&request(&[&[("user", "{key}")]]), keys);
            assert_eq!(question.digits.len(), width, "{keys}");
            assert_eq!(question.about(0).len(), question.about(keys - 1).len());
        }
    }

    #[test]
    fn a_request_without_a_key_is_the_same_each_time() {
        let template = request(&[&[("user", "{kex}")]]);
        let question = Question::new(&template, 10);
        assert!(!question.has_key());
        assert_eq!(RateLimitRequest::decode(&question.about(3)[PREFIX_BYTES..]), Ok(template));
    }
}
