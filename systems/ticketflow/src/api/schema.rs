//! The description of the API: what its types are, and that it wants a token.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses, Modify, OpenApi as _, PartialSchema, ToSchema};
use uuid::Uuid;

use super::problem::Invalid;
use crate::domain::{Kind, Language, Priority, Role, Status};

/// The description without its paths, which stand at their handlers.
pub(super) fn document() -> OpenApi {
    Document::openapi()
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "TicketFlow", description = "People open tickets, agents answer them. Every refusal is a problem (RFC 9457)."),
    security(("token" = [])),
    components(schemas(ProblemBody)),
    modifiers(&Bearer),
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

/// Enumerations are their words.
macro_rules! words {
    ($($name:ident),+) => {
        $(impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some($name::WORDS.iter().copied())).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                stringify!($name).into()
            }
        })+
    };
}

words!(Kind, Language, Priority, Role, Status);

/// A refusal.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
struct ProblemBody {
    /// `urn:ticketflow:problem:` and a word for programs.
    r#type: String,
    title: String,
    status: u16,
    /// What was wrong, and what to do.
    detail: String,
    correlation_id: String,
    /// Every field that cannot be so.
    errors: Vec<Invalid>,
    /// The statuses that could be set, for a change of status that is forbidden.
    allowed: Option<Vec<Status>>,
}

/// The answer that every call may have.
pub(super) struct Refused;

impl IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let problem = ResponseBuilder::new().description("a problem").content("application/problem+json", content);
        BTreeMap::from([("default".to_owned(), problem.build().into())])
    }
}

/// Which ticket.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OfTicket {
    /// The ticket's id.
    id: Uuid,
}

/// Which person.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OfPerson {
    /// The person's id.
    id: Uuid,
}

/// What the caller has seen of the ticket.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Seen {
    /// Its `ETag`, as it came.
    #[serde(rename = "If-Match")]
    version: String,
}

/// For requests that may come again.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Key {
    /// A repeat under the same key does nothing again, and has the same answer.
    #[serde(rename = "Idempotency-Key")]
    key: Option<String>,
}

/// A new ticket.
#[derive(Serialize, ToSchema)]
pub(super) struct NewTicket {
    #[schema(min_length = 1, max_length = 200)]
    title: String,
    #[schema(min_length = 1, max_length = 10000)]
    description: String,
    /// `normal` if it is left out.
    priority: Option<Priority>,
}

/// Another status.
#[derive(Serialize, ToSchema)]
pub(super) struct NewStatus {
    status: Status,
}

/// Another assignee.
#[derive(Serialize, ToSchema)]
pub(super) struct NewAssignee {
    /// An agent or an admin; null for nobody.
    assignee: Option<Uuid>,
}

/// Something written.
#[derive(Serialize, ToSchema)]
pub(super) struct NewComment {
    #[schema(min_length = 1, max_length = 10000)]
    body: String,
}

/// A new person.
#[derive(Serialize, ToSchema)]
pub(super) struct NewPerson {
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    email: String,
    role: Role,
    /// `es` if it is left out.
    language: Option<Language>,
}

/// No fields: `{}`.
#[derive(Serialize, ToSchema)]
pub(super) struct Nothing {}
