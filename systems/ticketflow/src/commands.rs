//! The short commands.

use std::io::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use relevo::core::broker::admin::TopologyStatus;
use ticketflow::config::Config;
use ticketflow::desk::{self, Desk, Kind, Token, Whom};
use ticketflow::domain;
use ticketflow::domain::fields::{self, NAME_MAX};
use ticketflow::flow::Broker;
use uuid::Uuid;

use crate::args::{Person, Topology};

/// Brings the database up to date.
pub(crate) async fn migrate(config: &Config) -> Result<()> {
    config.make_folders()?;
    let applied = desk::migrate(&config.database).await?;
    match applied.last() {
        Some(version) => say(&format!("the database is at version {version} now")),
        None => say("the database was up to date"),
    }
}

/// Creates missing items at the broker, or only compares.
pub(crate) async fn topology(config: &Config, what: Topology) -> Result<()> {
    config.make_folders()?;
    let broker = Broker::open(&config.broker).await?;
    let pieces = broker.examine(what == Topology::Apply).await?;
    if pieces.is_empty() {
        return say("the embedded broker creates its groups itself");
    }
    let mut wrong = 0;
    for piece in &pieces {
        let state = match &piece.status {
            TopologyStatus::Unchanged => "same".to_owned(),
            TopologyStatus::Created => "made".to_owned(),
            TopologyStatus::Unknown => "unseen".to_owned(),
            TopologyStatus::Missing => {
                wrong += 1;
                "missing".to_owned()
            }
            TopologyStatus::Different(how) => {
                wrong += 1;
                let how: Vec<_> = how.iter().map(ToString::to_string).collect();
                format!("differs: {}", how.join("; "))
            }
        };
        say(&format!("{state:<8} {}", piece.name))?;
    }
    broker.close().await;
    if wrong > 0 {
        bail!("{wrong} of {} are missing or different", pieces.len());
    }
    Ok(())
}

/// Adds a person, replaces their token, or disables them. A token is printed once.
pub(crate) async fn person(config: &Config, kind: Kind, what: &Person) -> Result<()> {
    match what {
        Person::Add { name, email, role, language } => {
            for (what, checked) in [("name", fields::line(name, NAME_MAX)), ("e-mail address", fields::email(email))] {
                checked.map_err(|fault| anyhow!("the {what} {}", fault.message))?;
            }
            let person = domain::Person {
                id: Uuid::now_v7(),
                name: name.clone(),
                email: email.clone(),
                role: *role,
                language: *language,
            };
            let token = Token::random();
            open(config, kind).await?.add_person(&person, &token, Timestamp::now()).await?;
            say(token.expose())
        }
        Person::Token { email } => {
            let desk = open(config, kind).await?;
            let token = Token::random();
            desk.set_token(&known(&*desk, email).await?, &token).await?;
            say(token.expose())
        }
        Person::Disable { email } => {
            let desk = open(config, kind).await?;
            let person = known(&*desk, email).await?;
            desk.disable(&person, Timestamp::now()).await?;
            say(&format!(
                "{} is disabled; hint: `ticketflow person token {}` lets them in again",
                person.name, person.email
            ))
        }
    }
}

/// Opens the desk and marks it as of this kind.
async fn open(config: &Config, kind: Kind) -> Result<Arc<dyn Desk>> {
    config.make_folders()?;
    desk::migrate(&config.database).await?;
    let desk = desk::open(&config.database).await?;
    desk.claim(kind).await?;
    Ok(desk)
}

async fn known(desk: &dyn Desk, email: &str) -> Result<domain::Person> {
    desk.person(&Whom::Email(email.to_owned())).await.with_context(|| format!("`{email}`"))
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
