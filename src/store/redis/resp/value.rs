//! A reply as a tree, for those who ask seldom.

use super::Token;

/// A reply, or an element of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Value {
    /// A text or a list that is not there.
    Nothing,
    Number(i64),
    Text(Box<[u8]>),
    /// Its code first.
    Error(Box<str>),
    List(Vec<Value>),
}

impl Value {
    /// Of the elements of one well-formed reply. Lists in lists are kept on a stack of our own.
    pub(super) fn of<'b>(tokens: impl Iterator<Item = Token<'b>>) -> Self {
        // Of each open list, how many elements are to come.
        let mut open: Vec<(Vec<Self>, usize)> = Vec::new();
        for token in tokens {
            let mut ended = match token {
                Token::Nothing => Self::Nothing,
                Token::Number(number) => Self::Number(number),
                Token::Text(text) => Self::Text(text.into()),
                Token::Error(text) => Self::Error(String::from_utf8_lossy(text).into()),
                Token::List(0) => Self::List(Vec::new()),
                Token::List(length) => {
                    open.push((Vec::with_capacity(length), length));
                    continue;
                }
            };
            loop {
                let Some((list, to_come)) = open.last_mut() else { return ended };
                list.push(ended);
                *to_come -= 1;
                if *to_come > 0 {
                    break;
                }
                ended = Self::List(open.pop().map(|(list, _)| list).unwrap_or_default());
            }
        }
        Self::Nothing
    }

    /// The words of an error, where it is one.
    pub(in crate::store::redis) fn error(&self) -> Option<&str> {
        if let Self::Error(text) = self { Some(text) } else { None }
    }

    /// A text.
    pub(in crate::store::redis) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { std::str::from_utf8(text).ok() } else { None }
    }

    /// A number, also one that is written as a text.
    pub(in crate::store::redis) fn number(&self) -> Option<i64> {
        if let Self::Number(number) = self { Some(*number) } else { self.text()?.parse().ok() }
    }

    /// The elements of a list.
    pub(in crate::store::redis) fn list(&self) -> Option<&[Self]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }
}
