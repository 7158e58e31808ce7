package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
)

func pay(ctx context.Context, db *pgx.Conn, order string) (id string, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		// First the row: other transactions that change this order wait here until this one ends.
		_, err := tx.Exec(ctx, `INSERT INTO orders (id, status) VALUES ($1, 'paid')
			ON CONFLICT (id) DO UPDATE SET status = excluded.status`, order)
		if err != nil {
			return err
		}
		// Then, in a later statement, the message.
		return tx.QueryRow(ctx,
			`SELECT relevo.emit(topic => 'orders', key => $1, type => 'OrderPaid', payload => $2, headers => $3)::text`,
			order, map[string]string{"order": order}, map[string]string{"x-actor": "go"}).Scan(&id)
	})
	return id, err
}

func main() {
	ctx := context.Background()
	db, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	id, err := pay(ctx, db, "o-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
