//! The cost of `emit` for a writer, compared with a bare INSERT.

use std::time::{Duration, Instant};

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::fill::{Bench, PAYLOAD_BYTES, run};
use crate::report::Report;

const CLIENTS: u32 = 8;
const ROUND: Duration = Duration::from_secs(4);
const ROUNDS: u32 = 3;

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    for (setting, target) in [("on", 0.85), ("off", 0.7)] {
        let mut bench = Bench::new(server, "emit").await?;
        run(
            &mut bench.connection,
            "CREATE TABLE bare (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid xid8 NOT NULL, slot smallint NOT NULL, \
             id uuid NOT NULL, created_at timestamptz NOT NULL, topic text NOT NULL, key text NOT NULL, type text NOT NULL, \
             content_type text NOT NULL, headers jsonb, payload bytea NOT NULL)",
        )
        .await?;
        let bare = "INSERT INTO bare (xid, slot, id, created_at, topic, key, type, content_type, payload) \
             VALUES (pg_current_xact_id(), 7, gen_random_uuid(), clock_timestamp(), 'orders', $1, 'OrderPlaced', 'text/plain', $2)";
        let emit = "SELECT relevo.emit_bytes('orders', $1, 'OrderPlaced', $2, 'text/plain')";
        for (name, values) in PARTS {
            run(&mut bench.connection, &part(name, values)).await?;
        }
        let (mut bare_rate, mut emit_rate, mut insert_rate, mut named_rate) = (0.0, 0.0, 0.0, 0.0);
        // Alternating, so that variations of the disk affect all variants.
        for _ in 0..ROUNDS {
            bare_rate += rate(&bench.options, setting, bare).await?;
            emit_rate += rate(&bench.options, setting, emit).await?;
            insert_rate += rate(&bench.options, setting, "SELECT insert_only($1, $2)").await?;
            named_rate += rate(&bench.options, setting, "SELECT with_id_and_slot($1, $2)").await?;
        }
        let n = f64::from(ROUNDS);
        report.ratio(
            &format!("emit against a bare INSERT, synchronous_commit {setting}"),
            emit_rate / bare_rate,
            target,
            format!(
                "emit {:.0}/s, INSERT {:.0}/s; a function that only inserts into the log reaches {:.2}, \
                 with id and slot {:.2}; the checks of the arguments cost the rest",
                emit_rate / n,
                bare_rate / n,
                insert_rate / bare_rate,
                named_rate / bare_rate
            ),
        );
    }
    Ok(())
}

/// Parts of `emit`, to see where its time is spent: the expressions for the slot and the id of a message.
const PARTS: [(&str, &str); 2] =
    [("insert_only", "7, gen_random_uuid()"), ("with_id_and_slot", "relevo.slot_of(key), relevo.new_id()")];

fn part(name: &str, values: &str) -> String {
    format!(
        "CREATE FUNCTION {name}(key text, payload bytea) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER AS $$ \
         DECLARE xid_now xid8; made uuid; BEGIN xid_now := pg_current_xact_id(); \
         INSERT INTO relevo.message AS m (seq, xid, slot, id, created_at, topic, key, type, content_type, payload) \
         VALUES (nextval('relevo.message_seq'), xid_now, {values}, clock_timestamp(), 'orders', key, 'OrderPlaced', \
         'text/plain', payload) RETURNING m.id INTO made; RETURN made; END $$"
    )
}

async fn rate(options: &PgConnectOptions, setting: &str, statement: &'static str) -> anyhow::Result<f64> {
    let options = options.clone().options([("synchronous_commit", setting)]);
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let mut connection = options.connect().await?;
        clients.spawn(async move {
            let payload = vec![b'x'; PAYLOAD_BYTES];
            let mut count = 0_u32;
            let start = Instant::now();
            while start.elapsed() < ROUND {
                let key = format!("k-{}", (count * 8 + client) % 1000);
                sqlx::query(statement).bind(key).bind(&payload[..]).execute(&mut connection).await?;
                count += 1;
            }
            anyhow::Ok(f64::from(count) / start.elapsed().as_secs_f64())
        });
    }
    let mut total = 0.0;
    while let Some(result) = clients.join_next().await {
        total += result??;
    }
    Ok(total)
}
