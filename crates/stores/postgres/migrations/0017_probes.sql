-- When a held address is probed.

-- Holds an address. Only a probe that failed holds it for longer, and one is sent only when its time has come: messages that arrive
-- meanwhile, or were to be tried again, were not even tried, and would put the probe off for ever. The row is locked all the same, so
-- that a release sees the keys parked for it.
CREATE OR REPLACE FUNCTION hold_address(of_destination text, p park, probed boolean) RETURNS void
LANGUAGE sql SET search_path = @schema@, pg_temp
AS $$
    INSERT INTO hold AS h (destination, address, class, error, next_at)
    VALUES (of_destination, p.address, p.class, p.error, after_ms(p.after_ms))
    ON CONFLICT (destination, address) DO UPDATE SET
        class = CASE WHEN probed AND h.next_at <= clock_timestamp() THEN excluded.class ELSE h.class END,
        error = CASE WHEN probed AND h.next_at <= clock_timestamp() THEN excluded.error ELSE h.error END,
        next_at = CASE WHEN probed AND h.next_at <= clock_timestamp() THEN excluded.next_at ELSE h.next_at END
$$;
