//! Connection URLs.

/// Replaces the database in a URL.
pub(super) fn with_database(url: &str, database: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (url, None),
    };
    let (scheme, rest) = address.split_once("://").expect("a URL has a scheme");
    let authority = rest.split('/').next().unwrap_or(rest);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{scheme}://{authority}/{database}{query}")
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn only_the_database_changes() {
        let url = "postgres://me:secret@localhost:5432/postgres?sslmode=disable";
        assert_eq!(with_database(url, "a"), "postgres://me:secret@localhost:5432/a?sslmode=disable");
    }

    #[test]
    fn a_database_is_added_where_there_was_none() {
        assert_eq!(with_database("postgres://localhost", "a"), "postgres://localhost/a");
        assert_eq!(with_database("postgres://localhost?x=/y", "a"), "postgres://localhost/a?x=/y");
    }
}
