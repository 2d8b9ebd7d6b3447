//! Several charges in one request, and numbers that change between requests.

use super::*;

pub(super) fn several_charges() -> Vec<Case> {
    let ten = per_second(TokenBucket, 10);
    let five = per_second(TokenBucket, 5);
    let minute = per_minute(FixedWindow, 5);
    vec![
        case("a refused request spends nothing on any of its limits, nor does it refund", [
            (0, vec![on("b", five, spend(3))], "pass | fits 2 left, whole 600000, next 200000"),
            (0, vec![take(ten, 6), on("b", five, Cost::Refund(1)), on("b", five, spend(4))],
                "refused | fits 10 left, whole 0, next 0 | fits 2 left, whole 600000, next 200000 \
                 | over 2 left, whole 600000, next 200000; retry 400000"),
            (0, vec![take(ten, 6), on("b", five, Cost::Refund(2)), on("b", five, spend(4))],
                "pass | fits 4 left, whole 600000, next 100000 | fits 4 left, whole 200000, next 200000 \
                 | fits 0 left, whole 1000000, next 200000"),
        ])
        .stored("b 4 0 100000 {t}"),
        case("two charges on one counter see each other", [
            (0, vec![take(ten, 6), take(ten, 6)],
                "refused | fits 10 left, whole 0, next 0 | over 10 left, whole 0, next 0; never"),
            (0, vec![take(ten, 6), take(ten, 4)],
                "pass | fits 4 left, whole 600000, next 100000 | fits 0 left, whole 1000000, next 100000"),
        ]),
        case("an override judges the shared counter by its own numbers", {
            let small = limit(TokenBucket, 10, SECOND, Some(3));
            [
                (0, vec![take(ten, 2), look(small, 4)], "refused | fits 10 left, whole 0, next 0 | over 3 left, whole 0, next 0; never"),
                (0, vec![take(ten, 2), look(small, 3), look(ten, 8)],
                    "pass | fits 8 left, whole 200000, next 100000 | fits 3 left, whole 0, next 0 | fits 8 left, whole 200000, next 100000"),
                (0, vec![take(small, 1), look(ten, 2)], "pass | fits 2 left, whole 100000, next 100000 | fits 2 left, whole 800000, next 100000"),
            ]
        }),
        case("a stream that costs more than is left uses up its own limit", [
            (0, vec![take(ten, 6)], "pass | fits 4 left, whole 600000, next 100000"),
            (0, vec![drain(take(ten, 6)), on("b", five, spend(1))],
                "refused | over 0 left, whole 1000000, next 100000; retry 600000 | fits 5 left, whole 0, next 0"),
            (0, vec![on("b", five, spend(5))], "pass | fits 0 left, whole 1000000, next 200000"),
        ]),
        case("a single hit that does not fit drains nothing, and what would have fitted is kept", [
            (0, vec![take(ten, 10)], "pass | fits 0 left, whole 1000000, next 100000"),
            (50_000, vec![drain(take(ten, 1))], "refused | over 0 left, whole 950000, next 50000; retry 50000"),
            (50_000, vec![drain(on("b", five, spend(3))), take(ten, 1)],
                "refused | fits 5 left, whole 0, next 0 | over 0 left, whole 950000, next 50000; retry 50000"),
        ])
        .stored("b 0 0 100000 {t}"),
        case("a drain takes no more than it asked for, even where an earlier charge was undone", [
            (0, vec![take(ten, 6), drain(take(ten, 6))],
                "refused | fits 10 left, whole 0, next 0 | over 4 left, whole 600000, next 100000; never"),
        ]),
        case("who asks twice of one counter comes back when both fit", [
            (0, vec![take(ten, 9)], "pass | fits 1 left, whole 900000, next 100000"),
            (0, vec![take(ten, 3), take(ten, 2)],
                "refused | over 1 left, whole 900000, next 100000; retry 400000 | over 1 left, whole 900000, next 100000; retry 400000"),
            (0, vec![take(ten, 1), take(ten, 2), look(ten, 4)],
                "refused | fits 1 left, whole 900000, next 100000 | over 1 left, whole 900000, next 100000; retry 600000 \
                 | over 1 left, whole 900000, next 100000; retry 600000"),
            (400_000, vec![take(ten, 3), take(ten, 2)],
                "pass | fits 2 left, whole 800000, next 100000 | fits 0 left, whole 1000000, next 100000"),
        ]),
        case("what is recorded is counted when others refuse, and beyond full", [
            (0, vec![shadow(count(take(minute, 3))), on("b", five, spend(6))],
                "refused | fits 2 left, whole 60000000, next 60000000 | over 5 left, whole 0, next 0; never"),
            (0, vec![shadow(count(take(minute, 4)))], "pass | over 0 left, whole 60000000, next 60000000; retry 60000000"),
            (0, vec![look(minute, 0)], "refused | over 0 left, whole 60000000, next 60000000; retry 60000000"),
        ])
        .stored("f {t} 7"),
        case("the reference's look fits at exactly the limit, ours asks for one more", [
            (0, vec![take(minute, 5)], "pass | fits 0 left, whole 60000000, next 60000000"),
            (0, vec![look(minute, 0)], "pass | fits 0 left, whole 60000000, next 60000000"),
            (0, vec![look(minute, 1)], "refused | over 0 left, whole 60000000, next 60000000; retry 60000000"),
        ]),
        case("a shadow limit never refuses, and is not charged when another limit refuses", [
            (0, vec![shadow(take(ten, 4)), on("b", five, spend(6))], "refused | fits 10 left, whole 0, next 0 | over 5 left, whole 0, next 0; never"),
            (0, vec![shadow(take(ten, 4)), on("b", five, spend(1))], "pass | fits 6 left, whole 400000, next 100000 | fits 4 left, whole 200000, next 200000"),
            (0, vec![shadow(take(ten, 7))], "pass | over 6 left, whole 400000, next 100000; retry 100000"),
        ]),
        case("quotas refuse when none of them fits", [
            (0, vec![quota(take(ten, 6)), quota(on("b", five, spend(6)))], "pass | fits 4 left, whole 600000, next 100000 | over 5 left, whole 0, next 0; never"),
            (0, vec![quota(take(ten, 6)), quota(on("b", five, spend(6)))], "refused | over 4 left, whole 600000, next 100000; retry 200000 | over 5 left, whole 0, next 0; never"),
        ]),
    ]
}

pub(super) fn changing_rules() -> Vec<Case> {
    let ten = |algorithm| per_second(algorithm, 10);
    let hundred = |algorithm| per_second(algorithm, 100);
    vec![
        case(
            "a raise grants a bucket nothing at once, and a part of a token stays that part",
            [
                (0, vec![take(ten(TokenBucket), 9)], "pass | fits 1 left, whole 900000, next 100000"),
                (50_000, vec![take(ten(TokenBucket), 1)], "pass | fits 0 left, whole 950000, next 50000"),
                (
                    50_000,
                    vec![take(hundred(TokenBucket), 1)],
                    "refused | over 0 left, whole 995000, next 5000; retry 5000",
                ),
                (
                    55_000,
                    vec![take(hundred(TokenBucket), 1)],
                    "pass | fits 0 left, whole 1000000, next 10000",
                ),
            ],
        )
        // 55 ms into the second: 50 ms at 10 a second and 5 ms at 100 a second are one token each way.
        .stored("b 0 0 10000 {t+55ms}"),
        case(
            "a lowered burst takes what is above it",
            [
                (0, vec![take(hundred(TokenBucket), 20)], "pass | fits 80 left, whole 200000, next 10000"),
                (0, vec![look(ten(TokenBucket), 1)], "pass | fits 10 left, whole 0, next 0"),
                (0, vec![take(ten(TokenBucket), 4)], "pass | fits 6 left, whole 400000, next 100000"),
                (0, vec![look(hundred(TokenBucket), 1)], "pass | fits 6 left, whole 940000, next 10000"),
            ],
        ),
        case(
            "a debt in time stays under a raise",
            [
                (0, vec![take(ten(Gcra), 10)], "pass | fits 0 left, whole 1000000, next 100000"),
                (
                    0,
                    vec![take(hundred(Gcra), 1)],
                    "refused | over 0 left, whole 1000000, next 10000; retry 10000",
                ),
                (500_000, vec![take(hundred(Gcra), 50)], "pass | fits 0 left, whole 1000000, next 10000"),
            ],
        ),
        case(
            "windows keep their count under other numbers",
            [
                (
                    0,
                    vec![take(per_minute(FixedWindow, 5), 5)],
                    "pass | fits 0 left, whole 60000000, next 60000000",
                ),
                (
                    0,
                    vec![take(per_minute(FixedWindow, 8), 1)],
                    "pass | fits 2 left, whole 60000000, next 60000000",
                ),
                (
                    0,
                    vec![look(per_minute(FixedWindow, 3), 0)],
                    "refused | over 0 left, whole 60000000, next 60000000; retry 60000000",
                ),
            ],
        ),
    ]
}
