//! Reading a file of the tiered form.
//!
//! Tiers are read first, as written, and compiled; then tenants, those with limits of their own laid over their tier as
//! it was written; then the csv file, which knows names of tiers only.

use std::ops::Range;

use super::{
    super::{
        RULES_MAX, Rule, Written,
        fields::{Fields, Grammar, Named, Reader},
        labels::Labels,
        lease,
        mistake::quote,
        shards::{self, Beside},
        table::{Table, TableBuilder},
        terms::{self, Mode},
        words::{list_of, nearest},
        yaml::{Kind, Node},
    },
    LIMIT, Profile, TENANT, TIER, Tiers,
    spec::Spec,
};

mod tenants;

/// The longest name of a further limit, in bytes: it stands in keys.
const FURTHER_NAME_MAX: usize = 64;

/// Reads a file. `read` gets a file that it names.
pub(in crate::rules) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    domain: &str,
    labels: &mut Labels,
    read: impl FnMut(&str) -> std::io::Result<Vec<u8>>,
) -> Option<Tiers> {
    let mut entry_name = |field: &str| {
        let name = reader.text(fields.get(field)?, &format!("`{field}`"))?;
        (!name.is_empty()).then_some(name)
    };
    let (tenant, route) = (entry_name("tenant"), entry_name("route"));
    if tenant.is_none() {
        let help = "write `tenant:` and the key of the entry that names the caller";
        reader.mistake(fields.get("tenant").unwrap_or(fields.at), "tiers need to know the tenant", help);
    }
    let mut form = Form {
        reader,
        labels,
        domain,
        tiers: Vec::new(),
        unreadable: Vec::new(),
        profiles: Vec::new(),
        rules: Vec::new(),
    };
    form.read_tiers(fields, route.is_some());
    let default = form.default_tier(fields);
    let mut used = vec![false; form.tiers.len()];
    if let Some(default) = default {
        used[default] = true;
    }
    let mut table = TableBuilder::default();
    let mut in_rules = TableBuilder::default();
    form.read_tenants(fields, tenant.unwrap_or("tenant"), default, &mut used, &mut table, &mut in_rules);
    let in_rules = in_rules.build().0;
    let (tenants, csv) = form.read_csv(fields, &in_rules, &mut used, table, read);
    form.warn_of_unused(&used);
    Some(Tiers {
        tenant: tenant?.as_bytes().into(),
        route: route.map(|route| route.as_bytes().into()),
        default: number(default?),
        tiers: form.tiers.len(),
        tenants,
        in_rules,
        file: form.reader.file.clone(),
        csv,
        profiles: form.profiles,
        rules: form.rules,
    })
}

/// A file in the making.
struct Form<'a, 'f, 'n> {
    reader: &'a mut Reader<'f>,
    labels: &'a mut Labels,
    domain: &'a str,
    tiers: Vec<Tier<'n>>,
    /// Names of tiers that could not be read.
    unreadable: Vec<&'n str>,
    /// In step with `tiers`, then those of tenants.
    profiles: Vec<Profile>,
    rules: Vec<Rule>,
}

/// A tier as written, which tenants change.
struct Tier<'n> {
    named: Named<'n>,
    limits: Limits<'n>,
}

/// The limits of a tier or a tenant, as written.
struct Limits<'n> {
    main: Spec<'n>,
    routes: Vec<(Named<'n>, Spec<'n>)>,
    further: Vec<(Named<'n>, Spec<'n>)>,
}

impl<'n> Form<'_, '_, 'n> {
    fn read_tiers(&mut self, fields: &Fields<'n>, has_route: bool) {
        let at = fields.get("tiers").unwrap_or(fields.at);
        let node = fields.get("tiers").filter(|node| !self.reader.is_null(node));
        if node.is_none_or(|node| matches!(&node.kind, Kind::Mapping(pairs) if pairs.is_empty())) {
            let help = "write `tiers:` and under it a name and a rate: `free: {rate: 10/s}`";
            self.reader.mistake(at, "there are no tiers", help);
            return;
        }
        for named in self.reader.names(at, "tiers") {
            let Some(fields) = self.reader.fields(named.value, &TIER) else {
                self.unreadable.push(named.name);
                continue;
            };
            if let (Some(key), false) = (fields.key("routes"), has_route) {
                let help = "write `route:` at the top, and the key of the entry that names the route";
                self.reader.mistake(key, "`routes` need to know the route's entry", help);
            }
            let limits = self.limits(&fields, named, &TIER);
            self.tiers.push(Tier { named, limits });
            self.add_tier();
        }
    }

    /// Limits as written.
    fn limits(&mut self, fields: &Fields<'n>, of: Named<'n>, grammar: &Grammar) -> Limits<'n> {
        let main = Spec::read(self.reader, fields, of.key);
        let mut routes = Vec::new();
        if let Some(node) = fields.get("routes") {
            for route in self.reader.names(node, "routes") {
                let Some(fields) = self.reader.fields(route.value, &LIMIT) else { continue };
                routes.push((route, Spec::read(self.reader, &fields, route.key)));
            }
        }
        let mut further: Vec<(Named<'n>, Spec<'n>)> = Vec::new();
        for other in &fields.others {
            if !is_limit(other.value) {
                let is_map = matches!(other.value.kind, Kind::Mapping(_));
                if is_map && nearest(other.name, grammar.known).is_none() {
                    let message = format!("the further limit `{}` names no `rate`", quote(other.name));
                    self.reader.mistake(other.key, message, "write `rate: 1000/d`, or take it out");
                } else {
                    self.reader.unknown(other.key, other.name, grammar);
                }
                continue;
            }
            if let Some((first, _)) = further.iter().find(|(known, _)| known.name == other.name) {
                let (file, line) = (self.reader.file.clone(), first.key.line);
                let message = format!("`{}` stands twice in one map", quote(other.name));
                self.reader.twice(other.key, message, (&file, line), "keep one of them, or rename one");
            }
            if !(1..=FURTHER_NAME_MAX).contains(&other.name.len()) {
                let message = format!("the name of a further limit is 1 to {FURTHER_NAME_MAX} bytes long");
                self.reader.mistake(other.key, message, "write one such as `daily`: it stands in keys");
            }
            let Some(fields) = self.reader.fields(other.value, &LIMIT) else { continue };
            further.push((*other, Spec::read(self.reader, &fields, other.key)));
        }
        Limits { main, routes, further }
    }

    /// Compiles the last tier.
    fn add_tier(&mut self) {
        let Some(tier) = self.tiers.last() else { return };
        let name = tier.named.name;
        let terms = tier.limits.main.terms;
        let first = self.rules.len();
        let main = tier.limits.main.clone();
        let routes: Vec<(&str, Spec<'n>)> = tier
            .limits
            .routes
            .iter()
            .map(|(route, spec)| (route.name, spec.clone().terms_or(terms)))
            .collect();
        let further: Vec<(&str, Spec<'n>)> = tier
            .limits
            .further
            .iter()
            .map(|(limit, spec)| (limit.name, spec.clone().terms_or(terms)))
            .collect();
        let key = tier.named.key;
        let at = (self.reader.file.clone(), key.line);
        self.too_many(&further, key);
        self.add_rule(&main, name, What::Main);
        let routes = self.add_routes(name, &routes);
        let further = self.add_further(name, &further);
        self.warn_of_leases(first, &further, key);
        let own = first..self.rules.len();
        let title: Box<str> = name.into();
        self.profiles.push(Profile {
            tier: title.clone(),
            title,
            at,
            main: first,
            further,
            routes,
            base: None,
            own,
        });
    }

    fn too_many(&mut self, further: &[(&str, Spec<'n>)], at: &Node) {
        if further.len() >= RULES_MAX {
            let message = format!("more than {} limits for one request", RULES_MAX);
            self.reader.mistake(at, message, "keep the strictest");
        }
    }

    fn add_routes(&mut self, tier: &str, routes: &[(&str, Spec<'n>)]) -> Table {
        let mut table = TableBuilder::default();
        for (name, spec) in routes {
            let fits = table.push(name.as_bytes(), number(self.rules.len()));
            assert!(fits, "a file is far smaller than a table may be");
            self.add_rule(spec, tier, What::Route(name));
        }
        table.build().0
    }

    fn add_further(&mut self, tier: &str, further: &[(&str, Spec<'n>)]) -> Range<usize> {
        let first = self.rules.len();
        for (name, spec) in further {
            self.add_rule(spec, tier, What::Further(name));
        }
        first..self.rules.len()
    }

    /// Adds a rule; one that is unlimited where there was a mistake, so that the numbers of rules hold.
    fn add_rule(&mut self, spec: &Spec<'n>, tier: &str, what: What<'_>) {
        let limit = spec.limit(self.reader);
        let label = match what {
            What::Main => tier.to_owned(),
            What::Route(route) => format!("{tier}.{route}"),
            What::Further(further) => format!("{tier}:{further}"),
        };
        let mode = spec.terms.mode.unwrap_or(Mode::Enforce);
        let requests = spec.requests();
        let lease = spec.terms.lease.and_then(|lease| lease.hits(self.reader, limit, spec.at));
        lease::warn_of_no_effect(self.reader, lease, mode.role(), spec.at);
        let beside = Beside { limit, lease, of_the_reference: false };
        let shards = shards::of(self.reader, spec.terms.shards, beside, spec.at);
        self.rules.push(Rule {
            limit,
            lease,
            shards,
            name: spec.name.map(Into::into),
            policy: terms::policy_name(spec.name.unwrap_or(&label)),
            shown: (requests, terms::unit_of(limit.map_or(0, |limit| limit.window_us()))),
            role: mode.role(),
            on_refusal: mode.on_refusal(),
            on_store_failure: spec.terms.on_store_failure.unwrap_or(self.reader.dialect.on_store_failure),
            headers: spec.terms.headers.unwrap_or(true),
            replaces: Box::default(),
            metric: self.labels.get(self.domain, &label),
            detail: None,
            metadata: None,
            by_route: matches!(what, What::Route(_)),
            per: spec.per.iter().flatten().map(|name| name.as_bytes().into()).collect(),
            key_name: match what {
                What::Further(name) => Some(name.into()),
                What::Main | What::Route(_) => None,
            },
            at: (self.reader.file.clone(), spec.at.line),
            written: Written { requests, shadow: mode != Mode::Enforce, quota: false },
        });
    }

    /// A further limit is charged with each request, and requests of several limits are not leased.
    fn warn_of_leases(&mut self, first: usize, further: &Range<usize>, at: &Node) {
        let lease = self.rules[first..].iter().filter_map(|rule| rule.lease).max();
        if !further.is_empty() {
            lease::warn_of_several(self.reader, lease, at);
        }
    }

    fn default_tier(&mut self, fields: &Fields<'n>) -> Option<usize> {
        let node = fields.get("default_tier").filter(|node| !self.reader.is_null(node));
        let Some(node) = node else {
            let help = format!("write `default_tier:` and one of {}", list_of(&self.tier_names()));
            let message = "there is no `default_tier`, for tenants that nobody named";
            self.reader.mistake(fields.get("default_tier").unwrap_or(fields.at), message, help);
            return None;
        };
        self.tier(node)
    }

    /// The tier that a node names.
    fn tier(&mut self, node: &Node) -> Option<usize> {
        let name = self.reader.text(node, "a tier")?;
        let found = self.tiers.iter().position(|tier| tier.named.name == name);
        // Where tiers could not be read, that was told.
        if found.is_none() && !self.tiers.is_empty() && !self.unreadable.contains(&name) {
            let help = tier_help(name, self.tier_names().into_iter());
            self.reader.mistake(node, format!("no tier is called `{}`", quote(name)), help);
        }
        found
    }

    fn tier_names(&self) -> Vec<&'n str> {
        self.tiers.iter().map(|tier| tier.named.name).collect()
    }

    fn warn_of_unused(&mut self, used: &[bool]) {
        for (tier, used) in self.tiers.iter().zip(used) {
            if !used {
                let message = format!("no tenant has the tier `{}`", quote(tier.named.name));
                self.reader.warn(tier.named.key, message, "give it to one, or take it out");
            }
        }
    }
}

/// What a rule of a tier is for.
#[derive(Clone, Copy)]
enum What<'a> {
    Main,
    Route(&'a str),
    Further(&'a str),
}

impl Limits<'_> {
    fn is_empty(&self) -> bool {
        self.main.is_empty() && self.routes.is_empty() && self.further.is_empty()
    }
}

/// A name of the user's own is a further limit when it holds one.
fn is_limit(node: &Node) -> bool {
    let Kind::Mapping(pairs) = &node.kind else { return false };
    pairs.iter().any(|(key, _)| matches!(key.scalar(), Some("rate" | "unlimited")))
}

/// How to mend the name of a tier.
pub(in crate::rules) fn tier_help<'n>(name: &str, tiers: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = tiers.collect();
    names.sort_unstable();
    match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the tiers are {}", list_of(&names)),
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("files are bounded to fewer nodes than that")
}
