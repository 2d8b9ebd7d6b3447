//! Dynamic metadata of an answer, for Envoy's access log and its filters: in Envoy they stand in the namespace
//! `envoy.filters.http.ratelimit`, such as `%DYNAMIC_METADATA(envoy.filters.http.ratelimit:store)%`.
//!
//! An answer that no store stands behind always says so:
//!
//! ```text
//! {store: "degraded", store_failure: "timeout", on_store_failure: "allow"}
//! ```
//!
//! With `RESPONSE_DYNAMIC_METADATA` each answer also repeats what was asked, with what the rules say besides:
//!
//! ```text
//! {domain, descriptors: [{entries: ["key=value"], hitsAddend, limit}], hitsAddend, metadata}
//! ```
//!
//! `metadata` is that of all rules that let the request pass, merged: where two differ the first wins, and maps within
//! are merged likewise. Each answer is merged anew. (The reference merges into the rule itself, so that later answers
//! hold what another rule said, and forgets a rule's metadata beside some of its flags about metrics: golden cases
//! `metadata-that-stays-merged`, `metadata-lost-by-metric-flags`. In compat, too, that is not repeated.)

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

use crate::{
    limit::Entry,
    limiter::{Answer, Degraded, Descriptor, Override, Question},
    proto::envoy::r#type::v3::RateLimitUnit,
};

/// What stands under `store` where an answer is without one.
const DEGRADED: &str = "degraded";

/// What an answer carries; `question` where it is to be repeated.
pub(super) fn of(question: Option<&Question>, answer: &Answer<'_>) -> Option<Struct> {
    let mut fields = question.map_or_else(Vec::new, |question| repeated(question, answer));
    if let Some(Degraded { mode, cause }) = answer.degraded {
        let told = [("store", DEGRADED), ("store_failure", cause), ("on_store_failure", mode.as_str())];
        fields.extend(told.map(|(name, word)| (name, text(word))));
    }
    (!fields.is_empty()).then(|| object(fields))
}

/// That an answer is a degraded one, and why: the store's error and the mode, as [`of`] wrote them.
pub(crate) fn degraded(metadata: &Struct) -> Option<(&str, &str)> {
    let word = |name| match metadata.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(word)) => Some(word.as_str()),
        _ => None,
    };
    word("store").filter(|store| *store == DEGRADED)?;
    Some((word("store_failure").unwrap_or("?"), word("on_store_failure").unwrap_or("?")))
}

fn repeated(question: &Question, answer: &Answer<'_>) -> Vec<(&'static str, Value)> {
    let mut fields = Vec::with_capacity(7);
    fields.push(("domain", text(lossy(&question.domain))));
    fields.push(("descriptors", list(question.descriptors.iter().map(descriptor))));
    if question.hits > 0 {
        fields.push(("hitsAddend", number(f64::from(question.hits))));
    }
    let mut merged = Map::new();
    for metadata in &answer.metadata {
        merge(&mut merged, metadata);
    }
    if !merged.is_empty() {
        fields.push(("metadata", value(&Json::Object(merged))));
    }
    fields
}

fn descriptor(descriptor: &Descriptor) -> Value {
    let entry = |entry: &Entry| text(format!("{}={}", lossy(&entry.key), lossy(&entry.value)));
    let mut fields = vec![("entries", list(descriptor.entries.iter().map(entry)))];
    if let Some(hits) = descriptor.hits {
        fields.push(("hitsAddend", number(hits as f64)));
    }
    if let Some(limit) = descriptor.limit {
        fields.push(("limit", text(shown(limit))));
    }
    Value { kind: Some(Kind::StructValue(object(fields))) }
}

/// As protobuf's text form has it, without what is at its default.
fn shown(limit: Override) -> String {
    let requests = (limit.requests > 0).then(|| format!("requests_per_unit:{}", limit.requests));
    let name = RateLimitUnit::try_from(limit.unit).map_or("UNKNOWN", |unit| unit.as_str_name());
    requests.into_iter().chain([format!("unit:{name}")]).collect::<Vec<_>>().join(" ")
}

/// Adds what is not there yet.
fn merge(into: &mut Map<String, Json>, from: &Json) {
    let Json::Object(from) = from else { return };
    for (name, value) in from {
        match into.get_mut(name) {
            None => {
                into.insert(name.clone(), value.clone());
            }
            Some(Json::Object(known)) => merge(known, value),
            Some(_) => {}
        }
    }
}

// === protobuf's JSON ===

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(*flag),
        Json::Number(of) => return number(of.as_f64().unwrap_or(f64::NAN)),
        Json::String(of) => return text(of.clone()),
        Json::Array(items) => return list(items.iter().map(value)),
        Json::Object(of) => Kind::StructValue(Struct {
            fields: of.iter().map(|(name, json)| (name.clone(), value(json))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}

fn object(fields: Vec<(&str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Value { kind: Some(Kind::ListValue(ListValue { values: values.collect() })) }
}

fn text(text: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn number(number: f64) -> Value {
    Value { kind: Some(Kind::NumberValue(number)) }
}

/// Clients choose values, and protobuf's texts are UTF-8.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_rule_wins_and_maps_within_are_merged() {
        let mut merged = Map::new();
        merge(&mut merged, &json!({"from": "a", "shared": {"a": 1, "x": {"deep": 1}}}));
        merge(&mut merged, &json!({"from": "b", "shared": {"a": 2, "b": 2, "x": {"er": 2}}, "more": [1]}));
        let wanted = json!({"from": "a", "shared": {"a": 1, "b": 2, "x": {"deep": 1, "er": 2}}, "more": [1]});
        assert_eq!(Json::Object(merged), wanted);
    }

    #[test]
    fn limits_that_were_brought_along_read_as_protobufs_text() {
        assert_eq!(shown(Override { requests: 5, unit: 3 }), "requests_per_unit:5 unit:HOUR");
        assert_eq!(shown(Override { requests: 0, unit: 7 }), "unit:WEEK");
    }
}
