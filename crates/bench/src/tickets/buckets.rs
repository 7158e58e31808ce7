//! Percentiles of a histogram, from the Prometheus text format.

use anyhow::{Context as _, ensure};

/// The upper bound of the bucket that contains the percentile. It is never below the true value.
pub(super) fn percentile(metrics: &str, name: &str, percent: u32) -> anyhow::Result<f64> {
    let buckets = format!("{name}_bucket{{");
    let mut counted: Vec<(f64, f64)> = Vec::new();
    for line in metrics.lines().filter(|line| line.starts_with(&buckets)) {
        let (_, bound) = line.split_once("le=\"").context("a bucket has no `le` label")?;
        let bound = bound.split('"').next().unwrap_or_default();
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse()? };
        // An exemplar may follow the count.
        let (_, count) = line.split_once("} ").context("a bucket has no count")?;
        counted.push((bound, count.split(' ').next().unwrap_or_default().parse()?));
    }
    counted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all = counted.last().context("the histogram was not found")?.1;
    ensure!(all > 0.0, "the histogram is empty");
    let rank = all * f64::from(percent) / 100.0;
    let bucket = counted.iter().find(|(_, count)| *count >= rank).context("no bucket reaches the percentile")?;
    Ok(bucket.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_of_its_bucket() {
        let text = "x_bucket{service=\"a\",le=\"5.0\"} 90\nx_bucket{service=\"a\",le=\"10.0\"} 99\n\
                    x_bucket{service=\"a\",le=\"+Inf\"} 100\nx_sum{service=\"a\"} 7\n";
        assert_eq!(percentile(text, "x", 50).ok(), Some(5.0));
        assert_eq!(percentile(text, "x", 95).ok(), Some(10.0));
        assert_eq!(percentile(text, "x", 100).ok(), Some(f64::INFINITY));
        assert!(percentile(text, "y", 50).is_err());
    }
}
