CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, status text NOT NULL);

BEGIN;
-- First the row: other transactions that change this order wait here until this one ends.
INSERT INTO orders (id, status) VALUES ('o-1', 'placed')
ON CONFLICT (id) DO UPDATE SET status = excluded.status;
-- Then, in a later statement, the message.
SELECT relevo.emit(topic => 'orders', key => 'o-1', type => 'OrderPlaced', payload => '{"order": "o-1"}');
COMMIT;
