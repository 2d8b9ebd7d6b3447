//! Reading maps by their fields, and scalars by what their field wants.
//!
//! A [`Reader`] belongs to one file. It never stops at a mistake: it notes it and goes on with a harmless value, since
//! rules with any mistake are thrown away whole. A [`Grammar`] is the list of fields that a map may have; the JSON Schema
//! is tested against the same lists.

use std::sync::Arc;

use super::{
    Dialect,
    mistake::{Level, Mistake, Mistakes, quote},
    scalar::{self, Reads},
    words::{list_of, nearest},
    yaml::{self, Kind, Node, Repeat, Why},
};

/// The fields of one kind of map.
#[derive(Debug)]
pub(super) struct Grammar {
    /// Whose fields they are, for messages: `a descriptor`.
    pub(super) of: &'static str,
    /// What it may have.
    pub(super) known: &'static [&'static str],
    /// What it will have one day: refused by name, never ignored.
    pub(super) later: &'static [&'static str],
    /// Whether further names are the user's own.
    pub(super) open: bool,
}

/// The fields of the reference that its own reader passes over where they mean nothing. Refusing them would refuse
/// rule files that are in use (`config-known-keys-in-the-wrong-place`), so they are warned of.
const MISPLACED: [&str; 16] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "metadata",
];

/// A file in the making.
pub(super) struct Reader<'f> {
    /// Its name, as in messages.
    pub(super) file: Arc<str>,
    /// What words mean.
    pub(super) dialect: Dialect,
    text: &'f str,
    mistakes: &'f mut Mistakes,
    warnings: &'f mut Mistakes,
}

/// A map, sorted into its known fields and others.
pub(super) struct Fields<'n> {
    /// The map itself.
    pub(super) at: &'n Node,
    known: Vec<Field<'n>>,
    /// What the grammar leaves to the user.
    pub(super) others: Vec<Named<'n>>,
}

#[derive(Clone, Copy)]
struct Field<'n> {
    name: &'static str,
    key: &'n Node,
    value: &'n Node,
}

/// A name of the user's own, and what it stands for.
#[derive(Clone, Copy)]
pub(super) struct Named<'n> {
    /// As written.
    pub(super) name: &'n str,
    /// Where the name stands.
    pub(super) key: &'n Node,
    /// What it stands for.
    pub(super) value: &'n Node,
}

impl<'n> Fields<'n> {
    /// The value of a field, null or not.
    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        self.known.iter().find(|field| field.name == name).map(|field| field.value)
    }

    /// Where a field's name stands.
    pub(super) fn key(&self, name: &str) -> Option<&'n Node> {
        self.known.iter().find(|field| field.name == name).map(|field| field.key)
    }
}

// === telling ===

impl<'f> Reader<'f> {
    /// A reader of `text`, whose name is `file`.
    pub(super) fn new(
        file: &Arc<str>,
        text: &'f str,
        dialect: Dialect,
        mistakes: &'f mut Mistakes,
        warnings: &'f mut Mistakes,
    ) -> Self {
        Self { file: file.clone(), dialect, text, mistakes, warnings }
    }

    /// Notes a mistake at a node, and how to mend it.
    pub(super) fn mistake(&mut self, at: &Node, message: impl Into<String>, help: impl Into<String>) {
        self.tell(Level::Error, at, message.into(), None, help.into());
    }

    /// Notes something that stands twice; `first` is where it stood before, and in which file.
    pub(super) fn twice(&mut self, at: &Node, message: impl Into<String>, first: (&str, u32), help: &str) {
        let note = format!("the first stands in {}:{}", first.0, first.1);
        self.tell(Level::Error, at, message.into(), Some(note), help.into());
    }

    /// Notes a name that stands twice in one map.
    pub(super) fn repeated(&mut self, repeat: &Repeat, level: Level) {
        let name = quote(repeat.at.scalar().unwrap_or_default());
        let other = format!("{}:{}", self.file, repeat.other);
        let (message, note, help) = match repeat.why {
            _ if level == Level::Error && repeat.why != Why::Overridden => {
                let note = format!("the first stands in {other}");
                (format!("`{name}` stands twice in one map"), note, "keep one of them")
            }
            Why::Twice => {
                let message = format!("`{name}` stands twice in one map, and this one counts");
                (message, format!("the first, in {other}, is of no effect"), "keep one of them")
            }
            Why::Joined => {
                let message = format!("`{name}` stands twice in one map, and the two are read as one");
                let note = format!("the first, in {other}, counts for what is left out here");
                (message, note, "make one of them")
            }
            Why::Overridden => {
                let message = format!("`{name}` does not override what `<<` brings");
                let note =
                    format!("`<<` stands below it, in {other}, and of equal names the later one counts");
                (message, note, "move `<<` to the top of the map")
            }
        };
        self.tell(level, &repeat.at, message, Some(note), help.into());
    }

    /// Notes what is legal and perhaps not meant.
    pub(super) fn warn(&mut self, at: &Node, message: impl Into<String>, help: impl Into<String>) {
        self.tell(Level::Warning, at, message.into(), None, help.into());
    }

    /// A mistake about the file as a whole.
    pub(super) fn mistake_of_file(&mut self, message: impl Into<String>, help: &str) {
        self.mistakes.push(Mistake::of_file(&self.file, message).help(help));
    }

    /// For mistakes of another file that this one names, such as tenants.csv.
    pub(super) fn mistakes(&mut self) -> &mut Mistakes {
        self.mistakes
    }

    fn tell(&mut self, level: Level, at: &Node, message: String, note: Option<String>, help: String) {
        let list = if level == Level::Error { &mut self.mistakes } else { &mut self.warnings };
        list.push_with(|| {
            let line = yaml::line(self.text, at.line);
            let mistake = Mistake::of_file(&self.file, message).help(help);
            let mut mistake = mistake.at(at.line, at.column, at.length, line);
            (mistake.level, mistake.note) = (level, note);
            mistake
        });
    }
}

// === maps and lists ===

impl<'f> Reader<'f> {
    /// The fields of a map; `None`, and a mistake, where it is none.
    pub(super) fn fields<'n>(&mut self, node: &'n Node, grammar: &Grammar) -> Option<Fields<'n>> {
        let Kind::Mapping(pairs) = &node.kind else {
            let fields = list_of(grammar.known);
            self.mistake(
                node,
                format!("{} is a map, and this is {}", grammar.of, node.kind_name()),
                format!("its fields are {fields}"),
            );
            return None;
        };
        let mut fields = Fields { at: node, known: Vec::with_capacity(pairs.len()), others: Vec::new() };
        for (key, value) in pairs {
            let Some(name) = self.field_name(key) else { continue };
            if let Some(known) = grammar.known.iter().find(|known| **known == name) {
                fields.known.push(Field { name: known, key, value });
            } else if grammar.later.contains(&name) {
                self.mistake(
                    key,
                    format!("`{name}` is not available yet"),
                    "take it out; nothing that is written here is ignored silently",
                );
            } else if grammar.open {
                fields.others.push(Named { name, key, value });
            } else if MISPLACED.contains(&name) {
                let message = format!("`{name}` means nothing in {}, and is passed over", grammar.of);
                self.warn(key, message, home(name));
            } else {
                self.unknown(key, name, grammar);
            }
        }
        Some(fields)
    }

    /// A field that no such map has.
    pub(super) fn unknown(&mut self, key: &Node, name: &str, grammar: &Grammar) {
        let help = match nearest(name, grammar.known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the fields of {} are {}", grammar.of, list_of(grammar.known)),
        };
        self.mistake(key, format!("{} has no field `{}`", grammar.of, quote(name)), help);
    }

    /// The name of a field: a text, also by YAML's own reading (`config-key-that-is-a-boolean`).
    fn field_name<'n>(&mut self, key: &'n Node) -> Option<&'n str> {
        let Kind::Scalar { text, plain } = &key.kind else {
            let message = format!("the name of a field is a text, and this is {}", key.kind_name());
            self.mistake(key, message, "write `name: value`");
            return None;
        };
        let reads = match scalar::read(text) {
            Reads::Text => return Some(text),
            _ if !plain => return Some(text),
            Reads::Null => "nothing",
            Reads::Bool(_) => "a boolean",
            Reads::Whole(_) | Reads::Other(_) => "a number",
        };
        let message = format!("the name of a field is a text, and `{}` reads as {reads}", quote(text));
        self.mistake(key, message, "write the name of a field");
        None
    }

    /// A map whose names are the user's own, such as tenants.
    pub(super) fn names<'n>(&mut self, node: &'n Node, of: &str) -> Vec<Named<'n>> {
        let pairs = match &node.kind {
            Kind::Mapping(pairs) => pairs,
            _ if self.is_null(node) => return Vec::new(),
            _ => {
                let message = format!("`{of}` is a map of names, and this is {}", node.kind_name());
                self.mistake(
                    node,
                    message,
                    format!("write `{of}:` and under it `name: {{...}}`, a line for each"),
                );
                return Vec::new();
            }
        };
        let mut names = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            if self.is_null(key) || key.scalar().is_some_and(str::is_empty) {
                self.mistake(
                    key,
                    format!("a name of `{of}` is left open"),
                    "write a name, or quote the one that is meant",
                );
                continue;
            }
            names.extend(self.text(key, "a name").map(|name| Named { name, key, value }));
        }
        names
    }

    /// The items of a list; null is an empty one.
    pub(super) fn items<'n>(&mut self, node: &'n Node, of: &str) -> &'n [Node] {
        match &node.kind {
            Kind::Sequence(items) => items,
            _ if self.is_null(node) => &[],
            _ => {
                let message = format!("`{of}` is a list, and this is {}", node.kind_name());
                self.mistake(node, message, "begin each item with `- `");
                &[]
            }
        }
    }
}

// === scalars ===

impl<'f> Reader<'f> {
    /// Whether it was left open: `~`, `null` or nothing.
    pub(super) fn is_null(&self, node: &Node) -> bool {
        matches!(&node.kind, Kind::Scalar { text, plain: true } if scalar::read(text) == Reads::Null)
    }

    /// A text; `None` for null, and, with a mistake, for what is none.
    pub(super) fn text<'n>(&mut self, node: &'n Node, of: &str) -> Option<&'n str> {
        let Kind::Scalar { text, plain } = &node.kind else {
            let message = format!("{of} is one text, and this is {}", node.kind_name());
            self.mistake(node, message, "write one text; quote it where it holds `[`, `{` or `: `");
            return None;
        };
        match scalar::read(text) {
            _ if !plain => Some(text),
            Reads::Null => None,
            Reads::Other(_) => {
                let message = format!("{of} is a text, and an unquoted {} reads as a number", quote(text));
                self.mistake(node, message, format!("quote it: \"{}\"", quote(text)));
                None
            }
            Reads::Bool(_) | Reads::Whole(_) | Reads::Text => Some(text),
        }
    }

    /// A whole number from 0 to 2^32−1; null is 0, as in the reference (`config-numbers-of-other-bases`).
    pub(super) fn number(&mut self, node: &Node, of: &str) -> Option<u32> {
        let reads = match &node.kind {
            Kind::Scalar { text, plain } => Ok((scalar::read(text), *plain, text)),
            _ => Err(node.kind_name()),
        };
        let (what, help) = match reads {
            Ok((Reads::Null, true, _)) => return Some(0),
            Ok((Reads::Whole(n), true, _)) => match u32::try_from(n) {
                Ok(n) => return Some(n),
                Err(_) => (n.to_string(), format!("write a number up to {}; 0 blocks", u32::MAX)),
            },
            Ok((Reads::Whole(n), false, _)) => {
                ("a quoted text".to_owned(), format!("write {n}, without quotes"))
            }
            Ok((Reads::Other(n), true, text)) if n.fract() != 0.0 => {
                (text.to_string(), "for less than one in a unit write a longer `window`".to_owned())
            }
            Ok((Reads::Text, _, text)) if **text == *"unlimited" => {
                ("`unlimited`".to_owned(), "write `unlimited: true` instead".to_owned())
            }
            Ok((_, _, text)) => (format!("`{}`", quote(text)), format!("write a number up to {}", u32::MAX)),
            Err(kind) => (kind.to_owned(), format!("write a number up to {}", u32::MAX)),
        };
        self.mistake(node, format!("{of} is a whole number of 32 bits, and this is {what}"), help);
        None
    }

    /// A boolean; null is false.
    pub(super) fn flag(&mut self, node: &Node, of: &str) -> bool {
        let shown = match &node.kind {
            Kind::Scalar { text, plain: true } => match scalar::read(text) {
                Reads::Bool(flag) => return flag,
                Reads::Null => return false,
                _ => format!("`{}`", quote(text)),
            },
            Kind::Scalar { .. } => "a quoted text".into(),
            _ => node.kind_name().into(),
        };
        self.mistake(node, format!("{of} is true or false, and this is {shown}"), "write true or false");
        false
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, node: &Node, of: &str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.text(node, of)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let names: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        let help = match nearest(text, &names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it is one of {}", list_of(&names)),
        };
        self.mistake(node, format!("{of} knows no `{}`", quote(text)), help);
        None
    }
}

/// Where a field of the reference belongs.
fn home(name: &str) -> &'static str {
    match name {
        "domain" => "it belongs to the top of the file",
        "descriptors" => "it belongs to the top of the file, or beside `key`",
        "unit" | "requests_per_unit" | "unlimited" | "name" | "replaces" => "it belongs into `rate_limit`",
        _ => "it belongs to a descriptor, beside `key`",
    }
}
