//! Resources as rule files.
//!
//! A management server sends messages, people write files, and both mean the same rules. Two readers would drift apart;
//! so each message is written down as the file that a person would have written, and the one compiler reads it. What
//! it has to say about a place then shows that place as text, under the resource's name, which is what the people
//! behind the management server can read.
//!
//! ```text
//! error: no unit is called `9`
//!  --> shop/gateway:5:11
//!   |
//! 5 |     unit: "9"
//!   |           ^^^
//! ```

use std::{collections::BTreeMap, fmt::Write, io};

use prost::Message;
use prost_types::{Any, Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};

use super::wire::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use crate::rules::{
    Compiled, Dialect, Files, Mistakes, compile,
    mistake::{Mistake, quote},
};

/// The only type that is asked for.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Compiles all resources of a response, whole or not at all.
///
/// # Errors
/// All mistakes of all resources: those that cannot be read at all, then those of the rest.
pub fn compile_all(resources: &[Any], dialect: Dialect) -> Result<Compiled, Mistakes> {
    let (mut texts, mut unread) = (Texts::default(), Mistakes::default());
    for (number, resource) in (1..).zip(resources) {
        match config(resource) {
            Ok(config) => texts.add(&config),
            Err(why) => {
                let told = Mistake::of_file(&format!("resource {number}").into(), why);
                unread.push(told.help(format!("send `{TYPE_URL}`")));
            }
        }
    }
    match compile(&texts, dialect) {
        Ok(compiled) if unread.is_empty() => Ok(compiled),
        Ok(_) => Err(unread),
        Err(mistakes) => {
            unread.append(mistakes);
            Err(unread)
        }
    }
}

fn config(resource: &Any) -> Result<RateLimitConfig, String> {
    if resource.type_url != TYPE_URL {
        return Err(format!("a `{}` is no rule", quote(&resource.type_url)));
    }
    RateLimitConfig::decode(&*resource.value).map_err(|error| format!("it cannot be read: {error}"))
}

/// Each resource's text by its name. In the order of names: servers send them in any, and equal rules have equal
/// revisions.
#[derive(Debug, Default)]
struct Texts(BTreeMap<String, String>);

impl Files for Texts {
    fn list(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.0.get(name).map(|text| text.clone().into_bytes()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Texts {
    fn add(&mut self, config: &RateLimitConfig) {
        let named = [&config.name, &config.domain].into_iter().find(|name| !name.is_empty());
        let name = named.map_or_else(|| "(no name)".to_owned(), |name| quote(name));
        let taken = |name: &String| self.0.contains_key(name);
        // Names are unique, says the protocol; rules are never lost for one that is not.
        let again = (2..).map(|n| format!("{name} ({n})"));
        let name = [name.clone()].into_iter().chain(again).find(|name| !taken(name));
        self.0.insert(name.expect("there are more numbers than resources"), text(config));
    }
}

/// The file that says what a resource says.
fn text(config: &RateLimitConfig) -> String {
    let mut text = format!("domain: {}\n", quoted(&config.domain));
    descriptors(&mut text, &config.descriptors, 0);
    text
}

fn descriptors(text: &mut String, list: &[RateLimitDescriptor], depth: usize) {
    let indent = "  ".repeat(depth);
    // Writing to a String cannot fail, here and below.
    if !list.is_empty() {
        let _ = writeln!(text, "{indent}descriptors:");
    }
    for descriptor in list {
        let _ = writeln!(text, "{indent}- key: {}", quoted(&descriptor.key));
        if !descriptor.value.is_empty() {
            let _ = writeln!(text, "{indent}  value: {}", quoted(&descriptor.value));
        }
        for (name, set) in [
            ("shadow_mode", descriptor.shadow_mode),
            ("quota_mode", descriptor.quota_mode),
            ("detailed_metric", descriptor.detailed_metric),
        ] {
            if set {
                let _ = writeln!(text, "{indent}  {name}: true");
            }
        }
        if let Some(metadata) = &descriptor.metadata {
            // JSON is YAML.
            let _ = writeln!(text, "{indent}  metadata: {}", escaped(&json_map(metadata).to_string()));
        }
        if let Some(limit) = &descriptor.rate_limit {
            rate_limit(text, limit, &indent);
        }
        descriptors(text, &descriptor.descriptors, depth + 1);
    }
}

fn rate_limit(text: &mut String, limit: &RateLimitPolicy, indent: &str) {
    let _ = writeln!(text, "{indent}  rate_limit:");
    let indent = format!("{indent}    ");
    match RateLimitUnit::try_from(limit.unit) {
        // As if it were not there: the compiler knows where it has to be.
        Ok(RateLimitUnit::Unknown) => {}
        Ok(unit) => drop(writeln!(text, "{indent}unit: {}", unit.as_str_name().to_ascii_lowercase())),
        Err(_) => drop(writeln!(text, "{indent}unit: \"{}\"", limit.unit)),
    }
    if limit.unlimited {
        let _ = writeln!(text, "{indent}unlimited: true");
    }
    if !limit.unlimited || limit.requests_per_unit > 0 {
        let _ = writeln!(text, "{indent}requests_per_unit: {}", limit.requests_per_unit);
    }
    if !limit.name.is_empty() {
        let _ = writeln!(text, "{indent}name: {}", quoted(&limit.name));
    }
    if !limit.replaces.is_empty() {
        let _ = writeln!(text, "{indent}replaces:");
    }
    for replaced in &limit.replaces {
        let _ = writeln!(text, "{indent}- name: {}", quoted(&replaced.name));
    }
}

/// A text that reads as itself, whatever is in it.
fn quoted(text: &str) -> String {
    escaped(&Json::from(text).to_string())
}

/// JSON leaves some characters as they are that YAML takes for the end of a line, or for none that may be there.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn json_map(fields: &Struct) -> Json {
    Json::Object(fields.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect::<Map<_, _>>())
}

fn json(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(flag)) => Json::Bool(*flag),
        // JSON knows no infinity.
        Some(Kind::NumberValue(number)) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Some(Kind::StringValue(text)) => Json::String(text.clone()),
        Some(Kind::ListValue(list)) => Json::Array(list.values.iter().map(json).collect()),
        Some(Kind::StructValue(fields)) => json_map(fields),
    }
}
