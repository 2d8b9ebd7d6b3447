//! The RPC in protobuf's JSON mapping, for clients without gRPC.
//!
//! Read is what that mapping allows: field names in lowerCamelCase and as in the .proto, numbers also as texts, enums by
//! name or number, `null` for what is not there. Refused is what it forbids: unknown fields, a field twice, trailing
//! text. Written is lowerCamelCase, without what is at its default. Keys and values of entries are texts, as in Envoy's
//! own API; JSON cannot hold other bytes.

use std::{fmt, marker::PhantomData};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de};

pub(super) use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::OverLimit as OVER_LIMIT;
use crate::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry as ProtoEntry, RateLimitOverride},
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
    },
    r#type::v3::RateLimitUnit,
};

/// The request that a body holds.
///
/// # Errors
/// What is wrong, and at which line and column.
pub(super) fn request(body: &[u8]) -> Result<RateLimitRequest, serde_json::Error> {
    let Object(request): Object<Request> = serde_json::from_slice(body)?;
    Ok(RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: request.descriptors.unwrap_or_default().into_iter().map(|Object(d)| d.into()).collect(),
        hits_addend: request.hits_addend.unwrap_or_default().0,
    })
}

/// An answer as JSON.
pub(crate) fn response(response: &RateLimitResponse) -> String {
    let answer = Answer {
        overall_code: response.overall_code().as_str_name(),
        statuses: response.statuses.iter().map(status).collect(),
        response_headers_to_add: response
            .response_headers_to_add
            .iter()
            .map(|header| Header { key: &header.key, value: &header.value })
            .collect(),
        dynamic_metadata: response.dynamic_metadata.as_ref().map(object),
    };
    serde_json::to_string(&answer).expect("texts and numbers are JSON")
}

// === what is read ===

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Request {
    domain: Option<String>,
    descriptors: Option<Vec<Object<Descriptor>>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    entries: Option<Vec<Object<Entry>>>,
    limit: Option<Object<Override>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number<u64>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Override {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number<u32>>,
    unit: Option<UnitNumber>,
}

impl From<Descriptor> for RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entry = |Object(entry): Object<Entry>| ProtoEntry {
            key: Bytes::from(entry.key.unwrap_or_default()),
            value: Bytes::from(entry.value.unwrap_or_default()),
        };
        Self {
            entries: descriptor.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: descriptor.limit.map(|Object(limit)| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit.unwrap_or_default().0,
                unit: limit.unit.unwrap_or_default().0,
            }),
            hits_addend: descriptor.hits_addend.map(|hits| hits.0),
            is_negative_hits: descriptor.is_negative_hits.unwrap_or_default(),
        }
    }
}

/// A JSON object. Derived code alone would read `["d", [], 1]` as a message, by position.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Braces<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Braces<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Braces(PhantomData))
    }
}

/// A whole number, as one or as a text; `1e2` and `5.0` are whole too.
#[derive(Clone, Copy, Default)]
struct Number<T>(T);

impl<'de, T: TryFrom<u64>> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Number(number) => whole(&number),
            serde_json::Value::String(text) => serde_json::from_str(&text).ok().as_ref().and_then(whole),
            _ => None,
        };
        number.and_then(|number| T::try_from(number).ok()).map(Self).ok_or_else(|| {
            de::Error::custom(format!("not a whole number from 0 to 2^{}-1", 8 * size_of::<T>()))
        })
    }
}

fn whole(number: &serde_json::Number) -> Option<u64> {
    // Beyond 2^53 a decimal notation says nothing exact.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    number.as_u64().or_else(|| {
        let float = number.as_f64().filter(|f| f.fract() == 0.0 && (0.0..=EXACT_MAX).contains(f))?;
        format!("{float:.0}").parse().ok()
    })
}

/// A unit by name or number. Which numbers are units is the limiter's to say.
#[derive(Clone, Copy, Default)]
struct UnitNumber(i32);

impl<'de> Deserialize<'de> for UnitNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let number = match &value {
            serde_json::Value::Number(number) => {
                number.as_i64().and_then(|number| i32::try_from(number).ok())
            }
            serde_json::Value::String(name) => RateLimitUnit::from_str_name(name).map(|unit| unit as i32),
            _ => None,
        };
        number.map(Self).ok_or_else(|| de::Error::custom(format!("{value} is no unit such as \"HOUR\"")))
    }
}

// === what is written ===

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'r> {
    overall_code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<Status<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<serde_json::Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'r> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimit<'r>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimit<'r> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'r str,
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    unit: &'static str,
}

#[derive(Serialize)]
struct Header<'r> {
    key: &'r str,
    value: &'r str,
}

fn status(status: &DescriptorStatus) -> Status<'_> {
    Status {
        code: Code::try_from(status.code).unwrap_or_default().as_str_name(),
        current_limit: status.current_limit.as_ref().map(|limit| CurrentLimit {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: Unit::try_from(limit.unit).unwrap_or_default().as_str_name(),
        }),
        limit_remaining: status.limit_remaining,
        duration_until_reset: status.duration_until_reset.as_ref().map(duration),
    }
}

/// A struct is the JSON that it stands for.
fn object(of: &prost_types::Struct) -> serde_json::Value {
    of.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}

fn json(value: &prost_types::Value) -> serde_json::Value {
    use prost_types::value::Kind;
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::NumberValue(number)) => number_json(*number),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(of)) => object(of),
        Some(Kind::ListValue(list)) => list.values.iter().map(json).collect(),
    }
}

/// Whole numbers without a fraction, as the mapping writes them.
fn number_json(number: f64) -> serde_json::Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        return (number as i64).into();
    }
    number.into()
}

/// Seconds with none, three, six or nine decimals, as the mapping wants it.
fn duration(duration: &prost_types::Duration) -> String {
    let (seconds, nanos) = (duration.seconds, duration.nanos);
    match nanos {
        0 => format!("{seconds}s"),
        _ if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
        _ => format!("{seconds}.{nanos:09}s"),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::{
        config::core::v3::HeaderValue, service::ratelimit::v3::rate_limit_response::RateLimit,
    };

    #[test]
    fn both_spellings_and_numbers_as_texts_are_read() {
        let wide = br#"{"domain": "d", "hitsAddend": "4", "descriptors": [{"entries": [{"key": "k", "value": "v"}, {"key": "b"}],
            "hitsAddend": "18446744073709551615", "isNegativeHits": true, "limit": {"requestsPerUnit": 2, "unit": "HOUR"}}]}"#;
        let tall = br#"{"descriptors": [{"limit": {"unit": 3, "requests_per_unit": "2"}, "is_negative_hits": true,
            "hits_addend": 18446744073709551615, "entries": [{"value": "v", "key": "k"}, {"key": "b", "value": null}]}], "hits_addend": 4.0, "domain": "d"}"#;
        let read = request(wide).unwrap();
        assert_eq!(read, request(tall).unwrap());
        let descriptor = &read.descriptors[0];
        assert_eq!((read.domain.as_str(), read.hits_addend), ("d", 4));
        assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(u64::MAX), true));
        assert_eq!(descriptor.limit, Some(RateLimitOverride { requests_per_unit: 2, unit: 3 }));
        assert_eq!(
            (&descriptor.entries[0].value[..], &descriptor.entries[1].value[..]),
            (&b"v"[..], &b""[..])
        );

        assert_eq!(request(b"{}").unwrap(), RateLimitRequest::default());
        let nothing = br#"{"domain": null, "descriptors": null, "hitsAddend": null}"#;
        assert_eq!(request(nothing).unwrap(), RateLimitRequest::default());
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_place() {
        for (body, words) in [
            ("", "line 1 column 0"),
            ("{", "line 1 column 1"),
            ("[]", "expected an object"),
            (r#"["d", [], 1]"#, "expected an object"),
            (r#"{"descriptors": [[]]}"#, "expected an object"),
            (r#"{"descriptors": [{"entries": [["k", "v"]]}]}"#, "expected an object"),
            (r#"{"descriptors": [{"limit": [1, 2]}]}"#, "expected an object"),
            ("5", "invalid type"),
            (r#"{"domain": 5}"#, "expected a string"),
            (r#"{"unknown": 1}"#, "unknown field `unknown`"),
            (r#"{"domain": "d", "domain": "d"}"#, "duplicate field `domain`"),
            (r#"{"hitsAddend": 1, "hits_addend": 1}"#, "duplicate field `hitsAddend`"),
            ("{} x", "trailing characters"),
            (r#"{"hitsAddend": -1}"#, "not a whole number from 0 to 2^32-1"),
            (r#"{"hitsAddend": 4294967296}"#, "2^32-1"),
            (r#"{"hitsAddend": 1.5}"#, "2^32-1"),
            (r#"{"hitsAddend": "x"}"#, "2^32-1"),
            (r#"{"hitsAddend": true}"#, "2^32-1"),
            (r#"{"descriptors": [{"hitsAddend": "18446744073709551616"}]}"#, "2^64-1"),
            (r#"{"descriptors": [{"entries": [{"keys": "k"}]}]}"#, "unknown field `keys`"),
            (r#"{"descriptors": [{"limit": {"unit": "hour"}}]}"#, "no unit such as"),
            (r#"{"descriptors": [{"limit": {"unit": 1.5}}]}"#, "no unit such as"),
        ] {
            let why = request(body.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(words) && why.contains("line 1"), "{body}: {why}");
        }
        assert!(request(b"{\"domain\": \"\xff\"}").is_err());
        let deep = format!("{}{}", r#"{"descriptors": "#, "[".repeat(100_000));
        assert!(request(deep.as_bytes()).is_err());
    }

    #[test]
    fn answers_leave_out_what_is_at_its_default() {
        let limit = RateLimit { requests_per_unit: 2, unit: Unit::Hour.into(), name: "n".to_owned() };
        let zero = RateLimit { requests_per_unit: 0, unit: Unit::Week.into(), name: String::new() };
        let status = |code: Code, current_limit, limit_remaining, duration_until_reset| DescriptorStatus {
            code: code.into(),
            current_limit,
            limit_remaining,
            duration_until_reset,
            quota: None,
        };
        let answer = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![
                status(
                    Code::OverLimit,
                    Some(limit),
                    1,
                    Some(prost_types::Duration { seconds: 3599, nanos: 0 }),
                ),
                status(
                    Code::Ok,
                    Some(zero),
                    0,
                    Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 }),
                ),
                status(Code::Ok, None, u32::MAX, None),
            ],
            response_headers_to_add: vec![HeaderValue {
                key: "A".into(),
                value: "\"x\";r=1".into(),
                ..HeaderValue::default()
            }],
            ..RateLimitResponse::default()
        };
        assert_eq!(
            response(&answer),
            r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"n","requestsPerUnit":2,"unit":"HOUR"},"limitRemaining":1,"durationUntilReset":"3599s"},{"code":"OK","currentLimit":{"unit":"WEEK"},"durationUntilReset":"0.200s"},{"code":"OK","limitRemaining":4294967295}],"responseHeadersToAdd":[{"key":"A","value":"\"x\";r=1"}]}"#
        );
        for (nanos, text) in [(0, "1s"), (1, "1.000000001s"), (1_000, "1.000001s"), (20_000_000, "1.020s")] {
            assert_eq!(duration(&prost_types::Duration { seconds: 1, nanos }), text);
        }
    }
}
