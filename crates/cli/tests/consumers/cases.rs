//! Consumer commands that must work the same on every database.

use relevo_core::AfterDead;
use relevo_core::inbox::retries::InboxFailureAction;
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{Inbox, InboxState};
use serde_json::{Value, json};

use super::fixture::{arrival, billing, fail_again, handle, heartbeat, id, leave, member, set_back};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000000";

/// The program on one database. Returns exit code, stdout and stderr.
pub(crate) trait Run {
    fn run(&self, args: &[&str]) -> (i32, String, String);

    fn ok(&self, args: &[&str]) -> (String, String) {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        (stdout, stderr)
    }

    fn objects(&self, args: &[&str]) -> Vec<Value> {
        let (stdout, _) = self.ok(&[args, &["-o", "json"]].concat());
        stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// Requires this exit code and one error that contains all of these parts.
    fn fails(&self, code: i32, args: &[&str], parts: &[&str]) {
        let (ended, stdout, stderr) = self.run(args);
        assert_eq!((ended, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{args:?}: {stderr}");
        assert!(parts.iter().all(|part| stderr.contains(part)), "{args:?}: {stderr}");
    }
}

pub(crate) async fn consumers_are_listed_and_shown(cli: &impl Run, inbox: &impl Inbox) {
    let (list, stderr) = cli.ok(&["consumer", "list"]);
    assert!(list.is_empty() && stderr.starts_with("no consumer has an inbox in this database"), "{list}{stderr}");
    billing(inbox).await;
    inbox.prune(10).await.expect("it prunes");
    let listed = &cli.objects(&["consumer", "list"])[0];
    assert_eq!(
        (&listed["name"], &listed["member_count"], &listed["paused"]),
        (&json!("billing"), &json!(1), &json!(false))
    );
    assert_eq!((&listed["waiting"], &listed["dead"]), (&json!(1), &json!(2)));
    assert_eq!(listed["retention_ms"], json!(30 * 86_400_000_u64));
    assert!(listed["heartbeat_at"].is_string());
    let shown = &cli.objects(&["consumer", "show", "billing"])[0];
    assert_eq!((&shown["name"], &shown["members"][0]["name"]), (&json!("billing"), &json!("worker-1")));
    let lane = &shown["lanes"][0];
    assert_eq!(
        (&lane["name"], &lane["owner"], &lane["low_watermark"]),
        (&json!("orders.0"), &json!("worker-1"), &json!(41))
    );
    assert_eq!((&lane["breaker"], &lane["breaker_override"]), (&json!("503 from the post"), &Value::Null));
    let queues = shown["retry_queues"].as_array().expect("queues");
    let found: Vec<_> = queues.iter().map(|it| (it["queue"].as_str(), it["next_attempt_at"].is_string())).collect();
    assert_eq!(found, [(Some("o-2"), true), (Some("o-3"), false)], "one needs an operator");
    cli.fails(4, &["consumer", "show", "biling"], &["consumer `biling` is not known", "hint: there is `billing`"]);
}

pub(crate) async fn orders_reach_the_members(cli: &impl Run, inbox: &impl Inbox) {
    member(inbox).await;
    let (_, stderr) = cli.ok(&["consumer", "pause", "billing"]);
    assert_eq!(stderr, "consumer `billing` is paused; members obey with their next heartbeat\n");
    assert!(heartbeat(inbox).await.paused);
    assert_eq!(cli.objects(&["consumer", "list"])[0]["paused"], json!(true));
    cli.ok(&["consumer", "pause", "billing", "--lane", "orders.0"]);
    assert_eq!(heartbeat(inbox).await.paused_lanes[0].name(), "orders.0");
    let (_, stderr) = cli.ok(&["consumer", "resume", "billing"]);
    assert!(stderr.contains("these lanes are still paused: `orders.0`\nhint: "), "{stderr}");
    let (_, stderr) = cli.ok(&["consumer", "resume", "billing", "--lane", "orders.0"]);
    assert_eq!(stderr, "lane `orders.0` of `billing` is resumed; members obey with their next heartbeat\n");
    let reply = heartbeat(inbox).await;
    assert!(!reply.paused && reply.paused_lanes.is_empty());
    for (to, forced) in [("open", vec![true]), ("close", vec![false]), ("auto", vec![])] {
        cli.ok(&["consumer", "breaker", "billing", "--lane", "orders.0", to]);
        assert_eq!(
            heartbeat(inbox).await.breaker_overrides.into_iter().map(|(_, open)| open).collect::<Vec<_>>(),
            forced,
            "{to}"
        );
    }
    cli.fails(4, &["consumer", "pause", "invoices"], &["consumer `invoices` is not known", "there is `billing`"]);
    let nowhere = ["consumer", "breaker", "billing", "--lane", "orders.9", "open"];
    cli.fails(4, &nowhere, &["consumer `billing` has no lane `orders.9`", "hint: there are `orders.0`"]);
}

pub(crate) async fn a_removed_consumer_keeps_its_inbox(cli: &impl Run, inbox: &impl Inbox) {
    let remove = ["consumer", "remove", "billing", "--yes"];
    cli.fails(4, &remove, &["consumer `billing` is not known", "hint: this database has no consumer"]);
    member(inbox).await;
    let handled = arrival(id(1), "o-1", "{}");
    assert_eq!(handle(inbox, &handled).await, EnterOutcome::New);
    cli.ok(&["consumer", "pause", "billing"]);
    let refused = ["consumer `billing` has live members, nothing was changed", "hint: stop its processes"];
    cli.fails(1, &remove, &refused);
    cli.fails(1, &remove[..3], &refused);
    leave(inbox).await;
    let (code, _, question) = cli.run(&remove[..3]);
    assert_eq!(code, 1);
    assert!(question.starts_with("remove consumer `billing` with its members and lanes? "), "{question}");
    assert!(question.ends_with("nothing was changed\nhint: `--yes` confirms in advance\n"), "{question}");
    assert_eq!(cli.objects(&["consumer", "list"])[0]["paused"], json!(true), "it was not confirmed");
    let (_, stderr) = cli.ok(&remove);
    assert_eq!(stderr, "consumer `billing` is removed; a member that starts continues with its inbox\n");
    assert_eq!(cli.objects(&["consumer", "list"]), [] as [Value; 0]);
    cli.fails(4, &remove, &["consumer `billing` is not known"]);
    assert!(!heartbeat(inbox).await.paused, "the pause is removed too");
    assert_eq!(handle(inbox, &handled).await, EnterOutcome::Duplicate(InboxState::Done));
    assert_eq!(cli.objects(&["consumer", "list"])[0]["member_count"], json!(1));
    billing(inbox).await;
    leave(inbox).await;
    let (_, stderr) = cli.ok(&remove);
    assert!(stderr.ends_with("\nit is still listed, because it has 1 waiting and 2 dead messages\n"), "{stderr}");
    let listed = &cli.objects(&["consumer", "list"])[0];
    assert_eq!(
        (&listed["member_count"], &listed["heartbeat_at"], &listed["dead"]),
        (&json!(0), &Value::Null, &json!(2))
    );
}

pub(crate) async fn dead_letters_are_shown_as_they_came(cli: &impl Run, inbox: &impl Inbox) {
    billing(inbox).await;
    let (text, foreign) = (id(3).to_string(), id(4).to_string());
    let listed = cli.objects(&["dead-letter", "list"]);
    let found: Vec<_> = listed.iter().map(|it| (it["id"].as_str(), it["class"].as_str())).collect();
    assert_eq!(found, [(Some(&*text), Some("panic")), (Some(&*foreign), Some("undecodable"))]);
    assert_eq!((&listed[0]["type"], &listed[1]["type"]), (&json!("OrderPlaced"), &Value::Null));
    for (args, count) in [
        (&["--key", "o-3"][..], 1),
        (&["--class", "undecodable"], 1),
        (&["--since", "1h"], 2),
        (&["--until", "1h"], 0),
        (&["--consumer", "billing", "--key", "o-3", "--class", "undecodable"], 0),
    ] {
        assert_eq!(cli.objects(&[&["dead-letter", "list"], args].concat()).len(), count, "{args:?}");
    }
    let (_, more) = cli.ok(&["dead-letter", "list", "--limit", "1"]);
    assert!(more.starts_with("1 dead letter, and more\nhint: "), "{more}");
    assert_eq!(cli.ok(&["dead-letter", "show", &text, "--raw"]).0, r#"{"n":3}"#);
    let (shown, _) = cli.ok(&["dead-letter", "show", &text]);
    assert!(
        shown.contains("\nbacktrace:\n0: ship::pack\n1: ship::\\u{1b}run\n"),
        "control characters are escaped: {shown}"
    );
    let shown = &cli.objects(&["dead-letter", "show", &foreign])[0];
    assert_eq!(shown["payload_base64"], json!("AP8h"));
    assert_eq!(shown["headers"][0], json!({ "name": "x-origin", "value_base64": "/2E=" }));
    assert_eq!(
        (&shown["address"], &shown["lane"], &shown["broker_offset"]),
        (&json!("orders"), &json!("orders.0"), &Value::Null)
    );
    let (shown, _) = cli.ok(&["dead-letter", "show", &foreign]);
    assert!(shown.contains("x-origin: \\xffa") && shown.contains("00000000  00 ff 21"), "{shown}");
    cli.fails(4, &["dead-letter", "show", UNKNOWN], &["is no dead letter", "hint: `relevo trace "]);
    cli.fails(4, &["dead-letter", "list", "--consumer", "biling"], &["`biling` is not known", "`billing`"]);
}

pub(crate) async fn a_redrive_happens_once_and_what_fails_again_is_seen(cli: &impl Run, inbox: &impl Inbox) {
    billing(inbox).await;
    let letter = id(3).to_string();
    let dry = ["dead-letter", "redrive", "--consumer", "billing", "--all", "--dry-run"];
    assert_eq!(cli.ok(&dry).1, "2 dead letters would be redriven, nothing was changed\n");
    let redrive = ["dead-letter", "redrive", &letter, "--reason", "the street is there now", "--rate", "5"];
    let (code, _, question) = cli.run(&redrive);
    assert_eq!(code, 1);
    assert!(
        question.starts_with("redrive 1 dead letter of consumer `billing`? they are handled again, "),
        "{question}"
    );
    assert!(question.ends_with("nothing was changed\nhint: `--yes` confirms in advance\n"), "{question}");
    let redrive = [&redrive[..], &["--yes"]].concat();
    let (_, stderr) = cli.ok(&redrive);
    assert!(stderr.starts_with("1 dead letter redriven\na member of `billing` handles them"), "{stderr}");
    let (_, stderr) = cli.ok(&redrive);
    assert_eq!(
        stderr,
        format!("{letter} is already `redriven`\nno matching dead letter is in state `dead`, nothing was changed\n")
    );
    fail_again(inbox).await;
    let (list, stderr) = cli.ok(&["dead-letter", "list", "--key", "o-3"]);
    assert!(stderr.starts_with("1 dead letter, of which 1 failed again after a redrive"), "{stderr}");
    assert!(list.contains("still no such street"), "{list}");
    let again = &cli.objects(&["dead-letter", "show", &letter])[0];
    assert_eq!((&again["redrive_count"], &again["state"], &again["attempts"]), (&json!(1), &json!("dead"), &json!(4)));
    assert_eq!(again["reason"], json!("the street is there now"));
}

pub(crate) async fn a_discarded_dead_letter_lets_its_key_continue(cli: &impl Run, inbox: &impl Inbox) {
    billing(inbox).await;
    let (held, letter) = (arrival(id(5), "o-3", "{}"), id(3).to_string());
    assert_eq!(handle(inbox, &held).await, EnterOutcome::QueuedBehind);
    let discard = [
        "dead-letter",
        "discard",
        "--consumer",
        "billing",
        "--key",
        "o-3",
        "--reason",
        "the order was cancelled",
        "--yes",
    ];
    let answer = &cli.objects(&discard)[0];
    let expected = json!({
        "destination": null, "consumer": "billing", "action": "discard", "dry_run": false, "count": 1, "unmatched": [],
    });
    assert_eq!(*answer, expected);
    assert_eq!(cli.ok(&discard).1, "no matching dead letter is in state `dead`, nothing was changed\n");
    assert_eq!(inbox.claim_due(10, 10, std::time::Duration::from_secs(9)).await.expect("it is due").len(), 1);
    assert_eq!(cli.objects(&["dead-letter", "list"]).len(), 1);
    let history = cli.objects(&["dead-letter", "list", "--history", "--key", "o-3"]);
    assert_eq!((&history[0]["id"], &history[0]["state"]), (&json!(letter), &json!("discarded")));
    let both = ["dead-letter", "redrive", &letter, UNKNOWN, "--dry-run"];
    let (_, stderr) = cli.ok(&both);
    assert!(stderr.starts_with(&format!(
        "{UNKNOWN} is no such dead letter of consumer `billing`\n{letter} is already `discarded`"
    )));
    cli.fails(4, &["dead-letter", "discard", UNKNOWN, "--dry-run"], &["has no such dead letter", "--history"]);
    cli.fails(
        4,
        &["dead-letter", "redrive", "--consumer", "billing", "--class", "other", "--dry-run"],
        &["has no such dead letter"],
    );
}

pub(crate) async fn with_several_consumers_one_is_chosen<I: Inbox>(cli: &impl Run, inbox: &I, other: &I) {
    billing(inbox).await;
    set_back(
        other,
        &arrival(id(3), "o-3", "{}"),
        InboxFailureAction::DeadLetter(AfterDead::Continue),
        "poison",
        "too heavy",
    )
    .await;
    let letter = id(3).to_string();
    let redrive = ["dead-letter", "redrive", &letter, "--reason", "fixed", "--yes"];
    cli.fails(
        2,
        &redrive,
        &["dead-lettered more than once", "hint: add `--consumer billing` or `--consumer shipping`"],
    );
    cli.fails(2, &["dead-letter", "show", &letter], &["is dead-lettered more than once", "--consumer shipping"]);
    assert_eq!(cli.objects(&["dead-letter", "show", &letter, "--consumer", "shipping"])[0]["class"], "poison");
    let (_, stderr) = cli.ok(&[&redrive[..], &["--consumer", "shipping"]].concat());
    assert!(stderr.contains("consumer `shipping` has no live members"), "{stderr}");
    assert_eq!(cli.objects(&["dead-letter", "list", "--consumer", "billing"]).len(), 2, "the other's are as before");
    assert_eq!(cli.objects(&["dead-letter", "list", "--consumer", "shipping"]).len(), 0);
}

pub(crate) async fn a_trace_follows_a_message<I: Inbox>(cli: &impl Run, inbox: &I, other: &I) {
    let emitted = cli.ok(&["emit", "orders", "o-1", "OrderPlaced", r#"{"n":1}"#]).0;
    let emitted = emitted.trim_end();
    let own = cli.objects(&["trace", emitted]);
    assert_eq!((&own[0]["destinations"][0]["status"], &own[0]["consumers"]), (&json!("pending"), &json!([])));
    let message = arrival(emitted.parse().expect("an id"), "o-1", "{}");
    assert_eq!(handle(inbox, &message).await, EnterOutcome::New);
    assert_eq!(handle(other, &message).await, EnterOutcome::New);
    assert_eq!(handle(other, &message).await, EnterOutcome::Duplicate(InboxState::Done));
    let traced = &cli.objects(&["trace", emitted])[0];
    assert_eq!((&traced["id"], &traced["payload"]), (&json!(emitted), &json!({ "n": 1 })));
    let found: Vec<_> = traced["consumers"].as_array().expect("consumers").iter().map(stop).collect();
    assert_eq!(found, [("billing", "done"), ("shipping", "done")]);
    // Only one side: a message from another outbox that is a dead letter here.
    set_back(
        inbox,
        &arrival(id(3), "o-3", "{}"),
        InboxFailureAction::DeadLetter(AfterDead::Hold),
        "poison",
        "no such street",
    )
    .await;
    let dead = &cli.objects(&["trace", &id(3).to_string()])[0];
    assert_eq!((&dead["destinations"], &dead["consumers"][0]["state"]), (&json!([]), &json!("dead")));
    let letter = &dead["consumers"][0]["dead_letter"];
    assert_eq!((&letter["error"], &letter["correlation"]), (&json!("no such street"), &json!("c-1")));
    assert_eq!(
        (&letter["address"], &letter["lane"], &letter["broker_offset"]),
        (&json!("orders"), &json!("orders.0"), &json!(41))
    );
    cli.fails(4, &["trace", UNKNOWN], &["neither in the outbox nor in an inbox", "hint: "]);
    cli.fails(2, &["trace", "no-id"], &["an id is a UUID"]);
}

fn stop(value: &Value) -> (&str, &str) {
    (value["consumer"].as_str().expect("a name"), value["state"].as_str().expect("a state"))
}

/// The retention of `brief` is one hour.
pub(crate) async fn the_doctor_names_an_inbox_that_forgets_too_early(cli: &impl Run, brief: &impl Inbox) {
    let findings = || {
        let (_, stdout, _) = cli.run(&["doctor", "-o", "json"]);
        let all = stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
        all.filter(|finding| finding["subject"] == "inbox retention").collect::<Vec<_>>()
    };
    assert_eq!(findings(), [] as [Value; 0], "there is no inbox");
    member(brief).await;
    assert_eq!(findings()[0]["severity"], json!("ok"), "nothing was pruned");
    brief.prune(10).await.expect("it prunes");
    let found = &findings()[0];
    assert_eq!(found["severity"], json!("warning"));
    let (seen, fix) = (found["observed"].as_str().expect("a sentence"), found["fix"].as_str().expect("a fix"));
    assert!(
        seen.starts_with("`billing` remembers for 60 min, messages can come again for 8 days (this outbox)"),
        "{seen}"
    );
    assert!(fix.contains("of 8 days or more"), "{fix}");
    assert_eq!(cli.run(&["doctor"]).0, 3);
}
