//! Finding the end of a reply in what has arrived so far.

use std::fmt;

/// The most lists that may be open at once. `CLUSTER SLOTS` has four, one in the other.
pub(in crate::store::redis) const DEPTH_MAX: usize = 8;

/// The longest line of a text or an error, in bytes. Redis keeps its errors within some hundreds.
pub(in crate::store::redis) const LINE_MAX: usize = 16 * 1024;

/// The longest line of a number or a length, its ends included: a sign and 19 digits, and room to say what else it was.
const NUMBER_LINE_MAX: usize = 64;

/// What one reply may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Bounds {
    /// All of it, in bytes on the wire.
    pub(in crate::store::redis) bytes: usize,
    /// Of all its lists together.
    pub(in crate::store::redis) elements: usize,
}

impl Bounds {
    /// Of a reply that is a word, a number, an error, or a few of them.
    pub(in crate::store::redis) const SHORT: Self = Self { bytes: LINE_MAX + 1024, elements: 16 };

    /// Of what a server tells of itself and of others. `CLUSTER SHARDS` of 1,000 nodes is 300 KiB of 20,000 elements, and
    /// as much again where all slots were moved one by one.
    pub(in crate::store::redis) const TOLD: Self = Self { bytes: 4 << 20, elements: 1 << 17 };
}

/// Why bytes are no reply, or none that is waited for. Printable and short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Malformed {
    /// It begins with this.
    Kind(String),
    /// A number or a length that is none, with the sign that it stands behind.
    Number(String),
    /// A text of so many bytes, and how many would have been read.
    Text(u64, usize),
    /// A list of so many elements, and how many would have been read.
    List(u64, usize),
    /// Lists in lists.
    Depth,
    /// A line of more bytes than these.
    Line(usize),
    /// So many bytes, and it had not ended.
    Size(usize),
    /// No end of line where a text or a line ends.
    End,
    /// A reply that nobody has asked for.
    Unasked,
    /// Something that begins with what is not to be repeated.
    Unquoted,
}

impl Malformed {
    /// Without what came.
    pub(in crate::store::redis) fn unquoted(self) -> Self {
        match self {
            Self::Kind(_) | Self::Number(_) => Self::Unquoted,
            other => other,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(text) => write!(f, "a reply begins with {text}"),
            Self::Number(text) => write!(f, "{text} is no number and no length"),
            Self::Text(length, max) => write!(f, "it announced a text of {length} bytes, above {max}"),
            Self::List(length, max) => write!(f, "it announced a list of {length} elements, above {max}"),
            Self::Depth => write!(f, "lists are more than {DEPTH_MAX} deep in one another"),
            Self::Line(max) => write!(f, "a line has no end after {max} bytes"),
            Self::Size(max) => write!(f, "a reply has no end after {max} bytes"),
            Self::End => write!(f, "a text or a line does not end with CR LF"),
            Self::Unasked => write!(f, "it said something that nobody had asked for"),
            Self::Unquoted => {
                write!(f, "a reply is none (and is not shown, since it may repeat the password)")
            }
        }
    }
}

/// How far the reply was read that is arriving.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Scanner {
    /// Where the next element begins.
    at: usize,
    /// Up to where no end of a line was found.
    searched: usize,
    /// Where the text ends that is arriving, its CR LF included.
    text_end: Option<usize>,
    /// How many elements were announced.
    announced: usize,
    /// Of each open list, how many elements are to come.
    open: [usize; DEPTH_MAX],
    depth: usize,
}

impl Scanner {
    /// `bytes` are what has arrived from the beginning of the reply. `Some` is its length as soon as all of it is there; the
    /// scanner is then ready for the next one.
    ///
    /// # Errors
    /// When it is no reply, or one beyond the bounds; as soon as that can be told.
    pub(in crate::store::redis) fn scan(
        &mut self,
        bytes: &[u8],
        bounds: &Bounds,
    ) -> Result<Option<usize>, Malformed> {
        while let Some(end) = self.element(bytes, bounds)? {
            self.at = end;
            if self.is_last() {
                *self = Self::default();
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Where the element ends that begins at `self.at`; of a list that is not empty, its head.
    fn element(&mut self, bytes: &[u8], bounds: &Bounds) -> Result<Option<usize>, Malformed> {
        if let Some(end) = self.text_end {
            return self.text(bytes, end);
        }
        let Some(&kind) = bytes.get(self.at) else { return Ok(None) };
        let line_max = match kind {
            b'+' | b'-' => LINE_MAX,
            b':' | b'$' | b'*' => NUMBER_LINE_MAX,
            _ => return Err(Malformed::Kind(printable(&bytes[self.at..]))),
        };
        let Some(end) = self.line_end(bytes, line_max, bounds)? else { return Ok(None) };
        let line = &bytes[self.at + 1..end - 2];
        match kind {
            b':' => number(line).map(|_| Some(end)).ok_or_else(|| wrong_number(&bytes[self.at..end])),
            b'$' => match length(line).ok_or_else(|| wrong_number(&bytes[self.at..end]))? {
                None => Ok(Some(end)),
                Some(length) => self.text(bytes, text_end(end, length, bounds)?),
            },
            b'*' => {
                let length = length(line).ok_or_else(|| wrong_number(&bytes[self.at..end]))?;
                self.open(length.unwrap_or(0), bounds)?;
                Ok(Some(end))
            }
            _ => Ok(Some(end)),
        }
    }

    /// Behind the CR LF of the line that begins at `self.at`.
    fn line_end(&mut self, bytes: &[u8], max: usize, bounds: &Bounds) -> Result<Option<usize>, Malformed> {
        let from = self.searched.max(self.at);
        let end = bytes[from..].iter().position(|&byte| byte == b'\n').map(|i| from + i + 1);
        let length = end.unwrap_or(bytes.len()) - self.at;
        if length > max {
            return Err(Malformed::Line(max));
        }
        if self.at + length > bounds.bytes {
            return Err(Malformed::Size(bounds.bytes));
        }
        self.searched = bytes.len();
        let Some(end) = end else { return Ok(None) };
        self.searched = end;
        if end - self.at < 3 || bytes[end - 2] != b'\r' {
            return Err(Malformed::End);
        }
        Ok(Some(end))
    }

    fn open(&mut self, length: u64, bounds: &Bounds) -> Result<(), Malformed> {
        let room = bounds.elements - self.announced;
        let Some(elements) = usize::try_from(length).ok().filter(|elements| *elements <= room) else {
            return Err(Malformed::List(length, bounds.elements));
        };
        if elements > 0 {
            // One more for its head, which ends first.
            *self.open.get_mut(self.depth).ok_or(Malformed::Depth)? = elements + 1;
            self.depth += 1;
            self.announced += elements;
        }
        Ok(())
    }

    /// The end of a text, once all of it is there.
    fn text(&mut self, bytes: &[u8], end: usize) -> Result<Option<usize>, Malformed> {
        self.text_end = Some(end);
        match bytes.get(end - 2..end) {
            Some(b"\r\n") => {
                self.text_end = None;
                Ok(Some(end))
            }
            Some(_) => Err(Malformed::End),
            None => Ok(None),
        }
    }

    /// Counts what has just ended, and says whether the reply has ended with it.
    fn is_last(&mut self) -> bool {
        while let Some(depth) = self.depth.checked_sub(1) {
            self.open[depth] -= 1;
            if self.open[depth] > 0 {
                return false;
            }
            self.depth = depth;
        }
        true
    }
}

/// Where a text ends whose head ends at `head`.
fn text_end(head: usize, length: u64, bounds: &Bounds) -> Result<usize, Malformed> {
    let room = bounds.bytes.saturating_sub(head + 2);
    match usize::try_from(length) {
        Ok(length) if length <= room => Ok(head + length + 2),
        _ => Err(Malformed::Text(length, room)),
    }
}

/// A length; `Some(None)` for the one that says that there is nothing.
fn length(line: &[u8]) -> Option<Option<u64>> {
    match number(line)? {
        -1 => Some(None),
        length => u64::try_from(length).ok().map(Some),
    }
}

/// A number as Redis writes it.
pub(super) fn number(line: &[u8]) -> Option<i64> {
    let (digits, negative) = match line {
        [b'-', digits @ ..] => (digits, true),
        digits => (digits, false),
    };
    if digits.is_empty() {
        return None;
    }
    // Below zero, where there is one number more.
    let value = digits.iter().try_fold(0_i64, |value, &digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_sub(digit)
    })?;
    if negative { Some(value) } else { value.checked_neg() }
}

fn wrong_number(bytes: &[u8]) -> Malformed {
    Malformed::Number(printable(bytes))
}

/// How many bytes of nonsense are repeated.
const SHOWN_MAX: usize = 40;

/// In quotes and on one line.
fn printable(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == b'\r' || byte == b'\n').unwrap_or(bytes.len());
    format!("\"{}\"", bytes[..end.min(SHOWN_MAX)].escape_ascii())
}
