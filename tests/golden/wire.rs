//! Questions as bytes, since some of them are no messages, and answers in the form of the cases.

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use prost::Message;
use prost_types::value::Kind;
use serde_json::{Map, Value, json};
use tollgate::proto::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor,
        rate_limit_descriptor::{Entry, RateLimitOverride},
    },
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::DescriptorStatus},
    r#type::v3::RateLimitUnit,
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::Channel,
};

use crate::clock::Span;

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// One call.
pub(crate) async fn call(channel: &Channel, question: Bytes) -> Result<RateLimitResponse, Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|why| Status::unavailable(why.to_string()))?;
    let answer = grpc.unary(Request::new(question), PathAndQuery::from_static(METHOD), Raw).await?;
    Ok(RateLimitResponse::decode(answer.into_inner()).unwrap())
}

/// The bytes of an `ask`.
pub(crate) fn question(ask: &Value, domain: &str) -> Bytes {
    if let Some(hex) = ask["raw_hex"].as_str() {
        return crate::case::bytes(hex).into();
    }
    let request = RateLimitRequest {
        domain: ask["domain"].as_str().unwrap_or(domain).to_owned(),
        descriptors: ask["descriptors"].as_array().into_iter().flatten().map(descriptor).collect(),
        hits_addend: number(&ask["hits_addend"]).unwrap_or(0) as u32,
    };
    request.encode_to_vec().into()
}

fn descriptor(of: &Value) -> RateLimitDescriptor {
    let limit = of.get("limit").map(|limit| RateLimitOverride {
        requests_per_unit: number(&limit["requests_per_unit"]).unwrap_or(0) as u32,
        unit: match &limit["unit"] {
            Value::String(name) => RateLimitUnit::from_str_name(name).unwrap() as i32,
            unit => number(unit).unwrap() as i32,
        },
    });
    RateLimitDescriptor {
        entries: of["entries"].as_array().into_iter().flatten().map(entry).collect(),
        limit,
        hits_addend: number(&of["hits_addend"]),
        is_negative_hits: of["is_negative_hits"] == Value::Bool(true),
    }
}

fn entry(pair: &Value) -> Entry {
    let text = |of: &Value| match of {
        Value::String(text) => text.clone(),
        _ => of["text"].as_str().unwrap().repeat(number(&of["times"]).unwrap() as usize),
    };
    Entry { key: text(&pair[0]).into(), value: text(&pair[1]).into() }
}

/// The largest number of the protocol is beyond 63 bits, and then YAML has it as a fraction.
fn number(of: &Value) -> Option<u64> {
    of.as_u64().or_else(|| of.as_f64().map(|n| n as u64))
}

/// An answer as cases have it.
pub(crate) fn answer(answered: &Result<RateLimitResponse, Status>, asked: Span) -> Value {
    let response = match answered {
        Ok(response) => response,
        Err(status) => return json!({"error": code(status.code())}),
    };
    let mut answer = json!({
        "overall_code": response.overall_code().as_str_name(),
        "statuses": response.statuses.iter().map(|of| status(of, asked)).collect::<Vec<_>>(),
    });
    if !response.response_headers_to_add.is_empty() {
        answer["response_headers_to_add"] = headers(response, asked);
    }
    if let Some(metadata) = &response.dynamic_metadata {
        answer["dynamic_metadata"] = object(metadata);
    }
    answer
}

fn status(of: &DescriptorStatus, asked: Span) -> Value {
    let mut status = json!({
        "code": tollgate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code::try_from(of.code)
            .unwrap()
            .as_str_name(),
        "current_limit": "none",
        "limit_remaining": of.limit_remaining,
        "duration_until_reset": "none",
    });
    let unit = of.current_limit.as_ref().map_or("UNKNOWN", |limit| limit.unit().as_str_name());
    if let Some(limit) = &of.current_limit {
        status["current_limit"] = json!({"requests_per_unit": limit.requests_per_unit, "unit": unit});
        if !limit.name.is_empty() {
            status["current_limit"]["name"] = limit.name.clone().into();
        }
    }
    if let Some(reset) = &of.duration_until_reset {
        let seconds = reset.seconds as f64 + f64::from(reset.nanos) / 1e9;
        status["duration_until_reset"] = asked.reset(seconds, unit).into();
    }
    status
}

/// The third of three headers counts down to the end of a window; the first one tells whose.
fn headers(response: &RateLimitResponse, asked: Span) -> Value {
    let all = &response.response_headers_to_add;
    let mut told: Vec<[String; 2]> = all.iter().map(|h| [h.key.clone(), h.value.clone()]).collect();
    if let [limit, _, reset] = &mut told[..] {
        let of_limit = |status: &&DescriptorStatus| {
            status.current_limit.as_ref().is_some_and(|of| of.requests_per_unit.to_string() == limit[1])
        };
        let units = response.statuses.iter().filter(of_limit);
        let mut units = units.map(|status| status.current_limit.as_ref().unwrap().unit().as_str_name());
        let seconds = reset[1].parse::<f64>().unwrap_or(-1.0);
        if let Some(unit) = units.find(|unit| asked.reset(seconds, unit) == "R") {
            reset[1] = format!("R({unit})");
        }
    }
    json!(told)
}

/// `INVALID_ARGUMENT`
pub(crate) fn code(code: Code) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(c.to_uppercase());
    }
    name
}

fn object(of: &prost_types::Struct) -> Value {
    Value::Object(of.fields.iter().map(|(name, of)| (name.clone(), json(of))).collect::<Map<_, _>>())
}

fn json(of: &prost_types::Value) -> Value {
    match of.kind.as_ref().unwrap() {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(n) => Value::from(*n),
        Kind::StringValue(text) => Value::String(text.clone()),
        Kind::BoolValue(flag) => Value::Bool(*flag),
        Kind::StructValue(of) => object(of),
        Kind::ListValue(list) => Value::Array(list.values.iter().map(json).collect()),
    }
}

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
