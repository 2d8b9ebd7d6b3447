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
    /// Where the rows that went into the table begin, in bytes. Lines are counted only when a mistake is told.
    starts: Vec<u32>,
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
        let mut csv = Self { file, text, starts: Vec::new() };
        // Comments are not left to this reader: its comments end at LF only, so in a file whose lines end in CR the first
        // would take all tenants with it.
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(text);
        let mut record = csv::ByteRecord::new();
        let mut first = true;
        // Reading from memory, with any number of fields a line and any bytes, does not fail.
        while reader.read_byte_record(&mut record).unwrap_or(false) {
            let start = csv.start(record.position());
            let end = usize::try_from(reader.position().byte()).unwrap_or(usize::MAX);
            let one_line = csv.is_one_line(start, end);
            if one_line && csv.says_nothing(start, &record) {
                continue;
            }
            if std::mem::take(&mut first) && is_header(&record) {
                continue;
            }
            match row(&record, tiers) {
                Ok((tenant, _)) if in_rules(tenant) => {}
                Ok((tenant, tier)) if table.push(tenant, tier) => {
                    csv.starts.push(u32::try_from(start).unwrap_or(u32::MAX));
                }
                Ok(_) => mistakes
                    .push_with(|| csv.mistake(start, "the file is too large".into(), "split the tenants")),
                Err(why) => {
                    let why = if one_line { why } else { Wrong::Quote };
                    mistakes.push_with(|| csv.mistake(start, why.message(), &why.help(tiers)));
                }
            }
        }
        if first {
            // What a file that is written in place is for a moment; taken literally it would make all tenants nobody.
            let help = "write the line `tenant,tier` if there are no tenants yet";
            mistakes.push_with(|| Mistake::of_file(file, "the file is empty").help(help));
        }
        csv
    }

    /// Tells of a tenant who stands in the file twice; rows are counted from the file's first.
    pub(super) fn twice(&self, name: &[u8], first: usize, second: usize, mistakes: &mut Mistakes) {
        let [first, second] = [first, second].map(|row| self.starts[row] as usize);
        mistakes.push_with(|| {
            let message =
                format!("the tenant `{}` stands in the file twice", quote(&String::from_utf8_lossy(name)));
            let mut mistake = self.mistake(second, message, "keep one of the lines");
            mistake.note = Some(format!("the first stands in {}:{}", self.file, self.line_of(first)));
            mistake
        });
    }

    /// Where a record begins: the reader was at the end of the line before it.
    fn start(&self, reader: Option<&csv::Position>) -> usize {
        let from =
            reader.map_or(0, |at| usize::try_from(at.byte()).unwrap_or(usize::MAX)).min(self.text.len());
        from + self.text[from..].iter().take_while(|byte| is_line_end(byte)).count()
    }

    /// Whether it is a blank line or a comment.
    fn says_nothing(&self, start: usize, record: &csv::ByteRecord) -> bool {
        let line = self.text[start..].trim_ascii_start();
        let quoted = line.first() == Some(&b'"');
        line.first() == Some(&b'#') || (!quoted && record.len() == 1 && record[0].is_empty())
    }

    /// Whether a record ends on the line that it began on.
    fn is_one_line(&self, start: usize, end: usize) -> bool {
        let record = &self.text[start..end.clamp(start, self.text.len())];
        !record.trim_ascii_end().iter().any(is_line_end)
    }

    /// From 1. Lines end in LF, CRLF or CR.
    fn line_of(&self, start: usize) -> u32 {
        let before = &self.text[..start];
        let ends = before.iter().enumerate().filter(|(at, byte)| match byte {
            b'\n' => true,
            b'\r' => self.text.get(at + 1) != Some(&b'\n'),
            _ => false,
        });
        u32::try_from(1 + ends.count()).unwrap_or(u32::MAX)
    }

    fn mistake(&self, start: usize, message: String, help: &str) -> Mistake {
        let line = self.text[start..].split(is_line_end).next().unwrap_or_default();
        Mistake::of_file(self.file, message)
            .at(self.line_of(start), 0, 0, &String::from_utf8_lossy(line))
            .help(help)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what slices and iterators ask with")]
fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// What is wrong with a line.
enum Wrong {
    Fields(usize),
    /// A field that began with a quote took lines with it.
    Quote,
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
            Self::Quote => "a quote opens on this line, and does not close on it".into(),
            Self::NoTenant => "the tenant has no name".into(),
            Self::TooLong => format!("the tenant's name is longer than {TENANT_MAX} bytes"),
            Self::Tier(tier) => format!("no tier is called `{}`", quote(tier)),
        }
    }

    fn help(&self, tiers: &HashMap<&str, u32>) -> String {
        match self {
            Self::Fields(_) => "write two fields; quote a name that holds a comma".into(),
            Self::Quote => "close it, or write the quote twice where it belongs to a name in quotes".into(),
            Self::NoTenant => "requests without a tenant have the default tier".into(),
            Self::TooLong => "use the tenant's id".into(),
            Self::Tier(tier) => super::tiered::tier_help(tier, tiers.keys().copied()),
        }
    }
}
