//! What a configuration says that is possible and hardly meant.

use std::fmt;

use super::{Broker, Config, Database, Letters, Mail, Problems, Role};

/// A setting that works, and probably not as somebody wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// Which one.
    pub setting: &'static str,
    /// Why.
    pub why: &'static str,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.setting, self.why)
    }
}

impl Config {
    /// Refuses parts that would never meet, and names what should be looked at before somebody relies on it.
    pub fn check(&self) -> Result<Vec<Doubt>, Problems> {
        let is_server = matches!(self.database, Database::Postgres(_));
        if is_server && matches!(self.broker, Broker::Embedded(_)) && self.role != Role::All && !self.one_machine {
            return Err(Problems(vec![
                "`broker`: is left out beside PostgreSQL, so that an API and a worker have a broker of their own each, and events \
                 go where nobody handles them; hint: name RabbitMQ under `[broker]`, or run `role = \"all\"`, or say \
                 `one_machine = true` where all processes share one `--data DIR`"
                    .to_owned(),
            ]));
        }
        let doubt = |setting, why| Doubt { setting, why };
        let mut doubts = Vec::new();
        match &self.mail {
            Mail::Folder(_) if is_server && self.role.works() => {
                doubts.push(doubt(
                    "mail.smtp_url_env",
                    "is left out beside PostgreSQL: e-mails are files, and reach nobody",
                ));
            }
            Mail::Smtp { .. } if self.role.works() => {
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
            let Problems(told) = checked(&apart).unwrap_err();
            assert!(told[0].contains("hint: name RabbitMQ") && told[0].contains("`one_machine = true`"), "{told:?}");
            assert!(checked(&format!("one_machine = true\n{apart}")).is_ok());
            assert!(checked(&format!("{apart}{RABBITMQ}")).is_ok());
            assert!(checked(&format!("role = '{role}'")).is_ok(), "a file is on one machine anyway");
        }
        assert!(checked(&format!("role = 'all'\n{POSTGRES}{SMTP}")).is_ok());
    }

    #[test]
    fn what_is_hardly_meant_is_named() {
        let real = format!("{POSTGRES}{RABBITMQ}");
        assert_eq!(checked(&real), Ok(vec!["mail.smtp_url_env"]));
        assert_eq!(checked(&format!("{real}{SMTP}")), Ok(vec!["mail.from", "mail.domain", "mail.base_url"]));
        let ours = "from = 'desk@acme.org'\ndomain = 'acme.org'\nbase_url = 'https://desk.acme.org'\n";
        assert_eq!(checked(&format!("{real}{SMTP}{ours}")), Ok(Vec::new()));
        assert_eq!(checked(&format!("role = 'api'\n{real}")), Ok(Vec::new()), "an API writes to nobody");
        assert_eq!(checked(""), Ok(Vec::new()));
    }
}
