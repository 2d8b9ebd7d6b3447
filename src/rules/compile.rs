//! From files to a rule set: all of it, or all that is wrong with it.
//!
//! Files are read one after the other into one draft for each domain; only when none has a mistake are the drafts
//! compiled into what requests look up. The revision is a hash of what was read, files named by rules included, so equal
//! files have equal revisions on every machine.

use std::{collections::HashMap, path::Path, sync::Arc};

use super::{
    Compiled, Dialect, Domain, Files, Form, Level, Mistakes, RuleSet, Which,
    fields::{Fields, Reader},
    labels::Labels,
    mistake::{Mistake, quote},
    reference,
    table::TableBuilder,
    tiered,
    tree::{At, Tree},
    yaml::{self, FILE_MAX, Kind, Node, Repeat},
};

/// Compiles all rule files, whole or not at all.
///
/// # Errors
/// All mistakes of all files, in the order of files and lines.
pub fn compile(files: &impl Files, dialect: Dialect) -> Result<Compiled, Mistakes> {
    let mut draft = Draft::new(dialect);
    for name in files.list() {
        let Some(text) = draft.read_file(files, &name) else { continue };
        draft.add_file(files, &name.as_str().into(), &text);
    }
    draft.finish()
}

/// A rule set in the making.
struct Draft {
    dialect: Dialect,
    hash: Hash,
    mistakes: Mistakes,
    warnings: Mistakes,
    labels: Labels,
    versions: Vec<String>,
    domains: Vec<DomainDraft>,
    by_name: HashMap<String, usize>,
}

/// One domain, and where it was named first.
struct DomainDraft {
    name: Box<str>,
    at: At,
    form: FormDraft,
}

enum FormDraft {
    Reference(Box<reference::Draft>),
    Tiered(Box<tiered::Tiers>),
}

impl Draft {
    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            hash: Hash::default(),
            mistakes: Mistakes::default(),
            warnings: Mistakes::default(),
            labels: Labels::default(),
            versions: Vec::new(),
            domains: Vec::new(),
            by_name: HashMap::new(),
        }
    }

    /// A file's text; a mistake where there is none.
    fn read_file(&mut self, files: &impl Files, name: &str) -> Option<String> {
        let file: Arc<str> = name.into();
        let told = |message: String, help: &str| Mistake::of_file(&file, message).help(help);
        let mistake = match files.read(name) {
            Err(error) => {
                told(format!("the file cannot be read: {error}"), "see that it exists and may be read")
            }
            Ok(bytes) if bytes.len() > FILE_MAX => {
                told(format!("the file is larger than {} MiB", FILE_MAX >> 20), "split it")
            }
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => {
                    self.hash.add(name, text.as_bytes());
                    return Some(text);
                }
                Err(error) => {
                    let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                    let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
                    told(format!("line {line} is no UTF-8"), "save the file as UTF-8")
                }
            },
        };
        self.mistakes.push(mistake);
        None
    }

    fn add_file(&mut self, files: &impl Files, file: &Arc<str>, text: &str) {
        let document = match yaml::read(text, yaml::BOUNDS) {
            Ok(document) => document,
            Err(broken) => {
                let line = yaml::line(text, broken.line);
                let mistake = Mistake::of_file(file, broken.message).at(broken.line, broken.column, 1, line);
                self.mistakes.push(mistake.help(help_of(file, broken.help)));
                return;
            }
        };
        let (dialect, labels) = (self.dialect, &mut self.labels);
        let mut reader = Reader::new(file, text, dialect, &mut self.mistakes, &mut self.warnings);
        let Some(root) = document.root.filter(|root| !reader.is_null(root)) else {
            reader.mistake_of_file("the file is empty", "a rule file names at least a `domain`");
            return;
        };
        let tiered = match form_of(&root) {
            (true, Some(of_tiers)) => {
                let message = "descriptors and tiers in one file";
                reader.mistake(of_tiers, message, "give the tiers a file, and a domain, of their own");
                return;
            }
            (descriptors, of_tiers) => !descriptors && of_tiers.is_some(),
        };
        doubts(&mut reader, document.second, &document.repeats, tiered);
        let grammar = if tiered { &tiered::FILE } else { &reference::FILE };
        let Some(fields) = reader.fields(&root, grammar) else { return };
        let Some(name) = domain_name(&mut reader, &fields) else { return };
        if let Some(version) = fields.get("version").and_then(|node| reader.text(node, "`version`"))
            && !self.versions.iter().any(|known| known == version)
        {
            self.versions.push(version.to_owned());
        }
        let at = (file.clone(), fields.get("domain").map_or(1, |node| node.line));
        let known = self.by_name.get(name).copied();
        if let Some(index) = known {
            let first = &self.domains[index];
            let both = !tiered && matches!(first.form, FormDraft::Reference(_));
            if !(both && dialect.merge_domains) {
                let message = format!("a second file for the domain `{}`", quote(name));
                let help =
                    "move the rules into one file, or set MERGE_DOMAIN_CONFIG=true (reference's form only)";
                reader.twice(fields.get("domain").unwrap_or(&root), message, (&first.at.0, first.at.1), help);
            }
        }
        if tiered {
            let hash = &mut self.hash;
            let read = |name: &str| files.read(name).inspect(|bytes| hash.add(name, bytes));
            let tiers = tiered::read(&mut reader, &fields, name, labels, read);
            if let (Some(tiers), None) = (tiers, known) {
                self.add_domain(name, at, FormDraft::Tiered(Box::new(tiers)));
            }
            return;
        }
        let mut fresh = reference::Draft::default();
        let draft = match known.map(|index| &mut self.domains[index].form) {
            Some(FormDraft::Reference(draft)) if dialect.merge_domains => draft,
            _ => &mut fresh,
        };
        reference::read(&mut reader, &fields, name, labels, draft);
        if known.is_none() {
            self.add_domain(name, at, FormDraft::Reference(Box::new(fresh)));
        }
    }

    fn add_domain(&mut self, name: &str, at: At, form: FormDraft) {
        self.by_name.insert(name.to_owned(), self.domains.len());
        self.domains.push(DomainDraft { name: name.into(), at, form });
    }

    fn finish(mut self) -> Result<Compiled, Mistakes> {
        if !self.mistakes.is_empty() {
            self.mistakes.sort();
            return Err(self.mistakes);
        }
        let mut names = TableBuilder::default();
        let mut domains = Vec::with_capacity(self.domains.len());
        for (number, draft) in (0..).zip(self.domains) {
            let fits = names.push(draft.name.as_bytes(), number);
            assert!(fits, "names of domains are far shorter than a table may be");
            if matches!(&draft.form, FormDraft::Reference(draft) if draft.default.is_none()) {
                self.warnings.push(without_default(&draft.name, &draft.at));
            }
            let form = match draft.form {
                FormDraft::Reference(draft) => {
                    Form::Tree(Box::new(Tree::new(draft.descriptors, draft.default, self.dialect.compat)))
                }
                FormDraft::Tiered(tiers) => Form::Tiers(tiers),
            };
            domains.push(Domain { name: draft.name, form });
        }
        self.warnings.sort();
        let rules = RuleSet {
            revision: self.hash.finish(self.dialect),
            version: (!self.versions.is_empty()).then(|| self.versions.join(",")),
            names: names.build().0,
            has_replaces: domains.iter().any(|domain| domain.rules().any(|rule| !rule.replaces.is_empty())),
            domains,
            labels: self.labels.into_list(),
        };
        Ok(Compiled { rules, warnings: self.warnings })
    }
}

/// What is said of a file that is no YAML. Only the reference takes names of all kinds, so that one was hardly meant.
fn help_of(file: &str, help: &'static str) -> &'static str {
    if Which::Yaml.is_rule(Path::new(file)) {
        help
    } else {
        "files of all names are rules with TOLLGATE_COMPAT=reference: move this one to another directory (`tenants_from` \
         may name it there)"
    }
}

/// The form is told by its fields: whether there are descriptors, and the first field that only tiers have.
fn form_of(root: &Node) -> (bool, Option<&Node>) {
    const OF_TIERS: [&str; 6] = ["tiers", "tenant", "default_tier", "tenants", "tenants_from", "route"];
    let Kind::Mapping(pairs) = &root.kind else { return (false, None) };
    let names = || pairs.iter().filter_map(|(key, _)| Some((key, key.scalar()?)));
    let descriptors = names().any(|(_, name)| name == "descriptors");
    (descriptors, names().find(|(_, name)| OF_TIERS.contains(name)).map(|(key, _)| key))
}

/// What the reference accepts and nobody can have meant. Files in its form load with a warning; in ours it is a mistake.
fn doubts(reader: &mut Reader<'_>, second: Option<(u32, u32)>, repeats: &[Repeat], tiered: bool) {
    if let Some((line, column)) = second {
        let at = Node { line, column, length: u32::MAX, kind: Kind::Sequence(Vec::new()) };
        let help = "give it a file of its own";
        if tiered {
            reader.mistake(&at, "a second document in one file", help);
        } else {
            reader.warn(&at, "this second document is not read: a file is its first one", help);
        }
    }
    for repeat in repeats {
        reader.repeated(repeat, if tiered { Level::Error } else { Level::Warning });
    }
}

fn domain_name<'n>(reader: &mut Reader<'_>, fields: &Fields<'n>) -> Option<&'n str> {
    let node = fields.get("domain");
    let name = node.and_then(|node| reader.text(node, "`domain`")).filter(|name| !name.is_empty());
    // A text that was refused was told already.
    if name.is_none()
        && node.is_none_or(|node| node.scalar().is_some_and(str::is_empty) || reader.is_null(node))
    {
        let help = "write `domain:` and the domain that Envoy asks for";
        reader.mistake(node.unwrap_or(fields.at), "a rule file names a domain", help);
    }
    name
}

/// Never unlimited by accident: what no rule matches passes, so it is told at least.
fn without_default(domain: &str, at: &At) -> Mistake {
    let message = format!("what no rule of the domain `{}` matches passes without a limit", quote(domain));
    let mut note = Mistake::of_file(&at.0, message)
        .help("to limit it, add `default: {unit: minute, requests_per_unit: 600}`");
    (note.level, note.line) = (Level::Note, at.1);
    note
}

/// The revision in the making: everything that was read, with its lengths, so that nothing can move between files.
#[derive(Default)]
struct Hash(blake3::Hasher);

impl Hash {
    /// Eight bytes as hex: enough to tell revisions apart, short enough to be read out.
    const LENGTH: usize = 16;

    fn add(&mut self, name: &str, bytes: &[u8]) {
        for part in [name.as_bytes(), bytes] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    /// The same text means other rules in another dialect.
    fn finish(&self, dialect: Dialect) -> String {
        let mut hasher = self.0.clone();
        hasher.update(format!("{dialect:?}").as_bytes());
        hasher.finalize().to_hex()[..Self::LENGTH].to_owned()
    }
}
