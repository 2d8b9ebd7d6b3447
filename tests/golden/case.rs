//! Cases, as their files have them.
//!
//! ```yaml
//! - name: exact-value-beats-bare-key
//!   why: Exceptions for single users stand beside the rule for all.
//!   env: {SHADOW_MODE: "true"}      # optional; cases that want the same share a service, and so have domains of their own
//!   alone: true                     # optional: a service for this case alone
//!   window: SECOND                  # optional: begins anew when this window of the clock ended during it
//!   rules: |                        # one file, or {name: text}; {hex: bytes} is no text, {link: target} a symbolic link
//!     domain: exact-value-beats-bare-key
//!     descriptors: [...]
//!   steps:
//!   - ask: {descriptors: [{entries: [[user, vip]], hits_addend: 2}]}
//!     answer:
//!       overall_code: OK
//!       statuses:
//!       - {code: OK, current_limit: {requests_per_unit: 3, unit: HOUR}, limit_remaining: 2, duration_until_reset: R}
//! ```
//!
//! What an answer does not list must be absent. `R` is the time to the end of the unit's window, `error: [..]` any of
//! these codes. `accept` lists other answers that pass; `want` is the better one where what was recorded is a defect (the
//! `note` says why), and passes where `accept: [want]` says so. A case with `expect` instead of steps is about files
//! alone: `accepted`, with the lines that `/rlconfig` shows then, or `refused`.

use std::{collections::BTreeMap, fs, path::Path};

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value};

/// One case.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// As in its file.
    of: Value,
}

/// A file of rules.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    /// A symbolic link.
    Link(String),
}

impl Case {
    pub(crate) fn get(&self, name: &str) -> &Value {
        &self.of[name]
    }

    pub(crate) fn steps(&self) -> &[Value] {
        self.of["steps"].as_array().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.of[name] == Value::Bool(true)
    }

    /// Settings beside those of the run.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let pairs = self.of["env"].as_object().into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
    }

    /// The rule files by name. Where several cases share a directory, theirs begin with the case's.
    pub(crate) fn files(&self, shared: bool) -> BTreeMap<String, Content> {
        match &self.of["rules"] {
            Value::String(text) => {
                BTreeMap::from([(format!("{}.yaml", self.name), Content::Bytes(text.clone().into()))])
            }
            Value::Object(files) => files
                .iter()
                .map(|(name, of)| {
                    let name = if shared { format!("{}.{name}", self.name) } else { name.clone() };
                    (name, content(of))
                })
                .collect(),
            _ => BTreeMap::new(),
        }
    }

    /// The domains that its files name; the first one is meant where a question names none.
    pub(crate) fn domains(&self) -> Vec<String> {
        let texts = self.files(false);
        let text = |of: &Content| match of {
            Content::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
            Content::Link(_) => None,
        };
        let roots = texts.values().filter_map(text).filter_map(|text| read(&text));
        roots.filter_map(|root| Some(root["domain"].as_str()?.to_owned())).collect()
    }
}

pub(crate) fn content(of: &Value) -> Content {
    match of {
        Value::String(text) => Content::Bytes(text.clone().into_bytes()),
        _ => match of["link"].as_str() {
            Some(target) => Content::Link(target.to_owned()),
            None => Content::Bytes(bytes(of["hex"].as_str().unwrap())),
        },
    }
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// All cases, in the order of their files.
pub(crate) fn all() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cases");
    let mut paths: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let Some(Value::Array(list)) = read(&text) else { panic!("{} is no list of cases", path.display()) };
        for of in list {
            let name =
                of["name"].as_str().unwrap_or_else(|| panic!("{}: a case without a name", path.display()));
            cases.push(Case { name: name.to_owned(), of });
        }
    }
    cases
}

/// The first document of a text, where it is YAML.
fn read(text: &str) -> Option<Value> {
    Yaml::load_from_str(text).ok()?.first().map(value)
}

fn value(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Boolean(flag)) => Value::Bool(*flag),
        Yaml::Value(Scalar::Integer(n)) => Value::from(*n),
        Yaml::Value(Scalar::FloatingPoint(n)) => Value::from(n.into_inner()),
        Yaml::Value(Scalar::String(text)) => Value::String(text.to_string()),
        Yaml::Sequence(items) => Value::Array(items.iter().map(value).collect()),
        Yaml::Mapping(pairs) => {
            Value::Object(pairs.iter().map(|(name, of)| (text(name), value(of))).collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

fn text(name: &Yaml<'_>) -> String {
    match value(name) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
