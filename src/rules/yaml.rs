//! YAML as a tree that remembers where everything stands and how it was written.
//!
//! Two things decide how rule files must be read, and together they rule out deserializing into structs:
//!
//! - **All mistakes at once, with their places.** A deserializer stops at the first one.
//! - **The words mean what the reference takes them for**, and that depends on the field: an unquoted `010` is the text
//!   `010` as a value and the number 8 as `requests_per_unit`; `yes` is a text as a value and true as `shadow_mode`; a
//!   quoted `"5"` is no number. serde-saphyr, like other deserializers, no longer knows whether a scalar was quoted.
//!
//! So scalars stay texts here, with a mark whether they are plain, and `scalar` says what a plain one reads as.
//!
//! Aliases are copied where they stand, merge keys (`<<`) and repeated names resolved (see `repeats`), so whoever reads the
//! tree sees none of them. Copies
//! count as nodes: a few lines of aliases to aliases could otherwise become more nodes than there is memory. Files come
//! from people who may change the rules anyway, so [`FILE_MAX`], [`NODES_MAX`] and [`DEPTH_MAX`] guard against accidents,
//! not attackers.

mod repeats;

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

pub(super) use repeats::{Repeat, Why};

/// The largest rule file, in bytes: about half a million rules.
pub const FILE_MAX: usize = 64 << 20;

/// The most nodes of a file, aliases copied: about as many as [`FILE_MAX`] bytes of rules have; some 500 MB.
pub const NODES_MAX: usize = 8_000_000;

/// The deepest nesting. A descriptor takes two levels (a list, a mapping), and a request has 64 entries at most.
pub const DEPTH_MAX: usize = 160;

/// One value, with its place.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// From 1.
    pub(super) line: u32,
    /// In characters, from 1.
    pub(super) column: u32,
    /// In characters, on its first line.
    pub(super) length: u32,
    /// What it is.
    pub(super) kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// A text; `plain` when it was neither quoted nor a block nor tagged `!!str`.
    Scalar {
        /// Escapes and folds are undone.
        text: Box<str>,
        /// Whether it may read as something else than a text.
        plain: bool,
    },
    /// A list.
    Sequence(Vec<Node>),
    /// A map, in the order of the file; names may repeat.
    Mapping(Vec<(Node, Node)>),
}

/// The first document of a file.
#[derive(Debug)]
pub(super) struct Document {
    /// `None` where the file holds nothing but comments.
    pub(super) root: Option<Node>,
    /// Where a second document begins, if there is one. It is not read, and need not be YAML.
    pub(super) second: Option<(u32, u32)>,
    /// Names that stand twice in one map, in the order in which the maps end.
    pub(super) repeats: Vec<Repeat>,
}

/// Why a file is no YAML, or too much of it.
#[derive(Debug)]
pub(super) struct Broken {
    /// From 1.
    pub(super) line: u32,
    /// In characters, from 1.
    pub(super) column: u32,
    /// In words.
    pub(super) message: String,
    /// How to mend it.
    pub(super) help: &'static str,
}

/// How much of a file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) nodes: usize,
    pub(super) depth: usize,
}

/// The bounds that hold outside tests.
pub(super) const BOUNDS: Bounds = Bounds { nodes: NODES_MAX, depth: DEPTH_MAX };

/// Reads the first document.
pub(super) fn read(text: &str, bounds: Bounds) -> Result<Document, Broken> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match read_as_it_is(text, bounds) {
        // The reference takes a tab after a colon, our parser does not before letters.
        Err(broken) if broken.message.contains("':' must be followed by") => {
            read_as_it_is(&tabs_after_colons_to_spaces(text), bounds)
        }
        read => read,
    }
}

/// Changes no place, and nothing on a line where a quote or a comment begins before.
fn tabs_after_colons_to_spaces(text: &str) -> String {
    let mut before = '\n';
    let mut in_text = false;
    let mend = |c: char| {
        in_text = match c {
            '\n' => false,
            '"' | '\'' | '#' => true,
            _ => in_text,
        };
        // What was mended does not count as before, so that the next of several tabs is mended too.
        let mended = if c == '\t' && before == ':' && !in_text { ' ' } else { c };
        if mended == c {
            before = c;
        }
        mended
    };
    text.chars().map(mend).collect()
}

fn read_as_it_is(text: &str, bounds: Bounds) -> Result<Document, Broken> {
    let mut tree =
        Tree { root: None, open: Vec::new(), anchors: HashMap::new(), repeats: Vec::new(), nodes: 0, bounds };
    let mut documents = 0;
    let mut ended = false;
    let mut second = None;
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) if ended => {
                let broken = Broken::from_scan(&error);
                second = second.or(Some((broken.line, broken.column)));
                break;
            }
            Err(error) => return Err(Broken::from_scan(&error)),
        };
        match event {
            Event::DocumentStart(_) => documents += 1,
            Event::DocumentEnd => ended = true,
            // An empty document is what a last `---` leaves behind.
            Event::Scalar(text, ScalarStyle::Plain, ..) if documents > 1 && text.is_empty() => {}
            Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) if documents > 1 => {
                second = second.or(Some(place(&span)));
            }
            event if documents == 1 => tree.take(event, &span)?,
            _ => {}
        }
    }
    Ok(Document { root: tree.root, second, repeats: tree.repeats })
}

/// The `n`-th line of a text, from 1, by YAML's line breaks. Empty beyond the end.
pub(super) fn line(text: &str, n: u32) -> &str {
    let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
    for _ in 1..n {
        let Some(at) = rest.find(['\n', '\r']) else { return "" };
        let wide = rest[at..].starts_with("\r\n");
        rest = &rest[at + 1 + usize::from(wide)..];
    }
    rest.split(['\n', '\r']).next().unwrap_or("")
}

impl Node {
    /// The text of a scalar.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// In words, for messages.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Scalar { .. } => "a text",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) => "a map",
        }
    }
}

/// The tree so far: finished nodes go into the innermost open one.
struct Tree {
    root: Option<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, (Node, usize)>,
    repeats: Vec<Repeat>,
    nodes: usize,
    bounds: Bounds,
}

/// A list or map that is not complete, and the key that waits for its value.
struct Open {
    node: Node,
    anchor: usize,
    key: Option<Node>,
    /// How many nodes there were before it.
    before: usize,
}

impl Tree {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), Broken> {
        let (line, column) = place(span);
        let broken = |message: String, help| Broken { line, column, message, help };
        let node = |kind| Node { line, column, length: length(span), kind };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let text_tag = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                let plain = style == ScalarStyle::Plain && !text_tag;
                let node = node(Kind::Scalar { text: text.into(), plain });
                self.count(1, &node)?;
                self.add(node, anchor, 1)
            }
            Event::Alias(anchor) => {
                let Some((node, nodes)) = self.anchors.get(&anchor).cloned() else {
                    return Err(broken(
                        "an alias stands within its own anchor".into(),
                        "write out what it points to",
                    ));
                };
                self.count(
                    nodes,
                    &Node { line, column, length: length(span), kind: Kind::Sequence(vec![]) },
                )?;
                self.add(node, 0, nodes)
            }
            Event::SequenceStart(anchor, _) => self.open(node(Kind::Sequence(Vec::new())), anchor),
            Event::MappingStart(anchor, _) => self.open(node(Kind::Mapping(Vec::new())), anchor),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(mut open) = self.open.pop() else { return Ok(()) };
                repeats::settle(&mut open.node, &mut self.repeats)?;
                let nodes = self.nodes - open.before;
                self.add(open.node, open.anchor, nodes)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, node: Node, anchor: usize) -> Result<(), Broken> {
        if self.open.len() == self.bounds.depth {
            let message = format!("nested deeper than {} levels", self.bounds.depth);
            return Err(Broken {
                line: node.line,
                column: node.column,
                message,
                help: "no rule needs that much",
            });
        }
        let before = self.nodes;
        self.count(1, &node)?;
        self.open.push(Open { node, anchor, key: None, before });
        Ok(())
    }

    fn count(&mut self, nodes: usize, at: &Node) -> Result<(), Broken> {
        self.nodes += nodes;
        if self.nodes <= self.bounds.nodes {
            return Ok(());
        }
        let message = format!("more than {} values, aliases counted where they stand", self.bounds.nodes);
        Err(Broken { line: at.line, column: at.column, message, help: "split the file" })
    }

    fn add(&mut self, node: Node, anchor: usize, nodes: usize) -> Result<(), Broken> {
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), nodes));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.kind {
            Kind::Sequence(items) => items.push(node),
            Kind::Mapping(pairs) => match open.key.take() {
                None => open.key = Some(node),
                Some(key) => pairs.push((key, node)),
            },
            Kind::Scalar { .. } => unreachable!("only lists and maps are opened"),
        }
        Ok(())
    }
}

impl Broken {
    fn from_scan(error: &ScanError) -> Self {
        let marker = error.marker();
        let help = match error.info() {
            info if info.contains("tab") => "indent with spaces",
            info if info.contains("mapping values") => {
                "look at the indentation, and quote texts that hold `: `"
            }
            info if info.contains("unknown anchor") => "name it with `&` before it is used with `*`",
            info if info.contains("flow") => "close what `{` and `[` open",
            info if info.contains("scalar") => {
                "look for a quote that is not closed, and quote texts with odd characters"
            }
            _ => "look at the indentation here and above",
        };
        Self {
            line: number(marker.line()).max(1),
            column: number(marker.col() + 1),
            message: format!("this is no YAML: {}", error.info()),
            help,
        }
    }
}

fn place(span: &Span) -> (u32, u32) {
    (number(span.start.line()), number(span.start.col() + 1))
}

/// A node that goes on over the end of its line is underlined to there.
fn length(span: &Span) -> u32 {
    if span.end.line() == span.start.line() { number(span.len()).max(1) } else { u32::MAX }
}

/// Files are bounded far below 2^32 lines and columns.
fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(text: &str, nodes: usize, depth: usize) -> bool {
        read(text, Bounds { nodes, depth }).is_ok()
    }

    #[test]
    fn bounds_hold_on_both_sides_of_their_edges() {
        assert!(fits("[[[a]]]", 4, 3) && !fits("[[[a]]]", 4, 2) && !fits("[[[a]]]", 3, 3));
        // Six nodes as written (the map, two names, the list and its two items), and the list again by the alias.
        let aliased = "{a: &x [1, 2], b: *x}";
        assert!(fits(aliased, 9, 9) && !fits(aliased, 8, 9));
    }

    #[test]
    fn aliases_of_aliases_do_not_fill_the_memory() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..100 {
            let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
            text += &format!("a{n}: &a{n} [{aliases}]\n");
        }
        let broken = read(&text, Bounds { nodes: 100_000, depth: 9 }).unwrap_err();
        assert_eq!((broken.line, broken.column > 1), (5, true), "{}", broken.message);
    }

    fn shown(node: &Node) -> String {
        let pair = |(key, value): &(Node, Node)| {
            let value = value.scalar().map_or_else(|| format!("{{{}}}", shown(value)), str::to_owned);
            format!("{}{value}", key.scalar().unwrap())
        };
        let Kind::Mapping(pairs) = &node.kind else { panic!("a map") };
        pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn of_equal_names_the_later_one_counts_and_of_several_merged_maps_the_first() {
        let anchors = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\n";
        for (map, wanted, doubts) in [
            ("{<<: [*a, *b], x: 3}", "y1 z2 x3", &[][..]),
            ("{<<: *b}", "y2 z2", &[]),
            ("{<<: *a, <<: *b}", "x1 y2 z2", &[]),
            ("{x: 3, <<: *a}", "x1 y1", &[Why::Overridden]),
            ("{x: 1, <<: *a}", "x1 y1", &[]),
            ("{x: 3, <<: *a, x: 4}", "x4 y1", &[Why::Overridden]),
            ("{x: 3, y: 1, x: 4}", "x4 y1", &[Why::Twice]),
            ("{rate_limit: {u: 1, n: 1}, rate_limit: {n: 2}}", "rate_limit{n2 u1}", &[Why::Joined]),
            ("{rate_limit: {u: 1, n: 1}, rate_limit: ~}", "rate_limit~", &[Why::Twice]),
        ] {
            let document = read(&format!("{anchors}c: {map}"), BOUNDS).unwrap();
            let Some(Node { kind: Kind::Mapping(pairs), .. }) = document.root else { panic!("a map") };
            let mut words: Vec<String> = shown(&pairs[2].1).split(' ').map(str::to_owned).collect();
            let mut wanted: Vec<&str> = wanted.split(' ').collect();
            if !map.contains("rate_limit") {
                words.sort();
                wanted.sort_unstable();
            }
            let told: Vec<Why> = document.repeats.iter().map(|repeat| repeat.why).collect();
            assert_eq!((words.join(" "), &told[..]), (wanted.join(" "), doubts), "{map}");
        }
    }

    #[test]
    fn a_second_document_is_not_read_and_need_not_be_yaml() {
        for (text, second) in [
            ("a: 1", None),
            ("---\na: 1\n---\n", None),
            ("a: 1\n---\nb: 1", Some((3, 1))),
            ("a: 1\n---\n{b: [", Some((3, 1))),
            ("a: 1\n...\n# end\n", None),
        ] {
            let document = read(text, BOUNDS).unwrap();
            assert_eq!(
                (shown(&document.root.unwrap()), document.second),
                ("a1".to_owned(), second),
                "{text:?}"
            );
        }
        assert!(read("a: [\n---\nb: 1", BOUNDS).is_err());
    }

    #[test]
    fn places_count_lines_and_characters_as_editors_do() {
        for (text, line, column) in [
            ("\u{feff}a: [b, c]", 1, 8),
            ("a:\r\n- é: x\r\n  ü: [b, c]", 3, 10),
            ("# x\n\n\na: {b: {c: [d, e]}}", 4, 16),
        ] {
            let root = read(text, BOUNDS).unwrap().root.unwrap();
            let mut last = &root;
            loop {
                last = match &last.kind {
                    Kind::Scalar { .. } => break,
                    Kind::Sequence(items) => items.last().unwrap(),
                    Kind::Mapping(pairs) => &pairs.last().unwrap().1,
                };
            }
            assert_eq!((last.line, last.column, last.length), (line, column, 1), "{text:?}");
            assert!(super::line(text, line).ends_with(']') || text.ends_with('}'), "{text:?}");
        }
    }

    #[test]
    fn quotes_blocks_and_tags_make_texts() {
        let text = "[5, '5', \"5\", !!str 5, !!int 5]";
        let Some(Node { kind: Kind::Sequence(items), .. }) = read(text, BOUNDS).unwrap().root else {
            panic!("a list")
        };
        let plain = |node: &Node| matches!(node.kind, Kind::Scalar { plain: true, .. });
        assert_eq!(items.iter().map(plain).collect::<Vec<_>>(), [true, false, false, false, true]);
    }
}
