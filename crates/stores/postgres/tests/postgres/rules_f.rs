//! RULES.md F: publications, large tables, concurrent releases, paused writers.

use crate::migrated;
use relevo_testkit::PgVersion;
use sqlx::Row as _;

/// F4: a publication of all tables makes PostgreSQL refuse updates and deletes in a table without a replica identity.
#[tokio::test]
async fn f4_every_table_that_changes_has_a_replica_identity() {
    for version in PgVersion::ALL {
        let database = migrated::database(version).await;
        let sql = "SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = 'relevo'::regnamespace \
                   AND c.relkind = 'r' AND c.relreplident = 'd' AND NOT EXISTS (\
                   SELECT 1 FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1";
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database.connect().await).await.expect("a catalogue");
        let without: Vec<String> = rows.iter().map(|row| row.try_get(0).expect("a name")).collect();
        assert_eq!(without, ["data_loss"], "rows are only inserted there");
    }
}
