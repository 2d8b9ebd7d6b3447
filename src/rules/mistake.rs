//! Mistakes in rule files, told so that a person can mend them without looking anything up.
//!
//! Whoever edits rules is often in a hurry, and often not the one who wrote them. So a mistake says what is wrong, where
//! (file, line, column, and the line itself with the place underlined) and how to mend it; and all mistakes of all files
//! come at once, since a tool that tells one at a time costs a deployment for each.
//!
//! ```text
//! error: unknown field `ratelimit`
//!  --> team/limits.yaml:4:3
//!   |
//! 4 |   ratelimit: {unit: hour, requests_per_unit: 5}
//!   |   ^^^^^^^^^
//!   = help: did you mean `rate_limit`?
//! ```
//!
//! Lines come from files of any shape (a whole file as one line of JSON, terminal escapes, a million bad lines), so
//! the excerpt is cut to [`EXCERPT_MAX`] around the place, control characters are shown as `·`, and beyond
//! [`MISTAKES_MAX`] mistakes are only counted.

use std::{fmt, sync::Arc};

/// How many mistakes are kept, in all files together; the rest are counted. Nobody reads more at once.
pub const MISTAKES_MAX: usize = 100;

/// How many characters of a line are shown: a terminal's width.
pub const EXCERPT_MAX: usize = 110;

/// How many characters of a file's own text a message repeats.
pub(super) const QUOTE_MAX: usize = 60;

/// How grave it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The rules are refused.
    Error,
    /// Probably not meant; the rules are loaded.
    Warning,
    /// Worth knowing; the rules are loaded.
    Note,
}

/// Something wrong at one place of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// How grave it is.
    pub level: Level,
    /// The file, relative to the rule directory.
    pub file: Arc<str>,
    /// From 1; 0 when it is about the file as a whole.
    pub line: u32,
    /// In characters, from 1; 0 when it is about the line or the file as a whole.
    pub column: u32,
    /// What is wrong.
    pub message: String,
    /// What else belongs to it, such as where the first of two equal names stands.
    pub note: Option<String>,
    /// How to mend it.
    pub help: Option<String>,
    excerpt: Option<Excerpt>,
}

/// A line, cut and cleaned, and which of its characters are underlined.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    start: usize,
    length: usize,
}

/// All that is wrong with a set of files, in the order of files and lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mistakes {
    list: Vec<Mistake>,
    beyond: usize,
}

// === impl Mistake ===

impl Mistake {
    /// About a file as a whole.
    pub(super) fn of_file(file: &Arc<str>, message: impl Into<String>) -> Self {
        Self {
            level: Level::Error,
            file: file.clone(),
            line: 0,
            column: 0,
            message: message.into(),
            note: None,
            help: None,
            excerpt: None,
        }
    }

    /// Gives it a place: `length` characters from `column` of `line`, which reads `text`.
    pub(super) fn at(mut self, line: u32, column: u32, length: u32, text: &str) -> Self {
        (self.line, self.column) = (line, column);
        self.excerpt = Some(Excerpt::cut(text, column.saturating_sub(1) as usize, length as usize));
        self
    }

    /// Says how to mend it.
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        write!(f, "{level}: {}", self.message)?;
        // Numbers of lines stand in a gutter that is as wide as the number.
        let gutter = if self.line == 0 { 1 } else { self.line.to_string().len() };
        write!(f, "\n{:gutter$}--> {}", "", self.file.chars().map(harmless).collect::<String>())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{:gutter$} |\n{} |", "", self.line)?;
            if !excerpt.text.is_empty() {
                write!(f, " {}", excerpt.text)?;
            }
            if self.column > 0 {
                write!(f, "\n{:gutter$} | {:2$}", "", "", excerpt.start)?;
                write!(f, "{}", "^".repeat(excerpt.length))?;
            }
        }
        for (word, text) in [("note", &self.note), ("help", &self.help)] {
            if let Some(text) = text {
                write!(f, "\n{:gutter$} = {word}: {text}", "")?;
            }
        }
        Ok(())
    }
}

impl Excerpt {
    /// `start` counts characters from 0.
    fn cut(line: &str, start: usize, length: usize) -> Self {
        // Where the place is far out, a third of the width shows what stands before it.
        let skip =
            if start + length.min(EXCERPT_MAX / 2) < EXCERPT_MAX { 0 } else { start - EXCERPT_MAX / 3 };
        let mut rest = line.chars().skip(skip);
        let mut text = String::from(if skip > 0 { "... " } else { "" });
        let before = text.len();
        text.extend(rest.by_ref().take(EXCERPT_MAX).map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '·',
            c => c,
        }));
        let shown = text.chars().count();
        if rest.next().is_some() {
            text.push_str(" ...");
        }
        let start = start - skip + before;
        let text = text.trim_end().to_owned();
        Self { text, start, length: length.min(shown.saturating_sub(start)).max(1) }
    }
}

// === impl Mistakes ===

impl Mistakes {
    /// Adds one.
    pub(super) fn push(&mut self, mistake: Mistake) {
        self.push_with(|| mistake);
    }

    /// Adds one; beyond [`MISTAKES_MAX`] it is only counted, and not even made.
    pub(super) fn push_with(&mut self, mistake: impl FnOnce() -> Mistake) {
        if self.list.len() < MISTAKES_MAX {
            self.list.push(mistake());
        } else {
            self.beyond += 1;
        }
    }

    /// Adds those of another set behind its own.
    pub(super) fn append(&mut self, others: Self) {
        self.beyond += others.beyond;
        others.list.into_iter().for_each(|mistake| self.push(mistake));
    }

    /// Brings them into the order of files and lines.
    pub(super) fn sort(&mut self) {
        self.list.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    }

    /// Those that are kept, in the order of files and lines.
    pub fn iter(&self) -> std::slice::Iter<'_, Mistake> {
        self.list.iter()
    }

    /// How many there are, those that are only counted included.
    pub fn count(&self) -> usize {
        self.list.len() + self.beyond
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl<'a> IntoIterator for &'a Mistakes {
    type Item = &'a Mistake;
    type IntoIter = std::slice::Iter<'a, Mistake>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            mistake.fmt(f)?;
        }
        match self.beyond {
            0 => Ok(()),
            n => write!(f, "\n\nand {n} more"),
        }
    }
}

impl std::error::Error for Mistakes {}

/// A file's own text inside a message: cut, and without control characters.
pub(super) fn quote(text: &str) -> String {
    let mut quoted: String = text.chars().take(QUOTE_MAX).map(harmless).collect();
    if text.chars().nth(QUOTE_MAX).is_some() {
        quoted.push_str("...");
    }
    quoted
}

/// Terminals obey control characters, and texts and names of files come from whoever may write them.
fn harmless(c: char) -> char {
    if c.is_control() { '·' } else { c }
}
