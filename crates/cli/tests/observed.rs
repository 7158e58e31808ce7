//! What people see from outside: the shipped rules, runbooks and dashboards, with a real Prometheus and Alertmanager.

#[path = "observed/asked.rs"]
mod asked;
#[path = "run/daemon.rs"]
#[expect(dead_code, reason = "the tests of the daemon ask it for more")]
mod daemon;
#[path = "observed/outage.rs"]
mod outage;
#[path = "observed/panels.rs"]
mod panels;
#[path = "observed/rules.rs"]
mod rules;
#[path = "observed/scene.rs"]
mod scene;
#[path = "observed/watch.rs"]
mod watch;
#[path = "run/world.rs"]
#[expect(dead_code, reason = "the tests of the daemon ask it for more")]
mod world;
