//! Several Tollgates, one key, one store: whatever happens when, no more is granted than the algorithm's bound.

mod share;

use super::*;
use crate::{
    algorithm::{Counter, State as Stored, Write, decide},
    clock::{Clock, Micros, SystemClock},
    limit::OnRefusal,
};

/// Numbers by chance, the same ones each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The store: one counter, and what it has granted when.
struct Server {
    limit: Limit,
    state: Option<Stored>,
    expires: u64,
    /// By time, which goes up.
    granted: Vec<(u64, u64)>,
    calls: u64,
}

impl Server {
    fn new(limit: Limit) -> Self {
        Self { limit, state: None, expires: 0, granted: Vec::new(), calls: 0 }
    }

    fn spend(&mut self, charge: &Charge, now: u64) -> Verdict {
        self.calls += 1;
        let mut counters = [Counter::new(self.state.filter(|_| now < self.expires))];
        let decision = decide(Micros(now), std::slice::from_ref(charge), &mut counters, |_| 0);
        match counters[0].write() {
            Write::Nothing => {}
            Write::Put(state, us) => (self.state, self.expires) = (Some(state), now + us),
            Write::Delete => self.state = None,
        }
        decision.verdicts[0]
    }

    fn check(&self, case: &str) {
        let limit = &self.limit;
        if limit.algorithm() == Algorithm::FixedWindow {
            let mut by_window = std::collections::BTreeMap::new();
            for (at, hits) in &self.granted {
                *by_window.entry(at / limit.window_us()).or_insert(0) += hits;
            }
            let most = by_window.into_values().max().unwrap_or(0);
            assert!(most <= u64::from(limit.requests()), "{case}: {most} in a window");
            return;
        }
        // The fullest interval that ends at each grant; in parts of a hit.
        let (tokens, us) = limit.reduced();
        let (mut level, mut then) = (0_u64, 0);
        for (at, hits) in &self.granted {
            level = level.saturating_sub(tokens * (at - then)) + hits * us;
            then = *at;
            assert!(
                level <= u64::from(limit.burst()) * us,
                "{case}: {} of {} at {at}",
                level / us,
                limit.burst()
            );
        }
    }
}

enum Errand<'l> {
    Ask(Charge, Instant),
    Take(Taking<'l>, u64),
    Give(Giving<'l>, Instant),
    /// Nobody waits for it any more, and a server that hung does it all the same when it wakes.
    Late(Charge),
}

/// One on its way; with what the store has said, if it has.
struct Under<'l> {
    tollgate: &'l Leases,
    errand: Errand<'l>,
    said: Option<Verdict>,
}

struct World<'l> {
    dice: Dice,
    server: Server,
    now: u64,
    began: Instant,
    ways: Vec<Under<'l>>,
    leased: u64,
    /// Whether calls and answers get lost.
    lossy: bool,
}

/// Some time in which windows and buckets are not at their beginning.
const START: u64 = 1_790_000_000_123_456;

fn charge(limit: Limit, hits: u64) -> Charge {
    Charge {
        key: Key::from_text("tg:hot"),
        limit,
        cost: Cost::Spend(hits.try_into().unwrap()),
        role: Role::Enforce,
        on_refusal: OnRefusal::Keep,
    }
}

impl<'l> World<'l> {
    fn new(limit: Limit, seed: u64) -> Self {
        let began = SystemClock.instant();
        Self {
            dice: Dice(seed),
            server: Server::new(limit),
            now: START,
            began,
            ways: Vec::new(),
            leased: 0,
            lossy: false,
        }
    }

    fn instant(&self) -> Instant {
        self.began + Duration::from_micros(self.now - START)
    }

    fn request(&mut self, tollgate: &'l Leases, lease: Option<u32>, hits: u64) {
        let (charge, now) = (charge(self.server.limit, hits), self.instant());
        let size = tollgate.size(&charge, lease, now);
        let errand = match tollgate.next(&charge, size, now) {
            Next::Here(verdict) => {
                assert!(verdict.fits && verdict.remaining <= u64::from(self.server.limit.burst()));
                self.server.granted.push((self.now, hits));
                self.leased += 1;
                return;
            }
            Next::Wait(_) => return,
            Next::Ask => Errand::Ask(charge, now),
            Next::Take(taking) => Errand::Take(taking, hits),
            Next::GiveBack(giving) => Errand::Give(giving, now),
        };
        self.ways.push(Under { tollgate, errand, said: None });
    }

    fn sweep(&mut self, tollgate: &'l Leases, all: bool) {
        let now = self.instant();
        for giving in tollgate.due(all, now) {
            self.ways.push(Under { tollgate, errand: Errand::Give(giving, now), said: None });
        }
    }

    /// One errand goes on: the store decides, or its answer comes, or gets lost.
    fn go_on(&mut self) {
        if self.ways.is_empty() {
            return;
        }
        let index = self.dice.below(self.ways.len() as u64) as usize;
        let mut under = self.ways.swap_remove(index);
        let now = self.instant();
        if self.lossy && self.dice.one_in(50) {
            return;
        }
        let Some(said) = under.said else {
            let said = match &under.errand {
                Errand::Give(giving, asked) if now > *asked + GIVE_BACK_WITHIN => {
                    under.errand = Errand::Late(giving.charge().clone());
                    return self.ways.push(under);
                }
                Errand::Late(_) if self.dice.one_in(2) => return self.ways.push(under),
                Errand::Late(charge) => {
                    self.server.spend(charge, self.now);
                    return;
                }
                Errand::Give(giving, _) => self.server.spend(giving.charge(), self.now),
                Errand::Ask(charge, _) => self.server.spend(charge, self.now),
                Errand::Take(taking, _) => self.server.spend(taking.charge(), self.now),
            };
            match &under.errand {
                Errand::Ask(charge, _) if said.fits => {
                    self.server.granted.push((self.now, hits_of(charge).unwrap()))
                }
                Errand::Take(_, hits) if said.fits => self.server.granted.push((self.now, *hits)),
                _ => {}
            }
            under.said = Some(said);
            self.ways.push(under);
            return;
        };
        match under.errand {
            Errand::Ask(charge, asked) => under.tollgate.learn(&charge, &said, asked),
            Errand::Take(taking, _) => drop(taking.answered(&said, now)),
            Errand::Give(giving, asked) => giving.given(&said, asked),
            Errand::Late(_) => unreachable!("nobody hears of it"),
        }
    }
}

fn limit(algorithm: Algorithm, requests: u32, window_us: u64, burst: Option<u32>) -> Limit {
    Limit::new(algorithm, requests, window_us, burst).unwrap()
}

fn limits() -> Vec<Limit> {
    use Algorithm::{FixedWindow, Gcra, TokenBucket};
    vec![
        limit(TokenBucket, 1000, 1_000_000, None),
        limit(TokenBucket, 100, 1_000_000, Some(500)),
        limit(TokenBucket, 7, 3_000_000, Some(64)),
        limit(TokenBucket, 50_000, 1_000_000, Some(300)),
        limit(Gcra, 1000, 1_000_000, None),
        limit(Gcra, 300, 7_000_000, Some(90)),
        limit(FixedWindow, 1000, 1_000_000, None),
        limit(FixedWindow, 200, 300_000, None),
    ]
}

fn tollgates(number: u32, above: u32) -> Vec<Leases> {
    (0..number).map(|_| Leases::new(number, above, LeaseCounters::default(), SystemClock.instant())).collect()
}

#[test]
fn whatever_several_tollgates_take_spend_and_give_back_no_more_than_the_limit_is_granted() {
    let mut leased = 0;
    for seed in 0..150 {
        for (n, limit) in limits().into_iter().enumerate() {
            let mut dice = Dice(seed * 1000 + n as u64);
            let number = 1 + dice.below(4) as u32;
            let (above, lease) = match dice.below(3) {
                0 => (20, None),
                1 => (0, Some(1 + dice.below(50) as u32)),
                _ => (0, Some(limit.requests())),
            };
            let tollgates = tollgates(number, above);
            let mut world = World::new(limit, seed);
            world.lossy = true;
            let most_hits = if dice.one_in(3) { 5 } else { 1 };
            // Quiet and busy times, in turn.
            let mut pace = 1;
            for _ in 0..600 {
                if dice.one_in(40) {
                    pace = [1, 30, 1_000, 30_000, 300_000][dice.below(5) as usize];
                }
                world.now += dice.below(pace + 1);
                let tollgate = &tollgates[dice.below(number.into()) as usize];
                match dice.below(40) {
                    0 => world.sweep(tollgate, false),
                    1 if dice.one_in(10) => tollgate.retire(world.instant()),
                    2 if dice.one_in(10) => world.sweep(tollgate, true),
                    3..20 => world.go_on(),
                    _ => world.request(tollgate, lease, 1 + dice.below(most_hits)),
                }
            }
            world.server.check(&format!("seed {seed}, {limit:?}, {number} tollgates, {lease:?}"));
            leased += world.leased;
        }
    }
    assert!(leased > 30_000, "only {leased} were spent here");
}

#[test]
fn what_another_tollgate_gives_back_while_a_bucket_fills_does_not_overflow_it() {
    let tollgates = tollgates(2, 0);
    let [one, other] = &tollgates[..] else { unreachable!("two were made") };
    let mut world = World::new(limit(Algorithm::TokenBucket, 100, 1_000_000, None), 1);
    for tollgate in [one, other] {
        for _ in 0..2 {
            world.request(tollgate, Some(25), 1);
            while !world.ways.is_empty() {
                world.go_on();
            }
        }
    }
    assert_eq!(world.server.calls, 4, "each has taken a lease");
    world.sweep(one, true);
    while !world.ways.is_empty() {
        world.go_on();
    }
    // The bucket is full again, and so nothing of the other lease is worth anything.
    world.now += 230_000;
    for _ in 0..150 {
        world.request(other, Some(25), 1);
        while !world.ways.is_empty() {
            world.go_on();
        }
    }
    world.server.check("a full bucket and a lease");
}

/// One hit, and then another that takes 10 ahead: the charge, what the store said of each, and what the second is told.
fn leased(tollgate: &Leases, world: &mut World<'_>) -> (Charge, [Verdict; 2], Verdict) {
    let one = charge(world.server.limit, 1);
    let first = world.server.spend(&one, world.now);
    tollgate.learn(&one, &first, world.instant());
    let Next::Take(taking) = tollgate.next(&one, 10, world.instant()) else { panic!("a lease") };
    let said = world.server.spend(taking.charge(), world.now);
    let told = taking.answered(&said, world.instant()).unwrap();
    (one, [first, said], told)
}

#[test]
fn answers_of_a_lease_count_down_as_the_store_would() {
    let tollgate = &tollgates(1, 0)[0];
    let mut world = World::new(limit(Algorithm::FixedWindow, 100, 3_600_000_000, None), 1);
    let (one, [_, said], told) = leased(tollgate, &mut world);
    assert_eq!(said.remaining, 88, "10 are held");
    assert_eq!(told.remaining, 98);
    world.now += 1000;
    let here = tollgate.spend(&one, world.instant()).unwrap();
    assert_eq!((here.remaining, here.reset_us), (97, said.reset_us - 1000));
}

#[test]
fn what_is_not_spent_goes_back_when_the_lease_ends_and_not_before() {
    let tollgate = &tollgates(1, 0)[0];
    let mut world = World::new(limit(Algorithm::TokenBucket, 100, 3_600_000_000, None), 1);
    let (one, [_, said], _) = leased(tollgate, &mut world);
    let just_before = world.instant() + LIFE - Duration::from_micros(1);
    assert!(tollgate.due(false, just_before).is_empty());
    let at_last = world.instant() + LIFE;
    assert!(tollgate.spend(&one, at_last).is_none());
    let due = tollgate.due(false, at_last);
    let since = Micros(said.since.0 + (LIFE + GIVE_BACK_WITHIN).as_micros() as u64);
    assert_eq!(due[0].charge().cost, Cost::GiveBack { hits: 10, since });
}

#[test]
fn a_window_that_ends_takes_its_leases_along() {
    let tollgate = &tollgates(1, 0)[0];
    let mut world = World::new(limit(Algorithm::FixedWindow, 100, 500_000, None), 1);
    let (one, [_, said], _) = leased(tollgate, &mut world);
    world.now += said.reset_us - 1;
    assert!(tollgate.spend(&one, world.instant()).is_some());
    world.now += 1;
    assert!(tollgate.spend(&one, world.instant()).is_none());
    assert!(tollgate.due(true, world.instant()).is_empty(), "it would be missing in the next window");
}

#[test]
fn giving_back_that_fails_bars_the_key_for_a_while() {
    let tollgate = &tollgates(1, 0)[0];
    let mut world = World::new(limit(Algorithm::FixedWindow, 100, 3_600_000_000, None), 1);
    let (one, [first, _], _) = leased(tollgate, &mut world);
    drop(tollgate.due(true, world.instant()));
    for (after, leased) in
        [(Duration::ZERO, false), (BARRED - Duration::from_micros(1), false), (BARRED, true)]
    {
        let now = world.instant() + after;
        tollgate.learn(&one, &first, now);
        assert_eq!(matches!(tollgate.next(&one, 10, now), Next::Take(_)), leased, "{after:?}");
    }
}
