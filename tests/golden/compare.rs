//! Whether an answer is the recorded one, and in which fields it is not.

use serde_json::Value;

/// What differs: `statuses[0].limit_remaining: expected 1, got 0`. Nothing where the answer is the recorded one or
/// another that the step accepts.
pub(crate) fn step(step: &Value, got: &Value) -> Vec<String> {
    let others = step["accept"].as_array().into_iter().flatten();
    let mut others = others.map(|other| if other == "want" { &step["want"] } else { other });
    if step.get("answer").is_none() || others.any(|other| same(other, got)) {
        return Vec::new();
    }
    differences(&step["answer"], got)
}

fn same(expected: &Value, got: &Value) -> bool {
    differences(expected, got).is_empty()
}

pub(crate) fn differences(expected: &Value, got: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(expected, got, "", &mut found);
    found
}

fn compare(expected: &Value, got: &Value, at: &str, found: &mut Vec<String>) {
    match (expected, got) {
        // Any of several codes.
        (Value::Array(codes), Value::String(_)) if at == "error" => {
            if !codes.contains(got) {
                found.push(format!("error: expected any of {expected}, got {got}"));
            }
        }
        (Value::Object(one), Value::Object(other)) => {
            let below = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
            for (name, expected) in one {
                match other.get(name) {
                    Some(got) => compare(expected, got, &below(name), found),
                    None => found.push(format!("{}: expected {expected}, got nothing", below(name))),
                }
            }
            for (name, got) in other.iter().filter(|(name, _)| !one.contains_key(*name)) {
                found.push(format!("{}: expected nothing, got {got}", below(name)));
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (expected, got)) in one.iter().zip(other).enumerate() {
                compare(expected, got, &format!("{at}[{index}]"), found);
            }
        }
        _ if expected == got => {}
        _ => found.push(format!("{at}: expected {expected}, got {got}")),
    }
}
