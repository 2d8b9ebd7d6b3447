//! `metadata` of a descriptor: any tree, handed on in the answer's dynamic metadata.
//!
//! Names and values are the user's own, read as YAML reads them: numbers as numbers, `yes` as true, dates as texts, and
//! names that are numbers or booleans as their own text (golden case `metadata-of-a-rule`).

use serde_json::{Map, Number, Value};

use super::{
    fields::Reader,
    scalar::{self, Reads},
    yaml::{Kind, Node},
};

/// The tree, or `None` for null and, with a mistake, for what is no map.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Value> {
    if reader.is_null(node) {
        return None;
    }
    if let Kind::Mapping(_) = node.kind {
        return Some(value(node));
    }
    reader.mistake(
        node,
        format!("`metadata` is a map, and this is {}", node.kind_name()),
        "write names and values: `metadata: {team: search}`",
    );
    None
}

/// Any tree as JSON.
pub(super) fn value(node: &Node) -> Value {
    match &node.kind {
        Kind::Sequence(items) => Value::Array(items.iter().map(value).collect()),
        Kind::Mapping(pairs) => {
            Value::Object(pairs.iter().map(|(key, node)| (name(key), value(node))).collect::<Map<_, _>>())
        }
        Kind::Scalar { text, plain } => match scalar::read(text) {
            _ if !plain => Value::String(text.to_string()),
            Reads::Null => Value::Null,
            Reads::Bool(flag) => Value::Bool(flag),
            Reads::Whole(n) => Value::Number(n.into()),
            // JSON knows no infinity.
            Reads::Other(n) => Number::from_f64(n).map_or(Value::Null, Value::Number),
            Reads::Text => Value::String(text.to_string()),
        },
    }
}

/// Any tree as JSON, with each scalar as it is written. Of equal names the later counts.
pub(super) fn texts(node: &Node) -> Value {
    match &node.kind {
        Kind::Sequence(items) => Value::Array(items.iter().map(texts).collect()),
        Kind::Mapping(pairs) => pairs.iter().map(|(key, node)| (name(key), texts(node))).collect(),
        Kind::Scalar { text, .. } => Value::String(text.to_string()),
    }
}

fn name(key: &Node) -> String {
    match &key.kind {
        Kind::Scalar { text, .. } => text.to_string(),
        _ => value(key).to_string(),
    }
}
