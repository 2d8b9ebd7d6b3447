//! One well-formed reply where it lies, read without a copy.

use std::borrow::Cow;

use super::{Value, scan::number};

/// The bytes of one reply, which the scanner has passed.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::redis) struct Frame<'b>(&'b [u8]);

/// An element of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Token<'b> {
    /// Nothing: a text or a list that is not there.
    Nothing,
    Number(i64),
    Text(&'b [u8]),
    Error(&'b [u8]),
    /// So many elements follow that belong to it.
    List(usize),
}

impl<'b> Frame<'b> {
    /// `bytes` are one whole reply.
    pub(in crate::store::redis) fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Its elements in the order in which they stand.
    pub(in crate::store::redis) fn tokens(self) -> Tokens<'b> {
        Tokens(self.0)
    }

    /// The words of an error, where it is one.
    pub(in crate::store::redis) fn error(self) -> Option<Cow<'b, str>> {
        match self.tokens().next() {
            Some(Token::Error(text)) => Some(String::from_utf8_lossy(text)),
            _ => None,
        }
    }

    /// As a tree of its own.
    pub(in crate::store::redis) fn to_value(self) -> Value {
        Value::of(self.tokens())
    }
}

/// The elements of a reply.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Tokens<'b>(&'b [u8]);

impl<'b> Iterator for Tokens<'b> {
    type Item = Token<'b>;

    // What is no reply was refused before; here it only ends the reading.
    fn next(&mut self) -> Option<Token<'b>> {
        let end = self.0.iter().position(|&byte| byte == b'\n')?;
        let (line, rest) = self.0.split_at(end + 1);
        let (kind, line) = (line.first()?, line.get(1..line.len() - 2)?);
        self.0 = rest;
        Some(match kind {
            b'+' => Token::Text(line),
            b'-' => Token::Error(line),
            b':' => Token::Number(number(line)?),
            b'*' => usize::try_from(number(line)?).map_or(Token::Nothing, Token::List),
            b'$' => match usize::try_from(number(line)?) {
                Err(_) => Token::Nothing,
                Ok(length) => {
                    let (text, rest) = rest.split_at_checked(length)?;
                    self.0 = rest.get(2..)?;
                    Token::Text(text)
                }
            },
            _ => return None,
        })
    }
}
