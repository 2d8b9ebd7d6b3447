//! What it costs to find the rules of a request, and to load a million tenants.
//!
//! The claim: a look-up allocates nothing and costs the same among ten tenants and among a million. "The same" has two
//! sides. The work is the same, which shows where the same callers come again and again, as they do: the *hot* rows. But a
//! million tenants do not fit into a near cache, so a caller who comes for the first time costs a jump into memory, whatever
//! the data structure: the *random* rows, the worst case. Both sets are measured in one run, a slice of one and then a slice
//! of the other, and compared slice by slice, so that a busy machine disturbs both.
//!
//! `cargo bench --bench find`

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    fmt::Write,
    hint::black_box,
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tollgate::{
    clock::{Clock, SystemClock},
    limit::Entry,
    rules::{Dialect, Domain, RuleSet, compile},
};

const MANY: usize = 1_000_000;
const FEW: usize = 10;

/// Questions a slice, and slices a measurement.
const QUESTIONS: usize = 50_000;
const SLICES: usize = 60;

/// Counts what is allocated, and how often.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(
    unsafe_code,
    reason = "the trait is unsafe; every call goes on to the system's allocator as it came"
)]
// SAFETY: System keeps the contract; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size().cast_signed(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size().cast_signed(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

fn main() {
    let (few, many) = (load(FEW), load(MANY));
    let (few, many) = (domain(&few), domain(&many));
    println!(
        "\nfind by tenant and route       among 10   among 1,000,000   ratio (median of {SLICES} slices)"
    );
    let asked = |tenants: usize| questions(QUESTIONS, tenants);
    compare("hot: the same ten callers", few, &asked(FEW), many, &asked(FEW));
    compare("random: any of all callers", few, &asked(FEW), many, &asked(MANY));
    let unknown: Vec<Vec<Entry>> = (0..QUESTIONS).map(|n| question(&format!("nobody-{n:07}"))).collect();
    compare("random: callers nobody knows", few, &unknown, many, &unknown);

    let (few, many) = (descriptors(FEW), descriptors(MANY / 10));
    println!("\nfind by exact value            among 10     among 100,000");
    compare("hot: the same ten callers", domain(&few), &asked(FEW), domain(&many), &asked(FEW));
    compare("random: any of all callers", domain(&few), &asked(FEW), domain(&many), &asked(MANY / 10));
}

/// Rules with so many tenants in a csv file; tells what loading costs.
fn load(tenants: usize) -> RuleSet {
    let mut csv = String::with_capacity(tenants * 20);
    for tenant in 0..tenants {
        let _ = writeln!(csv, "{},{}", name(tenant), ["free", "pro", "enterprise"][tenant % 3]);
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
    let (before, at) = (LIVE.load(Relaxed), SystemClock.instant());
    let files = [("api.yaml", rules.as_bytes().to_vec()), ("tenants.csv", csv.into_bytes())];
    let files = BTreeMap::from(files.map(|(name, text)| (name.to_owned(), text)));
    let loaded = compiled(&files);
    let took = at.elapsed();
    drop(files);
    let bytes = LIVE.load(Relaxed) - before + (tenants * 20).cast_signed();
    // The csv's text was counted before, and is gone now.
    println!(
        "load {tenants:>9} tenants: {:>6.0} ms, {bytes} bytes, {:.1} bytes a tenant ({} in the file)",
        took.as_secs_f64() * 1e3,
        bytes as f64 / tenants as f64,
        name(0).len() + 6,
    );
    loaded
}

/// Rules with so many values of one key, in the reference's form.
fn descriptors(values: usize) -> RuleSet {
    let mut text = "domain: api\ndescriptors:\n".to_owned();
    for value in 0..values {
        let _ = writeln!(
            text,
            "- {{key: tenant, value: {}, descriptors: [{{key: route, rate_limit: {{unit: second, requests_per_unit: 1}}}}]}}",
            name(value)
        );
    }
    compiled(&BTreeMap::from([("a.yaml".to_owned(), text.into_bytes())]))
}

fn compiled(files: &BTreeMap<String, Vec<u8>>) -> RuleSet {
    compile(files, Dialect::default()).unwrap_or_else(|mistakes| panic!("{mistakes}")).rules
}

fn domain(rules: &RuleSet) -> &Domain {
    rules.domain(b"api").expect("the domain is named")
}

fn name(tenant: usize) -> String {
    format!("tenant-{tenant:07}")
}

fn question(tenant: &str) -> Vec<Entry> {
    let entry = |key: &'static str, value: &str| Entry {
        key: Bytes::from_static(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
    };
    vec![entry("tenant", tenant), entry("route", "search")]
}

/// Questions of tenants drawn at random (xorshift, so that runs are alike).
fn questions(count: usize, tenants: usize) -> Vec<Vec<Entry>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % tenants as u64).expect("fewer than 2^32")
    };
    (0..count).map(|_| question(&name(draw()))).collect()
}

fn compare(what: &str, few: &Domain, of_few: &[Vec<Entry>], many: &Domain, of_many: &[Vec<Entry>]) {
    let calls = CALLS.load(Relaxed);
    let mut times = [(Duration::ZERO, Duration::ZERO); SLICES];
    for slice in &mut times {
        *slice = (time(few, of_few), time(many, of_many));
    }
    let calls = CALLS.load(Relaxed) - calls;
    let nanos = |time: Duration| time.as_secs_f64() * 1e9 / QUESTIONS as f64;
    let median = |value: fn(&(Duration, Duration)) -> f64| {
        let mut values = times.each_ref().map(value);
        values.sort_by(f64::total_cmp);
        values[SLICES / 2]
    };
    println!(
        "{what:<30} {:>5.1} ns         {:>6.1} ns    {:>5.2}   {calls} allocations",
        nanos(Duration::from_secs_f64(median(|(few, _)| few.as_secs_f64()))),
        nanos(Duration::from_secs_f64(median(|(_, many)| many.as_secs_f64()))),
        median(|(few, many)| many.as_secs_f64() / few.as_secs_f64()),
    );
    assert_eq!(calls, 0, "finding rules must not allocate");
}

fn time(domain: &Domain, questions: &[Vec<Entry>]) -> Duration {
    let at = SystemClock.instant();
    for entries in questions {
        black_box(domain.find(entries).rules().next());
    }
    at.elapsed()
}
