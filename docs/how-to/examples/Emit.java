import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.UUID;

public class Emit {
    static UUID pay(Connection db, String order) throws SQLException {
        db.setAutoCommit(false);
        try (PreparedStatement row = db.prepareStatement(
                "INSERT INTO orders (id, status) VALUES (?, 'paid')"
                    + " ON CONFLICT (id) DO UPDATE SET status = excluded.status");
            PreparedStatement message = db.prepareStatement(
                "SELECT relevo.emit(topic => 'orders', key => ?, type => 'OrderPaid',"
                    + " payload => ?::jsonb, headers => ?::jsonb)")) {
            // First the row: other transactions that change this order wait here until this one ends.
            row.setString(1, order);
            row.executeUpdate();
            // Then, in a later statement, the message. JDBC sends text, and the casts convert it to jsonb.
            message.setString(1, order);
            message.setString(2, "{\"order\": \"" + order + "\"}");
            message.setString(3, "{\"x-actor\": \"java\"}");
            try (ResultSet answer = message.executeQuery()) {
                answer.next();
                UUID id = answer.getObject(1, UUID.class);
                db.commit();
                return id;
            }
        } catch (SQLException error) {
            db.rollback();
            throw error;
        }
    }

    public static void main(String[] args) throws SQLException {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            System.out.println(pay(db, "o-1"));
        }
    }
}
