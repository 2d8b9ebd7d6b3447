//! What differs: the README's table, as far as it concerns a deployment.
//!
//! The table is read from the README itself. A second copy here would be the one that nobody keeps up.

use super::environment::{Environment, is_ours};
use crate::settings::{table, table::Initial};

const README: &str = include_str!("../../../README.md");

/// Something that is otherwise here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) what: String,
    pub(super) there: String,
    pub(super) here: String,
    /// What keeps the old way.
    pub(super) keep: String,
}

/// What is known of a deployment's rules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    /// A rule has a wildcard.
    pub(super) stars: bool,
    /// A rule has clients' values in the names of its metrics.
    pub(super) values_in_metrics: bool,
    /// Files that the reference reads and we do not.
    pub(super) unread: usize,
}

/// The rows of the README's section "Differences".
pub(super) fn rows() -> Vec<Difference> {
    let (_, section) = README.split_once("\n## Differences\n").unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // The first names the columns.
    rows.skip(1)
        .filter_map(|line| {
            let cells: Vec<String> = cells(line);
            let [what, there, here, keep] = cells.try_into().ok()?;
            Some(Difference { what, there, here, keep })
        })
        .collect()
}

fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\0");
    line.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

/// The rows that concern a deployment. What cannot be told from rules and environment concerns everybody.
pub(super) fn that_concern(rules: Rules, environment: &Environment) -> Vec<Difference> {
    let compat = environment.is("TOLLGATE_COMPAT", "reference");
    let xds = environment.is("CONFIG_TYPE", "GRPC_XDS_SOTW");
    rows()
        .into_iter()
        .filter(|row| !(compat && row.keep.starts_with("compat")))
        // Nobody has to do anything about it, and nothing that anybody relies on differs.
        .filter(|row| !row.keep.starts_with("none is needed"))
        .filter(|row| {
            // A row that says "X, or Y" is settled by Y, too; where it says "X, Y" each does its part.
            let settled =
                row.keep.split('`').skip(1).step_by(2).filter_map(|setting| setting.split_once('='));
            !settled.into_iter().any(|(name, value)| environment.is(name, value))
        })
        .filter(|row| xds || !(row.what.contains("management server") || row.what.contains("XDS")))
        .filter(|row| match &*row.what {
            "Headers that nobody asked for" => !environment.is("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            "`Retry-After`" => environment.is("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            "A value that is the text of a wildcard" => rules.stars,
            "Names of rule files" => rules.unread > 0,
            // A pair without `=` is a wrong value, and told among these.
            "`CONFIG_GRPC_XDS_NODE_METADATA` with a pair that has no `=`" => false,
            "Clients with `GRPC_CLIENT_TLS_CACERT`" => environment.has("GRPC_CLIENT_TLS_CACERT"),
            // A wrong value, too.
            "`GRPC_CLIENT_TLS_SAN` without `GRPC_CLIENT_TLS_CACERT`" => false,
            "Names of metrics with clients' values" => rules.values_in_metrics,
            "Metrics to statsd" => {
                !["USE_STATSD", "STATSD_HOST", "STATSD_PORT"].iter().any(|name| environment.has(name))
            }
            "A PROMETHEUS_MAPPER_YAML that is wrong" => environment.has("PROMETHEUS_MAPPER_YAML"),
            "EXTRA_TAGS with Prometheus" => {
                environment.has("EXTRA_TAGS") && environment.is("USE_PROMETHEUS", "true")
            }
            "The debug port" => !environment.has("DEBUG_HOST"),
            "A limit that is over" => !environment.has("LOCAL_CACHE_SIZE_IN_BYTES"),
            "Time for the store" => !environment.has("STORE_TIMEOUT"),
            _ => true,
        })
        .collect()
}

/// Defaults of the reference. Ours may be others; whoever relies on one has not written it down.
const THEIR_DEFAULTS: &[(&str, &str)] = &[
    ("HOST", "0.0.0.0"),
    ("PORT", "8080"),
    ("GRPC_HOST", "0.0.0.0"),
    ("GRPC_PORT", "8081"),
    ("DEBUG_PORT", "6070"),
    ("LOG_LEVEL", "WARN"),
    ("LOG_FORMAT", "text"),
    ("RUNTIME_APPDIRECTORY", "config"),
    ("MERGE_DOMAIN_CONFIG", "false"),
    ("SHADOW_MODE", "false"),
    ("QUOTA_MODE", "false"),
    ("RESPONSE_DYNAMIC_METADATA", "false"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "300"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false"),
    ("NEAR_LIMIT_RATIO", "0.8"),
    ("REDIS_TIMEOUT", "10s"),
    ("REDIS_TLS", "false"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false"),
    ("CONFIG_TYPE", "FILE"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "false"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false"),
    ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
    ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
    ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
];

/// Variables that an environment leaves out and whose defaults are others here.
pub(super) fn of_defaults(environment: &Environment) -> Vec<Difference> {
    let differ = |what: &str, there: &str, here: &str, keep: String| Difference {
        what: format!("{what} is not set"),
        there: there.to_owned(),
        here: here.to_owned(),
        keep,
    };
    let mut found = Vec::new();
    for &(name, theirs) in THEIR_DEFAULTS {
        let row = table().iter().find(|row| row.name == name);
        let Some(Initial::Text(ours)) = row.map(|row| row.default) else { continue };
        if !environment.has(name) && !ours.eq_ignore_ascii_case(theirs) {
            found.push(differ(name, theirs, ours, format!("`{name}={theirs}`")));
        }
    }
    if !environment.has("REDIS_URL") && is_ours("REDIS_URL") && !environment.has("BACKEND_TYPE") {
        let socket = "/var/run/nutcracker/ratelimit.sock";
        found.push(differ(
            "REDIS_URL",
            socket,
            "budgets are kept in memory",
            format!("`REDIS_URL={socket}`"),
        ));
    }
    let named = ["TOLLGATE_RULES", "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY"];
    let xds = environment.is("CONFIG_TYPE", "GRPC_XDS_SOTW");
    if !xds && !named.iter().any(|name| environment.has(name)) {
        let root = "/srv/runtime_data/current";
        found.push(differ(
            "RUNTIME_ROOT",
            &format!("{root}/config"),
            "rules",
            format!("`RUNTIME_ROOT={root}`"),
        ));
    }
    found
}

impl Environment {
    /// Whether a variable is set to something, seen or unseen.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|value| !value.is_empty()) || self.unseen.contains_key(name)
    }

    /// Whether a variable is set to this.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.eq_ignore_ascii_case(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_that_depend_on_a_deployment_are_rows_of_the_readme() {
        let rows = rows();
        assert!(rows.len() > 10 && rows.iter().all(|row| !row.keep.is_empty()), "{rows:?}");
        let source = include_str!("differences.rs");
        let (_, arms) = source.split_once("match &*row.what {").expect("it is there");
        let arms = arms.split("_ => true").next().unwrap_or_default();
        let names: Vec<&str> = arms
            .lines()
            .filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" =>").map(|(name, _)| name))
            .collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            assert!(rows.iter().any(|row| row.what == name), "README.md has no row {name:?} in Differences");
        }
    }

    #[test]
    fn a_setting_that_is_named_or_the_switch_settles_a_row() {
        let told = |pairs: &[(&str, &str)]| {
            let known = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let environment = Environment { known, ..Environment::default() };
            let rows = that_concern(Rules::default(), &environment);
            rows.into_iter().map(|row| row.what).collect::<Vec<_>>()
        };
        let has = |rows: &[String], what: &str| rows.iter().any(|row| row == what);
        let (none, headers) = (told(&[]), told(&[("LIMIT_HEADERS", "none")]));
        assert!(
            has(&none, "Headers that nobody asked for") && !has(&headers, "Headers that nobody asked for")
        );
        assert!(has(&none, "Time for the store"));
        let compat = told(&[("TOLLGATE_COMPAT", "reference"), ("STORE_TIMEOUT", "10s")]);
        assert_eq!(compat, Vec::<String>::new(), "a plain deployment in compat has nothing to do");
    }
}
