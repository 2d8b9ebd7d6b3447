//! Mogrifiers: what makes tags of parts of names, as the reference's dogstatsd has it.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A pattern, and what becomes of a name that matches it. Of several the first that matches holds.
#[derive(Clone, Debug)]
pub struct Mogrifier {
    pattern: Regex,
    name: String,
    tags: Vec<(String, String)>,
}

impl Mogrifier {
    /// `$0`, `$1` and so on in `name` and in the values of `tags` are what the pattern's groups matched.
    ///
    /// # Errors
    /// When `pattern` is no regular expression; in words.
    pub fn new(pattern: &str, name: String, tags: Vec<(String, String)>) -> Result<Self, String> {
        Ok(Self { pattern: regex(pattern)?, name, tags })
    }

    /// The name and the tags instead of `name`, where the pattern matches.
    pub fn apply(&self, name: &str) -> Option<(String, Vec<(String, String)>)> {
        let found = self.pattern.captures(name)?;
        let tag = |(tag, value): &(String, String)| (tag.clone(), field(&fill(value, &found)));
        Some((field(&fill(&self.name, &found)), self.tags.iter().map(tag).collect()))
    }
}

/// # Errors
/// Why it is none, in one line.
pub(super) fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| {
        let last = error.to_string().lines().last().unwrap_or_default().trim().to_owned();
        last.strip_prefix("error: ").unwrap_or(&last).to_owned()
    })
}

/// A template with its `$1` and `${1}` filled; those that no group stands for stay.
pub(super) fn fill(template: &str, found: &Captures<'_>) -> String {
    static PLACE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\$(?:([0-9]+)|\{([0-9]+)\})").expect("it is a regular expression"));
    let value = |place: &Captures<'_>| {
        let number = place.get(1).or(place.get(2)).and_then(|digits| digits.as_str().parse().ok());
        match number.filter(|number| *number < found.len()) {
            Some(number) => found.get(number).map_or("", |group| group.as_str()).to_owned(),
            None => place[0].to_owned(),
        }
    };
    PLACE.replace_all(template, value).into_owned()
}

/// What parts of a name become must still be one field.
fn field(text: &str) -> String {
    text.replace([',', '|', ':', '#'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_name_become_tags() {
        let tags = vec![("domain".into(), "$1".into()), ("descriptor".into(), "${2}".into())];
        let pattern = r"^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$";
        let mogrifier = Mogrifier::new(pattern, "ratelimit.$3$9".into(), tags).unwrap();
        let (name, tags) = mogrifier.apply("ratelimit.service.rate_limit.shop.user_a,b.over_limit").unwrap();
        assert_eq!(name, "ratelimit.over_limit$9");
        assert_eq!(tags, [("domain".into(), "shop".into()), ("descriptor".into(), "user_a_b".into())]);
        assert!(mogrifier.apply("ratelimit.service.config_load_success").is_none());
        assert!(Mogrifier::new("(", String::new(), Vec::new()).unwrap_err().contains("unclosed group"));
    }
}
