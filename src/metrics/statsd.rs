//! Counters as lines of statsd, in packets of a size.
//!
//! | | counter | gauge | duration |
//! |---|---|---|---|
//! | statsd | `name.__tag=value:3\|c` | `name.__tag=value:3\|g` | `name.__tag=value:12\|ms` |
//! | dogstatsd | `name:3\|c\|#tag:value` | `name:3\|g\|#tag:value` | `name:12.000000\|ms\|#tag:value` |
//!
//! A counter's line is what was added since it was sent last, and there is none while nothing was. What a packet holds
//! counts as sent when the packet was taken, so what a lost host did not hear is told when it is back.

use std::fmt::Write as _;

use super::{
    mogrifier::Mogrifier,
    reference::{Reference, Sample},
};

/// Lines for durations in one flush. Beyond it they stand for several each and say so (`|@0.1`), as statsd has it.
const TIMES_MAX: u64 = 1000;

const RESPONSE_TIME: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// How lines are written.
#[derive(Clone, Debug, Default)]
pub struct Format {
    /// Tags of dogstatsd behind the value, instead of some that are part of the name.
    pub dogstatsd: bool,
    /// Tags of all lines, in order.
    pub tags: Vec<(String, String)>,
    /// What makes tags of parts of names; dogstatsd only.
    pub mogrifiers: Vec<Mogrifier>,
}

/// Some lines, and what is sent with them.
#[derive(Debug, Default)]
pub struct Packet {
    /// Each line ends with a line feed.
    pub text: String,
    counters: Vec<Sample>,
    /// Milliseconds, and how many calls they stand for.
    times: Vec<(u64, u64)>,
}

impl Format {
    /// All that was not sent yet, in packets of at most `max` bytes, or of one line where that is longer.
    pub fn packets(&self, reference: &Reference, max: usize) -> Vec<Packet> {
        let mut packets = vec![Packet::default()];
        let mut line = String::new();
        for sample in reference.samples() {
            if sample.unsent > 0 {
                line.clear();
                self.line(&mut line, &sample.name(), &format!("{}|c", sample.unsent));
                room(&mut packets, line.len(), max).counters.push(sample);
                append(&mut packets, &line);
            }
        }
        for (name, value) in reference.gauges.measured() {
            line.clear();
            self.line(&mut line, name, &format!("{value}|g"));
            room(&mut packets, line.len(), max);
            append(&mut packets, &line);
        }
        let unsent = reference.times.unsent();
        let all: u64 = unsent.iter().map(|(_, count)| count).sum();
        for (ms, count) in unsent {
            let lines = if all <= TIMES_MAX { count } else { (count * TIMES_MAX / all).max(1) };
            let number = if self.dogstatsd { format!("{ms}.000000|ms") } else { format!("{ms}|ms") };
            let rate = lines as f64 / count as f64;
            let value = if lines == count { number } else { format!("{number}|@{rate:.6}") };
            line.clear();
            self.line(&mut line, RESPONSE_TIME, &value);
            for n in 0..lines {
                let stands_for = count / lines + u64::from(n < count % lines);
                room(&mut packets, line.len(), max).times.push((ms, stands_for));
                append(&mut packets, &line);
            }
        }
        packets.retain(|packet| !packet.text.is_empty());
        packets
    }

    fn line(&self, line: &mut String, name: &str, value: &str) {
        // Writing to a String cannot fail.
        if self.dogstatsd {
            let (name, more) = match self.mogrifiers.iter().find_map(|mogrifier| mogrifier.apply(name)) {
                Some((name, tags)) => (name, tags),
                None => (name.to_owned(), Vec::new()),
            };
            let _ = write!(line, "{name}:{value}");
            let mut before = "|#";
            for (tag, value) in self.tags.iter().chain(&more) {
                let _ = write!(line, "{before}{tag}:{value}");
                before = ",";
            }
        } else {
            line.push_str(name);
            for (tag, value) in &self.tags {
                let _ = write!(line, ".__{tag}={value}");
            }
            let _ = write!(line, ":{value}");
        }
        line.push('\n');
    }
}

impl Packet {
    /// Remembers that it was sent.
    pub fn sent(&self, reference: &Reference) {
        self.counters.iter().for_each(Sample::sent);
        self.times.iter().for_each(|(ms, count)| reference.times.sent(*ms, *count));
    }
}

/// The last packet, or a new one where a line does not fit into it.
fn room(packets: &mut Vec<Packet>, line: usize, max: usize) -> &mut Packet {
    let full = packets.last().is_none_or(|last| !last.text.is_empty() && last.text.len() + line > max);
    if full {
        packets.push(Packet::default());
    }
    packets.last_mut().expect("one was there or was added")
}

fn append(packets: &mut [Packet], line: &str) {
    if let Some(last) = packets.last_mut() {
        last.text.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn lines(format: &Format, reference: &Reference) -> Vec<String> {
        let packets = format.packets(reference, 80);
        assert!(packets.iter().all(|packet| packet.text.len() <= 80 || packet.text.lines().count() == 1));
        let mut lines: Vec<String> =
            packets.iter().flat_map(|packet| packet.text.lines()).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn tags() -> Vec<(String, String)> {
        vec![("env".into(), "prod".into()), ("zone".into(), "eu_1".into())]
    }

    #[test]
    fn lines_are_the_references() {
        let reference = Reference::new(0.8, 10);
        reference.reloaded(true);
        reference.called(Duration::from_micros(19_900));
        let plain = Format::default();
        assert_eq!(
            lines(&plain, &reference),
            [
                "ratelimit.service.config_load_success:1|c",
                "ratelimit_server.ShouldRateLimit.response_time:19|ms",
                "ratelimit_server.ShouldRateLimit.total_requests:1|c",
            ]
        );
        let tagged = Format { tags: tags(), ..Format::default() };
        assert_eq!(
            lines(&tagged, &reference)[0],
            "ratelimit.service.config_load_success.__env=prod.__zone=eu_1:1|c"
        );
        let dog = Format { tags: tags(), dogstatsd: true, mogrifiers: Vec::new() };
        assert_eq!(
            lines(&dog, &reference)[..2],
            [
                "ratelimit.service.config_load_success:1|c|#env:prod,zone:eu_1",
                "ratelimit_server.ShouldRateLimit.response_time:19.000000|ms|#env:prod,zone:eu_1",
            ]
        );
    }

    #[test]
    fn only_what_was_taken_is_not_told_again() {
        let reference = Reference::new(0.8, 10);
        let format = Format::default();
        reference.reloaded(false);
        reference.called(Duration::ZERO);
        assert_eq!(lines(&format, &reference).len(), 3);
        assert_eq!(lines(&format, &reference).len(), 3, "nothing was taken");
        format.packets(&reference, 1432).iter().for_each(|packet| packet.sent(&reference));
        assert_eq!(lines(&format, &reference), [""; 0]);
        reference.reloaded(false);
        assert_eq!(lines(&format, &reference), ["ratelimit.service.config_load_error:1|c"]);
    }

    #[test]
    fn many_durations_are_told_by_few_lines_that_say_for_how_many_they_stand() {
        let reference = Reference::new(0.8, 10);
        for n in 0..50_000 {
            reference.called(Duration::from_millis(if n % 10 == 0 { 7 } else { 1 }));
        }
        let format = Format::default();
        let lines = lines(&format, &reference);
        let count = |line: &str| lines.iter().filter(|other| *other == line).count();
        assert_eq!(count(&format!("{RESPONSE_TIME}:1|ms|@0.020000")), 900);
        assert_eq!(count(&format!("{RESPONSE_TIME}:7|ms|@0.020000")), 100);
        format.packets(&reference, 1432).iter().for_each(|packet| packet.sent(&reference));
        assert!(reference.times.unsent().is_empty());
    }
}
