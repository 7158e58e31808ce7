//! The page in a real browser, driven by what people see of it.

use std::time::{Duration, Instant};

use relevo_testkit::browser::Browser;

use crate::running::{Directory, Running, ticketflow};

/// Harmful wherever it is taken for more than text.
const TITLE: &str = "<script>window.harmed = 1</script> <img src=x onerror=harmed=2> & \"quoted\"";

fn be(browser: &Browser, name: &str) {
    if !browser.text("#leave").is_empty() {
        browser.click("#leave");
    }
    browser.see("#people", name);
    let script = "[...document.querySelectorAll('#people button')].find(person => person.innerText.includes(arguments[0])).click()";
    browser.run(script, &[name]);
    browser.see("#me", name);
}

/// The browser notes each answer that is a refusal, be it after the page shows what it means; nothing but these may stand in its
/// console.
fn refused(browser: &Browser, statuses: &[u16]) {
    let end = Instant::now() + Duration::from_secs(30);
    let mut console = browser.console();
    while console.len() < statuses.len() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        console.extend(browser.console());
    }
    assert_eq!(console.len(), statuses.len(), "{console:#?}");
    for (line, status) in console.iter().zip(statuses) {
        assert!(line.contains(&format!("responded with a status of {status} ")), "{line}");
    }
}

fn unharmed(browser: &Browser) {
    assert!(browser.run("return window.harmed ?? null", &[]).is_null(), "a script in a title ran");
}

#[test]
fn a_ticket_is_opened_and_answered_and_emails_appear() {
    let directory = Directory::new("page");
    let service = Running::start(directory.path());
    let browser = Browser::start("en");
    browser.open(&service.url());

    be(&browser, "Ana");
    browser.click("#new");
    browser.click("#create button");
    browser.see("#title-fault", "Cannot be left empty.");
    browser.see("#description-fault", "Cannot be left empty.");
    assert_eq!(browser.run("return document.activeElement.id", &[]), "title", "the first field at fault has the focus");
    refused(&browser, &[422]);
    browser.write("#title", TITLE);
    browser.write("#description", "It ate <b>three</b> pages.\nThen it stopped.");
    browser.click("#create button");
    browser.see("#ticket-title", TITLE);
    browser.see("#ticket-description", "It ate <b>three</b> pages.\nThen it stopped.");
    browser.see("#list", TITLE);
    browser.see("#no-moves", "Nothing more to do here.");
    assert_eq!(browser.text("#figures"), "", "requesters see no figures");
    browser.see("#emails", TITLE);
    unharmed(&browser);

    // Her language is Spanish, so her e-mail is; the page speaks the browser's.
    browser.click("#emails button");
    browser.see("#letter-subject", TITLE);
    browser.see("#letter-facts", "Message-ID");
    browser.enter_frame("#letter-html");
    browser.see("body", TITLE);
    browser.see("body", "Ana");
    unharmed(&browser);
    assert_eq!(browser.run("return self.origin", &[]), "null", "an e-mail has an origin of its own");
    browser.leave_frame();
    browser.click("#as-text");
    browser.see("#letter-text", "Ana");
    browser.click("#letter-close");

    be(&browser, "Carla");
    browser.see("#ticket-title", TITLE);
    browser.click("#take");
    browser.see("#ticket-assignee", "Carla");
    browser.see("#history", "Carla took it");
    browser.click("#moves [data-status=in_progress]");
    browser.see("#ticket-status", "In progress");
    let offered = browser.run(
        "return [...document.querySelectorAll('#moves button')].map(move => move.dataset.status).sort().join()",
        &[],
    );
    assert_eq!(offered, "open,resolved,waiting", "exactly what is allowed");
    browser.write("#body", "Is it <i>still</i> hungry?");
    browser.click("#comment button");
    browser.see("#history", "Is it <i>still</i> hungry?");
    browser.see("#by-status", "In progress 1");
    browser.see("#by-agent", "Carla In progress 1");
    browser.see("#days", "Carla");
    browser.see("#health-word", "All well");
    refused(&browser, &[]);
}

#[test]
fn changes_of_others_are_shown_and_no_input_is_lost() {
    let directory = Directory::new("page-others");
    let service = Running::start(directory.path());
    let browser = Browser::start("en");
    let ticket = r#"{"title": "Hungry printer", "description": "It eats paper."}"#;
    let created = service.post("demo-ana", "/api/tickets", ticket);
    let (_, rest) = created.split_once("\"id\":\"").expect("a ticket has an id");
    let id = &rest[..36];
    browser.open(&format!("{}#/tickets/{id}", service.url()));
    be(&browser, "Carla");
    browser.see("#ticket-title", "Hungry printer");

    browser.write("#body", "half a sen");
    service.post("demo-dan", &format!("/api/tickets/{id}/comments"), r#"{"body": "Dan was here"}"#);
    browser.see("#history", "Dan was here");
    browser.see("#notice", "Dan has just changed this ticket.");
    let typing = browser.run("return document.activeElement.id + ': ' + document.activeElement.value", &[]);
    assert_eq!(typing, "body: half a sen");

    // In one step, so that the page cannot poll in between: a comment is added, and Carla acts on the old version.
    let race = "const call = new XMLHttpRequest(); call.open('POST', `/api/tickets/${arguments[0]}/comments`, false); \
        call.setRequestHeader('authorization', 'Bearer demo-dan'); call.setRequestHeader('content-type', 'application/json'); \
        call.send('{\"body\": \"Dan was quicker\"}'); \
        document.querySelector('#moves [data-status=resolved]').click(); return call.status";
    assert_eq!(browser.run(race, &[id]), 201);
    browser.see("#notice", "Somebody changed this ticket meanwhile, so nothing was done.");
    browser.see("#history", "Dan was quicker");
    browser.see("#ticket-status", "Open");
    refused(&browser, &[412]);
    // News do not take the place of what went wrong.
    service.post("demo-dan", &format!("/api/tickets/{id}/comments"), r#"{"body": "Dan once more"}"#);
    browser.see("#history", "Dan once more");
    browser.see("#notice", "Somebody changed this ticket meanwhile, so nothing was done.");
    browser.click("#moves [data-status=resolved]");
    browser.see("#ticket-status", "Resolved");

    browser.click("#es");
    browser.see("#ticket-status", "Resuelto");
    browser.see("#new", "Nuevo ticket");
    browser.see("#moves", "Reabrir");
    browser.see("#history", "Carla: Abierto → Resuelto");
    assert_eq!(browser.run("return document.documentElement.lang", &[]), "es");
    assert_eq!(browser.run("return document.querySelector('#body').value", &[]), "half a sen");

    browser.resize(500, 900);
    assert_eq!(browser.run("return document.documentElement.scrollWidth <= innerWidth", &[]), true, "it fits a phone");
    browser.see("#ticket .back", "Todos los tickets");

    service.kill();
    browser.see("#health-word", "Sin respuesta");
    browser.see("#ticket-title", "Hungry printer");
}

#[test]
fn the_next_user_sees_nothing_of_the_previous_one() {
    let directory = Directory::new("page-next");
    let service = Running::start(directory.path());
    let browser = Browser::start("en");
    // No id, not even one that could be decoded.
    browser.open(&format!("{}#/tickets/%", service.url()));
    be(&browser, "Ana");
    browser.see("#notice", "There is no such ticket, or it is not yours.");
    // It is looked for again and again.
    assert!(browser.console().iter().all(|line| line.contains("responded with a status of 404 ")));
    browser.click("#new");
    browser.write("#title", "Twice");
    browser.write("#description", "The same words");
    browser.click("#create button");
    browser.see("#ticket-number", "#1");
    browser.click("#new");
    browser.write("#title", "Twice");
    browser.write("#description", "The same words");
    browser.click("#create button");
    browser.see("#ticket-number", "#2");
    browser.click("#new");
    browser.write("#title", "Ana's own");
    be(&browser, "Ben");
    assert_eq!(browser.run("return document.querySelector('#title').value", &[]), "");
    browser.see("#emails-empty", "None yet.");
}

#[test]
fn a_token_is_kept_while_the_service_cannot_check_it() {
    let directory = Directory::new("page-later");
    let service = Running::start(directory.path());
    let browser = Browser::start("en");
    browser.open(&service.url());
    browser.see("#people", "Ana");
    let later = "const ask = fetch; const later = '{\"detail\": \"come again later\"}'; \
        window.fetch = (path, ...rest) => \
            path === '/api/me' ? Promise.resolve(new Response(later, { status: 503 })) : ask(path, ...rest)";
    browser.run(later, &[]);
    browser.click("#people button");
    browser.see("#token-fault", "That did not work: come again later");
    // Another load of the page, and the service is well again.
    browser.open(&service.url());
    browser.see("#me", "Ana");
}

#[test]
fn without_a_sample_a_token_is_required() {
    let directory = Directory::new("page-token");
    std::fs::write(directory.path().join("ticketflow.toml"), "").expect("the directory can be written");
    let config = ["--config", "ticketflow.toml"];
    let added = ["person", "add", "Zoe", "zoe@ticketflow.example", "agent"];
    let output = ticketflow(directory.path()).args(added).args(config).output().expect("`ticketflow` runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let token = String::from_utf8(output.stdout).expect("a token is text");
    let service = Running::start_with(directory.path(), &config);
    let browser = Browser::start("es");
    browser.open(&service.url());
    browser.see("#who", "Pega el token que te dieron.");
    assert_eq!(browser.text("#people"), "", "no sample user is offered");
    // Whether there is a sample is asked, and refused.
    refused(&browser, &[404]);
    browser.write("#token", "demo-ana");
    browser.click("#with-token button");
    browser.see("#token-fault", "Nadie tiene este token.");
    refused(&browser, &[401]);
    browser.run("document.querySelector('#token').value = ''", &[]);
    browser.write("#token", token.trim());
    browser.click("#with-token button");
    browser.see("#me", "Zoe · Agente");
    browser.see("#list-empty", "Aquí no hay tickets.");
    refused(&browser, &[]);
}
