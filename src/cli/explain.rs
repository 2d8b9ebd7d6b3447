//! `tollgate explain`: which rules a request meets, why, and what would be answered.
//!
//! It asks the very service that `serve` runs, on a memory store that knows nothing yet, and shows what that one plans
//! and answers. There is no second opinion here that could differ from the first.

use std::{sync::Arc, time::Duration};

use clap::Args;
use serde_json::{Value, json};

use super::{
    Failure, answer,
    ask::{Ask, Descriptor},
    rules::{self, AnswerSettings, DirArg},
    terminal::{Terminal, columns, human},
};
use crate::{
    admin,
    clock::{Clock, SystemClock},
    limit::{Limit, OnRefusal, Role},
    limiter::{self, Limiter, Planned, Question},
    metrics::Metrics,
    proto::envoy::service::ratelimit::v3::RateLimitResponse,
    rules::{Domain, FailureMode, Found, Rule, Step, Unit},
    service::{Deadline, Service, wire},
    settings::Settings,
    store::memory::MemoryStore,
};

/// Keys of one request: as many limits as it could be charged to.
const KEYS_MAX: usize = 1024;

/// Keys of a split limit that are shown; in JSON all are.
const KEYS_SHOWN: usize = 2;

/// How long the memory store may take, which never waits.
const WITHIN: Duration = Duration::from_secs(1);

#[derive(Args, Clone, Debug)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    ask: Ask,

    #[command(flatten)]
    settings: AnswerSettings,
}

/// # Errors
/// Mistakes in the rules, a wrong argument, or a request that the service would not accept.
pub(super) fn run(args: &ExplainArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let settings = args.settings.compile()?;
    let compiled = rules::load(&args.dir, &settings)?.compiled;
    let limiter = limiter(&settings);
    limiter.load(Arc::new(compiled.rules));
    let loaded = limiter.loaded().expect("rules were just loaded");

    let request = args.ask.request();
    let question = wire::question(request.clone());
    let refuse = |why: limiter::Invalid| Failure::usage(format!("the service would not accept it: {why}"));
    let planned = limiter.plan(&loaded, &question).map_err(refuse)?;
    let response = ask(&settings, &limiter, args)?;
    let explained = Explained { loaded: &loaded, question: &question, planned: &planned };
    if args.ask.json {
        terminal.line(format!("{:#}", explained.to_json(&response)));
    } else {
        explained.show(terminal);
        terminal.line(format!("\nWith nothing spent before, {}:", args.ask.cost()));
        answer::show(terminal, &request, &response);
    }
    Ok(())
}

type Explaining = Arc<Limiter<SystemClock, MemoryStore<SystemClock>>>;

fn limiter(settings: &Settings) -> Explaining {
    let store = || MemoryStore::new(SystemClock, KEYS_MAX);
    Arc::new(Limiter::new(SystemClock, store(), store(), settings.into(), Metrics::new()))
}

fn ask(settings: &Settings, limiter: &Explaining, args: &ExplainArgs) -> Result<RateLimitResponse, Failure> {
    let answers = settings.answers.clone();
    let service = Service::new(SystemClock, Arc::clone(limiter), answers, Metrics::new(), None);
    let deadline = Deadline::after(WITHIN, SystemClock.instant());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|why| Failure::mistakes(format!("the system gives no runtime: {why}")))?;
    runtime
        .block_on(service.answer(args.ask.request(), deadline))
        .map_err(|why| Failure::mistakes(why.to_string()))
}

struct Explained<'r> {
    loaded: &'r limiter::Loaded,
    question: &'r Question,
    planned: &'r [Planned<'r>],
}

/// How one descriptor fared.
struct Way<'r> {
    shown: String,
    steps: Vec<Step>,
    charges: Vec<&'r Planned<'r>>,
    /// Rules that matched and are not charged.
    uncharged: Vec<(&'r Rule, &'static str)>,
    /// What it means that nothing is charged.
    free: Option<&'static str>,
}

impl<'r> Explained<'r> {
    fn domain(&self) -> Option<&'r Domain> {
        self.loaded.rules.domain(&self.question.domain)
    }

    fn ways(&self) -> Vec<Way<'r>> {
        let descriptors = self.question.descriptors.iter().enumerate();
        descriptors.map(|(index, descriptor)| self.way(index, descriptor)).collect()
    }

    fn way(&self, index: usize, descriptor: &limiter::Descriptor) -> Way<'r> {
        let entries = descriptor.entries.as_slice();
        let found = self.domain().map(|domain| domain.find(entries));
        let charges: Vec<_> = self.planned.iter().filter(|planned| planned.descriptor == index).collect();
        let charged = |rule: &Rule| {
            charges.iter().any(|planned| planned.rule.is_some_and(|charged| std::ptr::eq(charged, rule)))
        };
        let matched = found.iter().flat_map(Found::rules);
        let uncharged: Vec<_> = matched
            .filter(|rule| !charged(rule))
            .map(|rule| match rule.limit {
                None => (rule, "unlimited"),
                Some(_) => (rule, "replaced by another rule of this request"),
            })
            .collect();
        let free = match found {
            _ if !charges.is_empty() || !uncharged.is_empty() => None,
            None => Some("no rule file names the domain, so it passes"),
            Some(found) if found.is_exempt() => Some("a rule without a limit matches, so it passes"),
            Some(_) => Some("no rule matches, so it passes (and is counted as unmatched)"),
        };
        Way {
            shown: Descriptor::of(entries).to_string(),
            steps: self.domain().map(|domain| domain.explain(entries)).unwrap_or_default(),
            charges,
            uncharged,
            free,
        }
    }

    fn show(&self, terminal: &mut Terminal) {
        let paint = terminal.paint();
        let domain = String::from_utf8_lossy(&self.question.domain).into_owned();
        if self.domain().is_none() {
            let known = self.domains();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            terminal.line(format!("No rule file names the domain {domain}; named are: {known}"));
        }
        for (index, way) in self.ways().iter().enumerate() {
            if index > 0 {
                terminal.line("");
            }
            terminal.line(format!("{} in domain {domain}", paint.strong(&way.shown)));
            show_steps(terminal, &way.steps);
            for planned in &way.charges {
                show_charge(terminal, planned);
            }
            for (rule, why) in &way.uncharged {
                terminal.line(format!("  rule  {}: {why}  {}", rule.policy, place(rule)));
            }
            if let Some(why) = way.free {
                terminal.line(format!("  {why}"));
            }
        }
    }

    /// The domains that rules name, for who mistyped one.
    fn domains(&self) -> Vec<&str> {
        let labels = self.loaded.rules.metric_labels().iter();
        let mut domains: Vec<&str> = labels.map(|(domain, _)| &**domain).collect();
        domains.sort_unstable();
        domains.dedup();
        domains
    }

    fn to_json(&self, response: &RateLimitResponse) -> Value {
        let descriptors: Vec<Value> = self.ways().iter().map(way_json).collect();
        let answer = admin::json::response(response);
        json!({
            "domain": String::from_utf8_lossy(&self.question.domain),
            "domainKnown": self.domain().is_some(),
            "revision": self.loaded.rules.revision(),
            "descriptors": descriptors,
            "answer": serde_json::from_str::<Value>(&answer).expect("it was just written as JSON"),
        })
    }
}

fn show_steps(terminal: &mut Terminal, steps: &[Step]) {
    let rows: Vec<[String; 2]> = steps
        .iter()
        .map(|step| [step.tried.clone(), if step.matched { "matches" } else { "no match" }.into()])
        .collect();
    for (index, (step, [tried, result])) in steps.iter().zip(columns(&rows)).enumerate() {
        let label = if index == 0 { "tried" } else { "" };
        let at = step.place().map(|place| format!("  {place}")).unwrap_or_default();
        let line = format!("  {label:6}{tried}  {result}{at}");
        let line = line.trim_end();
        terminal.line(if step.matched { line.to_owned() } else { terminal.paint().faint(line) });
    }
}

fn show_charge(terminal: &mut Terminal, planned: &Planned<'_>) {
    let limit = terminal.paint().strong(words(&planned.charge.limit));
    terminal.line(match (planned.rule, planned.overridden) {
        (Some(rule), false) => format!("  rule  {}: {limit}  {}", rule.policy, place(rule)),
        (Some(rule), true) => {
            format!("  rule  {}: {limit}, brought along instead of its own  {}", rule.policy, place(rule))
        }
        (None, _) => format!("  rule  none: {limit}, brought along"),
    });
    let keys = keys(planned);
    for (index, key) in keys.iter().take(KEYS_SHOWN).enumerate() {
        terminal.line(format!("  {:6}{key}", if index == 0 { "key" } else { "" }));
    }
    if keys.len() > KEYS_SHOWN {
        terminal.line(format!("        and {} more, {} in all", keys.len() - KEYS_SHOWN, keys.len()));
    }
    let modes = modes(planned);
    if !modes.is_empty() {
        terminal.line(format!("  mode  {}", modes.join("; ")));
    }
}

/// What its counters are called.
fn keys(planned: &Planned<'_>) -> Vec<String> {
    let key = &planned.charge.key;
    (0..key.shards().map_or(1, u8::from)).map(|index| key.shard(index).to_string()).collect()
}

/// `50 a second, at most 100 at once (token_bucket)`
fn words(limit: &Limit) -> String {
    let algorithm = limit.algorithm().as_str();
    if limit.requests() == 0 {
        return format!("blocked ({algorithm})");
    }
    let unit = Unit::ALL.into_iter().find(|unit| unit.window_us() == limit.window_us());
    let window = match unit {
        // `Unit` has the numbers of the wire.
        Some(unit) => answer::unit((unit as i32).try_into().unwrap_or_default()).to_owned(),
        None => format!("in {}", human(Duration::from_micros(limit.window_us()))),
    };
    let burst = match limit.burst() {
        burst if burst == limit.requests() => String::new(),
        burst => format!(", at most {burst} at once"),
    };
    format!("{} {window}{burst} ({algorithm})", limit.requests())
}

/// What is not as it mostly is.
fn modes(planned: &Planned<'_>) -> Vec<String> {
    let mut modes = Vec::new();
    match planned.charge.role {
        Role::Enforce => {}
        Role::Shadow => modes.push("shadow: never refuses".into()),
        Role::Quota => modes.push("quota: refuses only when all quotas of the request are over".into()),
    }
    match planned.charge.on_refusal {
        OnRefusal::Keep => {}
        OnRefusal::Drain => modes.push("refused hits use up what was left (`mode: enforce` keeps it)".into()),
        OnRefusal::Count => modes.push("refused hits count, too".into()),
    }
    if let Some(rule) = planned.rule {
        modes.push(format!("on_store_failure: {}", failure_mode(rule.on_store_failure)));
        if !rule.headers {
            modes.push("headers: false, its numbers are not told to clients".into());
        }
        match rule.lease {
            None => {}
            Some(0) => modes.push("lease: 0, each hit asks the store".into()),
            Some(lease) => modes.push(format!("lease: up to {lease} hits are taken ahead, and spent here")),
        }
        if let Some(shards) = planned.charge.key.shards() {
            modes.push(format!("shards: {shards} counters, each of a part of the limit"));
        }
    }
    modes
}

fn failure_mode(mode: FailureMode) -> &'static str {
    match mode {
        FailureMode::Allow => "allow",
        FailureMode::Local => "local",
        FailureMode::Error => "error",
        FailureMode::Deny => "deny",
    }
}

fn place(rule: &Rule) -> String {
    format!("{}:{}", rule.at.0, rule.at.1)
}

fn way_json(way: &Way<'_>) -> Value {
    let steps = way.steps.iter().map(|step| {
        json!({
            "tried": step.tried,
            "matched": step.matched,
            "at": step.place(),
        })
    });
    let charges = way.charges.iter().map(|planned| {
        let limit = &planned.charge.limit;
        json!({
            "rule": planned.rule.map(place),
            "policy": planned.rule.map(|rule| &*rule.policy),
            "overridden": planned.overridden,
            "algorithm": limit.algorithm().as_str(),
            "requests": limit.requests(),
            "windowMicros": limit.window_us(),
            "burst": limit.burst(),
            "key": planned.charge.key.to_string(),
            "keys": keys(planned),
            "modes": modes(planned),
        })
    });
    let uncharged = way
        .uncharged
        .iter()
        .map(|(rule, why)| json!({ "rule": place(rule), "policy": &*rule.policy, "why": why }));
    json!({
        "descriptor": way.shown,
        "steps": steps.collect::<Vec<_>>(),
        "charges": charges.collect::<Vec<_>>(),
        "uncharged": uncharged.collect::<Vec<_>>(),
        "free": way.free,
    })
}
