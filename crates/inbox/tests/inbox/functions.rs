//! Functions as handlers: they own their transaction handle until they return, panic or time out.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use relevo_core::RetryPolicy;
use relevo_core::inbox::retries::classes;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_inbox::{Config, HandlerError, HandlerResult, Handlers, Incoming, Tx, Verdict};
use relevo_store_memory::Transaction;

use crate::harness::{Env, ordered_config, payload_text, wait_for_acks};

/// The first failure is a dead letter.
fn one_attempt() -> Config {
    let durable = RetryPolicy { attempts_max: 1, ..HandlerRetryPolicy::default().durable };
    Config { retry: HandlerRetryPolicy { in_memory: Vec::new(), durable }, ..ordered_config() }
}

/// Handles one message with payload `1` and the next with payload `2`, of two keys. Returns the class and the error of
/// the dead letter of the first.
async fn dead_letter(handlers: Handlers<Transaction>) -> (String, String) {
    let env = Env::new();
    env.send("0", "a", "1");
    env.send("0", "b", "2");
    let process = env.start(one_attempt(), handlers);
    wait_for_acks(&env, 2).await;
    assert_eq!(env.effects(), ["b:2"], "the transaction of the first was rolled back");
    assert_eq!((process.status.handler_failures(), process.status.handlers_running()), (1, 0));
    let mut dead = env.dead_letters().await;
    assert_eq!(dead.len(), 1);
    let dead = dead.remove(0);
    (dead.class, dead.error)
}

fn write_effect(tx: &mut Tx<Transaction>, incoming: &Incoming<u32>) -> HandlerResult<()> {
    Ok(tx.record_effect(format!("{}:{}", incoming.key(), **incoming))?)
}

#[tokio::test(start_paused = true)]
async fn a_kept_transaction_is_a_failed_commit() {
    let kept = Arc::new(Mutex::new(None));
    let handlers = Handlers::new().on("OrderPlaced", {
        let kept = Arc::clone(&kept);
        move |mut tx: Tx<Transaction>, number: Incoming<u32>| {
            let kept = Arc::clone(&kept);
            async move {
                write_effect(&mut tx, &number)?;
                if *number == 1 {
                    *kept.lock().expect("no test panics with it") = Some(tx);
                }
                HandlerResult::Ok(())
            }
        }
    });
    let env = Env::new();
    env.send("0", "a", "1");
    env.send("0", "b", "2");
    let process = env.start(one_attempt(), handlers);
    // Until it is dropped, the transaction locks its message.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(process.status.handler_failures(), 1);
    let transaction = kept.lock().expect("no test panics with it").take();
    drop(transaction.expect("the handler kept it"));
    wait_for_acks(&env, 2).await;
    assert_eq!(env.effects(), ["b:2"]);
    let dead = env.dead_letters().await;
    assert_eq!((dead.len(), dead[0].class.as_str()), (1, "commit"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_transaction() {
    let handlers = Handlers::new().on("*", async |mut tx: Tx<Transaction>, number: Incoming<u32>| {
        write_effect(&mut tx, &number)?;
        assert_ne!(*number, 1, "simulated panic");
        HandlerResult::Ok(())
    });
    let (class, error) = dead_letter(handlers).await;
    assert!(class == "panic" && error.contains("simulated panic"), "{class}: {error}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_transaction() {
    let handlers = Handlers::new().on("*", async |mut tx: Tx<Transaction>, number: Incoming<u32>| {
        write_effect(&mut tx, &number)?;
        if *number == 1 {
            pending::<()>().await;
        }
        HandlerResult::Ok(())
    });
    assert_eq!(dead_letter(handlers).await.0, classes::TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn any_error_ends_the_transaction() {
    let handlers = Handlers::new().on("*", async |mut tx: Tx<Transaction>, number: Incoming<u32>| {
        write_effect(&mut tx, &number)?;
        if *number == 1 {
            "x".parse::<u32>()?;
        }
        HandlerResult::Ok(())
    });
    let transient = ("transient".to_owned(), "invalid digit found in string".to_owned());
    assert_eq!(dead_letter(handlers).await, transient);
}

/// The error of an application's own layer keeps the decision of its cause.
#[derive(Debug, thiserror::Error)]
#[error("the order was not billed")]
struct BillingError(#[source] HandlerError);

#[tokio::test(start_paused = true)]
async fn a_handler_error_in_the_chain_decides() {
    fn bill(number: u32) -> Result<(), BillingError> {
        let error = HandlerError::permanent("no such client").with_class("unknown-client");
        if number == 1 { Err(BillingError(error)) } else { Ok(()) }
    }
    let handlers = Handlers::new().on("*", async |mut tx: Tx<Transaction>, number: Incoming<u32>| {
        write_effect(&mut tx, &number)?;
        bill(*number)?;
        HandlerResult::Ok(())
    });
    let (class, error) = dead_letter(handlers).await;
    assert_eq!(class, "unknown-client");
    assert_eq!(error, "the order was not billed: unknown-client: no such client");
}

#[tokio::test(start_paused = true)]
async fn a_payload_of_another_shape_does_not_reach_the_function() {
    let handlers = Handlers::new().on("*", async |mut tx: Tx<Transaction>, text: Incoming<Vec<String>>| {
        tx.record_effect(text.join(","))?;
        HandlerResult::Ok(())
    });
    let env = Env::new();
    env.send("0", "a", "1");
    let _process = env.start(ordered_config(), handlers);
    wait_for_acks(&env, 1).await;
    let dead = env.dead_letters().await;
    assert_eq!((dead.len(), dead[0].class.as_str()), (1, "undecodable"));
    assert_eq!(env.effects(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_raw_function_gets_the_bytes_as_received() {
    async fn skip_other(mut tx: Tx<Transaction>, incoming: Incoming) -> HandlerResult {
        if incoming.as_ref() != b"not JSON" {
            return Ok(Verdict::Skip);
        }
        tx.record_effect(payload_text(&incoming))?;
        Ok(Verdict::Done)
    }
    let env = Env::new();
    env.send("0", "a", "not JSON");
    env.send("0", "a", "{}");
    let process = env.start(ordered_config(), Handlers::new().on_raw("*", skip_other));
    wait_for_acks(&env, 2).await;
    assert_eq!((env.effects(), process.status.skipped()), (vec!["not JSON".to_owned()], 1));
}
