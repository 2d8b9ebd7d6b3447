//! What a server says to a call as a whole.

use super::{
    error,
    node::NodeError,
    resp::{Bounds, Frame, Token},
};
use crate::store::{StoreError, script};

/// Why a call has no answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// The server answered with an error, for all requests of the call. Nothing was done.
    Refused {
        /// The server's words, its code first.
        text: String,
        error: StoreError,
    },
    /// It is no answer of our script. What was done nobody knows.
    Garbage(StoreError),
}

impl Whole {
    /// Of an error reply.
    pub(super) fn of_text(shard: &str, text: &str) -> Self {
        Self::Refused { text: text.to_owned(), error: error::from_reply(shard, text) }
    }

    /// What a caller is told. Only who was `alone` in his call has to do with where its keys are.
    pub(super) fn to_error(&self, alone: bool) -> NodeError {
        match self {
            // Of one slot, but some have left; or of several slots, where they have to be declared.
            Self::Refused { text, .. }
                if alone && ["TRYAGAIN", "CROSSSLOT"].iter().any(|code| text.starts_with(code)) =>
            {
                NodeError::NotHere
            }
            Self::Refused { text, error } if alone => redirect(text).unwrap_or_else(|| error.clone().into()),
            Self::Refused { error, .. } | Self::Garbage(error) => error.clone().into(),
        }
    }
}

/// `MOVED 3999 host:port` or `ASK 3999 host:port`.
fn redirect(text: &str) -> Option<NodeError> {
    let mut words = text.split_whitespace();
    let (code, slot, to) = (words.next()?, words.next()?.parse().ok()?, words.next()?.to_owned());
    match code {
        "MOVED" => Some(NodeError::Moved { slot, to }),
        "ASK" => Some(NodeError::Ask { slot, to }),
        _ => None,
    }
}

/// What the reply to a call may take: what the script says to it, or an error.
pub(super) fn bounds(call: &script::Call) -> Bounds {
    Bounds { bytes: Bounds::SHORT.bytes + call.reply_max(), ..Bounds::SHORT }
}

/// Reads the reply to a call of the script. `answers` are `None` when they are none that the script gives to this call.
pub(super) fn read<T>(
    shard: &str,
    reply: Frame<'_>,
    answers: impl FnOnce(script::Reply<'_>) -> Option<T>,
) -> Result<T, Whole> {
    if let Some(text) = reply.error() {
        return Err(Whole::of_text(shard, &text));
    }
    form(reply).and_then(answers).ok_or_else(|| {
        let why = "it answered the script in a form that is not the script's".to_owned();
        Whole::Garbage(StoreError::Corrupt { shard: shard.to_owned(), why })
    })
}

/// Whether the server does not know the script (any more). Then nothing was done.
pub(super) fn is_noscript(reply: Frame<'_>) -> bool {
    reply.error().is_some_and(|text| text.starts_with("NOSCRIPT"))
}

fn form(reply: Frame<'_>) -> Option<script::Reply<'_>> {
    let mut tokens = reply.tokens();
    match (tokens.next()?, tokens.next()?, tokens.next()?, tokens.next()?) {
        (Token::List(3), Token::Number(now), Token::Text(fitted), Token::Text(held)) => {
            Some(script::Reply { now, fitted, held })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_told_to_who_was_alone_only() {
        let moved = Whole::of_text("h:1", "MOVED 3999 10.0.0.2:6379");
        let to = "10.0.0.2:6379".to_owned();
        assert_eq!(moved.to_error(true), NodeError::Moved { slot: 3999, to: to.clone() });
        assert!(matches!(moved.to_error(false), NodeError::Store(StoreError::Refused { .. })));
        assert_eq!(
            Whole::of_text("h:1", "ASK 1 10.0.0.2:6379").to_error(true),
            NodeError::Ask { slot: 1, to }
        );
        let again = Whole::of_text("h:1", "TRYAGAIN Multiple keys request during rehashing of slot");
        assert_eq!(again.to_error(true), NodeError::NotHere);
        let crossing = Whole::of_text("h:1", "CROSSSLOT Keys in request don't hash to the same slot");
        assert_eq!(crossing.to_error(true), NodeError::NotHere);
        for odd in ["MOVED", "MOVED x y", "MOVED 1", "ASK 99999 h:1"] {
            assert!(matches!(Whole::of_text("h:1", odd).to_error(true), NodeError::Store(_)), "{odd}");
        }
    }
}
