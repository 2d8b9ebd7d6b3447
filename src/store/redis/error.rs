//! What went wrong, in the store's four words. One table for what Redis says, one for what happens to a connection.

use std::{borrow::Cow, io};

use super::wire::Lost;
use crate::{settings::Secret, store::StoreError};

/// Longest part of a server's error that is repeated, in characters: an error may quote a key, and keys come from clients.
const QUOTE_MAX: usize = 300;

/// What an error reply means. `text` is the whole reply, its code first.
pub(super) fn from_reply(shard: &str, text: &str) -> StoreError {
    let shard = shard.to_owned();
    let why = clipped(text);
    match code(text) {
        // Our script's own word, and the server's for the same: the key holds another type.
        "CORRUPT" | "WRONGTYPE" => StoreError::Corrupt { shard, why },
        // Before Redis 7 the code of an error inside a script stands behind the script's position.
        _ if ["CORRUPT ", "WRONGTYPE "].iter().any(|code| text.contains(code)) => {
            StoreError::Corrupt { shard, why }
        }
        "MOVED" | "ASK" => {
            let why = format!("it is a node of a cluster, which REDIS_TYPE=single cannot use ({why})");
            StoreError::Refused { shard, why }
        }
        // NOAUTH WRONGPASS NOPERM OOM READONLY LOADING MISCONF BUSY MASTERDOWN NOREPLICAS ERR: its own words say it.
        _ => StoreError::Refused { shard, why },
    }
}

/// Whether an error reply says that the server is not, or no longer, what it was taken for.
pub(super) fn is_sign_of_change(text: &str) -> bool {
    // Before Redis 7 the code of an error inside a script stands behind the script's position.
    ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK ", "the cluster is down"]
        .iter()
        .any(|sign| text.contains(sign))
}

/// What the end of a connection means.
pub(super) fn from_lost(shard: &str, lost: &Lost) -> StoreError {
    let shard = shard.to_owned();
    match lost {
        Lost::Late(after) => StoreError::Timeout { shard, after: *after },
        // Bytes that are no reply at all.
        Lost::Malformed(why) => {
            StoreError::Corrupt { shard, why: format!("it does not speak as a Redis does: {why}") }
        }
        Lost::Other(why) => StoreError::Corrupt { shard, why: (*why).to_owned() },
        Lost::Closed => StoreError::Unavailable { shard, why: "the connection was closed".to_owned() },
        Lost::Io(error) => StoreError::Unavailable { shard, why: in_words(error) },
    }
}

/// The same text without a password: whoever stands at the other end may say anything that it was told.
pub(super) fn without<'t>(secret: Option<&Secret>, text: &'t str) -> Cow<'t, str> {
    match secret.map(Secret::expose) {
        Some(secret) if !secret.is_empty() && text.contains(secret) => {
            text.replace(secret, "(hidden)").into()
        }
        _ => text.into(),
    }
}

/// Redis' error codes are its first word, in capitals.
fn code(text: &str) -> &str {
    text.split([' ', '\r', '\n']).next().unwrap_or("")
}

/// What TLS libraries call it, and what people can do about it.
const TLS_HINTS: [(&str, &str); 6] = [
    ("UnknownIssuer", "its certificate is signed by nobody we trust: see REDIS_TLS_CACERT"),
    ("BadSignature", "its certificate is signed by another key than our authority's: see REDIS_TLS_CACERT"),
    ("NotValidForName", "its certificate is for another name: see REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
    ("InvalidContentType", "it seems to speak no TLS: see REDIS_TLS"),
    ("UnknownCA", "it does not trust our certificate: see REDIS_TLS_CLIENT_CERT"),
    ("CertificateRequired", "it wants a certificate of ours: see REDIS_TLS_CLIENT_CERT"),
];

/// With the setting to look at, where it is about TLS.
fn in_words(error: &io::Error) -> String {
    let message = error.to_string();
    let details = error.get_ref().map_or(String::new(), |inner| format!("{inner:?}"));
    match TLS_HINTS.iter().find(|(word, _)| details.contains(word)) {
        Some((_, hint)) => format!("{hint} ({})", clipped(&message)),
        // `Connection refused (os error 111)`
        None => clipped(message.split_once(" (os error").map_or(message.as_str(), |(words, _)| words)),
    }
}

/// What a server puts before the words that it did not understand: of AUTH these are the password.
const OUR_WORDS: &str = ", with args beginning with";

/// On one line, not without end, and without what we have said ourselves.
pub(super) fn clipped(text: &str) -> String {
    let text = text.split_once(OUR_WORDS).map_or(text, |(before, _)| before);
    let mut line: String =
        text.chars().take(QUOTE_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(QUOTE_MAX).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_word_of_redis_has_its_meaning() {
        for text in [
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOAUTH Authentication required.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica. script: 12, on @user_script:3.",
            "LOADING Redis is loading the dataset in memory",
            "MISCONF Redis is configured to save RDB snapshots",
            "BUSY Redis is busy running a script.",
            "ERR Error running script (call to f_12): @user_script:3: -READONLY You can't write",
        ] {
            let StoreError::Refused { shard, why } = from_reply("h:1", text) else { panic!("{text}") };
            assert_eq!((shard.as_str(), why.as_str()), ("h:1", text));
        }
        for text in [
            "CORRUPT tg:a:b holds x",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Error running script (call to f_12): @user_script:3: -WRONGTYPE Operation against",
        ] {
            assert!(matches!(from_reply("h:1", text), StoreError::Corrupt { .. }), "{text}");
        }
        let moved = from_reply("h:1", "MOVED 1 10.0.0.1:6379").to_string();
        assert!(moved.contains("REDIS_TYPE=single"), "{moved}");
    }

    #[test]
    fn a_server_that_knows_no_auth_repeats_the_password_and_we_do_not() {
        for text in [
            "ERR unknown command 'AUTH', with args beginning with: 'ann' 'hunter2' ",
            "ERR unknown command `AUTH`, with args beginning with: `hunter2`, ",
        ] {
            let error = from_reply("h:1", text).to_string();
            assert!(error.contains("unknown command") && !error.contains("hunter2"), "{error}");
        }
        // In the words of who is no Redis.
        let secret = Secret::new("hunter2");
        let odd = "ERR what is AUTH hunter2?";
        assert_eq!(without(Some(&secret), odd), "ERR what is AUTH (hidden)?");
        assert_eq!(without(Some(&Secret::new("")), odd), odd);
    }

    #[test]
    fn a_lost_connection_reads_well() {
        let words = |error: io::Error| from_lost("h:1", &Lost::Io(error)).to_string();
        assert_eq!(
            words(io::Error::from_raw_os_error(111)),
            "the store h:1 cannot be reached: Connection refused"
        );
        assert_eq!(
            words(io::Error::other("failed to lookup address information: Name or service not known")),
            "the store h:1 cannot be reached: failed to lookup address information: Name or service not known"
        );
        let long = Lost::Io(io::Error::other("é\n".repeat(1000)));
        let StoreError::Unavailable { why, .. } = from_lost("h:1", &long) else { panic!("{long:?}") };
        assert!(why.chars().count() == QUOTE_MAX + 1 && !why.contains('\n'));
        let late = Lost::Late(Duration::from_millis(5));
        assert_eq!(from_lost("h:1", &late).to_string(), "the store h:1 gave no answer within 5 ms");
    }
}
