//! The browser for tests of web pages.

use std::time::{Duration, Instant};

use relevo_testkit::browser::Browser;

const PAGE: &str = "data:text/html,<input id=name><button id=greet>Greet</button><p id=said></p><p id=hidden hidden>dark</p>\
    <script>greet.onclick = () => setTimeout(() => { said.textContent = `Hello ${name.value}`; console.error('greeted') }, 50)</script>";

#[test]
fn a_browser_reads_and_clicks_visible_elements_and_leaves_nothing_behind() {
    let browser = Browser::start("es");
    browser.open(&PAGE.replace("name.value", "document.querySelector('input').value"));
    browser.write("#name", "Ana");
    browser.click("#greet");
    browser.see("#said", "Hello Ana");
    assert_eq!(browser.text("#hidden"), "", "hidden text is not read");
    assert_eq!(browser.run("return navigator.language + arguments[0]", &["!"]), "es!");
    let console = browser.console();
    assert_eq!(console.len(), 1, "{console:?}");
    assert!(console[0].contains("greeted"), "{console:?}");

    let driven = processes(std::process::id());
    assert!(driven.len() > 1, "a driver and a browser, not {driven:?}");
    drop(browser);
    // `drop` does not wait until the browser's own processes end.
    let end = Instant::now() + Duration::from_secs(10);
    for process in driven {
        // A zombie has no command line.
        let line = || std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        while !line().is_empty() {
            assert!(Instant::now() < end, "still running: {}", String::from_utf8_lossy(&line()));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// All descendants of a process.
fn processes(parent: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|child| child.parse().ok())
        .collect();
    children.into_iter().flat_map(|child| processes(child).into_iter().chain([child])).collect()
}
