//! Two more grants: a consumer may consume but reads no table, and an operator may read and run commands.

use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, DeadLetterOwner, MarkAction, MarkRequest};
use relevo_core::inbox::transactions::{BeginOutcome, Enter};
use relevo_core::inbox::{Inbox as _, InboxRetention};
use relevo_store_postgres::inbox::{Config, Inbox};
use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;
use sqlx::ConnectOptions as _;

use crate::grants::{may_call, refuse, rights};
use crate::relay_support::{TestDatabase, execute, operator};

async fn test_database(version: PgVersion) -> TestDatabase {
    let server = Private::start(version).await;
    let world = TestDatabase { database: server.database().await, server: Some(server) };
    world.run("CREATE ROLE consumer LOGIN; CREATE ROLE operator LOGIN").await;
    migrate::migrate(&mut world.connect().await, &Schema::default()).await.expect("an empty database");
    world.run("SELECT relevo.grant_consumer('consumer'), relevo.grant_operator('operator')").await;
    world
}

#[tokio::test]
async fn a_consumer_may_consume_and_reads_nothing() {
    for version in PgVersion::ALL {
        let world = test_database(version).await;
        let may = "inbox_acquire_lanes inbox_append inbox_claim_call inbox_claim_due_queues inbox_complete_call \
                   inbox_complete_queued inbox_fail inbox_fail_queued inbox_heartbeat inbox_insert \
                   inbox_insert_many inbox_insert_one inbox_mark_skipped inbox_prune inbox_record_start \
                   inbox_release_lanes inbox_release_queue inbox_reset_start inbox_starts";
        assert_eq!(may_call(&world, "consumer").await, may.split_whitespace().collect::<Vec<_>>());
        assert_eq!(rights(&world, "consumer", "").await, ["migration SELECT"]);
        let options = world.database.options().username("consumer");
        let inbox = Inbox::open(&Config::new(options.clone()), "billing", InboxRetention::default()).await;
        let inbox = inbox.expect("the version may be read");
        crate::every_inbox_call::call_every_inbox_function(&inbox).await;
        let mut session = options.connect().await.expect("a role that may log in");
        execute(&mut session, "SELECT relevo.inbox_insert('billing', gen_random_uuid())").await.expect("any language");
        refuse(
            &mut session,
            &[
                "SELECT * FROM relevo.inbox",
                "SELECT * FROM relevo.inbox_dead_letter",
                "INSERT INTO relevo.inbox (consumer, message_id) VALUES ('c', gen_random_uuid())",
                "DELETE FROM relevo.inbox",
                "SELECT relevo.inbox_discard('{\"ids\": []}', 'me', 'why')",
                "SELECT relevo.inbox_set_control('billing', NULL, 'pause')",
                "SELECT relevo.inbox_remove_consumer('billing')",
                "SELECT relevo.inbox_stop_replay('billing', 1)",
                "SELECT relevo.emit('orders', 'k', 'T', '{}')",
                "SELECT nextval('relevo.inbox_seq')",
            ],
        )
        .await;
    }
}

#[tokio::test]
async fn an_operator_may_read_and_act() {
    let world = test_database(PgVersion::V15).await;
    assert!(rights(&world, "operator", "SELECT").await.is_empty());
    let inbox = Inbox::open(&Config::new(world.database.options()), "billing", InboxRetention::default()).await;
    crate::every_inbox_call::call_every_inbox_function(&inbox.expect("a migrated database")).await;
    let operator = operator(world.database.options().username("operator")).await;
    crate::every_inbox_call::call_every_operator_function(&operator).await;
    let mark = MarkRequest {
        filter: DeadLetterFilter::of(DeadLetterOwner::AnyConsumer),
        action: MarkAction::Redrive,
        dry_run: true,
        rate_per_second: None,
        by: "ana".to_owned(),
        reason: "why".to_owned(),
    };
    operator.mark_dead_letters(&mark).await.expect("an operator may");
    let mut session = world.database.options().username("operator").connect().await.expect("a role that may log in");
    refuse(
        &mut session,
        &[
            "SELECT relevo.inbox_insert('billing', gen_random_uuid())",
            "SELECT * FROM relevo.inbox_acquire_lanes('billing', gen_random_uuid(), '{0}', 100)",
            "UPDATE relevo.inbox_dead_letter SET state = 'discarded'",
            "SELECT relevo.emit('orders', 'k', 'T', '{}')",
        ],
    )
    .await;
}

/// Functions and operators that the caller's search path finds before the server's own. They record which role ran
/// them.
const TRAPS: &str = "CREATE SCHEMA evil; CREATE TABLE evil.caught (who text); \
    CREATE FUNCTION evil.spring() RETURNS void LANGUAGE sql AS 'INSERT INTO evil.caught VALUES (current_user)'; \
    CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.spring(); SELECT true'; \
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal); \
    CREATE FUNCTION evil.equal(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT evil.spring(); SELECT true'; \
    CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.equal); \
    CREATE FUNCTION evil.equal(uuid, uuid) RETURNS boolean LANGUAGE sql AS 'SELECT evil.spring(); SELECT true'; \
    CREATE OPERATOR evil.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = evil.equal); \
    CREATE FUNCTION evil.cardinality(uuid[]) RETURNS int LANGUAGE sql AS 'SELECT evil.spring(); SELECT 1'; \
    CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT evil.spring(); SELECT ''0''::text'; \
    CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT evil.spring(); SELECT $2'; \
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT evil.spring(); SELECT now()'; \
    CREATE TEMP TABLE inbox (n int); CREATE TEMP TABLE inbox_retry_queue (n int); CREATE TEMP TABLE inbox_lane (n int); \
    SET search_path = evil, pg_temp, pg_catalog";

#[tokio::test]
async fn a_malicious_search_path_does_not_affect_the_owner() {
    for version in PgVersion::ALL {
        let world = test_database(version).await;
        world.run(&format!("GRANT CREATE ON DATABASE {} TO consumer", world.database.name())).await;
        let mut session = world.database.options().username("consumer").connect().await.expect("a role");
        execute(&mut session, TRAPS).await.expect("a schema of its own");
        for sql in [
            "SELECT relevo.inbox_insert('billing', '00000000-0000-7000-8000-000000000001')",
            "SELECT relevo.inbox_insert('billing', '00000000-0000-7000-8000-000000000001')",
            "SELECT relevo.inbox_insert_many('billing', ARRAY['00000000-0000-7000-8000-000000000002', \
             '00000000-0000-7000-8000-000000000003']::uuid[], '{0,0}', '{a,b}', 'lane', 1, NULL, 100, 100)",
            "SELECT relevo.inbox_insert_many('billing', ARRAY['00000000-0000-7000-8000-000000000002', \
             '00000000-0000-7000-8000-000000000003']::uuid[], '{0,0}', '{a,b}', NULL, 1, NULL, 100, 100)",
            "SELECT relevo.inbox_insert_one('billing', '00000000-0000-7000-8000-000000000004', 0, 'k', NULL, NULL, NULL, 100, 100)",
            "SELECT relevo.inbox_insert_one('billing', '00000000-0000-7000-8000-000000000004', 0, 'k', 'lane', 1, NULL, 100, 100)",
        ] {
            execute(&mut session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        let owned = "SELECT count(*) FROM evil.caught WHERE who <> 'consumer'";
        assert_eq!(world.number(owned).await, 0, "PostgreSQL {}", version.major());
        assert_eq!(world.number("SELECT count(*) FROM relevo.inbox").await, 4);
    }
}

/// Without a grant, a role has no access.
#[tokio::test]
async fn a_role_without_grants_gets_an_error_that_names_them() {
    let world = test_database(PgVersion::V15).await;
    world.run("CREATE ROLE stranger LOGIN; GRANT USAGE ON SCHEMA relevo TO stranger; GRANT SELECT ON relevo.migration TO stranger").await;
    let config = Config::new(world.database.options().username("stranger"));
    let inbox = Inbox::open(&config, "billing", InboxRetention::default()).await.expect("the version may be read");
    let begun = inbox.begin(Enter { held: None, arrivals: &[] }).await;
    assert!(!matches!(begun, Ok(BeginOutcome::Open(..))));
    assert!(matches!(begun, Err(relevo_core::store::StoreError::Refused { .. })), "{begun:?}");
}
