//! The table and the JSON file.

use std::fmt;
use std::path::Path;

use serde_json::json;

/// One line of the table.
struct Line {
    name: String,
    value: String,
    target: String,
    number: f64,
    met: Option<bool>,
    details: String,
}

/// All lines, in the order of measurement.
#[derive(Default)]
pub(crate) struct Report(Vec<Line>);

impl Report {
    /// A ratio that must be at least `target`.
    pub(crate) fn ratio(&mut self, name: &str, ratio: f64, target: f64, details: String) {
        self.push(name, format!("{ratio:.2}"), format!("at least {target}"), ratio, Some(ratio >= target), details);
    }

    /// A quantity that must be at most `target`.
    pub(crate) fn at_most(&mut self, name: &str, value: f64, unit: &str, target: f64, details: String) {
        let text = format!("{value:.1} {unit}");
        self.push(name, text, format!("at most {target} {unit}"), value, Some(value <= target), details);
    }

    /// A rate that must be at least `target`. Without a target, the report only shows it.
    pub(crate) fn rate(&mut self, name: &str, rate: f64, target: Option<f64>, details: String) {
        let target_text = target.map_or_else(|| "none".to_owned(), |target| format!("at least {target:.0}/s"));
        self.push(name, format!("{rate:.0}/s"), target_text, rate, target.map(|target| rate >= target), details);
    }

    /// A quantity without a target.
    pub(crate) fn record(&mut self, name: &str, value: f64, unit: &str, details: String) {
        self.push(name, format!("{value:.1} {unit}"), "none".to_owned(), value, None, details);
    }

    /// The number of missed targets.
    pub(crate) fn missed(&self) -> usize {
        self.0.iter().filter(|line| line.met == Some(false)).count()
    }

    pub(crate) fn save(&self, path: &Path) -> anyhow::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let lines: Vec<_> = self
            .0
            .iter()
            .map(|line| {
                json!({ "name": line.name, "value": line.number, "target": line.target, "met": line.met,
                    "details": line.details })
            })
            .collect();
        std::fs::write(path, serde_json::to_string_pretty(&lines)?)?;
        Ok(())
    }

    fn push(&mut self, name: &str, value: String, target: String, number: f64, met: Option<bool>, details: String) {
        self.0.push(Line { name: name.to_owned(), value, target, number, met, details });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| measurement | value | target | | details |\n|---|---|---|---|---|")?;
        for line in &self.0 {
            let met = match line.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "",
            };
            writeln!(f, "| {} | {} | {} | {met} | {} |", line.name, line.value, line.target, line.details)?;
        }
        Ok(())
    }
}
