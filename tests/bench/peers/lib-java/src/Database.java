// SPDX-License-Identifier: Apache-2.0
package bench;

import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.List;

/** Where DATABASE_URL points to, in the words of JDBC. */
public record Database(String kind, String jdbcUrl, String user, String password) {
    public static final String POSTGRES = "postgres";
    public static final String MYSQL = "mysql";

    public static Database of(String text) {
        URI url = URI.create(text);
        String[] login = (url.getUserInfo() == null ? "" : url.getUserInfo()).split(":", 2);
        String place = "://" + url.getHost() + ":" + url.getPort() + url.getPath();
        String password = login.length > 1 ? login[1] : "";
        return switch (url.getScheme()) {
            // Inserts in batches become statements of many rows, as the driver's manual advises.
            case "postgres", "postgresql" -> new Database(POSTGRES, "jdbc:postgresql" + place
                    + "?sslmode=disable&gssEncMode=disable&reWriteBatchedInserts=true",
                    login[0], password);
            case "mysql", "mariadb" -> new Database(MYSQL, "jdbc:mariadb" + place, login[0],
                    password);
            default -> throw new IllegalArgumentException("DATABASE_URL has an unknown scheme");
        };
    }

    public Connection connect() throws SQLException {
        return DriverManager.getConnection(jdbcUrl, user, password);
    }

    public static void execute(Connection connection, List<String> statements)
            throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String sql : statements) {
                statement.execute(sql);
            }
        }
    }

    public static boolean hasRow(Connection connection, String select) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery(select)) {
            return rows.next();
        }
    }
}
