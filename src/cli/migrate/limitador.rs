//! limitador's limits as rules.
//!
//! A limit there has conditions, which must all hold, and variables, each of whose values has a counter of its own. Both
//! look into one descriptor with any number of entries, in any order. Here rules stand in a tree that descriptors walk entry
//! by entry, so a limit becomes one path through it: its conditions as exact values, then its variables as bare keys. What
//! Envoy must send for that stands beside each rule.
//!
//! A window there begins with the first hit, here at multiples of its length; within any one window the limit is the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use crate::{
    cli::{
        EXIT_FAILED, EXIT_NO, Failure,
        terminal::{Terminal, count},
    },
    limit::WINDOW_MAX_US,
    rules::{
        RULES_MAX, Unit,
        plain::{self, Plain},
    },
};

/// One limit, understood.
#[derive(Debug)]
struct Limit {
    namespace: String,
    name: Option<String>,
    max: u32,
    seconds: u64,
    /// Keys, with values where a condition asks for one.
    path: Vec<(String, Option<String>)>,
}

/// Descriptors of one level.
#[derive(Clone, Debug, Default)]
struct Level(Vec<Descriptor>);

#[derive(Clone, Debug)]
struct Descriptor {
    key: String,
    value: Option<String>,
    limits: Vec<(u64, u32, Option<String>)>,
    below: Level,
}

/// # Errors
/// When a file cannot be read or written, or is no list of limits.
pub(super) fn run(path: &Path, out: Option<&Path>, terminal: &mut Terminal) -> Result<u8, Failure> {
    let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|why| wrong(format!("it cannot be read: {why}")))?;
    let documents = plain::documents(&text).map_err(wrong)?;
    let items: Vec<&Plain> = documents.iter().flat_map(limits_of).collect();
    if items.is_empty() {
        return Err(wrong("there is no list of limits in it".to_owned()));
    }
    let mut domains: BTreeMap<String, Level> = BTreeMap::new();
    let mut cannot = Vec::new();
    for item in items {
        let taken = translate(item).and_then(|limit| {
            let level = domains.entry(limit.namespace.clone()).or_default();
            level.add(&limit.path, (limit.seconds, limit.max, limit.name))
        });
        if let Err(why) = taken {
            cannot.push(format!("{}:{}: {why}", path.display(), item.line));
        }
    }
    domains.retain(|_, level| !level.0.is_empty());
    let mut names = BTreeSet::new();
    for (domain, level) in &mut domains {
        if let Err(why) = level.spread() {
            cannot.push(format!("{}: namespace {domain}: {why}", path.display()));
            continue;
        }
        let mut name = file_name(domain);
        while !names.insert(name.clone()) {
            name = format!("more-{name}");
        }
        let text = rules(domain, level);
        match out {
            None => terminal.line(format!("# {name}\n{text}")),
            Some(dir) => {
                let file = dir.join(&name);
                std::fs::create_dir_all(dir)
                    .and_then(|()| std::fs::write(&file, text))
                    .map_err(|why| Failure::usage(format!("{} cannot be written: {why}", file.display())))?;
                terminal.line(file.display());
            }
        }
    }
    for line in &cannot {
        eprintln!("{line}");
    }
    if cannot.is_empty() { Ok(EXIT_NO) } else { Err(cannot_all(&cannot)) }
}

fn cannot_all(cannot: &[String]) -> Failure {
    Failure { code: EXIT_FAILED, line: format!("{} cannot be translated", count(cannot.len(), "limit")) }
}

/// A file is a list of limits; a resource of its operator has them in `spec`.
fn limits_of(document: &Plain) -> &[Plain] {
    match document.get("spec") {
        Some(spec) => spec.list_of("limits"),
        None if document.get("limits").is_some() => document.list_of("limits"),
        None => document.list(),
    }
}

/// # Errors
/// What cannot be said in a rule.
fn translate(item: &Plain) -> Result<Limit, String> {
    let namespace =
        item.text_of("namespace").filter(|name| !name.is_empty()).ok_or("it has no `namespace`")?;
    let number = |name: &str| {
        let text = item.text_of(name).ok_or(format!("it has no `{name}`"))?;
        text.parse::<u64>().map_err(|_| format!("`{name}: {text}` is no whole number"))
    };
    let max = number("max_value")?;
    let max = u32::try_from(max).map_err(|_| format!("a limit of {max} is more than {}", u32::MAX))?;
    let seconds = number("seconds")?;
    if seconds == 0 || seconds > WINDOW_MAX_US / 1_000_000 {
        return Err(format!("a window of {seconds} s is not between 1 s and ten years"));
    }
    let mut path = Vec::new();
    for condition in item.list_of("conditions") {
        let condition = condition.text().ok_or("a condition is no text")?;
        for part in conjuncts(condition) {
            let (key, value) = equality(part)
                .ok_or(format!("the condition `{part}`: only `key == 'value'` can be said in a rule"))?;
            if value.is_empty() || value.contains('*') {
                return Err(format!(
                    "the condition `{part}`: a rule's value is not empty, and a `*` in it is a wildcard"
                ));
            }
            path.push((key, Some(value)));
        }
    }
    for variable in item.list_of("variables") {
        let variable = variable.text().ok_or("a variable is no text")?;
        let key = key_of(variable)
            .ok_or(format!("the variable `{variable}`: only an entry's key can stand in a rule"))?;
        path.push((key, None));
    }
    if path.is_empty() {
        // It holds for all requests of the namespace; a descriptor needs an entry.
        path.push(("generic_key".to_owned(), Some("all".to_owned())));
    }
    let name = item.text_of("name").filter(|name| !name.is_empty()).map(str::to_owned);
    Ok(Limit { namespace: namespace.to_owned(), name, max, seconds, path })
}

/// The parts of `a && b`, where no quote is open.
fn conjuncts(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quote) = (Vec::new(), 0, None);
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match quote {
            Some(open) if byte == open => quote = None,
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if bytes[at..].starts_with(b"&&") => {
                parts.push(text[start..at].trim());
                start = at + 2;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts
}

/// `key == 'value'`, in the forms of old and new.
fn equality(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once("==")?;
    let value = value.trim();
    let bare = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b))
    };
    let value = match quoted(value) {
        Some(value) => value,
        None if bare(value) && !value.starts_with("descriptors") => value,
        None => return None,
    };
    Some((key_of(key)?, value.to_owned()))
}

/// `key`, `descriptors[0].key` or `descriptors[0]['key']`.
fn key_of(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |key: &str| {
        let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        (!key.is_empty() && key.bytes().all(good)).then(|| key.to_owned())
    };
    match text.strip_prefix("descriptors") {
        None => plain(text),
        Some(rest) => {
            let rest = rest.strip_prefix("[0]")?;
            match rest.strip_prefix('.') {
                // A further dot would look into the value.
                Some(key) => plain(key).filter(|key| !key.contains('.')),
                None => quoted(rest.strip_prefix('[')?.strip_suffix(']')?).map(str::to_owned),
            }
        }
    }
}

/// What stands between two equal quotes, without any inside.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let inner = text.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.contains([quote, '\\'])).then_some(inner)
}

impl Level {
    /// # Errors
    /// When more limits meet than a descriptor may have.
    fn add(
        &mut self,
        path: &[(String, Option<String>)],
        limit: (u64, u32, Option<String>),
    ) -> Result<(), String> {
        let Some(((key, value), rest)) = path.split_first() else { return Ok(()) };
        let place = self.0.iter().position(|one| one.key == *key && one.value == *value);
        let place = place.unwrap_or_else(|| {
            let (limits, below) = Default::default();
            self.0.push(Descriptor { key: key.clone(), value: value.clone(), limits, below });
            self.0.len() - 1
        });
        let one = &mut self.0[place];
        if !rest.is_empty() {
            return one.below.add(rest, limit);
        }
        // Two of one window are one limit there, of which the last one counts.
        one.limits.retain(|(seconds, ..)| *seconds != limit.0);
        if one.limits.len() == RULES_MAX {
            return Err(format!("more than {RULES_MAX} limits on one descriptor"));
        }
        one.limits.push(limit);
        Ok(())
    }
}

impl Level {
    /// There all limits that fit hold; here an exact value keeps the bare key from being looked at. So what a bare key
    /// says is said again at each exact value beside it, where it counts for that value alone, as it would there.
    ///
    /// # Errors
    /// When more limits meet than a descriptor may have.
    fn spread(&mut self) -> Result<(), String> {
        let bare: Vec<Descriptor> = self.0.iter().filter(|one| one.value.is_none()).cloned().collect();
        for bare in &bare {
            for exact in self.0.iter_mut().filter(|one| one.key == bare.key && one.value.is_some()) {
                exact.take_over(bare)?;
            }
        }
        self.0.iter_mut().try_for_each(|one| one.below.spread())
    }
}

impl Descriptor {
    fn take_over(&mut self, other: &Self) -> Result<(), String> {
        for limit in &other.limits {
            match self.limits.iter_mut().find(|own| own.0 == limit.0) {
                // Two windows of one length that one value is counted in: the smaller limit is the one that is felt.
                Some(own) => own.1 = own.1.min(limit.1),
                None => self.limits.push(limit.clone()),
            }
        }
        if self.limits.len() > RULES_MAX {
            return Err(format!("more than {RULES_MAX} limits meet at {}", self.key));
        }
        for below in &other.below.0 {
            match self.below.0.iter_mut().find(|own| own.key == below.key && own.value == below.value) {
                Some(own) => own.take_over(below)?,
                None => self.below.0.push(below.clone()),
            }
        }
        Ok(())
    }
}

/// A rule file.
fn rules(domain: &str, level: &Level) -> String {
    let mut text = format!(
        "# Translated from limitador. Envoy has to send a descriptor for each rule: its keys, in this order.\n\
         domain: {}\ndescriptors:\n",
        word(domain)
    );
    write_level(level, &mut Vec::new(), &mut text);
    text
}

fn write_level(level: &Level, above: &mut Vec<String>, text: &mut String) {
    let indent = "  ".repeat(above.len());
    // Writing to a String cannot fail.
    for one in &level.0 {
        above.push(one.key.clone());
        if !one.limits.is_empty() {
            let _ = writeln!(text, "{indent}# a descriptor of {}", above.join(", "));
        }
        let _ = writeln!(text, "{indent}- key: {}", word(&one.key));
        if let Some(value) = &one.value {
            let _ = writeln!(text, "{indent}  value: {}", word(value));
        }
        match one.limits.as_slice() {
            [] => {}
            [limit] => {
                let _ = writeln!(text, "{indent}  rate_limit: {}", numbers(limit));
            }
            several => {
                let _ = writeln!(text, "{indent}  rate_limits:");
                for limit in several {
                    let _ = writeln!(text, "{indent}  - {}", numbers(limit));
                }
            }
        }
        if !one.below.0.is_empty() {
            let _ = writeln!(text, "{indent}  descriptors:");
            write_level(&one.below, above, text);
        }
        above.pop();
    }
}

fn numbers((seconds, max, name): &(u64, u32, Option<String>)) -> String {
    let name = name.as_ref().map(|name| format!("name: {}, ", word(name))).unwrap_or_default();
    let unit = Unit::ALL.into_iter().find(|unit| unit.window_us() == seconds * 1_000_000);
    let window = match unit {
        Some(unit) => format!("unit: {}", format!("{unit:?}").to_lowercase()),
        None => format!("window: {seconds}s"),
    };
    format!("{{{name}{window}, requests_per_unit: {max}}}")
}

/// A text as YAML reads it for sure: JSON's quotes are its own.
fn word(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn file_name(domain: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = domain.chars().map(safe).collect();
    format!("{}.yaml", name.trim_start_matches('.'))
}
