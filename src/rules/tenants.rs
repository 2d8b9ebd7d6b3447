//! `tenants_from: tenants.csv`: which tenant has which tier, a line for each.
//!
//! ```text
//! tenant,tier            # a header, if there is one
//! acme,enterprise
//! "Smith, John",free     # quotes as usual
//!
//! # comments and blank lines
//! ```
//!
//! Such files are written by programs from a billing system, up to a million lines; they are as likely to be wrong as what
//! people write, so each bad line is told with its number, and a tenant who stands in it twice with both.

use std::{collections::HashMap, sync::Arc};

use super::{
    mistake::{Mistake, Mistakes, quote},
    table::TableBuilder,
};

/// The longest name of a tenant in a csv file, in bytes.
pub const TENANT_MAX: usize = 255;

/// The lines of a csv file.
pub(super) struct Csv<'f> {
    file: &'f Arc<str>,
    text: &'f [u8],
    /// Line numbers of the rows that went into the table.
    lines: Vec<u32>,
}

impl<'f> Csv<'f> {
    /// Adds the tenants of a file to a table, as numbers of their tiers. Those that the rules name themselves are left
    /// out: rules win.
    pub(super) fn read(
        file: &'f Arc<str>,
        text: &'f [u8],
        tiers: &HashMap<&str, u32>,
        in_rules: impl Fn(&[u8]) -> bool,
        table: &mut TableBuilder,
        mistakes: &mut Mistakes,
    ) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut csv = Self { file, text, lines: Vec::new() };
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(text);
        let mut record = csv::ByteRecord::new();
        let mut first = true;
        // Reading from memory, with any number of fields a line and any bytes, does not fail.
        while reader.read_byte_record(&mut record).unwrap_or(false) {
            let line = csv.line_of(&reader);
            let is_header = std::mem::take(&mut first) && is_header(&record);
            if is_header {
                continue;
            }
            match row(&record, tiers) {
                Ok((tenant, _)) if in_rules(tenant) => {}
                Ok((tenant, tier)) if table.push(tenant, tier) => csv.lines.push(line),
                Ok(_) => mistakes
                    .push_with(|| csv.mistake(line, "the file is too large".into(), "split the tenants")),
                Err(why) => mistakes.push_with(|| csv.mistake(line, why.message(), &why.help(tiers))),
            }
        }
        csv
    }

    /// Tells of a tenant who stands in the file twice; rows are counted from the file's first.
    pub(super) fn twice(&self, name: &[u8], first: usize, second: usize, mistakes: &mut Mistakes) {
        mistakes.push_with(|| {
            let message =
                format!("the tenant `{}` stands in the file twice", quote(&String::from_utf8_lossy(name)));
            let mut mistake = self.mistake(self.lines[second], message, "keep one of the lines");
            mistake.note = Some(format!("the first stands in {}:{}", self.file, self.lines[first]));
            mistake
        });
    }

    /// The reader is behind the record: on its last line when the file ends there, else on the next.
    fn line_of(&self, reader: &csv::Reader<&[u8]>) -> u32 {
        let position = reader.position();
        let end = usize::try_from(position.byte()).unwrap_or(usize::MAX).min(self.text.len());
        let ended = end > 0 && matches!(self.text[end - 1], b'\n' | b'\r');
        u32::try_from(position.line() - u64::from(ended)).unwrap_or(u32::MAX)
    }

    fn mistake(&self, line: u32, message: String, help: &str) -> Mistake {
        let text = self.text.split(|byte| *byte == b'\n').nth(line as usize - 1).unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        Mistake::of_file(self.file, message).at(line, 0, 0, text.trim_end_matches('\r')).help(help)
    }
}

/// What is wrong with a line.
enum Wrong {
    Fields(usize),
    NoTenant,
    TooLong,
    Tier(String),
}

fn row<'r>(record: &'r csv::ByteRecord, tiers: &HashMap<&str, u32>) -> Result<(&'r [u8], u32), Wrong> {
    let (Some(tenant), Some(tier), 2) = (record.get(0), record.get(1), record.len()) else {
        return Err(Wrong::Fields(record.len()));
    };
    if tenant.is_empty() {
        return Err(Wrong::NoTenant);
    }
    if tenant.len() > TENANT_MAX {
        return Err(Wrong::TooLong);
    }
    let known = std::str::from_utf8(tier).ok().and_then(|tier| tiers.get(tier));
    match known {
        Some(number) => Ok((tenant, *number)),
        None => Err(Wrong::Tier(String::from_utf8_lossy(tier).into_owned())),
    }
}

fn is_header(record: &csv::ByteRecord) -> bool {
    let is = |index: usize, name: &str| {
        record.get(index).is_some_and(|field: &[u8]| field.eq_ignore_ascii_case(name.as_bytes()))
    };
    record.len() == 2 && is(0, "tenant") && is(1, "tier")
}

impl Wrong {
    fn message(&self) -> String {
        match self {
            Self::Fields(n) => format!(
                "a line is `tenant,tier`, and this one has {n} field{}",
                if *n == 1 { "" } else { "s" }
            ),
            Self::NoTenant => "the tenant has no name".into(),
            Self::TooLong => format!("the tenant's name is longer than {TENANT_MAX} bytes"),
            Self::Tier(tier) => format!("no tier is called `{}`", quote(tier)),
        }
    }

    fn help(&self, tiers: &HashMap<&str, u32>) -> String {
        match self {
            Self::Fields(_) => "write two fields; quote a name that holds a comma".into(),
            Self::NoTenant => "requests without a tenant have the default tier".into(),
            Self::TooLong => "use the tenant's id".into(),
            Self::Tier(tier) => super::tiered::tier_help(tier, tiers.keys().copied()),
        }
    }
}
