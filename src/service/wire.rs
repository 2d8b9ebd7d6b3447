//! Between Envoy's messages and the limiter's words. Nothing is judged here, and nothing can fail.

use bytes::Bytes;

use super::headers::Header;
use crate::{
    limit::Entry,
    limiter::{Answer, Descriptor, Override, Question, Status},
    proto::envoy::{
        config::core::v3::HeaderValue,
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, RateLimit},
        },
    },
};

/// Moves a request's parts; texts stay where they are.
pub(crate) fn question(request: RateLimitRequest) -> Question {
    Question {
        domain: Bytes::from(request.domain),
        descriptors: request.descriptors.into_iter().map(descriptor).collect(),
        hits: request.hits_addend,
    }
}

fn descriptor(descriptor: RateLimitDescriptor) -> Descriptor {
    Descriptor {
        entries: descriptor.entries.into_iter().map(|e| Entry { key: e.key, value: e.value }).collect(),
        hits: descriptor.hits_addend,
        refund: descriptor.is_negative_hits,
        limit: descriptor.limit.map(|limit| Override { requests: limit.requests_per_unit, unit: limit.unit }),
    }
}

/// The same message that [`encode`](super::encode) writes, for who reads its fields.
pub(super) fn response(answer: &Answer<'_>, headers: &[Header<'_>]) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: code(answer.refused).into(),
        statuses: answer.statuses.iter().map(status).collect(),
        response_headers_to_add: headers
            .iter()
            .map(|header| HeaderValue {
                key: header.name.to_owned(),
                value: String::from_utf8_lossy(&header.value).into_owned(),
                ..HeaderValue::default()
            })
            .collect(),
        ..RateLimitResponse::default()
    }
}

fn status(status: &Status<'_>) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.over).into(),
        current_limit: status.limit.map(|(requests_per_unit, unit, name)| RateLimit {
            requests_per_unit,
            // `Unit` has the numbers of the wire.
            unit: unit as i32,
            name: name.unwrap_or_default().to_owned(),
        }),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_us.map(duration),
        quota: None,
    }
}

pub(super) fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

pub(super) fn duration(us: u64) -> prost_types::Duration {
    let (seconds, us) = (us / 1_000_000, us % 1_000_000);
    let nanos = i32::try_from(us * 1_000).expect("less than a second in nanoseconds fits");
    // Waits saturate at 2^52 µs.
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos }
}
