//! What went wrong, in the store's four words. One table for what Redis says, one for what happens to a connection.

use std::time::Duration;

use fred::error::{Error, ErrorKind};

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

/// What an error of the client means. While it connects or loads a script it passes error replies on as such.
pub(super) fn from_client(shard: &str, error: &Error, waited: Duration) -> StoreError {
    let text = error.details();
    match error.kind() {
        ErrorKind::Timeout => StoreError::Timeout { shard: shard.to_owned(), after: waited },
        ErrorKind::Unknown | ErrorKind::Auth | ErrorKind::Cluster if is_code(code(text)) => {
            from_reply(shard, text)
        }
        // Bytes that are no reply at all.
        ErrorKind::Protocol | ErrorKind::Parse => StoreError::Corrupt {
            shard: shard.to_owned(),
            why: format!("it does not speak as a Redis does: {}", in_words(error)),
        },
        _ => StoreError::Unavailable { shard: shard.to_owned(), why: in_words(error) },
    }
}

/// The same error in words that do not repeat a password: whoever stands at the other end may say anything that it was told.
pub(super) fn without(secret: Option<&Secret>, error: Error) -> Error {
    match secret.map(Secret::expose) {
        Some(secret) if !secret.is_empty() && error.details().contains(secret) => {
            let details = error.details().replace(secret, "(hidden)");
            Error::new(error.kind().clone(), details)
        }
        _ => error,
    }
}

/// Redis' error codes are its first word, in capitals.
fn code(text: &str) -> &str {
    text.split([' ', '\r', '\n']).next().unwrap_or("")
}

fn is_code(word: &str) -> bool {
    word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())
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

/// The client keeps I/O errors as their `Debug` output; people want the message in it, and the setting to look at.
fn in_words(error: &Error) -> String {
    let details = error.details();
    if let Some((_, hint)) = TLS_HINTS.iter().find(|(word, _)| details.contains(word)) {
        let cause = details.split_once("error: ").map_or(details, |(_, rest)| rest.trim_end_matches(" }"));
        return format!("{hint} ({})", clipped(cause));
    }
    // `Os { .., message: ".." }` of the system's errors, `Custom { .., error: ".." }` of the resolver's.
    let word = ["message: \"", "error: \""].into_iter().find_map(|word| details.split_once(word));
    let message = word.and_then(|(_, rest)| rest.split_once('"'));
    clipped(message.map_or(details, |(message, _)| message))
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
        let odd = || Error::new(ErrorKind::Unknown, "ERR what is AUTH hunter2?");
        let error = from_client("h:1", &without(Some(&secret), odd()), Duration::ZERO).to_string();
        assert!(error.contains("what is AUTH (hidden)?"), "{error}");
        assert_eq!(without(Some(&Secret::new("")), odd()).details(), odd().details());
    }

    #[test]
    fn a_lost_connection_reads_well() {
        let refused = std::io::Error::from_raw_os_error(111);
        let error = from_client("h:1", &Error::from(refused), Duration::ZERO);
        assert_eq!(error.to_string(), "the store h:1 cannot be reached: Connection refused");
        let nobody = std::io::Error::other("failed to lookup address information: Name or service not known");
        let error = from_client("h:1", &Error::from(nobody), Duration::ZERO);
        assert_eq!(
            error.to_string(),
            "the store h:1 cannot be reached: failed to lookup address information: Name or service not known"
        );
        let long = Error::new(ErrorKind::IO, "é\n".repeat(1000));
        let StoreError::Unavailable { why, .. } = from_client("h:1", &long, Duration::ZERO) else {
            panic!("{long}")
        };
        assert!(why.chars().count() == QUOTE_MAX + 1 && !why.contains('\n'));
        let late = Error::new(ErrorKind::Timeout, "Request timed out.");
        let waited = Duration::from_millis(5);
        assert_eq!(from_client("h:1", &late, waited).to_string(), "the store h:1 gave no answer within 5 ms");
    }
}
