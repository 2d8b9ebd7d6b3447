//! `tollgate doctor`: what is wrong with a store, in words, and how to mend it.
//!
//! It connects as the service would, with the same settings, and asks each server what it needs to know: whether it is
//! there and lets us in, who decides and who stands by, whether all slots are served, version, latency, memory and
//! eviction, clock, rights, and whether the script runs. `store/redis/doctor` finds the facts, [`judge`] says what they
//! mean. It writes a few keys `tg:doctor:…`, which are gone when it ends.

mod judge;

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{
    EXIT_FAILED, EXIT_NO, Failure,
    rules::{Picked, Subset},
    terminal::{Terminal, columns},
};
use crate::{
    server::redis_config,
    settings::{Backend, Settings, values::positive_duration},
    store::redis::{RedisConfig, doctor::examine},
};
use judge::{Level, Section, judge};

#[derive(Args, Clone, Debug)]
pub(super) struct DoctorArgs {
    /// The store, as REDIS_URL names it: HOST:PORT, redis://USER:PASSWORD@HOST:PORT, redis-cluster://HOST:PORT,HOST:PORT,
    /// redis-sentinel://HOST:PORT,HOST:PORT/NAME [default: REDIS_URL]
    #[arg(value_name = "URL")]
    url: Option<String>,

    /// Answer in JSON, for programs
    #[arg(long)]
    json: bool,

    /// How long to wait for each connection
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = positive_duration)]
    timeout: Duration,

    #[command(flatten)]
    settings: Picked<Store>,
}

/// What says how to reach a store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Store {}

impl Subset for Store {
    const NAMES: &'static [&'static str] = &[
        "STORE_TIMEOUT",
        "REDIS_URL",
        "REDIS_TYPE",
        "REDIS_AUTH",
        "REDIS_AUTH_FILE",
        "REDIS_SENTINEL_AUTH",
        "REDIS_SENTINEL_AUTH_FILE",
        "REDIS_SOCKET_TYPE",
        "REDIS_TLS",
        "REDIS_TLS_CACERT",
        "REDIS_TLS_CLIENT_CERT",
        "REDIS_TLS_CLIENT_KEY",
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "REDIS_TLS_SERVER_NAME",
        "REDIS_PERSECOND",
        "REDIS_PERSECOND_URL",
        "REDIS_PERSECOND_TYPE",
        "REDIS_PERSECOND_AUTH",
        "REDIS_PERSECOND_AUTH_FILE",
        "REDIS_PERSECOND_SENTINEL_AUTH",
        "REDIS_PERSECOND_SENTINEL_AUTH_FILE",
        "REDIS_PERSECOND_SOCKET_TYPE",
        "REDIS_PERSECOND_TLS",
        "CACHE_KEY_PREFIX",
    ];
}

/// Prints what was found, and says so in the exit code.
///
/// # Errors
/// A setting that is wrong.
pub(super) fn run(args: &DoctorArgs, terminal: &mut Terminal) -> Result<u8, Failure> {
    let settings = match &args.url {
        Some(url) => args.settings.compile_with("REDIS_URL", url)?,
        None => args.settings.compile()?,
    };
    let config = config(&settings, args.timeout)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Failure::call(format!("the system gives no runtime: {why}")))?;
    let examined = runtime.block_on(examine(&config, &settings.keys));
    let examined = examined.map_err(|why| Failure::usage(why.to_string()))?;
    let judged = judge(&examined, settings.store.timeout);
    if args.json {
        show_json(terminal, &judged);
    } else {
        show(terminal, &judged);
    }
    Ok(match worst(&judged) {
        _ if !examined.iter().all(judge::is_reached) => EXIT_FAILED,
        Level::Bad => EXIT_NO,
        Level::Warn | Level::Ok => 0,
    })
}

fn config(settings: &Settings, timeout: Duration) -> Result<RedisConfig, Failure> {
    let Backend::Redis(redis) = &settings.backend else {
        return Err(Failure::usage(
            "name the store to examine: `tollgate doctor HOST:PORT`, or set REDIS_URL",
        ));
    };
    let config = redis_config(redis, settings.store.timeout);
    let per_second =
        config.per_second.map(|second| Box::new(RedisConfig { connect_timeout: timeout, ..*second }));
    Ok(RedisConfig { connect_timeout: timeout, per_second, ..config })
}

fn worst(judged: &[Section]) -> Level {
    let levels = judged.iter().flat_map(|section| &section.lines).map(|line| line.level);
    levels.max().unwrap_or(Level::Ok)
}

fn show(terminal: &mut Terminal, judged: &[Section]) {
    let paint = terminal.paint();
    for (i, section) in judged.iter().enumerate() {
        if i > 0 {
            terminal.line("");
        }
        terminal.line(paint.strong(&section.about));
        let rows: Vec<[String; 2]> =
            section.lines.iter().map(|line| [line.level.word().to_owned(), line.check.to_owned()]).collect();
        for ([level, check], line) in columns(&rows).into_iter().zip(&section.lines) {
            let level = match line.level {
                Level::Ok => paint.good(level),
                Level::Warn => paint.warning(level),
                Level::Bad => paint.bad(level),
            };
            terminal.line(format!("  {level}  {check}  {}", line.found));
            if let Some(mend) = &line.mend {
                terminal.line(format!("        {}", paint.faint(format!("mend: {mend}"))));
            }
        }
    }
    let count =
        |wanted| judged.iter().flat_map(|section| &section.lines).filter(|line| line.level == wanted).count();
    let (warn, bad) = (count(Level::Warn), count(Level::Bad));
    terminal.line(format!(
        "\n{}",
        match (bad, warn) {
            (0, 0) => paint.good("all is well"),
            (0, _) => paint.warning(format!("it will do; {warn} to think about")),
            (_, _) => paint.bad(format!("{bad} to mend, {warn} to think about")),
        }
    ));
}

/// One object, with what [`show`] says.
fn show_json(terminal: &mut Terminal, judged: &[Section]) {
    #[derive(Serialize)]
    struct Told<'t> {
        verdict: &'static str,
        sections: &'t [Section],
    }
    let told = Told { verdict: worst(judged).word(), sections: judged };
    // Texts and words only, so there is nothing that could fail.
    terminal.line(serde_json::to_string(&told).unwrap_or_default());
}
