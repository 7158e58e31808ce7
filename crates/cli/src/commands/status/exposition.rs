//! What a process tells on its admin port, as far as rates and latencies are made of it.

use std::collections::{BTreeMap, BTreeSet};

/// The numbers of one process at one moment.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Exposition(Vec<Series>);

#[derive(Debug, PartialEq)]
pub(super) struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Exposition {
    /// Reads the text format; lines that are none of it are passed over.
    pub(super) fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(series).collect())
    }

    /// The sum of a family's series that have these labels; `None` if there is none.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.of(name, labels).map(|series| series.value).reduce(|sum, value| sum + value)
    }

    /// The values that a label has in a family's series that have these labels, each once and in order.
    pub(super) fn values<'a>(&'a self, name: &str, labels: &[(&str, &str)], label: &str) -> BTreeSet<&'a str> {
        let with = self.0.iter().filter(|series| series.fits(name, labels));
        with.filter_map(|series| Some(series.labels.get(label)?.as_str())).collect()
    }

    /// By how much each series of a family that has these labels grew. Each is compared with itself: one that was not there
    /// before has grown from nothing, and so has one whose process started again.
    pub(super) fn grown<'a>(
        &'a self,
        before: &'a Self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Series, f64)> {
        self.of(name, labels).map(|series| {
            let then = before.0.iter().find(|then| then.name == series.name && then.labels == series.labels);
            (series, grown(then.map_or(0.0, |then| then.value), series.value))
        })
    }

    fn of<'a>(&'a self, name: &'a str, labels: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = &'a Series> {
        self.0.iter().filter(move |series| series.fits(name, labels))
    }
}

impl Series {
    fn fits(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.name == name && labels.iter().all(|(label, value)| self.labels.get(*label).is_some_and(|it| it == value))
    }
}

/// How many values a histogram counted up to each of its bounds between two moments.
#[derive(Debug, Default)]
pub(super) struct Spread(Vec<(f64, f64)>);

impl Spread {
    /// Adds what a process counted between two of its answers; after a restart everything counts.
    pub(super) fn add(&mut self, name: &str, labels: &[(&str, &str)], before: &Exposition, after: &Exposition) {
        let name = format!("{name}_bucket");
        for (series, grown) in after.grown(before, &name, labels) {
            let Some(bound) = series.labels.get("le").and_then(|bound| bound.parse::<f64>().ok()) else { continue };
            match self.0.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, sum)) => *sum += grown,
                None => self.0.push((bound, grown)),
            }
        }
        self.0.sort_by(|one, other| one.0.total_cmp(&other.0));
    }

    /// Between the bounds of its bucket in proportion; `None` if nothing was counted. The highest bound if it is above.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all = self.0.last().map(|(_, count)| *count).filter(|count| *count > 0.0)?;
        let wanted = all * share;
        let (mut low, mut below) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= wanted {
                let within = if *count > below { (wanted - below) / (count - below) } else { 1.0 };
                return Some(if bound.is_finite() { low + (bound - low) * within } else { low });
            }
            (low, below) = (*bound, *count);
        }
        Some(low)
    }
}

/// By how much a counter grew, which begins at zero again with its process.
fn grown(before: f64, after: f64) -> f64 {
    if after < before { after } else { after - before }
}

fn series(line: &str) -> Option<Series> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // A time, or an exemplar, may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series { name: name.to_owned(), labels, value })
}

/// Labels, and what follows their closing brace.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let (mut found, mut rest) = (BTreeMap::new(), text);
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((found, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    char => value.push(char),
                },
                (_, char) => value.push(char),
            }
        };
        found.insert(name.to_owned(), value);
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE a counter\n\
        a_total{destination=\"main\",outbox=\"say \\\"hi\\\"\\\\\"} 12\n\
        a_total{destination=\"other\"} 30 1700000000\n\
        plain 0.5\n\
        not a line\n\
        # EOF\n";

    #[test]
    fn series_are_found_by_name_and_labels() {
        let exposition = Exposition::parse(TEXT);
        assert_eq!(exposition.sum("a_total", &[]), Some(42.0));
        assert_eq!(exposition.sum("a_total", &[("destination", "main")]), Some(12.0));
        assert_eq!(exposition.sum("a_total", &[("outbox", "say \"hi\"\\")]), Some(12.0));
        assert_eq!(exposition.sum("a_total", &[("destination", "none")]), None);
        assert_eq!(exposition.sum("plain", &[]), Some(0.5));
    }

    fn buckets(counts: [u32; 3]) -> Exposition {
        let [one, two, all] = counts;
        Exposition::parse(&format!(
            "h_bucket{{le=\"1.0\"}} {one}\nh_bucket{{le=\"2.0\"}} {two}\nh_bucket{{le=\"+Inf\"}} {all}\n"
        ))
    }

    fn spread(before: [u32; 3], after: [u32; 3]) -> Spread {
        let mut spread = Spread::default();
        spread.add("h", &[], &buckets(before), &buckets(after));
        spread
    }

    #[test]
    fn a_quantile_is_of_what_came_between() {
        let told = |spread: &Spread, share| spread.quantile(share).map(|value| (value * 100.0).round() / 100.0);
        let quick = spread([5, 5, 5], [15, 15, 15]);
        assert_eq!((told(&quick, 0.5), told(&quick, 0.99)), (Some(0.5), Some(0.99)));
        let slow = spread([10, 10, 10], [10, 20, 20]);
        assert_eq!(told(&slow, 0.5), Some(1.5));
        let endless = spread([0, 0, 0], [0, 0, 4]);
        assert_eq!(told(&endless, 0.5), Some(2.0), "above every bound is at least the highest");
        assert_eq!(spread([3, 3, 3], [3, 3, 3]).quantile(0.5), None);
    }

    #[test]
    fn each_series_is_compared_with_itself() {
        let told = |one: u32, other: u32| {
            Exposition::parse(&format!(
                "h_bucket{{outbox=\"a\",le=\"1.0\"}} {one}\nh_bucket{{outbox=\"a\",le=\"+Inf\"}} {one}\n\
                 h_bucket{{outbox=\"b\",le=\"1.0\"}} 0\nh_bucket{{outbox=\"b\",le=\"+Inf\"}} {other}\n"
            ))
        };
        let (before, after) = (told(1000, 500), told(1010, 530));
        let grown: Vec<f64> = after.grown(&before, "h_bucket", &[("le", "+Inf")]).map(|(_, grown)| grown).collect();
        assert_eq!(grown, [10.0, 30.0]);
        let of = |labels: &[(&str, &str)]| {
            let mut spread = Spread::default();
            spread.add("h", labels, &before, &after);
            spread.0
        };
        assert_eq!(of(&[]), [(1.0, 10.0), (f64::INFINITY, 40.0)]);
        assert_eq!(of(&[("outbox", "b")]), [(1.0, 0.0), (f64::INFINITY, 30.0)]);
        assert_eq!(after.values("h_bucket", &[("le", "1.0")], "outbox"), BTreeSet::from(["a", "b"]));
    }

    #[test]
    fn a_process_that_started_again_counts_from_zero() {
        assert_eq!(grown(100.0, 7.0).to_bits(), 7.0_f64.to_bits());
        assert_eq!(told(&spread([9, 9, 9], [2, 2, 2])), 2.0_f64.to_bits());
    }

    fn told(spread: &Spread) -> u64 {
        spread.0.last().map_or(0, |(_, count)| count.to_bits())
    }
}
