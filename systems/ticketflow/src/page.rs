//! The web page: static files in the binary, with a content security policy that allows only these files.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Scripts and styles only from these files; no markup from strings; no framing of the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// E-mails have inline styles. In the frame that shows one, nothing runs or loads, and it has an opaque origin.
const LETTER_POLICY: &str = "sandbox allow-scripts allow-popups allow-popups-to-escape-sandbox; default-src 'none'; \
    script-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Every file with its path and kind.
macro_rules! files {
    ($($path:literal: $file:literal $kind:ident,)*) => {
        [$(($path, include_bytes!(concat!("../page/", $file)).as_slice(), $kind)),*]
    };
}

const FILES: [(&str, &[u8], &str); 11] = files! {
    "/": "index.html" HTML,
    "/assets/style.css": "style.css" CSS,
    "/assets/icon.svg": "icon.svg" SVG,
    "/assets/app.js": "app.js" JAVASCRIPT,
    "/assets/arrivals.js": "arrivals.js" JAVASCRIPT,
    "/assets/create.js": "create.js" JAVASCRIPT,
    "/assets/draw.js": "draw.js" JAVASCRIPT,
    "/assets/server.js": "server.js" JAVASCRIPT,
    "/assets/ticket.js": "ticket.js" JAVASCRIPT,
    "/assets/words.js": "words.js" JAVASCRIPT,
    "/assets/letter.js": "letter.js" JAVASCRIPT,
};

/// A sample user whom a visitor can select. The sample's tokens are public.
#[derive(Clone, Debug, Serialize)]
pub struct Face {
    /// The displayed name.
    pub name: String,
    /// `requester`, `agent` or `admin`.
    pub role: String,
    /// The language of their e-mails.
    pub language: String,
    /// The token.
    pub token: String,
}

#[derive(Clone, Serialize)]
struct People {
    items: Vec<Face>,
}

/// Serves the page. Without sample users `/assets/people.json` does not exist, and a visitor needs a token.
pub fn router(people: Vec<Face>) -> Router {
    let letter = ("/assets/letter.html", include_bytes!("../page/letter.html").as_slice(), HTML);
    let mut router = served(Router::new(), letter, LETTER_POLICY);
    for file in FILES {
        router = served(router, file, POLICY);
    }
    if people.is_empty() {
        return router;
    }
    let people = Json(People { items: people });
    router.route("/assets/people.json", get(async move || ([(header::CACHE_CONTROL, "no-store")], people)))
}

fn served(router: Router, (path, bytes, kind): (&str, &'static [u8], &'static str), policy: &'static str) -> Router {
    let etag = etag(bytes);
    router.route(path, get(async move |asked: HeaderMap| answer(&asked, bytes, kind, policy, etag)))
}

/// A file, or 304 if the browser has it. The browser revalidates each time: another version may run on the same port.
fn answer(
    asked: &HeaderMap,
    bytes: &'static [u8],
    kind: &'static str,
    policy: &'static str,
    etag: HeaderValue,
) -> Response {
    let is_known = asked.get(header::IF_NONE_MATCH) == Some(&etag);
    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::ETAG, etag),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    if is_known {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, [(header::CONTENT_TYPE, kind)], bytes).into_response()
}

fn etag(bytes: &[u8]) -> HeaderValue {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let text = format!("\"{:032x}\"", u128::from_be_bytes(digest[..16].try_into().expect("sixteen of them")));
    HeaderValue::try_from(text).expect("hexadecimal digits can stand in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served_and_every_module_is_found() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        // `index.html` is `/`, and `letter.html` has a policy of its own.
        assert_eq!(std::fs::read_dir(folder).expect("the folder is there").count(), FILES.len() + 1);
        for (path, bytes, _) in FILES.iter().filter(|(_, _, kind)| *kind == JAVASCRIPT) {
            let text = std::str::from_utf8(bytes).expect("text");
            for module in text.lines().filter_map(|line| line.strip_prefix("import ")?.split('"').nth(1)) {
                let module = module.replacen('.', "/assets", 1);
                assert!(FILES.iter().any(|(path, ..)| *path == module), "{path} imports {module}");
            }
        }
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let ask = |etag: Option<&HeaderValue>| {
            let asked = etag.map(|etag| (header::IF_NONE_MATCH, etag.clone())).into_iter().collect();
            answer(&asked, FILES[0].1, HTML, POLICY, super::etag(FILES[0].1))
        };
        let first = ask(None);
        assert_eq!(first.status(), StatusCode::OK);
        let again = ask(first.headers().get(header::ETAG));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(
            again.headers().get(header::CONTENT_SECURITY_POLICY),
            first.headers().get(header::CONTENT_SECURITY_POLICY)
        );
        assert_eq!(ask(Some(&HeaderValue::from_static("\"0\""))).status(), StatusCode::OK);
    }
}
