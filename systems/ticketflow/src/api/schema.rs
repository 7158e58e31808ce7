//! The `OpenAPI` description: types and authentication.

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

/// The description without its paths, which are declared at their handlers.
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

/// An error.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
struct ProblemBody {
    /// `urn:ticketflow:problem:` and a code for programs.
    r#type: String,
    title: String,
    status: u16,
    /// The problem, and a hint.
    detail: String,
    correlation_id: String,
    /// All invalid fields.
    errors: Vec<Invalid>,
    /// The statuses that could be set, for a change of status that is forbidden.
    allowed: Option<Vec<Status>>,
}

/// The response that every call may have.
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

/// The version that the caller has read.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Seen {
    /// Its `ETag`, as received.
    #[serde(rename = "If-Match")]
    version: String,
}

/// For requests that may be repeated.
#[derive(Serialize, IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Key {
    /// A repeat with the same key changes nothing and gets the same response.
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
    /// `normal` by default.
    priority: Option<Priority>,
}

/// A new status.
#[derive(Serialize, ToSchema)]
pub(super) struct NewStatus {
    status: Status,
}

/// A new assignee.
#[derive(Serialize, ToSchema)]
pub(super) struct NewAssignee {
    /// An agent or an admin; null to unassign.
    assignee: Option<Uuid>,
}

/// A comment.
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
    /// `es` by default.
    language: Option<Language>,
}

/// No fields: `{}`.
#[derive(Serialize, ToSchema)]
pub(super) struct Nothing {}
