//! A mail server by its URL, and whether it talks to us at all.

use std::time::Duration;

use http::Uri;
use lettre::Address;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Tls, TlsParameters};
use lettre::transport::smtp::commands::{Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::ClientId;
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use super::classify::{Failure, is_policy};

/// How long a server may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a connection needs to know.
pub(super) struct Server {
    host: String,
    port: u16,
    tls: Tls,
    hello: ClientId,
    credentials: Option<Credentials>,
    deadline: Duration,
}

impl Server {
    /// Reads a URL as lettre does, which has accepted it.
    pub(super) fn of(url: &str, deadline: Duration) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let uri: Uri = url.parse()?;
        let authority = uri.authority().ok_or("it names no server")?;
        let host = authority.host().to_owned();
        let parameters = || TlsParameters::new(host.clone());
        let (tls, port) = match (uri.scheme_str(), uri.query()) {
            (Some("smtps"), _) => (Tls::Wrapper(parameters()?), 465),
            (_, Some(query)) if query.contains("tls=required") => (Tls::Required(parameters()?), 587),
            (_, Some(query)) if query.contains("tls=opportunistic") => (Tls::Opportunistic(parameters()?), 587),
            _ => (Tls::None, 25),
        };
        let hello = match uri.path().trim_matches('/') {
            "" => ClientId::default(),
            name => ClientId::Domain(name.to_owned()),
        };
        let login = authority.as_str().rsplit_once('@').and_then(|(login, _)| login.split_once(':'));
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().map(std::borrow::Cow::into_owned);
        let credentials = match login {
            Some((user, password)) => Some(Credentials::new(decoded(user)?, decoded(password)?)),
            None => None,
        };
        Ok(Self { port: authority.port_u16().unwrap_or(port), host, tls, hello, credentials, deadline })
    }

    /// A connection that lets us in.
    pub(super) async fn connect(&self) -> Result<AsyncSmtpConnection, Error> {
        let wrapped = if let Tls::Wrapper(parameters) = &self.tls { Some(parameters.clone()) } else { None };
        let at = (self.host.as_str(), self.port);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(at, Some(self.deadline), &self.hello, wrapped, None).await?;
        match &self.tls {
            Tls::Required(parameters) => connection.starttls(parameters.clone(), &self.hello).await?,
            Tls::Opportunistic(parameters) if connection.can_starttls() => {
                connection.starttls(parameters.clone(), &self.hello).await?;
            }
            Tls::Opportunistic(_) | Tls::Wrapper(_) | Tls::None => {}
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }

    /// Whether it lets us in and takes letters of this sender; if recipients are named, whether its policies let letters of ours
    /// through to one of them. Nothing is sent.
    pub(super) async fn takes_letters_of(
        &self,
        sender: Option<Address>,
        recipients: Vec<Address>,
    ) -> Result<(), Error> {
        let mut connection = self.connect().await?;
        connection.command(Mail::new(sender, Vec::new())).await?;
        let mut refused = Ok(());
        for recipient in recipients {
            match connection.command(Rcpt::new(recipient, Vec::new())).await {
                Err(refusal) if is_policy(&refusal) => refused = Err(refusal),
                // That there is no such mailbox, or that it is full, says that no policy was in the way.
                Err(refusal) if !matches!(Failure::of(&refusal), Failure::NotNow | Failure::Never) => {
                    return Err(refusal);
                }
                Ok(_) | Err(_) => {
                    refused = Ok(());
                    break;
                }
            }
        }
        refused?;
        connection.command(Rset).await?;
        // It has answered what was asked; whether it says goodbye does not matter, and is not waited for long.
        timeout(GOODBYE, connection.quit()).await.ok();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_as_lettre_reads_it() {
        let server = |url: &str| Server::of(url, Duration::from_secs(1)).unwrap();
        let plain = server("smtp://us%40here:p%3Aw@mail.example:2525/me.example");
        assert_eq!((plain.host.as_str(), plain.port), ("mail.example", 2525));
        assert_eq!(plain.hello, ClientId::Domain("me.example".to_owned()));
        let credentials = Credentials::new("us@here".to_owned(), "p:w".to_owned());
        assert!(plain.credentials.is_some_and(|read| read == credentials));
        assert!(matches!(plain.tls, Tls::None));
        assert!(matches!(server("smtps://mail.example"), Server { tls: Tls::Wrapper(_), port: 465, .. }));
        let required = server("smtp://mail.example?tls=required");
        assert!(matches!(required, Server { tls: Tls::Required(_), port: 587, credentials: None, .. }));
        assert_eq!(server("smtp://mail.example").port, 25);
    }
}
