//! One limit at a time, by algorithm.

use tollgate::limit::Algorithm;

use super::*;
use crate::worlds::DAY;

/// What a bucket and the generic cell rate algorithm say alike.
pub(super) fn both_buckets(algorithm: Algorithm) -> Vec<Case> {
    let ten = per_second(algorithm, 10);
    let three = per_second(algorithm, 3);
    let fast = per_second(algorithm, 10_000_000);
    let yearly = limit(algorithm, 1, 365 * DAY, None);
    let most = limit(algorithm, u32::MAX, SECOND, None);
    vec![
        case(
            "hits come back continuously, not once a second",
            [
                (0, vec![take(ten, 10)], "pass | fits 0 left, whole 1000000, next 100000"),
                (99_999, vec![take(ten, 1)], "refused | over 0 left, whole 900001, next 1; retry 1"),
                (100_000, vec![take(ten, 1)], "pass | fits 0 left, whole 1000000, next 100000"),
                (150_001, vec![take(ten, 1)], "refused | over 0 left, whole 949999, next 49999; retry 49999"),
                (
                    150_001,
                    vec![take(ten, 3)],
                    "refused | over 0 left, whole 949999, next 49999; retry 249999",
                ),
            ],
        ),
        case(
            "three in a second come back in thirds that sum up to a second",
            [
                (0, vec![take(three, 3)], "pass | fits 0 left, whole 1000000, next 333334"),
                (333_333, vec![take(three, 1)], "refused | over 0 left, whole 666667, next 1; retry 1"),
                (333_334, vec![take(three, 1)], "pass | fits 0 left, whole 1000000, next 333333"),
                (666_666, vec![take(three, 1)], "refused | over 0 left, whole 666668, next 1; retry 1"),
                (666_667, vec![take(three, 1)], "pass | fits 0 left, whole 1000000, next 333333"),
                (999_999, vec![take(three, 1)], "refused | over 0 left, whole 666668, next 1; retry 1"),
                (1_000_000, vec![take(three, 1)], "pass | fits 0 left, whole 1000000, next 333334"),
            ],
        ),
        case(
            "ten million a second are ten in a microsecond",
            [
                (0, vec![take(fast, 10_000_000)], "pass | fits 0 left, whole 1000000, next 1"),
                (1, vec![take(fast, 3)], "pass | fits 7 left, whole 1000000, next 1"),
                (1, vec![take(fast, 8)], "refused | over 7 left, whole 1000000, next 1; retry 1"),
                (2, vec![take(fast, 17)], "pass | fits 0 left, whole 1000000, next 1"),
            ],
        ),
        case(
            "one a year is there after a year and not a microsecond before",
            [
                (0, vec![take(yearly, 1)], "pass | fits 0 left, whole 31536000000000, next 31536000000000"),
                (365 * DAY - 1, vec![take(yearly, 1)], "refused | over 0 left, whole 1, next 1; retry 1"),
                (
                    365 * DAY,
                    vec![take(yearly, 1)],
                    "pass | fits 0 left, whole 31536000000000, next 31536000000000",
                ),
            ],
        ),
        case(
            "a limit of 2^32-1 is granted to the last hit",
            [
                (0, vec![take(most, 4_294_967_294)], "pass | fits 1 left, whole 1000000, next 1"),
                (0, vec![take(most, 2)], "refused | over 1 left, whole 1000000, next 1; retry 1"),
                (0, vec![take(most, 1)], "pass | fits 0 left, whole 1000000, next 1"),
            ],
        ),
        case(
            "a refund stops at full",
            [
                (0, vec![give(ten, 3)], "pass | fits 10 left, whole 0, next 0"),
                (0, vec![take(ten, 5)], "pass | fits 5 left, whole 500000, next 100000"),
                (0, vec![give(ten, 3)], "pass | fits 8 left, whole 200000, next 100000"),
                (0, vec![give(ten, u64::MAX)], "pass | fits 10 left, whole 0, next 0"),
            ],
        ),
        case(
            "what is counted beyond full has to come back first",
            [
                (
                    0,
                    vec![shadow(count(take(ten, 15)))],
                    "pass | over 0 left, whole 1500000, next 600000; never",
                ),
                (
                    500_000,
                    vec![take(ten, 1)],
                    "refused | over 0 left, whole 1000000, next 100000; retry 100000",
                ),
                (500_000, vec![look(ten, 0)], "pass | fits 0 left, whole 1000000, next 100000"),
                (
                    500_000,
                    vec![count(take(ten, 1))],
                    "refused | over 0 left, whole 1100000, next 200000; retry 200000",
                ),
                (
                    500_000,
                    vec![look(ten, 0)],
                    "refused | over 0 left, whole 1100000, next 200000; retry 100000",
                ),
                (600_000, vec![look(ten, 0)], "pass | fits 0 left, whole 1000000, next 100000"),
            ],
        ),
        case(
            "after a failover to a slow clock nothing comes back twice",
            [
                (SECOND, vec![take(ten, 10)], "pass | fits 0 left, whole 1000000, next 100000"),
                (0, vec![take(ten, 1)], "refused | over 0 left, whole 1000000, next 100000; retry 100000"),
                (SECOND - 1, vec![look(ten, 0)], "pass | fits 0 left, whole 1000000, next 100000"),
                (SECOND + 100_000, vec![take(ten, 1)], "pass | fits 0 left, whole 1000000, next 100000"),
            ],
        ),
        case("a burst is granted at once, and comes back at the rate", {
            let bursty = limit(algorithm, 1, SECOND, Some(3));
            [
                (0, vec![take(bursty, 3)], "pass | fits 0 left, whole 3000000, next 1000000"),
                (0, vec![take(bursty, 4)], "refused | over 0 left, whole 3000000, next 1000000; never"),
                (2_500_000, vec![take(bursty, 2)], "pass | fits 0 left, whole 2500000, next 500000"),
            ]
        }),
    ]
}

/// What is so whatever the algorithm.
pub(super) fn all_algorithms(algorithm: Algorithm) -> Vec<Case> {
    // One window holds all steps; a hit of a bucket comes back in 10 s.
    let five = limit(algorithm, 5, 50 * SECOND, None);
    let blocked = limit(algorithm, 0, 50 * SECOND, None);
    let most = COUNTED_IN[algorithm as usize];
    vec![
        case(
            "a look changes nothing, and asks for as many as it says",
            [
                (0, vec![look(five, 1)], "pass | fits 5 left, whole 0, next 0"),
                (
                    0,
                    vec![look(five, 5), look(five, 5)],
                    "pass | fits 5 left, whole 0, next 0 | fits 5 left, whole 0, next 0",
                ),
                (0, vec![look(five, 6)], "refused | over 5 left, whole 0, next 0; never"),
            ],
        ),
        case(
            "hits up to 2^64-1 are refused and forgotten",
            [
                (0, vec![take(five, u64::MAX)], "refused | over 5 left, whole 0, next 0; never"),
                (0, vec![look(five, u64::MAX)], "refused | over 5 left, whole 0, next 0; never"),
                (0, vec![take(five, 1 << 53)], "refused | over 5 left, whole 0, next 0; never"),
            ],
        ),
        case(
            "hits up to 2^64-1 are counted without wrapping",
            [
                (0, vec![shadow(count(take(five, u64::MAX)))], most.0),
                (0, vec![shadow(count(take(five, u64::MAX)))], most.0),
            ],
        )
        .stored(most.1),
        case(
            "a limit of 0 blocks until the rule changes, and does not touch the counter",
            [
                (0, vec![take(five, 5)], most.2),
                (
                    10 * SECOND,
                    vec![take(blocked, 1)],
                    "refused | over 0 left, whole 40000000, next 40000000; never",
                ),
                (
                    10 * SECOND,
                    vec![look(blocked, 1)],
                    "refused | over 0 left, whole 40000000, next 40000000; never",
                ),
                (
                    10 * SECOND,
                    vec![drain(take(blocked, 3))],
                    "refused | over 0 left, whole 40000000, next 40000000; never",
                ),
                (10 * SECOND, vec![give(blocked, 3)], "pass | fits 0 left, whole 40000000, next 40000000"),
                (
                    10 * SECOND,
                    vec![shadow(take(blocked, 1))],
                    "pass | over 0 left, whole 40000000, next 40000000; never",
                ),
                (0, vec![look(five, 0)], most.3),
            ],
        ),
    ]
}

/// For each algorithm: after 2^64-1 hits, what is stored then, and after all five hits of [`all_algorithms`].
const COUNTED_IN: [(&str, &str, &str, &str); 4] = [
    (
        "pass | over 0 left, whole 4503599627370496, next 4503599627370496; never",
        "b -562949953421311 0 10000000 {t}",
        "pass | fits 0 left, whole 50000000, next 10000000",
        "pass | fits 0 left, whole 50000000, next 10000000",
    ),
    (
        "pass | over 0 left, whole 4503599627370496, next 4503599587370496; never",
        "g 4503599627370496 0 1 {t}",
        "pass | fits 0 left, whole 50000000, next 10000000",
        "pass | fits 0 left, whole 50000000, next 10000000",
    ),
    (
        "pass | over 0 left, whole 100000000, next 100000000; never",
        "s {t} 562949953421311 0",
        "pass | fits 0 left, whole 100000000, next 60000000",
        "pass | fits 0 left, whole 100000000, next 60000000",
    ),
    (
        "pass | over 0 left, whole 50000000, next 50000000; never",
        "f {t} 562949953421311",
        "pass | fits 0 left, whole 50000000, next 50000000",
        "pass | fits 0 left, whole 50000000, next 50000000",
    ),
];

pub(super) fn windows() -> Vec<Case> {
    let fixed = per_minute(FixedWindow, 5);
    let sliding = per_minute(SlidingWindow, 10);
    vec![
        case(
            "a fixed window begins anew at a multiple of its length",
            [
                (59_999_999, vec![take(fixed, 5)], "pass | fits 0 left, whole 1, next 1"),
                (59_999_999, vec![take(fixed, 1)], "refused | over 0 left, whole 1, next 1; retry 1"),
                (60_000_000, vec![take(fixed, 4)], "pass | fits 1 left, whole 60000000, next 60000000"),
                (
                    70_000_000,
                    vec![take(fixed, 2)],
                    "refused | over 1 left, whole 50000000, next 50000000; retry 50000000",
                ),
            ],
        )
        .stored("f {t+1m} 4"),
        case("a fixed window of 0 counts what counts always, so a look for nothing fits until then", {
            let blocked = limit(FixedWindow, 0, 60 * SECOND, None);
            [
                (0, vec![look(blocked, 0)], "pass | fits 0 left, whole 0, next 0"),
                (
                    0,
                    vec![count(take(blocked, 1))],
                    "refused | over 0 left, whole 60000000, next 60000000; never",
                ),
                (
                    0,
                    vec![look(blocked, 0)],
                    "refused | over 0 left, whole 60000000, next 60000000; retry 60000000",
                ),
                (60 * SECOND, vec![look(blocked, 0)], "pass | fits 0 left, whole 0, next 0"),
            ]
        }),
        case("a week begins on Thursday", {
            let week = limit(FixedWindow, 5, 7 * DAY, None);
            [(3 * DAY, vec![take(week, 1)], "pass | fits 4 left, whole 345600000000, next 345600000000")]
        }),
        case(
            "a fixed window refunds the present window only",
            [
                (0, vec![take(fixed, 5)], "pass | fits 0 left, whole 60000000, next 60000000"),
                (60 * SECOND, vec![give(fixed, 3)], "pass | fits 5 left, whole 0, next 0"),
                (60 * SECOND, vec![take(fixed, 2)], "pass | fits 3 left, whole 60000000, next 60000000"),
                (60 * SECOND, vec![give(fixed, 3)], "pass | fits 5 left, whole 0, next 0"),
            ],
        ),
        case(
            "a window under a slower clock is the one that was begun",
            [
                (60 * SECOND, vec![take(fixed, 5)], "pass | fits 0 left, whole 60000000, next 60000000"),
                (
                    59 * SECOND,
                    vec![take(fixed, 1)],
                    "refused | over 0 left, whole 60000000, next 60000000; retry 60000000",
                ),
            ],
        ),
        case(
            "a sliding window lets in what has slid out, rounded in favour of the limit",
            [
                (0, vec![take(sliding, 10)], "pass | fits 0 left, whole 120000000, next 66000000"),
                (
                    30 * SECOND,
                    vec![take(sliding, 1)],
                    "refused | over 0 left, whole 90000000, next 36000000; retry 36000000",
                ),
                (
                    65_999_999,
                    vec![take(sliding, 1)],
                    "refused | over 0 left, whole 54000001, next 1; retry 1",
                ),
                (66_000_000, vec![take(sliding, 1)], "pass | fits 0 left, whole 114000000, next 6000000"),
                (90_000_000, vec![take(sliding, 4)], "pass | fits 0 left, whole 90000000, next 6000000"),
                // 5 hits of this window and a room of 4 in the next one: after a fifth of it.
                (
                    90_000_000,
                    vec![take(sliding, 6)],
                    "refused | over 0 left, whole 90000000, next 6000000; retry 42000000",
                ),
                (119_999_999, vec![look(sliding, 4)], "pass | fits 4 left, whole 60000001, next 1"),
                (120_000_000, vec![look(sliding, 5)], "pass | fits 5 left, whole 60000000, next 12000000"),
                (180_000_000, vec![look(sliding, 10)], "pass | fits 10 left, whole 0, next 0"),
            ],
        )
        .stored("s {t+1m} 5 10"),
        case(
            "a sliding window refunds the present window only",
            [
                (0, vec![take(sliding, 10)], "pass | fits 0 left, whole 120000000, next 66000000"),
                (90 * SECOND, vec![take(sliding, 2)], "pass | fits 3 left, whole 90000000, next 6000000"),
                (90 * SECOND, vec![give(sliding, 9)], "pass | fits 5 left, whole 30000000, next 6000000"),
            ],
        ),
        case(
            "a sliding window that is used up whole waits for two ends",
            [
                (0, vec![take(sliding, 10)], "pass | fits 0 left, whole 120000000, next 66000000"),
                (
                    0,
                    vec![take(sliding, 10)],
                    "refused | over 0 left, whole 120000000, next 66000000; retry 120000000",
                ),
                (119_999_999, vec![take(sliding, 10)], "refused | over 9 left, whole 1, next 1; retry 1"),
                (120_000_000, vec![take(sliding, 10)], "pass | fits 0 left, whole 120000000, next 66000000"),
            ],
        ),
    ]
}
