import { Client } from "pg";

async function pay(db: Client, order: string): Promise<string> {
  await db.query("BEGIN");
  try {
    // First the row: other transactions that change this order wait here until this one ends.
    await db.query(
      `INSERT INTO orders (id, status) VALUES ($1, 'paid')
       ON CONFLICT (id) DO UPDATE SET status = excluded.status`,
      [order],
    );
    // Then, in a later statement, the message.
    const answer = await db.query(
      "SELECT relevo.emit(topic => 'orders', key => $1, type => 'OrderPaid', payload => $2, headers => $3) AS id",
      [order, JSON.stringify({ order }), JSON.stringify({ "x-actor": "typescript" })],
    );
    await db.query("COMMIT");
    return answer.rows[0].id;
  } catch (error) {
    await db.query("ROLLBACK");
    throw error;
  }
}

async function main(): Promise<void> {
  const db = new Client({ connectionString: process.env.DATABASE_URL });
  await db.connect();
  console.log(await pay(db, "o-1"));
  await db.end();
}

main();
