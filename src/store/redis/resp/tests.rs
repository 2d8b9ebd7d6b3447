//! The protocol at its edges, and beyond them.

use proptest::prelude::*;

use super::{Bounds, Frame, Malformed, Scanner, Value, list, number, scan::*, text};

const ROOMY: Bounds = Bounds { bytes: 1 << 20, elements: 1000 };

/// Scans `bytes`, arriving up to each of these places in turn; the reply's length, once it is known.
fn scan(
    bytes: &[u8],
    pieces: impl IntoIterator<Item = usize>,
    bounds: Bounds,
) -> Result<Option<usize>, Malformed> {
    let mut scanner = Scanner::default();
    for piece in pieces.into_iter().chain([bytes.len()]) {
        if let Some(length) = scanner.scan(&bytes[..piece], &bounds)? {
            return Ok(Some(length));
        }
    }
    Ok(None)
}

fn whole(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    scan(bytes, [], ROOMY)
}

fn value(bytes: &[u8]) -> Value {
    assert_eq!(whole(bytes), Ok(Some(bytes.len())), "{:?}", bytes.escape_ascii().to_string());
    Frame::new(bytes).to_value()
}

fn written(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Nothing => out.extend_from_slice(b"$-1\r\n"),
        Value::Number(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Text(bytes) => text(out, bytes),
        Value::Error(words) => out.extend_from_slice(format!("-{words}\r\n").as_bytes()),
        Value::List(values) => {
            list(out, values.len());
            values.iter().for_each(|value| written(value, out));
        }
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nothing),
        any::<i64>().prop_map(Value::Number),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Value::Text(bytes.into())),
        "[A-Z]{0,8} [^\r\n]{0,20}".prop_map(|words| Value::Error(words.into())),
    ];
    leaf.prop_recursive(DEPTH_MAX as u32, 100, 6, |inner| {
        proptest::collection::vec(inner, 0..6).prop_map(Value::List)
    })
}

proptest! {
    #[test]
    fn a_reply_reads_the_same_however_it_arrives(value in values(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20), more in any::<Vec<u8>>()) {
        let mut bytes = Vec::new();
        written(&value, &mut bytes);
        let length = bytes.len();
        prop_assert_eq!(whole(&bytes), Ok(Some(length)));
        prop_assert_eq!(Frame::new(&bytes).to_value(), value);
        bytes.extend(more);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(scan(&bytes, cuts, ROOMY), Ok(Some(length)));
        prop_assert_eq!(scan(&bytes, 0..bytes.len(), ROOMY), Ok(Some(length)));
        for cut in 0..length {
            prop_assert_eq!(whole(&bytes[..cut]), Ok(None));
        }
    }

    #[test]
    fn garbage_is_refused_or_waits_for_no_more_than_the_bound(bytes in proptest::collection::vec(prop_oneof![
        any::<u8>(), proptest::sample::select(b"*$:+-0123456789\r\n".to_vec()),
    ], 0..200)) {
        let bounds = Bounds { bytes: 100, elements: 10 };
        match scan(&bytes, [], bounds) {
            Ok(Some(length)) => {
                prop_assert!(length <= bounds.bytes && length <= bytes.len());
                Frame::new(&bytes[..length]).to_value();
            }
            Ok(None) => prop_assert!(bytes.len() <= bounds.bytes, "it waits for more than it would take"),
            Err(why) => prop_assert!(why.to_string().len() < 300 && why.to_string().chars().all(|c| !c.is_control())),
        }
    }
}

#[test]
fn each_kind_is_read() {
    let text = |text: &str| Value::Text(text.as_bytes().into());
    for (bytes, want) in [
        ("+OK\r\n", text("OK")),
        ("+\r\n", text("")),
        ("-ERR no\r\n", Value::Error("ERR no".into())),
        (":-9223372036854775808\r\n", Value::Number(i64::MIN)),
        (":9223372036854775807\r\n", Value::Number(i64::MAX)),
        ("$0\r\n\r\n", text("")),
        ("$4\r\n\r\n\r\n\r\n", text("\r\n\r\n")),
        ("$-1\r\n", Value::Nothing),
        ("*-1\r\n", Value::Nothing),
        ("*0\r\n", Value::List(vec![])),
        (
            "*3\r\n*0\r\n*2\r\n:1\r\n*-1\r\n+x\r\n",
            Value::List(vec![
                Value::List(vec![]),
                Value::List(vec![Value::Number(1), Value::Nothing]),
                text("x"),
            ]),
        ),
    ] {
        assert_eq!(value(bytes.as_bytes()), want, "{bytes:?}");
    }
    assert_eq!(Frame::new(b"-ERR no\r\n").error().as_deref(), Some("ERR no"));
    assert_eq!(Frame::new(b"*1\r\n-ERR no\r\n").error(), None);
}

#[test]
fn what_is_no_reply_is_refused_as_soon_as_that_shows() {
    for (bytes, why) in [
        ("H", "begins with \"H\""),
        ("HTTP/1.1 400 Bad Request\r\n", "begins with \"HTTP/1.1 400 Bad Request\""),
        ("\x15\x03\x01", "begins with \"\\x15\\x03\\x01\""),
        // RESP3, which nobody has asked for.
        ("%1\r\n", "begins with"),
        (":\r\n", "no number"),
        (":1x\r\n", "\":1x\" is no number"),
        (":9223372036854775808\r\n", "no number"),
        (":+1\r\n", "no number"),
        ("$-2\r\n", "\"$-2\" is no number and no length"),
        ("*-5\r\n", "no length"),
        ("$99999999999999999999\r\n", "no length"),
        ("+OK\n", "CR LF"),
        ("$1\r\nabc", "CR LF"),
        (":1\n\r\n", "CR LF"),
    ] {
        let error = whole(bytes.as_bytes()).expect_err(bytes).to_string();
        assert!(error.contains(why), "{bytes:?}: {error}");
    }
}

#[test]
fn what_is_announced_beyond_a_bound_is_refused_when_it_is_announced() {
    let bounds = Bounds { bytes: 100, elements: 5 };
    let scan = |bytes: &str| scan(bytes.as_bytes(), [], bounds);
    // "$93\r\n", the text and CR LF are 100 bytes.
    assert_eq!(scan("$93\r\n"), Ok(None));
    assert_eq!(scan("$94\r\n"), Err(Malformed::Text(94, 93)));
    assert_eq!(scan("$999999999999\r\n"), Err(Malformed::Text(999_999_999_999, 93 - 10)));
    assert_eq!(scan("*5\r\n"), Ok(None));
    assert_eq!(scan("*6\r\n"), Err(Malformed::List(6, 5)));
    assert_eq!(scan("*1000000000\r\n"), Err(Malformed::List(1_000_000_000, 5)));
    assert_eq!(scan("*2\r\n*3\r\n"), Ok(None));
    assert_eq!(scan("*2\r\n*4\r\n"), Err(Malformed::List(4, 5)));
    let line = |length: usize| format!("+{}", "x".repeat(length - 1));
    assert_eq!(scan(&line(100)), Ok(None));
    assert_eq!(scan(&line(101)), Err(Malformed::Size(100)));
}

#[test]
fn a_line_and_lists_in_lists_are_bounded_as_well() {
    let line = |length: usize| format!("-{}\r\n", "x".repeat(length - 3));
    assert_eq!(whole(line(LINE_MAX).as_bytes()), Ok(Some(LINE_MAX)));
    assert_eq!(whole(line(LINE_MAX + 1).as_bytes()), Err(Malformed::Line(LINE_MAX)));
    assert_eq!(whole("x".repeat(0).as_bytes()), Ok(None));
    let endless = "-".to_owned() + &"x".repeat(LINE_MAX);
    assert_eq!(whole(endless.as_bytes()), Err(Malformed::Line(LINE_MAX)));
    assert!(matches!(whole(format!("*{}", "1".repeat(64)).as_bytes()), Err(Malformed::Line(_))));

    let nested = |depth: usize| "*1\r\n".repeat(depth) + ":1\r\n";
    assert!(value(nested(DEPTH_MAX).as_bytes()).list().is_some());
    assert_eq!(whole(nested(DEPTH_MAX + 1).as_bytes()), Err(Malformed::Depth));
    let bounds = Bounds { bytes: usize::MAX, elements: usize::MAX };
    assert_eq!(scan(nested(100_000).as_bytes(), [], bounds), Err(Malformed::Depth));
    // An empty list is open no longer than its head.
    assert!(whole(("*1\r\n".repeat(DEPTH_MAX) + "*0\r\n").as_bytes()).is_ok_and(|length| length.is_some()));
}

#[test]
fn a_byte_that_arrives_is_looked_at_once() {
    // A million pieces of a text and of a line: read anew each time, they would be 10^12 steps.
    let bounds = Bounds { bytes: 2 << 20, elements: 1 };
    let mut bytes = b"$1000000\r\n".to_vec();
    let head = bytes.len();
    bytes.resize(head + 1_000_000, b'\n');
    bytes.extend_from_slice(b"\r\n");
    assert_eq!(scan(&bytes, 0..bytes.len(), bounds), Ok(Some(bytes.len())));
}

#[test]
fn commands_are_written_as_redis_reads_them() {
    let mut out = Vec::new();
    super::words(&mut out, &["SELECT", "10"]);
    number(&mut out, 0);
    number(&mut out, usize::MAX);
    assert_eq!(out, b"*2\r\n$6\r\nSELECT\r\n$2\r\n10\r\n$1\r\n0\r\n$20\r\n18446744073709551615\r\n");
}
