"""Handles each message once. Each line of standard input is a JSON object and represents a delivery of a broker."""

import json
import os
import sys

import psycopg
from psycopg.types.json import Jsonb

BUSY = (psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


def handle(conn: psycopg.Connection, message: dict) -> str:
    # One transaction: the inbox entry, the effect and the emitted message commit together, or not at all.
    with conn.transaction():
        (is_new,) = conn.execute("SELECT relevo.inbox_insert('invoicing', %s)", [message["id"]]).fetchone()
        if not is_new:
            return "repeat"
        conn.execute("INSERT INTO invoices (order_id, cents) VALUES (%s, %s)", [message["order"], message["cents"]])
        conn.execute(
            "SELECT relevo.emit(topic => 'invoices', key => %s, type => 'InvoiceIssued', payload => %s)",
            [message["order"], Jsonb({"order": message["order"]})],
        )
    return "handled"


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    for line in sys.stdin:
        message = json.loads(line)
        try:
            print(message["id"], handle(connection, message))  # Only now acknowledge it to the broker.
        except BUSY:
            print(message["id"], "busy")  # Another worker has it: return it to the broker for a later retry.
        sys.stdout.flush()
