//! Commands as they go over the wire: lists of texts. What they are made of is appended to a buffer that is used again.

/// The head of a list of so many elements.
pub(in crate::store::redis) fn list(out: &mut Vec<u8>, elements: usize) {
    head(out, b'*', elements);
}

/// A text of any bytes.
pub(in crate::store::redis) fn text(out: &mut Vec<u8>, text: &[u8]) {
    head(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// A number, as commands want it: a text.
pub(in crate::store::redis) fn number(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0; DIGITS_MAX];
    text(out, decimal(number, &mut digits));
}

/// A whole command.
pub(in crate::store::redis) fn words(out: &mut Vec<u8>, words: &[&str]) {
    list(out, words.len());
    for word in words {
        text(out, word.as_bytes());
    }
}

fn head(out: &mut Vec<u8>, kind: u8, length: usize) {
    let mut digits = [0; DIGITS_MAX];
    out.push(kind);
    out.extend_from_slice(decimal(length, &mut digits));
    out.extend_from_slice(b"\r\n");
}

/// Of a number of 64 bits.
const DIGITS_MAX: usize = 20;

fn decimal(mut number: usize, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut start = DIGITS_MAX;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}
