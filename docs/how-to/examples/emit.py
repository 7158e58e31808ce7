import os

import psycopg
from psycopg.types.json import Jsonb


def pay(conn: psycopg.Connection, order: str) -> str:
    with conn.transaction():
        # First the row: other transactions that change this order wait here until this one ends.
        conn.execute(
            "INSERT INTO orders (id, status) VALUES (%s, 'paid')"
            " ON CONFLICT (id) DO UPDATE SET status = excluded.status",
            [order],
        )
        # Then, in a later statement, the message.
        row = conn.execute(
            "SELECT relevo.emit(topic => 'orders', key => %s, type => 'OrderPaid', payload => %s, headers => %s)",
            [order, Jsonb({"order": order}), Jsonb({"x-actor": "python"})],
        ).fetchone()
    return str(row[0])


with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    print(pay(connection, "o-1"))
