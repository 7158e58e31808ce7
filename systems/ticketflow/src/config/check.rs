//! Valid settings that look wrong.

use std::fmt;
use std::net::IpAddr;

use super::{Broker, Config, Database, Letters, Mail, Problems, Role};

/// A valid setting that is probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The setting.
    pub setting: &'static str,
    /// The reason.
    pub why: &'static str,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.setting, self.why)
    }
}

impl Config {
    /// Rejects a configuration whose processes cannot communicate, and returns settings that look wrong.
    pub fn check(&self) -> Result<Vec<Doubt>, Problems> {
        let is_server = matches!(self.database, Database::Postgres(_));
        if is_server && matches!(self.broker, Broker::Embedded(_)) && self.role != Role::All && !self.one_machine {
            return Err(Problems(vec![
                "`broker`: is missing beside PostgreSQL, so that an API and a worker have separate brokers, and no worker handles the \
                 events; hint: name RabbitMQ under `[broker]`, or run `role = \"all\"`, or set `one_machine = true` if all \
                 processes share one `--data DIR`"
                    .to_owned(),
            ]));
        }
        let doubt = |setting, why| Doubt { setting, why };
        let mut doubts = Vec::new();
        if self.role.serves() && !self.listen.ip().is_loopback() {
            let why = "accepts other machines over plain HTTP, so that tokens can be intercepted; hint: put a proxy in \
                       front that terminates TLS, and allow only the proxy";
            doubts.push(doubt("listen", why));
        }
        match &self.mail {
            Mail::Folder(_) if is_server && self.role.works() => {
                doubts.push(doubt(
                    "mail.smtp_url_env",
                    "is missing beside PostgreSQL: e-mails are files, and reach no recipient",
                ));
            }
            Mail::Smtp { url, .. } if self.role.works() => {
                if tells_its_login(url.expose()) {
                    let why = "sends a login over the network without encryption; hint: begin it with \
                               `smtp+starttls://` or `smtps://`";
                    doubts.push(doubt("mail.smtp_url_env", why));
                }
                let (Letters { from, domain, base_url, .. }, example) = (&self.letters, Letters::default());
                let why = "is the example's, and e-mails go to real people";
                let same = [
                    ("mail.from", *from == example.from),
                    ("mail.domain", *domain == example.domain),
                    ("mail.base_url", *base_url == example.base_url),
                ];
                doubts.extend(same.into_iter().filter(|(_, is_same)| *is_same).map(|(setting, _)| doubt(setting, why)));
            }
            Mail::Folder(_) | Mail::Smtp { .. } => {}
        }
        Ok(doubts)
    }
}

/// Whether a login is sent to another machine without TLS.
fn tells_its_login(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("smtp://") else { return false };
    let (authority, options) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let Some((_login, place)) = authority.rsplit_once('@') else { return false };
    !is_loopback(place) && !options.contains("tls=required")
}

/// Whether a host, with or without a port, is this machine.
fn is_loopback(place: &str) -> bool {
    let host = match place.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => place.split(':').next(),
    };
    host.is_some_and(|host| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::read;

    const POSTGRES: &str = "[database]\nurl = 'postgres://db/tickets'\n";
    const SMTP: &str = "[mail]\nsmtp_url = 'smtp://mail'\n";
    const RABBITMQ: &str = "[broker]\nurl = 'amqp://mq'\n";

    fn checked(text: &str) -> Result<Vec<&'static str>, Problems> {
        let config = read(text, Path::new("data"), &|_| None).unwrap();
        config.check().map(|doubts| doubts.into_iter().map(|doubt| doubt.setting).collect())
    }

    #[test]
    fn an_api_and_a_worker_that_would_never_meet_are_refused() {
        for role in ["api", "worker"] {
            let apart = format!("role = '{role}'\n{POSTGRES}{SMTP}");
            let Problems(found) = checked(&apart).unwrap_err();
            assert!(found[0].contains("hint: name RabbitMQ") && found[0].contains("`one_machine = true`"), "{found:?}");
            assert!(checked(&format!("one_machine = true\n{apart}")).is_ok());
            assert!(checked(&format!("{apart}{RABBITMQ}")).is_ok());
            assert!(checked(&format!("role = '{role}'")).is_ok(), "a file is on one machine anyway");
        }
        assert!(checked(&format!("role = 'all'\n{POSTGRES}{SMTP}")).is_ok());
    }

    #[test]
    fn settings_that_look_wrong_are_named() {
        let real = format!("{POSTGRES}{RABBITMQ}");
        assert_eq!(checked(&real), Ok(vec!["mail.smtp_url_env"]));
        assert_eq!(checked(&format!("{real}{SMTP}")), Ok(vec!["mail.from", "mail.domain", "mail.base_url"]));
        let ours = "from = 'desk@acme.org'\ndomain = 'acme.org'\nbase_url = 'https://desk.acme.org'\n";
        assert_eq!(checked(&format!("{real}{SMTP}{ours}")), Ok(Vec::new()));
        assert_eq!(checked(&format!("role = 'api'\n{real}")), Ok(Vec::new()), "an API sends no e-mails");
        assert_eq!(checked(""), Ok(Vec::new()));
    }

    #[test]
    fn what_others_could_read_on_the_way_is_named() {
        let mail =
            |url: &str| checked(&format!("[mail]\nsmtp_url = '{url}'\ndomain = 'acme.org'\nfrom = 'desk@acme.org'"));
        let login = |url: &str| mail(url).map(|settings| settings.contains(&"mail.smtp_url_env"));
        for unencrypted in
            ["smtp://us:secret@mail", "smtp://us:secret@10.0.0.7:25", "smtp://us:s@mail?tls=opportunistic"]
        {
            assert_eq!(login(unencrypted), Ok(true), "{unencrypted}");
        }
        for protected in [
            "smtp://mail",
            "smtp+starttls://us:secret@mail",
            "smtps://us:secret@mail",
            "smtp://us:secret@mail:587?tls=required",
            "smtp://us:secret@localhost:25",
            "smtp://us:secret@127.0.0.1:25",
            "smtp://us:secret@[::1]:25",
        ] {
            assert_eq!(login(protected), Ok(false), "{protected}");
        }
        assert_eq!(checked("listen = '0.0.0.0:8080'"), Ok(vec!["listen"]));
        assert_eq!(checked("listen = '[::1]:8080'"), Ok(Vec::new()));
        assert_eq!(checked("listen = '0.0.0.0:8080'\nrole = 'worker'"), Ok(Vec::new()), "a worker needs no token");
    }
}
