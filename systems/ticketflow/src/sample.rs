//! Sample users with public tokens, for a demo without configuration. They are never in a database with real users.

use jiff::Timestamp;
use uuid::Uuid;

use crate::desk::{Desk, DeskError, Kind, Token};
use crate::domain::{Language, Person, Role};
use crate::page::Face;

/// The sample: requesters, agents and an admin, in both languages.
const PEOPLE: [(&str, Role, Language); 5] = [
    ("Ana", Role::Requester, Language::Es),
    ("Ben", Role::Requester, Language::En),
    ("Carla", Role::Agent, Language::Es),
    ("Dan", Role::Agent, Language::En),
    ("Eva", Role::Admin, Language::Es),
];

/// Adds the missing sample users, and returns all with their tokens. A database that is not the sample's is rejected.
pub async fn people(desk: &dyn Desk) -> Result<Vec<Face>, DeskError> {
    desk.claim(Kind::Sample).await?;
    let mut faces = Vec::new();
    for (number, (name, role, language)) in (1..).zip(PEOPLE) {
        let low = name.to_lowercase();
        let person = Person {
            id: Uuid::from_u128(number),
            name: name.to_owned(),
            email: format!("{low}@ticketflow.example"),
            role,
            language,
        };
        let token = format!("demo-{low}");
        match desk.add_person(&person, &Token::new(&*token), Timestamp::now()).await {
            // From an earlier start.
            Ok(()) | Err(DeskError::EmailTaken) => {}
            Err(error) => return Err(error),
        }
        faces.push(Face { name: name.to_owned(), role: role.to_string(), language: language.to_string(), token });
    }
    Ok(faces)
}
