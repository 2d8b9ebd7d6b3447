//! YAML that holds no rules: manifests and the configurations of others, for commands that read them.
//!
//! What a word means is decided by whoever reads it, so scalars are texts here, as they were written.

use super::yaml::{self, BOUNDS, Kind, Node};

/// A value, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain {
    /// From 1.
    pub line: u32,
    /// What it is.
    pub value: Value,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A scalar, unescaped.
    Text(String),
    /// A list.
    List(Vec<Plain>),
    /// A map in the order of the file; names that are no texts are left out.
    Map(Vec<(String, Plain)>),
}

impl Plain {
    /// The field of a map.
    pub fn get(&self, name: &str) -> Option<&Plain> {
        match &self.value {
            Value::Map(pairs) => pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// A scalar's text.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The field of a map, when it is a scalar.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Plain::text)
    }

    /// The items of a list; none where it is no list.
    pub fn list(&self) -> &[Plain] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The items of a list in a field of a map; none where there is no such list.
    pub fn list_of(&self, name: &str) -> &[Plain] {
        self.get(name).map_or(&[], Plain::list)
    }

    /// Itself and all that is in it.
    pub fn all(&self) -> Vec<&Plain> {
        let below: Vec<&Plain> = match &self.value {
            Value::Text(_) => Vec::new(),
            Value::List(items) => items.iter().flat_map(Plain::all).collect(),
            Value::Map(pairs) => pairs.iter().flat_map(|(_, value)| value.all()).collect(),
        };
        std::iter::once(self).chain(below).collect()
    }
}

/// The documents of a text; empty ones are left out.
///
/// # Errors
/// What is no YAML, in words that begin with the line.
pub fn documents(text: &str) -> Result<Vec<Plain>, String> {
    let mut documents = Vec::new();
    let (mut first, mut lines) = (0, Vec::new());
    let mut end = |first: usize, lines: &[&str]| -> Result<(), String> {
        let document = yaml::read(&lines.join("\n"), BOUNDS)
            .map_err(|broken| format!("line {}: {}", first + broken.line as usize, broken.message))?;
        documents.extend(document.root.map(|root| plain(root, u32::try_from(first).unwrap_or(u32::MAX))));
        Ok(())
    };
    for (index, line) in text.lines().enumerate() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            end(first, &lines)?;
            (first, lines) = (index + 1, Vec::new());
        } else {
            lines.push(line);
        }
    }
    end(first, &lines)?;
    Ok(documents)
}

fn plain(node: Node, lines_before: u32) -> Plain {
    let value = match node.kind {
        Kind::Scalar { text, .. } => Value::Text(text.into()),
        Kind::Sequence(items) => {
            Value::List(items.into_iter().map(|item| plain(item, lines_before)).collect())
        }
        Kind::Mapping(pairs) => Value::Map(
            pairs
                .into_iter()
                .filter_map(|(key, value)| Some((key.scalar()?.to_owned(), plain(value, lines_before))))
                .collect(),
        ),
    };
    Plain { line: node.line + lines_before, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_documents_are_read_each_with_its_own_lines() {
        let read = documents("---\na: 1\n---\n# nothing\n---\nb:\n- {c: \"yes\"}\n- 010\n").unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].line, read[0].text_of("a")), (2, Some("1")));
        let items = read[1].list_of("b");
        assert_eq!((items[0].line, items[0].text_of("c"), items[1].text()), (7, Some("yes"), Some("010")));
        assert_eq!(read[1].all().len(), 5);
    }

    #[test]
    fn what_is_no_yaml_is_told_with_its_line() {
        let why = documents("a: 1\n---\nb: [\n").unwrap_err();
        assert!(why.starts_with("line 3") || why.starts_with("line 4"), "{why}");
    }
}
