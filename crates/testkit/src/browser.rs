//! A Chromium for a single test. It is driven like a user would drive it: through `WebDriver`, by what the page shows.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::installed::program;
use crate::scratch::Scratch;
use crate::{http, marked};

/// The only HTTP version that the driver supports.
const VERSION: &str = "HTTP/1.1";
/// The key under which the protocol sends the id of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const READY_DEADLINE: Duration = Duration::from_mins(1);
/// The driver answers only when the browser runs. On a busy machine with a slow disk, loading it takes long.
const START_DEADLINE: Duration = Duration::from_mins(2);
const SEE_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Disables features that use the network, and the sandbox, which does not work when a test runs as root.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];

/// A browser with one window. It stops, and its files are deleted, when the value is dropped, the test panics or the
/// test is killed. If a page does not show the expected content in time, the call panics and names that content.
pub struct Browser {
    scratch: Scratch,
    driver: Child,
    driver_url: String,
    session: String,
}

impl Browser {
    /// Starts a browser with this preferred language.
    pub fn start(language: &str) -> Self {
        let (chromium, driver) = (
            program("RELEVO_TEST_CHROMIUM_BIN", "/usr/bin/chromium"),
            program("RELEVO_TEST_CHROMEDRIVER_BIN", "/usr/bin/chromedriver"),
        );
        let scratch = Scratch::for_marked();
        let log = std::fs::File::create(scratch.path().join("log")).expect("the directory can be written");
        let mut command = Command::new(driver);
        // The browser gets its own home and temporary directory, so that it does not use the current user's profile.
        command.arg("--port=0").env(marked::VARIABLE, scratch.path()).env("HOME", scratch.path());
        command.env("TMPDIR", scratch.path()).current_dir(scratch.path());
        command.stdout(log.try_clone().expect("a file has another handle")).stderr(log).stdin(Stdio::null());
        let driver = command.process_group(0).spawn().expect("`chromedriver` runs");
        let mut browser = Self { scratch, driver, driver_url: String::new(), session: String::new() };
        browser.driver_url = format!("http://127.0.0.1:{}", browser.port());
        let mut flags: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", browser.scratch.path().join("profile").display()));
        flags.push("--window-size=1500,1000".to_owned());
        flags.push(format!("--accept-lang={language}"));
        let options = json!({ "binary": chromium, "args": flags });
        let capabilities = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let capabilities = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let session = browser.post(START_DEADLINE, "/session", &capabilities);
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("a session has an id"));
        browser
    }

    /// Opens a URL and waits until the page is loaded.
    pub fn open(&self, url: &str) {
        self.act("/url", &json!({ "url": url }));
    }

    /// Waits until the element of a CSS selector is visible, then clicks it.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.act(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types text into a field, after its current content.
    pub fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.act(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Runs a script, the body of a function that can read `arguments`, and returns its result.
    pub fn run(&self, script: &str, arguments: &[&str]) -> Value {
        self.act("/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// The text that is currently visible in the element.
    pub fn text(&self, selector: &str) -> String {
        let script = "const found = document.querySelector(arguments[0]); \
            return found?.checkVisibility({ visibilityProperty: true }) ? found.innerText : ''";
        self.run(script, &[selector]).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the element visibly contains a text.
    pub fn see(&self, selector: &str, text: &str) {
        let deadline = Instant::now() + SEE_DEADLINE;
        loop {
            let shown = self.text(selector);
            if shown.contains(text) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "no `{text}` in `{selector}`, which shows `{shown}`\n{:#?}",
                self.console()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Makes all later calls act inside a frame, until [`leave_frame`](Self::leave_frame).
    pub fn enter_frame(&self, selector: &str) {
        let element = self.element(selector);
        self.act("/frame", &json!({ "id": { ELEMENT: element } }));
    }

    /// Returns to the page that contains the frame.
    pub fn leave_frame(&self) {
        self.act("/frame/parent", &json!({}));
    }

    /// Changes the window size. Chromium limits the width to at least 500.
    pub fn resize(&self, width: u32, height: u32) {
        self.act("/window/rect", &json!({ "width": width, "height": height }));
    }

    /// Shows the page on a screen of this size and in this colour scheme, `light` or `dark`. Below a width of 600 it is a
    /// phone.
    pub fn emulate(&self, width: u32, height: u32, colours: &str) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &screen);
        let colours = json!({ "name": "prefers-color-scheme", "value": colours });
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": [colours] }));
    }

    /// The visible part of the page as a PNG image.
    pub fn screenshot(&self) -> Vec<u8> {
        let image = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        BASE64_STANDARD.decode(image["data"].as_str().expect("an image")).expect("the image is in base64")
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.act("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Console messages of the page since the last call, including the browser's own: errors and policy violations.
    pub fn console(&self) -> Vec<String> {
        let lines = self.act("/se/log", &json!({ "type": "browser" }));
        let text = |line: &Value| format!("{}: {}", line["level"], line["message"].as_str().unwrap_or_default());
        lines.as_array().map(|lines| lines.iter().map(text).collect()).unwrap_or_default()
    }

    /// Waits until an element is visible and returns its id.
    fn element(&self, selector: &str) -> String {
        let deadline = Instant::now() + SEE_DEADLINE;
        loop {
            let script = "const found = document.querySelector(arguments[0]); \
                return found?.checkVisibility({ visibilityProperty: true }) ? found : null";
            let found = self.run(script, &[selector]);
            if let Some(id) = found[ELEMENT].as_str() {
                return id.to_owned();
            }
            assert!(Instant::now() < deadline, "no `{selector}` is visible\n{:#?}", self.console());
            std::thread::sleep(POLL);
        }
    }

    fn act(&self, command: &str, body: &Value) -> Value {
        self.post(http::DEADLINE, &format!("{}{command}", self.session), body)
    }

    fn post(&self, deadline: Duration, path: &str, body: &Value) -> Value {
        let (status, text) = http::request_in(VERSION, deadline, &self.driver_url, "POST", path, &body.to_string())
            .unwrap_or_else(|error| panic!("no response to `{path}`: {error}\n{}", self.log()));
        assert_eq!(status, 200, "{path} {body}: {text}");
        let mut response: Value = serde_json::from_str(&text).expect("the driver speaks JSON");
        response["value"].take()
    }

    /// The driver chooses a free port and prints it.
    fn port(&mut self) -> u16 {
        const STARTED: &str = "was started successfully on port ";
        let deadline = Instant::now() + READY_DEADLINE;
        loop {
            let log = self.log();
            if let Some((port, _)) = log.split_once(STARTED).and_then(|(_, rest)| rest.split_once('.')) {
                return port.parse().expect("a port");
            }
            let status = self.driver.try_wait().expect("the process is ours");
            assert!(status.is_none() && Instant::now() < deadline, "it does not start:\n{log}");
            std::thread::sleep(POLL);
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser stops when its session is deleted. If it does not, the watchdog kills all marked processes.
        if !self.session.is_empty() {
            http::request_in(VERSION, http::DEADLINE, &self.driver_url, "DELETE", &self.session, "").ok();
        }
        self.driver.kill().ok();
        self.driver.wait().ok();
    }
}
