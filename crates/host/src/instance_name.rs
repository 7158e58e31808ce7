//! Names of this process and its machine.

/// The name of the machine, from the kernel: files with it may be hidden from a service. `None` if it has none.
pub fn machine_name() -> Option<String> {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    (!name.is_empty()).then(|| name.into_owned())
}

/// The name of the machine and the process id, which is unique among the owners of leases.
pub fn instance_name() -> String {
    format!("{}:{}", machine_name().unwrap_or_else(|| "relevo".to_owned()), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_named_like_its_machine_and_process() {
        let name = instance_name();
        let (machine, process) = name.rsplit_once(':').expect("both parts");
        assert_eq!(Some(machine), machine_name().as_deref());
        assert_eq!(process.parse(), Ok(std::process::id()));
    }
}
