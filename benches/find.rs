//! What it costs to find the rules of a request, and to load a million tenants.
//!
//! The claim: a look-up allocates nothing and costs the same among ten tenants and among a million. "The same" has two
//! sides. The work is the same, which shows where the same callers come again and again, as they do: the *hot* rows. But a
//! million tenants do not fit into a near cache, so a caller who comes for the first time costs a jump into memory, whatever
//! the data structure: the *random* rows, the worst case. Both sets are measured in one run, a slice of one and then a slice
//! of the other, and compared slice by slice, so that a busy machine disturbs both.
//!
//! `cargo bench --bench find`

#[path = "support/allocations.rs"]
mod allocations;

use std::{
    collections::BTreeMap, fmt::Write, hint::black_box, sync::atomic::Ordering::Relaxed, time::Duration,
};

use allocations::{CALLS, LIVE};

use bytes::Bytes;
use tollgate::{
    clock::{Clock, SystemClock},
    limit::Entry,
    rules::{Dialect, Domain, RuleSet, compile},
};

const MANY: usize = 1_000_000;
const FEW: usize = 10;

/// Questions a slice: few enough to stay in a near cache, so that reading them costs nothing beside the look-up.
const QUESTIONS: usize = 1_000;

/// Slices a measurement. Each draws its callers anew, so that in a million hardly one comes twice.
const SLICES: usize = 500;

/// What callers are called.
const KNOWN: &str = "tenant";
const UNKNOWN: &str = "nobody";

fn main() {
    let (few, many) = (load(FEW), load(MANY));
    let mut draw = Draw(0x9E37_79B9_7F4A_7C15);
    println!(
        "\nfind by tenant and route         among 10   among 1,000,000   ratio (medians of {SLICES} slices)"
    );
    compare("hot: the same ten callers", TIERED, [(&few, FEW, KNOWN), (&many, FEW, KNOWN)], &mut draw);
    compare("random: any of all callers", TIERED, [(&few, FEW, KNOWN), (&many, MANY, KNOWN)], &mut draw);
    compare(
        "random: callers nobody knows",
        TIERED,
        [(&few, MANY, UNKNOWN), (&many, MANY, UNKNOWN)],
        &mut draw,
    );
    println!(
        "one read of cold memory         {:>24.1} ns    what a look-up among many cannot undercut",
        cold_read()
    );
    drop((few, many));

    let (few, many) = (descriptors(FEW), descriptors(MANY / 10));
    println!("\nfind by exact values             among 10     among 100,000");
    compare("hot: the same ten callers", DESCRIPTORS, [(&few, FEW, KNOWN), (&many, FEW, KNOWN)], &mut draw);
    compare(
        "random: any of all callers",
        DESCRIPTORS,
        [(&few, FEW, "tenant"), (&many, MANY / 10, KNOWN)],
        &mut draw,
    );
}

/// Rules with so many tenants in a csv file; tells what loading costs.
fn load(tenants: usize) -> RuleSet {
    let mut csv = String::with_capacity(tenants * 20);
    for tenant in 0..tenants {
        let _ = writeln!(csv, "{},{}", name(KNOWN, tenant), ["free", "pro", "enterprise"][tenant % 3]);
    }
    let rules = "domain: api
tenant: tenant
route: route
default_tier: free
tiers:
  free: {rate: 10/s, burst: 20}
  pro: {rate: 100/s, routes: {search: {rate: 20/s}}}
  enterprise: {rate: 1000/s, daily: {rate: 5000000/d, algorithm: fixed_window}}
tenants_from: tenants.csv";
    let files = [("api.yaml", rules.as_bytes().to_vec()), ("tenants.csv", csv.into_bytes())];
    let files = BTreeMap::from(files.map(|(name, text)| (name.to_owned(), text)));
    let (before, at) = (LIVE.load(Relaxed), SystemClock.instant());
    let loaded = compiled(&files);
    let (took, bytes) = (at.elapsed(), LIVE.load(Relaxed) - before);
    println!(
        "load {tenants:>9} tenants: {:>6.0} ms, {bytes} bytes, {:.1} bytes a tenant, whose name has {}",
        took.as_secs_f64() * 1e3,
        bytes as f64 / tenants as f64,
        name(KNOWN, 0).len(),
    );
    loaded
}

/// Rules with so many values of one key, in the reference's form.
fn descriptors(values: usize) -> RuleSet {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for value in 0..values {
        let _ = writeln!(
            text,
            "- {{key: tenant, value: {}, rate_limit: {{unit: second, requests_per_unit: 1}}}}",
            name(KNOWN, value)
        );
    }
    compiled(&BTreeMap::from([("a.yaml".to_owned(), text.into_bytes())]))
}

fn compiled(files: &BTreeMap<String, Vec<u8>>) -> RuleSet {
    compile(files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules
}

fn name(kind: &str, number: usize) -> String {
    format!("{kind}-{number:07}")
}

/// Callers drawn at random (xorshift), the same ones in each run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("the bound is one")
    }
}

/// Rules, how many of their callers ask, and what these are called.
type Side<'r> = (&'r RuleSet, usize, &'static str);

/// Entries a question: tenant and route, or the tenant alone.
const TIERED: usize = 2;
const DESCRIPTORS: usize = 1;

fn compare(what: &str, depth: usize, sides: [Side<'_>; 2], draw: &mut Draw) {
    let mut slices: Vec<[f64; 2]> = Vec::with_capacity(SLICES);
    let mut calls = 0;
    for _ in 0..SLICES {
        slices.push(sides.map(|(rules, callers, kind)| {
            let domain = rules.domain(b"api").expect("the domain is named");
            let questions = questions(callers, kind, depth, draw);
            let before = CALLS.load(Relaxed);
            let nanos = time(domain, &questions).as_secs_f64() * 1e9 / QUESTIONS as f64;
            calls += CALLS.load(Relaxed) - before;
            nanos
        }));
    }
    let median = |value: fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = slices.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[SLICES / 2]
    };
    let (few, many, ratio) =
        (median(|slice| slice[0]), median(|slice| slice[1]), median(|slice| slice[1] / slice[0]));
    println!("{what:<30} {few:>8.1} ns       {many:>8.1} ns    {ratio:>5.2}   {calls} allocations");
    assert_eq!(calls, 0, "finding rules must not allocate");
}

/// Nanoseconds that one read takes at a random place of as much memory as the tenants fill, each place known only when
/// the one before was read: this machine's floor for what was not asked for lately.
fn cold_read() -> f64 {
    const WORDS: usize = 21 * MANY / size_of::<usize>();
    const READS: usize = 200_000;
    let mut draw = Draw(0x2545_F491_4F6C_DD1D);
    let places: Vec<usize> = (0..WORDS).map(|_| draw.below(WORDS)).collect();
    let (mut place, began) = (0, SystemClock.instant());
    for read in 0..READS {
        place = (places[place] + read) % WORDS;
    }
    black_box(place);
    began.elapsed().as_secs_f64() * 1e9 / READS as f64
}

fn questions(callers: usize, kind: &str, depth: usize, draw: &mut Draw) -> Vec<Vec<Entry>> {
    let entry = |key: &'static str, value: &str| Entry {
        key: Bytes::from_static(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    (0..QUESTIONS)
        .map(|_| vec![entry("tenant", &name(kind, draw.below(callers))), entry("route", "search")])
        .map(|entries| entries[..depth].to_vec())
        .collect()
}

fn time(domain: &Domain, questions: &[Vec<Entry>]) -> Duration {
    let at = SystemClock.instant();
    for entries in questions {
        black_box(domain.find(entries).rules().next());
    }
    at.elapsed()
}
