//! The shipped alert rules, runbooks and dashboards, with a real Prometheus and Alertmanager.

#[path = "run/daemon.rs"]
#[expect(dead_code, reason = "the tests of the daemon use all of it")]
mod daemon;
#[path = "observed/fixture.rs"]
mod fixture;
#[path = "observed/outage.rs"]
mod outage;
#[path = "observed/panels.rs"]
mod panels;
#[path = "observed/prometheus.rs"]
mod prometheus;
#[path = "observed/queries.rs"]
mod queries;
#[path = "observed/rules.rs"]
mod rules;
#[path = "run/test_outbox.rs"]
#[expect(dead_code, reason = "the tests of the daemon use all of it")]
mod test_outbox;
