//! A mail server from its URL, and its sessions.

use std::time::Duration;

use http::Uri;
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, Tls, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt, Rset};
use lettre::transport::smtp::extension::{ClientId, Extension, MailBodyParameter, MailParameter};
use lettre::{Address, Message};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use super::classify::{Doubt, Failure, Refusal, Stage};

/// The timeout of QUIT.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of a connection.
pub(super) struct Server {
    host: String,
    port: u16,
    tls: Tls,
    hello: ClientId,
    credentials: Option<Credentials>,
    deadline: Duration,
}

impl Server {
    /// Parses a URL in the same way as lettre, which has accepted it before.
    pub(super) fn of(
        url: &str,
        signed_by: Option<&[u8]>,
        deadline: Duration,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let uri: Uri = url.parse()?;
        let authority = uri.authority().ok_or("it names no server")?;
        let host = authority.host().to_owned();
        let parameters = || -> Result<TlsParameters, Error> {
            let mut builder = TlsParameters::builder(host.clone());
            if let Some(authority) = signed_by {
                builder = builder.add_root_certificate(Certificate::from_pem(authority)?);
            }
            builder.build()
        };
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

    /// Opens a session.
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

    /// Checks that the server accepts a session, this sender, and at least one of the recipients if there are any. Sends
    /// no e-mail.
    pub(super) async fn takes_letters_of(
        &self,
        sender: Option<Address>,
        recipients: Vec<Address>,
    ) -> Result<(), Error> {
        let mut connection = self.connect().await?;
        connection.command(Mail::new(sender, Vec::new())).await?;
        let mut refused = Ok(());
        for recipient in recipients {
            let Err(refusal) = connection.command(Rcpt::new(recipient, Vec::new())).await else {
                refused = Ok(());
                break;
            };
            let said = Refusal::of(Stage::Recipient, &refusal);
            if !matches!(said.failure, Failure::NotNow | Failure::Never) {
                return Err(refusal);
            }
            if !matches!(said.doubt(), Doubt::Others { .. }) {
                // A missing or full mailbox means that the server accepts the sender.
                refused = Ok(());
                break;
            }
            refused = Err(refusal);
        }
        refused?;
        connection.command(Rset).await?;
        quit(connection).await;
        Ok(())
    }
}

/// Sends the commands MAIL, RCPT and DATA, after which the server waits for the content. An error names the stage.
pub(super) async fn offer(connection: &mut AsyncSmtpConnection, message: &Message) -> Result<(), (Stage, Error)> {
    let envelope = message.envelope();
    let sender = Mail::new(envelope.from().cloned(), parameters(connection, message));
    connection.command(sender).await.map_err(|error| (Stage::Sender, error))?;
    for recipient in envelope.to() {
        let recipient = Rcpt::new(recipient.clone(), Vec::new());
        connection.command(recipient).await.map_err(|error| (Stage::Recipient, error))?;
    }
    connection.command(Data).await.map_err(|error| (Stage::Content, error))?;
    Ok(())
}

/// The SMTP extensions that an e-mail with non-ASCII characters needs. A server without them rejects the e-mail.
fn parameters(connection: &AsyncSmtpConnection, message: &Message) -> Vec<MailParameter> {
    let envelope = message.envelope();
    let addresses = envelope.from().into_iter().chain(envelope.to());
    let mut parameters = Vec::new();
    if addresses.map(AsRef::<str>::as_ref).any(|address: &str| !address.is_ascii()) {
        parameters.push(MailParameter::SmtpUtfEight);
    }
    let takes_eight_bits = connection.server_info().supports_feature(Extension::EightBitMime);
    if takes_eight_bits && !message.formatted().is_ascii() {
        parameters.push(MailParameter::Body(MailBodyParameter::EightBitMime));
    }
    parameters
}

/// Ends a session. The server's response does not matter, and the wait is short.
pub(super) async fn quit(mut connection: AsyncSmtpConnection) {
    timeout(QUIT_TIMEOUT, connection.quit()).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_as_lettre_reads_it() {
        let server = |url: &str| Server::of(url, None, Duration::from_secs(1)).unwrap();
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
