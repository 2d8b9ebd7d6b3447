//! Words for messages: lists of names, and which of them was probably meant.

/// `a`, `b` and `c`.
pub(super) fn list_of(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// The name that was probably meant: equal but for case, `_` and `-`, or at most half of its letters away.
pub(super) fn nearest<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    const LONGEST: usize = 40;
    let squeeze = |name: &str| -> Vec<char> {
        let letters = name.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        letters.flat_map(char::to_lowercase).take(LONGEST).collect()
    };
    let wanted = squeeze(name);
    let far = |known: &&&'n str| distance(&wanted, &squeeze(known));
    let near = names.iter().min_by_key(far)?;
    (far(&near) * 2 <= wanted.len().min(near.len())).then_some(near)
}

/// The name that was meant, if it was: equal but for case, `_` and `-`, or one letter away.
pub(crate) fn misspelt<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let near = nearest(name, names)?;
    let letters = |name: &str| -> Vec<char> {
        name.to_lowercase().chars().filter(|c| !matches!(c, '_' | '-')).collect()
    };
    (distance(&letters(name), &letters(near)) <= 1).then_some(near)
}

/// How many letters must be added, dropped, changed or swapped with their neighbour.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_one_that_was_meant() {
        const NAMES: [&str; 5] = ["rate_limit", "requests_per_unit", "unlimited", "key", "unit"];
        for (typed, meant) in [
            ("ratelimit", Some("rate_limit")),
            ("rateLimit", Some("rate_limit")),
            ("requestsperunit", Some("requests_per_unit")),
            ("request_per_unit", Some("requests_per_unit")),
            ("unlimied", Some("unlimited")),
            ("keyz", Some("key")),
            ("ky", Some("key")),
            ("untis", Some("unit")),
            ("bucket", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, &NAMES), meant, "{typed}");
        }
    }
}
