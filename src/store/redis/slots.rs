//! Who has which slots: what Redis Cluster calls its slot map.
//!
//! It is read off `CLUSTER SHARDS`, and before Redis 7 off `CLUSTER SLOTS`. A node may announce a host name
//! (`cluster-announce-hostname` with `cluster-preferred-endpoint-type hostname`), or nothing at all: then it has the host
//! of the node that was asked. Nothing is asked of a reply but that it reads so; what makes no sense is left out.

use std::{fmt, ops::RangeInclusive};

use super::resp::Value;

pub(super) use crate::key::{SLOTS, slot};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
}

/// The longest name that a host may have, in bytes (RFC 1035, 2.3.4).
const HOST_MAX: usize = 255;

impl Endpoint {
    /// What a server tells of another one; `None` where nobody can be dialled there. It is repeated in logs and answers,
    /// so it has to be on one line and of bounded length.
    pub(super) fn told(host: &str, port: u16) -> Option<Self> {
        (is_host(host) && port != 0).then(|| Self { host: host.to_owned(), port })
    }

    /// `host:port` as redirections have it. Without a host it is on that of `asked`.
    pub(super) fn parse(text: &str, asked: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::told(host_or(host, asked), port.parse().ok()?)
    }
}

/// Whether it can be the name or the address of a host.
pub(super) fn is_host(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= HOST_MAX
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

fn host_or<'h>(host: &'h str, asked: &'h str) -> &'h str {
    // `?` and nothing are how a node says that it does not know how others see it.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host == "?" { asked } else { host }
}

/// A part of the slots and who has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardView {
    pub(super) ranges: Vec<RangeInclusive<u16>>,
    /// `None` while nobody was promoted.
    pub(super) primary: Option<Endpoint>,
    pub(super) replicas: Vec<Endpoint>,
}

/// The most nodes that a cluster may name: each is dialled, and Redis Cluster is made for 1,000. Also the most parts of one
/// that are told apart.
const NODES_MAX: usize = 2048;

/// What no cluster is, and nobody wants to dial.
fn bounded(views: Vec<ShardView>) -> Option<Vec<ShardView>> {
    let nodes: usize = views.iter().map(|view| 1 + view.replicas.len()).sum();
    (nodes <= NODES_MAX).then_some(views)
}

/// Reads the reply to `CLUSTER SHARDS`, asked of the host `asked`. `tls` chooses among a node's two ports.
pub(super) fn from_shards(reply: &Value, asked: &str, tls: bool) -> Option<Vec<ShardView>> {
    let shards = reply.list()?.iter().map(|shard| {
        let mut view = ShardView::default();
        for (name, value) in fields(shard)? {
            match name {
                "slots" => view.ranges = ranges(value.list()?),
                "nodes" => {
                    for node in value.list()?.iter().filter_map(|node| shard_node(node, asked, tls)) {
                        match node {
                            // A failed primary stays one in the map until its replica has taken over.
                            (endpoint, true) => view.primary = view.primary.or(Some(endpoint)),
                            (endpoint, false) => view.replicas.push(endpoint),
                        }
                    }
                }
                _ => {}
            }
        }
        Some(view)
    });
    bounded(shards.collect::<Option<_>>()?)
}

/// The endpoint of a node that is not known to have failed, and whether it is the primary.
fn shard_node(node: &Value, asked: &str, tls: bool) -> Option<(Endpoint, bool)> {
    let (mut endpoint, mut ip, mut port, mut tls_port, mut primary, mut failed) =
        (None, None, None, None, false, false);
    for (name, value) in fields(node)? {
        match name {
            "endpoint" => endpoint = value.text(),
            "ip" => ip = value.text(),
            "port" => port = value.number(),
            "tls-port" => tls_port = value.number(),
            "role" => primary = value.text() == Some("master"),
            "health" => failed = value.text() == Some("fail"),
            _ => {}
        }
    }
    if failed {
        return None;
    }
    let port = if tls { tls_port } else { port }?;
    let host = host_or(endpoint.or(ip).unwrap_or(""), asked);
    Some((Endpoint::told(host, u16::try_from(port).ok()?)?, primary))
}

/// The pairs of a map, which RESP2 sends as a list of names and values.
fn fields(value: &Value) -> Option<Vec<(&str, &Value)>> {
    let (pairs, []) = value.list()?.as_chunks::<2>() else { return None };
    pairs.iter().map(|[name, value]| Some((name.text()?, value))).collect()
}

/// First and last, first and last, and so on.
fn ranges(numbers: &[Value]) -> Vec<RangeInclusive<u16>> {
    let (pairs, _) = numbers.as_chunks::<2>();
    pairs.iter().filter_map(|[first, last]| range(first, last)).collect()
}

fn range(first: &Value, last: &Value) -> Option<RangeInclusive<u16>> {
    let (first, last) = (u16::try_from(first.number()?).ok()?, u16::try_from(last.number()?).ok()?);
    (first <= last && usize::from(last) < SLOTS).then_some(first..=last)
}

/// Reads the reply to `CLUSTER SLOTS`, asked of the host `asked`: a list of first, last, primary and replicas.
pub(super) fn from_slots(reply: &Value, asked: &str) -> Option<Vec<ShardView>> {
    let mut shards: Vec<ShardView> = Vec::new();
    for entry in reply.list()? {
        let [first, last, nodes @ ..] = entry.list()? else { return None };
        let mut nodes = nodes.iter().map(|node| match node.list()? {
            [host, port, ..] => {
                let host = host_or(host.text().unwrap_or(""), asked);
                Endpoint::told(host, u16::try_from(port.number()?).ok()?)
            }
            _ => None,
        });
        let range = range(first, last)?;
        let primary = nodes.next().flatten();
        let replicas: Vec<Endpoint> = nodes.flatten().collect();
        let number = shards.len();
        match shards.iter_mut().find(|shard| shard.primary == primary && primary.is_some()) {
            Some(shard) => shard.ranges.push(range),
            None if number == NODES_MAX => return None,
            None => shards.push(ShardView { ranges: vec![range], primary, replicas }),
        }
    }
    bounded(shards)
}

/// The value of `name:value` in an `INFO`-like text.
pub(super) fn info<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in brackets is a list, digits are numbers, all else is text.
    fn frame(value: &str) -> Value {
        let mut words = value.split_ascii_whitespace();
        read(&mut words).unwrap()
    }

    fn read<'t>(words: &mut impl Iterator<Item = &'t str>) -> Option<Value> {
        Some(match words.next()? {
            "[" => Value::List(std::iter::from_fn(|| read(words)).collect()),
            "]" => return None,
            "nil" => Value::Nothing,
            "''" => Value::Text([].into()),
            word => word.parse().map_or_else(|_| Value::Text(word.as_bytes().into()), Value::Number),
        })
    }

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint { host: host.to_owned(), port }
    }

    #[test]
    fn a_host_that_would_break_a_line_of_the_log_or_fill_it_is_nobody() {
        let longest = "h".repeat(HOST_MAX);
        assert_eq!(Endpoint::parse(&format!("{longest}:1"), ""), Some(at(&longest, 1)));
        for odd in
            [&format!("h{longest}:1"), "h\nWARN all is well:1", "h h:1", "h\u{1b}[2J:1", "h:0", "h:65536"]
        {
            assert_eq!(Endpoint::parse(odd, "asked"), None, "{odd:?}");
        }
        assert_eq!(Endpoint::parse("?:1", "asked"), Some(at("asked", 1)));
        assert_eq!(Endpoint::parse(":1", ""), None);
    }

    #[test]
    fn shards_are_read_with_their_hosts_ports_and_roles() {
        let node = |fields: &str| format!("[ id x {fields} ]");
        let reply = frame(&format!(
            "[ [ slots [ 0 5 9 9 ] nodes [ {} {} {} ] ] [ slots [ ] nodes [ {} ] ] [ slots [ 6 8 ] nodes [ {} ] ] ]",
            node("port 7000 tls-port 7100 ip 10.0.0.1 endpoint 10.0.0.1 role replica health online"),
            node(
                "port 7001 tls-port 7101 ip 10.0.0.2 endpoint node.example hostname node.example role master health online"
            ),
            node("port 7002 ip 10.0.0.3 endpoint 10.0.0.3 role replica health fail"),
            node("port 7003 ip '' endpoint ? role master health online"),
            node("port 7004 ip 10.0.0.5 endpoint nil role master health fail"),
        ));
        let views = from_shards(&reply, "asked.example", false).unwrap();
        assert_eq!(
            views,
            [
                ShardView {
                    ranges: vec![0..=5, 9..=9],
                    primary: Some(at("node.example", 7001)),
                    replicas: vec![at("10.0.0.1", 7000)],
                },
                ShardView { primary: Some(at("asked.example", 7003)), ..ShardView::default() },
                ShardView { ranges: vec![6..=8], ..ShardView::default() },
            ]
        );
        let views = from_shards(&reply, "asked.example", true).unwrap();
        assert_eq!(views[0].primary, Some(at("node.example", 7101)));
        assert_eq!(views[1].primary, None, "it has no port for TLS");
    }

    #[test]
    fn slots_of_redis_6_are_read_as_well() {
        let reply = frame(
            "[ [ 0 5 [ '' 7000 id [ ] ] [ 10.0.0.2 7001 id [ ] ] ] [ 9 9 [ '' 7000 id ] ] [ 6 8 [ nil 7002 id ] ] ]",
        );
        assert_eq!(
            from_slots(&reply, "h").unwrap(),
            [
                ShardView {
                    ranges: vec![0..=5, 9..=9],
                    primary: Some(at("h", 7000)),
                    replicas: vec![at("10.0.0.2", 7001)],
                },
                ShardView { ranges: vec![6..=8], primary: Some(at("h", 7002)), ..ShardView::default() },
            ]
        );
    }

    #[test]
    fn nonsense_is_no_map() {
        for reply in ["x", "7", "[ x ]", "[ [ slots ] ]", "[ [ slots 7 ] ]", "[ [ 1 ] ]"] {
            assert_eq!(from_shards(&frame(reply), "h", false), None, "{reply}");
            assert_eq!(from_slots(&frame(reply), "h"), None, "{reply}");
        }
        assert_eq!(from_slots(&frame("[ [ 9 5 [ h 1 ] ] ]"), "h"), None);
        assert_eq!(from_slots(&frame("[ [ 0 16384 [ h 1 ] ] ]"), "h"), None);
    }

    #[test]
    fn a_map_of_more_nodes_than_a_cluster_can_have_is_none() {
        for (nodes, read) in [(1000, true), (NODES_MAX, true), (NODES_MAX + 1, false)] {
            let shards = |node: usize| {
                format!("[ slots [ {node} {node} ] nodes [ [ port 1 endpoint h{node} role master ] ] ]")
            };
            let reply = frame(&format!("[ {} ]", (0..nodes).map(shards).collect::<Vec<_>>().join(" ")));
            assert_eq!(from_shards(&reply, "h", false).is_some(), read, "{nodes}");
            let slots = |node: usize| format!("[ {node} {node} [ h{node} 1 ] ]");
            let reply = frame(&format!("[ {} ]", (0..nodes).map(slots).collect::<Vec<_>>().join(" ")));
            assert_eq!(from_slots(&reply, "h").is_some(), read, "{nodes}");
        }
    }

    #[test]
    fn a_redirections_address_is_read() {
        assert_eq!(Endpoint::parse("10.0.0.1:7000", "h"), Some(at("10.0.0.1", 7000)));
        assert_eq!(Endpoint::parse(":7000", "h"), Some(at("h", 7000)));
        assert_eq!(Endpoint::parse("?:7000", "h"), Some(at("h", 7000)));
        assert_eq!(Endpoint::parse("::1:7000", "h"), Some(at("::1", 7000)));
        assert_eq!(Endpoint::parse("h", "h"), None);
        assert_eq!(Endpoint::parse("h:0", "h"), None);
        assert_eq!(at("::1", 7000).to_string(), "[::1]:7000");
    }
}
