//! ShouldRateLimit as gRPC frames it: one message there, one back.
//!
//! tonic can do this for any service: with compression, streams, interceptors and codecs, and so with two buffers of 8 KiB
//! and half a dozen boxes a request. This is what one unary method without compression needs. What is wrong with a
//! request is answered with tonic's codes and words, which clients know:
//!
//! | request | status |
//! |---|---|
//! | `grpc-encoding` that is not `identity` | UNIMPLEMENTED |
//! | no message, half a message, a flag that says compressed | INTERNAL |
//! | a message over [`MESSAGE_MAX_BYTES`] | OUT_OF_RANGE, before it is read |
//! | no protobuf | INTERNAL |
//!
//! Messages behind the first one are skipped.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, header::CONTENT_TYPE};
use tonic::{Status, metadata::MetadataValue};

use super::MESSAGE_MAX_BYTES;

/// What stands before a message: whether it is compressed, and its length.
pub(super) const PREFIX_BYTES: usize = 5;

const ENCODING: &str = "grpc-encoding";
const ACCEPTED: &str = "grpc-accept-encoding";
const STATUS: &str = "grpc-status";

/// Takes the message out of the bytes of a request, in whatever pieces they come.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Bytes that are no whole frame yet.
    part: BytesMut,
    message: Option<Bytes>,
}

impl Frames {
    /// For a request with these headers.
    ///
    /// # Errors
    /// When its message is compressed.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        match headers.get(ENCODING) {
            Some(encoding) if encoding != "identity" => Err(compressed(encoding)),
            _ => Ok(Self::default()),
        }
    }

    /// Takes the next piece.
    ///
    /// # Errors
    /// When that is no frame, or one that is too long.
    pub(crate) fn push(&mut self, mut piece: Bytes) -> Result<(), Status> {
        // Nearly always the whole message in one piece: it stays where it is.
        if self.part.is_empty() {
            while let Some(length) = whole(&piece)? {
                piece.advance(PREFIX_BYTES);
                let message = piece.split_to(length);
                self.message.get_or_insert(message);
            }
        }
        if !piece.is_empty() {
            self.part.extend_from_slice(&piece);
        }
        while let Some(length) = whole(&self.part)? {
            self.part.advance(PREFIX_BYTES);
            let message = self.part.split_to(length).freeze();
            self.message.get_or_insert(message);
        }
        Ok(())
    }

    /// The message, when all pieces were pushed.
    ///
    /// # Errors
    /// When there is none, or something behind it.
    pub(crate) fn message(self) -> Result<Bytes, Status> {
        if !self.part.is_empty() {
            return Err(Status::internal("Unexpected EOF decoding stream."));
        }
        self.message.ok_or_else(|| Status::internal("Missing request message."))
    }
}

/// How long the message is, where all of it is there.
fn whole(bytes: &[u8]) -> Result<Option<usize>, Status> {
    let Some((&[flag, a, b, c, d], rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    match flag {
        0 => {}
        1 => {
            return Err(Status::internal(
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and 1), while sending request"
            )));
        }
    }
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length > MESSAGE_MAX_BYTES {
        return Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {length} bytes, the limit is: {MESSAGE_MAX_BYTES} bytes"
        )));
    }
    Ok((length <= rest.len()).then_some(length))
}

fn compressed(encoding: &HeaderValue) -> Status {
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let mut status =
        Status::unimplemented(format!("Content is compressed with `{encoding}` which isn't supported"));
    status.metadata_mut().insert(ACCEPTED, MetadataValue::from_static("identity"));
    status
}

/// A message behind its prefix, in one buffer.
#[cfg(test)]
pub(super) fn framed(message: &impl prost::Message) -> Bytes {
    use bytes::BufMut;
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX_BYTES + length);
    out.put_u8(0);
    out.put_u32(u32::try_from(length).expect("an answer is no longer than its question, some headers aside"));
    message.encode_raw(&mut out);
    out.freeze()
}

/// What stands before a message.
pub(crate) fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head
}

/// What stands behind a message.
pub(crate) fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a frame.
    fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap();
        [&[flag], &length.to_be_bytes()[..], message].concat()
    }

    /// What is read from `bytes` that come in pieces of so many.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<u8>, String> {
        let mut frames = Frames::of(&HeaderMap::new()).unwrap();
        let told = |status: Status| format!("{:?}: {}", status.code(), status.message());
        for piece in bytes.chunks(piece) {
            frames.push(Bytes::copy_from_slice(piece)).map_err(told)?;
        }
        frames.message().map(|message| message.to_vec()).map_err(told)
    }

    #[test]
    fn a_message_is_read_in_whatever_pieces_it_comes() {
        let bytes = frame(0, b"message");
        for piece in 1..=bytes.len() {
            assert_eq!(read(&bytes, piece).unwrap(), b"message", "{piece}");
        }
        assert_eq!(read(&frame(0, b""), 9).unwrap(), b"");
    }

    #[test]
    fn what_is_no_message_is_refused_in_tonics_words() {
        for (bytes, words) in [
            (vec![], "Internal: Missing request message."),
            (b"\0\0".to_vec(), "Internal: Unexpected EOF decoding stream."),
            (b"\0\0\0\0\x05four".to_vec(), "Internal: Unexpected EOF decoding stream."),
            (
                frame(1, b"message"),
                "Internal: protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ),
            (
                frame(7, b"message"),
                "Internal: protocol error: received message with invalid compression flag: 7 (valid flags are 0 and 1), while sending request",
            ),
        ] {
            for piece in [1, 3, 100] {
                assert_eq!(read(&bytes, piece).unwrap_err(), words, "{bytes:?}");
            }
        }
    }

    #[test]
    fn a_second_message_is_skipped_and_garbage_behind_the_first_is_not() {
        let two = [frame(0, b"first"), frame(0, b"second")].concat();
        let garbage = [frame(0, b"first"), b"\0\0\0".to_vec()].concat();
        for piece in [1, 4, 11, 100] {
            assert_eq!(read(&two, piece).unwrap(), b"first");
            assert_eq!(read(&garbage, piece).unwrap_err(), "Internal: Unexpected EOF decoding stream.");
        }
    }

    #[test]
    fn a_message_over_the_bound_is_refused_before_it_is_read() {
        let prefix = |length: usize| [&[0], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat();
        let refused = read(&prefix(MESSAGE_MAX_BYTES + 1), 5).unwrap_err();
        assert!(refused.starts_with("OutOfRange: ") && refused.contains("4194305"), "{refused}");
        let largest = [prefix(MESSAGE_MAX_BYTES), vec![0; MESSAGE_MAX_BYTES]].concat();
        assert_eq!(read(&largest, 1 << 14).unwrap().len(), MESSAGE_MAX_BYTES);
    }

    #[test]
    fn compression_is_refused_by_name_and_identity_is_none() {
        let of = |encoding: &'static str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(ENCODING),
                HeaderValue::from_static(encoding),
            )]);
            Frames::of(&headers)
        };
        assert!(of("identity").is_ok());
        let refused = of("gzip").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
        assert!(refused.message().contains("`gzip`"), "{refused}");
        assert_eq!(refused.metadata().get(ACCEPTED).unwrap(), "identity");
    }
}
