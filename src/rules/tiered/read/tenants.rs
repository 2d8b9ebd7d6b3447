//! Reading tenants: those that the rules name, whose limits are laid over their tier's, and those of the csv file.

use std::{collections::HashMap, sync::Arc};

use super::{
    super::super::{
        fields::{Fields, Named},
        table::{Table, TableBuilder},
        tenants::Csv,
    },
    Form, Limits, Profile, Spec, TENANT, What, number,
};

impl<'n> Form<'_, '_, 'n> {
    /// Tenants that the rules name.
    pub(super) fn read_tenants(
        &mut self,
        fields: &Fields<'n>,
        entry: &str,
        default: Option<usize>,
        used: &mut [bool],
        table: &mut TableBuilder,
        in_rules: &mut TableBuilder,
    ) {
        let Some(node) = fields.get("tenants") else { return };
        for named in self.reader.names(node, "tenants") {
            let Some(fields) = self.reader.fields(named.value, &TENANT) else { continue };
            let tier = match fields.get("tier") {
                Some(node) => self.tier(node),
                None => default,
            };
            let Some(tier) = tier else { continue };
            used[tier] = true;
            let limits = self.limits(&fields, named, &TENANT);
            let profile = if limits.is_empty() { tier } else { self.add_tenant(named, entry, tier, limits) };
            let fits = table.push(named.name.as_bytes(), number(profile))
                && in_rules.push(named.name.as_bytes(), named.key.line);
            assert!(fits, "a file is far smaller than a table may be");
        }
    }

    /// Compiles a tenant with limits of its own: its tier, changed.
    fn add_tenant(&mut self, named: Named<'n>, entry: &str, tier: usize, own: Limits<'n>) -> usize {
        let base = &self.tiers[tier];
        let (name, terms) = (base.named.name, own.main.terms.or(base.limits.main.terms));
        let over = |list: &[(Named<'n>, Spec<'n>)], named: &Named<'n>, spec: Spec<'n>| {
            let base = list.iter().find(|(known, _)| known.name == named.name);
            let spec = match base {
                Some((_, base)) => spec.over(base),
                None => spec,
            };
            (named.name, spec.terms_or(terms))
        };
        // What the tenant says of all his limits (`mode: shadow`) reaches those that he has from his tier, too.
        let says = own.main.terms.says_anything();
        let rest = |list: &[(Named<'n>, Spec<'n>)], own: &[(&str, Spec<'n>)]| -> Vec<(&'n str, Spec<'n>)> {
            let is_own = |name: &str| own.iter().any(|(known, _)| *known == name);
            let rest = list.iter().filter(|(named, _)| !is_own(named.name));
            rest.map(|(named, spec)| (named.name, spec.clone().terms_or(terms))).collect()
        };
        let has_main = !own.main.is_empty();
        let main = own.main.over(&base.limits.main);
        let mut routes: Vec<_> =
            own.routes.into_iter().map(|(named, spec)| over(&base.limits.routes, &named, spec)).collect();
        if says {
            routes.extend(rest(&base.limits.routes, &routes));
        }
        let mut further: Vec<_> =
            own.further.into_iter().map(|(named, spec)| over(&base.limits.further, &named, spec)).collect();
        // They stand side by side, so where there is one of his own those of the tier come along.
        if says || !further.is_empty() {
            further.extend(rest(&base.limits.further, &further));
        }
        self.too_many(&further, named.key);
        let first = self.rules.len();
        if has_main {
            self.add_rule(&main, name, What::Main);
        }
        let routes = self.add_routes(name, &routes);
        let of_tier = &self.profiles[tier];
        let main = if has_main { first } else { of_tier.main };
        let further =
            if further.is_empty() { of_tier.further.clone() } else { self.add_further(name, &further) };
        self.warn_of_leases(first, &further, named.key);
        self.profiles.push(Profile {
            tier: name.into(),
            title: format!("{entry}_{}", named.name).into(),
            at: (self.reader.file.clone(), named.key.line),
            main,
            further,
            routes,
            base: Some(number(tier)),
            own: first..self.rules.len(),
        });
        self.profiles.len() - 1
    }

    /// Tenants of the csv file; all tenants, and the file's name.
    pub(super) fn read_csv(
        &mut self,
        fields: &Fields<'n>,
        in_rules: &Table,
        used: &mut [bool],
        mut table: TableBuilder,
        mut read: impl FnMut(&str) -> std::io::Result<Vec<u8>>,
    ) -> (Table, Option<Arc<str>>) {
        let node = fields.get("tenants_from").filter(|node| !self.reader.is_null(node));
        let name = node.and_then(|node| self.reader.text(node, "`tenants_from`"));
        // Where tiers could not be read, every line would be one mistake more.
        let readable = !self.tiers.is_empty() && self.unreadable.is_empty();
        let (Some(node), Some(name), true) = (node, name, readable) else { return (table.build().0, None) };
        let file: Arc<str> = beside(&self.reader.file, name).into();
        let text = match read(&file) {
            Ok(text) => text,
            Err(error) => {
                let message = format!("`{file}` cannot be read: {error}");
                self.reader.mistake(node, message, "the path begins at the folder of this file");
                return (table.build().0, None);
            }
        };
        let tiers: HashMap<&str, u32> = self.tier_names().into_iter().zip(0..).collect();
        let named = |tenant: &[u8]| in_rules.get(tenant).is_some();
        let before = table.len();
        let csv = Csv::read(&file, &text, &tiers, named, &mut table, self.reader.mistakes());
        for row in before..table.len() {
            used[table.number(row) as usize] = true;
        }
        // Names from the rules are in the table once, and those were left out of the file: both rows are of the file.
        let (tenants, twice) = table.build();
        for twice in twice {
            let (name, first, second) =
                (table.name(twice.second), twice.first - before, twice.second - before);
            csv.twice(name, first, second, self.reader.mistakes());
        }
        (tenants, Some(file))
    }
}

/// A path that begins at the folder of a file.
fn beside(file: &str, path: &str) -> String {
    match file.rsplit_once('/') {
        Some((folder, _)) if !path.starts_with('/') => format!("{folder}/{path}"),
        _ => path.to_owned(),
    }
}
