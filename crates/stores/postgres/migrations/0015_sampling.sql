-- How much waits is asked every few seconds, for as long as a relay runs: it costs the same whatever the tables hold.

-- Dead letters that nobody has marked are found by an index, however many were dealt with.
CREATE INDEX dead_letter_dead_idx ON dead_letter (destination, seq) WHERE state = 'dead';

-- Messages of the log that were not settled yet: exact up to `exact_max`, an estimate above. What was settled in the middle of a
-- window is passed by index too. Below a shard's place only transactions that were open at one of its ticks are left.
CREATE OR REPLACE FUNCTION backlog(of_destination text, exact_max int DEFAULT 10000,
    OUT pending bigint, OUT exact boolean, OUT parked bigint, OUT dead bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    n smallint := (SELECT d.shards FROM destination AS d WHERE d.name = of_destination);
    g record;
    part bigint;
BEGIN
    IF n IS NULL THEN
        RAISE EXCEPTION 'destination "%" is not known', of_destination
            USING ERRCODE = 'RV005', HINT = 'Add it with `relevo destination add`.';
    END IF;
    pending := 0;
    exact := true;
    FOR g IN
        SELECT array_agg(s.shard) AS shards, s.place, f.snapshot AS f, t.snapshot AS t, greatest(f.high, s.place) AS start,
            ARRAY(SELECT DISTINCT unnest(f.late || t.late)) AS late
        FROM standing(of_destination) AS s
        JOIN tick AS f ON f.tick = s.from_tick JOIN tick AS t ON t.tick = s.to_tick
        GROUP BY s.place, f.tick, t.tick
    LOOP
        SELECT count(*) INTO part FROM (
            (SELECT 1 FROM message AS m
            WHERE m.seq > g.start AND CASE WHEN m.slot % n = ANY (g.shards) AND NOT pg_visible_in_snapshot(m.xid, g.f)
                THEN true END
            ORDER BY m.seq LIMIT exact_max + 1 - pending)
            UNION ALL
            (SELECT 1 FROM unnest(g.late) AS x CROSS JOIN LATERAL (
                SELECT 1 FROM message AS m
                WHERE (m.xid, m.seq) > (x, 0) AND (m.xid, m.seq) <= (x, g.start)
                    AND CASE WHEN m.slot % n = ANY (g.shards) AND NOT pg_visible_in_snapshot(m.xid, g.f)
                        AND NOT (m.seq <= g.place AND pg_visible_in_snapshot(m.xid, g.t)) THEN true END
                ORDER BY m.xid, m.seq LIMIT exact_max + 1 - pending) AS m)
            LIMIT exact_max + 1 - pending
        ) AS counted;
        pending := pending + part;
        IF pending > exact_max THEN
            exact := false;
            SELECT sum(q.last_value - greatest(f.high, s.place)) / n INTO pending
            FROM standing(of_destination) AS s JOIN tick AS f ON f.tick = s.from_tick CROSS JOIN message_seq AS q;
            EXIT;
        END IF;
    END LOOP;
    SELECT count(*) INTO parked FROM (
        SELECT 1 FROM parked_message AS m WHERE m.destination = of_destination ORDER BY m.seq LIMIT exact_max) AS counted;
    SELECT count(*) INTO dead FROM (
        SELECT 1 FROM dead_letter AS d WHERE d.destination = of_destination AND d.state = 'dead'
        ORDER BY d.seq LIMIT exact_max) AS counted;
END $$;
