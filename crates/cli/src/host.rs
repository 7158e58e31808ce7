//! The user and the host of this process, and why an operator acts.

/// A text that is stored.
pub(crate) fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("it is stored, and cannot be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// The user and the host.
pub(crate) fn user_at_host() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    format!("{}@{}", user.unwrap_or_else(|| "unknown".to_owned()), host_name())
}

/// The host name, as the system call returns it. Files such as `/proc/sys/kernel/hostname` can be hidden from a service.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    if name.is_empty() { "relevo".to_owned() } else { name.into_owned() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_host_name_is_that_of_the_kernel() {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(super::host_name(), kernel.trim());
    }
}
