//! The counters of a split key: what each is called.
//!
//! ```text
//! tg:{acme#3/8kq}:api:tenant=acme:token_bucket           the third of eight, of a tenant's key
//! tg:api:user=ann:token_bucket#3/8bz                     of one that has no hash tag
//! ```
//!
//! `#` cannot come from a client, so no part imitates another key. How many parts there are is in their names: with another
//! number all begin anew, as a limit does whose algorithm changes. The letters put each part into a slot of its own share of
//! the slots, the third of eight into the third eighth: by chance, all might be on one server, and some mostly would.

use std::num::NonZeroU8;

use super::slot::{SLOTS, crc16, slot_of, tag};

/// The most counters that a key is split into.
pub const SHARDS_MAX: u8 = 64;

/// The text of one part, from 0, of a key's own.
pub(super) fn part(text: &[u8], index: u8, of: NonZeroU8) -> Vec<u8> {
    let (hashed, end) = tag(text).map_or((text, text.len()), |tag| (&text[tag.clone()], tag.end));
    let mark = format!("#{}/{of}", u16::from(index) + 1);
    let before = crc16(crc16(0, hashed), mark.as_bytes());
    let letters = letters(|letters| {
        let slot = usize::from(slot_of(crc16(before, letters)));
        slot * usize::from(of.get()) / SLOTS == usize::from(index)
    });
    [&text[..end], mark.as_bytes(), &letters, &text[end..]].concat()
}

/// The first letters that do: none, one or two. Of 64 parts one in 64 does, so there is hardly a chance in 10^18 that
/// none of the 2,757 did; two parts may be on one server then, and that is all.
fn letters(fits: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let all = || (b'a'..=b'z').chain(b'A'..=b'Z');
    let none = std::iter::once(Vec::new());
    let one = all().map(|letter| vec![letter]);
    let two = all().flat_map(|first| all().map(move |second| vec![first, second]));
    none.chain(one).chain(two).find(|letters| fits(letters)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::key::slot::slot;

    #[test]
    fn the_parts_of_a_key_are_in_equal_shares_of_the_slots_whatever_it_is_called() {
        let long = "x".repeat(300);
        for text in
            ["tg:api:user=ann:gcra", "tg:{acme}:api:tenant=acme:gcra", "{a}tg:b", "{", "{}", "", &long]
        {
            for of in [1, 2, 3, 7, 8, 63, SHARDS_MAX] {
                let of = NonZeroU8::new(of).unwrap();
                let shares: Vec<usize> = (0..of.get())
                    .map(|index| usize::from(slot(&part(text.as_bytes(), index, of))))
                    .map(|slot| slot * usize::from(of.get()) / SLOTS)
                    .collect();
                assert_eq!(shares, (0..usize::from(of.get())).collect::<Vec<_>>(), "{text} in {of}");
            }
        }
    }

    #[test]
    fn a_part_can_be_told_from_its_key_its_siblings_and_those_of_another_number() {
        let mut seen = BTreeSet::from([b"tg:{a}:b:gcra".to_vec(), b"tg:{a}:b:gcra#1".to_vec()]);
        for text in ["tg:{a}:b:gcra", "tg:{#}:b:gcra", "tg:b:gcra", "tg:b:gcra#1"] {
            for of in 2..=SHARDS_MAX {
                for index in 0..of {
                    let part = part(text.as_bytes(), index, NonZeroU8::new(of).unwrap());
                    assert!(seen.insert(part.clone()), "{}", String::from_utf8_lossy(&part));
                }
            }
        }
    }
}
