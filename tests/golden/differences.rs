//! Which cases differ without `TOLLGATE_COMPAT=reference`, by the row of the README's "Differences" that says so.

use std::{fs, path::Path};

/// The first cell of a row, and the cases that show it. A case may show several.
#[rustfmt::skip]
pub(crate) const ROWS: &[(&str, &[&str])] = &[
    ("A refused request", &[
        "a-redis-for-seconds-with-others", "hits-of-a-descriptor", "hits-of-the-request-count-for-each-descriptor",
        "local-cache-and-other-limits", "local-cache-and-overrides", "many-descriptors", "metadata-of-several-rules",
        "negative-hits-after-over", "one-over-refuses-all", "override-beside-others", "override-of-a-replaced-rule",
        "override-of-a-shadow-rule", "override-shares-the-rules-counter", "parent-and-child-count-apart",
        "quota-beside-a-limit", "refused-hits-are-counted-too", "replaces-several", "replaces-within-nested-rules",
        "same-descriptor-twice", "share-threshold-two-patterns", "statuses-keep-the-order-of-descriptors",
        "stop-counting-same-descriptor-twice",
    ]),
    ("A limit that is over", &["counts-that-were-flushed"]),
    ("`limit_remaining` of a limit that refuses", &["same-descriptor-twice", "stop-counting-same-descriptor-twice"]),
    ("`duration_until_reset` where nothing is spent", &[
        "looking-without-paying", "many-descriptors", "metadata-repeats-the-request", "negative-hits-on-a-fresh-key",
        "negative-hits-without-a-number", "stop-counting-two-over",
    ]),
    ("`hits_addend: 0` of a descriptor", &["looking-without-paying", "zero-requests-per-unit"]),
    ("`is_negative_hits`", &[
        "negative-hits-after-over", "negative-hits-give-back", "negative-hits-on-a-fresh-key",
        "negative-hits-without-a-number",
    ]),
    ("`Retry-After`", &[
        "headers-of-one-limit", "headers-of-quotas", "headers-of-the-last-refusing-limit", "headers-under-global-quota",
        "headers-with-other-names", "metadata-with-headers",
    ]),
    ("Which limit the headers describe", &[
        "headers-of-equal-remaining", "headers-of-quotas", "headers-of-shadow-rules", "headers-under-global-quota",
    ]),
    ("A value that is the text of a wildcard", &["star-in-values-asked"]),
    ("A key or value that is no UTF-8", &["text-that-is-not-utf-8"]),
    ("Names of rule files", &["config-a-readme-beside-the-rules", "several-files"]),
    ("The last rule file is taken away", &["health-waits-for-rules"]),
];

/// Why no case shows what is about a management server.
const MANAGED: &str = "rules of all cases are files; tests/xds and tests/e2e/test_xds.py show it";

/// Rows that no case shows, and why.
pub(crate) const BY_NO_CASE: &[(&str, &str)] = &[
    (
        "Headers that nobody asked for",
        "all cases run with LIMIT_HEADERS=none, since each answer would differ",
    ),
    ("Health with bad rules", "both are right for the recorded case: it waits until health says anything"),
    ("`/json` when there is no answer", "no case asks there without rules; tests/server does"),
    ("The debug port", "all cases set DEBUG_HOST"),
    ("Metrics to statsd", "cases are about answers; tests/settings.rs and tests/metrics hold it"),
    ("Names of metrics with clients' values", "cases are about answers; tests/metrics holds it"),
    (
        "`over_limit` of a refused cost of several hits",
        "cases are about answers; src/metrics/reference.rs says it",
    ),
    (
        "`response_time` of more than 1,000 calls between two flushes",
        "cases are about answers; src/metrics/statsd.rs tests it",
    ),
    ("A PROMETHEUS_MAPPER_YAML that is wrong", "cases are about answers; tests/metrics holds it"),
    ("USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS", "cases are about answers; tests/settings.rs holds it"),
    ("EXTRA_TAGS with Prometheus", "cases are about answers; src/metrics/exposition.rs tests it"),
    (
        "The file of `GRPC_UDS` that a killed process left",
        "no case has a socket; tests/server/unix.rs holds it",
    ),
    ("Clients with `GRPC_CLIENT_TLS_CACERT`", "no case speaks TLS; tests/server/tls.rs holds it"),
    (
        "`GRPC_CLIENT_TLS_SAN` without `GRPC_CLIENT_TLS_CACERT`",
        "no case speaks TLS; tests/settings.rs holds it",
    ),
    ("A management server's response", MANAGED),
    ("Waits for a management server", MANAGED),
    ("A management server that restarted", MANAGED),
    ("`CONFIG_GRPC_XDS_NODE_METADATA` with a pair that has no `=`", MANAGED),
    ("Time for the store", "all cases set STORE_TIMEOUT, since a busy machine is no slow store"),
];

/// The first cells of the README's table.
pub(crate) fn of_the_readme() -> Vec<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let lines = readme.lines().skip_while(|line| *line != "## Differences").skip(1);
    let section = lines.take_while(|line| !line.starts_with("## "));
    let rows = section.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    rows.skip(1).map(str::to_owned).collect()
}
