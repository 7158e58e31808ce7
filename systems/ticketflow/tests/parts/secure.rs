//! Mail servers that want to know who we are, and whom we want to know.

use std::time::Duration;

use relevo_testkit::certs::{Certs, Fault, Holder};
use relevo_testkit::smtp::{Asks, Smtp};
use ticketflow::mail::{self, Patience, Post as _, PostError, Receipt};

use crate::answers::letter_to;

const PATIENCE: Patience = Patience { deadline: Duration::from_secs(30), answer: Duration::from_secs(30) };

fn asks(certs: &Certs, fault: Fault, wrapped: bool) -> Asks {
    let login = Some(("desk".to_owned(), "s3cret: ñ@".to_owned()));
    Asks { tls: Some(certs.pair(Holder::Server, fault)), wrapped, login }
}

async fn send(server: &Smtp, scheme: &str, login: &str, certs: Option<&Certs>) -> Result<Receipt, PostError> {
    let url = format!("{scheme}://{login}localhost:{}", server.address().port());
    let authority = certs.map(|certs| std::fs::read(certs.ca()).expect("a certificate"));
    let post = mail::Smtp::new(&url, authority.as_deref(), PATIENCE, &[]).expect("a URL");
    post.send(&letter_to("pia@example.org")).await
}

#[tokio::test]
async fn letters_are_sent_over_tls_with_a_login() {
    let certs = Certs::new();
    for (scheme, wrapped) in [("smtp+starttls", false), ("smtps", true)] {
        let server = Smtp::start_that(&asks(&certs, Fault::None, wrapped));
        send(&server, scheme, "desk:s3cret%3A%20%C3%B1%40@", Some(&certs)).await.expect("it is taken");
        assert_eq!(server.mails().len(), 1, "{scheme}");
        assert!(server.events().contains(&"login right".to_owned()), "{scheme}: {:?}", server.events());
    }
}

/// The failure is not about the letter: it waits.
#[tokio::test]
async fn a_server_with_a_wrong_login_or_certificate_is_unreachable() {
    let certs = Certs::new();
    let server = Smtp::start_that(&asks(&certs, Fault::None, false));
    for login in ["desk:wrong@", ""] {
        let sent = send(&server, "smtp+starttls", login, Some(&certs)).await;
        assert!(matches!(&sent, Err(PostError::Away(_))), "{login}: {sent:?}");
    }
    assert!(server.events().contains(&"login wrong".to_owned()), "{:?}", server.events());
    let known = "desk:s3cret%3A%20%C3%B1%40@";
    let stranger = send(&server, "smtp+starttls", known, None).await;
    assert!(matches!(&stranger, Err(PostError::Away(_))), "its certificate is not trusted: {stranger:?}");
    for fault in [Fault::Expired, Fault::Foreign] {
        let server = Smtp::start_that(&asks(&certs, fault, true));
        let sent = send(&server, "smtps", known, Some(&certs)).await;
        assert!(matches!(&sent, Err(PostError::Away(_))), "{fault:?}: {sent:?}");
    }
    assert_eq!(server.mails().len(), 0);
}
